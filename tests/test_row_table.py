"""Maps by rows and the order of their masks on gfx950 kernels, against the reference and numpy's stable sort."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from test_z_delta import CUBE, FLAT, Triple, compiled, random_coords, run_map

from spconv_compiler import compiler, reference
from spconv_compiler.artifact import Artifact
from spconv_compiler.options import CompileOptions
from spconv_compiler.passes.gpu import row_masks
from spconv_compiler.passes.gpu.radix_sort import Sort
from spconv_compiler.passes.gpu.row_masks import BLOCK_ROWS, KEY_BITS, key_bits
from spconv_compiler.passes.gpu.row_table import row_words
from spconv_compiler.schedules.mappers import MAPPERS
from spconv_compiler.targets import get_target

TILE = 16


def keys_of(table: np.ndarray, kernel: Triple, key_width: int = KEY_BITS) -> np.ndarray:
    """The place in a Gray code of every row's bits, counted down from the highest; of that the upper bits."""
    masks = np.zeros(len(table), np.int64)
    for tap, word in enumerate(key_bits(kernel)):
        masks |= np.where(table[:, tap] >= 0, word, 0)
    keys, parity = np.zeros_like(masks), np.zeros_like(masks)
    for bit in reversed(range(KEY_BITS)):
        parity ^= masks >> bit & 1
        keys |= parity << bit
    return keys >> KEY_BITS - key_width


def check_order(
    coords: np.ndarray, kernel: Triple = CUBE, dilation: Triple = FLAT, bits: int = KEY_BITS, **how: Any
) -> dict[str, Any]:
    """The table by rows, the order of rows, and the table in that order, bit for bit."""
    buffers = run_map(coords, kernel, dilation, schedule="output_stationary", **how)
    taps, rows = math.prod(kernel), len(coords)
    expected = reference.kernel_map(coords, kernel, dilation)
    table = buffers["table"].reshape(rows, row_words(taps))
    np.testing.assert_array_equal(table[:, :taps], expected)
    order, sorted_ = buffers["row_order"], np.argsort(keys_of(expected, kernel, bits), kind="stable")
    np.testing.assert_array_equal(order[:rows], sorted_)
    assert (order[rows:] == -1).all() and len(order) == -(-rows // BLOCK_ROWS) * BLOCK_ROWS
    in_order = buffers["sorted_table"].reshape(-1, taps, TILE).transpose(0, 2, 1).reshape(-1, taps)
    np.testing.assert_array_equal(in_order[:rows], expected[sorted_])
    assert (in_order[rows:] == -1).all()
    check_steps(buffers, in_order, taps)
    return buffers


def check_steps(buffers: dict[str, Any], in_order: np.ndarray, taps: int) -> None:
    """Of every block its taps, ascending, each with the tiles that have it."""
    present = (in_order >= 0).reshape(-1, BLOCK_ROWS // TILE, TILE, taps).any(axis=2)
    steps = buffers["steps"].reshape(-1, taps).view(np.uint32)
    for block, (tiles, count) in enumerate(zip(present, buffers["step_count"], strict=True)):
        words = (tiles << np.arange(BLOCK_ROWS // TILE)[:, None]).sum(axis=0)
        (wanted,) = words.nonzero()
        assert count == len(wanted)
        np.testing.assert_array_equal(steps[block, :count], wanted | words[wanted] << 16)
        assert not steps[block, count:].any()


@pytest.mark.parametrize("mapper", MAPPERS)
@pytest.mark.parametrize("rows", [1, 17, 1025])
def test_random_voxels(mapper: str, rows: int) -> None:
    check_order(random_coords(rows, 14, seed=rows), mapper=mapper, seed=rows)


@pytest.mark.parametrize(
    ("kernel", "dilation", "key_width"),
    [
        ((1, 3, 5), FLAT, 64),
        pytest.param((3, 3, 3), (1, 2, 5), 32, marks=pytest.mark.slow),
        pytest.param((5, 1, 1), FLAT, 32, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_kernels_and_dilation(kernel: Triple, dilation: Triple, key_width: int) -> None:
    """15 taps are an even number of runs, and of five the last run has one; all lanes of a wave look for few ends."""
    check_order(random_coords(900, 8), kernel, dilation, mapper="z_delta", key_width=key_width)


def test_repeated_coordinates() -> None:
    coords = np.random.default_rng(1).permutation(np.repeat(random_coords(60, 4), 12, axis=0))
    for mapper in MAPPERS:
        check_order(coords, mapper=mapper)


@pytest.mark.parametrize("mapper", ["z_delta", pytest.param("dense_grid", marks=pytest.mark.slow)])
def test_keys_of_two_digits(monkeypatch: pytest.MonkeyPatch, mapper: str) -> None:
    """As where matrix instructions take 64 rows: half the passes, and rows in the order of the upper 16 bits."""
    monkeypatch.setattr(row_masks, "sort_of", lambda items, target: Sort(32, items, target.wave, digits=2))
    target = get_target("gfx950")
    options = CompileOptions(
        CUBE, 16, 16, 32, dtype="bf16", target="gfx950", schedule="output_stationary", mapper=mapper
    )
    artifact = Artifact("", compiler._build(options, target))
    names = check_order(random_coords(2500, 14), bits=16, mapper=mapper, artifact=artifact)["launches"].tolist()
    assert names.count("sort_digit_k32_i4_d2") == 2 and "search_k32_3x3x3_d1x1x1_b256" not in names


@pytest.mark.slow
def test_many_taps_take_the_table_by_tiles() -> None:
    """A lane holds 32 neighbours at most."""
    names = [launch.kernel for launch in compiled((5, 5, 5), FLAT, 32, "dense_grid", "output_stationary").plan.launches]
    assert "row_keys_5x5x5_i4" in names and "arrange_t125_i4" in names
