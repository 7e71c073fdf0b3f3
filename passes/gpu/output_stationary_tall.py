"""The gemm of schedule `output_stationary_tall`: output_stationary.py with shares of up to 384 rows.

A wave holds the sums of three tiles of 16 rows by all columns of its workgroup's slice. Slices need not have equally
many panels, and none is multiplied in vain:

    count the shares (schedules/deal.py); which rows are the workgroup's, and which panels
    list the steps of the wave's own tiles: those of a share are too many for one word (tile_shares.py)
    the loop of item_pipeline.py, a copy of it for each number of panels that a slice may have
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from spconv_compiler.passes.gpu.dense_grid import TILE_ROWS
from spconv_compiler.passes.gpu.item_pipeline import Pipeline
from spconv_compiler.passes.gpu.lanes import block, plus, thread, times
from spconv_compiler.passes.gpu.local import of_wave
from spconv_compiler.passes.gpu.output_stationary import Finish, Steps, numbers, write_rows
from spconv_compiler.passes.gpu.row_geometry import Geometry, Place
from spconv_compiler.passes.gpu.row_masks import FIRST_TILE_BIT
from spconv_compiler.passes.gpu.tile_shares import StepList, count_shares, list_steps, take_share
from spconv_compiler.passes.kernel_builder import V, const, i32, if_
from spconv_compiler.schedules.deal import Cut, Deal


@dataclasses.dataclass(frozen=True)
class TallGeometry(Geometry):
    """How the work is cut. own_panels are those of the widest slice."""

    @property
    def cut(self) -> Cut:
        """How columns are cut."""
        return Cut(self.panels.n_tiles, self.own_panels)

    @property
    def slices(self) -> int:
        return self.cut.slices

    @property
    def deal(self) -> Deal:
        return Deal.tall(self.units, self.chiplets, self.slices, self.high * self.fragments, self.least)

    @property
    def steps(self) -> StepList:
        """A list for each wave."""
        return dataclasses.replace(super().steps, levels=self.high)


class TallKernel:
    """Body with the arguments of OutputStationaryKernel."""

    def __init__(self, geometry: TallGeometry, finish: Callable[[Geometry, Sequence[V], V, V], Finish]) -> None:
        self.geometry, self.finish = geometry, finish

    def __call__(
        self, features: V, weights: V, table: V, steps: V, counts: V, order: V, *rest: V
    ) -> None:
        g = self.geometry
        *others, in_rows, rows = rest[: -g.buffers - 2]
        found, listed, *local = rest[-g.buffers - 2 :]
        tiles = plus(rows, TILE_ROWS - 1) // TILE_ROWS
        shares = count_shares(g.deal, tiles)
        number, slice_ = numbers(block(), shares, g.chiplets, g.slices)
        with if_(number.ult(shares)):
            lane, wave, none = thread() % g.wave, of_wave(thread() // g.wave), const(0, i32())
            panel, panels = _panels(g.cut, slice_)
            share = take_share(number, shares, tiles)
            place = Place(wave, wave, none, lane % g.shape[1], lane // g.shape[1], panel, none, share)
            count = list_steps(share, steps, g.steps, none, found, listed)
            for width in g.cut.widths:
                with if_(panels.eq(width)):
                    own = dataclasses.replace(g, own_panels=width)
                    source, items = _OwnSteps(own, place, table, listed), times(count, g.stages)
                    pipeline = Pipeline(own, place, source, features, weights, items, in_rows, local)
                    write_rows(own, pipeline.run(), place, order, self.finish(own, others, rows, none))


def _panels(cut: Cut, slice_: V) -> tuple[V, V]:
    """(first panel, panels) of a slice; the first slices have one more where panels do not divide."""
    each, left = divmod(cut.panels, cut.slices)
    more = (slice_ < left).select(const(1, i32()), 0)
    return plus(times(slice_, each), slice_.min(left)), plus(more, each)


class _OwnSteps(Steps):
    """Steps of a list of the wave's own, whose words name its tiles alone."""

    def __init__(self, geometry: Geometry, place: Place, table: V, listed: V) -> None:
        super().__init__(geometry, place, table, listed)
        self.first = geometry.steps.first()

    def entry(self, number: V) -> V:
        return super().entry(plus(number, times(self.first, self.g.stages)))

    def present(self, entry: V) -> list[V]:
        return [entry & (1 << FIRST_TILE_BIT + fragment) for fragment in range(self.g.fragments)]
