"""The box of a coordinate set inside kernels: the symbols a launch passes, and packing a row into a key.

key = ((b·extent_z + z − min_z)·extent_y + y − min_y)·extent_x + x − min_x. The box reaches a halo of
(K // 2)·dilation beyond the voxels on every side, so the key of a neighbour is the row's key plus a constant
of the tap and never belongs to another line or batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from spconv_compiler.bindings import ir
from spconv_compiler.dialect.plan import symbol
from spconv_compiler.passes.gpu.lanes import load, times
from spconv_compiler.passes.kernel_builder import V, i32, i64, like

NAMES = ("min_z", "min_y", "min_x", "extent_z", "extent_y", "extent_x", "batches")


def key_type(key_width: int) -> ir.Type:
    return i32() if key_width == 32 else i64()


def box_types(key_width: int) -> list[ir.Type]:
    """Types of the kernel arguments that Box takes."""
    return [key_type(key_width)] * len(NAMES)


def box_symbols(key_width: int) -> list[ir.Value]:
    """The launch arguments that go with box_types."""
    return [symbol(name, key_type(key_width)) for name in NAMES]


@dataclasses.dataclass(frozen=True)
class Box:
    """Minimum and extent per axis (z, y, x), halo included, and the number of batches; all of the key's type."""

    low: tuple[V, V, V]
    extent: tuple[V, V, V]
    batches: V

    @staticmethod
    def of(arguments: Sequence[V]) -> Box:
        return Box(tuple(arguments[:3]), tuple(arguments[3:6]), arguments[6])  # type: ignore[arg-type]

    def pack(self, coords: V, row: V, halo: Sequence[int]) -> tuple[V, V]:
        """(inside, key) of a row of coords. Where `inside` is false the key means nothing.

        inside: the batch is known and the voxel keeps the halo's distance from the faces of the box, so that
        the keys of all its neighbours lie in [0, cells).
        """
        columns = load(coords, times(row, 4), 4)
        key = columns.lane(0).to(self.batches.type, signed=True)
        inside = key.ult(self.batches)
        for axis in range(3):
            place = columns.lane(axis + 1).to(key.type, signed=True) - self.low[axis]
            inside = inside & (place - halo[axis]).ult(self.extent[axis] - 2 * halo[axis])
            key = key * self.extent[axis] + place
        return inside, key

    def delta(self, offset: Sequence[V | int]) -> V:
        """The key's distance for a coordinate offset (z, y, x), each a number or a value of the key's type."""
        total = like(offset[0], self.batches.type)
        for axis in (1, 2):
            total = total * self.extent[axis] + offset[axis]
        return total
