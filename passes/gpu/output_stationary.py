"""The gemm of schedule `output_stationary`: a workgroup owns output rows, and runs over the taps that they have.

A wave holds the f32 sums of its rows, in fragments of `shape.m` rows by a slice of output channels, in registers from
the first tap to the last, so every row is written once, with the epilogue applied: no atomics, no fill, and a sum in
an order that depends on nothing but the row (taps ascending, channels ascending).

    for every step that the workgroup's rows have (tap, and which tiles of 16 rows have it):
        for every stage of K (128 bytes of a row):
            features of the stage after this one, gathered row by row into registers; weights of it, read by the whole
            workgroup;  sums += weights · features for the fragments that have the tap;  the weights to local memory

Rows are sorted by their taps beforehand (row_masks.py), so that a tile misses few of the taps of its workgroup; a
fragment that misses a tap skips its matrix instructions. A row without the tap in a tile that has it is read as zeros,
without touching memory. Weights are operand A: a lane then holds consecutive channels of one row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from spconv_compiler.bindings import ir
from spconv_compiler.dialect.tile import tile_mma
from spconv_compiler.passes.gpu.dense_grid import TILE_ROWS
from spconv_compiler.passes.gpu.lanes import barrier, block, bounded, concatenate, load, plus, thread, times
from spconv_compiler.passes.gpu.local import copy_group, copy_run, copy_wait, get_run, of_wave, shared_runs
from spconv_compiler.passes.gpu.mma_panels import Panels
from spconv_compiler.passes.gpu.row_masks import FIRST_TILE_BIT, TAP_MASK
from spconv_compiler.passes.kernel_builder import V, const, f32, for_, i32, if_, if_else, vec

# Items in flight: registers and local memory go in turns of as many.
BUFFERS = 3
# Called with (row, first channel, sums of consecutive channels) for every run of sums that a lane holds.
Finish = Callable[[V, V, V], None]


@dataclasses.dataclass(frozen=True)
class Geometry:
    """How the work is cut.

    Attributes:
        panels: the weights; panels.tile_k is a stage. shape: (m, n, k) of the matrix instruction.
        wave: lanes of one. waves: of a workgroup. fragments: of a wave.
        splits: parts into which the steps of a workgroup's rows are cut, each a workgroup with sums of its own.
        chiplets: parts of the chip that workgroups go to in turn, each with a cache of its own.
    """

    panels: Panels
    shape: tuple[int, int, int]
    wave: int
    waves: int
    fragments: int
    splits: int = 1
    chiplets: int = 1

    @property
    def rows(self) -> int:
        """Rows of a workgroup."""
        return self.waves * self.fragments * TILE_ROWS

    @property
    def lanes(self) -> int:
        return self.waves * self.wave

    @property
    def slices(self) -> int:
        """Parts of the output channels."""
        return self.panels.n_tiles // self.per_slice

    @property
    def per_slice(self) -> int:
        """Panels of a slice."""
        return self.panels.slice_columns // self.panels.columns

    @property
    def stages(self) -> int:
        """Stages of K."""
        return -(-self.panels.c_in // self.panels.tile_k)

    @property
    def stage_runs(self) -> int:
        """Runs of 16 bytes of one panel and stage."""
        return self.panels.tile_k // self.panels.run * self.panels.columns

    @property
    def weight_elements(self) -> int:
        """Elements of the weights of a slice and stage."""
        return self.per_slice * self.stage_runs * self.panels.run

    def workgroup(self, element: ir.Type) -> list[ir.Type]:
        """Local memory: the weights of a stage in each part."""
        return [shared_runs(self.weight_elements, element)] * BUFFERS

    def groups(self, row_blocks: str) -> str:
        """Workgroups of a launch, as a text for plan.size_map: row blocks in whole turns of the chiplets."""
        return f"({row_blocks} ceildiv {self.chiplets}) * {self.chiplets * self.slices * self.splits}"


@dataclasses.dataclass(frozen=True)
class _Place:
    """What a lane knows of itself: its wave (in all lanes), its column and group in a fragment, its slice."""

    wave: V
    column: V
    group: V
    slice: V
    row_block: V
    part: V


class OutputStationaryKernel:
    """Body(features, weights, table, steps, counts, order, *others, rows, *local).

    table i32 [tiles][taps][16], steps i32 [row blocks][taps], counts i32 [row blocks] and order i32 [row blocks · rows]
    are row_masks.py's; `finish` gets the `others` and makes what writes the sums.
    """

    def __init__(self, geometry: Geometry, finish: Callable[[Geometry, Sequence[V], V, V], Finish]) -> None:
        self.geometry, self.finish = geometry, finish

    def __call__(
        self, features: V, weights: V, table: V, steps: V, counts: V, order: V, *rest: V
    ) -> None:
        g = self.geometry
        *others, rows = rest[: len(rest) - BUFFERS]
        blocks = plus(rows, g.rows - 1) // g.rows
        place = self._place(blocks)
        with if_(place.row_block < blocks):
            pipeline = _Pipeline(g, place, features, weights, table, steps, counts, rows, rest[-BUFFERS:])
            sums = pipeline.run()
            self._write(sums, place, order, self.finish(g, others, rows, place.part))

    def _place(self, blocks: V) -> _Place:
        """Workgroups of one row block lie on one chiplet, one after another; blocks with many taps come first."""
        g, number = self.geometry, block()
        lane = thread() % g.wave
        each = g.slices * g.splits
        turn, inner = number // (g.chiplets * each), number % (g.chiplets * each)
        chiplet, part = inner % g.chiplets, inner // g.chiplets
        padded = plus(blocks, g.chiplets - 1) // g.chiplets * g.chiplets
        row_block = padded - 1 - plus(times(turn, g.chiplets), chiplet)
        wave, column, group = of_wave(thread() // g.wave), lane % g.shape[1], lane // g.shape[1]
        return _Place(wave, column, group, part % g.slices, row_block, part // g.slices)

    def _write(self, sums: list[list[V]], place: _Place, order: V, finish: Finish) -> None:
        g = self.geometry
        held = g.shape[0] * g.shape[1] // g.wave
        tile = plus(times(place.row_block, g.rows // TILE_ROWS), times(place.wave, g.fragments))
        for fragment, values in enumerate(sums):
            row = load(order, plus(times(plus(tile, fragment), TILE_ROWS), place.column))
            with if_(row >= 0):
                channel = plus(times(place.slice, g.panels.slice_columns), times(place.group, held))
                for number, value in enumerate(values):
                    finish(row, plus(channel, number * g.panels.columns), value)


@dataclasses.dataclass(frozen=True)
class _Item:
    """One stage of one step: its number, and the step's entry. Items beyond the last are of any step."""

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
        runs: features of items 0 and 1. rows: input rows of items 2 and 3.
        entries: steps of items 0 to 4.
    """

    sums: list[V]
    runs: list[list[V]]
    rows: list[list[V]]
    entries: list[V]

    def values(self) -> list[V]:
        return [*self.sums, *self.runs[0], *self.runs[1], *self.rows[0], *self.rows[1], *self.entries]

    def like(self, values: Sequence[V]) -> _Flight:
        """The same things, other values."""
        taken = iter(values)

        def take(part: list[V]) -> list[V]:
            return [next(taken) for _ in part]

        sums = take(self.sums)
        runs, rows = [take(part) for part in self.runs], [take(part) for part in self.rows]
        return _Flight(sums, runs, rows, take(self.entries))


class _Pipeline:
    """The loop over items. Everything is asked for two items before it is needed, and row numbers two before that.

    Three items stand in the loop's body, since registers and local memory are used in turns of three: so nothing that
    is on its way has to be copied.
    """

    def __init__(
        self,
        geometry: Geometry,
        place: _Place,
        features: V,
        weights: V,
        table: V,
        steps: V,
        counts: V,
        rows: V,
        local: Sequence[V],
    ) -> None:
        self.g, self.place, self.local = geometry, place, local
        self.features, self.weights, self.table, self.steps = features, weights, table, steps
        self.elements = times(rows, geometry.panels.c_in)
        self.gather = bounded(features, self.elements)
        count = load(counts, place.row_block)
        self.first = count * place.part // geometry.splits
        self.items = times(count * (place.part + 1) // geometry.splits - self.first, geometry.stages)

    def run(self) -> list[list[V]]:
        """The sums of the lane: for each fragment, for each panel of the slice, vector<held x f32>."""
        g = self.g
        held = g.shape[0] * g.shape[1] // g.wave
        zero, start = const(0, vec(held, f32())), const(0, i32())
        width = g.fragments * g.per_slice
        entries = [self._entry(start + item) for item in range(5)]
        items = [_Item(start + number, entry) for number, entry in enumerate(entries)]
        rows = [self._rows(item) for item in items[:4]]
        runs = []
        for item in range(2):
            self._copy(items[item], self.local[item])
            runs.append(self._gather(items[item], rows[item]))
        flight = _Flight([zero] * width, runs, rows[2:], entries)
        with for_(start, self.items, BUFFERS, flight.values(), unroll=False) as turn:
            now = flight.like(turn.args)
            for part in range(BUFFERS):
                now = self._advance(turn.iv + part, now, part)
            turn.yields(*now.values())
        sums = flight.like(turn.results).sums
        return [sums[at : at + g.per_slice] for at in range(0, width, g.per_slice)]

    def _advance(self, number: V, now: _Flight, part: int) -> _Flight:
        """Multiplies item `number`, and sends for what comes after it."""
        coming = _Item(number + 2, now.entries[2])
        # Behind the barrier the item's weights are there, and nobody reads those of the one before.
        copy_wait(1)
        barrier()
        rows = self._rows(_Item(number + 4, now.entries[4]))
        entry = self._entry(number + 5)
        self._copy(coming, self.local[(part + 2) % BUFFERS])
        runs = self._gather(coming, now.rows[0])
        sums = self._multiply(self._present(_Item(number, now.entries[0])), now.sums, now.runs[0], self.local[part])
        return _Flight(sums, [now.runs[1], runs], [now.rows[1], rows], [*now.entries[1:], entry])

    def _entry(self, number: V) -> V:
        """The step of an item; of those beyond the block's, whatever follows."""
        step = plus(self.first, number // self.g.stages).min(self.g.panels.taps - 1)
        return load(self.steps, plus(times(self.place.row_block, self.g.panels.taps), step))

    def _present(self, item: _Item) -> V:
        """A bit for each fragment of the wave that has the item's tap."""
        g = self.g
        shift = plus(times(self.place.wave, g.fragments), FIRST_TILE_BIT)
        return (item.number < self.items).select((item.entry >> shift) & ((1 << g.fragments) - 1), 0)

    def _rows(self, item: _Item) -> list[V]:
        """The input row of the lane's row through the item's tap, for each fragment; −1 where there is none."""
        g, place = self.g, self.place
        tile = plus(times(place.row_block, g.rows // TILE_ROWS), times(place.wave, g.fragments))
        first = times(plus(times(tile, g.panels.taps), item.tap), TILE_ROWS)
        return [
            load(self.table, plus(place.column, first, fragment * g.panels.taps * TILE_ROWS))
            for fragment in range(g.fragments)
        ]

    @property
    def _loads(self) -> int:
        """Runs that a lane gathers of a row and stage."""
        return self.g.panels.tile_k // self.g.panels.run // (self.g.wave // self.g.shape[1])

    def _gather(self, item: _Item, rows: list[V]) -> list[V]:
        g = self.g
        across = g.wave // g.shape[1] * g.panels.run
        channel = plus(times(self.place.group, g.panels.run), times(item.number % g.stages, g.panels.tile_k))
        return [
            self._run(row, plus(channel, number * across)) for row in rows for number in range(self._loads)
        ]

    def _run(self, row: V, channel: V) -> V:
        """vector<run x T> of a row from `channel` on; zeros for an absent row and for channels beyond the last."""
        panels = self.g.panels
        piece = panels.run
        while panels.c_in % piece:
            piece //= 2
        start = plus(times(row, panels.c_in), channel)
        whole = panels.c_in % panels.tile_k == 0
        pieces = []
        for at in range(0, panels.run, piece):
            inside = row >= 0 if whole else (row >= 0) & (plus(channel, at) < panels.c_in)
            pieces.append(load(self.gather, inside.select(plus(start, at), self.elements), piece))
        return concatenate(pieces)

    def _copy(self, item: _Item, memory: V) -> None:
        """Starts the copy of an item's weights: they lie in memory as the lanes will read them."""
        g = self.g
        run, total = g.panels.run, g.per_slice * g.stage_runs
        panel = times(plus(times(item.tap, g.panels.n_tiles), times(self.place.slice, g.per_slice)), g.panels.panel)
        stage = times(item.number % g.stages, g.stage_runs * run)
        for first in range(0, total, g.lanes):
            place = plus(times(self.place.wave, g.wave), first)

            def start(place: V = place) -> None:
                mine = plus(thread() % g.wave, place)
                source = plus(times(mine // g.stage_runs, g.panels.panel), times(mine % g.stage_runs, run))
                copy_run(self.weights, plus(source, panel, stage), memory, times(place, run))

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
            at = slice(number * g.per_slice, (number + 1) * g.per_slice)
            bit = (present >> number) & 1
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
            for panel in range(g.per_slice)
        ]
        return [get_run(memory, plus(times(lane, g.panels.run), start)) for start in starts]

    def _products(self, columns: list[V], runs: list[V], sums: list[V]) -> list[V]:
        g = self.g
        sums = list(sums)
        held = g.shape[0] * g.shape[2] // g.wave
        for number, row in enumerate(runs):
            for first in range(0, g.panels.run, held):
                b = part(row, first, held)
                for panel in range(g.per_slice):
                    a = part(columns[number * g.per_slice + panel], first, held)
                    sums[panel] = V(tile_mma(g.shape, a.value, b.value, sums[panel]))
        return sums


def part(operand: V, at: int, lanes: int) -> V:
    """Elements [at, at + lanes) of a vector."""
    if operand.type.shape[0] == lanes:
        return operand
    return concatenate([operand.lane(number) for number in range(at, at + lanes)])
