"""The loop of gemms whose workgroup reads weights once for many gathered rows: over items of at most 128 bytes of K.

    for every item (a tap, which rows go through it, a stage of K):
        features of the item that is one or two behind, gathered row by row into registers; weights of it, read by the
        whole workgroup, to local memory;  sums += weights · features of this item

What the items are says a `Source`: output_stationary.py runs over the taps of its rows (`run`), pair_major.py over
tiles of pairs (`run_tiles`). A wave holds the f32 sums of its rows, in fragments of `shape.m` rows by its share of a
slice of output channels, in registers. Waves lie `across` a slice: as many have the same rows and other output
channels, and gather the same lines at about the same time. Each then reads half of the weights from local memory, and
four waves fit on a SIMD unit.

An item has the `loads` of its stage, 64 bytes of each row. Where the last stage of K has fewer than the others, the
rest is left out of everything: by itself where the place in the loop's body tells the stage, else by a branch.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

from spconv_compiler.dialect.tile import tile_mma
from spconv_compiler.passes.gpu.lanes import barrier, bounded, concatenate, load, plus, thread, times
from spconv_compiler.passes.gpu.local import copy_group, copy_run, copy_wait, get_run, of_wave
from spconv_compiler.passes.gpu.row_geometry import Geometry, Lane
from spconv_compiler.passes.kernel_builder import V, const, f32, for_, i32, if_, if_else, vec

# Of a tile, in the body of a loop.
_MAX_ITEMS = 6
# Fragments of a wave: few may all lack a tap, and then nothing of local memory is read.
_FEW = 2


class Source(Protocol):
    """What the items of a workgroup are. An entry is an i32 that says of an item what all lanes must know.

    Attributes:
        features_first: features are operand A of the products, and a lane holds several rows of one channel; else
            weights are, and it holds consecutive channels of one row.
    """

    features_first: bool

    def entry(self, number: V) -> V:
        """The entry of item `number`, as a lane reads it; behind the last item it is that of some item."""

    def tap(self, entry: V) -> V:
        """The tap of an item."""

    def rows(self, number: V, entry: V) -> list[V]:
        """The input row of the lane's row, for each fragment; whatever is there where the wave has no such fragment."""

    def wanted(self, rows: Sequence[V]) -> list[V]:
        """The same rows, −1 where the wave has no such fragment."""

    def present(self, entry: V) -> list[V] | None:
        """Nonzero for each fragment of the wave that has the tap, the same in the whole wave. None: all, always."""


@dataclasses.dataclass(frozen=True)
class _Item:
    """One item, and its entry.

    Attributes:
        first: of the items of its step that go together. after: by how many it is behind that one.
    """

    first: V
    after: int
    entry: V


@dataclasses.dataclass
class _Flight:
    """What is on its way when an item begins: item i + n of the loop's i-th is called n.

    Attributes:
        sums: of every fragment, for every panel.
        runs: features of items 0 to `ahead` − 1. rows: input rows of item `ahead`, as the source has them.
        entries: of items 0 to `ahead` + 1, the last as a lane has read it.
    """

    sums: list[V]
    runs: list[list[V]]
    rows: list[V]
    entries: list[V]

    def values(self) -> list[V]:
        return [*self.sums, *itertools.chain(*self.runs), *self.rows, *self.entries]

    def like(self, values: Sequence[V]) -> _Flight:
        """The same things, other values."""
        taken = iter(values)

        def take(part: list[V]) -> list[V]:
            return [next(taken) for _ in part]

        sums = take(self.sums)
        runs = [take(part) for part in self.runs]
        return _Flight(sums, runs, take(self.rows), take(self.entries))


@dataclasses.dataclass(frozen=True)
class _Memory:
    """Local memory for the weights of one item: from element `base` of some memory on."""

    memory: V
    base: V | int = 0


