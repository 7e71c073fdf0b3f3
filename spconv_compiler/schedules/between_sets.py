"""What ops between two coordinate sets ask for where no gemm decides: the set of outputs, and pools."""

from __future__ import annotations

from spconv_compiler.errors import Rejection, ScheduleError
from spconv_compiler.schedules.base import Choice, Chosen
from spconv_compiler.schedules.chunk_stationary import CHUNK_ROWS
from spconv_compiler.schedules.mappers import MARKED_CELLS
from spconv_compiler.targets.base import CpuTarget, GpuTarget, Target

OUTPUTS, GPU_OUTPUTS = "sorted_keys", MARKED_CELLS
POOL, GPU_POOL = "chunk_pool", "row_pool"
# Lanes of a workgroup of the GPU kernels here.
LANES = 256
# The map that every gemm between two sets runs over on a GPU.
GPU_MAP = Choice("coarse_grid", {"block": LANES})


def choose_outputs(target: Target) -> Choice:
    """The schedule of a spconv.output_coords.

    Raises:
        ScheduleError: the target has none.
    """
    if isinstance(target, CpuTarget):
        return Choice(OUTPUTS)
    return _for_gpu("the coordinates of outputs", GPU_OUTPUTS, target, (("or", "i32"), ("add", "i32")))


def choose_pool(target: Target) -> Chosen:
    """The schedules of a pool, and of the map and the pairs that it runs over; it has no weights.

    Raises:
        ScheduleError: the target has none.
    """
    if isinstance(target, CpuTarget):
        chunks = {"chunk_rows": CHUNK_ROWS}
        return Chosen(Choice("sorted_keys"), Choice("chunk_tap_row", chunks), Choice("none"), Choice(POOL, chunks))
    pool = _for_gpu("a pool", GPU_POOL, target, (("umin", "i32"),))
    return Chosen(GPU_MAP, Choice("output_table"), Choice("none"), pool)


def _for_gpu(what: str, schedule: str, target: Target, atomics: tuple[tuple[str, str], ...]) -> Choice:
    assert isinstance(target, GpuTarget)
    for atomic in atomics:
        if atomic not in target.atomics:
            reason = f"{target.name} has no atomic {atomic[0]} of {atomic[1]}"
            raise ScheduleError(f"no schedule serves {what} on {target.name}", (Rejection(schedule, reason),))
    return Choice(schedule, {"block": LANES})
