"""The kernels between two sets under the simulator's eye: order of workgroups, waits, barriers, faults in the code."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conv_cases import voxels
from cross_cases import SHAPE

from spconv_compiler import reference_cross as rc
from spconv_compiler.arrays import as_array
from spconv_compiler.coordinates import Box
from spconv_compiler.errors import ScheduleError, SpconvError
from spconv_compiler.geometry import ConvGeometry
from spconv_compiler.passes.gpu import (
    cross_axes,
    cross_index,
    cross_lookup,
    cross_pairs,
    output_cells,
    pool_rows,
    sorted_outputs,
)
from spconv_compiler.runtime.sim import SimDevice
from spconv_compiler.schedules import choose_outputs, choose_pool
from spconv_compiler.sim.elf import CodeObject
from spconv_compiler.sim.errors import Fault
from spconv_compiler.sim.interpreter import Machine
from spconv_compiler.sim.mutation import barriers_of, wait_report
from spconv_compiler.sim.mutation_cross import cross_ops, scan_alone
from spconv_compiler.sparse_driver_gpu import GpuSparseKernel
from spconv_compiler.sparse_options import SparseOptions
from spconv_compiler.targets import GpuTarget, get_target

GEOMETRY, GRID = ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1)), rc.Grid.of(3, 2, 1)


def loaded(device: SimDevice | None = None, **options: Any) -> GpuSparseKernel:
    target, found = get_target("gfx950-sim"), device or SimDevice()
    assert isinstance(target, GpuTarget)
    return GpuSparseKernel(SparseOptions(geometry=GEOMETRY, target=target.name, **options), target, lambda index: found)


def box_of(coords: Any) -> Box:
    return Box(tuple(coords.min(axis=0).tolist()), tuple(coords.max(axis=0).tolist()))


def outputs_of(kernel: GpuSparseKernel, coords: Any) -> Any:
    box = box_of(coords)
    outputs = GEOMETRY.output_box(box, None)
    assert outputs is not None
    return kernel.outputs(as_array(coords, "coords"), kernel.output_numbers(box, outputs)[0], None).rows


class Backwards(Machine):
    """Workgroups start in descending order."""

    def launch(self, kernel: str, grid: Any, block: int, arguments: Any, groups: Any = None) -> Any:
        return super().launch(kernel, grid, block, arguments, range(int(np.prod(grid)) - 1, -1, -1))


def test_order_of_workgroups_does_not_matter() -> None:
    """Tiles of marks, and of candidates, whose workgroups wait for each other: they take them as they begin."""
    coords = voxels(300, (80, 120, 120), seed=1)
    wanted = rc.outputs(coords, GRID)
    for mapper in ("auto", "sorted_candidates"):
        kernel = loaded(SimDevice(Backwards), operation="outputs", mapper=mapper)
        assert np.array_equal(outputs_of(kernel, coords), wanted)


def test_counts_of_many_workgroups() -> None:
    """More than one turn of the scan: 1172 workgroups of rows a tap."""
    kernel = loaded(operation="conv", c_in=1, c_out=1, schedule="pairs_m16")
    counts = np.random.default_rng(1).integers(0, 257, (27, 1172)).astype(np.int32)
    assert np.array_equal(scan_alone(kernel), (np.cumsum(counts, axis=1) - counts).ravel())


@pytest.mark.slow
def test_weakened_kernels_are_noticed() -> None:
    """Every wait, no-op and barrier is needed, or no path leads to it, or it is shown that nothing depends on it."""
    seen = set()
    for name, artifact, run in cross_ops():
        found = barriers_of(artifact, run)
        assert found.caught + found.same == found.total, f"{name}: {found.missed}"
        for kernel in CodeObject(artifact.object).kernels.values():
            if (kernel.name, kernel.code) not in seen:
                seen.add((kernel.name, kernel.code))
                waits = wait_report(kernel)
                assert waits.caught + waits.dead + waits.same == waits.total, waits.missed
    assert len(seen) > 25


def works(**options: Any) -> bool:
    """Whether an op gives what the oracle says, and no kernel does what it must not do."""
    coords = voxels(300, SHAPE, batches=2, seed=2) - np.array([0, 4, 5, 6], np.int32)
    coords = np.concatenate([coords, [[0, -3, 60, 80]]]).astype(np.int32)
    kernel = loaded(**options)
    try:
        if options["operation"] == "outputs":
            return np.array_equal(outputs_of(kernel, coords), rc.outputs(coords, GRID))
        return _op_works(kernel, coords)
    except (Fault, SpconvError):
        return False


def _op_works(kernel: GpuSparseKernel, coords: Any) -> bool:
    """A convolution or a pool; the first coarse row comes twice, and has the same output twice.

    Pairs by tap are those of the lower one only. Where coarse rows ascend they are distinct.
    """
    coarse, ascends = np.array(rc.outputs(coords, GRID), np.int32), kernel.options.mapper == "coarse_ascending"
    # Outputs of their own inputs have every voxel that is looked for: some are left out.
    coarse = coarse[::2] if ascends else np.concatenate([coarse, coarse[:1]])
    sizes = {"rows": len(coords), "coarse_rows": len(coarse)}
    symbols = {**kernel.map_numbers(box_of(coords), box_of(coarse))[0], **sizes}
    sets = as_array(coords, "coords"), as_array(coarse, "coords")
    pairs = kernel.pairs(kernel.relate(*sets, symbols), symbols)
    features = np.random.default_rng(0).integers(-9, 0, (len(coords), 4)).astype(np.float32)
    weight = np.random.default_rng(1).integers(-3, 4, (4, 3, 3, 3, 4)).astype(np.float32)
    conv = kernel.options.operation == "conv"
    out = np.zeros((len(coarse), 4), np.float32)
    packed = kernel.pack(as_array(weight, "weight")) if conv else None
    kernel.run(pairs.buffers, symbols, as_array(features, "features"), out.ctypes.data, packed)
    once = coarse if ascends else coarse[:-1]
    exact = rc.conv3d(coords, once, features, weight, GRID) if conv else rc.pool3d(coords, once, features, GRID, "max")
    if ascends:
        return np.array_equal(out, exact)
    twin = 0 * exact[0] if kernel.options.schedule == "pairs_m16" else exact[0]
    return np.array_equal(out[:-1], exact) and np.array_equal(out[-1], twin)


OPS: dict[str, dict[str, Any]] = {
    "outputs": {"operation": "outputs"},
    "sorted": {"operation": "outputs", "mapper": "sorted_candidates"},
    "conv": {"operation": "conv", "c_in": 4, "c_out": 4, "schedule": "pairs_m16"},
    "keys": {"operation": "conv", "c_in": 4, "c_out": 4, "schedule": "pairs_m16", "mapper": "coarse_keys"},
    "ascending": {"operation": "conv", "c_in": 4, "c_out": 4, "mapper": "coarse_ascending"},
    "rows": {"operation": "conv", "c_in": 4, "c_out": 4},
    "pool": {"operation": "max_pool", "c_in": 4, "c_out": 4},
}


@pytest.fixture
def uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPCONV_CACHE", "off")
    monkeypatch.setattr("spconv_compiler.compiler._cache_for", lambda *_: _Uncached())


class _Uncached:
    """No cache: what is broken must not be found again."""

    def get_or_build(self, key: str, parts: Any, build: Callable[[], Any]) -> Any:
        from spconv_compiler.artifact import Artifact

        return Artifact(key, build())


@pytest.mark.parametrize("operation", OPS)
def test_unbroken_code_works(operation: str) -> None:
    assert works(**OPS[operation])


# Code: (operation, module, function, what stands there instead, given the right one).
BROKEN: dict[str, tuple[str, Any, str, Callable[[Any], Any]]] = {
    "a candidate along x is left out": ("outputs", output_cells, "candidates", lambda right: lambda r, axis: 1),
    "a mark is lost": (
        "outputs", output_cells, "_mark", lambda right: lambda m, f, line, e, x: right(m, f, line, e, x & -2),
    ),
    "rows begin a word too late": (
        "outputs", output_cells, "write_cells", lambda right: lambda out, row, *rest: right(out, row + 1, *rest) - 1,
    ),
    "what repeats is kept": (
        "sorted", sorted_outputs.SortedOutputs, "_new_keys",
        lambda right: lambda *given: (right(*given)[0], [given[3] + at < given[4] for at in range(4)]),
    ),
    "keys behind the box are rows": (
        "sorted", sorted_outputs.SortedOutputs, "_new_keys",
        lambda right: lambda self, records, half, first, total, cells: right(
            self, records, half, first, total, cells + 1
        ),
    ),
    "a candidate is left out": ("sorted", sorted_outputs, "candidates", lambda right: lambda r, axis: 1),
    "a search ends a step early": (
        "keys", cross_index, "_below_each", lambda right: lambda *given: [(at - 1).max(0) for at in right(*given)],
    ),
    "columns are compared in another order": (
        "ascending", cross_index, "_in_order", lambda right: lambda columns: right(columns[::-1]),
    ),
    "half of a key is enough": (
        "ascending", cross_index, "_equal", lambda right: lambda left, right_: right(left[:1], right_[:1]),
    ),
    "padding is forgotten": (
        "conv", cross_lookup, "above_origin", lambda right: lambda r, axis, fine, low: right(r, axis, fine, low) - 1,
    ),
    "remainders are not looked at": (
        "conv", cross_lookup, "coarse_run", lambda right: lambda r, axis, above, e: right(r, axis, above & -2, e),
    ),
    "not the lowest of equal rows": (
        "conv", cross_lookup, "atomic", lambda right: lambda kind, row, *rest: right(kind, row ^ 1023, *rest),
    ),
    "taps begin a tile too early": (
        "conv", cross_pairs, "_tiles_before", lambda right: lambda *given: (right(*given) - 1).max(0),
    ),
    "no rank within a wave": ("conv", cross_pairs, "popcount", lambda right: lambda bits: right(bits & 1)),
    "a row that comes twice is forgotten": (
        "rows", cross_lookup, "share_rows", lambda right: lambda *_: lambda *_: None,
    ),
    "a table that is not filled": ("pool", cross_lookup, "fill_table", lambda right: lambda *_: lambda *_: None),
    "a maximum that starts from zero": (
        "pool", pool_rows, "const", lambda right: lambda n, type_: right(0 if n < -9 else n, type_),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [
    name if index % 5 == 3 else pytest.param(name, marks=pytest.mark.slow) for index, name in enumerate(BROKEN)
])  # fmt: skip
def test_broken_code_is_seen(name: str, monkeypatch: pytest.MonkeyPatch, uncached: None) -> None:
    operation, module, function, change = BROKEN[name]
    monkeypatch.setattr(module, function, change(getattr(module, function)))
    assert not works(**OPS[operation])


def test_targets_without_the_atomics_are_refused() -> None:
    import dataclasses

    target = dataclasses.replace(get_target("gfx950"), atomics=(("add", "i32"),))
    with pytest.raises(ScheduleError, match="no schedule serves the coordinates of outputs on gfx950"):
        choose_outputs(target)
    with pytest.raises(ScheduleError, match="no schedule serves a pool on gfx950") as caught:
        choose_pool(target)
    assert re.search("gfx950 has no atomic umin of i32", str(caught.value))


def test_distances_name_no_axis_twice() -> None:
    """Candidates along an axis: as many as taps that are alike modulo the stride, or all taps where dilation is > 1."""
    from spconv_compiler.passes.reach import Reach

    reach = Reach.of((3, 4, 5), (2, 1, 3), (0, 0, 0), (1, 2, 1), transposed=False)
    assert [cross_axes.candidates(reach, axis) for axis in range(3)] == [2, 4, 2]
