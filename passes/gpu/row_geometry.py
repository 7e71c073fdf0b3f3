"""How gemms of many rows a workgroup cut their work: item_pipeline.py is the loop over what a workgroup has of it."""

from __future__ import annotations

import dataclasses

from spconv_compiler.bindings import ir
from spconv_compiler.passes.gpu.lanes import plus, times
from spconv_compiler.passes.gpu.local import shared_runs
from spconv_compiler.passes.gpu.mma_panels import Panels
from spconv_compiler.passes.gpu.tile_shares import Share, StepList, list_memory
from spconv_compiler.passes.kernel_builder import V
from spconv_compiler.schedules.deal import Deal

# Items whose weights have a place in local memory: one that is read, and two that are on their way.
BUFFERS = 3


@dataclasses.dataclass(frozen=True)
class Geometry:
    """How the work is cut.

    Attributes:
        panels: the weights. shape: (m, n, k) of the matrix instruction.
        wave: lanes of one. waves: of a workgroup. across: those of them with the same rows. fragments: of a wave.
        splits: parts into which the steps of a workgroup's rows are cut, each a workgroup with sums of its own.
        least: tiles of 16 rows that a workgroup has even where there are few.
        chiplets: parts of the chip that workgroups go to in turn, each with a cache of its own.
        units: compute units of the chip.
        buffers: items whose weights have a place in local memory, BUFFERS or more; the loop's body has as many items.
        own_panels: panels of a slice, where they are not those of panels.slice_columns.
        own_k: channels of a stage, where they are not panels.tile_k but a multiple of it.
        together: items of one step, one after another, that ask for its rows once; it divides buffers and stages.
        ahead: items whose features and weights are on their way while one is multiplied; less than buffers.
        portions: in which an item's weights are in registers, one after another.
    """

    panels: Panels
    shape: tuple[int, int, int]
    wave: int
    waves: int
    fragments: int
    across: int = 1
    splits: int = 1
    least: int = 1
    chiplets: int = 1
    units: int = 1
    buffers: int = BUFFERS
    own_panels: int = 0
    own_k: int = 0
    together: int = 1
    ahead: int = 2
    portions: int = 1

    @property
    def name(self) -> str:
        """Waves and tiles, for names of kernels."""
        return f"{self.high}x{self.across}x{self.fragments}"

    @property
    def high(self) -> int:
        """Waves with different rows."""
        return self.waves // self.across

    @property
    def tile_rows(self) -> int:
        """Rows of a workgroup."""
        return self.high * self.fragments * self.shape[0]

    @property
    def deal(self) -> Deal:
        """How tiles are dealt out: as many shares as fill the chip, in whole turns of the chiplets."""
        groups, most = self.slices * self.splits, self.high * self.fragments
        return Deal.over(self.units, self.chiplets, groups, most, self.least)

    @property
    def steps(self) -> StepList:
        """The list of a workgroup's steps; behind the last, as many as are asked for ahead."""
        beyond = -(-(2 * self.buffers + 2) // self.stages)
        return StepList(self.panels.taps, self.lanes, self.wave, self.splits, beyond)

    @property
    def lanes(self) -> int:
        return self.waves * self.wave

    @property
    def held(self) -> int:
        """Sums of a fragment and panel that a lane holds."""
        return self.shape[0] * self.shape[1] // self.wave

    @property
    def slices(self) -> int:
        """Parts of the output channels."""
        return self.panels.n_tiles // self.per_slice

    @property
    def per_slice(self) -> int:
        """Panels of a slice."""
        return self.own_panels or self.panels.slice_columns // self.panels.columns

    @property
    def per_wave(self) -> int:
        """Panels of a wave."""
        return self.per_slice // self.across

    @property
    def stage_k(self) -> int:
        """Channels of a stage."""
        return self.own_k or self.panels.tile_k

    @property
    def stages(self) -> int:
        """Stages of K; the last one may have fewer loads."""
        return -(-self.panels.c_in // self.stage_k)

    @property
    def load_k(self) -> int:
        """Channels of a load: a run for each group of the lanes that have one row."""
        return self.wave // self.shape[1] * self.panels.run

    @property
    def loads(self) -> int:
        """Loads of a stage, for each row and each column."""
        return self.stage_k // self.load_k

    @property
    def last_loads(self) -> int:
        """Loads of the last stage: what lies behind them is neither packed nor multiplied."""
        return self.panels.k_runs * self.panels.run // self.load_k - (self.stages - 1) * self.loads

    @property
    def weight_elements(self) -> int:
        """Elements of the weights of a slice and stage."""
        return self.per_slice * self.stage_k * self.panels.columns

    def workgroup(self, element: ir.Type) -> list[ir.Type]:
        """Local memory: the steps, and the weights of a stage in each part."""
        return [*list_memory(self.steps), *[shared_runs(self.weight_elements, element)] * self.buffers]

    def groups(self, rows: str) -> str:
        """Workgroups of a launch, the least of some texts for plan.size_map: shares in whole turns of the chiplets."""
        each = self.chiplets * self.slices * self.splits
        return ", ".join(f"(({text}) ceildiv {self.chiplets}) * {each}" for text in self.deal.texts(rows))


@dataclasses.dataclass(frozen=True)
class Lane:
    """What a lane knows of itself.

    Attributes:
        wave: number in the workgroup; level, side: among those with other rows, among those with the same.
        column, group: in a fragment. panel: the first one of the workgroup's slice.
    """

    wave: V
    level: V
    side: V
    column: V
    group: V
    panel: V

    def first_column(self, geometry: Geometry) -> V:
        """The first output channel of the wave."""
        first = plus(self.panel, times(self.side, geometry.per_wave)) if geometry.across > 1 else self.panel
        return times(first, geometry.panels.columns)


@dataclasses.dataclass(frozen=True)
class Place(Lane):
    """What a lane knows of itself where workgroups share out output rows.

    Attributes:
        part: of the workgroup. share: its tiles.
    """

    part: V
    share: Share

    def tiles(self, geometry: Geometry) -> list[tuple[V, V]]:
        """For each fragment the wave's tile, and whether it has one; where not, it is another of the share."""
        local = [plus(self.level, number * geometry.high) for number in range(geometry.fragments)]
        last = self.share.count - 1
        return [(plus(self.share.first, one.min(last)), one < self.share.count) for one in local]
