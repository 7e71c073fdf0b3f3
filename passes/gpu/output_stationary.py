"""The gemm of schedule `output_stationary`: a workgroup owns output rows, and runs over the taps that they have.

A wave holds the f32 sums of its rows, in fragments of `shape.m` rows by its share of a slice of output channels, in
registers from the first tap to the last, so every row is written once, with the epilogue applied: no atomics, no fill,
and a sum in an order that depends on nothing but the row (taps ascending, channels ascending).

    list the steps that the workgroup's tiles of 16 rows have (tile_shares.py)
    for every step (tap, and which tiles have it):
        for every stage of K (128 bytes of a row):
            features of the stage after this one, gathered row by row into registers; weights of it, read by the whole
            workgroup;  sums += weights · features for the fragments that have the tap;  the weights to local memory

Rows are sorted by their taps beforehand (row_masks.py), so that a tile misses few of the taps of its workgroup; a
fragment that misses a tap skips its matrix instructions. A row without the tap in a tile that has it is read as zeros,
without touching memory. Weights are operand A: a lane then holds consecutive channels of one row.

Waves lie `across` a slice: as many have the same rows and other output channels, and gather the same lines at about
the same time. Each then reads half of the weights from local memory, and four waves fit on a SIMD unit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from spconv_compiler.dialect.tile import tile_mma
from spconv_compiler.passes.gpu.dense_grid import NONE, TILE_ROWS
from spconv_compiler.passes.gpu.lanes import barrier, block, bounded, concatenate, get, load, plus, thread, times
from spconv_compiler.passes.gpu.local import copy_group, copy_run, copy_wait, get_run, of_wave
from spconv_compiler.passes.gpu.row_geometry import BUFFERS, Geometry, Place
from spconv_compiler.passes.gpu.row_masks import FIRST_TILE_BIT, TAP_MASK
from spconv_compiler.passes.gpu.tile_shares import count_shares, list_steps, take_share
from spconv_compiler.passes.gpu.whole_lines import HALF, exchanged
from spconv_compiler.passes.kernel_builder import V, const, f32, for_, i32, if_, if_else, vec

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
        found, listed, *local = rest[-BUFFERS - 2 :]
        *others, in_rows, rows = rest[: -BUFFERS - 2]
        tiles = plus(rows, TILE_ROWS - 1) // TILE_ROWS
        shares = count_shares(g.deal, tiles)
        number, slice_, part_of = self._numbers(shares)
        with if_(number.ult(shares)):
            lane, wave = thread() % g.wave, of_wave(thread() // g.wave)
            place = Place(
                wave,
                wave // g.across,
                wave % g.across,
                lane % g.shape[1],
                lane // g.shape[1],
                slice_,
                part_of,
                take_share(number, shares, tiles),
            )
            count = list_steps(place.share, steps, g.steps, place.part, found, listed)
            pipeline = _Pipeline(g, place, features, weights, table, listed, count, in_rows, local)
            self._write(pipeline.run(), place, order, self.finish(g, others, rows, part_of))

    def _numbers(self, shares: V) -> tuple[V, V, V]:
        """(share, slice, part). Workgroups of one share lie on one chiplet, one after another.

        Rows with many taps are sorted behind the others, and begin first.
        """
        g, number = self.geometry, block()
        each = g.slices * g.splits
        turn, inner = number // (g.chiplets * each), number % (g.chiplets * each)
        chiplet, part = inner % g.chiplets, inner // g.chiplets
        padded = plus(shares, g.chiplets - 1) // g.chiplets * g.chiplets
        return padded - 1 - plus(times(turn, g.chiplets), chiplet), part % g.slices, part // g.slices

    def _write(self, sums: list[list[V]], place: Place, order: V, finish: Finish) -> None:
        """Panels by twos, exchanged so that stores fill lines; then the one that may be left."""
        g = self.geometry
        held, columns = g.shape[0] * g.shape[1] // g.wave, g.panels.columns
        first = plus(times(place.slice, g.panels.slice_columns), times(place.side, g.per_wave * columns))
        channel = plus(first, times(place.group, held))
        near = place.column % HALF
        moved = plus(channel, (place.column < HALF).select(const(0, i32()), columns))
        paired, single = len(sums[0]) // 2, len(sums[0]) % 2
        columns_of_rows = [plus(near, half * HALF) for half in range(2)] * bool(paired) + [place.column] * single
        # All rows are asked for before anything waits for them.
        rows = [
            [there.select(load(order, plus(times(tile, TILE_ROWS), column)), NONE) for column in columns_of_rows]
            for tile, there in place.tiles(g)
        ]
        for own, values in zip(rows, sums, strict=True):
            pairs = [exchanged(values[2 * at], values[2 * at + 1], place.column, g.wave) for at in range(paired)]
            for half, row in enumerate(own[: 2 * bool(paired)]):
                with if_(row >= 0):
                    for number, pair in enumerate(pairs):
                        finish(row, plus(moved, 2 * number * columns), pair[half])
            if single:
                with if_(own[-1] >= 0):
                    finish(own[-1], plus(channel, (len(values) - 1) * columns), values[-1])


@dataclasses.dataclass(frozen=True)
class _Item:
    """One stage of one step: its number, and the step's entry."""

    number: V
    entry: V

    @property
    def tap(self) -> V:
        return self.entry & TAP_MASK


