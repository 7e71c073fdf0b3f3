"""The gfx950 kernels at level gpu, run by the interpreter (gpu_interpreter), against the numpy reference.

Integer-valued inputs make every f32 sum exact in any order, so results are compared for equality.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gpu_interpreter import Buffer, Fault
from gpu_interpreter.conv import (
    Inputs,
    box_symbols,
    options_for,
    run_conv,
    scattered_coords,
    whole_inputs,
)

from spconv_compiler import reference
from spconv_compiler.errors import LaunchError
from spconv_compiler.options import CompileOptions

CUBE = (3, 3, 3)
TILE = 16


def expected(options: CompileOptions, inputs: Inputs) -> np.ndarray:
    out = reference.subm_conv3d(inputs.coords, inputs.features, inputs.weight, inputs.bias, options.dilation)
    if options.activation == "relu":
        out = np.maximum(out, 0)
    return reference.round_to(out, options.out_dtype)


def result(options: CompileOptions, inputs: Inputs, **changes: Any) -> np.ndarray:
    out = run_conv(options, inputs, **changes)["out"]
    assert out.written.all(), "the kernels leave output elements unwritten"
    return out.data.reshape(len(inputs.coords), options.c_out)


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 300])
@pytest.mark.parametrize("kernel", [CUBE, (1, 3, 3), (5, 5, 5)])
def test_rows_and_kernels(rows: int, kernel: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(rows)
    options = options_for(kernel, 16, 32)
    inputs = whole_inputs(rng, options, scattered_coords(rng, rows, 9, low=-4))
    np.testing.assert_array_equal(result(options, inputs), expected(options, inputs))


@pytest.mark.parametrize(
    ("c_in", "c_out"),
    [(1, 1), (3, 16), (6, 6), (10, 24), (16, 3), (32, 40), (40, 80), (64, 64), (72, 17), (128, 128), (96, 272)],
)
def test_channels(c_in: int, c_out: int) -> None:
    """Rows that are not multiples of 16 bytes, partial steps over K, partial panels and slices of C_out."""
    rng = np.random.default_rng(c_in * 1000 + c_out)
    options = options_for((1, 3, 3), c_in, c_out)
    inputs = whole_inputs(rng, options, scattered_coords(rng, 70, 6))
    np.testing.assert_array_equal(result(options, inputs), expected(options, inputs))


@pytest.mark.parametrize(
    "others",
    [
        {"key_width": 64},
        {"bias": True},
        {"bias": True, "activation": "relu", "out_dtype": "bf16"},
        {"activation": "relu"},
        {"dtype": "f16", "out_dtype": "f16"},
        {"dtype": "f32", "bias": True},
        {"dilation": (1, 2, 3)},
        {"dilation": (2, 1, 1), "key_width": 64},
    ],
    ids=str,
)
@pytest.mark.parametrize("batches", [1, 3])
def test_options(others: dict[str, Any], batches: int) -> None:
    rng = np.random.default_rng(3)
    options = options_for(CUBE, 24, 20, **others)
    inputs = whole_inputs(rng, options, scattered_coords(rng, 150, 6, batches, low=-3))
    np.testing.assert_array_equal(result(options, inputs), expected(options, inputs))


@pytest.mark.parametrize("schedule", [{"waves": 3}, {"k_unroll": 2}, {"k_unroll": 3, "waves": 1}], ids=str)
def test_schedule_parameters(schedule: dict[str, int]) -> None:
    """Fewer waves than tiles: each takes several; 5 steps over K in rounds of 1, 2 or 3 with a rest."""
    rng = np.random.default_rng(5)
    options = options_for((1, 1, 3), 160, 48)
    inputs = whole_inputs(rng, options, scattered_coords(rng, 90, 5))
    np.testing.assert_array_equal(result(options, inputs, gemm_schedule=schedule), expected(options, inputs))


@pytest.mark.parametrize("low", [-(2**31), 2**31 - 6], ids=["least", "greatest"])
@pytest.mark.parametrize("key_width", [32, 64])
def test_extreme_coordinates(low: int, key_width: int) -> None:
    """The box with its halo begins below, or ends beyond, what 32 bits hold."""
    rng = np.random.default_rng(7)
    options = options_for(CUBE, 8, 16, key_width=key_width)
    inputs = whole_inputs(rng, options, scattered_coords(rng, 60, 6, low=low))
    np.testing.assert_array_equal(result(options, inputs), expected(options, inputs))


def check_pairs(buffers: dict[str, Buffer], options: CompileOptions, coords: np.ndarray) -> None:
    """The pair list bit for bit: order, padding, tiles per tap, tap per tile, and nothing beyond its end."""
    table = reference.kernel_map(coords, options.kernel_size, options.dilation)
    wanted = reference.pad_pairs(reference.pairs(table), TILE)
    tiles = reference.tile_taps(wanted, TILE)
    for name, values in {
        "in_rows": wanted.in_rows,
        "out_rows": wanted.out_rows,
        "tile_tap": tiles,
        "tap_tile": wanted.tap_start // TILE,
    }.items():
        assert buffers[name].written[: len(values)].all(), name
        assert not buffers[name].written[len(values) :].any(), f"{name} is written beyond its end"
        np.testing.assert_array_equal(buffers[name].data[: len(values)], values, err_msg=name)


@pytest.mark.parametrize("key_width", [32, 64])
@pytest.mark.parametrize(
    ("kernel", "rows", "span", "duplicates"),
    [
        (CUBE, 300, 8, 0),
        (CUBE, 16, 3, 0),
        ((5, 5, 5), 200, 7, 0),
        (CUBE, 100, 5, 60),
        ((7, 7, 7), 40, 6, 0),
        ((1, 1, 3), 4500, 30, 0),
    ],
    ids=str,
)
def test_pair_list(kernel: tuple[int, int, int], rows: int, span: int, duplicates: int, key_width: int) -> None:
    """4500 rows are more than one chunk of the compaction; 125 and 343 taps, more than one wave of its scan."""
    rng = np.random.default_rng(rows)
    options = options_for(kernel, 1, 1, key_width=key_width)
    coords = scattered_coords(rng, rows, span, batches=2, low=-5)
    coords = np.concatenate([coords, rng.choice(coords, duplicates)]) if duplicates else coords
    rng.shuffle(coords)
    check_pairs(run_conv(options, whole_inputs(rng, options, coords)), options, coords)


@pytest.mark.parametrize(("c_in", "c_out"), [(6, 40), (64, 64), (40, 80), (128, 272)])
def test_packed_weight(c_in: int, c_out: int) -> None:
    """The panels against the reference's packing of a weight that is padded to whole slices."""
    rng = np.random.default_rng(13)
    options = options_for((1, 3, 3), c_in, c_out)
    inputs = whole_inputs(rng, options, scattered_coords(rng, 5, 3))
    packed = run_conv(options, inputs)["packed"].data
    columns = packed.size // (9 * -(-c_in // 32) * 32)
    padded = np.pad(inputs.weight, [(0, columns - c_out), *[(0, 0)] * 4])
    np.testing.assert_array_equal(packed, reference.pack_weight_mfma(padded).reshape(-1))


