"""The gemm of schedule `output_stationary_tall`: output_stationary.py with shares of up to 384 or 512 rows.

A wave holds the sums of three or four tiles of 16 rows by all columns of its workgroup's slice. There are two forms:
three tiles and narrow slices where all rows fit into one turn of such shares, else four tiles and fewer, wider slices.
A launch has one of them, by the number of rows. Slices need not have equally many panels, and none is multiplied in
vain:

    count the shares (schedules/deal.py); which rows are the workgroup's, and which panels
    list the steps of the wave's own tiles: those of a share are too many for one word (tile_shares.py)
    the loop of item_pipeline.py, a copy of it for each form and each number of panels that its slices may have
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from spconv_compiler.bindings import ir
from spconv_compiler.passes.gpu.dense_grid import TILE_ROWS
from spconv_compiler.passes.gpu.item_pipeline import Pipeline
from spconv_compiler.passes.gpu.lanes import block, plus, thread, times
from spconv_compiler.passes.gpu.local import of_wave
from spconv_compiler.passes.gpu.output_stationary import Finish, Steps, numbers, write_rows
from spconv_compiler.passes.gpu.row_geometry import Geometry, Place
from spconv_compiler.passes.gpu.row_masks import FIRST_TILE_BIT
from spconv_compiler.passes.gpu.tile_shares import StepList, count_shares, list_steps, take_share
from spconv_compiler.passes.kernel_builder import V, const, i32, if_
from spconv_compiler.schedules.deal import LINE_PANELS, Cut, Deal


@dataclasses.dataclass(frozen=True)
class TallGeometry(Geometry):
    """How the work is cut. own_panels are those of the widest slice.

    Attributes:
        many: how it is cut where rows do not fit into one turn of these shares; its slices are as wide or wider.
    """

    many: TallGeometry | None = None

    @property
    def forms(self) -> list[TallGeometry]:
        """This one, and the one for many rows."""
        return [self, *([] if self.many is None else [self.many])]

    @property
    def name(self) -> str:
        return "or".join([super().name, *(str(one.fragments) for one in self.forms[1:])])

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

    def workgroup(self, element: ir.Type) -> list[ir.Type]:
        return super().workgroup(element) if self.many is None else self.many.workgroup(element)

    def groups(self, rows: str) -> str:
        few = super().groups(rows)
        return few if self.many is None else self.deal.whichever(rows, few, self.many.groups(rows))


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
        form, shares, number, panel, panels = _form(g, tiles)
        with if_(number.ult(shares)):
            lane, wave, none = thread() % g.wave, of_wave(thread() // g.wave), const(0, i32())
            share = take_share(number, shares, tiles)
            place = Place(wave, wave, none, lane % g.shape[1], lane // g.shape[1], panel, none, share)
            count = list_steps(share, steps, g.steps, none, found, listed)
            for which, one in enumerate(g.forms):
                for width in one.cut.widths:
                    with if_(form.eq(which) & panels.eq(width)):
                        own = dataclasses.replace(one, own_panels=width)
                        source, items = _OwnSteps(own, place, table, listed), times(count, g.stages)
                        pipeline = Pipeline(own, place, source, features, weights, items, in_rows, local)
                        write_rows(own, pipeline.run(), place, order, self.finish(own, others, rows, none))


def _form(g: TallGeometry, tiles: V) -> list[V]:
    """What a workgroup is: which form its launch has, how many shares; of it the share, the first panel, panels."""
    own, forms = block(), list[list[V]]()
    for which, form in enumerate(g.forms):
        shares = count_shares(form.deal, tiles)
        number, slice_ = numbers(own, shares, g.chiplets, form.slices)
        forms.append([const(which, i32()), shares, number, *_panels(form.cut, slice_)])
    few = tiles.ult(g.deal.turn + 1)
    return [few.select(first, last) for first, last in zip(forms[0], forms[-1], strict=True)]


def _panels(cut: Cut, slice_: V) -> tuple[V, V]:
    """(first panel, panels) of a slice."""
    each, left = cut.lines
    first = times(plus(times(slice_, each), slice_.min(left)), LINE_PANELS)
    most = (slice_ < left).select(const(LINE_PANELS, i32()), 0) + LINE_PANELS * each
    return first, most.min(const(cut.panels, i32()) - first)


class _OwnSteps(Steps):
    """Steps of a list of the wave's own, whose words name its tiles alone."""

    def __init__(self, geometry: Geometry, place: Place, table: V, listed: V) -> None:
        super().__init__(geometry, place, table, listed)
        self.first = geometry.steps.first()

    def entry(self, number: V) -> V:
        return super().entry(plus(number, times(self.first, self.g.stages)))

    def present(self, entry: V) -> list[V]:
        return [entry & (1 << FIRST_TILE_BIT + fragment) for fragment in range(self.g.fragments)]
