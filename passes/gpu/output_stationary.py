"""The gemm of schedule `output_stationary`: a workgroup owns output rows, and runs over the taps that they have.

Sums stay in registers from the first tap to the last (item_pipeline.py), so every row is written once, with the
epilogue applied: no atomics, no fill, and a sum in an order that depends on nothing but the row (taps ascending,
channels ascending).

    list the steps that the workgroup's tiles of 16 rows have (tile_shares.py)
    for every step (tap, and which tiles have it), for every stage of K:  an item

Rows are sorted by their taps beforehand (row_masks.py), so that a tile misses few of the taps of its workgroup; a
fragment that misses a tap skips its matrix instructions. A row without the tap in a tile that has it is read as zeros,
without touching memory. Weights are operand A: a lane then holds consecutive channels of one row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spconv_compiler.passes.gpu.dense_grid import NONE, TILE_ROWS
from spconv_compiler.passes.gpu.item_pipeline import Pipeline
from spconv_compiler.passes.gpu.lanes import block, get, load, plus, thread, times
from spconv_compiler.passes.gpu.local import of_wave
from spconv_compiler.passes.gpu.row_geometry import Geometry, Place
from spconv_compiler.passes.gpu.row_masks import FIRST_TILE_BIT, TAP_MASK
from spconv_compiler.passes.gpu.tile_shares import count_shares, list_steps, take_share
from spconv_compiler.passes.gpu.whole_lines import HALF, exchanged
from spconv_compiler.passes.kernel_builder import V, const, i32, if_

# Called with (row, first channel, sums of consecutive channels) for every run of sums that a lane holds.
Finish = Callable[[V, V, V], None]


class OutputStationaryKernel:
    """Body(features, weights, table, steps, counts, order, *others, in_rows, rows, *local).

    table i32 [tiles][taps][16], steps i32 [blocks of 256 rows][taps], counts i32 [blocks] (not read) and order i32
    [blocks · 256] are row_masks.py's; `finish` gets the `others` and makes what writes the sums.
    """

    def __init__(self, geometry: Geometry, finish: Callable[[Geometry, Sequence[V], V, V], Finish]) -> None:
        self.geometry, self.finish = geometry, finish

    def __call__(
        self, features: V, weights: V, table: V, steps: V, counts: V, order: V, *rest: V
    ) -> None:
        g = self.geometry
        *others, in_rows, rows = rest[: -g.buffers - 2]
        found, listed, *local = rest[-g.buffers - 2 :]
        tiles = plus(rows, TILE_ROWS - 1) // TILE_ROWS
        shares = count_shares(g.deal, tiles)
        number, inner = numbers(block(), shares, g.chiplets, g.slices * g.splits)
        slice_, part_of = inner % g.slices, inner // g.slices
        with if_(number.ult(shares)):
            lane, wave = thread() % g.wave, of_wave(thread() // g.wave)
            place = Place(
                wave,
                wave // g.across,
                wave % g.across,
                lane % g.shape[1],
                lane // g.shape[1],
                times(slice_, g.per_slice),
                part_of,
                take_share(number, shares, tiles),
            )
            count = list_steps(place.share, steps, g.steps, place.part, found, listed)
            source, items = Steps(g, place, table, listed), times(count, g.stages)
            pipeline = Pipeline(g, place, source, features, weights, items, in_rows, local)
            write_rows(g, pipeline.run(), place, order, self.finish(g, others, rows, part_of))


def numbers(number: V, shares: V, chiplets: int, each: int) -> tuple[V, V]:
    """(share, which of its `each` workgroups) of workgroup `number`. Those of one share lie on one chiplet, in a row.

    Rows with many taps are sorted behind the others, and begin first. A share that there is not is none of `shares`.
    """
    turn, inner = number // (chiplets * each), number % (chiplets * each)
    chiplet, part = inner % chiplets, inner // chiplets
    padded = plus(shares, chiplets - 1) // chiplets * chiplets
    return padded - 1 - plus(times(turn, chiplets), chiplet), part


def write_rows(g: Geometry, sums: list[list[V]], place: Place, order: V, finish: Finish) -> None:
    """Panels by twos, exchanged so that stores fill lines; then the one that may be left."""
    columns = g.panels.columns
    channel = plus(place.first_column(g), times(place.group, g.held))
    near, first = place.column % HALF, place.column < HALF
    moved = plus(channel, first.select(const(0, i32()), columns))
    paired, single = len(sums[0]) // 2, len(sums[0]) % 2
    columns_of_rows = [plus(near, half * HALF) for half in range(2)] * bool(paired) + [place.column] * single
    # All rows are asked for before anything waits for them.
    rows = [
        [there.select(load(order, plus(times(tile, TILE_ROWS), column)), NONE) for column in columns_of_rows]
        for tile, there in place.tiles(g)
    ]
    for own, values in zip(rows, sums, strict=True):
        pairs = [exchanged(values[2 * at], values[2 * at + 1], first, HALF, g.wave) for at in range(paired)]
        for half, row in enumerate(own[: 2 * bool(paired)]):
            with if_(row >= 0):
                for number, pair in enumerate(pairs):
                    finish(row, plus(moved, 2 * number * columns), pair[half])
        if single:
            with if_(own[-1] >= 0):
                finish(own[-1], plus(channel, (len(values) - 1) * columns), values[-1])


class Steps:
    """Items of output rows: a stage of K of each step in a workgroup's list (tile_shares.py). See item_pipeline.Source.

    table: i32 [tiles][taps][16]. listed: the steps in local memory.
    """

    features_first = False

    def __init__(self, geometry: Geometry, place: Place, table: V, listed: V) -> None:
        self.g, self.place, self.table, self.listed = geometry, place, table, listed
        # Sums that may be taken apart would cost a scalar operation for each of these, in every item.
        size = geometry.panels.taps * TILE_ROWS
        self.tables = [(plus(times(tile, size), place.column), there) for tile, there in place.tiles(geometry)]

    def entry(self, number: V) -> V:
        """The step of an item; behind the last item it is for no tile."""
        return get(self.listed, number // self.g.stages)

    def tap(self, entry: V) -> V:
        return entry & TAP_MASK

    def rows(self, number: V, entry: V) -> list[V]:
        """The rows through a step's tap, whether a fragment has a tile or not."""
        first = times(entry & TAP_MASK, TILE_ROWS)
        return [load(self.table, plus(place, first)) for place, _ in self.tables]

    def wanted(self, rows: Sequence[V]) -> list[V]:
        return [there.select(row, NONE) for row, (_, there) in zip(rows, self.tables, strict=True)]

    def present(self, entry: V) -> list[V]:
        g = self.g
        tiles = entry >> plus(self.place.level, FIRST_TILE_BIT)
        return [tiles & (1 << fragment * g.high) for fragment in range(g.fragments)]