@pytest.mark.parametrize("c_in", [3, 16, 40])
def test_nan_stays_with_its_neighbours(c_in: int) -> None:
    """A row is never multiplied with what lies beyond it in memory, not even by zero."""
    rng = np.random.default_rng(17)
    options = options_for(CUBE, c_in, 16)
    inputs = whole_inputs(rng, options, scattered_coords(rng, 60, 6))
    inputs.features[30] = np.nan
    out = result(options, inputs)
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected(options, inputs)))
    touched = np.isnan(out).any(axis=1)
    assert touched[30] and not touched.all()


def test_rows_outside_the_box_are_left_out() -> None:
    """A box that is too small, which the driver never passes: no access out of bounds, no pair for such rows."""
    rng = np.random.default_rng(19)
    options = options_for(CUBE, 8, 8)
    inputs = whole_inputs(rng, options, scattered_coords(rng, 100, 8))
    inside = (inputs.coords[:, 1:] < 5).all(axis=1)
    box = box_symbols(options, inputs.coords[inside])
    small = {name: value for name, value in box.items() if name != "rows"}
    buffers = run_conv(options, inputs, symbols=small)
    rows = buffers["out_rows"]
    assert set(rows.data[rows.written]) - {-1} == set(np.flatnonzero(inside))


def test_no_rows() -> None:
    rng = np.random.default_rng(23)
    options = options_for(CUBE, 8, 8, bias=True)
    inputs = whole_inputs(rng, options, np.zeros((0, 4), np.int32))
    assert result(options, inputs).shape == (0, 8)


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        ({"rows": 2**28}, "bytes of coordinates"),
        ({"rows": 40_000_000}, "bytes of the kernel map"),
        ({"rows": 20_000_000}, "bytes of features"),
        ({"cells": 2**30}, "bytes of the dense grid"),
    ],
    ids=str,
)
def test_sizes_that_offsets_do_not_reach(symbols: dict[str, int], message: str) -> None:
    rng = np.random.default_rng(29)
    options = options_for(CUBE, 128, 8)
    inputs = whole_inputs(rng, options, scattered_coords(rng, 3, 3))
    with pytest.raises(LaunchError, match=f"{message}.*at most 4294967295"):
        run_conv(options, inputs, symbols=symbols)


def swap_taps(kernel: str, buffers: dict[str, Buffer]) -> None:
    if kernel.startswith("pack_weight"):
        taps = buffers["packed"].data.reshape(27, -1)
        taps[[3, 7]] = taps[[7, 3]]


