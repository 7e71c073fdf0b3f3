"""What spconv-run reads and writes: a cloud and its voxels in, an .npz file out."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spconv_compiler import reference
from spconv_compiler.errors import InputError
from spconv_compiler.io import PointCloud, Voxels, demo_scan, get_preset, read_points, voxelize
from spconv_compiler.tools.console import check_writable, count, say, write_whole

DEFAULT_VOXEL = 0.1
"""Metres, where nothing says more."""


def source(arguments: argparse.Namespace) -> str:
    """Where the points come from, for people."""
    return "the demo" if arguments.demo else str(arguments.file)


def read_cloud(arguments: argparse.Namespace, preset: str | None = None) -> PointCloud:
    """The points; a line is printed about them.

    Args:
        preset: of the network, where the user names none.

    Raises:
        InputError: the file cannot be read; options that may help are named.
    """
    if arguments.demo:
        cloud = demo_scan(arguments.seed, arguments.beams)
    else:
        columns, preset = arguments.columns, arguments.preset or preset
        name = arguments.file.name.lower()
        # A preset knows its data set's files better than the bare suffix does; .pcd.bin names its own.
        if columns is None and preset and name.endswith(".bin") and not name.endswith(".pcd.bin"):
            known = get_preset(preset).columns
            columns = known if known != 4 else None
        try:
            cloud = read_points(arguments.file, columns=columns, dtype=arguments.raw_dtype, key=arguments.key)
        except InputError as error:
            file = f"{arguments.file}: "
            raise InputError(file + _with_options(str(error).removeprefix(file))) from error
    lost = f", {count(cloud.dropped, 'row')} with NaN or infinite x, y, z dropped" if cloud.dropped else ""
    say(f"points    {len(cloud):,} from {source(arguments)} ({cloud.source_format}){lost}")
    return cloud


def _with_options(message: str) -> str:
    """What the reader says, its arguments called what they are on the command line."""
    for argument, option in (("columns", "--columns"), ("dtype", "--raw-dtype"), ("key", "--key")):
        # columns=5, dtype='float16' and, in descriptions, columns= alone.
        message = re.sub(rf"\b{argument}='?(\w+)'?", rf"{option} \1", message)
        message = re.sub(rf"\b{argument}=(?!\w)", option, message)
    return message


@dataclass(frozen=True, eq=False)
class Grid:
    """Voxels and the edge lengths they were made with, metres, (x, y, z)."""

    voxels: Voxels
    voxel_size: tuple[float, ...]


def make_grid(arguments: argparse.Namespace, cloud: PointCloud, preset: str | None = None) -> Grid:
    """The voxels of a cloud; a line is printed about them.

    Args:
        preset: of the network, where the user names neither a preset nor a voxel size.

    Raises:
        InputError: there would be no voxel, or too many cells.
    """
    name = arguments.preset
    if name is None and arguments.voxel_size is None:
        name = "nuscenes" if str(arguments.file or "").lower().endswith(".pcd.bin") else preset
    known = None if name is None else get_preset(name)
    lengths = arguments.voxel_size or (known.voxel_size if known else (DEFAULT_VOXEL,))
    lengths = lengths * 3 if len(lengths) == 1 else lengths
    box = arguments.range or (known.point_range if known else None)
    voxels = voxelize(cloud.xyz, cloud.features, lengths, box)
    if len(voxels) == 0:
        raise InputError(f"{source(arguments)}: no voxel: {_why_empty(cloud, box)}")
    features = count(voxels.features.shape[1], "feature")
    say(
        f"voxels    {len(voxels):,} of {' x '.join(f'{length:g}' for length in lengths)} m"
        f"{f' (preset {name})' if name else ''}, grid {' x '.join(map(str, voxels.spatial_shape))} (z, y, x)"
        f"{_losses(voxels)}; {features}{', standardised' if arguments.weights is None else ''}"
    )
    return Grid(voxels, lengths)


def _losses(voxels: Voxels) -> str:
    odd = int((~np.isfinite(voxels.features)).any(axis=1).sum())
    outside = f", {count(voxels.dropped, 'point')} out of range" if voxels.dropped else ""
    return outside + (f", {odd:,} with NaN or infinite features" if odd else "")


def _why_empty(cloud: PointCloud, box: Sequence[float] | None) -> str:
    if len(cloud) == 0:
        return "no point has finite x, y, z"
    low, high = cloud.xyz.min(axis=0), cloud.xyz.max(axis=0)
    extents = ", ".join(f"{axis} {a:g}..{b:g}" for axis, a, b in zip("xyz", low, high, strict=True))
    return f"its points span {extents} m, all outside the range {tuple(box or ())}; give --range or another --preset"


def output_path(arguments: argparse.Namespace) -> Path | None:
    """Where the result goes, if anywhere; refuses what cannot be written before any work is done."""
    if arguments.no_output:
        return None
    out = arguments.out
    if out is None:
        name = "demo" if arguments.demo else arguments.file.name
        for suffix in (".npz", ".npy", ".bin", ".pcd"):
            name = name.removesuffix(suffix)
        out = Path(f"{name}-features.npz")
    real = check_writable(out)
    if arguments.file is not None and arguments.file.exists() and real.exists() and real.samefile(arguments.file):
        raise InputError(f"{out}: is the input; it is not overwritten")
    return real


def write_result(out: Path, arguments: argparse.Namespace, grid: Grid, results: Mapping[str, Any]) -> int:
    """Writes results, the voxels and what made them as .npz; returns its size.

    bf16 results are stored as float32, which holds them exactly: numpy has no bfloat16.
    """
    arrays: dict[str, Any] = {
        name: value if isinstance(value, np.ndarray) else reference.to_numpy(value) for name, value in results.items()
    }
    arrays |= {
        "coords": grid.voxels.coords,
        "points_per_voxel": grid.voxels.points_per_voxel,
        "spatial_shape": np.array(grid.voxels.spatial_shape, np.int64),
        "voxel_size": np.array(grid.voxel_size, np.float64),
        "origin": np.array(grid.voxels.origin, np.float64),
        "net": np.array(arguments.net),
        "dtype": np.array(arguments.dtype),
        "seed": np.array(arguments.seed, np.int64),
    }
    return write_whole(out, lambda file: np.savez(file, **arrays))