@dataclasses.dataclass
class _Flight:
    """What is on its way when an item begins: item i + n of the loop's i-th is called n.

    Attributes:
        sums: of every fragment, for every panel.
        runs: features of items 0 and 1. rows: input rows of item 2, as the table has them.
        entries: steps of items 0 to 3, the last as a lane has read it.
    """

    sums: list[V]
    runs: list[list[V]]
    rows: list[V]
    entries: list[V]

    def values(self) -> list[V]:
        return [*self.sums, *self.runs[0], *self.runs[1], *self.rows, *self.entries]

    def like(self, values: Sequence[V]) -> _Flight:
        """The same things, other values."""
        taken = iter(values)

        def take(part: list[V]) -> list[V]:
            return [next(taken) for _ in part]

        sums = take(self.sums)
        runs = [take(part) for part in self.runs]
        return _Flight(sums, runs, take(self.rows), take(self.entries))


class _Pipeline:
    """The loop over items. Everything is asked for two items before it is needed, and row numbers one before that.

    Three items stand in the loop's body, since registers and local memory are used in turns of three: so nothing that
    is on its way has to be copied.
    """

    def __init__(
        self,
        geometry: Geometry,
        place: Place,
        features: V,
        weights: V,
        table: V,
        listed: V,
        count: V,
        in_rows: V,
        local: Sequence[V],
    ) -> None:
        self.g, self.place, self.local = geometry, place, local
        self.table, self.listed = table, listed
        self.in_rows, self.elements = in_rows, times(in_rows, geometry.panels.c_in)
        self.gather = bounded(features, self.elements)
        self.weights = bounded(weights, const(geometry.panels.elements, i32()))
        self.items = times(count, geometry.stages)
        # Sums that may be taken apart would cost a scalar operation for each of these, in every item.
        size = geometry.panels.taps * TILE_ROWS
        self.tables = [(plus(times(tile, size), place.column), there) for tile, there in place.tiles(geometry)]

    def run(self) -> list[list[V]]:
        """The sums of the lane: for each fragment, for each panel of the slice, vector<held x f32>."""
        g = self.g
        held = g.shape[0] * g.shape[1] // g.wave
        zero, start = const(0, vec(held, f32())), const(0, i32())
        width = g.fragments * g.per_wave
        entries = [of_wave(self._entry(start + item)) for item in range(4)]
        rows = [self._rows(entry) for entry in entries[:3]]
        runs = []
        for number in range(2):
            item = _Item(start + number, entries[number])
            self._copy(item, self.local[number])
            runs.append(self._gather(item, rows[number]))
        flight = _Flight([zero] * width, runs, rows[2], entries)
        with for_(start, self.items, BUFFERS, flight.values(), unroll=False) as turn:
            now = flight.like(turn.args)
            for part in range(BUFFERS):
                now = self._advance(turn.iv + part, now, part)
            turn.yields(*now.values())
        sums = flight.like(turn.results).sums
        return [sums[at : at + g.per_wave] for at in range(0, width, g.per_wave)]

    def _advance(self, number: V, now: _Flight, part: int) -> _Flight:
        """Multiplies item `number`, and sends for what comes after it."""
        coming = _Item(number + 2, now.entries[2])
        # Behind the barrier the item's weights are there, and nobody reads those of the one before.
        copy_wait(1)
        barrier()
        # Read in the turn before this one: now it has arrived, and waiting for it costs nothing.
        ahead = of_wave(now.entries[3])
        rows = self._rows(ahead)
        entry = self._entry(number + 4)
        self._copy(coming, self.local[(part + 2) % BUFFERS])
        runs = self._gather(coming, now.rows)
        sums = self._multiply(self._present(now.entries[0]), now.sums, now.runs[0], self.local[part])
        return _Flight(sums, [now.runs[1], runs], rows, [*now.entries[1:3], ahead, entry])

    def _entry(self, number: V) -> V:
        """The step of an item, the same in all lanes; behind the last item it is for no tile."""
        return get(self.listed, number // self.g.stages)

    def _present(self, entry: V) -> V:
        """A bit for each tile of the wave that has the tap of a step: for fragment f, bit f · high."""
        g = self.g
        tiles = entry >> plus(self.place.level, FIRST_TILE_BIT)
        return tiles & sum(1 << fragment * g.high for fragment in range(g.fragments))

    def _rows(self, entry: V) -> list[V]:
        """The input row of the lane's row through a step's tap, for each fragment, whether that has a tile or not."""
        first = times(entry & TAP_MASK, TILE_ROWS)
        return [load(self.table, plus(place, first)) for place, _ in self.tables]

    @property
    def _loads(self) -> int:
        """Runs that a lane gathers of a row and stage."""
        return self.g.panels.tile_k // self.g.panels.run // (self.g.wave // self.g.shape[1])

    def _gather(self, item: _Item, rows: list[V]) -> list[V]:
        g = self.g
        across = g.wave // g.shape[1] * g.panels.run
        # Behind the last item nothing is read: its channels lie beyond all rows.
        stage = (item.number < self.items).select(times(item.number % g.stages, g.panels.tile_k), self.elements)
        channel = plus(times(self.place.group, g.panels.run), stage)
        places, values = [number * across for number in range(self._loads)], list[V]()
        for row, (_, there) in zip(rows, self.tables, strict=True):
            values += self._runs(there.select(row, NONE), channel, places)
        return values

    def _runs(self, row: V, channel: V, places: list[int]) -> list[V]:
        """vector<run x T> of a row from `channel` on, at each place; zeros for an absent row and beyond the last."""
        panels = self.g.panels
        if panels.c_in % panels.tile_k == 0:
            # As unsigned, −1 is the greatest row: it becomes the first one beyond the last.
            start = plus(times(row.umin(self.in_rows), panels.c_in), channel)
            return [load(self.gather, plus(start, place), panels.run) for place in places]
        return [self._run(row, plus(channel, place)) for place in places]

    def _run(self, row: V, channel: V) -> V:
        """The same where a run may reach beyond the last channel."""
        panels = self.g.panels
        piece = panels.run
        while panels.c_in % piece:
            piece //= 2
        start = plus(times(row, panels.c_in), channel)
        pieces = []
        for at in range(0, panels.run, piece):
            inside = (row >= 0) & (plus(channel, at) < panels.c_in)
            pieces.append(load(self.gather, inside.select(plus(start, at), self.elements), piece))
        return concatenate(pieces)

    def _copy(self, item: _Item, memory: V) -> None:
        """Starts the copy of an item's weights: they lie in memory as the lanes will read them."""
        g = self.g
        run, total = g.panels.run, g.per_slice * g.stage_runs
        panel = times(plus(times(item.tap, g.panels.n_tiles), times(self.place.slice, g.per_slice)), g.panels.panel)
        stage = times(item.number % g.stages, g.stage_runs * run)
        # Behind the last item nothing is read.
        beyond = const(g.panels.elements, i32())
        for first in range(0, total, g.lanes):
            place = plus(times(self.place.wave, g.wave), first)

            def start(place: V = place) -> None:
                mine = plus(thread() % g.wave, place)
                source = plus(times(mine // g.stage_runs, g.panels.panel), times(mine % g.stage_runs, run))
                there = (item.number < self.items).select(plus(source, panel, stage), beyond)
                copy_run(self.weights, there, memory, times(place, run))

            if first + g.lanes <= total:
                start()
                continue
            # Runs are whole waves of them: a panel has as many as a wave has lanes, or a multiple.
            with if_(place < total):
                start()
        copy_group()

    def _multiply(self, present: V, sums: list[V], runs: list[V], memory: V) -> list[V]:
        """sums + weights · features for the fragments that bits of `present` name; the same in the whole wave.

        Every branch is one without an else: so sums stay in the registers in which they are.
        """
        g = self.g

        def fragment(number: int, columns: list[V], sums: list[V]) -> list[V]:
            own = slice(number * self._loads, (number + 1) * self._loads)
            at = slice(number * g.per_wave, (number + 1) * g.per_wave)
            bit = (present >> number * g.high) & 1
            return if_else(bit.ne(0), lambda: self._products(columns, runs[own], sums[at]), lambda: sums[at])

        def every() -> list[V]:
            columns = self._columns(memory)
            return [value for number in range(g.fragments) for value in fragment(number, columns, sums)]

        return if_else(present.ne(0), every, lambda: sums)

    def _columns(self, memory: V) -> list[V]:
        """The lane's runs of the weights of an item: for each load of a fragment, for each panel."""
        g = self.g
        lane = plus(times(self.place.group, g.panels.columns), self.place.column)
        starts = [
            (panel * g.stage_runs + number * g.wave) * g.panels.run
            for number in range(self._loads)
            for panel in range(g.per_wave)
        ]
        first = plus(times(lane, g.panels.run), times(self.place.side, g.per_wave * g.stage_runs * g.panels.run))
        return [get_run(memory, plus(first, start)) for start in starts]

    def _products(self, columns: list[V], runs: list[V], sums: list[V]) -> list[V]:
        g = self.g
        sums = list(sums)
        held = g.shape[0] * g.shape[2] // g.wave
        for number, row in enumerate(runs):
            for first in range(0, g.panels.run, held):
                b = part(row, first, held)
                for panel in range(g.per_wave):
                    a = part(columns[number * g.per_wave + panel], first, held)
                    sums[panel] = V(tile_mma(g.shape, a.value, b.value, sums[panel]))
        return sums


def part(operand: V, at: int, lanes: int) -> V:
    """Elements [at, at + lanes) of a vector."""
    if operand.type.shape[0] == lanes:
        return operand
    return concatenate([operand.lane(number) for number in range(at, at + lanes)])
