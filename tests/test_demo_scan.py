"""The generated scan has the statistics that a sparse convolution sees in real frames."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from spconv_compiler.errors import InputError
from spconv_compiler.io import demo_scan, voxelize
from spconv_compiler.io.demo_scan import MAX_RANGE, RANGE_NOISE, SENSOR_HEIGHT


def pairs_per_voxel(coords: np.ndarray) -> float:
    """3^3 pairs a voxel by set intersection, the centre included; shares nothing with the package's maps."""
    keys = {(z << 40) + (y << 20) + x for _, z, y, x in (coords + [0, 1, 1, 1]).tolist()}
    half = [o for o in itertools.product((-1, 0, 1), repeat=3) if o > (0, 0, 0)]
    shifts = [(dz << 40) + (dy << 20) + dx for dz, dy, dx in half]
    return 1.0 + 2.0 * sum(len(keys & {k + shift for k in keys}) for shift in shifts) / len(keys)


def test_independent_counting_on_known_sets() -> None:
    row = np.array([[0, 0, 0, x] for x in range(10)])
    assert pairs_per_voxel(row) == pytest.approx(1.0 + 2.0 * 9 / 10)
    block = np.array([[0, *zyx] for zyx in itertools.product(range(2), repeat=3)])
    assert pairs_per_voxel(block) == 8.0


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("voxel_size", [0.05, 0.1])
def test_neighbour_statistics_of_real_frames(seed: int, voxel_size: float) -> None:
    """3 to 8 pairs a voxel; KITTI, SemanticKITTI, Waymo: 3.3 to 5.0 at 5 cm, 5.2 to 7.5 at 10 cm."""
    cloud = demo_scan(seed)
    coords = voxelize(cloud.xyz, cloud.features, voxel_size).coords
    assert 3.0 < pairs_per_voxel(coords) < 8.0
    assert 40_000 < len(coords) < 100_000


def test_points_of_a_64_beam_scan() -> None:
    cloud = demo_scan()
    assert 90_000 < len(cloud) < 64 * 2083
    assert cloud.xyz.dtype == cloud.features.dtype == np.float32
    assert cloud.features.shape == (len(cloud), 4)
    assert np.array_equal(cloud.features[:, :3], cloud.xyz)
    assert 0.0 <= cloud.features[:, 3].min() and cloud.features[:, 3].max() <= 1.0
    distance = np.linalg.norm(cloud.xyz, axis=1)
    assert 3.0 < distance.min() and 60.0 < distance.max() < MAX_RANGE + 6 * RANGE_NOISE
    elevation = np.degrees(np.arcsin(cloud.xyz[:, 2] / distance))
    assert len(np.unique(np.round(elevation, 2))) <= 128  # rings, not a cloud of directions
    assert np.abs(np.median(cloud.xyz[distance < 6.0, 2]) + SENSOR_HEIGHT) < 0.1


def test_walls_hide_what_is_behind() -> None:
    """At most one return a ray: no two points of a beam share an azimuth."""
    cloud = demo_scan(3, beams=16, azimuths=360)
    direction = np.arctan2(cloud.xyz[:, 1], cloud.xyz[:, 0]), cloud.xyz[:, 2] / np.hypot(*cloud.xyz[:, :2].T)
    rays = np.round(np.stack(direction), 4)
    assert len(np.unique(rays, axis=1).T) == len(cloud)
    assert len(cloud) <= 16 * 360


def test_one_seed_gives_one_scan() -> None:
    first, again, other = demo_scan(5), demo_scan(5), demo_scan(6)
    assert np.array_equal(first.features, again.features)
    assert first.features.shape != other.features.shape or not np.array_equal(first.features, other.features)


def test_size_follows_the_arguments() -> None:
    assert 0.4 < len(demo_scan(beams=32)) / len(demo_scan()) < 0.6
    with pytest.raises(InputError, match="beams=1"):
        demo_scan(beams=1)
    with pytest.raises(InputError, match="azimuths=0"):
        demo_scan(azimuths=0)
