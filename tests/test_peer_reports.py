"""What users have reported of other sparse convolution libraries, on large grids, odd inputs and memory.

Submanifold maps and whole networks of maps here; strided convolutions have theirs in test_sparse_reports.py. Every
docstring says the report in own words.
"""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from conv_cases import voxels

import spconv_compiler as sc
from spconv_compiler import api, reference
from spconv_compiler.compiler import conv_options
from spconv_compiler.errors import InputError, LaunchError

Ints = npt.NDArray[np.int32]


def ones(*shape: int) -> npt.NDArray[np.float32]:
    return np.ones(shape, np.float32)


def scattered(shape: tuple[int, int, int], batches: int, rows: int, seed: int = 0) -> Ints:
    """Distinct voxels int32 [≤ 2 · rows + 16, 4] in random order: pairs of neighbours along x, and all corners."""
    rng = np.random.default_rng(seed)
    columns = [rng.integers(0, n, rows) for n in (batches, shape[0], shape[1], shape[2] - 1)]
    near = np.stack(columns, axis=1)
    corners = [[b, z, y, x] for b in (0, batches - 1) for z in (0, shape[0] - 1) for y in (0, shape[1] - 1)
               for x in (0, shape[2] - 1)]  # fmt: skip
    made = np.unique(np.concatenate([near, near + [0, 0, 0, 1], corners]), axis=0)
    return np.ascontiguousarray(rng.permutation(made).astype(np.int32))


def convolves_right(coords: Ints, shape: tuple[int, int, int] | None, batches: int | None = None) -> bool:
    """Whether a 3x3x3 convolution of whole numbers is exactly the reference's."""
    rng = np.random.default_rng(1)
    features = rng.integers(-3, 4, (len(coords), 2)).astype(np.float32)
    weight = rng.integers(-3, 4, (2, 3, 3, 3, 2)).astype(np.float32)
    out = sc.subm_conv3d(coords, features, weight, spatial_shape=shape, batch_size=batches)
    return np.array_equal(out, reference.subm_conv3d(coords, features, weight))


@pytest.mark.parametrize(
    ("shape", "batches"), [((2048, 2048, 129), 16), ((2048, 2048, 129), 8), ((2095, 2095, 695), 1)]
)
def test_more_cells_than_int32_counts_spconv_607_sphereformer_35(shape: tuple[int, int, int], batches: int) -> None:
    """spconv#607: training with 14 to 16 samples of 2048 x 2048 x 129 cells overflows an int32 without a word.

    SphereFormer#35: with 8 samples and 720 thousand voxels, sizes do not match in validation. 2095 x 2095 x 695 is a
    grid of that size in one sample.
    """
    coords = scattered(shape, batches, 4000)
    assert np.prod(shape, dtype=object) * batches > 2**31
    assert convolves_right(coords, shape, batches)


@pytest.mark.slow
def test_720_thousand_voxels_in_eight_batches_sphereformer_35() -> None:
    """SphereFormer#35: 720,506 voxels in [2048, 2048, 129] x 8; every voxel reads itself and its neighbour along x."""
    coords = scattered((2048, 2048, 129), 8, 361_000)
    map_ = api.cached_map(coords, 3, spatial_shape=(2048, 2048, 129), batch_size=8)
    keys = np.ravel_multi_index(tuple(coords.T.astype(np.int64)), (8, 2048, 2048, 129))
    along_x = np.isin(keys + 1, keys) & (coords[:, 3] < 128)
    assert isinstance(map_, sc.KernelMap) and len(coords) > 720_000
    assert map_.pairs >= len(coords) + 2 * int(along_x.sum())
    # Pairs along other axes are few among so many cells: counted by numpy too.
    strides = [n * 129 * 2048 + m * 129 + k for n in (-1, 0, 1) for m in (-1, 0, 1) for k in (-1, 0, 1)]
    inside = [
        (coords[:, 1] + n >= 0) & (coords[:, 1] + n < 2048) & (coords[:, 2] + m >= 0) & (coords[:, 2] + m < 2048)
        & (coords[:, 3] + k >= 0) & (coords[:, 3] + k < 129)
        for n in (-1, 0, 1) for m in (-1, 0, 1) for k in (-1, 0, 1)
    ]  # fmt: skip
    found = sum(int((np.isin(keys + step, keys) & ok).sum()) for step, ok in zip(strides, inside, strict=True))
    assert map_.pairs == found


def test_a_box_of_more_cells_than_int64_counts_is_an_error_spconv_607() -> None:
    """spconv#607 asks for a right result or a clear error: here where even 64 bits do not do, and nothing is cached."""
    far = np.array([[0, -(2**31), -(2**31), -(2**31)], [0, 2**31 - 1, 2**31 - 1, 2**31 - 1]], np.int32)
    with pytest.raises(InputError, match="cells"):
        sc.subm_conv3d(far, ones(2, 2), ones(2, 3, 3, 3, 2))


