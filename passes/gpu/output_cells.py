"""The coordinates that a convolution makes, in ascending order, through a bit for every cell of the box of outputs.

Three kernels: clearing; every input marks the cells that it reaches; the marks are counted and read off in order, by a
scan over all workgroups of the launch (device_scan.py). The result depends neither on the order of the inputs nor on
that of the atomics. The number of outputs stays on the device: count[0] is how many rows there are, count[1] how many
there would be with room for all. Rows that are left over belong to batch −1, in which no voxel meets another.

marks i32: the state of the scan, a word for each of its tiles and one more, in whole groups of 4; then the bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from spconv_compiler.bindings import math
from spconv_compiler.passes.gpu.box import key_type
from spconv_compiler.passes.gpu.cross_axes import candidates, output_at
from spconv_compiler.passes.gpu.device_scan import sum_before, take_tile
from spconv_compiler.passes.gpu.lanes import (
    atomic,
    block,
    concatenate,
    load,
    plus,
    popcount,
    store,
    thread,
    times,
)
from spconv_compiler.passes.kernel_builder import V, const, for_, i32, if_, if_else, vec, while_
from spconv_compiler.passes.reach import Reach

_WORD = 32
# Words that a lane reads at once.
_WORDS = 4
# Beyond these an input's candidates along x become a loop.
_MOST_UNROLLED = 9


def tile_cells(lanes: int) -> int:
    """Cells that one workgroup reads off."""
    return lanes * _WORDS * _WORD


def state_words(lanes: int) -> str:
    """Words of the scan's state, a text for plan.size_map."""
    return f"((cells ceildiv {tile_cells(lanes)} + 1) ceildiv {_WORDS}) * {_WORDS}"


def mark_words(lanes: int) -> str:
    """Words of all marks, a text for plan.size_map."""
    return f"{state_words(lanes)} + (cells ceildiv {_WORD * _WORDS}) * {_WORDS}"


