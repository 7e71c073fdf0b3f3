"""Neighbour tables of several maps, and their rows sorted by masks: kernels that serve all maps in one launch each.

A lane looks up all taps of one output row in the marks of the level that is read (level_marks.py), so that it knows the
row's mask, and writes the record that the sort begins with (row_masks.py). Passes of the sort and `arrange` are those
of one map, each workgroup on its map's part of the buffers: records i32 [rows of all maps][4], tables by rows as in
row_table.py [rows][words of a row of most taps], and so on; state i32 in parts of MAP_STATE.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence

from spconv_compiler import level_options as lo
from spconv_compiler.bindings import ir
from spconv_compiler.level_options import LANES, LevelMap, LevelOptions
from spconv_compiler.passes.gpu import row_masks
from spconv_compiler.passes.gpu.dense_grid import NONE
from spconv_compiler.passes.gpu.lanes import (
    Part,
    barrier,
    block,
    concatenate,
    from_lane,
    load,
    numbered,
    plus,
    shared,
    store,
    thread,
    times,
)
from spconv_compiler.passes.gpu.level_marks import Level, rank_of, read_words
from spconv_compiler.passes.gpu.radix_sort import Sort
from spconv_compiler.passes.gpu.row_table import RUN, row_words
from spconv_compiler.passes.kernel_builder import V, const, i32, if_
from spconv_compiler.passes.reach import Reach
from spconv_compiler.targets import GpuTarget

# Neighbours that a lane looks up at once.
_BATCH = 2 * RUN


def sort_of(target: GpuTarget) -> Sort:
    """The sort of masks."""
    return row_masks.sort_of(lo.SORT_ITEMS, target)


def table_words(options: LevelOptions) -> int:
    """Words of the tables for each row."""
    return row_words(options.most_taps)


def sort_words(maps: int) -> int:
    """Words of the state of all sorts beside one for each row (ROW_UNIT rows take up to 4 passes of 256 words)."""
    return maps * lo.SORT_WORDS


@dataclasses.dataclass(frozen=True)
class MapPlace:
    """What places say of a map, the same in all lanes; see level_options.py."""

    number: V
    first_row: V
    rows: V
    state: V
    origin: list[V]

    @staticmethod
    def at(options: LevelOptions, places: V, row: V, wave: int) -> MapPlace:
        """The map that has `row` among the rows of all maps."""
        start, number = (len(options.levels) + 1) * lo.LEVEL_WORDS, const(0, i32())
        for other in range(1, len(options.maps)):
            begins = load(places, const(start + other * lo.MAP_WORDS + lo.MAP_ROW, i32()))
            number = number + (row >= from_lane(begins, 0, wave)).select(const(1, i32()), 0)
        words = read_words(places, number, start, lo.MAP_WORDS, wave)
        first_row, rows, state, *origin = words[: lo.MAP_ORIGIN + 3]
        return MapPlace(number, first_row, rows, state, origin)

    def is_one_of(self, options: LevelOptions, wanted: Callable[[LevelMap], bool]) -> V:
        """i1: whether it is a map of which `wanted` holds; it holds for at least one."""
        return functools.reduce(
            operator.or_, (self.number.eq(at) for at, item in enumerate(options.maps) if wanted(item))
        )


def look_up(options: LevelOptions, sort: Sort) -> Callable[..., None]:
    """Body(coords, level_rows, marks, perm, places, table, records, state, shared), Sort.make_workgroup."""
    wave = sort.wave
    kinds = sorted(set(options.maps), key=options.maps.index)

    def body(
        coords: V, level_rows: V, marks: V, perm: V, places: V, table: V, records: V, state: V, digits: V
    ) -> None:
        first = times(block(), LANES)
        map_ = MapPlace.at(options, places, first, wave)
        row = plus(first - map_.first_row, thread())
        sort.clear_counts(digits)
        barrier()
        with if_(row < map_.rows):
            for kind in kinds:
                with if_(map_.is_one_of(options, kind.__eq__)):
                    lines = Part(table, times(map_.first_row, table_words(options)))
                    finder = _Finder(kind, (coords, level_rows, marks, perm, places), map_.origin, wave)
                    key = row_masks.key_of(finder.fill(lines, row), sort)
                    _record(key, row, Part(records, times(map_.first_row, 4)), digits, sort)
        barrier()
        own = Part(state, map_.state)
        sort.add_counts(own, digits)
        with if_(row.eq(0)):
            # Masks are never in order.
            sort.out_of_order(own)

    return body


def _record(key: V, row: V, records: V, digits: V, sort: Sort) -> None:
    sort.record(key, row, records, digits, const(row_masks.limit(sort), i32()))


class _Finder:
    """Looks up the taps of one row of a kind of map."""

    def __init__(self, kind: LevelMap, buffers: Sequence[V], origin: list[V], wave: int) -> None:
        geometry = kind.geometry
        axes = (geometry.kernel_size, geometry.stride, geometry.padding, geometry.dilation)
        self.kind, self.origin = kind, origin
        self.reach = Reach.of(*axes, transposed=geometry.transposed)
        coords, level_rows, self.marks, self.perm, places = buffers
        self.read = Level.of(places, kind.reads, wave)
        self.written = Level.of(places, kind.writes, wave)
        self.rows = Part(level_rows, times(self.written.first_row, 4)) if kind.writes else coords

    def fill(self, table: V, row: V) -> V:
        """Writes a row of the table; the bits of the taps that it has."""
        taps = list(itertools.product(*map(range, self.reach.kernel_size)))
        # Rows that are left over lie in no batch.
        batch, place = self.written.relative(load(self.rows, times(row, 4), 4))
        there, _ = self.written.inside(batch, place)
        words = row_masks.key_bits(self.reach.kernel_size)
        line, mask = times(row, row_words(len(taps))), const(0, i32())
        for first in range(0, len(taps), _BATCH):
            found = self._neighbours(taps[first : first + _BATCH], there, batch, place)
            for word, neighbour in zip(words[first:], found, strict=False):
                mask = mask | (neighbour >= 0).select(const(word, i32()), 0)
            found += [const(NONE, i32())] * (-len(found) % RUN)
            for run in range(0, len(found), RUN):
                store(concatenate(found[run : run + RUN]), table, plus(line, first + run))
        return mask

    def _neighbours(self, taps: Sequence[tuple[int, ...]], there: V, batch: V, place: Sequence[V]) -> list[V]:
        """The rows of the read level that a place meets; all loads in flight."""
        cells, pairs = [], []
        for tap in taps:
            known, met = there, []
            for axis in range(3):
                fits, coordinate = self._met(axis, place[axis], tap[axis])
                known = known & fits
                met.append(coordinate)
            within, cell = self.read.inside(batch, met)
            known = known & within
            cell = known.select(cell, 0)
            cells.append((known, cell))
            pairs.append(self.read.pair(self.marks, cell))
        ranks = []
        for (known, cell), pair in zip(cells, pairs, strict=True):
            marked, before = rank_of(pair, cell)
            # A level with more voxels than there is room for has no rows for the last of them.
            ranks.append((known & marked & before.ult(self.read.capacity), before))
        if self.kind.reads == 0:
            rows = [load(self.perm, known.select(before, 0)) for known, before in ranks]
        else:
            rows = [before for _, before in ranks]
        return [known.select(row, NONE) for (known, _), row in zip(ranks, rows, strict=True)]

    def _met(self, axis: int, place: V, tap: int) -> tuple[V, V]:
        """(whether there is one, its place) of the voxel along an axis that `place` reads through a tap."""
        _, stride, _, dilation = self.reach.on(axis)
        always = const(1, ir.IntegerType.get_signless(1))
        if not self.reach.transposed:
            return always, place * stride - self.origin[axis] + tap * dilation
        distance = place + self.origin[axis] - tap * dilation
        if stride == 1:
            return always, distance
        coarse = distance // stride
        return (distance >= 0) & (coarse * stride).eq(distance), coarse


def digit_pass(options: LevelOptions, sort: Sort) -> Callable[..., None]:
    """Body(records, state, places, shared…): the next pass of every map's sort."""
    one, wave = sort.digit_pass(), sort.wave

    def body(records: V, state: V, places: V, *memory: V) -> None:
        first = times(block(), lo.ROW_UNIT)
        map_ = MapPlace.at(options, places, first, wave)
        with if_(first - map_.first_row < map_.rows):
            one(Part(records, times(map_.first_row, 4)), Part(state, map_.state), map_.rows, *memory)

    return body


