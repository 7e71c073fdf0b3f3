"""The radix sort as gfx950 kernels, on the simulator, against numpy's stable sort."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from gpu_kernel_harness import NAME, compiled, machine_for

from spconv_compiler.dialect.types import buffer_type
from spconv_compiler.passes.gpu.box import key_type
from spconv_compiler.passes.gpu.lanes import load
from spconv_compiler.passes.gpu.radix_sort import LANES, Sort
from spconv_compiler.passes.kernel_builder import i32
from spconv_compiler.plan import evaluate
from spconv_compiler.sim.elf import Kernel

WAVE, ITEMS = 64, 4
TILE = LANES * ITEMS
DTYPES = {32: np.uint32, 64: np.uint64}


@functools.cache
def kernels(width: int) -> tuple[dict[str, Kernel], dict[str, Kernel]]:
    """The kernel that makes records of keys as they are, and a pass."""
    sort = Sort(width, ITEMS, WAVE)

    def types() -> list[object]:
        words, keys = buffer_type(i32()), buffer_type(key_type(width))
        return [keys, keys, words, i32(), key_type(width)]

    make = compiled(types, LANES, sort.make_records(lambda keys, row, limit: load(keys, row)), sort.make_workgroup)
    one = compiled(
        lambda: [buffer_type(key_type(width)), buffer_type(i32()), i32()], LANES, sort.digit_pass(), sort.pass_workgroup
    )
    return make, one


def sorted_by_kernels(
    keys: np.ndarray, limit: int, seed: int | None = None, threads: int = 1
) -> tuple[np.ndarray, int]:
    """Records [N, 2] of the half that has the result, and the passes that did something."""
    width, rows = 8 * keys.dtype.itemsize, len(keys)
    tiles = -(-rows // TILE)
    passes = next(n for n in range(1, 9) if limit < 256**n)
    words = 16 + width // 8 * 256 * (1 + tiles)
    machine = machine_for({"make": kernels(width)[0][NAME], "pass": kernels(width)[1][NAME]}, threads)
    place = machine.memory.allocate
    given, records = place("keys", keys.nbytes, writable=False), place("records", 4 * keys.nbytes)
    state = place("state", 4 * words)
    machine.memory.write_array(given, keys)
    machine.memory.write_array(state, np.zeros(words, np.int32))
    order = None if seed is None else np.random.default_rng(seed).permutation(tiles).tolist()
    machine.launch("make", [tiles], LANES, [given, records, state, rows, limit], order)
    before = machine.memory.read_bytes(records).copy()
    done = 0
    for _ in range(passes):
        machine.launch("pass", [tiles], LANES, [records, state, rows], order)
        after = machine.memory.read_bytes(records).copy()
        done += not np.array_equal(before, after)
        before = after
    halves = before.view(keys.dtype).reshape(2, rows, 2)
    unsorted = machine.memory.read_bytes(state).view(np.int32)[0] != 0
    return halves[passes % 2 if unsorted else 0], done


def check(keys: np.ndarray, limit: int, **how: int | None) -> int:
    found, done = sorted_by_kernels(keys, limit, **how)
    order = np.argsort(keys, kind="stable")
    np.testing.assert_array_equal(found[:, 0], keys[order])
    np.testing.assert_array_equal(found[:, 1], order)
    return done


@pytest.mark.parametrize("rows", [1, 63, TILE - 1, TILE, TILE + 1, 7 * TILE + 5])
@pytest.mark.parametrize("width", [32, 64])
def test_random_keys(rows: int, width: int) -> None:
    """Few different keys: equal ones keep their order."""
    rng = np.random.default_rng(rows)
    check(rng.integers(0, 300, rows).astype(DTYPES[width]), 300, seed=rows)


@pytest.mark.parametrize(("width", "bits"), [(32, 7), (32, 31), (64, 34), (64, 63)])
def test_digits(width: int, bits: int) -> None:
    rng = np.random.default_rng(bits)
    limit = 2**bits - 1
    keys = rng.integers(0, limit, 3 * TILE + 77, endpoint=True).astype(DTYPES[width])
    assert check(keys, limit, seed=1) == -(-bits // 8)


@pytest.mark.parametrize("keys", [np.arange(3000), np.zeros(2000, int), np.arange(2500) // 3], ids=["rows", "0", "3"])
def test_keys_in_order_are_not_sorted_again(keys: np.ndarray) -> None:
    assert check(keys.astype(np.uint32), 2**20) == 0


@pytest.mark.parametrize("at", [0, TILE - 1, TILE, 2 * TILE + 63])
def test_one_key_out_of_order(at: int) -> None:
    """Also between two tiles, and between two waves."""
    keys = np.arange(3 * TILE).astype(np.uint32)
    keys[[at, at + 1]] = keys[[at + 1, at]]
    assert check(keys, 2**12) == 2


def test_threads_of_the_simulator() -> None:
    keys = np.random.default_rng(5).integers(0, 2**16, 20 * TILE).astype(np.uint32)
    check(keys, 2**16 - 1, seed=2, threads=2)


def test_sizes() -> None:
    sort = Sort(64, ITEMS, WAVE)
    symbols = {"rows": 3 * TILE + 1, "cells": 2**34}
    sizes = {text: evaluate_text(text, symbols) for text in (sort.words(), sort.records(), *map(sort.grid, range(8)))}
    assert list(sizes.values())[:2] == [16 + 8 * 256 * 5, 4 * (3 * TILE + 1)]
    assert [sizes[sort.grid(number)] for number in range(8)] == [4, 4, 4, 4, 4, 0, 0, 0]


def evaluate_text(text: str, symbols: dict[str, int]) -> int:
    from spconv_compiler.bindings import ir
    from spconv_compiler.context import make_context
    from spconv_compiler.dialect.plan import size_map
    from spconv_compiler.plan import _expr_of_map

    with make_context(), ir.Location.unknown():
        return evaluate(_expr_of_map(size_map(text)), {"threads": 1, **symbols})
