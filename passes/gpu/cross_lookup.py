"""The coarse voxels that every fine voxel meets, by a dense grid of the coarse set.

The grid holds one i32 a cell of the coarse box, −1 or the lowest row with those coordinates: as many times smaller than
a grid of the fine set as a stride has cells. Of as many taps along an axis as the stride is long a fine voxel meets a
coarse one through one: where no dilation is in the way, it looks up a cell for all of them, and the remainder of its
place says which it is. Where a grid would be too large, `find` searches in ascending keys instead (cross_index.py).

Through one tap, coarse voxels ascend as fine ones do: pairs that are ordered by one side are ordered by the other too
where both sets ascend. So one table, by fine rows, serves both directions, with its columns exchanged.

table i32 [tile of 16 fine rows][tap][16]: the coarse row, or −1; rows beyond the last are −1 too. The table of
look_up_outputs is [tile of 16 coarse rows][tap][16] with fine rows.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

from spconv_compiler.passes.gpu.box import Box
from spconv_compiler.passes.gpu.cross_axes import above_origin, coarse_at, coarse_run
from spconv_compiler.passes.gpu.cross_index import Cell, Find, in_grid
from spconv_compiler.passes.gpu.dense_grid import NONE, TILE_ROWS
from spconv_compiler.passes.gpu.lanes import (
    atomic,
    ballot,
    barrier,
    block,
    get,
    load,
    plus,
    popcount,
    put,
    store,
    thread,
    times,
)
from spconv_compiler.passes.kernel_builder import V, const, for_, i32, if_, if_else, vec
from spconv_compiler.passes.reach import Reach

# A lane looks up at most this many taps, all loads in flight at once.
_MAX_BATCH = 32
_FILL_STORES = 4


def fill_span(lanes: int) -> int:
    """Cells that one workgroup of fill covers."""
    return lanes * 4 * _FILL_STORES


def fill(lanes: int) -> Callable[..., None]:
    """Body(grid, cells): −1 everywhere; the grid is allocated in whole groups of 4 cells."""

    def body(grid: V, cells: V) -> None:
        first = plus(times(block().to(cells.type), fill_span(lanes)), times(thread().to(cells.type), 4))
        for turn in range(_FILL_STORES):
            at = plus(first, turn * lanes * 4)
            with if_(at < cells):
                store(const(NONE, vec(4, i32())), grid, at)

    return body


def scatter(lanes: int) -> Callable[..., None]:
    """Body(out_coords, out_count, grid, *box) of the coarse set: grid[key(row)] = the lowest row with that key."""

    def body(coords: V, count: V, grid: V, *box: V) -> None:
        row = plus(times(block(), lanes), thread())
        with if_(row < load(count, const(0, i32()))):
            inside, key = Box.of(box).pack(coords, row, (0, 0, 0))
            with if_(inside):
                atomic("umin", row, grid, key)

    return body


def batch_axes(kernel_size: Sequence[int]) -> int:
    """How many trailing axes of the kernel one lane looks up: all, a plane, a line or a single tap."""
    return next((axes for axes in (3, 2, 1) if math.prod(kernel_size[3 - axes :]) <= _MAX_BATCH), 0)


def batches(kernel_size: Sequence[int]) -> int:
    """Lanes per row: the grid's second axis."""
    return math.prod(kernel_size[: 3 - batch_axes(kernel_size)])


