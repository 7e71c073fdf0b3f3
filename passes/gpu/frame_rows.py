"""A frame's coordinates on their way to where a captured network reads them (network/captured.py).

One kernel does what would be five: it copies the rows, puts the rows that are left over into batch −1, in which no
voxel meets another, writes the number of rows as a word for kernels that read it, checks every coordinate against the
box, and adds those that lie outside to a word. Nothing is written to that word where all is well, so it can lie in host
memory.
"""

from __future__ import annotations

from collections.abc import Callable

from spconv_compiler.bindings import ir
from spconv_compiler.passes.gpu.lanes import (
    atomic,
    ballot,
    block,
    concatenate,
    load,
    plus,
    popcount,
    store,
    thread,
    times,
)
from spconv_compiler.passes.kernel_builder import V, const, i32, if_, if_else

_COLUMNS = 4


def place_rows(lanes: int, wave: int) -> Callable[..., None]:
    """Body(coords, placed, count, outside, rows, capacity, extent_z, extent_y, extent_x, batches), all i32.

    A lane per row of `placed`, which has `capacity` of them. count: two words, both the number of rows.
    """

    def body(coords: V, placed: V, count: V, outside: V, rows: V, capacity: V, *extents: V) -> None:
        number, lane = block(), thread()
        row = plus(times(number, lanes), lane)
        given = row < rows
        nowhere = concatenate([const(-1, i32()), *[const(0, i32())] * (_COLUMNS - 1)])
        (columns,) = if_else(given, lambda: [load(coords, times(row, _COLUMNS), _COLUMNS)], lambda: [nowhere])
        with if_(row < capacity):
            store(columns, placed, times(row, _COLUMNS))
        *space, batches = extents
        inside = columns.lane(0).ult(batches)
        for axis, extent in enumerate(space, 1):
            inside = inside & columns.lane(axis).ult(extent)
        wrong = popcount(ballot(given & inside.eq(0))).to(i32())
        with if_((lane % wave).eq(0) & wrong.ne(0)):
            atomic("add", wrong, outside, const(0, i32()))
        with if_(row.eq(0)):
            store(concatenate([rows, rows]), count, const(0, i32()))

    return body


def types(words: ir.Type) -> list[ir.Type]:
    """The kernel's arguments, buffers of `words` and numbers."""
    return [words] * 4 + [i32()] * 6
