"""`output_stationary_tall`: output_stationary with shares of up to 512 rows, for many channels.

Weights are read once for all rows of a share, and features once for every slice of the output channels: larger shares
read fewer weights, more and narrower slices more features. Eight waves have all registers that leave two on a SIMD
unit, in one of two forms: where all rows fit into one turn of shares of 384 by at most 96 columns, each wave has three
tiles of 16 rows by all columns of its slice; else there are shares of up to 512 rows by at most 128 columns, and four
tiles. Which form a launch has, and how many rows its shares, follows from the number of all rows when a kernel runs
(deal.py).
"""

from __future__ import annotations

import dataclasses

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
from spconv_compiler.targets.base import GpuTarget, MmaShape, Target

WAVES = 8
# Stages of K that ask for the rows of their step once, and what such an item takes more where each asks for them.
GROUP, LONE_CYCLES = 4, 150


@dataclasses.dataclass(frozen=True)
class Form:
    """One of the two.

    Attributes:
        fragments: tiles of a wave. panels: instructions side by side that cover the widest slice.
        item_cycles: of an item beside its products.
    """

    fragments: int
    panels: int
    item_cycles: int

    def cut(self, problem: Problem, mma: MmaShape) -> Cut:
        return Cut(-(-problem.c_out // mma.n), self.panels)

    def deal(self, problem: Problem, target: GpuTarget, mma: MmaShape) -> Deal:
        slices = self.cut(problem, mma).slices
        return Deal.tall(target.compute_units, target.chiplets, slices, WAVES * self.fragments, LEAST_TILES)


FEW, MANY = Form(3, 6, 220), Form(4, 8, 360)
# Loops of a kernel, one for each form and width of a slice: no branch reaches over more, with what ends their rows.
MOST_LOOPS = 3


def forms_of(problem: Problem, mma: MmaShape) -> tuple[Form, Form]:
    """The forms for few and for many rows: the same where both would be too much for a kernel."""
    loops = sum(len(form.cut(problem, mma).widths) for form in (FEW, MANY))
    return FEW, FEW if loops > MOST_LOOPS or problem.c_out % mma.n else MANY


class OutputStationaryTall(GemmSchedule):
    """See the module."""

    name = "output_stationary_tall"
    owns_rows = True
    reads_less = True

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
        few, many = forms_of(problem, mma)
        waves = {"waves": WAVES, "fragments": few.fragments, "most_fragments": many.fragments}
        rows = {**waves, "widest": few.panels, "most_panels": many.panels, "least": LEAST_TILES}
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
        few, many = forms_of(problem, mma)
        form = few if tiles <= few.deal(problem, target, mma).turn else many
        cut, shares = form.cut(problem, mma), form.deal(problem, target, mma).count(tiles)
        row_bytes = problem.c_in * element_bytes(problem.dtype)
        steps = workload.taps_together(problem.taps, workload.rows / shares)
        weights = shares * steps * row_bytes * cut.panels * mma.n
        gathered = workload.pairs(problem.taps) * -(-row_bytes // LINE_BYTES) * LINE_BYTES
        written = workload.rows * problem.c_out * 4
        rows = workload.rows * workload.taps_together(problem.taps, TILE_ROWS)
        passes = matrix_passes(rows, problem.c_in, problem.c_out, mma)
        groups, items = shares * cut.slices, steps * row_bytes / STAGE_BYTES
        each = form.item_cycles + (LONE_CYCLES if row_bytes % (GROUP * STAGE_BYTES) else 0)
        return Work(
            passes=passes,
            groups=groups,
            resident=1,
            l2_bytes=weights + gathered * cut.slices + written,
            memory_bytes=gathered + 2 * written,
            chain_cycles=START_CYCLES + items * each + 4 * passes / (groups * WAVES),
        )
