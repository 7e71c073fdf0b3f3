"""What the mutation run (mutation.py) takes of ops between two coordinate sets: artifacts, and how to run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from spconv_compiler.arrays import as_array
from spconv_compiler.artifact import Artifact
from spconv_compiler.coordinates import Box
from spconv_compiler.geometry import ConvGeometry
from spconv_compiler.runtime.sim import SimDevice
from spconv_compiler.schedules.mappers import COARSE_ASCENDING, COARSE_KEYS, SORTED_CANDIDATES
from spconv_compiler.sim.elf import Kernel
from spconv_compiler.sim.errors import Fault
from spconv_compiler.sim.native.machine import NativeMachine
from spconv_compiler.sparse_driver_gpu import GpuSparseKernel
from spconv_compiler.sparse_options import SparseOptions
from spconv_compiler.targets import GpuTarget, get_target

# Runs an op with some kernels replaced; a Fault says that something was noticed, by the simulator or in the result.
Run = Callable[[Mapping[str, Kernel]], None]

_GEOMETRY = ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1))
_SIDE, _ROWS = 40, 2500
_BOX, _OUT_BOX = Box((0, 0, 0, 0), (0, 39, 39, 39)), Box((0, 0, 0, 0), (0, 20, 20, 20))


def cross_ops() -> Iterator[tuple[str, Artifact, Run]]:
    """(name, artifact, how to run it) of ops that take every kernel between two sets, with keys of both widths."""
    for width in (32, 64):
        for mapper in ("auto", SORTED_CANDIDATES):
            outputs = SparseOptions("outputs", _GEOMETRY, width, target="gfx950-sim", mapper=mapper)
            yield _op(outputs, _run_outputs)
        channels: dict[str, Any] = {"c_in": 16, "c_out": 16, "dtype": "bf16", "out_dtype": "bf16"}
        ops = [("conv", "pairs_m16"), ("max_pool", "auto"), ("avg_pool", "auto")]
        for operation, schedule in ops + [("conv", "output_stationary")] * (width == 32):
            options = SparseOptions(operation, _GEOMETRY, width, **channels, target="gfx950-sim", schedule=schedule)
            yield _op(options, _run_op)
        for mapper in (COARSE_KEYS, COARSE_ASCENDING):
            for operation, schedule in (("conv", "pairs_m16"), ("max_pool", "auto")):
                more = {**channels, "schedule": schedule, "mapper": mapper}
                yield _op(SparseOptions(operation, _GEOMETRY, width, **more, target="gfx950-sim"), _run_op)
    transposed = ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1), transposed=True)
    yield _op(SparseOptions("outputs", transposed, target="gfx950-sim"), _run_outputs)
    for schedule in ("pairs_m16", "small_channels"):
        options = SparseOptions("conv", transposed, c_in=16, c_out=16, target="gfx950-sim", schedule=schedule)
        yield _op(options, _run_op)


def _op(options: SparseOptions, run: Callable[[GpuSparseKernel], Any]) -> tuple[str, Artifact, Run]:
    def kernel(replaced: Mapping[str, Kernel]) -> GpuSparseKernel:
        target = get_target(options.target)
        assert isinstance(target, GpuTarget)
        device = SimDevice(lambda kernels: NativeMachine({**kernels, **replaced}))
        return GpuSparseKernel(options, target, lambda index: device)

    wanted = run(kernel({}))

    def compare(replaced: Mapping[str, Kernel]) -> None:
        if not np.array_equal(run(kernel(replaced)), wanted):
            raise Fault("the result is another one")

    by = "" if options.mapper == "auto" else f" by {options.mapper}"
    return f"{options.name}{by}, between two sets", kernel({}).artifact, compare


def _voxels(side: int, rows: int, seed: int) -> Any:
    cells = np.random.default_rng(seed).choice(side**3, rows, replace=False)
    return np.stack([np.zeros_like(cells), *np.unravel_index(cells, (side,) * 3)], axis=1).astype(np.int32)


def _run_outputs(kernel: GpuSparseKernel) -> Any:
    transposed = kernel.options.geometry.transposed
    side, boxes = (20, (_OUT_BOX, _BOX)) if transposed else (_SIDE, (_BOX, _OUT_BOX))
    coords = as_array(_voxels(side, _ROWS, 0), "coords")
    return kernel.outputs(coords, kernel.output_numbers(*boxes)[0], None).rows


def _run_op(kernel: GpuSparseKernel) -> Any:
    """A convolution or a pool onto given outputs, of whole numbers."""
    options, rng = kernel.options, np.random.default_rng(0)
    fine, coarse = _voxels(_SIDE, _ROWS, 0), _voxels(20, 1200, 1)
    if options.mapper == COARSE_ASCENDING:
        coarse = coarse[np.lexsort(coarse.T[::-1])]
    sets = (coarse, fine) if options.geometry.transposed else (fine, coarse)
    inputs, outputs = (as_array(values, "coords") for values in sets)
    symbols = {**kernel.map_numbers(_BOX, _OUT_BOX)[0], "rows": len(fine), "coarse_rows": len(coarse)}
    pairs = kernel.pairs(kernel.relate(inputs, outputs, symbols), symbols)

    def numbers(*shape: int) -> Any:
        whole = rng.integers(-2, 3, shape).astype(np.float32)
        # Whole numbers this small are their own upper half in bf16.
        return whole if options.dtype == "f32" else (whole.view(np.uint32) >> 16).astype(np.uint16).view(np.int16)

    def given(values: Any) -> Any:
        array = as_array(values, "values")
        return array._replace(dtype=options.dtype)

    packed = kernel.pack(given(numbers(16, 3, 3, 3, 16))) if options.operation == "conv" else None
    out = np.zeros((len(sets[1]), 16), np.float32 if options.out_dtype == "f32" else np.int16)
    kernel.run(pairs.buffers, symbols, given(numbers(len(sets[0]), 16)), out.ctypes.data, packed)
    return np.concatenate([out.view(np.int32).ravel(), scan_alone(kernel)]) if options.schedule == "pairs_m16" else out


def scan_alone(kernel: GpuSparseKernel, rows: int = 300_000) -> Any:
    """The kernel that scans the counts of a lookup, for so many rows that it takes two turns: [27, chunks]."""
    chunks = -(-rows // 256)
    device, module = kernel._device, kernel._plan._module
    counts = np.random.default_rng(1).integers(0, 257, (27, chunks)).astype(np.int32)
    buffers = []
    for name, values in (("count", np.full(2, rows, np.int32)), ("chunk", counts), ("tap_count", counts[:, 0].copy())):
        buffers.append(device.allocate(name, values.nbytes, None))
        device.copy_in(buffers[-1], values.ctypes.data, None)
    device.launch(module, "scan_chunks_b1024", [27], 1024, buffers, None)
    device.copy_out(counts.ctypes.data, buffers[1], None)
    return counts.ravel()
