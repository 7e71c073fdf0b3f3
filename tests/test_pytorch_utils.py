"""Points to voxels: against a loop over points, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from spconv_compiler.errors import InputError
from spconv_compiler.pytorch.utils import PointToVoxel, gather_features_by_pc_voxel_id

SIZE, RANGE = [0.5, 0.25, 1.0], [-2.0, -1.0, 0.0, 2.0, 1.0, 3.0]


def points(n: int = 400) -> Any:
    rng = np.random.default_rng(0)
    cloud = rng.uniform(-2.5, 3.5, (n, 5)).astype(np.float32)
    cloud[3], cloud[5, 1] = cloud[2], np.nan
    cloud[6, :3], cloud[7, :3] = (2.0, 0, 0), (-2.0, -1.0, 0.0)
    return cloud


def by_loop(cloud: Any, most_voxels: int, most_points: int) -> Any:
    """(voxels, zyx, counts, voxel of each point) with one point after another."""
    numbers: dict[tuple[int, ...], int] = {}
    held: list[list[Any]] = []
    ids = []
    for point in cloud:
        cell = (point[:3] - np.array(RANGE[:3], np.float32)) / np.array(SIZE, np.float32)
        if not all(0 <= c < n for c, n in zip(np.floor(cell), (8, 8, 3), strict=True)):
            ids.append(-1)
            continue
        zyx = tuple(int(c) for c in np.floor(cell)[::-1])
        if zyx not in numbers and len(numbers) < most_voxels:
            numbers[zyx] = len(numbers)
            held.append([])
        ids.append(numbers.get(zyx, -1))
        if ids[-1] >= 0 and len(held[ids[-1]]) < most_points:
            held[ids[-1]].append(point)
    voxels = np.zeros((len(held), most_points, cloud.shape[1]), np.float32)
    for number, found in enumerate(held):
        voxels[number, : len(found)] = found
    return voxels, np.array(list(numbers)), np.array([len(found) for found in held]), np.array(ids)


@pytest.mark.parametrize(("most_voxels", "most_points"), [(1000, 3), (20, 1), (40, 50)])
def test_against_a_loop(most_voxels: int, most_points: int) -> None:
    cloud = points()
    generator = PointToVoxel(SIZE, RANGE, 5, most_voxels, most_points)
    assert generator.grid_size == [3, 8, 8] and generator.vsize == SIZE[::-1]
    for given in (cloud, torch.from_numpy(cloud)):
        made = generator.generate_voxel_with_id(given)
        for out, wanted in zip(made, by_loop(cloud, most_voxels, most_points), strict=True):
            assert np.array_equal(out.numpy(), wanted)
    assert [out.dtype for out in made] == [torch.float32, torch.int32, torch.int32, torch.int64]
    assert len(generator(cloud)) == 3


def test_empty_places_take_the_mean() -> None:
    cloud = points()
    voxels, _, counts = PointToVoxel(SIZE, RANGE, 5, 1000, 6)(cloud, empty_mean=True)
    plain = PointToVoxel(SIZE, RANGE, 5, 1000, 6)(cloud)[0]
    for voxel, kept, count in zip(voxels, plain, counts, strict=True):
        assert torch.equal(voxel[:count], kept[:count])
        torch.testing.assert_close(voxel[count:], kept[:count].mean(0).expand(6 - int(count), 5))


def test_no_points_and_points_back() -> None:
    generator = PointToVoxel(np.array(SIZE, np.float32), np.array(RANGE, np.float32), 5, 10, 2)
    voxels, indices, counts, ids = generator.generate_voxel_with_id(np.zeros((0, 5), np.float32))
    assert voxels.shape == (0, 2, 5) and indices.shape == (0, 3) and counts.shape == ids.shape == (0,)
    back = gather_features_by_pc_voxel_id(torch.tensor([[1.0], [2.0]]), torch.tensor([1, -1, 0]), invalid_value=9)
    assert back.tolist() == [[2.0], [9.0], [1.0]]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (([0.1, -1, 1], RANGE, 5, 10, 2), "three positive lengths"),
        ((SIZE, RANGE[::-1], 5, 10, 2), "3 minima, then the maxima"),
        ((SIZE, [0, 0, 0, 1e9, 1, 1], 5, 10, 2), "1 to 2.24"),
        ((SIZE, RANGE, 2, 10, 2), "at least 3 features"),
        ((SIZE, RANGE, 5, 10, 0), "limits of 1"),
    ],
)
def test_arguments_that_are_refused(arguments: Any, match: str) -> None:
    with pytest.raises(InputError, match=match):
        PointToVoxel(*arguments)


def test_clouds_that_are_refused() -> None:
    for cloud in (np.zeros((5, 4), np.float32), np.zeros((5, 5)), [[0.0] * 5], torch.zeros(5, 5, dtype=torch.int32)):
        with pytest.raises(InputError, match=r"accepted: float32 \[P, 5\]"):
            PointToVoxel(SIZE, RANGE, 5, 10, 2)(cloud)
