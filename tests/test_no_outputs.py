"""Ops that reach no output, wherever their inputs lie: an empty result, and nothing about the size of a box."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spconv_compiler as sc
from spconv_compiler.coordinates import Box
from spconv_compiler.errors import InputError
from spconv_compiler.geometry import ConvGeometry

FAR = [0, 10**6, -(10**6), 2**30, -(2**30), 2**31 - 4]


def inputs(place: int) -> tuple[np.ndarray, np.ndarray]:
    """Two voxels, neither of whose coordinates has a multiple of four."""
    corner = place - place % 4
    coords = np.array([[0, corner + 1, corner + 1, corner + 1], [1, corner + 2, corner + 1, corner + 3]], np.int32)
    return coords, np.ones((2, 4), np.float32)


@pytest.mark.parametrize("place", FAR)
def test_strides_that_pass_over_every_input(place: int) -> None:
    coords, features = inputs(place)
    weight = np.ones((5, 1, 1, 1, 4), np.float32)
    out_coords, out = sc.sparse_conv3d(coords, features, weight, stride=4)
    assert (out_coords.shape, out.shape) == ((0, 4), (0, 5))
    pooled_coords, pooled = sc.sparse_max_pool3d(coords, features, 1, stride=4)
    assert (pooled_coords.shape, pooled.shape) == ((0, 4), (0, 4))
    map_ = sc.build_map(coords, 1, stride=4)
    assert [len(part) for part in map_.pairs()] == [0, 0, 0]
    back = sc.sparse_inverse_conv3d(out, np.ones((3, 1, 1, 1, 5), np.float32), map=map_)
    assert back.shape == (2, 3) and not back.any(), "every input's row, and nothing that reaches it"


@pytest.mark.parametrize("place", FAR)
@pytest.mark.parametrize("given", ["inputs", "outputs"])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_set_without_voxels_lies_beside_the_other(place: int, given: str, transposed: bool) -> None:
    coords, nothing = inputs(place // 4)[0], np.zeros((0, 4), np.int32)
    sets: dict[str, Any] = {"coords": coords, "out_coords": nothing}
    if given == "outputs":
        sets = {"coords": nothing, "out_coords": coords}
    map_ = sc.build_map(kernel_size=3, stride=4, padding=1, transposed=transposed, **sets)
    rows = (map_.in_rows, map_.out_rows)
    assert rows == ((2, 0) if given == "inputs" else (0, 2))
    out = sc.mapped_conv3d(np.ones((rows[0], 4), np.float32), np.ones((5, 3, 3, 3, 4), np.float32), map=map_)
    assert out.shape == (rows[1], 5) and not out.any()


def test_outputs_beyond_a_shape() -> None:
    shape = (10**6 + 8,) * 3
    coords, features = inputs(10**6)
    out_coords, out = sc.sparse_conv_transpose3d(
        coords, features, np.ones((5, 1, 1, 1, 4), np.float32), padding=40, spatial_shape=shape, batch_size=2
    )
    assert (out_coords.shape, out.shape) == ((0, 4), (0, 5))


@pytest.mark.parametrize("target", ["cpu", pytest.param("gfx950-sim", marks=pytest.mark.slow)])
def test_a_grid_without_room_has_none_for_what_follows_either(target: str) -> None:
    """The shape that one op leaves is one that the next op takes, though no voxel lies in it."""
    features, weight = np.ones((1, 4), np.float32), np.ones((4, 3, 3, 3, 4), np.float32)
    coords, shape = np.array([[0, 0, 4, 4]], np.int32), (2, 9, 9)
    where = {"batch_size": 1, "target": target}
    first = sc.build_map(coords, 3, stride=2, spatial_shape=shape, **where)
    assert first.out_spatial_shape == (0, 4, 4) and first.out_rows == 0
    second = sc.build_map(first.out_coords, 3, stride=2, padding=1, spatial_shape=(0, 4, 4), **where)
    assert second.out_spatial_shape == (0, 2, 2) and second.out_coords.shape == (0, 4)
    assert sc.mapped_conv3d(features[:0], weight, map=second).shape == (0, 4)
    out_coords, out = sc.sparse_conv3d(first.out_coords, features[:0], weight, spatial_shape=(0, 4, 4), **where)
    assert (out_coords.shape, out.shape) == ((0, 4), (0, 4))
    assert sc.subm_conv3d(first.out_coords, features[:0], weight, spatial_shape=(0, 4, 4), **where).shape == (0, 4)
    for refuse in (
        lambda shape: sc.build_map(coords, 3, stride=2, spatial_shape=shape, **where),
        lambda shape: sc.subm_conv3d(coords, features, weight, spatial_shape=shape, **where),
    ):
        with pytest.raises(InputError, match=r"1 coords are out of range, the first in row 0: .*0 ≤ z < 0"):
            refuse((0, 4, 4))
        with pytest.raises(InputError, match=r"spatial_shape is \(-1, 4, 4\); accepted: three sizes"):
            refuse((-1, 4, 4))


def test_maps_of_a_grid_without_room() -> None:
    geometries = {
        "same": sc.MapGeometry(3, submanifold=True),
        "down": sc.MapGeometry(3, stride=2),
        "deep": sc.MapGeometry(3, submanifold=True, reads="down"),
        "up": sc.MapGeometry(3, stride=2, transposed=True, reads="down", onto="input"),
    }
    coords = np.array([[0, 0, 4, 4]], np.int32)
    maps = sc.build_maps(coords, geometries, spatial_shape=(2, 9, 9), batch_size=1)
    assert maps.spatial_shape("down") == (0, 4, 4) and maps["deep"].rows == 0
    assert (maps["up"].in_rows, maps["up"].out_rows) == (0, 1)
    assert sc.build_maps(coords[:0], geometries, spatial_shape=(0, 9, 9), batch_size=1)["same"].rows == 0
    for first in ("same", "down"):
        with pytest.raises(InputError, match=f"^'{first}': 1 coords are out of range"):
            sc.build_maps(coords, {first: geometries[first]}, spatial_shape=(0, 9, 9), batch_size=1)


def test_one_size_of_a_cube_of_maps() -> None:
    maps = sc.build_maps(np.array([[0, 7, 7, 7]], np.int32), {"down": sc.MapGeometry(2, stride=2)}, spatial_shape=8)
    assert maps.spatial_shape() == (8, 8, 8) and maps.spatial_shape("down") == (4, 4, 4)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_voxel_beside_a_box_adds_less_than_a_kernel(transposed: bool) -> None:
    geometry = ConvGeometry((3, 2, 1), (4, 3, 1), (1, 0, 2), (1, 2, 1), transposed)
    fine = Box((0, 10**6, -(10**6), 7), (2, 10**6 + 50, 5 - 10**6, 9))
    found = geometry.symbols(fine, geometry.coarse_beside(fine))
    for axis, name in enumerate("zyx"):
        alone = fine.high[axis + 1] - fine.low[axis + 1] + 1
        reach = geometry.reach[axis]
        assert alone <= found[f"extent_{name}"] <= alone + geometry.stride[axis] + reach
    coarse = Box((0, -5, 10**6, 7), (2, 40, 10**6, 9))
    found = geometry.symbols(geometry.fine_beside(coarse), coarse)
    for axis, name in enumerate("zyx"):
        reached = (coarse.high[axis + 1] - coarse.low[axis + 1]) * geometry.stride[axis] + geometry.reach[axis] + 1
        assert found[f"extent_{name}"] == reached