class Pipeline:
    """The loop over items. All is asked for geometry.ahead items before it is needed, and row numbers one before that.

    Attributes:
        items: their number, the same in all lanes. in_rows: rows of the features.
        local: memory of the workgroup for the weights of geometry.buffers items, each its own, or all in one.
    """

    def __init__(
        self,
        geometry: Geometry,
        lane: Lane,
        source: Source,
        features: V,
        weights: V,
        items: V,
        in_rows: V,
        local: Sequence[V],
    ) -> None:
        self.g, self.lane, self.source, self.local = geometry, lane, source, local
        self.in_rows, self.elements = in_rows, times(in_rows, geometry.panels.c_in)
        self.gather = bounded(features, self.elements)
        self.weights = bounded(weights, const(geometry.panels.elements, i32()))
        self.items = items

    def run(self) -> list[list[V]]:
        """The sums of the lane over all items: for each fragment, for each panel of the slice, vector<held x f32>.

        As many items as buffers stand in the loop's body, since registers and local memory are used in turns: so
        nothing that is on its way has to be copied. Those of one step that stand there ask for its rows once.
        """
        start, buffers = const(0, i32()), self.g.buffers
        flight = self._start(start)
        with for_(start, self.items, buffers, flight.values(), unroll=False) as turn:
            now = flight.like(turn.args)
            for part in range(buffers):
                memories = [self._memory((part + later) % buffers) for later in (0, self.g.ahead)]
                now = self._advance(turn.iv, part, now, *memories)
            turn.yields(*now.values())
        return self._fragments(flight.like(turn.results).sums)

    def run_tiles(self, tiles: V, finish: Callable[[V, list[list[V]]], None]) -> None:
        """Calls finish(number, sums) for every tile, each of one item for every stage; sums as those of `run`.

        What follows a tile is on its way by then. A tile's items stand in the body of a loop, all of them or as many as
        divide them; local memory goes in turns as the numbers of items do.
        """
        g, start = self.g, const(0, i32())
        flight = self._start(start)
        each = max(size for size in range(1, _MAX_ITEMS + 1) if g.stages % size == 0)
        zero = flight.sums
        with for_(start, tiles, 1, flight.values()[len(zero) :], unroll=False) as turn:
            now = flight.like([*zero, *turn.args])
            first = times(turn.iv, g.stages)
            if each == g.stages:
                now = self._several(first, now, each)
            else:
                with for_(first, plus(first, g.stages), each, now.values(), unroll=False) as stage:
                    stage.yields(*self._several(stage.iv, flight.like(stage.args), each).values())
                now = flight.like(stage.results)
            finish(turn.iv, self._fragments(now.sums))
            turn.yields(*now.values()[len(zero) :])

    def _several(self, first: V, now: _Flight, count: int) -> _Flight:
        """Multiplies so many items."""
        for number in (plus(first, part) for part in range(count)):
            memories = [self._memory(plus(number, later) % self.g.buffers) for later in (0, self.g.ahead)]
            now = self._advance(number, 0, now, *memories)
        return now

    def _start(self, start: V) -> _Flight:
        """What is on its way before the first item: sums are zero."""
        g = self.g
        entries = [of_wave(self.source.entry(start + item)) for item in range(g.ahead + 2)]
        rows = [self.source.rows(start + item, entries[item]) for item in range(g.ahead + 1)]
        runs = []
        for number in range(g.ahead):
            item = self._item(start, number, entries[number])
            self._copy(item, self._memory(number))
            runs.append(self._gather(item, rows[number]))
        zero = const(0, vec(g.held, f32()))
        return _Flight([zero] * (g.fragments * g.per_wave), runs, rows[g.ahead], entries)

    def _memory(self, turn: V | int) -> _Memory:
        """Where the weights of items lie whose numbers are `turn` modulo the buffers."""
        if isinstance(turn, int) and len(self.local) > 1:
            return _Memory(self.local[turn])
        size = self.g.weight_elements
        return _Memory(self.local[0], turn * size if isinstance(turn, int) else times(turn, size))

    def _fragments(self, sums: list[V]) -> list[list[V]]:
        each = self.g.per_wave
        return [sums[at : at + each] for at in range(0, len(sums), each)]

    def _item(self, start: V, number: int, entry: V) -> _Item:
        """Item start + number, where items go together from `start` on."""
        after = number % self.g.together
        return _Item(plus(start, number - after), after, entry)

    def _advance(self, start: V, part: int, now: _Flight, read: _Memory, write: _Memory) -> _Flight:
        """Multiplies item start + part, and sends for what comes after it."""
        number, together, ahead = start + part, self.g.together, self.g.ahead
        coming = self._item(start, part + ahead, now.entries[ahead])
        # Behind the barrier the item's weights are there, and nobody reads those of the one before.
        copy_wait(ahead - 1)
        barrier()
        # Read in the turn before this one: now it has arrived, and waiting for it costs nothing.
        later, rows, entry = now.entries[ahead], now.rows, now.entries[ahead + 1]
        if (part + ahead + 1) % together == 0:
            later = of_wave(now.entries[ahead + 1])
            rows = self.source.rows(number + ahead + 1, later)
        if (part + ahead + 2) % together == 0:
            entry = self.source.entry(number + ahead + 2)
        self._copy(coming, write)
        runs = self._gather(coming, now.rows)
        item = self._item(start, part, now.entries[0])
        sums = self._multiply(item, self.source.present(item.entry), now.sums, now.runs[0], read)
        return _Flight(sums, [*now.runs[1:], runs], rows, [*now.entries[1 : ahead + 1], later, entry])

    def _loads(self, item: _Item) -> int:
        """Runs that a lane gathers of a row for an item, as far as its place in the loop's body tells."""
        g = self.g
        return g.last_loads if g.together == g.stages == item.after + 1 else g.loads

    def _stage(self, item: _Item) -> V:
        return plus(item.first % self.g.stages, item.after)

    def _gather(self, item: _Item, rows: list[V]) -> list[V]:
        g = self.g
        # Behind the last item nothing is read: its channels lie beyond all rows.
        stage = (item.first < self.items).select(times(item.first % g.stages, g.stage_k), self.elements)
        channel = plus(times(self.lane.group, g.panels.run), stage)
        first, values = item.after * g.stage_k, list[V]()
        places = [first + number * g.load_k for number in range(self._loads(item))]
        for row in self.source.wanted(rows):
            values += self._runs(row, channel, places)
        return values

    def _runs(self, row: V, channel: V, places: list[int]) -> list[V]:
        """vector<run x T> of a row from `channel` on, at each place; zeros for an absent row and beyond the last."""
        g, panels = self.g, self.g.panels
        if panels.c_in % (g.load_k if g.together == g.stages else g.stage_k) == 0:
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

    def _copy(self, item: _Item, memory: _Memory) -> None:
        """Starts the copy of an item's weights: they lie in memory as the lanes will read them."""
        g = self.g
        run, loads = g.panels.run, self._loads(item)
        each, total = loads * g.wave, g.per_slice * loads * g.wave
        tap = times(self.source.tap(item.entry), g.panels.n_tiles)
        panel = times(plus(tap, self.lane.panel), g.panels.panel)
        stage = times(item.first % g.stages, g.loads * g.wave * run)
        after = item.after * g.loads * g.wave * run
        # Behind the last item nothing is read.
        beyond = const(g.panels.elements, i32())
        for first in range(0, total, g.lanes):
            place = plus(times(self.lane.wave, g.wave), first)

            def start(place: V = place) -> None:
                mine = plus(thread() % g.wave, place)
                source = plus(times(mine // each, g.panels.panel), times(mine % each, run))
                wanted = item.first < self.items
                if self._cut_short(loads):
                    # Nor what lies behind the last load: there the next panel begins.
                    load = plus(times(self._stage(item), g.loads), place // g.wave % loads)
                    wanted = wanted & (load < g.panels.k_runs * run // g.load_k)
                there = wanted.select(plus(source, panel, stage, after), beyond)
                copy_run(self.weights, there, memory.memory, plus(times(place, run), memory.base))

            if first + g.lanes <= total:
                start()
                continue
            # Runs are whole waves of them: a panel has as many as a wave has lanes, or a multiple.
            with if_(place < total):
                start()
        copy_group()

    def _cut_short(self, loads: int) -> bool:
        """Whether an item of so many loads has fewer where it turns out to be of the last stage."""
        return loads > self.g.last_loads and self.g.together < self.g.stages

    def _multiply(self, item: _Item, present: list[V] | None, sums: list[V], runs: list[V], memory: _Memory) -> list[V]:
        """sums + weights · features for the fragments that are `present`; the same in the whole wave.

        Every branch is one without an else: so sums stay in the registers in which they are.
        """
        g, loads = self.g, self._loads(item)

        def fragment(number: int, some: range, columns: list[V], sums: list[V]) -> list[V]:
            own = [runs[number * loads + load] for load in some]
            at = slice(number * g.per_wave, (number + 1) * g.per_wave)
            if present is None:
                return self._products(columns, own, sums[at])
            return if_else(present[number].ne(0), lambda: self._products(columns, own, sums[at]), lambda: sums[at])

        def every() -> list[V]:
            found = sums
            for some, wanted in self._portions(item):

                def portion(some: range = some, sums: list[V] = found) -> list[V]:
                    columns = self._columns(memory, loads, some)
                    return [one for number in range(g.fragments) for one in fragment(number, some, columns, sums)]

                found = portion() if wanted is None else if_else(wanted, portion, lambda sums=found: sums)  # type: ignore[misc]
            return found

        # Of many fragments one is there nearly always.
        if present is None or g.fragments > _FEW:
            return every()
        there = functools.reduce(lambda found, one: found | one, present)
        return if_else(there.ne(0), every, lambda: sums)

    def _portions(self, item: _Item) -> list[tuple[range, V | None]]:
        """Loads of an item whose weights are in registers together; with what tells whether there are these, if any."""
        loads, last = self._loads(item), self.g.last_loads
        if self._cut_short(loads):
            return [(range(last), None), (range(last, loads), self._stage(item).ne(self.g.stages - 1))]
        each = -(-loads // self.g.portions)
        return [(range(first, min(first + each, loads)), None) for first in range(0, loads, each)]

    def _columns(self, memory: _Memory, loads: int, some: range) -> list[V]:
        """The lane's runs of the weights of an item of so many loads: for each of some of them, for each panel."""
        g = self.g
        lane = plus(times(self.lane.group, g.panels.columns), self.lane.column)
        starts = [(panel * loads + number) * g.wave * g.panels.run for number in some for panel in range(g.per_wave)]
        side = times(self.lane.side, g.per_wave * loads * g.wave * g.panels.run)
        first = plus(times(lane, g.panels.run), side, memory.base)
        return [get_run(memory.memory, plus(first, start)) for start in starts]

    def _products(self, columns: list[V], runs: list[V], sums: list[V]) -> list[V]:
        g = self.g
        sums = list(sums)
        held = g.shape[0] * g.shape[2] // g.wave
        for number, row in enumerate(runs):
            for first in range(0, g.panels.run, held):
                feature = part(row, first, held)
                for panel in range(g.per_wave):
                    weight = part(columns[number * g.per_wave + panel], first, held)
                    a, b = (feature, weight) if self.source.features_first else (weight, feature)
                    sums[panel] = V(tile_mma(g.shape, a.value, b.value, sums[panel]))
        return sums


def part(operand: V, at: int, lanes: int) -> V:
    """Elements [at, at + lanes) of a vector."""
    if operand.type.shape[0] == lanes:
        return operand
    return concatenate([operand.lane(number) for number in range(at, at + lanes)])
