"""Which tiles of 16 sorted rows a workgroup has, and the steps that it takes over them.

Tiles are dealt out evenly and in order (schedules/deal.py): how large a share is follows from the number of rows when
a kernel runs, and no kernel is compiled anew for it. A share may begin anywhere, while row_masks.py lists steps by
blocks of 256 rows. So every workgroup puts the lists of the blocks that it touches together, for its own tiles
alone, into a list in local memory.
"""

from __future__ import annotations

import dataclasses

from spconv_compiler.bindings import ir
from spconv_compiler.passes.gpu.dense_grid import TILE_ROWS
from spconv_compiler.passes.gpu.lanes import (
    ballot,
    barrier,
    fetch_put,
    get,
    load,
    plus,
    popcount,
    put,
    shared,
    thread,
    times,
    wave_barrier,
)
from spconv_compiler.passes.gpu.local import of_wave
from spconv_compiler.passes.gpu.row_masks import BLOCK_ROWS, FIRST_TILE_BIT, TAP_MASK
from spconv_compiler.passes.kernel_builder import V, const, i32, i64, if_, if_else
from spconv_compiler.schedules.deal import Deal

BLOCK_TILES = BLOCK_ROWS // TILE_ROWS
_WORD = 32


@dataclasses.dataclass(frozen=True)
class Share:
    """Tiles [first, first + count) of all `tiles`; count is at least 1."""

    first: V
    count: V
    tiles: V


def count_shares(deal: Deal, tiles: V) -> V:
    """deal.count in a kernel."""
    count, whole = _parts(tiles, deal.least), _parts(tiles, deal.most)
    for turn in deal.turns:
        count = count.min(times(_parts(whole, turn), turn))
    return count


def take_share(number: V, shares: V, tiles: V) -> Share:
    """One share of `shares`; the first ones have a tile more where tiles do not divide."""
    each, left = tiles // shares, tiles % shares
    more = (number < left).select(const(1, i32()), 0)
    return Share(plus(times(number, each), number.min(left)), plus(each, more), tiles)