def _state_words(cells: V, lanes: int) -> V:
    tiles = plus(cells, tile_cells(lanes) - 1) // tile_cells(lanes)
    return times(plus(tiles, _WORDS) // _WORDS, _WORDS)


def _bit_words(cells: V) -> V:
    return times(plus(cells, _WORD * _WORDS - 1) // (_WORD * _WORDS), _WORDS)


def clear_blocks(lanes: int) -> str:
    """Workgroups that clear the marks, a text for plan.size_map; those that follow fill rows."""
    return f"({mark_words(lanes)}) ceildiv {lanes * _WORDS}"


def clear(key_width: int, lanes: int) -> Callable[..., None]:
    """Body(marks, out, cells, capacity): no marks, and all rows of out in batch −1."""
    key = key_type(key_width)

    def body(marks: V, out: V, cells: V, capacity: V) -> None:
        number, lane = block(), thread()
        words = plus(_state_words(cells, lanes), _bit_words(cells))
        blocks = (plus(words, lanes * _WORDS - 1) // (lanes * _WORDS)).to(i32())
        with if_(number.ult(blocks)):
            at = plus(times(number.to(key), lanes * _WORDS), times(lane.to(key), _WORDS))
            with if_(at.ult(words)):
                store(const(0, vec(_WORDS, i32())), marks, at)
        with if_(number.compare("uge", blocks)):
            row = (number - blocks) * lanes + lane
            with if_(row.ult(capacity)):
                write_no_cell(out, row)

    return body


def mark(reach: Reach, key_width: int, lanes: int) -> Callable[..., None]:
    """Body(coords, coords_count, marks, cells, *out_box): a lane per input along x, its lines of outputs along y."""
    key = key_type(key_width)
    lines = candidates(reach, 1)

    def body(coords: V, coords_count: V, marks: V, cells: V, *box: V) -> None:
        low, extent, batches = box[:3], box[3:6], box[6]
        part, row = block("y"), plus(times(block(), lanes), thread())
        first = _state_words(cells, lanes)
        with if_(row < load(coords_count, const(0, i32()))):
            columns = load(coords, times(row, 4), 4)
            batch, *place = [columns.lane(column).to(key, signed=True) for column in range(4)]
            inside = batch.ult(batches)
            line = batch
            for axis, number in enumerate(((part // lines).to(key), (part % lines).to(key))):
                there, output = output_at(reach, axis, place[axis], number, low[axis], extent[axis])
                inside, line = inside & there, line * extent[axis] + output
            with if_(inside):
                mark_cell = functools.partial(_mark, marks, first, line, extent[2])
                _along_x(reach, place[2], low[2], extent[2], mark_cell)

    return body


def _along_x(reach: Reach, place: V, low: V, extent: V, take: Callable[[V], None]) -> None:
    count = candidates(reach, 2)

    def visit(number: V | int) -> None:
        there, output = output_at(reach, 2, place, number, low, extent)
        with if_(there):
            take(output)

    if count <= _MOST_UNROLLED:
        for number in range(count):
            visit(number)
        return
    with for_(0, const(count, place.type), unroll=False) as loop:
        visit(loop.iv)


def _mark(marks: V, first: V, line: V, extent: V, output: V) -> None:
    cell = line * extent + output
    bit = const(1, i32()) << (cell % _WORD).to(i32())
    atomic("or", bit, marks, plus(first, cell // _WORD))


def read_marks(key_width: int, lanes: int, wave: int) -> Callable[..., None]:
    """Body(marks, out, out_count, cells, capacity, *out_box, *scan_shared): the marked cells as rows, in order."""
    key, tile_words = key_type(key_width), lanes * _WORDS

    def body(marks: V, out: V, out_count: V, cells: V, capacity: V, *more: V) -> None:
        box, (totals, ticket, sum_) = more[:-3], more[-3:]
        zero = const(0, i32())
        tile = take_tile(marks, const(0, key), ticket, wave)
        first = plus(times(tile.to(key), tile_words), times(thread().to(key), _WORDS))
        words = _words(marks, _state_words(cells, lanes), first, _bit_words(cells))
        own = popcount(words[0])
        for word in words[1:]:
            own = own + popcount(word)
        row = sum_before(marks, tile, own, totals, sum_, lanes, wave, key)
        tiles = (plus(cells, tile_cells(lanes) - 1) // tile_cells(lanes)).to(i32())
        with if_((tile.eq(tiles - 1)) & thread().eq(lanes - 1)):
            store((row + own).min(capacity), out_count, zero)
            store(row + own, out_count, const(1, i32()))
        for number, word in enumerate(words):
            row = write_cells(out, row, capacity, word, times(plus(first, number), _WORD), box)

    return body


def _words(marks: V, state: V, first: V, count: V) -> list[V]:
    """The words of bits that this lane reads; beyond the last there are none."""
    (found,) = if_else(
        first.ult(count),
        lambda: [load(marks, plus(state, first), _WORDS)],
        lambda: [const(0, vec(_WORDS, i32()))],
    )
    return [found.lane(number) for number in range(_WORDS)]


def write_cells(out: V, row: V, capacity: V, word: V, cell: V, box: tuple[V, ...]) -> V:
    """Writes the rows of one word's marks, from `row` on, below the capacity; the row behind them.

    cell: that of the word's lowest bit; box: low corner and extents of the cells, of its type.
    """

    def next_bit(bits: V, row: V) -> list[V]:
        with if_(row.ult(capacity)):
            write_cell(out, row, cell + V(math.cttz(bits.value)).to(cell.type), box)
        return [bits & (bits - 1), row + 1]

    return while_([word, row], lambda bits, row: (bits.ne(0), [bits, row]), next_bit)[1]


def write_no_cell(out: V, row: V) -> None:
    """out[row] = a row that is left over: batch −1."""
    store(concatenate([const(-1, i32()), *[const(0, i32())] * 3]), out, times(row, 4))


def write_cell(out: V, row: V, key: V, box: tuple[V, ...]) -> None:
    """out[row] = the coordinates of a cell; box: low corner and extents of the cells, of its key's type."""
    low, extent = box[:3], box[3:6]
    line, plane = key // extent[2], key // extent[2] // extent[1]
    place = [key % extent[2] + low[2], line % extent[1] + low[1], plane % extent[0] + low[0], plane // extent[0]]
    store(concatenate([value.to(i32()) for value in reversed(place)]), out, times(row, 4))
