"""Plain meaning of ops between two coordinate sets, through dictionaries: strided, transposed, inverse, pools.

The oracle of tests; nothing here is shared with the compiled path. Through tap i, in (z, y, x) order, coarse voxel
c meets fine voxel c·stride − padding + i·dilation, in the same batch. Convolution and pools read fine voxels and
write coarse ones; transposed and inverse convolution read coarse ones and write fine ones, with the same tap.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spconv_compiler.reference import Floats, Pairs, as_coords, as_triple, gather_gemm_scatter, to_numpy

Voxel = tuple[int, int, int, int]
Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Grid:
    """Which voxels meet: kernel size, stride, padding and dilation, (z, y, x) each."""

    kernel_size: Triple
    stride: Triple
    padding: Triple
    dilation: Triple

    @staticmethod
    def of(
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
    ) -> Grid:
        """From one number or three each."""
        return Grid(as_triple(kernel_size), as_triple(stride), as_triple(padding), as_triple(dilation))

    def taps(self) -> Iterator[Triple]:
        """Every tap, in order."""
        depth, height, width = self.kernel_size
        return itertools.product(range(depth), range(height), range(width))

    def fine_of(self, coarse: Voxel, tap: Triple) -> Voxel:
        """The fine voxel that `coarse` meets through `tap`."""
        steps = zip(coarse[1:], tap, self.stride, self.padding, self.dilation, strict=True)
        z, y, x = (c * s - p + i * d for c, i, s, p, d in steps)
        return coarse[0], z, y, x

    def coarse_of(self, fine: Voxel, tap: Triple) -> Voxel | None:
        """The coarse voxel that meets `fine` through `tap`, if there is one."""
        found = []
        for f, i, s, p, d in zip(fine[1:], tap, self.stride, self.padding, self.dilation, strict=True):
            quotient, remainder = divmod(f + p - i * d, s)
            if remainder:
                return None
            found.append(quotient)
        return fine[0], found[0], found[1], found[2]

    def output_shape(self, shape: Sequence[int]) -> Triple:
        """The shape that a convolution makes of `shape`; an axis may come out empty."""
        axes = zip(shape, self.kernel_size, self.stride, self.padding, self.dilation, strict=True)
        z, y, x = (max((n + 2 * p - d * (k - 1) - 1) // s + 1, 0) for n, k, s, p, d in axes)
        return z, y, x

    def transposed_shape(self, shape: Sequence[int], output_padding: int | Sequence[int] = 0) -> Triple:
        """The shape that a transposed convolution makes of `shape`, as in spconv: dilation does not count."""
        axes = zip(shape, self.kernel_size, self.stride, self.padding, as_triple(output_padding), strict=True)
        z, y, x = (max((n - 1) * s - 2 * p + k + o, 0) for n, k, s, p, o in axes)
        return z, y, x


def voxels_of(coords: Any) -> list[Voxel]:
    """Rows as tuples (batch, z, y, x)."""
    return [(b, z, y, x) for b, z, y, x in as_coords(coords).tolist()]


def outputs(coords: Any, grid: Grid, *, transposed: bool = False, shape: Sequence[int] | None = None) -> list[Voxel]:
    """Every voxel that some voxel of `coords` meets, ascending; those in [0, shape) only, if it is given."""
    found: set[Voxel] = set()
    for voxel in voxels_of(coords):
        for tap in grid.taps():
            other = grid.fine_of(voxel, tap) if transposed else grid.coarse_of(voxel, tap)
            if other is not None and _inside(other, shape):
                found.add(other)
    return sorted(found)


def _inside(voxel: Voxel, shape: Sequence[int] | None) -> bool:
    return shape is None or all(0 <= n < limit for n, limit in zip(voxel[1:], shape, strict=True))


def union(*sets: Any) -> list[Voxel]:
    """Every voxel that any of several sets has, ascending."""
    return sorted({voxel for coords in sets for voxel in voxels_of(coords)})


def triples(fine: Any, coarse: Any, grid: Grid) -> Iterable[tuple[int, int, int]]:
    """(tap, row of fine, row of coarse) of every pair, in the order of taps, then of coarse rows."""
    row_of = {voxel: row for row, voxel in enumerate(voxels_of(fine))}
    coarse_voxels = voxels_of(coarse)
    for number, tap in enumerate(grid.taps()):
        for row, voxel in enumerate(coarse_voxels):
            met = row_of.get(grid.fine_of(voxel, tap))
            if met is not None:
                yield number, met, row


def pairs(fine: Any, coarse: Any, grid: Grid, *, transposed: bool = False) -> Pairs:
    """The pairs of a convolution from fine to coarse, or transposed, tap after tap."""
    found = np.array(list(triples(fine, coarse, grid)), np.int64).reshape(-1, 3)
    start = np.searchsorted(found[:, 0], np.arange(np.prod(grid.kernel_size) + 1))
    in_rows, out_rows = (found[:, 2 if transposed else 1], found[:, 1 if transposed else 2])
    return Pairs(in_rows.astype(np.int32), out_rows.astype(np.int32), start.astype(np.int64))


def conv3d(
    coords: Any, out_coords: Any, features: Any, weight: Any, grid: Grid, bias: Any = None, *, transposed: bool = False
) -> Floats:
    """[rows of out_coords, C_out] in float64: transposed reads coarse rows and writes fine ones; weight is native."""
    fine, coarse = (out_coords, coords) if transposed else (coords, out_coords)
    found = pairs(fine, coarse, grid, transposed=transposed)
    out = gather_gemm_scatter(features, weight, found, len(as_coords(out_coords)))
    return out if bias is None else out + to_numpy(bias).astype(np.float64)


def pool3d(coords: Any, out_coords: Any, features: Any, grid: Grid, mode: str) -> Floats:
    """[rows of out_coords, C]: per row the greatest ("max") or the mean ("avg") of what it meets; 0 for nothing."""
    values = to_numpy(features).astype(np.float64)
    met: dict[int, list[int]] = {}
    for _, fine_row, coarse_row in triples(coords, out_coords, grid):
        met.setdefault(coarse_row, []).append(fine_row)
    out = np.zeros((len(as_coords(out_coords)), values.shape[1]))
    for row, inputs in met.items():
        out[row] = values[inputs].max(axis=0) if mode == "max" else values[inputs].mean(axis=0)
    return out
