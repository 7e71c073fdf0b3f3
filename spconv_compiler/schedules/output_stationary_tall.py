"""`output_stationary_tall`: output_stationary with shares of up to 384 rows by at most 96 columns, for many channels.

Weights are read once for all rows of a share, and features once for every slice of the output channels: larger shares
read fewer weights, more and narrower slices more features. Eight waves have all registers that leave two on a SIMD
unit, and three tiles of 16 rows each by all columns of their slice. How many rows a share has follows from the number
of all rows when a kernel runs (deal.py).
"""

from __future__ import annotations

from spconv_compiler.schedules.base import Choice, Chosen, GemmSchedule, Problem
from spconv_compiler.schedules.between_sets import GPU_MAP
from spconv_compiler.schedules.cost import LINE_BYTES, Work, Workload, matrix_passes
from spconv_compiler.schedules.deal import TILE_ROWS, Cut, Deal
from spconv_compiler.schedules.output_stationary import (
    BLOCK_ROWS,
    LANES_PER_ROW,
    LEAST_TILES,
    MAX_COLUMNS,
    SORT_ITEMS,
    STAGE_BYTES,
    START_CYCLES,
    element_bytes,
    panels_of,
    unfit,
)
from spconv_compiler.targets.base import GpuTarget, Target

WAVES, FRAGMENTS = 8, 3
# Instructions side by side that cover the columns of the widest slice.
WIDEST = 6
# Cycles of an item beside its products: with rows that are asked for once for four stages, and for each.
GROUP, ITEM_CYCLES, LONE_CYCLES = 4, 350, 500


class OutputStationaryTall(GemmSchedule):
    """See the module."""

    name = "output_stationary_tall"
    owns_rows = True

    def reject(self, problem: Problem, target: Target) -> str | None:
        reason = unfit(problem, target)
        if reason is not None:
            return reason
        if problem.c_out <= MAX_COLUMNS:
            return f"{problem.c_out} output channels are one slice of columns; smaller shares fill the chip with it"
        if problem.c_in * element_bytes(problem.dtype) % STAGE_BYTES:
            return f"rows of {problem.c_in} channels are not whole lines of {STAGE_BYTES} bytes"
        return None

    def choose(self, problem: Problem, target: Target) -> Chosen:
        assert isinstance(target, GpuTarget)
        mma = target.mma_for(problem.dtype)
        assert mma is not None
        panels = {**panels_of(problem, mma), "tile_n": mma.n, "tile_k": STAGE_BYTES // element_bytes(problem.dtype)}
        rows = {"waves": WAVES, "fragments": FRAGMENTS, "least": LEAST_TILES, "widest": WIDEST}
        return Chosen(
            map=GPU_MAP if problem.between_sets else Choice("dense_grid", {"block": LANES_PER_ROW}),
            pairs=Choice("sorted_tiles", {"block_rows": BLOCK_ROWS, "items": SORT_ITEMS}),
            weights=Choice("mma_panels", panels),
            gemm=Choice(self.name, {**rows, **panels}),
        )

    def work(self, problem: Problem, target: Target, workload: Workload) -> Work | None:
        assert isinstance(target, GpuTarget)
        mma = target.mma_for(problem.dtype)
        assert mma is not None
        tiles = -(-workload.rows // TILE_ROWS)
        cut = Cut(-(-problem.c_out // mma.n), WIDEST)
        deal = Deal.tall(target.compute_units, target.chiplets, cut.slices, WAVES * FRAGMENTS, LEAST_TILES)
        shares, row_bytes = deal.count(tiles), problem.c_in * element_bytes(problem.dtype)
        steps = workload.taps_together(problem.taps, workload.rows / shares)
        weights = shares * steps * row_bytes * cut.panels * mma.n
        gathered = workload.pairs(problem.taps) * -(-row_bytes // LINE_BYTES) * LINE_BYTES
        written = workload.rows * problem.c_out * 4
        rows = workload.rows * workload.taps_together(problem.taps, TILE_ROWS)
        passes = matrix_passes(rows, problem.c_in, problem.c_out, mma)
        groups, items = shares * cut.slices, steps * row_bytes / STAGE_BYTES
        each = LONE_CYCLES if row_bytes % (GROUP * STAGE_BYTES) else ITEM_CYCLES
        return Work(
            passes=passes,
            groups=groups,
            resident=1,
            l2_bytes=weights + gathered * cut.slices + written,
            memory_bytes=gathered + 2 * written,
            chain_cycles=START_CYCLES + items * each + 4 * passes / (groups * WAVES),
        )
