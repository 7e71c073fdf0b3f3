"""How kernels find the row of a coarse voxel: in a grid, or where that would be too large, by search in ascending keys.

A kernel takes the index as one buffer in the place of `grid`, and behind the box what else it needs. A grid needs
nothing more; the records of radix_sort.py need the sort's state, the number of coarse rows and the greatest key; coarse
coordinates that ascend by themselves, each once, as those do that an op has made, need their number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from spconv_compiler.bindings import ir
from spconv_compiler.dialect.plan import symbol
from spconv_compiler.dialect.types import buffer_type
from spconv_compiler.passes.gpu.box import NAMES, Box, box_symbols, box_types, key_type
from spconv_compiler.passes.gpu.dense_grid import NONE
from spconv_compiler.passes.gpu.lanes import load, plus, times
from spconv_compiler.passes.gpu.radix_sort import Sort
from spconv_compiler.passes.gpu.z_delta import SortedRecords
from spconv_compiler.passes.kernel_builder import V, const, i32, i64, if_else, while_


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of the coarse box.

    Attributes:
        inside: whether there may be a voxel; elsewhere the others mean nothing. key: of its voxel.
        place: batch, and z, y, x above the low corner, of the key's type; those who search in coordinates need it.
    """

    inside: V
    key: V
    place: tuple[V, V, V, V] | None = None


Find: TypeAlias = Callable[[V, Sequence[V], Sequence[Cell]], list[V]]
"""find(index, box and what follows it, cells) → rows, −1 where there is none."""

_Key: TypeAlias = "tuple[V, ...]"
# Keys that a lane looks for at once.
_TOGETHER = 9


def in_grid(grid: V, box: Sequence[V], cells: Sequence[Cell]) -> list[V]:
    """The rows that a grid has in cells; all loads in flight, of the first cell where there is nothing to find."""
    loaded = [load(grid, cell.inside.select(cell.key, 0)) for cell in cells]
    return [cell.inside.select(row, NONE) for cell, row in zip(cells, loaded, strict=True)]


def in_keys(sort: Sort) -> Find:
    """The lowest rows with certain keys, by search in records."""

    def find(records: V, box: Sequence[V], cells: Sequence[Cell]) -> list[V]:
        state, rows, limit = box[len(NAMES) :]
        return _search(_Records(SortedRecords(records, sort.final_half(state, limit, rows), rows, sort.wave)), cells)

    return find


def in_ascending(coords: V, box: Sequence[V], cells: Sequence[Cell]) -> list[V]:
    """The rows of coordinates that ascend, each once, by search in themselves."""
    return _search(_Ascending(coords, load(box[len(NAMES)], const(0, i32())), Box.of(box)), cells)


class _Searched(Protocol):
    """What is searched: places from 0 to `rows`, whose keys, each of some values, ascend."""

    rows: V

    def wanted(self, cell: Cell) -> _Key:
        """The key of a cell."""

    def key(self, place: V) -> _Key:
        """The key at a place."""

    def row(self, place: V, key: _Key) -> V:
        """The row at a place if it has this key, else −1."""


class _Records:
    """Records of radix_sort.py."""

    def __init__(self, records: SortedRecords) -> None:
        self._records, self.rows = records, records.rows

    def wanted(self, cell: Cell) -> _Key:
        return (cell.key,)

    def key(self, place: V) -> _Key:
        return (self._records.key(place),)

    def row(self, place: V, key: _Key) -> V:
        record = self._records.record(place)
        return record.lane(0).eq(key[0]).select(record.lane(1).to(i32()), NONE)


class _Ascending:
    """Coordinates that ascend: the row at a place is the place. Two of them make an i64 that orders as they do."""

    def __init__(self, coords: V, rows: V, box: Box) -> None:
        self._coords, self.rows, self._box = coords, rows, box

    def wanted(self, cell: Cell) -> _Key:
        assert cell.place is not None
        batch, *place = cell.place
        moved = [at + low for at, low in zip(place, self._box.low, strict=True)]
        return _in_order([value.to(i32()) for value in (batch, *moved)])

    def key(self, place: V) -> _Key:
        columns = load(self._coords, times(place, 4), 4)
        return _in_order([columns.lane(number) for number in range(4)])

    def row(self, place: V, key: _Key) -> V:
        return _equal(self.key(place), key).select(place, NONE)


