"""Compaction of the table of cross_lookup.py into pairs ordered (tap, fine row), padded as tap_tile_row.py pads them.

Two kernels behind the lookup, which has counted the pairs of every (tap, workgroup of rows) already: a workgroup a tap
scans its counts; a lane a row and tap writes. Where a tap's pairs begin, every workgroup adds up by itself. The number
of fine rows is read from the device.

chunk i32 [tap][workgroup of rows]: first counts, then pairs of the same tap before the workgroup; tap_count i32 [taps].
in_rows, out_rows, tile_tap and tap_tile are those of tap_tile_row.py.
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


def gemm_tiles(taps: int, coarse_of_fine: int, tile_m: int) -> str:
    """The most gemm tiles there can be, a text for plan.size_map: all pairs, and a tile begun for every tap."""
    return f"(rows * {coarse_of_fine}) ceildiv {tile_m} + {taps}"


def scan_chunks(row_lanes: int, lanes: int, wave: int) -> Callable[..., None]:
    """Body(count, chunk, tap_count, shared): a workgroup a tap; row_lanes: rows of a workgroup of the lookup."""
    waves = lanes // wave

    def body(count: V, chunk: V, tap_count: V, shared: V) -> None:
        tap = block()
        chunks = plus(load(count, const(0, i32())), row_lanes - 1) // row_lanes
        first = times(tap, chunks)
        with for_(0, chunks, lanes, [const(0, i32())], unroll=False) as run:
            at = plus(run.iv, thread())
            here = plus(first, at)
            (pairs,) = if_else(at < chunks, lambda: [load(chunk, here)], lambda: [const(0, i32())])
            inclusive = scan_workgroup(pairs, shared, wave, waves)
            with if_(at < chunks):
                store(run.args[0] + inclusive - pairs, chunk, here)
            total = get(shared, const(0, i32()))
            for other in range(1, waves):
                total = total + get(shared, const(other, i32()))
            # The next turn writes where this one has just read.
            barrier()
            run.yields(run.args[0] + total)
        with if_(thread().eq(0)):
            store(run.results[0], tap_count, tap)

    return body


def write_pairs(taps: int, tile_m: int, lanes: int, wave: int, *, transposed: bool) -> Callable[..., None]:
    """Body(count, table, chunk, tap_count, in_rows, out_rows, tile_tap, tap_tile, shared).

    A lane per fine row along x, a tap along y; shared: one i32 a wave. Fine rows are the inputs, or, transposed, the
    outputs. The first workgroup of a tap, which is there even without rows, also writes the tap's padding.
    """

    def body(
        count: V, table: V, chunk: V, tap_count: V, in_rows: V, out_rows: V, tile_tap: V, tap_tile: V, shared: V
    ) -> None:
        tap, number, lane = block("y"), block(), thread()
        rows, first = load(count, const(0, i32())), times(number, lanes)
        tiles_before = _tiles_before(tap_count, tap, taps, tile_m, lane % wave, wave)
        start = times(tiles_before, tile_m)
        with if_(first < rows):
            row = plus(first, lane)
            at = plus(times(row // TILE_ROWS, taps * TILE_ROWS), row % TILE_ROWS, times(tap, TILE_ROWS))
            (coarse,) = if_else(row < rows, lambda: [load(table, at)], lambda: [const(NONE, i32())])
            present = ballot(coarse >= 0)
            with if_((lane % wave).eq(0)):
                put(popcount(present).to(i32()), shared, lane // wave)
            barrier()
            chunks = plus(rows, lanes - 1) // lanes
            place = plus(start, load(chunk, plus(times(tap, chunks), number)))
            for other in range(lanes // wave - 1):
                place = place + ((lane // wave) > other).select(get(shared, const(other, i32())), 0)
            below = present & ((const(1, i64()) << (lane % wave).to(i64())) - 1)
            place = place + popcount(below).to(i32())
            with if_(coarse >= 0):
                read, written = (coarse, row) if transposed else (row, coarse)
                store(read, in_rows, place)
                store(written, out_rows, place)
                with if_((place % tile_m).eq(0)):
                    store(tap, tile_tap, place // tile_m)
        with if_(number.eq(0)):
            pairs = load(tap_count, tap)
            tiles = plus(pairs, tile_m - 1) // tile_m
            padding = plus(pairs, lane)
            with if_(padding < times(tiles, tile_m)):
                store(const(0, i32()), in_rows, plus(start, padding))
                store(const(-1, i32()), out_rows, plus(start, padding))
            with if_(lane.eq(0)):
                store(tiles_before, tap_tile, tap)
                with if_(tap.eq(taps - 1)):
                    store(plus(tiles_before, tiles), tap_tile, const(taps, i32()))

    return body


def _tiles_before(tap_count: V, tap: V, taps: int, tile_m: int, lane: V, wave: int) -> V:
    """Gemm tiles of all taps before `tap`, the same in all lanes."""
    mine = const(0, i32())
    for turn in range(0, taps, wave):
        other = plus(lane, turn)
        (pairs,) = if_else(other < tap, lambda other=other: [load(tap_count, other)], lambda: [const(0, i32())])  # type: ignore[misc]
        mine = mine + plus(pairs, tile_m - 1) // tile_m
    return from_lane(scan_wave(mine, lane, wave), wave - 1, wave)
