"""The map of level stages on the CPU: coordinates packed into keys, sorted, with the rows they came from.

A key is ((b·extent_z + z − min_z)·extent_y + y − min_y)·extent_x + x − min_x with the halo of the kernel inside
minimum and extent, so a neighbour's key is the key plus a constant, and never that of another line or batch.

The sort is stable (radix_sort.py), so equal keys keep the order of their rows. Where keys ascend as they come it is
skipped, and so is the search for equal ones. An order that another map over the same rows has found can be given.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

from spconv_compiler.bindings import ir, vector
from spconv_compiler.passes.cpu.functions import Functions
from spconv_compiler.passes.cpu.memory import atomic_add, pointer_at, stack_array
from spconv_compiler.passes.cpu.parallel import parallel_for, worth_workers
from spconv_compiler.passes.cpu.radix_sort import RadixSort
from spconv_compiler.passes.cpu.vectors import numbered, permuted, shuffled
from spconv_compiler.passes.kernel_builder import V, const, for_, i32, i64, if_, if_else, load, store, unwrap, vec

# Keys larger than any other stand behind the last one, so that a search may look at whole vectors.
KEY_PADDING = 16
# What the map leaves in the status buffer.
DUPLICATES, FIRST_ROW, SECOND_ROW, PAIRS = 0, 1, 2, 3
STATUS_WORDS = 8
# Rows that a worker packs at once, and how many a worker is worth, some 0.1 ms: by width of their keys.
_SPAN = 1 << 12
_GRAIN = {32: 1 << 18, 64: 1 << 15}
# Columns of coordinates, rows that are packed together, and where sums of neighbours' sums leave each row's.
_COLUMNS, _ROWS = 4, 8
_IN_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)


def key_type(width: int) -> ir.Type:
    """i32 or i64."""
    return i32() if width == 32 else i64()


def largest_key(width: int) -> int:
    """No coordinate has this key: the box has fewer cells."""
    return (1 << (width - 1)) - 1


@dataclasses.dataclass(frozen=True)
class Packing:
    """How a coordinate becomes a key.

    What is packed is coordinate · stride − padding: of a coarse voxel, the fine voxel that it meets through its first
    tap. Such keys keep the order of the coordinates.
    """

    key_width: int
    stride: tuple[int, int, int] = (1, 1, 1)
    padding: tuple[int, int, int] = (0, 0, 0)

    @staticmethod
    def of(key_width: int, stride: Sequence[int], padding: Sequence[int]) -> Packing:
        """From three numbers each."""
        (sz, sy, sx), (pz, py, px) = stride, padding
        return Packing(key_width, (sz, sy, sx), (pz, py, px))

    @property
    def key(self) -> ir.Type:
        return key_type(self.key_width)

    @property
    def name(self) -> str:
        """For kernels."""
        moves = "" if (self.stride, self.padding) == ((1, 1, 1), (0, 0, 0)) else (
            f"_s{'x'.join(map(str, self.stride))}_p{'x'.join(map(str, self.padding))}"
        )
        return f"k{self.key_width}{moves}"

    def line(self, batch: V, z: V, y: V, box: Sequence[V]) -> V:
        """The key, i64, that x = 0 of a line would have; box: min_z, min_y, min_x, extent_z, extent_y, extent_x."""
        min_z, min_y, min_x, extent_z, extent_y, extent_x = box[:6]
        z, y, x = (
            value * stride - padding - low
            for value, stride, padding, low in zip(
                (z, y, const(0, i64())), self.stride, self.padding, (min_z, min_y, min_x), strict=True
            )
        )
        return ((batch * extent_z + z) * extent_y + y) * extent_x + x

    def factors(self, box: Sequence[V]) -> tuple[list[V], V]:
        """What (batch, z, y, x) are multiplied with, i64, and the key that all zeros would have."""
        extent_z, extent_y, extent_x = box[3:6]
        stride_z, stride_y, stride_x = self.stride
        plane, zero = extent_y * extent_x, const(0, i64())
        factors = [plane * extent_z, plane * stride_z, extent_x * stride_y, const(stride_x, i64())]
        return factors, self.line(zero, zero, zero, box)


@dataclasses.dataclass(frozen=True)
class SortedKeys:
    """Body of the map kernel.

    Arguments: coords i32 [rows, 4]; keys [rows + KEY_PADDING]; their rows i32 [rows]; room for as many keys and
    rows again; status i64 [STATUS_WORDS]; rows; order: 0, or the address of i32 [rows] that names the rows in the
    order of their keys; threads; min_z, min_y, min_x; extent_z, extent_y, extent_x; batches.
    """

    functions: Functions
    name: str
    packing: Packing

    @property
    def key(self) -> ir.Type:
        return self.packing.key

    def __call__(
        self,
        coords: V,
        keys: V,
        origin: V,
        keys_spare: V,
        origin_spare: V,
        status: V,
        rows: V,
        order: V,
        threads: V,
        *box: V,
    ) -> None:
        sort = RadixSort.make(self.key, (keys, origin), (keys_spare, origin_spare))
        misplaced = stack_array(1, i64())
        store(const(0, i64()), misplaced)
        shared = [coords, keys, origin, misplaced, rows, order, *box]
        spans, workers = (rows + (_SPAN - 1)) // _SPAN, worth_workers(threads, rows, _GRAIN[self.packing.key_width])
        parallel_for(self.functions, self.name, spans, workers, shared, self._span)
        for place in range(KEY_PADDING):
            store(const(largest_key(self.packing.key_width), self.key), keys, rows + place)
        for word in (DUPLICATES, FIRST_ROW, SECOND_ROW):
            store(const(0, i64()), status, word)
        *_, extent_z, extent_y, extent_x, batches = box
        with if_(load(misplaced, i64()).ne(0)):
            sort(rows, batches * extent_z * extent_y * extent_x)
            self._find_duplicates(keys, origin, status, rows)

    def _span(
        self, span: V, worker: V, coords: V, keys: V, origin: V, misplaced: V, rows: V, order: V, *box: V
    ) -> None:
        """Writes the keys of some rows, and their numbers; counts those that are not above the one before."""
        start = span * _SPAN
        end = (start + _SPAN).min(rows)
        given = functools.partial(load, pointer_at(order), i32())
        write = functools.partial(self._write, coords, keys, origin, box)
        as_they_come = self._write_vectors if self.packing.key_width == 32 else self._write_each
        (found,) = if_else(
            order.ne(0),
            lambda: write(start, end, given),
            lambda: [as_they_come(coords, keys, origin, box, start, end)],
        )
        with if_(found.ne(0)):
            atomic_add(misplaced, found)

    def _write_each(self, coords: V, keys: V, origin: V, box: tuple[V, ...], start: V, end: V) -> V:
        """Rows [start, end) in their order, one at a time; gives how many keys are not above the one before."""
        return self._write(coords, keys, origin, box, start, end, lambda place: place.to(i32()))[0]

    def _write_vectors(self, coords: V, keys: V, origin: V, box: tuple[V, ...], start: V, end: V) -> V:
        """As _write_each, eight rows at a time; what is packed fits into 32 bits, so nothing else needs more."""
        eight, pair = vec(_ROWS, i32()), vec(2 * _COLUMNS, i32())
        factors, first = self.packing.factors(box)
        # Two rows lie in a register.
        steps = V(vector.FromElementsOp(pair, unwrap([factor.to(i32()) for factor in factors] * 2)).result)
        shift = first.to(i32()).broadcast(_ROWS)
        whole = start + (end - start) // _ROWS * _ROWS
        before = if_else(start > 0, lambda: [self._key_of(coords, start - 1, box)], lambda: [const(-1, i64())])[0]
        init = [before.to(i32()).broadcast(_ROWS), const(0, eight)]
        with for_(start, whole, _ROWS, init, unroll=False) as loop:
            last, misplaced = loop.args
            parts = [load(coords, pair, loop.iv * _COLUMNS + 2 * _COLUMNS * number) * steps for number in range(4)]
            sums = [_neighbours_added(*parts[:2]), _neighbours_added(*parts[2:])]
            key = permuted(_neighbours_added(*sums), _IN_ORDER) + shift
            store(key, keys, loop.iv)
            store(numbered(loop.iv), origin, loop.iv)
            one_back = shuffled(last, key, range(_ROWS - 1, 2 * _ROWS - 1))
            loop.yields(key, misplaced + (key <= one_back).to(eight))
        found = V(vector.ReductionOp(i32(), ir.Attribute.parse("#vector.kind<add>"), loop.results[1].value).result)
        return found.to(i64()) + self._write_each(coords, keys, origin, box, whole, end)

    def _write(
        self,
        coords: V,
        keys: V,
        origin: V,
        box: tuple[V, ...],
        start: V,
        end: V,
        row_at: Callable[[V], V],
    ) -> list[V]:
        def key_of(row: V) -> V:
            return self._key_of(coords, row, box)

        before = if_else(start > 0, lambda: [key_of(row_at(start - 1))], lambda: [const(-1, i64())])
        with for_(start, end, 1, [*before, const(0, i64())], unroll=False) as loop:
            before_key, found = loop.args
            row = row_at(loop.iv)
            key = key_of(row)
            store(key.to(self.key), keys, loop.iv)
            store(row, origin, loop.iv)
            loop.yields(key, found + (key <= before_key).to(i64()))
        return [loop.results[1]]

    def _key_of(self, coords: V, row: V, box: tuple[V, ...]) -> V:
        place = row.to(i64(), signed=True) * _COLUMNS
        batch, z, y, x = (load(coords, i32(), place + axis).to(i64(), signed=True) for axis in range(_COLUMNS))
        return self.packing.line(batch, z, y, box) + x * self.packing.stride[2]

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


def _neighbours_added(first: V, second: V) -> V:
    """Sums of two neighbours each, of both vectors in turns: within halves, as registers are made of them."""
    places = [half + start for half in (0, 4) for start in (0, 2, 8, 10)]
    return shuffled(first, second, places) + shuffled(first, second, [place + 1 for place in places])
