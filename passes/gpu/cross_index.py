"""How kernels find the row of a coarse voxel: in a grid, or where that would be too large, by search in sorted keys.

A kernel takes the index as one buffer (the grid, or the records of radix_sort.py) in the place of `grid`, and behind
the box what else it needs: nothing, or the sort's state, the number of coarse rows and the greatest key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeAlias

from spconv_compiler.bindings import ir
from spconv_compiler.dialect.plan import symbol
from spconv_compiler.dialect.types import buffer_type
from spconv_compiler.passes.gpu.box import box_symbols, box_types, key_type
from spconv_compiler.passes.gpu.dense_grid import NONE
from spconv_compiler.passes.gpu.lanes import load
from spconv_compiler.passes.gpu.radix_sort import Sort
from spconv_compiler.passes.gpu.z_delta import SortedRecords
from spconv_compiler.passes.kernel_builder import V, const, i32, if_else

Find: TypeAlias = Callable[[V, Sequence[V], Sequence[tuple[V, V]]], list[V]]
"""find(index, box and what follows it, [(whether there may be one, key)]) → rows, −1 where there is none."""


def in_grid(grid: V, box: Sequence[V], cells: Sequence[tuple[V, V]]) -> list[V]:
    """The rows that a grid has in cells; all loads in flight, of the first cell where there is nothing to find."""
    loaded = [load(grid, inside.select(cell, 0)) for inside, cell in cells]
    return [inside.select(row, NONE) for (inside, _), row in zip(cells, loaded, strict=True)]


def in_keys(sort: Sort) -> Find:
    """The lowest rows with certain keys, by a search for each."""

    def find(records: V, box: Sequence[V], cells: Sequence[tuple[V, V]]) -> list[V]:
        state, rows, limit = box[len(box_types(sort.key_width)) :]
        sorted_ = SortedRecords(records, sort.final_half(state, limit, rows), rows, sort.wave)
        found = []
        for inside, key in cells:
            place = sorted_.below(key, const(0, i32()), inside.select(rows, 0))
            found += if_else(
                inside & (place < rows),
                lambda place=place, key=key: [_row_of(sorted_.record(place), key)],  # type: ignore[misc]
                lambda: [const(NONE, i32())],
            )
        return found

    return find


def _row_of(record: V, key: V) -> V:
    return record.lane(0).eq(key).select(record.lane(1).to(i32()), NONE)


@dataclasses.dataclass(frozen=True)
class CrossIndex:
    """The index of a lowered map between two sets.

    Attributes:
        name: a part of kernels' names. find: see the module.
        buffer: the grid, or records. state: the sort's, or None for a grid. key_width: 32 or 64.
    """

    name: str
    find: Find
    buffer: ir.Value
    state: ir.Value | None
    key_width: int

    @property
    def buffer_type(self) -> ir.Type:
        return buffer_type(i32() if self.state is None else key_type(self.key_width))

    @property
    def types(self) -> list[ir.Type]:
        """Of the box and what follows it."""
        more = [] if self.state is None else [buffer_type(i32()), i32(), key_type(self.key_width)]
        return [*box_types(self.key_width), *more]

    @property
    def arguments(self) -> list[ir.Value]:
        """The launch arguments that go with `types`."""
        if self.state is None:
            return box_symbols(self.key_width)
        sizes = [symbol("coarse_rows", i32()), symbol("cells", key_type(self.key_width))]
        return [*box_symbols(self.key_width), self.state, *sizes]

