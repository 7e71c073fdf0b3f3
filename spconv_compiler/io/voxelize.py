"""Points to voxels, and voxels to coarser voxels, in numpy.

A voxel is a cell that holds at least one point: index = floor((p - range_min) / voxel_size). The arithmetic
is float32 by default, as in spconv's and OpenPCDet's voxelisers, so that a trained network sees the cells it
was trained on. It matters: KITTI stores whole millimetres, so one point in 50 lies on a face of a 5 cm grid,
where rounding decides, and 1 % of the cells differ in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.errors import InputError

# Cells along one axis: float32 counts exactly up to 2^24, and coordinates are int32.
_MAX_CELLS = {"float32": 2**24, "float64": 2**31 - 1}


@dataclass(frozen=True, eq=False)
class Voxels:
    """Occupied cells in ascending (z, y, x) order.

    coords: int32 [N, 4], columns batch (always 0), z, y, x.
    features: float32 [N, F], mean of the features of the points inside.
    points_per_voxel: int32 [N].
    spatial_shape: cells along (z, y, x); coords lie in [0, spatial_shape).
    origin: position of the low corner of cell (0, 0, 0), metres, (x, y, z).
    dropped: points left out, outside the range or not finite.
    """

    coords: npt.NDArray[np.int32]
    features: npt.NDArray[np.float32]
    points_per_voxel: npt.NDArray[np.int32]
    spatial_shape: tuple[int, int, int]
    origin: tuple[float, float, float]
    dropped: int

    def __len__(self) -> int:
        return int(self.coords.shape[0])


def voxelize(
    xyz: npt.ArrayLike,
    features: npt.ArrayLike,
    voxel_size: float | Sequence[float] | npt.NDArray[Any],
    point_range: Sequence[float] | npt.NDArray[Any] | None = None,
    *,
    arithmetic: str = "float32",
) -> Voxels:
    """Merges the points that share a cell.

    xyz: [P, 3] metres. features: [P, F]. voxel_size: metres, one number or (x, y, z).
    point_range: (x_min, y_min, z_min, x_max, y_max, z_max), metres, upper faces excluded; None: the box
    of the finite points, with its low corner as origin.
    arithmetic: "float32" or "float64", the type in which cell indices are computed.

    Raises InputError for shapes that do not match, sizes or ranges that are not positive, and grids with
    more cells along an axis than the arithmetic (2^24) or int32 can count.
    """
    if arithmetic not in _MAX_CELLS:
        raise InputError(f"arithmetic={arithmetic!r}; accepted: {', '.join(_MAX_CELLS)}")
    points, values = _check_points(xyz, features, arithmetic)
    size = _check_voxel_size(voxel_size)
    inside = np.isfinite(points).all(axis=1)
    if point_range is not None:
        low, high = _check_range(point_range)
        lowest, upper = low.astype(arithmetic), high.astype(arithmetic)
        for axis in range(3):
            column = points[:, axis]
            inside &= (column >= lowest[axis]) & (column < upper[axis])
        # A sliver of a cell is rounding (of 70.4 / 0.05, or of a range given in float32), not one more cell.
        shape = _checked_shape(np.ceil((high - low) / size - 1e-3), arithmetic)
    if not inside.all():
        points, values = points[inside], values[inside]
    if point_range is None:
        low = points.min(axis=0).astype(np.float64) if len(points) else np.zeros(3)
        high = points.max(axis=0).astype(np.float64) if len(points) else np.zeros(3)
        _checked_shape((high - low) / size + 1.0, arithmetic)
    cells = [_cell_indices(points[:, axis], low[axis], size[axis], arithmetic) for axis in (2, 1, 0)]
    if point_range is None:
        shape = tuple(int(c.max(initial=-1)) + 1 for c in cells)
    else:
        # A point just below the upper face is inside even where its quotient rounds up to the face.
        cells = [np.minimum(c, extent - 1) for c, extent in zip(cells, shape, strict=True)]
    distinct, voxel_of_point = _unique_cells(cells, shape)
    counts = np.bincount(voxel_of_point, minlength=len(distinct[0]))
    return Voxels(
        coords=np.stack([np.zeros_like(distinct[0]), *distinct], axis=1).astype(np.int32),
        features=_means(values, voxel_of_point, counts),
        points_per_voxel=counts.astype(np.int32),
        spatial_shape=(shape[0], shape[1], shape[2]),
        origin=(float(low[0]), float(low[1]), float(low[2])),
        dropped=int(len(inside) - len(points)),
    )


def _check_points(
    xyz: npt.ArrayLike, features: npt.ArrayLike, arithmetic: str
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
    points = np.asarray(xyz, dtype=arithmetic)
    values = np.asarray(features, dtype=np.float32)
    if points.ndim != 2 or points.shape[1] != 3:
        raise InputError(f"xyz has shape {list(points.shape)}; accepted: [P, 3]")
    if values.ndim != 2 or values.shape[0] != points.shape[0]:
        raise InputError(
            f"features has shape {list(values.shape)} for {len(points)} points; accepted: [{len(points)}, F]"
        )
    return points, values


def _check_voxel_size(voxel_size: float | Sequence[float] | npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    size = np.asarray(voxel_size, dtype=np.float64)
    if size.shape not in ((), (3,)) or not (np.isfinite(size) & (size > 0)).all():
        raise InputError(f"voxel_size={voxel_size!r}; accepted: a positive length in metres, or three (x, y, z)")
    return np.broadcast_to(size, (3,))


def _check_range(
    point_range: Sequence[float] | npt.NDArray[Any],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    box = np.asarray(point_range, dtype=np.float64)
    if box.shape != (6,) or not np.isfinite(box).all() or not (box[:3] < box[3:]).all():
        raise InputError(
            f"point_range={point_range!r}; accepted: (x_min, y_min, z_min, x_max, y_max, z_max), min < max"
        )
    return box[:3], box[3:]


def _checked_shape(cells_xyz: npt.NDArray[np.float64], arithmetic: str) -> tuple[int, ...]:
    limit = _MAX_CELLS[arithmetic]
    if not (cells_xyz <= limit).all():
        raise InputError(
            f"the grid would have {', '.join(f'{n:.4g}' for n in cells_xyz)} cells along x, y, z; at most "
            f"{limit} can be counted in {arithmetic}; accepted: larger voxels, or a range that drops far "
            f"points{', or float64 arithmetic (arithmetic=)' if arithmetic != 'float64' else ''}"
        )
    return tuple(int(n) for n in cells_xyz[::-1])


def _cell_indices(points: npt.NDArray[Any], low: float, size: float, arithmetic: str) -> npt.NDArray[np.int64]:
    real = np.dtype(arithmetic).type
    cells = points - real(low)
    cells /= real(size)
    indices: npt.NDArray[np.int64] = np.floor(cells, out=cells).astype(np.int64)
    return indices


def _means(
    values: npt.NDArray[np.float32], voxel_of_point: npt.NDArray[np.intp], counts: npt.NDArray[np.intp]
) -> npt.NDArray[np.float32]:
    means = np.empty((len(counts), values.shape[1]), np.float32)
    for column in range(values.shape[1]):
        # bincount adds in point order in float64: the result depends on nothing but the input.
        sums = np.bincount(voxel_of_point, weights=values[:, column], minlength=len(counts))
        means[:, column] = sums / counts
    return means


def _unique_cells(
    columns: Sequence[npt.NDArray[np.int64]], extents: Sequence[int]
) -> tuple[list[npt.NDArray[np.int64]], npt.NDArray[np.intp]]:
    """Distinct tuples in ascending order, as columns, and the index of each input among them.

    columns[k] holds values in [0, extents[k]); the first column is the most significant.
    """
    n = len(columns[0])
    if n == 0:
        return [c[:0] for c in columns], np.zeros(0, np.intp)
    cells = math.prod(extents)
    if cells <= 2**63 // n:
        # Key and row in one integer: a plain sort is several times faster than an argsort.
        packed = _pack(columns, extents)
        packed *= n
        packed += np.arange(n)
        packed.sort()
        keys, order = np.divmod(packed, n)
        changes = keys[1:] != keys[:-1]
    else:
        order = np.lexsort(tuple(reversed(columns)))
        changes = np.zeros(n - 1, np.bool_)
        for column in columns:
            changes |= column[order[1:]] != column[order[:-1]]
    first = np.concatenate([[True], changes])
    inverse = np.empty(n, np.intp)
    inverse[order] = np.cumsum(first) - 1
    return [c[order[first]] for c in columns], inverse


def _pack(columns: Sequence[npt.NDArray[np.int64]], extents: Sequence[int]) -> npt.NDArray[np.int64]:
    keys = np.zeros(len(columns[0]), np.int64)
    for column, extent in zip(columns, extents, strict=True):
        keys *= extent
        keys += column
    return keys


def strided_shape(
    spatial_shape: Sequence[int], stride: int = 2, kernel_size: int = 2, padding: int = 0
) -> tuple[int, ...]:
    """Cells along each axis after a strided convolution: (n + 2 padding - kernel_size) // stride + 1."""
    return tuple((n + 2 * padding - kernel_size) // stride + 1 for n in spatial_shape)


def downsample(
    coords: npt.NDArray[Any],
    stride: int = 2,
    kernel_size: int = 2,
    padding: int = 0,
    spatial_shape: Sequence[int] | None = None,
) -> npt.NDArray[np.int32]:
    """Active sites after a strided convolution: every output that at least one active input reaches.

    Output o is reached from input c through tap i in [0, kernel_size) when o * stride = c + padding - i on
    each axis. The default (2^3 taps, stride 2, no padding) is the floor-halved set of TorchSparse and
    MinkowskiEngine; kernel_size=3, padding=1 is spconv's SparseConv3d, which grows the set.

    coords: int32 [N, 4] (batch, z, y, x). spatial_shape: input cells along (z, y, x); given, sites outside
    [0, strided_shape(...)) are left out, otherwise the grid has no border.
    Returns int32 [M, 4], distinct, ascending in (batch, z, y, x).
    """
    rows = np.asarray(coords)
    if rows.ndim != 2 or rows.shape[1] != 4 or rows.dtype.kind != "i":
        raise InputError(f"coords has shape {list(rows.shape)} and dtype {rows.dtype}; accepted: int32 [N, 4]")
    if stride < 1 or kernel_size < 1 or padding < 0:
        raise InputError(f"stride={stride}, kernel_size={kernel_size}, padding={padding}; accepted: >= 1, >= 1, >= 0")
    limits: Sequence[int | None] = (None, None, None)
    if spatial_shape is not None:
        limits = strided_shape(spatial_shape, stride, kernel_size, padding)
    columns = [rows[:, k].astype(np.int64) for k in range(4)]
    for axis, limit in zip((1, 2, 3), limits, strict=True):
        columns = _stride_axis(columns, axis, stride, kernel_size, padding, limit)
    return np.stack(columns, axis=1).astype(np.int32)


def _stride_axis(
    columns: list[npt.NDArray[np.int64]],
    axis: int,
    stride: int,
    kernel_size: int,
    padding: int,
    limit: int | None,
) -> list[npt.NDArray[np.int64]]:
    """Applies the rule along one axis. The axes are independent; merging after each keeps the set small."""
    reached: list[list[npt.NDArray[np.int64]]] = [[] for _ in columns]
    for tap in range(kernel_size):
        quotient, remainder = np.divmod(columns[axis] + (padding - tap), stride)
        hit = remainder == 0
        if limit is not None:
            hit &= (quotient >= 0) & (quotient < limit)
        for k, column in enumerate(columns):
            reached[k].append((quotient if k == axis else column)[hit])
    merged = [np.concatenate(parts) for parts in reached]
    if len(merged[0]) == 0:
        return merged
    lows = [int(column.min()) for column in merged]
    extents = [int(column.max()) - low + 1 for column, low in zip(merged, lows, strict=True)]
    shifted = [column - low for column, low in zip(merged, lows, strict=True)]
    return [column + low for column, low in zip(_unique_cells(shifted, extents)[0], lows, strict=True)]
