"""The map of level stages on the CPU: coordinates packed into keys, sorted, with the rows they came from.

A key is ((b·extent_z + z − min_z)·extent_y + y − min_y)·extent_x + x − min_x with the halo of the kernel inside
minimum and extent, so a neighbour's key is the key plus a constant, and never that of another line or batch.

The sort is a least-significant-digit radix sort (Knuth, The Art of Computer Programming 3, 5.2.5, algorithm R):
stable, so equal keys keep the order of their rows. Digits beyond the box are skipped, and all of it is when the
keys ascend already.
"""

from __future__ import annotations

from spconv_compiler.bindings import ir
from spconv_compiler.passes.cpu.functions import call_intrinsic
from spconv_compiler.passes.cpu.memory import stack_array
from spconv_compiler.passes.kernel_builder import (
    V,
    const,
    for_,
    i1,
    i32,
    i64,
    if_,
    load,
    store,
    vec,
)

# Keys larger than any other stand behind the last one, so that a search may look at whole vectors.
KEY_PADDING = 16
# What the map leaves in the status buffer.
DUPLICATES, FIRST_ROW, SECOND_ROW, PAIRS = 0, 1, 2, 3
STATUS_WORDS = 8

_DIGIT_BITS = 11


def key_type(width: int) -> ir.Type:
    """i32 or i64."""
    return i32() if width == 32 else i64()


def largest_key(width: int) -> int:
    """No coordinate has this key: the box has fewer cells."""
    return (1 << (width - 1)) - 1


class SortedKeys:
    """Body of the map kernel.

    Arguments: coords i32 [rows, 4]; keys [rows + KEY_PADDING]; their rows i32 [rows]; room for as many keys and
    rows again; status i64 [STATUS_WORDS]; rows; min_z, min_y, min_x; extent_z, extent_y, extent_x; batches.
    """

    def __init__(self, key_width: int) -> None:
        self.width = key_width
        self.key = key_type(key_width)

    def __call__(
        self, coords: V, keys: V, origin: V, keys_spare: V, origin_spare: V, status: V, rows: V, *box: V
    ) -> None:
        histogram = stack_array(1 << _DIGIT_BITS, i32())
        unsorted = self._write_keys(coords, keys, origin, rows, box)
        *_, extent_z, extent_y, extent_x, batches = box
        cells = batches * extent_z * extent_y * extent_x
        self._sort(cells, unsorted, (keys, origin), (keys_spare, origin_spare), histogram, rows)
        for place in range(KEY_PADDING):
            store(const(largest_key(self.width), self.key), keys, rows + place)
        self._find_duplicates(keys, origin, status, rows)

    def _write_keys(self, coords: V, keys: V, origin: V, rows: V, box: tuple[V, ...]) -> V:
        """Writes every row's key, and its number; gives i1: some key is below the one before it."""
        min_z, min_y, min_x, extent_z, extent_y, extent_x, _ = box
        with for_(0, rows, 1, [const(-1, i64()), const(0, i64())], unroll=False) as loop:
            before, descents = loop.args
            row = load(coords, vec(4, i32()), loop.iv * 4)
            batch, z, y, x = [row.lane(axis).to(i64(), signed=True) for axis in range(4)]
            key = ((batch * extent_z + (z - min_z)) * extent_y + (y - min_y)) * extent_x + (x - min_x)
            store(key.to(self.key), keys, loop.iv)
            store(loop.iv.to(i32()), origin, loop.iv)
            loop.yields(key, descents | (key < before).to(i64()))
        return loop.results[1].ne(0)

    def _sort(
        self, cells: V, unsorted: V, data: tuple[V, V], spare: tuple[V, V], histogram: V, rows: V
    ) -> None:
        """Sorts keys and rows, digit by digit, from `data` to `spare` and back; the result is in `data`."""
        leading_zeros = call_intrinsic("llvm.ctlz", [cells - 1, const(0, i1())], i64())
        width = const(64, i64()) - leading_zeros
        digits = ((width + (_DIGIT_BITS - 1)) // _DIGIT_BITS).max(1)
        digit_bits = (width + digits - 1) // digits
        passes = unsorted.select(digits, const(0, i64()))
        with for_(0, passes, 1, unroll=False) as loop:
            odd = (loop.iv & 1).ne(0)
            source = [odd.select(theirs, ours) for ours, theirs in zip(data, spare, strict=True)]
            target = [odd.select(ours, theirs) for ours, theirs in zip(data, spare, strict=True)]
            self._pass(source, target, loop.iv * digit_bits, digit_bits, histogram, rows)
        with if_((passes & 1).ne(0)), for_(0, rows, unroll=False) as loop:
            for ours, theirs, type_ in zip(data, spare, (self.key, i32()), strict=True):
                store(load(theirs, type_, loop.iv), ours, loop.iv)

    def _pass(self, source: list[V], target: list[V], shift: V, digit_bits: V, histogram: V, rows: V) -> None:
        """Moves keys and rows in the order of one digit."""
        values = const(1, i64()) << digit_bits

        def key_and_digit(place: V) -> tuple[V, V]:
            key = load(source[0], self.key, place)
            return key, (key.to(i64()) >> shift) & (values - 1)

        with for_(0, values, unroll=False) as loop:
            store(const(0, i32()), histogram, loop.iv)
        with for_(0, rows, unroll=False) as loop:
            _, digit = key_and_digit(loop.iv)
            store(load(histogram, i32(), digit) + 1, histogram, digit)
        with for_(0, values, 1, [const(0, i32())], unroll=False) as loop:
            (below,) = loop.args
            count = load(histogram, i32(), loop.iv)
            store(below, histogram, loop.iv)
            loop.yields(below + count)
        with for_(0, rows, unroll=False) as loop:
            key, digit = key_and_digit(loop.iv)
            place = load(histogram, i32(), digit)
            store(place + 1, histogram, digit)
            store(key, target[0], place.to(i64()))
            store(load(source[1], i32(), loop.iv), target[1], place.to(i64()))

    def _find_duplicates(self, keys: V, origin: V, status: V, rows: V) -> None:
        """Counts rows that repeat an earlier one; of these, the lowest row and the one it repeats are named."""
        none = (1 << 31) - 1
        init = [const(0, i64()), const(0, i32()), const(none, i32())]
        with for_(1, rows, 1, init, unroll=False) as loop:
            count, first, second = loop.args
            equal = load(keys, self.key, loop.iv).eq(load(keys, self.key, loop.iv - 1))
            row = load(origin, i32(), loop.iv)
            better = equal & (row < second)
            earlier = load(origin, i32(), loop.iv - 1)
            loop.yields(count + equal.to(i64()), better.select(earlier, first), better.select(row, second))
        count, first, second = loop.results
        for word, value in ((DUPLICATES, count), (FIRST_ROW, first.to(i64())), (SECOND_ROW, second.to(i64()))):
            store(value, status, word)
