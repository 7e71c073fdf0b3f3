"""`pair_major`: a workgroup takes 256 pairs of one tap, reads the tap's weights once, and adds into the output.

Nothing is multiplied that is not a pair, but for the last tile of each tap. Weights go through local memory as those of
output_stationary, and are read for 256 pairs, where that schedule reads them for the pairs that 256 rows or fewer have
of a tap. The price are f32 atomics: every pair adds all of its output channels to memory, and sums depend on the order
of workgroups. The tile is one for all widths, so that layers share the pairs.
"""

from __future__ import annotations

from spconv_compiler.schedules.base import Choice, Chosen, GemmSchedule, Problem
from spconv_compiler.schedules.between_sets import GPU_MAP
from spconv_compiler.schedules.cost import ATOMIC_BYTES, ITEM_CYCLES, LINE_BYTES, Work, Workload, matrix_passes
from spconv_compiler.schedules.output_stationary import (
    BLOCK_ROWS,
    LANES_PER_ROW,
    STAGE_BYTES,
    columns_of,
    cut,
    element_bytes,
    packed_bytes,
    padded_k,
    panels_of,
    stage_of,
    unfit,
)
from spconv_compiler.targets.base import GpuTarget, Target

TILE_M = BLOCK_ROWS
# Cycles of a tile beside its items: the rows of its pairs are asked for, and atomics issued.
TILE_CYCLES = 1500


class PairMajor(GemmSchedule):
    """See the module."""

    name = "pair_major"
    owns_rows = False

    def reject(self, problem: Problem, target: Target) -> str | None:
        reason = unfit(problem, target)
        if reason is not None or not isinstance(target, GpuTarget):
            return reason
        for atomic in (("fadd", "f32"), ("umin", "i32")):
            if atomic not in target.atomics:
                return f"{target.name} has no atomic {atomic[0]} of {atomic[1]}"
        return None

    def choose(self, problem: Problem, target: Target) -> Chosen:
        assert isinstance(target, GpuTarget)
        mma = target.mma_for(problem.dtype)
        assert mma is not None
        panels = panels_of(problem, mma)
        tile = {"tile_m": TILE_M, **cut(problem, mma, crowded=True)}
        # A workgroup for every compute unit: they take the tiles in turn, whose number is known to the device only.
        groups = {"per_chiplet": max(1, target.compute_units // target.chiplets)}
        return Chosen(
            map=GPU_MAP if problem.between_sets else Choice("dense_grid", {"block": LANES_PER_ROW}),
            pairs=Choice("tap_tile_row", {"tile_m": TILE_M}),
            weights=Choice("mma_panels", panels),
            gemm=Choice(self.name, {**tile, **panels, **stage_of(problem), **groups}),
        )

    def work(self, problem: Problem, target: Target, workload: Workload) -> Work | None:
        assert isinstance(target, GpuTarget)
        mma = target.mma_for(problem.dtype)
        assert mma is not None
        size, columns = element_bytes(problem.dtype), columns_of(problem, mma)
        slices = -(-problem.c_out // columns)
        pairs = workload.pairs(problem.taps)
        # Half of the last tile of each tap is empty.
        tiles = pairs / TILE_M + problem.taps / 2
        weights = tiles * packed_bytes(problem, mma) / problem.taps
        gathered = pairs * -(-problem.c_in * size // LINE_BYTES) * LINE_BYTES
        added, filled = pairs * problem.c_out * 4, workload.rows * problem.c_out * 4
        passes = matrix_passes(tiles * TILE_M, padded_k(problem), slices * columns, mma)
        groups, items = tiles * slices, -(-problem.c_in * size // STAGE_BYTES)
        busy = 4 * passes / (groups * cut(problem, mma, crowded=True)["waves"])
        return Work(
            passes=passes,
            groups=groups,
            resident=1,
            l2_bytes=weights + gathered * slices + added + filled,
            memory_bytes=gathered + 2 * added,
            chain_cycles=TILE_CYCLES + items * ITEM_CYCLES + busy,
            atomics=added / ATOMIC_BYTES,
            launches=2,
        )
