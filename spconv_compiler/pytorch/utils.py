"""Points to voxels with the points kept, as spconv.pytorch.utils does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spconv_compiler.errors import InputError

_FLOAT32_COUNTS_TO = 2**24


class PointToVoxel:
    """Sorts points into voxels; a voxel keeps its first points.

    Voxels are numbered in the order in which their first points come. Cells are found in f32, as
    floor((p − low) / size), so that a trained network sees the cells it was trained on.

    Args:
        vsize_xyz: metres per axis, (x, y, z) or fewer.
        coors_range_xyz: (x_min, y_min, z_min, x_max, y_max, z_max); the upper faces are excluded.
        num_point_features: F, the columns of a point cloud; the first are x, y, z.
        max_num_voxels: points of further voxels are left out.
        max_num_points_per_voxel: further points of a voxel are left out.
        device: of the results; points are sorted on the host.

    Raises:
        InputError: sizes, range or limits are not accepted.
    """

    def __init__(
        self,
        vsize_xyz: Sequence[float] | npt.NDArray[Any],
        coors_range_xyz: Sequence[float] | npt.NDArray[Any],
        num_point_features: int,
        max_num_voxels: int,
        max_num_points_per_voxel: int,
        device: torch.device | str = "cpu",
    ) -> None:
        size = np.asarray(vsize_xyz, np.float64)
        box = np.asarray(coors_range_xyz, np.float64)
        if size.ndim != 1 or not 1 <= len(size) <= 3 or not (np.isfinite(size) & (size > 0)).all():
            raise InputError(f"vsize_xyz is {vsize_xyz!r}; accepted: one to three positive lengths")
        self.ndim = len(size)
        low, high = box[: self.ndim], box[self.ndim :]
        if box.shape != (2 * self.ndim,) or not np.isfinite(box).all() or not (low < high).all():
            raise InputError(f"coors_range_xyz is {coors_range_xyz!r}; accepted: {self.ndim} minima, then the maxima")
        cells = np.round((high - low) / size)
        if (cells < 1).any() or (cells > _FLOAT32_COUNTS_TO).any():
            raise InputError(f"the range has {cells.tolist()} voxels along its axes; accepted: 1 to 2^24 along each")
        if num_point_features < self.ndim or min(max_num_voxels, max_num_points_per_voxel) < 1:
            limits = (num_point_features, max_num_voxels, max_num_points_per_voxel)
            raise InputError(f"features and limits are {limits}; accepted: at least {self.ndim} features, limits of 1")
        self.num_point_features, self.max_num_voxels = num_point_features, max_num_voxels
        self.max_num_points_per_voxel, self.device = max_num_points_per_voxel, torch.device(device)
        # spconv's attributes, per axis from z to x; coors_range: minima, then maxima.
        self.vsize, self.grid_size = size[::-1].tolist(), cells[::-1].astype(int).tolist()
        self.coors_range = [*low[::-1].tolist(), *high[::-1].tolist()]

    def __call__(
        self, pc: Tensor | npt.NDArray[Any], clear_voxels: bool = True, empty_mean: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(voxels, indices, num_per_voxel) of generate_voxel_with_id."""
        return self.generate_voxel_with_id(pc, clear_voxels, empty_mean)[:3]

    def generate_voxel_with_id(
        self, pc: Tensor | npt.NDArray[Any], clear_voxels: bool = True, empty_mean: bool = False
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Voxelises a point cloud.

        Args:
            pc: f32 [P, F].
            clear_voxels: without effect: results are new, and zero where no point is.
            empty_mean: places of a voxel that hold no point get the mean of its points.

        Returns:
            voxels f32 [V, max_num_points_per_voxel, F]; indices int32 [V, ndim] (z, y, x), without a batch;
            num_per_voxel int32 [V]; the voxel of each point int64 [P], −1 for points outside of the range, not finite,
            or beyond max_num_voxels.

        Raises:
            InputError: pc has another shape or dtype.
        """
        points = self._checked(pc)
        voxel, indices = self._number(points)
        place = _place_within(voxel, len(indices))
        kept = (voxel >= 0) & (place < self.max_num_points_per_voxel)
        voxels = np.zeros((len(indices), self.max_num_points_per_voxel, self.num_point_features), np.float32)
        voxels[voxel[kept], place[kept]] = points[kept]
        counts = np.bincount(voxel[kept], minlength=len(indices)).astype(np.int32)
        if empty_mean:
            means = voxels.sum(1, dtype=np.float64) / np.maximum(counts, 1)[:, None]
            empty = np.arange(self.max_num_points_per_voxel) >= counts[:, None]
            voxels[empty] = np.broadcast_to(means[:, None], voxels.shape)[empty]
        made = [torch.from_numpy(array).to(self.device) for array in (voxels, indices, counts, voxel)]
        return made[0], made[1], made[2], made[3]

    def _checked(self, pc: Any) -> npt.NDArray[np.float32]:
        points = pc.detach().cpu().numpy() if isinstance(pc, Tensor) else pc
        good = isinstance(points, np.ndarray) and points.dtype == np.float32 and points.ndim == 2
        if not good or points.shape[1] != self.num_point_features:
            found = f"{list(points.shape)} {points.dtype}" if isinstance(points, np.ndarray) else type(pc).__name__
            raise InputError(f"the point cloud is {found}; accepted: float32 [P, {self.num_point_features}]")
        return points

    def _number(self, points: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """(voxel of each point, or −1; indices of the voxels)."""
        low = np.array(self.coors_range[: self.ndim][::-1], np.float32)
        size, cells = np.array(self.vsize[::-1], np.float32), np.array(self.grid_size[::-1])
        place = np.floor((points[:, : self.ndim] - low) / size)
        # A comparison with NaN is false, so what is not finite is outside.
        inside = ((place >= 0) & (place < cells)).all(1)
        zyx = place[inside][:, ::-1].astype(np.int64)
        keys = np.ravel_multi_index(tuple(zyx.T), tuple(self.grid_size))
        _, first, group = np.unique(keys, return_index=True, return_inverse=True)
        order = np.argsort(first)
        number = np.empty(len(first), np.int64)
        number[order] = np.arange(len(first))
        voxel = np.full(len(points), -1, np.int64)
        voxel[inside] = number[group.reshape(-1)]
        voxel[voxel >= self.max_num_voxels] = -1
        return voxel, zyx[first[order][: self.max_num_voxels]].astype(np.int32)


def _place_within(voxel: npt.NDArray[np.int64], voxels: int) -> npt.NDArray[np.int64]:
    """How many earlier points lie in the same voxel, for each point."""
    order = np.argsort(voxel, kind="stable")
    sizes = np.bincount(voxel + 1, minlength=voxels + 1)
    starts = np.cumsum(sizes) - sizes
    place = np.empty(len(voxel), np.int64)
    place[order] = np.arange(len(voxel)) - np.repeat(starts, sizes)
    return place


def gather_features_by_pc_voxel_id(features: Tensor, pc_voxel_id: Tensor, invalid_value: float = 0) -> Tensor:
    """Features of each point's voxel, [V, …] → [P, …]; invalid_value where the point has none (−1)."""
    ids = pc_voxel_id.to(features.device)
    out = features.new_full((ids.shape[0], *features.shape[1:]), invalid_value)
    valid = ids >= 0
    out[valid] = features[ids[valid]]
    return out
