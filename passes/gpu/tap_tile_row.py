"""Compaction of a neighbour table into pairs ordered (tap, tile of 16 rows, row): the order of `nonzero()`.

One launch, which reads the table once. What builds the table counts the pairs of each tap (count_taps), so that every
workgroup knows where its tap begins; it takes one tap and a chunk of rows, ranks what is there, and learns from the
chunks before it, by look-back (device_scan.py), how many pairs of its tap precede its own. Each tap's pairs are filled
up to whole gemm tiles of `tile_m` pairs with input row 0, output row −1.

Buffers: tap_count i32 [taps], pairs; state i32, zero before the launch: the ticket, then a word for each chunk of each
tap; tap_tile i32 [taps + 1], gemm tiles before a tap, the last one being their number; tile_tap i32 [gemm tiles], the
tap of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spconv_compiler.bindings import ir
from spconv_compiler.passes.gpu.dense_grid import NONE, TILE_ROWS
from spconv_compiler.passes.gpu.device_scan import look_back_wave, take_tile
from spconv_compiler.passes.gpu.lanes import (
    atomic,
    ballot,
    barrier,
    block,
    from_lane,
    get,
    load,
    plus,
    popcount,
    put,
    scan_wave,
    shared,
    store,
    thread,
    times,
)
from spconv_compiler.passes.kernel_builder import V, const, for_, i32, i64, if_, if_else, vec

LANES = 256
# Rows that a lane looks at, all loads in flight at once.
_ITEMS = 16
CHUNK = LANES * _ITEMS


def chunks(chiplets: int) -> str:
    """Chunks of rows, a text for plan.size_map: so many that a chunk's taps share a chiplet, some of them empty."""
    return f"((rows ceildiv {CHUNK}) ceildiv {chiplets}) * {chiplets}"


def state_words(taps: int, chiplets: int) -> str:
    """Words of state, in whole groups of 4."""
    return f"(({chunks(chiplets)}) * {taps} + 4) floordiv 4 * 4"


