"""`wgmma_rows`: as output_stationary, for targets whose matrix instruction takes operands from shared memory.

One warpgroup gathers, the others multiply 64 rows each; stages of shared memory pass between them
(passes/gpu/wgmma_rows.py). Input channels are padded to 16, output channels to 16.
"""

from __future__ import annotations

from spconv_compiler.schedules.base import Choice, Chosen, GemmSchedule, Problem
from spconv_compiler.schedules.between_sets import GPU_MAP
from spconv_compiler.targets.base import GpuTarget, Target

BLOCK_ROWS = 256
GROUPS, GROUP_ROWS = 2, 64
MAX_COLUMNS = 256
# Up to so many columns two blocks fit on a unit, and one's end runs beside the other's middle.
SHARED_UNIT_COLUMNS = 64
MAX_TAPS = 343
LANES_PER_ROW, SORT_ITEMS = 256, 4
_MULTIPLE = 16
_ELEMENT_BYTES = 2
_MAX_STAGES = 4


class WgmmaRowsSchedule(GemmSchedule):
    """See the module."""

    name = "wgmma_rows"
    owns_rows = True

    def reject(self, problem: Problem, target: Target) -> str | None:
        if not isinstance(target, GpuTarget) or not target.warpgroup_dtypes:
            return f"it is for warpgroups that multiply out of shared memory, and {target.name} has none"
        if problem.dtype not in target.warpgroup_dtypes:
            return f"features are {problem.dtype}; warpgroups multiply {', '.join(target.warpgroup_dtypes)}"
        if problem.taps > MAX_TAPS:
            return f"the kernel has {problem.taps} taps; at most {MAX_TAPS} (7×7×7)"
        packed = problem.taps * _padded(problem.c_in) * _padded(problem.c_out) * _ELEMENT_BYTES
        if packed > target.buffer_limit_bytes:
            return f"the packed weights take {packed} bytes; at most {target.buffer_limit_bytes}"
        return None

    def choose(self, problem: Problem, target: Target) -> Chosen:
        assert isinstance(target, GpuTarget)
        columns, block_k = columns_of(problem.c_out), block_of(problem.c_in)
        images = {"columns": columns, "block_k": block_k}
        per_unit = 2 if columns <= SHARED_UNIT_COLUMNS else 1
        stage = (GROUPS * GROUP_ROWS + columns) * block_k * _ELEMENT_BYTES + 1024
        stages = min(_MAX_STAGES * 64 // block_k, target.lds_bytes // per_unit // stage)
        rows = {"groups": GROUPS, "stages": stages, "blocks_per_unit": per_unit}
        return Chosen(
            map=GPU_MAP if problem.between_sets else Choice("dense_grid", {"block": LANES_PER_ROW}),
            pairs=Choice("sorted_tiles", {"block_rows": BLOCK_ROWS, "items": SORT_ITEMS}),
            weights=Choice("weight_images", images),
            gemm=Choice(self.name, {**images, **rows}),
        )


def columns_of(c_out: int) -> int:
    """Output channels of a block: evenly cut, in multiples of 16."""
    units = -(-c_out // _MULTIPLE)
    slices = -(-units * _MULTIPLE // MAX_COLUMNS)
    return -(-units // slices) * _MULTIPLE


def block_of(c_in: int) -> int:
    """Input channels of a step: as many of 64 as fill whole steps."""
    padded = _padded(c_in)
    return next(size for size in (64, 32, 16) if padded % size == 0)


def _padded(channels: int) -> int:
    return -(-channels // _MULTIPLE) * _MULTIPLE
