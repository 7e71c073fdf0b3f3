"""Prefix sums in one launch, on the simulator, in any order of workgroups."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from gpu_kernel_harness import compiled, run

from spconv_compiler.dialect.types import buffer_type
from spconv_compiler.passes.gpu import device_scan
from spconv_compiler.passes.gpu.lanes import load, plus, store, thread, times
from spconv_compiler.passes.kernel_builder import V, const, i32, if_, if_else
from spconv_compiler.sim.elf import Kernel

TILE, WAVE = 256, 64


def sums_before(values: V, sums: V, state: V, count: V, totals: V, ticket: V, sum_: V) -> None:
    """The body of a kernel, sums[i] = Σ values[:i] for i from 0 to count: a lane a value, a workgroup a tile."""
    zero = const(0, i32())
    tile = device_scan.take_tile(state, zero, ticket, WAVE)
    at = plus(times(tile, TILE), thread())
    (own,) = if_else(at.ult(count), lambda: [load(values, at)], lambda: [zero])
    before = device_scan.sum_before(state, tile, own, totals, sum_, TILE, WAVE)
    with if_(at.compare("ule", count)):
        store(before, sums, at)


@functools.cache
def scan_kernel() -> dict[str, Kernel]:
    return compiled(
        lambda: [buffer_type(i32())] * 3 + [i32()],
        TILE,
        sums_before,
        lambda: device_scan.scan_shared(TILE, WAVE),
    )


def scan(values: np.ndarray, **how: Any) -> np.ndarray:
    count = len(values)
    tiles = -(-(count + 1) // TILE)
    out, state = np.full(count + 1, -7, np.int32), np.zeros(1 + tiles, np.int32)
    buffers = [values.astype(np.int32), out, state, count]
    return np.asarray(run(scan_kernel(), [tiles], TILE, buffers, **how)[1])


@pytest.mark.parametrize("count", [1, TILE - 1, TILE + 1, 5 * TILE, 150 * TILE + 3])
@pytest.mark.parametrize("seed", [None, 1])
def test_sum_before(count: int, seed: int | None) -> None:
    """150 tiles are more than one wave of predecessors."""
    values = np.random.default_rng(count).integers(0, 100, count)
    expected = np.concatenate([[0], np.cumsum(values)])
    np.testing.assert_array_equal(scan(values, seed=seed), expected)


def test_threads_and_the_numpy_engine() -> None:
    values = np.random.default_rng(3).integers(0, 100, 20 * TILE)
    expected = np.concatenate([[0], np.cumsum(values)])
    np.testing.assert_array_equal(scan(values, threads=2, seed=5), expected)
    np.testing.assert_array_equal(scan(values, native=False), expected)