def look_up(reach: Reach, lanes: int, wave: int, find: Find = in_grid) -> Callable[..., None]:
    """Body(coords, count, grid, table, chunk, *box, shared): a lane per fine row along x, a batch of taps along y.

    chunk i32 [tap][workgroup]: the pairs that the rows of a workgroup have through a tap. shared: one i32 for each tap
    of a batch and wave.
    """
    taps, batch, waves = math.prod(reach.kernel_size), batch_size(reach.kernel_size), lanes // wave

    def body(coords: V, count: V, grid: V, table: V, chunk: V, *more: V) -> None:
        *box, shared = more
        part, number, lane = block("y"), block(), thread()
        rows, first = load(count, const(0, i32())), times(number, lanes)
        # The same in the whole workgroup: what is beyond the last row has no work.
        with if_(first < rows):
            row = plus(first, lane)
            (*found,) = _found(reach, find, coords, grid, box, row, rows, part)
            padded = plus(rows, TILE_ROWS - 1) & -TILE_ROWS
            with if_(row < padded):
                at = plus(times(row // TILE_ROWS, taps * TILE_ROWS), row % TILE_ROWS, times(part, batch * TILE_ROWS))
                for tap, coarse in enumerate(found):
                    store(coarse, table, plus(at, tap * TILE_ROWS))
            totals = [popcount(ballot(coarse >= 0)).to(i32()) for coarse in found]
            with if_((lane % wave).eq(0)):
                for tap, total in enumerate(totals):
                    put(total, shared, plus(lane // wave, tap * waves))
            barrier()
            with if_(lane < batch):
                pairs = get(shared, times(lane, waves))
                for other in range(1, waves):
                    pairs = pairs + get(shared, plus(times(lane, waves), other))
                chunks = plus(rows, lanes - 1) // lanes
                store(pairs, chunk, plus(times(plus(times(part, batch), lane), chunks), number))

    return body


def batch_size(kernel_size: Sequence[int]) -> int:
    """Taps that one lane looks up."""
    return math.prod(kernel_size) // batches(kernel_size)


def fill_table(taps: int, lanes: int) -> Callable[..., None]:
    """Body(table, capacity): −1 in the whole table of look_up_outputs, for as many rows as there is room for."""

    def body(table: V, rows: V) -> None:
        size = times(plus(rows, TILE_ROWS - 1) // TILE_ROWS, taps * TILE_ROWS)
        at = times(plus(times(block(), lanes), thread()), 4)
        with if_(at.ult(size)):
            store(const(NONE, vec(4, i32())), table, at)

    return body


def look_up_inputs(reach: Reach, lanes: int, find: Find = in_grid) -> Callable[..., None]:
    """Body(coords, count, grid, table, capacity, *box): as look_up, without counts of pairs.

    Rows behind the last fine one, up to the capacity, have no neighbours.
    """
    taps, batch = math.prod(reach.kernel_size), batch_size(reach.kernel_size)

    def body(coords: V, count: V, grid: V, table: V, capacity: V, *box: V) -> None:
        part, row = block("y"), plus(times(block(), lanes), thread())
        rows = load(count, const(0, i32()))
        found = _found(reach, find, coords, grid, box, row, rows, part)
        with if_(row < (plus(capacity, TILE_ROWS - 1) & -TILE_ROWS)):
            at = plus(times(row // TILE_ROWS, taps * TILE_ROWS), row % TILE_ROWS, times(part, batch * TILE_ROWS))
            for tap, coarse in enumerate(found):
                store(coarse, table, plus(at, tap * TILE_ROWS))

    return body


def look_up_outputs(reach: Reach, lanes: int, find: Find = in_grid) -> Callable[..., None]:
    """Body(coords, count, grid, table, *box): every fine row puts itself into the places of the coarse rows it meets.

    Of fine rows with equal coordinates the lowest stays.
    """
    taps, batch = math.prod(reach.kernel_size), batch_size(reach.kernel_size)

    def body(coords: V, count: V, grid: V, table: V, *box: V) -> None:
        part, row = block("y"), plus(times(block(), lanes), thread())
        rows = load(count, const(0, i32()))
        found = _found(reach, find, coords, grid, box, row, rows, part)
        for tap, coarse in enumerate(found):
            with if_(coarse >= 0):
                place = plus(times(coarse // TILE_ROWS, taps * TILE_ROWS), coarse % TILE_ROWS, tap * TILE_ROWS)
                atomic("umin", row, table, plus(place, times(part, batch * TILE_ROWS)))

    return body


def share_rows(taps: int, lanes: int, find: Find = in_grid) -> Callable[..., None]:
    """Body(out_coords, out_count, grid, table, *box): coarse rows with the coordinates of a lower one get its line.

    Only the lowest is in the grid, so only it has been found.
    """

    def body(coords: V, count: V, grid: V, table: V, *box: V) -> None:
        row = plus(times(block(), lanes), thread())
        with if_(row < load(count, const(0, i32()))):
            inside, key = Box.of(box).pack(coords, row, (0, 0, 0))
            (found,) = find(grid, box, [Cell(inside, key)])
            lowest = inside.select(found, row)
            with if_(lowest.ne(row)), for_(0, const(taps, i32()), unroll=False) as tap:
                from_, to = (times(one // TILE_ROWS, taps * TILE_ROWS) + one % TILE_ROWS for one in (lowest, row))
                offset = times(tap.iv, TILE_ROWS)
                store(load(table, plus(from_, offset)), table, plus(to, offset))

    return body


def _found(
    reach: Reach, find: Find, coords: V, grid: V, arguments: Sequence[V], row: V, rows: V, part: V
) -> list[V]:
    """The coarse rows that fine row `row` meets through the taps of batch `part`; −1 where there is none."""
    nothing, box = [const(NONE, i32())] * batch_size(reach.kernel_size), Box.of(arguments)

    def read() -> list[V]:
        columns = load(coords, times(row, 4), 4)
        batch, *place = [columns.lane(column).to(box.batches.type, signed=True) for column in range(4)]

        def look() -> list[V]:
            axes = _axes(reach, box, place, part)
            return _by_tap(axes, find(grid, arguments, _cells(box, batch, axes)))

        return if_else(batch.ult(box.batches), look, lambda: nothing)

    return if_else(row < rows, read, lambda: nothing)


@dataclasses.dataclass(frozen=True)
class _Axis:
    """What a fine voxel can meet along an axis.

    Attributes:
        coarse: (whether there may be one, its place) of coarse voxels.
        taps: for each tap of the batch the number of its voxel, and what must hold for it, if anything.
    """

    coarse: list[tuple[V, V]]
    taps: list[tuple[int, V | None]]

    @staticmethod
    def of(reach: Reach, axis: int, above: V, taps: Sequence[V | int], extent: V) -> _Axis:
        _, stride, _, dilation = reach.on(axis)
        if stride == 1 or dilation > 1 or isinstance(taps[0], V):
            coarse = [coarse_at(reach, axis, above, tap, extent) for tap in taps]
            return _Axis(coarse, [(number, None) for number in range(len(taps))])
        coarse, remainder = coarse_run(reach, axis, above, extent)
        return _Axis(coarse, [(tap // stride, remainder.eq(tap % stride)) for tap in range(len(taps))])


def _axes(reach: Reach, box: Box, place: list[V], part: V) -> list[_Axis]:
    """For every axis what a fine voxel meets through the taps of batch `part`."""
    axes = batch_axes(reach.kernel_size)
    taps: list[list[V | int]] = [list(range(size)) for size in reach.kernel_size]
    outer = part.to(box.batches.type)
    for axis in reversed(range(3 - axes)):
        size = reach.kernel_size[axis]
        taps[axis], outer = [outer % size if axis else outer], outer // size
    above = [above_origin(reach, axis, place[axis], box.low[axis]) for axis in range(3)]
    return [_Axis.of(reach, axis, above[axis], taps[axis], box.extent[axis]) for axis in range(3)]


def _cells(box: Box, batch: V, axes: list[_Axis]) -> list[Cell]:
    """The cells of all coarse voxels that may be met."""
    cells = []
    for has_z, z in axes[0].coarse:
        for has_y, y in axes[1].coarse:
            line = ((batch * box.extent[0] + z) * box.extent[1] + y) * box.extent[2]
            for has_x, x in axes[2].coarse:
                cells.append(Cell(has_z & has_y & has_x, line + x, (batch, z, y, x)))
    return cells


def _by_tap(axes: list[_Axis], rows: list[V]) -> list[V]:
    """The rows that the taps of a batch meet, from those of the cells."""
    found = []
    _, *sizes = (len(axis.coarse) for axis in axes)
    for (z, is_z), (y, is_y), (x, is_x) in itertools.product(*(axis.taps for axis in axes)):
        row = rows[(z * sizes[0] + y) * sizes[1] + x]
        for condition in (is_z, is_y, is_x):
            row = row if condition is None else condition.select(row, NONE)
        found.append(row)
    return found
