"""Rows grouped by the taps that they have, for the gemm that owns its output rows (output_stationary.py).

A row's mask says which taps have a neighbour. Rows of one block should have like masks, since all of them pay for
every tap that one of them has. The rows are sorted (radix_sort.py) by `row_keys`: a number of 24 bits, by its place in
a Gray code, so that rows which follow one another differ in little. Its high bits say whether a row has any tap below
and above along the first axis, then whether it has any in each column along that axis, columns at corners first; the
others are taps, near ones high. A column of three needs no bit for its tap below: the others and the sides all but
tell it. Then `arrange` makes, for every block of 256 sorted rows, the table in their order, and the steps that the
gemm takes: the taps that any of them has, ascending, each with the tiles of 16 rows that have it.

Buffers: row_order i32 [blocks · 256], the row at each place, −1 behind the last; sorted_table i32 [tiles][taps][16],
the neighbour table in that order; steps i32 [blocks][taps], tap | tiles << 16, zeros behind the last; step_count i32
[blocks].

The table comes by tiles, as dense_grid.py says, and then `row_keys` and `make_records` begin the sort; or by rows, and
whoever made it has begun the sort already (row_table.py).

Where matrix instructions take 64 rows, tiles of 16 matter little: the upper 16 bits of the keys do, which takes two
passes in place of three.

How many taps tiles and blocks of real frames have is in docs/schedules.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from spconv_compiler.passes.gpu.dense_grid import NONE, TILE_ROWS
from spconv_compiler.passes.gpu.lanes import (
    ballot,
    barrier,
    block,
    get,
    load,
    plus,
    put,
    scan_workgroup,
    store,
    thread,
    times,
)
from spconv_compiler.passes.gpu.local import of_wave
from spconv_compiler.passes.gpu.radix_sort import DIGIT_BITS, Sort
from spconv_compiler.passes.kernel_builder import V, const, for_, i32, i64, if_, if_else
from spconv_compiler.targets import GpuTarget

BLOCK_ROWS = 256
KEY_BITS = 24
# Of those: for the two sides along the first axis, for columns along it, and for the centre.
_SIDES, _COLUMNS, _CENTRE = 2, 8, 1
_DETAIL = KEY_BITS - _SIDES - _COLUMNS
# Taps of a column up to which all but its lowest tell that one.
_SHORT = 3
# Far taps that go without a bit of their own; where there are more, taps share bits.
_SPARE = 5
_MAX_BATCH = 9
# Words of a run, which a lane reads at once, and runs in flight.
_RUN, _RUNS = 4, 8
# A step: the tap below, a bit for each tile of the block above.
TAP_MASK = 0xFFFF
FIRST_TILE_BIT = 16


def sort_of(items: int, target: GpuTarget) -> Sort:
    """The sort of masks: of as many bits as pay."""
    return Sort(32, items, target.wave, digits=3 if target.mma else 2)


def limit(sort: Sort) -> int:
    """The greatest key."""
    return int(2 ** min(KEY_BITS, sort.passes * DIGIT_BITS) - 1)


def key_of(mask: V, sort: Sort) -> V:
    """The key of a row whose taps have these bits."""
    return gray_rank(mask) >> max(0, KEY_BITS - sort.passes * DIGIT_BITS)


def key_bits(kernel_size: Sequence[int]) -> list[int]:
    """The bits of a key that each tap sets, as a word."""
    taps = list(itertools.product(*(range(-(size // 2), size - size // 2) for size in kernel_size)))
    columns = sorted({(0, *tap[1:]) for tap in taps if any(tap[1:])})
    short = kernel_size[0] <= _SHORT
    told = [tap for tap in taps if any(tap) and not (short and tap[0] < 0 and any(tap[1:]))]
    # The centre comes last: where a coordinate set is its own output, all rows have it.
    own = {(0, 0, 0): 1, **{tap: bit << _CENTRE for tap, bit in _near_first(told, _DETAIL - _CENTRE).items()}}
    column = {tap: 1 << rank for tap, rank in _ranks(columns, _COLUMNS).items()}
    words = []
    for tap in taps:
        word = own.get(tap, 0)
        if any(tap[1:]):
            word |= column[(0, *tap[1:])] << _DETAIL
        if tap[0]:
            word |= (2 if tap[0] < 0 else 1) << _DETAIL + _COLUMNS
        words.append(word)
    return words


def _ranks(offsets: Sequence[tuple[int, ...]], places: int) -> dict[tuple[int, ...], int]:
    """A place for each offset, far ones behind near ones; several share one where there are too many."""
    ranked = sorted(offsets, key=_distance)
    return {offset: rank * min(places, len(ranked)) // len(ranked) for rank, offset in enumerate(ranked)}


def _near_first(offsets: Sequence[tuple[int, ...]], bits: int) -> dict[tuple[int, ...], int]:
    """A bit for each offset, near ones high; the farthest have none if those are few."""
    if 0 < len(offsets) - bits <= _SPARE:
        offsets = sorted(offsets, key=_distance)[:bits]
    return {offset: 1 << bits - 1 - place for offset, place in _ranks(offsets, bits).items()}


def _distance(offset: tuple[int, ...]) -> tuple[int, bool]:
    """Near taps before far ones; of those as near, the ones whose column has no bit, the centre's."""
    return sum(map(abs, offset)), any(offset[1:])