def forget_one_pair(kernel: str, buffers: dict[str, Buffer]) -> None:
    if kernel.startswith("compact_pairs"):
        rows = buffers["out_rows"].data
        rows[np.flatnonzero(rows >= 0)[50]] = -1


# Kernel, what is changed in its text and into what, and the Fault that shows it ("": a wrong result).
ALWAYS = r"arith.cmpi eq, \1, \1"
EDITS = {
    "padding is added up": ("gemm", r"arith.cmpi sge, (%\w+), %c0_i32", ALWAYS, "not to wrap"),
    "channels beyond the last are read": ("gemm", r"arith.select %\w+, (%\w+), %\w+", r"arith.addi \1, %c0_i32", ""),
    "columns beyond the last are added": ("gemm", r"arith.cmpi slt, (%\w+), %c20_i32", ALWAYS, "sums: elements"),
    "no barrier behind the ticket": ("compact_pairs", r"gpu.barrier.*\n", "\n", "without a barrier"),
    "no barrier behind the totals": (
        "compact_pairs",
        r"(gpu.barrier(?:.*\n)+?.*)gpu.barrier.*\n",
        r"\1\n",
        "without a barrier",
    ),
    "no barrier behind the counts": ("lookup", r"gpu.barrier.*\n", "\n", "without a barrier"),
    "a tap begins too early": (
        "compact_pairs",
        r"arith.cmpi slt, (%\w+), %\w+( : i32\n.*scf.if .*-> \(i32\))",
        r"arith.cmpi slt, \1, \1\2",
        "write one element",
    ),
    "no rank among the rows": (
        "compact_pairs",
        r"(subi %\d+, %c1_i64 : i64\n.*\n.*)math.ctpop (%\w+)",
        r"\1arith.subi \2, \2",
        "write one element",
    ),
    "no padding": (
        "compact_pairs",
        r'arith.cmpi slt, (%\w+), %\w+(.*\n.*\n.*\n.*"spconv.tile_store"\(%c0_i32)',
        r"arith.cmpi slt, \1, \1\2",
        "never written",
    ),
    "rows beyond the last look up": ("lookup", r"arith.cmpi slt, (%\w+), %arg4", ALWAYS, "in_rows: elements"),
    "rows beyond the last are scattered": ("scatter", r"arith.cmpi slt, (%\w+), %arg2", ALWAYS, "coords: elements"),
    "not the lowest row": ("scatter", r'kind = "umin"', 'kind = "add"', ""),
    "an empty cell is row 0": ("fill_grid", r"dense<-1>", "dense<0>", ""),
    "a part of the grid is not filled": ("fill_grid", r'"spconv.tile_store".*\n', "\n", "never written"),
    "rows are not filled": ("fill_rows", r'"spconv.tile_store".*\n', "\n", "never written"),
    "wrong side of zero": ("apply_relu", r"arith.cmpf olt", "arith.cmpf ogt", ""),
    "wrong distance of taps": ("pack_weight", r"arith.constant 27 : i32", "arith.constant 26 : i32", ""),
}


def in_kernel(name: str, pattern: str, replacement: str) -> Callable[[str], str]:
    """An edit that replaces the first match of `pattern` inside the kernel whose name starts with `name`."""

    def edit(text: str) -> str:
        start = text.index(f"gpu.func @{name}")
        end = text.find("gpu.func @", start + 1)
        body = text[start:] if end < 0 else text[start:end]
        changed, count = re.subn(pattern, replacement, body, count=1)
        assert count == 1, f"{pattern} is not in {name}"
        return text.replace(body, changed)

    return edit


def run_broken(**change: Any) -> bool:
    """Whether a convolution with a fault in it still gives the right result; rows, padding and NaN of all kinds."""
    rng = np.random.default_rng(31)
    options = options_for(CUBE, 12, 20, bias=True, activation="relu")
    coords = scattered_coords(rng, 76, 5)
    inputs = whole_inputs(rng, options, np.concatenate([coords, coords[:1]]))
    inputs.features[30] = np.nan
    out = run_conv(options, inputs, **change)["out"].data.reshape(77, 20)
    return np.array_equal(out, expected(options, inputs), equal_nan=True)


def test_unbroken_kernels_pass() -> None:
    assert run_broken()


@pytest.mark.parametrize("change", [swap_taps, forget_one_pair])
def test_broken_buffers_are_noticed(change: Callable[[str, dict[str, Buffer]], None]) -> None:
    assert not run_broken(between=change)


@pytest.mark.parametrize("name", EDITS)
def test_broken_kernels_are_noticed(name: str) -> None:
    """What the tests above rest on: each fault gives a Fault of the interpreter, or a wrong result."""
    kernel, pattern, replacement, fault = EDITS[name]
    edit = in_kernel(kernel, pattern, replacement)
    if fault:
        with pytest.raises(Fault, match=fault):
            run_broken(edit=edit)
    else:
        assert not run_broken(edit=edit)
