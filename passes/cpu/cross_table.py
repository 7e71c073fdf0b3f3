"""The fine voxels that every coarse voxel meets: the search of half_table.py between two coordinate sets.

Both sets are packed by one box of fine voxels: a coarse voxel's key is that of the fine voxel which its first tap
meets (sorted_keys.py), so through tap i it meets the key that lies a constant behind its own. All taps are searched;
there is no mirror image.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from spconv_compiler.passes.cpu.half_table import GRAIN, SPAN, Geometry, HalfTable
from spconv_compiler.passes.cpu.parallel import parallel_for, worth_workers
from spconv_compiler.passes.kernel_builder import V


@dataclasses.dataclass(frozen=True)
class CrossGeometry(Geometry):
    """What a map between two sets is searched for. Stride and padding are in the keys already."""

    @staticmethod
    def of(kernel_size: Iterable[int], dilation: Iterable[int], key_width: int) -> CrossGeometry:
        """From three numbers each."""
        (kz, ky, kx), (dz, dy, dx) = kernel_size, dilation
        return CrossGeometry((kz, ky, kx), (dz, dy, dx), key_width)

    @property
    def table_rows(self) -> int:
        """Entries of one coarse voxel: all runs."""
        return self.taps // self.run

    def offset(self, tap: V, extent_y: V, extent_x: V) -> V:
        """What a tap adds to the key of the first one, i64."""
        _, height, width = self.kernel_size
        z, y, x = tap // (height * width), tap // width % height, tap % width
        z, y, x = (index * step for index, step in zip((z, y, x), self.dilation, strict=True))
        return (z * extent_y + y) * extent_x + x


@dataclasses.dataclass(frozen=True)
class CrossTable(HalfTable):
    """Body of the search kernel.

    Arguments: coarse keys and fine keys as SortedKeys left them; table i32 [table_rows, coarse_rows]; coarse_rows,
    rows, extent_y, extent_x, threads.
    """

    geometry: CrossGeometry

    def __call__(self, *arguments: V) -> None:
        *shared, threads = arguments
        coarse_rows = shared[3]
        workers = worth_workers(threads, coarse_rows * self.geometry.table_rows, GRAIN)
        parallel_for(self.functions, self.name, (coarse_rows + (SPAN - 1)) // SPAN, workers, shared, self._span)

    def _span(self, span: V, worker: V, *shared: V) -> None:
        coarse_keys, keys, table, coarse_rows, rows, extent_y, extent_x = shared
        start = span * SPAN
        end = (start + SPAN).min(coarse_rows)
        self.search((coarse_keys, start, end), (keys, rows), (table, coarse_rows), extent_y, extent_x)
