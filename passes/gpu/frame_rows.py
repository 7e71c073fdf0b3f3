"""A frame's coordinates on their way to where a captured network reads them (network/captured.py).

One kernel does what would be five: it copies the rows, puts the rows that are left over into batch −1, in which no
voxel meets another, writes the number of rows as a word for kernels that read it, checks every coordinate against the
box, and adds those that lie outside to a word. Nothing is written to that word where all is well, so it can lie in host
memory. Where the rows are and how many is said by arguments, or in memory too: then a graph's launch stays what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spconv_compiler.bindings import ir
from spconv_compiler.passes.gpu.lanes import (
    atomic,
    ballot,
    barrier,
    block,
    concatenate,
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
from spconv_compiler.passes.kernel_builder import V, const, i32, i64, if_, if_else
from spconv_compiler.passes.overlap_launches import EARLY

_COLUMNS = 4
_FRAME_WORDS = 3


def place_rows(lanes: int, wave: int) -> Callable[..., None]:
    """Body(coords, placed, count, outside, rows, capacity, extent_z, extent_y, extent_x, batches), all i32.

    A lane per row of `placed`, which has `capacity` of them. count: two words, both the number of rows.
    """

    def body(coords: V, placed: V, count: V, outside: V, rows: V, capacity: V, *extents: V) -> None:
        row = plus(times(block(), lanes), thread())
        given = row < rows
        (columns,) = if_else(given, lambda: [load(coords, times(row, _COLUMNS), _COLUMNS)], lambda: [_nowhere()])
        with if_(row < capacity):
            store(columns, placed, times(row, _COLUMNS))
        _count_wrong(given, columns, extents, outside, wave)
        _note_count(row, rows, count)

    return body


def place_rows_by_words(lanes: int, wave: int, items: int) -> Callable[..., None]:
    """Body(base, frame, placed, count, outside, capacity, extent_z, extent_y, extent_x, batches).

    As place_rows, but `items` rows a lane, and frame[0:4] says in words of memory that host or stream write: where the
    coordinates begin, in words from `base` on (two words, the low one first), and how many rows they have, at least 1.
    One lane reads them for its workgroup, and before the work in front is done where launches overlap: words of the
    host are a way off. Whoever writes them has done so before the graph begins that this is a launch of.
    """

    def body(base: V, frame: V, placed: V, count: V, outside: V, capacity: V, *rest: V) -> None:
        *extents, memory = rest
        first = plus(times(block(), lanes * items), thread())
        with if_(thread().eq(0)):
            words = load(frame, const(0, i32()), _COLUMNS)
            for place in range(_FRAME_WORDS):
                put(words.lane(place), memory, const(place, i32()))
        barrier().attributes[EARLY] = ir.UnitAttr.get()
        low, high, rows = (from_lane(get(memory, const(place, i32())), 0, wave) for place in range(_FRAME_WORDS))
        begin = low.to(i64()) | high.to(i64()) << 32
        found = []
        for item in range(items):
            row = plus(first, item * lanes)
            given = row < rows
            # Rows that are not there are read in the place of the first one: no lane waits for another's branch.
            at = begin + given.select(row, 0).to(i64()) * _COLUMNS
            found.append((row, given, given.select(load(base, at, _COLUMNS), _nowhere())))
        for row, given, columns in found:
            with if_(row < capacity):
                store(columns, placed, times(row, _COLUMNS))
            _count_wrong(given, columns, extents, outside, wave)
        _note_count(first, rows, count)

    return body


def _nowhere() -> V:
    return concatenate([const(-1, i32()), *[const(0, i32())] * (_COLUMNS - 1)])


def _count_wrong(given: V, columns: V, extents: Sequence[V], outside: V, wave: int) -> None:
    *space, batches = extents
    inside = columns.lane(0).ult(batches)
    for axis, extent in enumerate(space, 1):
        inside = inside & columns.lane(axis).ult(extent)
    wrong = popcount(ballot(given & inside.eq(0))).to(i32())
    with if_((thread() % wave).eq(0) & wrong.ne(0)):
        atomic("add", wrong, outside, const(0, i32()))


def _note_count(row: V, rows: V, count: V) -> None:
    with if_(row.eq(0)):
        store(concatenate([rows, rows]), count, const(0, i32()))


def frame_memory() -> ir.Type:
    """The workgroup memory of place_rows_by_words."""
    return shared(_FRAME_WORDS)


def types(words: ir.Type, by_words: bool) -> list[ir.Type]:
    """The kernel's arguments, buffers of `words` and numbers."""
    return [words] * 5 + [i32()] * 5 if by_words else [words] * 4 + [i32()] * 6