@dataclasses.dataclass(frozen=True)
class StepList:
    """How steps are listed.

    Attributes:
        taps: of the convolution. lanes, wave: of a workgroup, of a wave. parts: workgroups that take a share's steps.
        beyond: entries behind the last one: its tap again, and no tile.
        levels: 0: there is one list, whose words name all tiles of a share. Else one for each of so many waves, the
            lanes' number over the wave's; a word names the tiles level, level + levels, … of the share that are its
            wave's own.
    """

    taps: int
    lanes: int
    wave: int
    parts: int
    beyond: int
    levels: int = 0

    @property
    def length(self) -> int:
        """Where the number of steps lies, behind all entries."""
        return self.taps + self.beyond

    @property
    def size(self) -> int:
        """Words of all lists."""
        return (self.length + 1) * (self.levels or 1)

    @property
    def most(self) -> int:
        """Tiles of a share that words have room for."""
        return _WORD if self.levels else _WORD - FIRST_TILE_BIT

    def first(self) -> V:
        """Where the list of this lane's wave begins."""
        wave = of_wave(thread() // self.wave) if self.levels else const(0, i32())
        return times(wave, self.length + 1)


def list_memory(steps: StepList) -> list[ir.Type]:
    """What `list_steps` needs: which tiles have a tap; the lists, and behind each its length."""
    return [shared(steps.taps), shared(steps.size)]


def list_steps(share: Share, steps: V, shape: StepList, part: V, found: V, listed: V) -> V:
    """Lists a part of the taps that the tiles of a share have, ascending: tap | tiles << 16, tile 0 the share's first.

    Args:
        steps: row_masks.py's i32 [blocks][taps]. found, listed: list_memory.

    Returns:
        How many there are, the same in all lanes.
    """
    lane, first = thread(), shape.first()
    for start in range(0, max(shape.size, shape.taps), shape.lanes):
        number = plus(lane, start)
        if start < shape.taps:
            with if_(number < shape.taps):
                put(const(0, i32()), found, number)
        with if_(number < shape.size):
            put(const(0, i32()), listed, number)
    # Where a wave has lanes for all taps, the first one alone clears and writes what is found; and so a single list.
    alone = shape.taps <= shape.wave
    (wave_barrier if alone else barrier)()
    _find(share, steps, shape, found)
    (wave_barrier if alone and shape.size <= shape.wave and not shape.levels else barrier)()
    if shape.levels:
        _list(shape, part, found, listed, first)
        # What a wave reads of lists is its own.
        wave_barrier()
    else:
        with if_(lane < shape.wave):
            _list(shape, part, found, listed, first)
        barrier()
    return of_wave(get(listed, plus(first, shape.length)))


def _find(share: Share, steps: V, shape: StepList, found: V) -> None:
    """found[tap] = the share's tiles that have it, from the lists of the block in which it begins and of those behind.

    A share of 17 to 32 tiles touches three blocks, others two.
    """
    block, skipped = share.first // BLOCK_TILES, share.first % BLOCK_TILES
    own = const(-1, i32()) >> (const(_WORD, i32()) - share.count)
    # Behind the last block there is none; its tiles lie beyond the share, wherever the next list comes from.
    last = (share.tiles - 1) // BLOCK_TILES
    blocks = [block, *(plus(block, further).min(last) for further in range(1, shape.most // BLOCK_TILES + 1))]
    for start in range(0, shape.taps, shape.lanes):
        number = plus(thread(), start)
        with if_(number < shape.taps):
            entries = [load(steps, plus(times(one, shape.taps), number)) for one in blocks]
            for further, entry in enumerate(entries):
                tiles = entry >> FIRST_TILE_BIT
                # By less than a word at once, even where nothing is skipped.
                moved = tiles >> skipped
                if further:
                    moved = (tiles << (BLOCK_TILES - skipped)) << BLOCK_TILES * (further - 1)
                mine = moved & own
                # The blocks have other tiles: adding puts bits together.
                with if_(mine.ne(0)):
                    fetch_put(mine, found, entry & TAP_MASK)


def _own(shape: StepList, tiles: V) -> V:
    """The bits of a word of the wave's list."""
    if not shape.levels:
        return tiles
    own, mine = tiles >> of_wave(thread() // shape.wave), const(0, i32())
    for number in range(shape.most // shape.levels):
        mine = mine | (own >> number * (shape.levels - 1) & 1 << number)
    return mine


def _list(shape: StepList, part: V, found: V, listed: V, start_at: V) -> None:
    """A wave's work: the taps that are there, those of the part at their places, and what lies behind them."""
    lane = thread() % shape.wave
    taps, ranks, count = list[tuple[V, V]](), list[V](), const(0, i32())
    for start in range(0, shape.taps, shape.wave):
        tap = plus(lane, start)
        (tiles,) = if_else(tap < shape.taps, lambda tap=tap: [get(found, tap)], lambda: [const(0, i32())])  # type: ignore[misc]
        there = ballot(tiles.ne(0))
        before = there & ((const(1, i64()) << lane.to(i64())) - 1)
        taps.append((tap, tiles))
        ranks.append(plus(count, popcount(before).to(i32())))
        count = plus(count, popcount(there).to(i32()))
    first, end = (times(count, plus(part, more)) // shape.parts for more in (0, 1))
    for (tap, tiles), rank in zip(taps, ranks, strict=True):
        place = plus(start_at, rank - first)
        with if_(tiles.ne(0) & (rank >= first) & (rank < end)):
            put(tap | (_own(shape, tiles) << FIRST_TILE_BIT), listed, place)
        # The wave's last lane with a tap of the part writes it behind, for nobody's tiles.
        with if_(tiles.ne(0) & rank.eq(end - 1)):
            for number in range(shape.beyond):
                put(tap, listed, plus(place, 1 + number))
    with if_(lane.eq(0)):
        put(end - first, listed, plus(start_at, shape.length))


def _parts(number: V, size: int) -> V:
    return plus(number, size - 1) // size
