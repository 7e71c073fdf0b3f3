"""Point clouds in, voxels out: readers, voxeliser, data set presets and a generated scan."""

from __future__ import annotations

from spconv_compiler.io.demo_scan import demo_scan
from spconv_compiler.io.presets import PRESETS, Preset, get_preset
from spconv_compiler.io.readers import PointCloud, is_raw_file, read_points
from spconv_compiler.io.voxelize import Voxels, downsample, strided_shape, voxelize

__all__ = [
    "PRESETS",
    "PointCloud",
    "Preset",
    "Voxels",
    "demo_scan",
    "downsample",
    "get_preset",
    "is_raw_file",
    "read_points",
    "strided_shape",
    "voxelize",
]
