"""Voxel settings of the usual data sets, each with where its figures come from."""

from __future__ import annotations

from dataclasses import dataclass

from spconv_compiler.errors import InputError


@dataclass(frozen=True)
class Preset:
    """How one data set is usually voxelised.

    voxel_size: metres, (x, y, z).
    point_range: metres, (x_min, y_min, z_min, x_max, y_max, z_max); None: the cloud's own box.
    columns: values a point in the data set's own files, x, y, z first.
    source: the public configuration that states these figures.
    """

    name: str
    voxel_size: tuple[float, float, float]
    point_range: tuple[float, float, float, float, float, float] | None
    columns: int
    source: str


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            name="kitti",
            voxel_size=(0.05, 0.05, 0.1),
            point_range=(0.0, -40.0, -3.0, 70.4, 40.0, 1.0),
            columns=4,
            source="OpenPCDet tools/cfgs/dataset_configs/kitti_dataset.yaml (SECOND, PV-RCNN)",
        ),
        Preset(
            name="nuscenes",
            voxel_size=(0.075, 0.075, 0.2),
            point_range=(-54.0, -54.0, -5.0, 54.0, 54.0, 3.0),
            columns=5,
            source="OpenPCDet tools/cfgs/nuscenes_models/cbgs_voxel0075_res3d_centerpoint.yaml",
        ),
        Preset(
            name="waymo",
            voxel_size=(0.1, 0.1, 0.15),
            point_range=(-75.2, -75.2, -2.0, 75.2, 75.2, 4.0),
            columns=6,
            source="OpenPCDet tools/cfgs/dataset_configs/waymo_dataset.yaml; points are x, y, z, intensity, "
            "elongation, no-label-zone flag",
        ),
        Preset(
            name="semantickitti",
            voxel_size=(0.05, 0.05, 0.05),
            point_range=None,
            columns=4,
            source="Pointcept configs/semantic_kitti/semseg-minkunet34c-0-base.py: grid_size, not its crop",
        ),
        Preset(
            name="scannet",
            voxel_size=(0.02, 0.02, 0.02),
            point_range=None,
            columns=6,
            source="Pointcept configs/scannet/semseg-spunet-v1m1-0-base.py: grid_size; points are x, y, z, "
            "red, green, blue",
        ),
    )
}


def get_preset(name: str) -> Preset:
    """The preset of that name; InputError lists the known names."""
    if name not in PRESETS:
        raise InputError(f"unknown preset {name!r}; accepted: {', '.join(PRESETS)}")
    return PRESETS[name]
