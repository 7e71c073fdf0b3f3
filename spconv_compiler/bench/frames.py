"""Voxel sets to measure on: real frames where the point clouds are present, generated ones elsewhere.

nuscenes-l0 is a ten-sweep nuScenes cloud at 0.075 x 0.075 x 0.2 m in the CenterPoint range, l1 to l3 its levels
behind strided convolutions (kernel 3, stride 2, padding 1); semantickitti is frame 0 of sequence 00 at 5 cm; scannet
is scene0000_00 at 2 cm, waymo the frame that spconv measures with, at 0.1 x 0.1 x 0.15 m.
generated-l0 to l3 and generated-5cm are like them in size and density, from a generated scan.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spconv_compiler import reference
from spconv_compiler.errors import InputError
from spconv_compiler.io import PointCloud, Voxels, demo_scan, downsample, get_preset, read_points, voxelize
from spconv_compiler.io.voxelize import strided_shape

NUSCENES = "nuscenes/ff9eff4389a740848f9a56ad749a4ae8.bin"
SEMANTICKITTI = "semantickitti/00/velodyne/000000.bin"
SCANNET = "scannet/scene0000_00_vert_all.npy"
WAYMO = "waymo/benchmark-pc.npz"
REAL = ("nuscenes-l0", "nuscenes-l1", "nuscenes-l2", "nuscenes-l3", "semantickitti")
GENERATED = ("generated-l0", "generated-l1", "generated-l2", "generated-l3", "generated-5cm")
TINY = "generated-tiny"
# Maps are measured on more frames than convolutions: they depend on density and extent alone.
MORE_REAL = {"scannet": SCANNET, "waymo": WAYMO}
NAMES = (*REAL, *MORE_REAL, *GENERATED, TINY)


@dataclass(frozen=True, eq=False)
class Frame:
    """One voxel set.

    Attributes:
        name: one of NAMES.
        coords: int32 [N, 4] (batch, z, y, x), distinct.
        spatial_shape: (z, y, x) that coords lie in.
        table: its 3x3x3 neighbour table, int32 [N, 27], from the reference.
    """

    name: str
    coords: npt.NDArray[np.int32]
    spatial_shape: tuple[int, ...]
    table: reference.Rows

    @property
    def pairs(self) -> int:
        return int(np.count_nonzero(self.table >= 0))


def default_data() -> Path:
    """Where the point clouds lie if nothing else is said: shared/data beside the checkout."""
    return Path(__file__).resolve().parents[3] / "shared" / "data"


def default_names(data: Path) -> tuple[str, ...]:
    """The real frames if their files are in `data`, else the generated ones."""
    return REAL if (data / NUSCENES).is_file() and (data / SEMANTICKITTI).is_file() else GENERATED


def map_names(data: Path) -> tuple[str, ...]:
    """As default_names, with the further frames whose files are in `data`."""
    return (*default_names(data), *(name for name, file in MORE_REAL.items() if (data / file).is_file()))


def load_frame(name: str, data: Path, shuffle: bool = False) -> Frame:
    """Builds a frame; rows ascend in (batch, z, y, x) or, with `shuffle`, come in a fixed random order.

    Raises:
        InputError: no frame has that name, or its file is not in `data`.
    """
    if name not in NAMES:
        raise InputError(f"unknown frame {name!r}; accepted: {', '.join(NAMES)}")
    coords, shape = _voxels(name, data)
    if shuffle:
        coords = np.random.default_rng(0).permutation(coords)
    return Frame(name, coords, shape, reference.kernel_map(coords))


def _voxels(name: str, data: Path) -> tuple[npt.NDArray[np.int32], tuple[int, ...]]:
    if name == "semantickitti":
        return _cells(_voxelized(read_points(data / SEMANTICKITTI), "semantickitti"))
    if name in MORE_REAL:
        return _cells(_voxelized(read_points(data / MORE_REAL[name]), name))
    if name == "generated-5cm":
        return _cells(_voxelized(demo_scan(), "semantickitti"))
    if name == TINY:
        return _cells(_voxelized(demo_scan(beams=4, azimuths=500), "semantickitti"))
    coords, shape = _ten_sweeps(data) if name.startswith("nuscenes") else _dense_scan()
    for _ in range(int(name[-1])):
        coords = downsample(coords, 2, 3, 1, shape)
        shape = strided_shape(shape, 2, 3, 1)
    return coords, shape


@functools.cache
def _ten_sweeps(data: Path) -> tuple[npt.NDArray[np.int32], tuple[int, ...]]:
    return _cells(_voxelized(read_points(data / NUSCENES, columns=5, dtype="float16"), "nuscenes"))


@functools.cache
def _dense_scan() -> tuple[npt.NDArray[np.int32], tuple[int, ...]]:
    # As many voxels in the CenterPoint range as ten nuScenes sweeps give.
    return _cells(_voxelized(demo_scan(beams=128, azimuths=4000), "nuscenes"))


def _voxelized(cloud: PointCloud, preset: str) -> Voxels:
    chosen = get_preset(preset)
    return voxelize(cloud.xyz, cloud.features, chosen.voxel_size, chosen.point_range)


def _cells(voxels: Voxels) -> tuple[npt.NDArray[np.int32], tuple[int, ...]]:
    return voxels.coords, voxels.spatial_shape
