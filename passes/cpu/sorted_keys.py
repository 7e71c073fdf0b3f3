"""The map of level stages on the CPU: coordinates packed into keys, sorted, with the rows they came from.

A key is ((b·extent_z + z − min_z)·extent_y + y − min_y)·extent_x + x − min_x with the halo of the kernel inside
minimum and extent, so a neighbour's key is the key plus a constant, and never that of another line or batch.

The sort is stable (radix_sort.py), so equal keys keep the order of their rows; it is skipped when they ascend already.
"""

from __future__ import annotations

from collections.abc import Sequence

from spconv_compiler.bindings import ir
from spconv_compiler.passes.cpu.radix_sort import RadixSort
from spconv_compiler.passes.kernel_builder import V, const, for_, i32, i64, load, store, vec

# Keys larger than any other stand behind the last one, so that a search may look at whole vectors.
KEY_PADDING = 16
# What the map leaves in the status buffer.
DUPLICATES, FIRST_ROW, SECOND_ROW, PAIRS = 0, 1, 2, 3
STATUS_WORDS = 8


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

    stride, padding: what is packed is coordinate · stride − padding: of a coarse voxel, the fine voxel that it meets
    through its first tap. Such keys keep the order of the coordinates.
    """

    def __init__(
        self, key_width: int, stride: Sequence[int] = (1, 1, 1), padding: Sequence[int] = (0, 0, 0)
    ) -> None:
        self.width = key_width
        self.key = key_type(key_width)
        self.stride, self.padding = tuple(stride), tuple(padding)

    def __call__(
        self, coords: V, keys: V, origin: V, keys_spare: V, origin_spare: V, status: V, rows: V, *box: V
    ) -> None:
        sort = RadixSort.make(self.key, (keys, origin), (keys_spare, origin_spare))
        unsorted = self._write_keys(coords, keys, origin, rows, box)
        *_, extent_z, extent_y, extent_x, batches = box
        sort(rows, batches * extent_z * extent_y * extent_x, unsorted)
        for place in range(KEY_PADDING):
            store(const(largest_key(self.width), self.key), keys, rows + place)
        self._find_duplicates(keys, origin, status, rows)

    def _write_keys(self, coords: V, keys: V, origin: V, rows: V, box: tuple[V, ...]) -> V:
        """Writes every row's key, and its number; gives i1: some key is below the one before it."""
        min_z, min_y, min_x, extent_z, extent_y, extent_x, _ = box
        with for_(0, rows, 1, [const(-1, i64()), const(0, i64())], unroll=False) as loop:
            before, descents = loop.args
            row = load(coords, vec(4, i32()), loop.iv * 4)
            batch, *place = [row.lane(axis).to(i64(), signed=True) for axis in range(4)]
            z, y, x = map(_met, place, self.stride, self.padding)
            key = ((batch * extent_z + (z - min_z)) * extent_y + (y - min_y)) * extent_x + (x - min_x)
            store(key.to(self.key), keys, loop.iv)
            store(loop.iv.to(i32()), origin, loop.iv)
            loop.yields(key, descents | (key < before).to(i64()))
        return loop.results[1].ne(0)

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


def _met(coordinate: V, stride: int, padding: int) -> V:
    """coordinate · stride − padding."""
    scaled = coordinate if stride == 1 else coordinate * stride
    return scaled if padding == 0 else scaled - padding
