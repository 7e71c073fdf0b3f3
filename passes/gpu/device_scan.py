"""Prefix sums over all workgroups of one launch, by decoupled look-back.

After Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back" (NVIDIA, 2016). Every tile has a
word of state: nothing yet, the tile's own total, or the sum of all totals up to its end. A workgroup publishes its
total, adds up what its predecessors have published until it meets a sum, and publishes its own sum.

A workgroup takes its tile by ticket, from an atomic counter: predecessors have started before it, so that waiting for
them ends in whatever order workgroups run. Kind and count share a word, which moves whole: no order between words is
needed. Counts stay below 2^30. State must be zero when the launch begins.
"""

from __future__ import annotations

from collections.abc import Callable

from spconv_compiler.bindings import ir
from spconv_compiler.passes.gpu.lanes import (
    ballot,
    barrier,
    block,
    fetch_add,
    from_lane,
    get,
    load_device,
    plus,
    put,
    scan_wave,
    scan_workgroup,
    shared,
    store,
    store_device,
    thread,
    times,
)
from spconv_compiler.passes.kernel_builder import V, const, i32, i64, if_, if_else, while_

_KIND_SHIFT, _TOTAL, _SUM = 30, 1, 2
_COUNT = (1 << _KIND_SHIFT) - 1
MAX_COUNT = _COUNT
# Predecessors that a lane of look_back reads at once.
_WINDOW = 4


def zero_words(lanes: int) -> Callable[..., None]:
    """Body(words i32, count): zeros. The buffer is allocated in whole groups of 4 words."""

    def body(words: V, count: V) -> None:
        at = times(plus(times(block(), lanes), thread()), 4)
        with if_(at.ult(count)):
            store(const(0, ir.VectorType.get([4], i32())), words, at)

    return body


def take_tile(tickets: V, place: V, memory: V, wave: int) -> V:
    """The tile of this workgroup, in the order in which workgroups begin; memory: one shared i32.

    It contains a barrier.
    """
    with if_(thread().eq(0)):
        put(fetch_add(const(1, i32()), tickets, place), memory, const(0, i32()))
    barrier()
    return from_lane(get(memory, const(0, i32())), 0, wave)


def look_back(state: V, tile: V, total: V, place: Callable[[V], V]) -> V:
    """Publishes this lane's `total` of a tile; the sum of the totals of all tiles before it.

    Every lane scans a sequence of its own (radix sort: a digit). place(t): where the state of tile t is. Some
    predecessors are read at once: of tiles that began together most have published a total and no sum.
    """
    kind = tile.eq(0).select(const(_SUM << _KIND_SHIFT, i32()), _TOTAL << _KIND_SHIFT)
    store_device(kind | total, state, place(tile))

    def condition(before: V, sum_: V) -> tuple[V, list[V]]:
        return before >= 0, [before, sum_]

    def body(before: V, sum_: V) -> list[V]:
        others = [before - number for number in range(_WINDOW)]
        words = [load_device(state, place(other.max(0))) for other in others]
        following = before
        for other, word in zip(others, words, strict=True):
            # Behind a sum nothing counts, nor behind a word that is still zero, which is read again.
            counts, found = following.eq(other) & (other >= 0), word >> _KIND_SHIFT
            sum_ = sum_ + counts.select(word & _COUNT, 0)
            following = counts.select(found.eq(_SUM).select(const(-1, i32()), other - found), following)
        return [following, sum_]

    _, before = while_([tile - 1, const(0, i32())], condition, body)
    with if_(tile > 0):
        store_device(before + total | _SUM << _KIND_SHIFT, state, place(tile))
    return before


def look_back_wave(state: V, tile: V, total: V, place: Callable[[V], V], wave: int) -> V:
    """As look_back for one sequence: a whole wave reads as many predecessors at once as it has lanes.

    All lanes pass the same tile and total and get the same sum.
    """
    lane = thread() % wave
    kind = tile.eq(0).select(const(_SUM << _KIND_SHIFT, i32()), _TOTAL << _KIND_SHIFT)
    with if_(lane.eq(0)):
        store_device(kind | total, state, place(tile))

    def condition(end: V, sum_: V) -> tuple[V, list[V]]:
        return end > 0, [end, sum_]

    def body(end: V, sum_: V) -> list[V]:
        other = end - 1 - lane
        (word,) = if_else(
            other >= 0,
            lambda: [load_device(state, place(other))],
            lambda: [const(_SUM << _KIND_SHIFT, i32())],
        )
        sums = ballot((word >> _KIND_SHIFT).eq(_SUM))
        # Lanes behind the nearest sum are in it already.
        nearer = ((sums & ((const(1, i64()) << lane.to(i64())) - 1)).eq(0))
        missing = ballot(nearer & (word >> _KIND_SHIFT).eq(0)).ne(0)
        counted = from_lane(scan_wave(nearer.select(word & _COUNT, 0), lane, wave), wave - 1, wave)
        following = sums.ne(0).select(const(0, i32()), end - wave)
        return [missing.select(end, following), missing.select(sum_, sum_ + counted)]

    _, before = while_([tile, const(0, i32())], condition, body)
    with if_((tile > 0) & lane.eq(0)):
        store_device(before + total | _SUM << _KIND_SHIFT, state, place(tile))
    return before


def scan_shared(lanes: int, wave: int) -> list[ir.Type]:
    """The workgroup memory of sum_before and take_tile: totals of waves, the ticket, the sum before the tile."""
    return [shared(lanes // wave), shared(1), shared(1)]


def sum_before(
    state: V, tile: V, own: V, totals: V, sum_: V, lanes: int, wave: int, index: ir.Type | None = None
) -> V:
    """The sum of `own` i32 over all lanes before this one: those of earlier tiles, and those below it in its tile.

    state: the ticket, then a word for each tile. totals, sum_: of scan_shared. index: type of places in state, i32 by
    default. It contains barriers.
    """

    def place(other: V) -> V:
        return plus(other.to(index or i32()), 1)

    inclusive = scan_workgroup(own, totals, wave, lanes // wave)
    # The last wave has the tile's total.
    with if_(thread() >= lanes - wave):
        earlier = look_back_wave(state, tile, from_lane(inclusive, wave - 1, wave), place, wave)
        with if_(thread().eq(lanes - 1)):
            put(earlier, sum_, const(0, i32()))
    barrier()
    return get(sum_, const(0, i32())) + inclusive - own