def arrange_shared(options: LevelOptions, wave: int) -> list[ir.Type]:
    """The workgroup memory of arrange."""
    return [shared(size) for size in row_masks.shared_words(options.most_taps, wave)]


def arrange(options: LevelOptions, sort: Sort) -> Callable[..., None]:
    """Body(table, records, state, places, order, sorted_table, steps, step_count, shared…), as row_masks.arrange."""
    wave = sort.wave

    def body(table: V, records: V, state: V, places: V, *rest: V) -> None:
        order, sorted_table, steps, step_count, *memory = rest
        map_, most = MapPlace.at(options, places, times(block(), LANES), wave), options.most_taps
        base, blocks = map_.first_row, map_.first_row // row_masks.BLOCK_ROWS
        parts = [
            Part(table, times(base, table_words(options))),
            Part(records, times(base, 4)),
            Part(state, map_.state),
            Part(order, base),
            Part(sorted_table, times(base, most)),
            Part(steps, times(blocks, most)),
            Part(step_count, blocks),
        ]
        own = block() - blocks
        for taps in sorted({taps_of(item) for item in options.maps}):
            chosen = map_.is_one_of(options, lambda item, taps=taps: taps_of(item) == taps)  # type: ignore[misc]
            # What is laid out beyond a map's last block has no rows.
            with if_(chosen & (times(own, LANES) < map_.rows)), numbered(own):
                row_masks.arrange(taps, sort, row_words(taps))(*parts, map_.rows, *memory)

    return body


def taps_of(item: LevelMap) -> int:
    """Taps of a map."""
    return math.prod(item.geometry.kernel_size)
