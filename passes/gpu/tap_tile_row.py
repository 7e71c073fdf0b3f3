"""Compaction of a neighbour table into pairs ordered (tap, tile of 16 rows, row): the order of `nonzero()`.

Three kernels, no host arithmetic, no global counters: count per (tap, tile) with a scan inside chunks of 256
tiles; scan of the chunk totals and of the taps by one workgroup; writing. Each tap's pairs are filled up to
whole gemm tiles of `tile_m` pairs with input row 0, output row −1.

Buffers: prefix i32 [taps][tiles], pairs of the same tap and chunk before a tile; chunk i32 [taps][chunks], first
totals, then pairs of the same tap before a chunk; tap_count i32 [taps], pairs; tap_tile i32 [taps + 1], gemm
tiles before a tap, the last one being their number; tile_tap i32 [gemm tiles], the tap of each.
"""

from __future__ import annotations

from collections.abc import Callable

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
    scan_wave,
    scan_workgroup,
    store,
    thread,
    times,
)
from spconv_compiler.passes.kernel_builder import V, const, for_, i32, i64, if_, if_else

CHUNK = 256


def _tiles(rows: V) -> V:
    return plus(rows, TILE_ROWS - 1) // TILE_ROWS


def _chunks(rows: V) -> V:
    return plus(_tiles(rows), CHUNK - 1) // CHUNK


def count_tiles(taps: int, wave: int) -> Callable[..., None]:
    """Body(table, prefix, chunk, rows, shared): a lane per tile, a workgroup per (chunk, tap)."""

    def count(table: V, tile: V, tap: V) -> V:
        first = plus(times(tile, taps * TILE_ROWS), times(tap, TILE_ROWS))
        absent = const(0, i32())
        for quarter in range(0, TILE_ROWS, 4):
            rows = load(table, plus(first, quarter), 4)
            for row in range(4):
                # The sign bit: rows are below 2^31, absent ones are −1.
                absent = absent + (rows.lane(row) >> 31)
        return TILE_ROWS - absent

    def body(table: V, prefix: V, chunk: V, rows: V, shared: V) -> None:
        tap, number = block("y"), block()
        tile, tiles = plus(times(number, CHUNK), thread()), _tiles(rows)
        (own,) = if_else(tile < tiles, lambda: [count(table, tile, tap)], lambda: [const(0, i32())])
        inclusive = scan_workgroup(own, shared, wave, CHUNK // wave)
        with if_(tile < tiles):
            store(inclusive - own, prefix, plus(times(tap, tiles), tile))
        with if_(thread().eq(CHUNK - 1)):
            store(inclusive, chunk, plus(times(tap, _chunks(rows)), number))

    return body


def scan_totals(taps: int, tile_m: int, wave: int, waves: int) -> Callable[..., None]:
    """Body(chunk, tap_count, tap_tile, rows, shared): one workgroup, a wave per tap, then one wave over the taps.

    Loops stay loops: most run once, and unrolled they would take a third of all compile time.
    """

    def scan_chunks(chunk: V, start: V, chunks: V, lane: V) -> V:
        """Replaces one tap's totals by what comes before them; their sum."""
        with for_(0, chunks, wave, [const(0, i32())], unroll=False) as run:
            at = run.iv + lane
            here = plus(start, at)
            (total,) = if_else(at < chunks, lambda: [load(chunk, here)], lambda: [const(0, i32())])
            inclusive = scan_wave(total, lane, wave)
            with if_(at < chunks):
                store(run.args[0] + inclusive - total, chunk, here)
            run.yields(run.args[0] + from_lane(inclusive, wave - 1, wave))
        return run.results[0]

    def scan_taps(tap_tile: V, shared: V, lane: V) -> None:
        with for_(0, const(taps, i32()), wave, [const(0, i32())], unroll=False) as run:
            tap = run.iv + lane
            (count,) = if_else(tap < taps, lambda: [get(shared, tap)], lambda: [const(0, i32())])
            tiles = plus(count, tile_m - 1) // tile_m
            inclusive = scan_wave(tiles, lane, wave)
            with if_(tap < taps):
                store(run.args[0] + inclusive - tiles, tap_tile, tap)
            run.yields(run.args[0] + from_lane(inclusive, wave - 1, wave))
        with if_(lane.eq(0)):
            store(run.results[0], tap_tile, const(taps, i32()))

    def body(chunk: V, tap_count: V, tap_tile: V, rows: V, shared: V) -> None:
        lane, number, chunks = thread() % wave, thread() // wave, _chunks(rows)
        with for_(number, const(taps, i32()), waves, unroll=False) as each:
            count = scan_chunks(chunk, times(each.iv, chunks), chunks, lane)
            with if_(lane.eq(0)):
                store(count, tap_count, each.iv)
                put(count, shared, each.iv)
        barrier()
        with if_(number.eq(0)):
            scan_taps(tap_tile, shared, lane)

    return body


def write_pairs(taps: int, tile_m: int, wave: int) -> Callable[..., None]:
    """Body(table, prefix, chunk, tap_count, tap_tile, in_rows, out_rows, tile_tap, rows).

    A lane per row, 16 tiles a workgroup, a tap along y. The first workgroup of a tap also writes its padding.
    """
    per_block = CHUNK // TILE_ROWS

    def body(
        table: V,
        prefix: V,
        chunk: V,
        tap_count: V,
        tap_tile: V,
        in_rows: V,
        out_rows: V,
        tile_tap: V,
        rows: V,
    ) -> None:
        tap, number, lane = block("y"), block(), thread()
        tile, tiles = plus(times(number, per_block), lane // TILE_ROWS), _tiles(rows)
        start = times(load(tap_tile, tap), tile_m)
        within = plus(times(tile, taps * TILE_ROWS), lane % TILE_ROWS, times(tap, TILE_ROWS))
        (neighbour,) = if_else(tile < tiles, lambda: [load(table, within)], lambda: [const(NONE, i32())])
        present = ballot(neighbour >= 0)
        with if_(neighbour >= 0):
            # Pairs of this tile before this row: the tile's 16 bits of the ballot, cut below the row's bit.
            bits = (present >> ((lane % wave) & -TILE_ROWS).to(i64())).to(i32())
            rank = popcount(bits & ((const(1, i32()) << (lane % TILE_ROWS)) - 1))
            earlier = load(chunk, plus(times(tap, _chunks(rows)), number // (CHUNK // per_block)))
            before = load(prefix, plus(times(tap, tiles), tile))
            at = plus(start, earlier, before, rank)
            store(neighbour, in_rows, at)
            store(plus(times(tile, TILE_ROWS), lane % TILE_ROWS), out_rows, at)
            with if_((at % tile_m).eq(0)):
                store(tap, tile_tap, at // tile_m)
        with if_(number.eq(0)):
            _pad(start, load(tap_count, tap), lane, tile_m, in_rows, out_rows)

    return body


def _pad(start: V, count: V, lane: V, tile_m: int, in_rows: V, out_rows: V) -> None:
    at = plus(count, lane)
    with if_(at < plus(count, tile_m - 1) // tile_m * tile_m):
        store(const(0, i32()), in_rows, plus(start, at))
        store(const(-1, i32()), out_rows, plus(start, at))
