"""Kernel map by search in sorted keys, without a grid: for boxes that are too large, or too empty, for dense_grid.py.

After the z-delta search of Spira (arXiv 2511.20834, section 5.2). In a padded box the key of a neighbour is the row's
key plus a constant of the tap. One search finds the first neighbour of a line of taps along x; the others of the line
follow it in the sorted keys.

A lane takes one sorted record and one line. Records of a wave have ascending keys, so what they look for ascends too:
the wave finds the places of its first and last key together, as many probes a step as it has lanes, and every lane
searches between the two. The table is that of dense_grid.py, rows in the caller's order. Equal keys are sorted by row:
the first found is the lowest.

Where the caller's order is another, an entry of the table shares its cache line with rows that other workgroups find.
Then the search writes lines, i32 [row][taps, in whole lines of 32], and a kernel of its own turns them over. A table
that is wanted by rows (row_table.py) is written at once: there a lane looks for all lines of its record, between the
ends that its workgroup has found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from spconv_compiler.bindings import ir
from spconv_compiler.passes.gpu.box import Box
from spconv_compiler.passes.gpu.dense_grid import NONE, TILE_ROWS
from spconv_compiler.passes.gpu.lanes import (
    ballot,
    barrier,
    block,
    from_lane,
    get,
    load,
    plus,
    popcount,
    put,
    shared,
    store,
    thread,
    times,
)
from spconv_compiler.passes.gpu.radix_sort import Sort
from spconv_compiler.passes.kernel_builder import V, bits, const, i32, i64, if_, if_else, while_

if TYPE_CHECKING:
    from spconv_compiler.passes.gpu.row_table import RowTable

# Records that a lane looks at from the first neighbour on, all loads in flight at once.
_MAX_WINDOW = 8
# Lines that a lane of search_rows looks for at once.
_MAX_LINES = 9
# Words of a cache line, rows that a workgroup turns over, and what keeps columns of local memory in different banks.
_LINE, TURNED_ROWS, _PITCH = 32, 64, 33


def key_of(halo: Sequence[int]) -> Callable[..., V]:
    """key_of(coords, row, limit, *box) for Sort.make_records; rows outside the box get `limit`, as no voxel has it."""

    def key(coords: V, row: V, limit: V, *box: V) -> V:
        inside, packed = Box.of(box).pack(coords, row, halo)
        return inside.select(packed, limit)

    return key


def search(
    sort: Sort, kernel_size: Sequence[int], dilation: Sequence[int], lanes: int, count: Callable[..., None]
) -> Callable[..., None]:
    """Body(records, state, table, lines, tap_count, rows, cells, *box, shared).

    A lane per record, a line of taps per workgroup along y. It fills the table, or if keys were out of order, lines.
    count(found, first tap, tap_count, shared) adds up what a workgroup has found.
    """
    halo = [size // 2 * step for size, step in zip(kernel_size, dilation, strict=True)]
    line, taps = kernel_size[2], math.prod(kernel_size)

    def body(records: V, state: V, table: V, lines: V, tap_count: V, rows: V, limit: V, *rest: V) -> None:
        *box_arguments, memory = rest
        box, part = Box.of(box_arguments), block("y")
        place = plus(times(block(), lanes), thread())
        half = sort.final_half(state, limit, rows)
        sorted_ = SortedRecords(records, half, rows, sort.wave)
        own = sorted_.record(place.min(rows - 1))
        key, row = own.lane(0), own.lane(1).to(i32())
        z, y = (part // kernel_size[1]).to(key.type), (part % kernel_size[1]).to(key.type)
        corner: list[V | int] = [z * dilation[0] - halo[0], y * dilation[1] - halo[1], -halo[2]]
        # Rows that are no voxels look beyond all keys, at once: many equal ones would be searched through.
        target = key.ult(limit).select(key + box.delta(corner), const(-1, key.type))
        begin = sorted_.between(target)
        inside = (place < rows) & key.ult(limit)
        found = [inside.select(row, NONE) for row in sorted_.line(begin, target, line, dilation[2])]
        # A lane beyond the last record fills the rows of the last tile that are no rows.
        row = (place < rows).select(row, place)
        known, moved = place < ((rows + (TILE_ROWS - 1)) & -TILE_ROWS), sort.unsorted(state)
        with if_(known & moved):
            first = plus(times(row, line_words(taps)), times(part, line))
            for tap, neighbour in enumerate(found):
                store(neighbour, lines, plus(first, tap))
        with if_(known & moved.eq(0)):
            tile = times(row // TILE_ROWS, taps * TILE_ROWS)
            first = plus(tile, row % TILE_ROWS, times(part, line * TILE_ROWS))
            for tap, neighbour in enumerate(found):
                store(neighbour, table, plus(first, tap * TILE_ROWS))
        count(found, times(part, line), tap_count, memory)

    return body


def search_rows(
    sort: Sort, kernel_size: Sequence[int], dilation: Sequence[int], lanes: int, made: RowTable
) -> Callable[..., None]:
    """Body(records, state, table, mask_records, mask_state, rows, cells, *box, ends, shared…): a lane per record."""
    halo = [size // 2 * step for size, step in zip(kernel_size, dilation, strict=True)]
    lines, taps = math.prod(kernel_size[:2]), kernel_size[2]

    def body(records: V, state: V, table: V, mask_records: V, mask_state: V, rows: V, limit: V, *rest: V) -> None:
        box, ends, memory = Box.of(rest[:7]), rest[7], rest[8:]
        begin = times(block(), lanes)
        place = plus(begin, thread())
        known = place < rows
        sorted_ = SortedRecords(records, sort.final_half(state, limit, rows), rows, sort.wave)

        def first_of(key: V, line: V) -> V:
            """The first key of a line; rows that are no voxels look beyond all keys: there are many of them at once."""
            z, y = (line // kernel_size[1]).to(key.type), (line % kernel_size[1]).to(key.type)
            corner = [z * dilation[0] - halo[0], y * dilation[1] - halo[1], const(-halo[2], key.type)]
            return key.ult(limit).select(key + box.delta(corner), const(-1, key.type))

        first, last = (sorted_.key(at.min(rows - 1)) for at in (begin, plus(begin, lanes - 1)))
        # Under way while the ends are looked for.
        own = sorted_.record(place.min(rows - 1))
        sorted_.put_ends(lines, lambda line, late: first_of(late.select(last, first), line), ends, lanes)
        key, row = own.lane(0), own.lane(1).to(i32())
        made.begin(memory)
        inside, found = known & key.ult(limit), []
        for start in range(0, lines, _MAX_LINES):
            numbers = range(start, min(lines, start + _MAX_LINES))
            targets = [first_of(key, const(line, i32())) for line in numbers]
            lows, highs = ([get(ends, const(2 * line + late, i32())) for line in numbers] for late in range(2))
            counts = [high - low for low, high in zip(lows, highs, strict=True)]
            for target, at in zip(targets, sorted_.below(targets, lows, counts), strict=True):
                found += [inside.select(other, NONE) for other in sorted_.line(at, target, taps, dilation[2])]
        made.finish(found, row, known, table, mask_records, mask_state, memory)

    return body


def search_memory(kernel_size: Sequence[int]) -> list[ir.Type]:
    """The workgroup memory of search_rows before that of its end."""
    return [shared(2 * math.prod(kernel_size[:2]))]


def line_words(taps: int) -> int:
    """Words of a row of lines."""
    return -(-taps // _LINE) * _LINE


def turn_over(sort: Sort, taps: int, lanes: int) -> Callable[..., None]:
    """Body(state, lines, table, rows, shared): the table of lines, 32 taps a workgroup along y; nothing if in order."""

    def body(state: V, lines: V, table: V, rows: V, memory: V) -> None:
        with if_(sort.unsorted(state)):
            start, first = times(block(), TURNED_ROWS), times(block("y"), _LINE)
            whole = (rows + (TILE_ROWS - 1)) & -TILE_ROWS
            for number in range(TURNED_ROWS * _LINE // lanes):
                item = plus(thread(), number * lanes)
                row, word = item // _LINE, item % _LINE
                with if_((plus(start, row) < whole) & (plus(first, word) < taps)):
                    at = plus(times(plus(start, row), line_words(taps)), first, word)
                    put(load(lines, at), memory, plus(times(row, _PITCH), word))
            barrier()
            for number in range(TURNED_ROWS * _LINE // lanes):
                item = plus(thread(), number * lanes)
                tap, row = item // TURNED_ROWS, item % TURNED_ROWS
                with if_((plus(start, row) < whole) & (plus(first, tap) < taps)):
                    tile = times(plus(start, row) // TILE_ROWS, taps * TILE_ROWS)
                    at = plus(tile, times(plus(first, tap), TILE_ROWS), row % TILE_ROWS)
                    store(get(memory, plus(times(row, _PITCH), tap)), table, at)

    return body


def turn_memory() -> list[ir.Type]:
    """The workgroup memory of turn_over."""
    return [shared(TURNED_ROWS * _PITCH)]


class SortedRecords:
    """The sorted records as the kernel sees them."""

    def __init__(self, records: V, half: V, rows: V, wave: int) -> None:
        self.records, self.half, self.rows, self.wave = records, half, rows, wave

    def record(self, place: V) -> V:
        return load(self.records, times(plus(self.half, place), 2), 2)

    def key(self, place: V) -> V:
        return load(self.records, times(plus(self.half, place), 2))

    def between(self, target: V) -> V:
        """How many keys are below each lane's target; targets do not descend from lane to lane."""
        low, high = self._together(_of_lane(target, 0, self.wave), _of_lane(target, self.wave - 1, self.wave))
        return self.below([target], [low], [high - low])[0]

    def below(self, targets: Sequence[V], lows: Sequence[V], counts: Sequence[V]) -> list[V]:
        """How many keys are below each target, which are between low and low + count of it."""
        size = len(targets)

        def condition(*state: V) -> tuple[V, list[V]]:
            left = state[size]
            for count in state[size + 1 :]:
                left = left | count
            return left.ne(0), list(state)

        def body(*state: V) -> list[V]:
            halves = [count >> 1 for count in state[size:]]
            middles = [plus(low, half) for low, half in zip(state[:size], halves, strict=True)]
            # Of several some have ended: with nothing left their middle may lie behind the last key.
            keys = [self.key(middle if size == 1 else middle.min(self.rows - 1)) for middle in middles]
            following, left = [], []
            for number, (half, middle, key) in enumerate(zip(halves, middles, keys, strict=True)):
                low, count = state[number], state[size + number]
                less = key.ult(targets[number])
                if size > 1:
                    less = less & count.ne(0)
                following.append(less.select(middle + 1, low))
                left.append(less.select(count - half - 1, half))
            return [*following, *left]

        return while_([*lows, *counts], condition, body)[:size]

    def put_ends(self, lines: int, target: Callable[[V, V], V], memory: V, lanes: int) -> None:
        """memory[2·line + late]: how many keys are below target(line, late), where late is 0 or 1; a barrier follows.

        All are looked for together by a workgroup, each by as many neighbouring lanes of a wave as there are for it.
        """
        each = -(-2 * lines // (lanes // self.wave))
        span, lane = self.wave // each, thread() % self.wave
        own = plus(times(thread() // self.wave, each), lane // span)
        # What is left over, of lanes and of groups, looks for anything.
        line = (own >> 1).umin(lines - 1)
        found = self._by_groups(target(line, (own & 1).ne(0)), span)
        with if_((lane % span).eq(0) & (lane // span).ult(each) & own.ult(2 * lines)):
            put(found, memory, own)

    def _by_groups(self, target: V, span: int) -> V:
        """`below` of a target that `span` neighbouring lanes share; a step leaves one of span + 1 parts."""
        lane = thread() % self.wave
        own, first = lane % span, lane // span * span

        def condition(low: V, count: V) -> tuple[V, list[V]]:
            # All lanes take part in a ballot as long as one has something left.
            return ballot(count > 0).ne(0), [low, count]

        def body(low: V, count: V) -> list[V]:
            part = (count + span) // (span + 1)
            probe = low + (own + 1) * part - 1
            less = (probe < low + count) & self.key(probe.max(0).min(self.rows - 1)).ult(target)
            parts = popcount((ballot(less) >> first.to(i64())) & ((1 << span) - 1)).to(i32())
            left = count - parts * part
            return [low + parts * part, parts.eq(span).select(left, (part - 1).min(left).max(0))]

        return while_([const(0, i32()), self.rows], condition, body)[0]

    def _together(self, first: V, last: V) -> tuple[V, V]:
        """`below` of two numbers that all lanes share; a step cuts what is left to one part of as many as lanes."""
        lane = thread() % self.wave

        def step(target: V, low: V, count: V) -> list[V]:
            span = (count + (self.wave - 1)) // self.wave
            probe = low + (lane + 1) * span - 1
            key = self.key(probe.max(0).min(self.rows - 1))
            parts = popcount(ballot((probe < low + count) & key.ult(target))).to(i32())
            left = count - parts * span
            return [low + parts * span, (span - 1).min(left).max(0)]

        def condition(*state: V) -> tuple[V, list[V]]:
            return (state[1] | state[3]).ne(0), list(state)

        def body(low: V, count: V, low2: V, count2: V) -> list[V]:
            return [*step(first, low, count), *step(last, low2, count2)]

        zero = const(0, i32())
        state = while_([zero, self.rows, zero, self.rows], condition, body)
        return state[0], state[2]

    def line(self, begin: V, target: V, taps: int, step: int) -> list[V]:
        """Rows of the keys target, target + step, …; begin: how many keys are below the first."""
        window = min((taps - 1) * step + 1, _MAX_WINDOW)
        places = [plus(begin, number) for number in range(window)]
        seen = [self.record(place.min(self.rows - 1)) for place in places]
        there = [place < self.rows for place in places]
        found = []
        for tap in range(taps):
            wanted, row = target + tap * step, const(NONE, i32())
            # The lowest place counts: it is looked at last. Without repeated keys it is among the first so many.
            for number in reversed(range(window)):
                match = there[number] & seen[number].lane(0).eq(wanted)
                row = match.select(seen[number].lane(1).to(i32()), row)
            found.append(row)
        if taps == 1:
            return found
        last = target + (taps - 1) * step
        # Repeated keys and dilation can push neighbours out of the window.
        short = there[-1] & seen[-1].lane(0).ult(last)
        return if_else(short, lambda: self._far(begin, target, taps, step), lambda: found)

    def _far(self, begin: V, target: V, taps: int, step: int) -> list[V]:
        found, place = [], begin
        for tap in range(taps):
            wanted = target + tap * step
            (place,) = self.below([wanted], [place], [self.rows - place])
            record = self.record(place.min(self.rows - 1))
            match = (place < self.rows) & record.lane(0).eq(wanted)
            found.append(match.select(record.lane(1).to(i32()), NONE))
        return found


def _of_lane(value: V, lane: int, wave: int) -> V:
    """from_lane for keys of either width."""
    if bits(value.type) == 32:
        return from_lane(value, lane, wave)
    low, high = from_lane(value.to(i32()), lane, wave), from_lane((value >> 32).to(i32()), lane, wave)
    return low.to(i64()) | high.to(i64()) << 32
