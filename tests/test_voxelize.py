"""The voxeliser against hand examples, a dictionary, and the published counts of real frames."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spconv_compiler import reference
from spconv_compiler.errors import InputError
from spconv_compiler.io import downsample, get_preset, read_points, strided_shape, voxelize


def test_example_with_a_range() -> None:
    xyz = [[0.1, 0.0, 0.0], [0.9, 0.9, 1.9], [0.2, 0.1, 0.3], [3.0, 0.0, 0.0], [-0.1, 0, 0], [np.nan, 0, 0]]
    features = [[1.0, 10.0], [2.0, 20.0], [4.0, 30.0], [0, 0], [0, 0], [0, 0]]
    voxels = voxelize(xyz, features, (1.0, 0.5, 1.0), (0, 0, 0, 3, 1, 2))
    assert voxels.coords.tolist() == [[0, 0, 0, 0], [0, 1, 1, 0]]
    assert voxels.features.tolist() == [[2.5, 20.0], [2.0, 20.0]]
    assert voxels.points_per_voxel.tolist() == [2, 1]
    assert voxels.spatial_shape == (2, 2, 3)
    assert voxels.origin == (0.0, 0.0, 0.0)
    assert voxels.dropped == 3
    assert (voxels.coords.dtype, voxels.features.dtype, voxels.points_per_voxel.dtype) == ("i4", "f4", "i4")


def test_without_a_range_the_origin_is_the_low_corner() -> None:
    voxels = voxelize([[-1.0, 5.0, 2.0], [1.0, 4.0, np.inf], [1.5, 4.0, 2.0]], np.ones((3, 1)), 0.5)
    assert voxels.origin == (-1.0, 4.0, 2.0)
    assert voxels.coords.tolist() == [[0, 0, 0, 5], [0, 0, 2, 0]]
    assert voxels.spatial_shape == (1, 3, 6)
    assert voxels.dropped == 1


@pytest.mark.parametrize("arithmetic", ["float32", "float64"])
def test_range_limits_hold_in_the_arithmetic_used(arithmetic: str) -> None:
    """The low face as that type rounds it is inside, the high one outside."""
    real = np.dtype(arithmetic).type
    low, high = real(0.7), real(70.4)
    inside = [low, np.nextafter(high, real(0))]
    xyz = np.array([[x, 0, 0] for x in (*inside, np.nextafter(low, real(0)), high)], arithmetic)
    voxels = voxelize(xyz, np.ones((4, 1)), 0.05, (0.7, -1, -1, 70.4, 1, 1), arithmetic=arithmetic)
    assert voxels.spatial_shape == (40, 40, 1394)
    assert voxels.coords[:, 3].tolist() == [0, 1393]
    assert voxels.dropped == 2
    as_float32 = np.array([0.7, -1, -1, 70.4, 1, 1], np.float32)
    assert voxelize(xyz, np.ones((4, 1)), np.float32(0.05), as_float32).spatial_shape == (40, 40, 1394)


def test_the_last_cell_takes_points_that_round_up_to_the_face() -> None:
    below = np.nextafter(np.float32(40.0), np.float32(0))
    assert np.floor((below - np.float32(-40.0)) / np.float32(0.05)) == 1600.0
    preset = get_preset("kitti")
    voxels = voxelize([[8.01, below, -2.95]], [[1.0]], preset.voxel_size, preset.point_range)
    assert voxels.coords.tolist() == [[0, 0, 1599, 160]]
    assert voxels.spatial_shape == (40, 1600, 1408)


def test_numpy_ranges_and_sizes_are_accepted() -> None:
    points = np.random.default_rng(0).uniform(-5, 5, (100, 3))
    plain = voxelize(points, points, (0.5, 0.5, 1.0), (-4, -4, -4, 4, 4, 4))
    arrays = voxelize(points, points, np.array([0.5, 0.5, 1.0], np.float32), np.array([-4, -4, -4, 4, 4, 4.0]))
    assert np.array_equal(plain.coords, arrays.coords)


@given(st.integers(0, 400), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_equals_a_dictionary_and_ignores_point_order(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    xyz = rng.uniform(-2, 2, (n, 3)).astype(np.float32)
    features = rng.integers(-50, 50, (n, 2)).astype(np.float32)
    cells: dict[tuple[int, ...], list[np.ndarray]] = {}
    for point, feature in zip(xyz, features, strict=True):
        x, y, z = ((point - np.float32(-1.5)) / np.float32(0.5)).tolist()
        if all(0.0 <= v < 6.0 for v in (x, y, z)):
            cells.setdefault((0, int(z), int(y), int(x)), []).append(feature)
    voxels = voxelize(xyz, features, 0.5, (-1.5,) * 3 + (1.5,) * 3)
    assert [tuple(row) for row in voxels.coords.tolist()] == sorted(cells)
    assert voxels.points_per_voxel.tolist() == [len(cells[key]) for key in sorted(cells)]
    for row, key in enumerate(sorted(cells)):
        assert np.array_equal(voxels.features[row], np.mean(cells[key], axis=0, dtype=np.float64).astype(np.float32))
    order = rng.permutation(n)
    shuffled = voxelize(xyz[order], features[order], 0.5, (-1.5,) * 3 + (1.5,) * 3)
    assert np.array_equal(shuffled.coords, voxels.coords) and np.array_equal(shuffled.features, voxels.features)


def test_no_points_and_no_point_inside() -> None:
    nothing = voxelize(np.zeros((0, 3)), np.zeros((0, 4)), 0.1)
    assert nothing.coords.shape == (0, 4) and nothing.features.shape == (0, 4)
    assert nothing.spatial_shape == (0, 0, 0)
    outside = voxelize(np.full((5, 3), 9.0), np.zeros((5, 4)), 0.1, (0, 0, 0, 1, 1, 1))
    assert len(outside) == 0 and outside.dropped == 5 and outside.spatial_shape == (10, 10, 10)


def test_boxes_too_large_for_a_packed_key() -> None:
    """2^93 cells: rows are sorted as triples instead of int64 keys."""
    far = 2.0**31 - 2.0
    xyz = np.array([[far, far, far], [0, 0, 0], [0, 0, far], [0, 0, 0], [far, 0, 0]])
    voxels = voxelize(xyz, np.arange(5.0)[:, None], 1.0, arithmetic="float64")
    last = 2**31 - 2
    assert voxels.coords[:, 1:].tolist() == [[0, 0, 0], [0, 0, last], [last, 0, 0], [last, last, last]]
    assert voxels.features[:, 0].tolist() == [2.0, 4.0, 2.0, 0.0]


def test_extents_beyond_int32_or_float32_are_refused() -> None:
    points, values = np.array([[0.0, 0, 0], [2.0e6, 0, 0]]), np.ones((2, 1))
    with pytest.raises(InputError, match=r"at most 16777216 can be counted in float32; accepted: .*float64"):
        voxelize(points, values, 0.05)
    assert voxelize(points, values, 0.05, arithmetic="float64").coords[1, 3] == 40_000_000
    with pytest.raises(InputError, match="at most 2147483647"):
        voxelize(points, values, 1e-4, arithmetic="float64")
    with pytest.raises(InputError, match="at most 2147483647"):
        voxelize(points, values, 1e-300, (0, 0, 0, 1, 1, 1), arithmetic="float64")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"xyz": np.zeros((4, 2))}, r"xyz has shape \[4, 2\]"),
        ({"features": np.zeros((3, 1))}, r"features has shape \[3, 1\] for 4 points"),
        ({"features": np.zeros(4)}, r"features has shape \[4\]"),
        ({"voxel_size": 0.0}, "voxel_size=0.0; accepted: a positive length"),
        ({"voxel_size": (0.1, 0.1)}, "accepted: a positive length"),
        ({"voxel_size": (0.1, -0.1, 0.1)}, "accepted: a positive length"),
        ({"voxel_size": float("nan")}, "accepted: a positive length"),
        ({"point_range": (0, 0, 0, 1, 1)}, "z_max\\), min < max"),
        ({"point_range": (0, 0, 0, 1, 0, 1)}, "z_max\\), min < max"),
        ({"arithmetic": "float16"}, "accepted: float32, float64"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    good: dict[str, object] = {"xyz": np.zeros((4, 3)), "features": np.zeros((4, 1)), "voxel_size": 0.1}
    with pytest.raises(InputError, match=message):
        voxelize(**{**good, **arguments})  # type: ignore[arg-type]


def strided_set(rows: np.ndarray, stride: int, kernel: int, padding: int) -> list[tuple[int, ...]]:
    """Every output position that some input reaches, found by trying all outputs around each input."""
    found = set()
    for batch, *c in rows.tolist():
        spans = [range((v + padding - kernel) // stride, (v + padding) // stride + 1) for v in c]
        for o in itertools.product(*spans):
            if all(0 <= v + padding - p * stride < kernel for v, p in zip(c, o, strict=True)):
                found.add((batch, *o))
    return sorted(found)


@pytest.mark.parametrize("geometry", [(2, 2, 0), (2, 3, 1), (3, 3, 0), (2, 1, 0), (1, 3, 1), (3, 2, 1)])
def test_downsample_equals_the_definition(geometry: tuple[int, int, int]) -> None:
    stride, kernel, padding = geometry
    rng = np.random.default_rng(stride * 100 + kernel * 10 + padding)
    rows = np.concatenate([rng.integers(0, 3, (60, 1)), rng.integers(-9, 10, (60, 3))], axis=1).astype(np.int32)
    got = downsample(rows, stride, kernel, padding)
    assert got.dtype == np.int32
    assert [tuple(r) for r in got.tolist()] == strided_set(rows, stride, kernel, padding)


def test_downsample_default_is_floor_halving() -> None:
    rows = np.array([[0, -1, 5, 4], [0, -2, 4, 5], [1, 0, 0, 0]], np.int32)
    assert downsample(rows).tolist() == [[0, -1, 2, 2], [1, 0, 0, 0]]


def test_downsample_within_a_border() -> None:
    rows = np.array([[0, 7, 7, 7]], np.int32)
    assert len(downsample(rows, 2, 3, 1)) == 8
    assert downsample(rows, 2, 3, 1, (8, 8, 8)).tolist() == [[0, 3, 3, 3]]
    assert len(downsample(rows - [0, 7, 7, 7], 1, 3, 1)) == 27
    assert len(downsample(rows - [0, 7, 7, 7], 1, 3, 1, (8, 8, 8))) == 8
    assert strided_shape((8, 41, 1408), 2, 3, 1) == (4, 21, 704)
    assert downsample(np.zeros((0, 4), np.int32), 2, 3, 1).shape == (0, 4)


def test_downsample_refuses_bad_arguments() -> None:
    with pytest.raises(InputError, match=r"shape \[2, 3\]"):
        downsample(np.zeros((2, 3), np.int32))
    with pytest.raises(InputError, match="float32"):
        downsample(np.zeros((2, 4), np.float32))
    with pytest.raises(InputError, match="stride=0"):
        downsample(np.zeros((2, 4), np.int32), 0)


BOXES = {
    "front": None,
    "360": (-70.4, -40.0, -3.0, 70.4, 40.0, 1.0),
    "cube": (-80.0, -80.0, -2.0, 80.0, 80.0, 6.0),
}
FILES = {
    "nuscenes/n015": "nuscenes/n015-2018-07-24-11-22-45+0800__LIDAR_TOP__1532402927647951.pcd.bin",
    "nuscenes/ff9eff": "nuscenes/ff9eff4389a740848f9a56ad749a4ae8.bin",
    "waymo/pc": "waymo/benchmark-pc.npz",
    "scannet/00": "scannet/scene0000_00_vert_all.npy",
    "scannet/01": "scannet/scene0000_01_vert_all.npy",
}
FILES |= {f"semantickitti/{i}": f"semantickitti/00/velodyne/00000{i}.bin" for i in range(4)}
# Frame, box, voxels, cells in use (z, y, x), 3^3 pairs a voxel, voxels after 1, 2, 3 strided levels by the
# 2^3 floor rule and by 3^3 with padding 1: the numbers of data/MANIFEST.md, counted by other code.
FRAMES = """
kitti/000000     front 41281  40,1118,1196  5.68 23096,10144,3757  50333,24517,8372
kitti/000000     360   73925  40,1216,2591  5.97 40813,18306,7253  88256,45876,18481
kitti/000001     front 44279  40,1263,1341  3.79 29382,15979,7097  73248,44428,18787
kitti/000001     360   85872  40,1355,2748  3.77 57568,31667,14051 142799,88368,37506
kitti/000002     front 32807  40,902,1403   8.95 14520,6043,2436   29027,15005,6157
kitti/000003     front 31656  40,567,1408   6.87 16044,6827,2577   33027,16134,5861
kitti_fov/000000 front 16825  34,795,1106   4.56 10128,4498,1631   22000,10763,3595
kitti_fov/000002 front 14818  38,240,1308   6.10 7994,3846,1718    17232,10319,4680
kitti_fov/000008 front 13092  29,735,1291   4.27 8500,4471,1986    20183,11832,5150
nuscenes/n015    front 17509  33,1432,1414  3.17 11902,6884,3450   29064,20426,10275
nuscenes/ff9eff  front 105086 36,1439,1440  6.14 53028,22147,8374  110087,52401,20381
semantickitti/0  front 91888  288,2013,3122 3.78 60215,31890,14430 142744,91131,42093
semantickitti/1  front 91527  283,2117,3179 3.83 59383,31374,14401 141881,89842,42034
semantickitti/2  front 91135  278,1946,3169 3.86 59160,30810,14074 139842,89469,41685
semantickitti/3  front 90686  273,1803,3171 3.94 58174,30620,13755 136248,86520,40312
waymo/pc         front 114940 34,954,1466   6.81 57841,23475,8900  118880,56116,20912
waymo/pc         cube  125562 71,993,1496   6.28 67099,27855,10362 136998,66086,26489
scannet/00       front 79942  152,363,353   2.55 64983,26768,6873  142700,49724,12678
scannet/01       front 79293  154,367,351   2.54 64366,26785,6964  142097,50063,12583
""".strip().splitlines()


@pytest.mark.parametrize("line", FRAMES, ids=lambda line: "-".join(line.split()[:2]))
def test_counts_of_real_frames(shared_dir: Path, line: str) -> None:
    frame, box, *counts = line.split()
    n, cells, pairs_per_voxel, halved, grown = ([float(v) for v in text.split(",")] for text in counts)
    preset = get_preset(frame.split("/")[0].removesuffix("_fov"))
    cloud = read_points(
        shared_dir / "data" / FILES.get(frame, f"{frame}.bin"),
        **({"columns": 5, "dtype": "float16"} if frame == "nuscenes/ff9eff" else {}),
    )
    size = 0.1 if box == "cube" else preset.voxel_size
    voxels = voxelize(cloud.xyz, cloud.features, size, BOXES[box] or preset.point_range)
    coords = voxels.coords
    assert [len(voxels)] == n
    assert (coords.max(axis=0) - coords.min(axis=0) + 1)[1:].tolist() == cells
    assert voxels.points_per_voxel.sum() == len(cloud) - voxels.dropped
    table = reference.kernel_map(coords)
    assert (table >= 0).sum() / len(voxels) == pytest.approx(pairs_per_voxel[0], abs=0.0051)
    level, sizes = coords, []
    for _ in halved:
        level = downsample(level)
        sizes.append(len(level))
    assert sizes == halved
    level, shape, sizes = coords, voxels.spatial_shape, []
    for _ in grown:
        level, shape = downsample(level, 2, 3, 1, shape), strided_shape(shape, 2, 3, 1)
        sizes.append(len(level))
    assert sizes == grown


def test_float64_moves_only_points_on_cell_faces(shared_dir: Path) -> None:
    cloud, preset = read_points(shared_dir / "data/kitti/000000.bin"), get_preset("kitti")
    assert preset.point_range is not None
    place = (cloud.xyz.astype(np.float64) - preset.point_range[:3]) / preset.voxel_size
    clear = (np.abs(place - np.round(place)) > 1e-4).all(axis=1)
    xyz, features = cloud.xyz[clear], cloud.features[clear]
    single = voxelize(xyz, features, preset.voxel_size, preset.point_range)
    double = voxelize(xyz, features, preset.voxel_size, preset.point_range, arithmetic="float64")
    assert len(single) > 35_000
    assert np.array_equal(single.coords, double.coords)
    on_faces = voxelize(cloud.xyz, cloud.features, preset.voxel_size, preset.point_range, arithmetic="float64")
    assert len(on_faces) == 41264  # 41281 in float32