def clear(taps: int, chiplets: int) -> Callable[..., None]:
    """clear(at, tap_count, state, rows): one lane's four words of each; tap_count may be None."""

    def words(at: V, tap_count: V | None, state: V, rows: V) -> None:
        zero = const(0, vec(4, i32()))
        with if_(at < plus(times(_chunks(rows, chiplets), taps), 4) // 4 * 4):
            store(zero, state, at)
        if tap_count is not None:
            with if_(at < count_words(taps)):
                store(zero, tap_count, at)

    return words


def clear_state(taps: int, lanes: int, chiplets: int) -> Callable[..., None]:
    """Body(state, rows): zeros, four words a lane."""

    def body(state: V, rows: V) -> None:
        clear(taps, chiplets)(times(plus(times(block(), lanes), thread()), 4), None, state, rows)

    return body


def _chunks(rows: V, chiplets: int) -> V:
    return plus(rows, CHUNK * chiplets - 1) // (CHUNK * chiplets) * chiplets


def count_words(taps: int) -> int:
    """Words of tap_count, in whole groups of 4; those beyond the taps stay zero."""
    return -(-taps // 4) * 4


def count_memory(taps: int, lanes: int, wave: int) -> ir.Type:
    """The workgroup memory of count_taps."""
    return shared(taps * (lanes // wave))


def count_taps(wave: int, waves: int) -> Callable[..., None]:
    """count(found, first, tap_count, memory): found[t] of every lane is a row, or none, of tap first + t.

    Adds up what a workgroup has found, in tap_count.
    """

    def count(found: Sequence[V], first: V, tap_count: V, memory: V) -> None:
        lane, number = thread() % wave, thread() // wave
        for tap, neighbour in enumerate(found):
            present = popcount(ballot(neighbour >= 0)).to(i32())
            with if_(lane.eq(0)):
                put(present, memory, plus(times(number, len(found)), tap))
        barrier()
        with if_(thread() < len(found)):
            total = get(memory, thread())
            for other in range(1, waves):
                total = total + get(memory, plus(thread(), other * len(found)))
            with if_(total.ne(0)):
                atomic("add", total, tap_count, plus(first, thread()))

    return count


def compact(taps: int, tile_m: int, wave: int, chiplets: int) -> Callable[..., None]:
    """Body(table, tap_count, state, tap_tile, in_rows, out_rows, tile_tap, rows, shared…)."""
    waves = LANES // wave

    def body(
        table: V,
        tap_count: V,
        state: V,
        tap_tile: V,
        in_rows: V,
        out_rows: V,
        tile_tap: V,
        rows: V,
        totals: V,
        ticket: V,
        sum_: V,
    ) -> None:
        number, lane, own = take_tile(state, const(0, i32()), ticket, wave), thread() % wave, thread() // wave
        of_tap = _chunks(rows, chiplets)
        tap = number // of_tap
        chunk = number - tap * of_tap
        first = plus(times(chunk, CHUNK), times(own, wave * _ITEMS), lane)
        mine = [plus(first, item * wave) for item in range(_ITEMS)]
        found = [_neighbour(table, row, tap, rows, taps) for row in mine]
        present = [ballot(neighbour >= 0) for neighbour in found]
        counts = [popcount(bits).to(i32()) for bits in present]
        with if_(lane.eq(0)):
            put(_sum(counts), totals, own)
        start = times(_tiles_before(tap_count, tap, taps, tile_m, wave), tile_m)
        barrier()
        of_waves = [get(totals, const(other, i32())) for other in range(waves)]
        with if_(own.eq(0)):
            place = plus(times(tap, of_tap), 1)
            earlier = look_back_wave(state, chunk, _sum(of_waves), lambda other: plus(place, other), wave)
            with if_(lane.eq(0)):
                put(earlier, sum_, const(0, i32()))
        barrier()
        at = plus(start, get(sum_, const(0, i32())))
        for other in range(waves - 1):
            at = at + (own > other).select(of_waves[other], 0)
        for row, neighbour, bits, count in zip(mine, found, present, counts, strict=True):
            with if_(neighbour >= 0):
                here = at + popcount(bits & ((const(1, i64()) << lane.to(i64())) - 1)).to(i32())
                store(neighbour, in_rows, here)
                store(row, out_rows, here)
                with if_((here % tile_m).eq(0)):
                    store(tap, tile_tap, here // tile_m)
            at = at + count
        with if_(chunk.eq(0)):
            _pad(start, load(tap_count, tap), thread(), tile_m, in_rows, out_rows)
        with if_(number.eq(0) & own.eq(0)):
            _scan_taps(tap_count, tap_tile, taps, tile_m, wave)

    return body


def compact_memory(wave: int) -> list[ir.Type]:
    """The workgroup memory of compact."""
    return [shared(LANES // wave), shared(1), shared(1)]


def _sum(values: Sequence[V]) -> V:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def _neighbour(table: V, row: V, tap: V, rows: V, taps: int) -> V:
    known = row.min(rows - 1)
    place = plus(times(known // TILE_ROWS, taps * TILE_ROWS), known % TILE_ROWS, times(tap, TILE_ROWS))
    return (row < rows).select(load(table, place), NONE)


def _gemm_tiles(tap_count: V, tap: V, below: V, tile_m: int) -> V:
    """Gemm tiles of a tap, 0 if it is not below `below`."""
    return if_else(
        tap < below,
        lambda: [plus(load(tap_count, tap), tile_m - 1) // tile_m],
        lambda: [const(0, i32())],
    )[0]


def _tiles_before(tap_count: V, tap: V, taps: int, tile_m: int, wave: int) -> V:
    """Gemm tiles of all taps before one."""
    lane, total = thread() % wave, const(0, i32())
    for first in range(0, taps, wave):
        total = total + _gemm_tiles(tap_count, plus(lane, first), tap, tile_m)
    return from_lane(scan_wave(total, lane, wave), wave - 1, wave)


def _scan_taps(tap_count: V, tap_tile: V, taps: int, tile_m: int, wave: int) -> None:
    """Fills tap_tile, by one wave."""
    lane = thread() % wave
    with for_(0, const(taps, i32()), wave, [const(0, i32())], unroll=False) as run:
        tap = run.iv + lane
        tiles = _gemm_tiles(tap_count, tap, const(taps, i32()), tile_m)
        inclusive = scan_wave(tiles, lane, wave)
        with if_(tap < taps):
            store(run.args[0] + inclusive - tiles, tap_tile, tap)
        run.yields(run.args[0] + from_lane(inclusive, wave - 1, wave))
    with if_(lane.eq(0)):
        store(run.results[0], tap_tile, const(taps, i32()))


def _pad(start: V, count: V, lane: V, tile_m: int, in_rows: V, out_rows: V) -> None:
    at = plus(count, lane)
    with if_(at < plus(count, tile_m - 1) // tile_m * tile_m):
        store(const(0, i32()), in_rows, plus(start, at))
        store(const(-1, i32()), out_rows, plus(start, at))