@pytest.mark.slow
def test_a_row_beyond_two_gibibytes_of_features_cumm_36() -> None:
    """cumm#36: with 256 channels of f32, row 2^21 of the features is beyond 2^31 bytes, and its offset overflows."""
    rows = 2**21 + 1
    coords = torch.zeros(rows, 4, dtype=torch.int32)
    coords[:, 3], coords[:, 2] = torch.arange(rows) % 2048 * 3, torch.arange(rows) // 2048 * 3
    # The last row's only neighbour is the one before it; all others are alone.
    coords[-1] = coords[-2] + torch.tensor([0, 0, 0, 1], dtype=torch.int32)
    features = torch.zeros(rows, 256)
    features[-2:], features[0] = 1.0, 5.0
    weight = torch.zeros(256, 1, 1, 3, 256)
    weight[:, 0, 0, 0] = torch.eye(256) * 2
    weight[:, 0, 0, 1] = torch.eye(256) * 3
    out = sc.subm_conv3d(coords, features, weight)
    assert features.numel() * 4 > 2**31
    assert (out[-1] == 5).all() and (out[-2] == 3).all() and (out[0] == 15).all() and not out[1:-2].any()


@pytest.mark.slow
@pytest.mark.parametrize("extra", [0, 1])
def test_two_to_the_24_rows_in_half_precision_torchsparse_361(extra: int) -> None:
    """torchsparse#361: k3, 64 channels of fp16 crash from 2^24 rows on, when features pass 2^31 bytes. Also spconv#545
    and HAIS#37, which fail on large scenes.
    """
    rows = 2**24 + extra
    number = torch.arange(rows, dtype=torch.int64)
    coords = torch.stack([number * 0, number // 2**16, number // 2**8 % 2**8, number % 2**8], dim=1).int()
    features = torch.zeros(rows, 64, dtype=torch.float16)
    features[:, 0] = (number % 128).half()
    weight = torch.zeros(8, 3, 1, 1, 64, dtype=torch.float16)
    weight[0, 0, 0, 0, 0] = weight[1, 2, 0, 0, 0] = 1
    out = sc.subm_conv3d(coords, features, weight)
    # Row i reads the rows a plane before and behind it.
    assert torch.equal(out[2**16 :, 0], features[: -(2**16), 0]) and not out[: 2**16, 0].any()
    assert torch.equal(out[: -(2**16), 1], features[2**16 :, 0]) and not out[-(2**16) :, 1].any()


@pytest.mark.parametrize("offset", [2**20, -(2**20), 2**30, -(2**30)])
def test_far_and_negative_coordinates_fvdb_668_spvnas_107(offset: int) -> None:
    """fvdb#668: coordinates near a million and their negatives shift kernels; spvnas#107: negative ones are wrong
    unless a switch is set.
    """
    coords = voxels(300, (8, 9, 10), seed=2)
    moved = coords + np.array([0, offset, -offset, offset], np.int32)
    assert convolves_right(coords, None) and convolves_right(moved, None)


@pytest.mark.parametrize("columns", [3, 4])
def test_no_voxels_through_a_whole_backbone_openpcdet_1023_torchsparse_16(columns: int) -> None:
    """OpenPCDet#1023, #1518, #1710, bevfusion#28: all points of a frame are out of range, and the first layer crashes.

    torchsparse#16 and spconv#406 are the same with zeros(0, 4). Here every level of a backbone is empty.
    """
    coords = torch.zeros(0, columns, dtype=torch.int32)
    down = sc.MapGeometry(3, stride=2, padding=1)
    geometries = {
        "subm1": sc.MapGeometry(3, submanifold=True),
        "down2": down,
        "subm2": sc.MapGeometry(3, submanifold=True, reads="down2"),
        "down3": sc.MapGeometry(3, stride=2, padding=(0, 1, 1), reads="down2"),
        "out": sc.MapGeometry((3, 1, 1), stride=(2, 1, 1), reads="down3"),
    }
    maps = sc.build_maps(coords, geometries, spatial_shape=(41, 1600, 1408), batch_size=1)
    assert maps.spatial_shape("out") == (4, 400, 352)
    weight, features = torch.ones(8, 3, 3, 3, 8), torch.zeros(0, 8)
    assert sc.subm_conv3d(coords, features, weight).shape == (0, 8)
    for level in ("down2", "down3", "out"):
        assert maps.coords(level).shape == (0, columns)
    out = sc.mapped_conv3d(features, weight, map=maps["down2"])
    assert sc.subm_conv3d(maps.coords("down2"), out, weight).shape == (0, 8)


@pytest.mark.parametrize("rows", [0, 1])
def test_none_or_one_voxel_comfyui_12183(rows: int) -> None:
    """ComfyUI#12183: FlexGEMM takes the logarithm of no rows, and indexes row -1."""
    out = sc.subm_conv3d(np.zeros((rows, 4), np.int32), ones(rows, 4), ones(8, 3, 3, 3, 4))
    assert out.shape == (rows, 8) and (out == 4).all()


def test_other_coordinates_with_as_many_rows_get_their_own_map() -> None:
    """spconv finds a map by a name that the user gives, and returns that of other coordinates with equal N."""
    first, second = (torch.from_numpy(voxels(200, (8, 9, 10), seed=seed)) for seed in (3, 4))
    features, weight = torch.ones(200, 2), torch.ones(2, 3, 3, 3, 2)
    before = sc.subm_conv3d(first, features, weight)
    other = sc.subm_conv3d(second, features, weight)
    expected = reference.subm_conv3d(second, features, weight)
    assert np.array_equal(other, expected) and not torch.equal(before, other)
    # Nor is the old map taken when the tensor itself is written to, even behind torch's back.
    first.numpy()[:] = second.numpy()
    assert torch.equal(sc.subm_conv3d(first, features, weight), other)


def test_a_batch_column_in_last_place_is_noticed_torchsparse_327() -> None:
    """torchsparse#327: the batch column moved from last to first place, and old code runs on with wrong results."""
    coords = np.ascontiguousarray(voxels(60, (9, 9, 9), batches=2, seed=5)[:, [1, 2, 3, 0]])
    with pytest.raises(InputError, match="out of range"):
        sc.subm_conv3d(coords, ones(60, 2), ones(2, 3, 3, 3, 2), batch_size=2)
    with pytest.raises(InputError, match="out of range"):
        sc.build_maps(coords, {"down": sc.MapGeometry(2, stride=2)}, batch_size=2)


def test_two_entries_of_one_geometry_agree_torchsparse_116() -> None:
    """torchsparse#116: two stride-2 layers over one tensor give different coordinates, because the first changes it."""
    coords = torch.from_numpy(voxels(500, (9, 20, 20), seed=6))
    kept, twice = coords.clone(), sc.MapGeometry(3, stride=2, padding=1)
    maps = sc.build_maps(coords, {"left": twice, "right": twice})
    assert torch.equal(maps.coords("left"), maps.coords("right")) and torch.equal(coords, kept)
    assert all(np.array_equal(a, b) for a, b in zip(maps["left"].pairs(), maps["right"].pairs(), strict=True))


def test_rows_of_features_and_of_coordinates_are_compared() -> None:
    """spconv accepts 10 rows of features with 9 rows of indices."""
    with pytest.raises(InputError, match="features have 10 rows but coords have 9"):
        sc.subm_conv3d(voxels(9, (4, 4, 4)), ones(10, 4), ones(4, 3, 3, 3, 4))


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_memory_follows_the_voxels_not_the_volume_second_82_mmdet3d_192() -> None:
    """second#82, spconv#263, spconv#124: a dense table over [127, 3199, 2815] cells takes gigabytes a sample;
    mmdet3d#192, #639: another build of the same ops takes far more. Here it is bytes a pair and a voxel.
    """
    shape = (127, 3199, 2815)
    coords = scattered(shape, 3, 10_000, seed=7)
    convolves_right(coords[:100], None)
    before = peak()
    map_ = api.cached_map(coords, 3, spatial_shape=shape, batch_size=3)
    assert isinstance(map_, sc.KernelMap) and peak() - before < 60e6
    assert 8 * map_.pairs < map_.nbytes <= 12 * map_.pairs + 40 * map_.rows


def test_maps_of_varying_size_do_not_pile_up_minkowski_575() -> None:
    """ME#575, Lidar_AI#137, CenterPoint#323: memory grows over a long run, or with every load of an engine."""
    rng = np.random.default_rng(0)
    geometries = {"subm": sc.MapGeometry(3, submanifold=True), "down": sc.MapGeometry(2, stride=2)}

    def once() -> None:
        coords = torch.from_numpy(voxels(int(rng.integers(1000, 20_000)), (20, 60, 60), seed=int(rng.integers(1000))))
        sc.build_maps(coords, geometries)

    for _ in range(15):
        once()
    before = peak()
    for _ in range(40):
        once()
    assert peak() - before < 20e6
    assert len(api._coords_cache) == 0


def test_output_coordinates_of_a_stack_without_running_it_spconv_632() -> None:
    """spconv#632: wants the coordinates behind a stack of layers, without features and without running it."""
    coords = torch.from_numpy(voxels(800, (16, 40, 40), seed=8))
    geometries: dict[str, Any] = {}
    for number, reads in ((1, "input"), (2, "level1"), (3, "level2")):
        geometries[f"level{number}"] = sc.MapGeometry(3, stride=2, padding=1, reads=reads)
    maps = sc.build_maps(coords, geometries, spatial_shape=(16, 40, 40))
    features, weight, shape = torch.ones(800, 4), torch.ones(4, 3, 3, 3, 4), (16, 40, 40)
    for level in ("level1", "level2", "level3"):
        coords, features = sc.sparse_conv3d(coords, features, weight, stride=2, padding=1, spatial_shape=shape)
        shape = maps.spatial_shape(level) or shape
        assert torch.equal(maps.coords(level), coords)


def test_more_rows_than_a_map_can_name_are_refused() -> None:
    """What cannot be counted is an error before anything is allocated: the driver's demand, not a crash."""
    kernel = sc.load_conv(conv_options(3, 1, 1))
    assert isinstance(kernel, sc.ConvKernel)
    with pytest.raises(LaunchError, match="voxels of one map"):
        kernel.artifact.plan.check({"rows": 2**31 - 1, "cells": 0, "threads": 1})
