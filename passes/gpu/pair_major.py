"""The gemm of schedule `pair_major`: a workgroup multiplies whole tiles of pairs of one tap, and adds into the output.

    for every tile of `tile_m` pairs that the workgroup has, for every stage of K:  an item (item_pipeline.py)
        behind a tile's last item:  out[row of each pair] += sums, by f32 atomics

The tap's weights are read once for all pairs of a tile, and no row without the tap is multiplied but those that fill up
a tap's last tile. Features are operand A: a lane holds several pairs of one channel, 16 lanes 64 consecutive bytes of a
row. Of two neighbouring panels those are exchanged for the second half of a line (whole_lines.py), so that every atomic
of a wave adds to whole lines of two rows. What follows a tile is on its way while its sums are added.

Workgroups are as many as the chip holds. Tiles are cut into as many runs as there are chiplets, so that a chiplet reads
the weights of few taps, and the column slices of a tile, which gather the same rows, lie on one chiplet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from spconv_compiler.passes.gpu.item_pipeline import Pipeline
from spconv_compiler.passes.gpu.lanes import atomic, block, load, plus, thread, times
from spconv_compiler.passes.gpu.local import of_wave
from spconv_compiler.passes.gpu.row_geometry import Geometry, Lane
from spconv_compiler.passes.gpu.whole_lines import exchanged
from spconv_compiler.passes.kernel_builder import V, const, i32, if_


@dataclasses.dataclass(frozen=True)
class Turns:
    """The tiles that a workgroup takes: first, first + stride, …; count of them."""

    first: V
    stride: int
    count: V

    def tile(self, turn: V) -> V:
        """The tile of a turn; behind the last turn it is the last one's."""
        return plus(self.first, times(turn.min(self.count - 1), self.stride))


class PairMajorKernel:
    """Body(features, weights, in_rows, out_rows, tile_tap, tap_tile, out, rows, local): see tap_tile_row.py.

    rows: of the features. per_chiplet: workgroups of one chiplet, a multiple of the slices.
    """

    def __init__(self, geometry: Geometry, per_chiplet: int) -> None:
        self.geometry, self.per_chiplet = geometry, per_chiplet

    def __call__(
        self,
        features: V,
        weights: V,
        in_rows: V,
        out_rows: V,
        tile_tap: V,
        tap_tile: V,
        out: V,
        rows: V,
        local: V,
    ) -> None:
        g, number = self.geometry, block()
        chiplet, own = number % g.chiplets, number // g.chiplets
        turns = self._turns(load(tap_tile, const(g.panels.taps, i32())), chiplet, own // g.slices)
        with if_(turns.count > 0):
            lane, wave = thread() % g.wave, of_wave(thread() // g.wave)
            column, group = lane % g.shape[1], lane // g.shape[1]
            place = Lane(wave, wave // g.across, wave % g.across, column, group, times(own % g.slices, g.per_slice))
            source, adder = _Tiles(g, place, turns, in_rows, tile_tap), _Adder(g, place, out_rows, out)
            pipeline = Pipeline(g, place, source, features, weights, times(turns.count, g.stages), rows, [local])
            pipeline.run_tiles(turns.count, lambda turn, sums: adder.add(turns.tile(turn), sums))

    def _turns(self, tiles: V, chiplet: V, own: V) -> Turns:
        """The tiles of workgroup `own` among those of a chiplet and slice."""
        g = self.geometry
        each, left, stride = tiles // g.chiplets, tiles % g.chiplets, self.per_chiplet // g.slices
        first = plus(times(chiplet, each), chiplet.min(left))
        length = plus(each, (chiplet < left).select(const(1, i32()), 0))
        return Turns(plus(first, own), stride, (plus(length, stride - 1) - own) // stride)


class _Tiles:
    """Items of tiles of pairs: a stage of K of each tile. See item_pipeline.Source; an entry is the tap."""

    features_first = True

    def __init__(self, geometry: Geometry, lane: Lane, turns: Turns, in_rows: V, tile_tap: V) -> None:
        self.g, self.turns, self.in_rows, self.tile_tap = geometry, turns, in_rows, tile_tap
        m = geometry.shape[0]
        places = [plus(lane.level, number * geometry.high) for number in range(geometry.fragments)]
        self.pairs = [plus(times(place, m), lane.column) for place in places]

    def _tile(self, number: V) -> V:
        return self.turns.tile(number // self.g.stages)

    def entry(self, number: V) -> V:
        return load(self.tile_tap, self._tile(number))

    def tap(self, entry: V) -> V:
        return entry

    def rows(self, number: V, entry: V) -> list[V]:
        """Pairs that fill up a tile read row 0."""
        first = times(self._tile(number), self.g.tile_rows)
        return [load(self.in_rows, plus(pair, first)) for pair in self.pairs]

    def wanted(self, rows: Sequence[V]) -> list[V]:
        return list(rows)

    def present(self, entry: V) -> None:
        return None


class _Adder:
    """Adds the sums of a tile to the output rows of its pairs; pairs that fill it up (row −1) are branched around."""

    def __init__(self, geometry: Geometry, lane: Lane, out_rows: V, out: V) -> None:
        self.g, self.lane, self.out_rows, self.out = geometry, lane, out_rows, out

    def add(self, tile: V, sums: list[list[V]]) -> None:
        """sums: for each fragment, for each panel."""
        g = self.g
        for number, values in enumerate(sums):
            place = plus(self.lane.level, number * g.high)
            self._fragment(plus(times(place, g.shape[0]), times(tile, g.tile_rows)), values)

    def _fragment(self, first: V, values: list[V]) -> None:
        """values: for each panel; `held` pairs from the lane's group · held on, one channel."""
        g, lane = self.g, self.lane
        paired, columns = len(values) // 2, g.panels.columns
        channel = plus(lane.first_column(g), lane.column)
        odd = lane.group % 2
        if paired:
            near, moved = odd.eq(0), plus(channel, times(odd, columns))
            both = [exchanged(values[2 * at], values[2 * at + 1], near, columns, g.wave) for at in range(paired)]
            for half in range(2):
                pairs = plus(first, times(lane.group - odd, g.held), half * g.held)
                self._rows(pairs, [(plus(moved, 2 * at * columns), both[at][half]) for at in range(paired)])
        if len(values) % 2:
            alone = plus(channel, (len(values) - 1) * columns)
            self._rows(plus(first, times(lane.group, g.held)), [(alone, values[-1])])

    def _rows(self, pair: V, values: Sequence[tuple[V, V]]) -> None:
        """Adds, for `held` pairs from one on, (channel, sums of those pairs)."""
        g = self.g
        whole = g.panels.n_tiles * g.panels.columns == g.panels.c_out
        targets = load(self.out_rows, pair, g.held)
        for number in range(g.held):
            target = targets.lane(number)
            with if_(target >= 0):
                start = times(target, g.panels.c_out)
                for channel, sums in values:
                    if whole:
                        atomic("fadd", sums.lane(number), self.out, plus(start, channel))
                        continue
                    with if_(channel < g.panels.c_out):
                        atomic("fadd", sums.lane(number), self.out, plus(start, channel))