def _in_order(columns: Sequence[V]) -> _Key:
    """Keys of four i32 that order as these do, the first most."""
    unsigned = [(column ^ -(2**31)).to(i64()) for column in columns]
    return unsigned[0] << 32 | unsigned[1], unsigned[2] << 32 | unsigned[3]


def _less(left: _Key, right: _Key) -> V:
    """left < right, all unsigned, the first value most."""
    less = left[-1].ult(right[-1])
    for one, other in zip(left[-2::-1], right[-2::-1], strict=True):
        less = one.ult(other) | one.eq(other) & less
    return less


def _equal(left: _Key, right: _Key) -> V:
    equal, *others = (one.eq(other) for one, other in zip(left, right, strict=True))
    for other in others:
        equal = equal & other
    return equal


def _search(searched: _Searched, cells: Sequence[Cell]) -> list[V]:
    """The rows of cells, in runs of so many that are looked for together."""
    found: list[V] = []
    for first in range(0, len(cells), _TOGETHER):
        run = cells[first : first + _TOGETHER]

        def look(run: Sequence[Cell] = run) -> list[V]:
            wanted = [searched.wanted(cell) for cell in run]
            places = [place.min(searched.rows - 1) for place in _below_each(searched, wanted)]
            rows = [searched.row(place, key) for place, key in zip(places, wanted, strict=True)]
            return [cell.inside.select(row, NONE) for row, cell in zip(rows, run, strict=True)]

        nothing = [const(NONE, i32())] * len(run)
        found += if_else(searched.rows > 0, look, lambda nothing=nothing: nothing)  # type: ignore[misc]
    return found


def _below_each(searched: _Searched, wanted: Sequence[_Key]) -> list[V]:
    """How many keys are below each that is wanted, of one at least; all loads of a step are in flight together.

    All searches take the same steps, so that a wave goes through them once.
    """

    def body(count: V, *low: V) -> list[V]:
        half = count >> 1
        keys = [searched.key(plus(one, half) - 1) for one in low]
        less = [_less(key, other) for key, other in zip(keys, wanted, strict=True)]
        return [count - half, *(is_.select(plus(one, half), one) for is_, one in zip(less, low, strict=True))]

    begin = [searched.rows, *[const(0, i32())] * len(wanted)]
    _, *low = while_(begin, lambda count, *low: (count > 1, [count, *low]), body)
    less = [_less(searched.key(one), other) for one, other in zip(low, wanted, strict=True)]
    return [is_.select(plus(one, 1), one) for is_, one in zip(less, low, strict=True)]


@dataclasses.dataclass(frozen=True)
class CrossIndex:
    """The index of a lowered map between two sets.

    Attributes:
        name: a part of kernels' names. find: see the module.
        buffer: the grid, or records, or coordinates. buffer_type: its.
        key_width: 32 or 64.
        more, more_types: what kernels take behind the box, and its types.
        distinct: whether no two coarse rows are equal.
    """

    name: str
    find: Find
    buffer: ir.Value
    buffer_type: ir.Type
    key_width: int
    more: tuple[ir.Value, ...] = ()
    more_types: tuple[ir.Type, ...] = ()
    distinct: bool = False

    @staticmethod
    def grid(buffer: ir.Value, key_width: int) -> CrossIndex:
        return CrossIndex(f"k{key_width}", in_grid, buffer, buffer_type(i32()), key_width)

    @staticmethod
    def keys(records: ir.Value, state: ir.Value, sort: Sort) -> CrossIndex:
        width, key = sort.key_width, key_type(sort.key_width)
        more = state, symbol("coarse_rows", i32()), symbol("cells", key)
        types = buffer_type(i32()), i32(), key
        return CrossIndex(f"k{width}_keys", in_keys(sort), records, buffer_type(key), width, more, types)

    @staticmethod
    def ascending(coords: ir.Value, count: ir.Value, key_width: int) -> CrossIndex:
        words = buffer_type(i32())
        name = f"k{key_width}_ascending"
        return CrossIndex(name, in_ascending, coords, words, key_width, (count,), (words,), distinct=True)

    @property
    def types(self) -> list[ir.Type]:
        """Of the box and what follows it."""
        return [*box_types(self.key_width), *self.more_types]

    @property
    def arguments(self) -> list[ir.Value]:
        """The launch arguments that go with `types`."""
        return [*box_symbols(self.key_width), *self.more]
