"""The voxels of several coordinate levels as bits, with their ranks: kernels that serve all levels in one launch each.

A level is a bit for every cell of its box, and beside each word of 32 bits the number of set bits before it. That is
the level's sorted set: the rank of a voxel is one load and a count of bits, and where a level is made, its rows are in
this order. Rows of level 0, which come in any order, are found by `rows_of_ranks`. The outputs of a run of voxels along
an axis are a run (level_options.is_gapless), so every voxel of level 0 marks what it reaches in all levels at once.

marks i32, for each level: the state of the scan (device_scan.py), then pairs (bits, rank), in whole tiles; places is
that of level_options.py. level_rows i32 [rows of all made levels][4], in batch −1 what is left over; counts
i32 [levels][2], of made levels: the rows that are there, and that would be with room for all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from spconv_compiler import level_options as lo
from spconv_compiler.geometry import ConvGeometry
from spconv_compiler.level_options import LANES, WORD_CELLS, WORDS_A_LANE, LevelOptions
from spconv_compiler.passes.gpu.device_scan import sum_before, take_tile
from spconv_compiler.passes.gpu.lanes import (
    Part,
    atomic,
    block,
    concatenate,
    from_lane,
    load,
    plus,
    popcount,
    store,
    thread,
    times,
)
from spconv_compiler.passes.gpu.output_cells import write_cells
from spconv_compiler.passes.kernel_builder import V, const, for_, i32, if_, vec

_FILL_STORES = 4
FILL_WORDS = LANES * 4 * _FILL_STORES


@dataclasses.dataclass(frozen=True)
class Level:
    """What places say of a level, the same in all lanes; see level_options.py."""

    low: list[V]
    extent: list[V]
    batches: V
    capacity: V
    marks: V
    pairs: V
    first_tile: V
    tiles: V
    first_row: V
    origin: list[V]

    @staticmethod
    def of(places: V, number: V | int, wave: int) -> Level:
        words = read_words(places, number, 0, lo.LEVEL_WORDS, wave)
        low, extent, origin = (words[first : first + 3] for first in (lo.LOW, lo.EXTENT, lo.ORIGIN))
        batches, capacity, marks, pairs, first_tile, tiles, first_row = words[lo.BATCHES : lo.FIRST_ROW + 1]
        return Level(low, extent, batches, capacity, marks, pairs, first_tile, tiles, first_row, origin)

    def inside(self, batch: V, place: Sequence[V]) -> tuple[V, V]:
        """(whether a place, counted from the low corner, is in the box, its cell)."""
        known, cell = batch.ult(self.batches), batch
        for coordinate, size in zip(place, self.extent, strict=True):
            known, cell = known & coordinate.ult(size), cell * size + coordinate
        return known, cell

    def relative(self, columns: V) -> tuple[V, list[V]]:
        """(batch, place above the low corner) of a row of coordinates."""
        return columns.lane(0), [columns.lane(axis + 1) - self.low[axis] for axis in range(3)]

    def pair(self, marks: V, cell: V) -> V:
        """(bits, rank) of a cell's word."""
        return load(marks, self.pairs + (cell // WORD_CELLS) * 2, 2)


def read_words(places: V, number: V | int, first: int, count: int, wave: int) -> list[V]:
    """`count` words, a multiple of 4, at `first` + number · count; the same in all lanes."""
    at = plus(times(const(number, i32()) if isinstance(number, int) else number, count), first)
    found = [load(places, plus(at, four), 4) for four in range(0, count, 4)]
    return [from_lane(words.lane(lane), 0, wave) for words in found for lane in range(4)]


def rank_of(pair: V, cell: V) -> tuple[V, V]:
    """(whether the cell is marked, how many marked cells come before it)."""
    bit = cell % WORD_CELLS
    bits = pair.lane(0)
    below = bits & ((const(1, i32()) << bit) - 1)
    return ((bits >> bit) & 1).ne(0), pair.lane(1) + popcount(below)


def clear(levels: int, sort_words: int, wave: int) -> Callable[..., None]:
    """Body(marks, perm, level_rows, state, places, rows, mark_words, map_rows).

    Zeros in marks and state, which has map_rows + sort_words; no row in perm; rows of batch −1.
    """
    zero, none = 0, -1

    def body(
        marks: V, perm: V, level_rows: V, state: V, places: V, rows: V, mark_words: V, map_rows: V
    ) -> None:
        number = block()
        last = Level.of(places, levels - 1, wave)
        made = times(plus(last.first_row, last.capacity), 4) if levels > 1 else const(0, i32())
        parts = (
            (marks, zero, mark_words),
            (perm, none, plus(rows, 1)),
            (level_rows, none, made),
            (state, zero, plus(map_rows, sort_words)),
        )
        first = const(0, i32())
        for buffer, value, words in parts:
            blocks = plus(words, FILL_WORDS - 1) // FILL_WORDS
            with if_((number >= first) & (number < first + blocks)):
                start = plus(times(number - first, FILL_WORDS), times(thread(), 4))
                for turn in range(_FILL_STORES):
                    at = plus(start, turn * LANES * 4)
                    with if_(at.ult(words)):
                        store(const(value, vec(4, i32())), buffer, at)
            first = first + blocks

    return body


def mark(options: LevelOptions, wave: int) -> Callable[..., None]:
    """Body(coords, marks, places, rows): a lane per given row marks its own cell and what it reaches in all levels."""

    def body(coords: V, marks: V, places: V, rows: V) -> None:
        row = plus(times(block(), LANES), thread())
        with if_(row < rows):
            levels = [Level.of(places, number, wave) for number in range(len(options.levels) + 1)]
            batch, place = levels[0].relative(load(coords, times(row, 4), 4))
            known, _ = levels[0].inside(batch, place)
            spans = [[(coordinate, coordinate + 1) for coordinate in place]]
            for made, level in zip(options.levels, levels[1:], strict=True):
                spans.append([_span(made.geometry, axis, spans[made.parent][axis], level) for axis in range(3)])
            with if_(known):
                for level, span in zip(levels, spans, strict=True):
                    _mark_box(marks, level, batch, span)

    return body


def _span(geometry: ConvGeometry, axis: int, run: tuple[V, V], level: Level) -> tuple[V, V]:
    """The outputs [first, end) along an axis of the voxels [first, end); empty if either is."""
    kernel, stride = geometry.kernel_size[axis], geometry.stride[axis]
    first, end = run
    origin = level.origin[axis]
    last = end - 1 + origin
    # From the least output whose last tap reaches `first` to the greatest whose first tap reaches `last`.
    least = (first + origin - kernel + stride).max(0) // stride
    above = (last.max(0) // stride + 1).min(level.extent[axis])
    there = (first < end) & (last >= 0) & (least < above)
    return least, there.select(above, least)


def _mark_box(marks: V, level: Level, batch: V, span: Sequence[tuple[V, V]]) -> None:
    extent_z, extent_y, extent_x = level.extent
    plane = batch * extent_z
    (first_z, end_z), (first_y, end_y), (first_x, end_x) = span
    with for_(first_z, end_z, 1, unroll=False) as z, for_(first_y, end_y, 1, unroll=False) as y:
        line = ((plane + z.iv) * extent_y + y.iv) * extent_x
        with for_(first_x, end_x, 1, unroll=False) as x:
            cell = line + x.iv
            atomic("or", const(1, i32()) << (cell % WORD_CELLS), marks, level.pairs + (cell // WORD_CELLS) * 2)


def rank(levels: int, wave: int) -> Callable[..., None]:
    """Body(marks, level_rows, counts, places, *scan_shared): ranks beside all bits; rows and numbers of made levels.

    A workgroup a tile of one level; its grid may be larger.
    """

    def body(marks: V, level_rows: V, counts: V, places: V, totals: V, ticket: V, sum_: V) -> None:
        number, zero = block(), const(0, i32())
        which = zero
        for other in range(1, levels):
            begins = from_lane(load(places, const(other * lo.LEVEL_WORDS + lo.FIRST_TILE, i32())), 0, wave)
            which = which + (number >= begins).select(const(1, i32()), 0)
        level = Level.of(places, which, wave)
        with if_(number - level.first_tile < level.tiles):
            state = Part(marks, level.marks)
            tile = take_tile(state, zero, ticket, wave)
            first = plus(times(tile, lo.TILE_WORDS), times(thread(), WORDS_A_LANE))
            pairs = Part(marks, level.pairs)
            # Only counted here: tiles are large, so that their latency counts little, and few lanes need words again.
            own = zero
            for half in range(WORDS_A_LANE // 2):
                two = load(pairs, plus(times(first, 2), half * 4), 4)
                own = own + popcount(two.lane(0)) + popcount(two.lane(2))
            start = sum_before(state, tile, own, totals, sum_, LANES, wave)
            with if_(which.ne(0) & tile.eq(level.tiles - 1) & thread().eq(LANES - 1)):
                store((start + own).min(level.capacity), counts, times(which, 2))
                store(start + own, counts, plus(times(which, 2), 1))
            rows, box = Part(level_rows, times(level.first_row, 4)), (*level.low, *level.extent)
            # Ranks are asked for where a cell is marked, and most words of a large box have no marks.
            with if_(own.ne(0)), for_(0, const(WORDS_A_LANE // 2, i32()), init=[start], unroll=False) as each:
                (rank,) = each.args
                at = plus(times(first, 2), times(each.iv, 4))
                two = load(pairs, at, 4)
                bits, following = (two.lane(0), two.lane(2)), rank + popcount(two.lane(0))
                store(concatenate([bits[0], rank, bits[1], following]), pairs, at)
                with if_(which.ne(0)):
                    for word, before in enumerate((rank, following)):
                        cell = times(plus(first, times(each.iv, 2), word), WORD_CELLS)
                        write_cells(rows, before, level.capacity, bits[word], cell, box)
                each.yields(following + popcount(bits[1]))

    return body


def rows_of_ranks(wave: int) -> Callable[..., None]:
    """Body(coords, marks, perm, places, rows): perm[rank] = the lowest given row with that voxel."""

    def body(coords: V, marks: V, perm: V, places: V, rows: V) -> None:
        row = plus(times(block(), LANES), thread())
        with if_(row < rows):
            level = Level.of(places, 0, wave)
            batch, place = level.relative(load(coords, times(row, 4), 4))
            known, cell = level.inside(batch, place)
            with if_(known):
                _, before = rank_of(level.pair(marks, cell), cell)
                atomic("umin", row, perm, before)

    return body
