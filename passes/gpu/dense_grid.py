"""Kernel map by a dense grid: one i32 a cell of the box, −1 or the lowest row with those coordinates.

After the dense mapper of FlyDSL pull request 942. The result is the table of all neighbours, laid out
[tile of 16 rows][tap][16], −1 where there is none; rows beyond the last are −1 too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from spconv_compiler.passes.gpu.box import Box, key_type
from spconv_compiler.passes.gpu.lanes import atomic, block, load, plus, store, thread, times
from spconv_compiler.passes.kernel_builder import V, const, i32, if_, if_else, vec

if TYPE_CHECKING:
    from spconv_compiler.passes.gpu.row_table import RowTable

TILE_ROWS = 16
# A lane looks up at most this many taps, all loads in flight at once.
_MAX_BATCH = 32
_FILL_STORES = 4
NONE = -1


def fill_span(lanes: int) -> int:
    """Cells that one workgroup of fill_grid covers."""
    return lanes * 4 * _FILL_STORES


def fill_grid(key_width: int, lanes: int) -> Callable[..., None]:
    """Body(grid, cells): writes −1 everywhere; the grid is allocated in whole groups of 4 cells."""

    def body(grid: V, cells: V) -> None:
        index = key_type(key_width)
        first = plus(times(block().to(index), fill_span(lanes)), times(thread().to(index), 4))
        for turn in range(_FILL_STORES):
            at = plus(first, turn * lanes * 4)
            with if_(at < cells):
                store(const(NONE, vec(4, i32())), grid, at)

    return body


def fill_and_clear(key_width: int, lanes: int, clear: Callable[..., None]) -> Callable[..., None]:
    """Body(grid, *buffers, cells, rows): fill_grid, and clears the others.

    Lanes of workgroups beyond those that the grid takes do clear(4 · number, *buffers, rows).
    """

    def body(grid: V, *rest: V) -> None:
        *buffers, cells, rows = rest
        filling = ((cells + (fill_span(lanes) - 1)) // fill_span(lanes)).to(i32())
        beyond = block() - filling
        with if_(beyond >= 0):
            clear(times(plus(times(beyond, lanes), thread()), 4), *buffers, rows)
        fill_grid(key_width, lanes)(grid, cells)

    return body


def scatter_rows(halo: Sequence[int], lanes: int) -> Callable[..., None]:
    """Body(coords, grid, rows, *box): grid[key(row)] = the lowest row with that key.

    −1 is the largest unsigned number, so an unsigned minimum does both jobs. Rows outside the box write nothing.
    """

    def body(coords: V, grid: V, rows: V, *box: V) -> None:
        row = plus(times(block(), lanes), thread())
        with if_(row < rows):
            inside, key = Box.of(box).pack(coords, row, halo)
            with if_(inside):
                atomic("umin", row, grid, key)

    return body


def batch_axes(kernel_size: Sequence[int]) -> int:
    """How many trailing axes of the kernel one lane looks up: a plane, a line or a single tap."""
    for axes in (2, 1):
        if math.prod(kernel_size[3 - axes :]) <= _MAX_BATCH:
            return axes
    return 0


def batches(kernel_size: Sequence[int]) -> int:
    """Lanes per row: the grid's second axis."""
    return math.prod(kernel_size[: 3 - batch_axes(kernel_size)])


def lookup(
    kernel_size: Sequence[int], dilation: Sequence[int], lanes: int, count: Callable[..., None]
) -> Callable[..., None]:
    """Body(coords, grid, table, tap_count, rows, *box, shared): a lane per row, a batch of taps per workgroup along y.

    count(found, first tap, tap_count, shared) adds up what a workgroup has found.
    """
    halo = [size // 2 * step for size, step in zip(kernel_size, dilation, strict=True)]
    batch = math.prod(kernel_size) // batches(kernel_size)

    def body(coords: V, grid: V, table: V, tap_count: V, rows: V, *rest: V) -> None:
        *box_arguments, memory = rest
        box, part = Box.of(box_arguments), block("y")
        row = plus(times(block(), lanes), thread())
        padded = (rows + (TILE_ROWS - 1)) & -TILE_ROWS
        # A lane beyond the last row reads that row's coordinates and then finds nothing.
        inside, key = box.pack(coords, row.min(rows - 1), halo)
        found = if_else(
            inside & (row < rows),
            lambda: _neighbours(box, grid, key, part, kernel_size, dilation),
            lambda: [const(NONE, i32())] * batch,
        )
        with if_(row < padded):
            tile = times(row // TILE_ROWS, math.prod(kernel_size) * TILE_ROWS)
            first = plus(tile, row % TILE_ROWS, times(part, batch * TILE_ROWS))
            for tap, neighbour in enumerate(found):
                store(neighbour, table, plus(first, tap * TILE_ROWS))
        count(found, times(part, batch), tap_count, memory)

    return body


def look_up_rows(
    kernel_size: Sequence[int], dilation: Sequence[int], lanes: int, made: RowTable
) -> Callable[..., None]:
    """Body(coords, grid, table, records, state, rows, *box, shared…): a lane per row, and all of its taps."""
    halo = [size // 2 * step for size, step in zip(kernel_size, dilation, strict=True)]

    def body(coords: V, grid: V, table: V, records: V, state: V, rows: V, *rest: V) -> None:
        box, memory = Box.of(rest[:7]), rest[7:]
        made.begin(memory)
        row = plus(times(block(), lanes), thread())
        inside, key = box.pack(coords, row.min(rows - 1), halo)
        parts = [const(part, i32()) for part in range(batches(kernel_size))]
        found = if_else(
            inside & (row < rows),
            lambda: [each for part in parts for each in _neighbours(box, grid, key, part, kernel_size, dilation)],
            lambda: [const(NONE, i32())] * math.prod(kernel_size),
        )
        made.finish(found, row, row < rows, table, records, state, memory)

    return body


def _neighbours(box: Box, grid: V, key: V, part: V, kernel_size: Sequence[int], dilation: Sequence[int]) -> list[V]:
    """Loads of batch `part` of the taps, one line along x after the other: a line's offsets are immediates."""
    axes = batch_axes(kernel_size)
    first: list[V | int] = [-(size // 2) * step for size, step in zip(kernel_size, dilation, strict=True)]
    outer = part.to(key.type)
    for axis in reversed(range(3 - axes)):
        place = outer % kernel_size[axis] if axis else outer
        first[axis] = place * dilation[axis] + first[axis]
        outer = outer // kernel_size[axis]
    found = []
    for y in range(kernel_size[1] if axes == 2 else 1):
        line = key + box.delta([first[0], first[1] + y * dilation[1], first[2]])
        for x in range(kernel_size[2] if axes >= 1 else 1):
            found.append(load(grid, plus(line, x * dilation[2])))
    return found