def row_keys(kernel_size: Sequence[int], sort: Sort, lanes: int) -> Callable[..., None]:
    """Body(table, keys, state, rows): the key of every row, a lane each, and zeros in the sort's state.

    The grid is as large as both together.
    """
    words = key_bits(kernel_size)

    def body(table: V, keys: V, state: V, rows: V) -> None:
        sort.clear(lanes)(state, rows, const(limit(sort), i32()))
        row = plus(times(block(), lanes), thread())
        with if_(row < rows):
            first = plus(times(row // TILE_ROWS, len(words) * TILE_ROWS), row % TILE_ROWS)
            mask = const(0, i32())
            for tap, word in enumerate(words):
                neighbour = load(table, plus(first, tap * TILE_ROWS))
                mask = mask | (neighbour >= 0).select(const(word, i32()), 0)
            store(key_of(mask, sort), keys, row)

    return body


def make_records(sort: Sort) -> Callable[..., None]:
    """Body(keys, records, state, rows, shared): what the sort begins with."""
    make = sort.make_records(lambda keys, row, limit: load(keys, row))

    def body(keys: V, records: V, state: V, rows: V, counts: V) -> None:
        make(keys, records, state, rows, const(limit(sort), i32()), counts)

    return body


def gray_rank(code: V) -> V:
    """Where a Gray code stands in the sequence of all of them: bit i is the parity of the bits from i on."""
    for shift in (1, 2, 4, 8, 16):
        code = code ^ (code >> shift)
    return code


def arrange(taps: int, sort: Sort, row_words: int = 0) -> Callable[..., None]:
    """Body(table, records, state, order, sorted_table, steps, step_count, rows, tiles, totals).

    A workgroup is a block of rows, a lane a row. tiles, totals: shared i32, of shared_words(taps, wave). row_words: the
    words of a row, in whole runs of 4, of a table by rows; 0: it comes by tiles.
    """
    wave, waves = sort.wave, BLOCK_ROWS // sort.wave

    def body(
        table: V,
        records: V,
        state: V,
        order: V,
        sorted_table: V,
        steps: V,
        step_count: V,
        rows: V,
        tiles: V,
        totals: V,
    ) -> None:
        number, lane = block(), thread()
        place = plus(times(number, BLOCK_ROWS), lane)
        half = sort.final_half(state, const(limit(sort), i32()), rows)
        row = _row_at(records, plus(half, place), place < rows)
        store(row, order, place)
        target = plus(times(place // TILE_ROWS, taps * TILE_ROWS), lane % TILE_ROWS)
        own = lane // wave

        def put_tap(tap: V | int, neighbour: V) -> None:
            found = (row >= 0).select(neighbour, NONE)
            at = tap if isinstance(tap, V) else const(tap, i32())
            store(found, sorted_table, plus(target, times(at, TILE_ROWS)))
            present = ballot(found >= 0)
            with if_((lane % wave).eq(0)):
                put(_tiles_of(present, wave), tiles, plus(times(at, waves), own))

        # A place without a row reads the table's first row and drops what it finds.
        if row_words:
            _by_rows(table, times(row.max(0), row_words), taps, put_tap)
        else:
            _by_tiles(table, row.max(0), taps, put_tap)
        barrier()
        _list(taps, waves, wave, number, lane, steps, step_count, tiles, totals)

    return body


def _by_rows(table: V, first: V, taps: int, put_tap: Callable[[int, V], None]) -> None:
    """From a row that begins at `first`; loads of several runs are in flight at once."""
    for start in range(0, taps, _RUNS * _RUN):
        numbers = range(start, min(taps, start + _RUNS * _RUN))
        runs = [load(table, plus(first, at), _RUN) for at in range(numbers.start, numbers.stop, _RUN)]
        for tap in numbers:
            put_tap(tap, runs[(tap - start) // _RUN].lane(tap % _RUN))


def _by_tiles(table: V, row: V, taps: int, put_tap: Callable[[V, V], None]) -> None:
    source = plus(times(row // TILE_ROWS, taps * TILE_ROWS), row % TILE_ROWS)
    # Loads of several taps are in flight at once.
    batch = max(size for size in range(1, _MAX_BATCH + 1) if taps % size == 0)
    with for_(0, const(taps, i32()), batch, unroll=False) as each:
        numbers = [plus(each.iv, tap) for tap in range(batch)]
        neighbours = [load(table, plus(source, times(number, TILE_ROWS))) for number in numbers]
        for number, neighbour in zip(numbers, neighbours, strict=True):
            put_tap(number, neighbour)


def _row_at(records: V, place: V, known: V) -> V:
    """The row of the sorted record at a place, −1 where there is none."""
    return if_else(known, lambda: [load(records, plus(times(place, 2), 1))], lambda: [const(NONE, i32())])[0]


def shared_words(taps: int, wave: int) -> tuple[int, int]:
    """Elements of the two shared buffers of `arrange`."""
    waves = BLOCK_ROWS // wave
    return taps * waves, waves


def _tiles_of(present: V, wave: int) -> V:
    """Bit t: a lane of tile t of this wave is present."""
    bits = const(0, i32())
    for tile in range(wave // TILE_ROWS):
        rows = (present >> (tile * TILE_ROWS)) & ((1 << TILE_ROWS) - 1)
        bits = bits | (rows.ne(const(0, i64())).select(const(1 << tile, i32()), 0))
    return bits


def _list(
    taps: int, waves: int, wave: int, number: V, lane: V, steps: V, step_count: V, tiles: V, totals: V
) -> None:
    """Writes the steps of the block: present taps in order, then zeros."""
    per_wave = wave // TILE_ROWS
    first, before = times(number, taps), const(0, i32())
    found = []
    for start in range(0, taps, BLOCK_ROWS):
        tap = plus(lane, start)
        (mask,) = if_else(tap < taps, lambda tap=tap: [_gather(tiles, tap, waves, per_wave)], lambda: [const(0, i32())])  # type: ignore[misc]
        has = mask.ne(0).select(const(1, i32()), 0)
        inclusive = before + scan_workgroup(has, totals, wave, waves)
        barrier()
        with if_(lane.eq(BLOCK_ROWS - 1)):
            put(inclusive, totals, const(0, i32()))
        barrier()
        before = of_wave(get(totals, const(0, i32())))
        if start + BLOCK_ROWS < taps:
            barrier()
        found.append((tap, mask, has, inclusive))
    for tap, mask, has, inclusive in found:
        with if_(tap < taps):
            at = has.ne(0).select(inclusive - 1, before + tap - inclusive)
            store(has.ne(0).select(tap | (mask << FIRST_TILE_BIT), 0), steps, plus(first, at))
    with if_(lane.eq(0)):
        store(before, step_count, number)


def _gather(tiles: V, tap: V, waves: int, per_wave: int) -> V:
    """The tiles of the block that have a tap, put together from those of its waves."""
    mask = const(0, i32())
    for other in range(waves):
        mask = mask | (get(tiles, plus(times(tap, waves), other)) << (other * per_wave))
    return mask
