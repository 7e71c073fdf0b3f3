"""What users of spconv, torchsparse, MinkowskiEngine and fVDB have reported, each as a test of the right behaviour.

Names end in the project and the number of the report.
"""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
import pytest
import torch
from conv_cases import voxels
from cross_cases import cross_case

import spconv_compiler as sc
from spconv_compiler import reference_cross as rc
from spconv_compiler.errors import InputError
from spconv_compiler.geometry import key_width


def ones(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize("side", [1224, 1324])
def test_transposed_outputs_do_not_depend_on_the_shape_spconv_745(side: int) -> None:
    """The output volume is eight times the input's: keys have to be chosen for it."""
    point = np.array([[0, 285, 280, 256]], np.int32)
    out_coords, _ = sc.sparse_conv_transpose3d(
        point, ones(1, 4), ones(4, 2, 2, 2, 4), stride=2, spatial_shape=(side, side, side)
    )
    corner = np.array([0, 570, 560, 512])
    wanted = [corner + [0, z, y, x] for z in (0, 1) for y in (0, 1) for x in (0, 1)]
    assert np.array_equal(out_coords, wanted)


def test_a_large_grid_of_many_batches_spconv_607_sphereformer_35() -> None:
    """2048 x 2048 x 129 cells in 16 batches are 8.7e9: beyond int32."""
    shape, rng = (2048, 2048, 129), np.random.default_rng(0)
    columns = [rng.integers(0, n, 3000) for n in (16, *shape)]
    corners = [[b, z, y, x] for b in (0, 15) for z in (0, 2047) for y in (0, 2047) for x in (0, 128)]
    coords = np.unique(np.concatenate([np.stack(columns, axis=1), corners]), axis=0).astype(np.int32)
    map_ = sc.build_map(coords, 3, stride=2, padding=1, spatial_shape=shape, batch_size=16)
    assert key_width(map_.symbols) == 64
    grid = rc.Grid.of(3, 2, 1)
    assert np.array_equal(map_.out_coords, rc.outputs(coords, grid, shape=(1024, 1024, 65)))
    found = set(zip(*(column.tolist() for column in map_.pairs()), strict=True))
    assert found == set(rc.triples(coords, map_.out_coords, grid))


@pytest.mark.parametrize("kernel", [2, 3, 4])
def test_coordinates_of_a_million_and_their_phase_fvdb_668(kernel: int) -> None:
    for offset in (2**20, -(2**20), 2**20 + 1, -(2**20) - 1):
        coords = voxels(60, 6, seed=1) + np.array([0, offset, -offset, offset + 1], np.int32)
        map_ = sc.build_map(coords, kernel, stride=2)
        assert np.array_equal(map_.out_coords, rc.outputs(coords, rc.Grid.of(kernel, 2)))


def test_negative_coordinates_round_down_fvdb_726_spvnas_107() -> None:
    """x = -1 with stride 2 is in cell -1, not 0."""
    line = np.array([[0, 0, 0, x] for x in (-3, -2, -1, 0, 1)], np.int32)
    out_coords, out = sc.sparse_max_pool3d(line, np.arange(5, dtype=np.float32)[:, None], (1, 1, 2))
    assert out_coords[:, 3].tolist() == [-2, -1, 0]
    assert out[:, 0].tolist() == [0, 2, 4]


def test_negative_coordinates_are_right_by_default_spvnas_107() -> None:
    rng = np.random.default_rng(0)
    coords = np.unique(rng.integers(-50, 50, (500, 4)) * [0, 1, 1, 1], axis=0).astype(np.int32)
    features = rng.integers(-3, 4, (len(coords), 2)).astype(np.float32)
    weight = rng.integers(-3, 4, (2, 3, 3, 3, 2)).astype(np.float32)
    out_coords, out = sc.sparse_conv3d(coords, features, weight, stride=2, padding=1)
    assert (out_coords < 0).any()
    assert np.array_equal(out, rc.conv3d(coords, out_coords, features, weight, rc.Grid.of(3, 2, 1)))


@pytest.mark.parametrize("given", [torch.zeros(0, 4, dtype=torch.int32), torch.zeros(0, 3, dtype=torch.int32)])
def test_no_voxels_at_all_spconv_406_torchsparse_16(given: torch.Tensor) -> None:
    features, weight, bias = torch.zeros(0, 4), torch.ones(8, 3, 3, 3, 4), torch.ones(8)
    shape = (41, 1600, 1408)
    for function in (sc.sparse_conv3d, sc.sparse_conv_transpose3d):
        out_coords, out = function(given, features, weight, bias, stride=2, spatial_shape=shape)
        assert out_coords.shape == (0, given.shape[1]) and out_coords.dtype == torch.int32
        assert out.shape == (0, 8) and out.dtype == torch.float32
    map_ = sc.build_map(given, 3, stride=2, spatial_shape=shape)
    assert sc.sparse_inverse_conv3d(torch.zeros(0, 4), weight, map=map_).shape == (0, 8)
    assert [len(column) for column in map_.pairs()] == [0, 0, 0]


def test_one_voxel_comfyui_12183() -> None:
    for function in (sc.sparse_conv3d, sc.sparse_conv_transpose3d):
        out_coords, out = function(np.zeros((1, 4), np.int32), ones(1, 4), ones(8, 2, 2, 2, 4), stride=2)
        assert np.array_equal(out, np.full((len(out_coords), 8), 4))


def test_all_outputs_vanish_openpcdet_1023() -> None:
    """The last plane of an odd axis without padding has no output: empty tensors, no error."""
    coords = np.array([[0, 4, 0, 0], [0, 4, 3, 3]], np.int32)
    out_coords, out = sc.sparse_conv3d(coords, ones(2, 4), ones(8, 2, 2, 2, 4), stride=2, spatial_shape=(5, 4, 4))
    assert out_coords.shape == (0, 4) and out.shape == (0, 8)
    map_ = sc.build_map(coords, 2, stride=2, spatial_shape=(5, 4, 4))
    assert map_.out_rows == 0 and [len(column) for column in map_.pairs()] == [0, 0, 0]
    assert np.array_equal(sc.sparse_inverse_conv3d(ones(0, 8), ones(4, 2, 2, 2, 8), ones(4), map=map_), ones(2, 4))


def test_a_shape_too_small_for_the_kernel() -> None:
    coords = np.array([[0, 0, 0, 0]], np.int32)
    map_ = sc.build_map(coords, 3, spatial_shape=(2, 8, 8))
    assert map_.out_spatial_shape == (0, 6, 6) and map_.out_rows == 0


def test_other_coordinates_of_equal_number_are_noticed() -> None:
    """spconv's indice_key gives the neighbours of the first tensor again; here nothing is shared by name."""
    first, second = (torch.from_numpy(voxels(200, 10, seed=seed)) for seed in (1, 2))
    operands = torch.ones(200, 4), torch.ones(4, 3, 3, 3, 4)
    for coords in (first, second):
        out_coords, out = sc.sparse_conv3d(coords, *operands, stride=2, padding=1)
        assert np.array_equal(out, rc.conv3d(coords, out_coords, *operands, rc.Grid.of(3, 2, 1)))
    # Nor when one tensor is written to.
    first.copy_(second)
    assert torch.equal(sc.sparse_conv3d(first, *operands, stride=2, padding=1)[0], out_coords)


def test_an_inverse_needs_the_map_itself_spconv_467() -> None:
    with pytest.raises(TypeError, match="map"):
        sc.sparse_inverse_conv3d(ones(3, 4), ones(4, 2, 2, 2, 4))  # type: ignore[call-arg]
    with pytest.raises(InputError, match="map is a NoneType; accepted: what build_map returns"):
        sc.sparse_inverse_conv3d(ones(3, 4), ones(4, 2, 2, 2, 4), map=None)  # type: ignore[arg-type]


def test_batch_column_last_is_noticed_torchsparse_327() -> None:
    coords = voxels(50, 20, batches=2, seed=3)[:, [1, 2, 3, 0]]
    coords = np.ascontiguousarray(coords)
    with pytest.raises(InputError, match="out of range"):
        sc.sparse_conv3d(coords, ones(50, 4), ones(4, 2, 2, 2, 4), stride=2, batch_size=2)


def test_two_convolutions_of_one_tensor_agree_torchsparse_116() -> None:
    case = cross_case("k2s2", 100, seed=4)
    kept = case.coords.copy()
    first, second = case.run(), case.run()
    assert np.array_equal(first[0], second[0]) and np.array_equal(first[1], second[1])
    assert np.array_equal(case.coords, kept)


def test_a_kernel_of_one_takes_target_coordinates_minkowski_203() -> None:
    coords, targets = voxels(60, 5, seed=5), voxels(60, 5, seed=6)
    features = np.arange(60, dtype=np.float32)[:, None] + 1
    _, out = sc.sparse_conv3d(coords, features, ones(1, 1, 1, 1, 1), out_coords=targets)
    row_of = {tuple(row): index + 1 for index, row in enumerate(coords.tolist())}
    assert out[:, 0].tolist() == [row_of.get(tuple(row), 0) for row in targets.tolist()]


def test_rows_of_features_and_coordinates_are_compared() -> None:
    with pytest.raises(InputError, match="features have 10 rows but coords have 9"):
        sc.sparse_conv3d(voxels(9, 4), ones(10, 4), ones(4, 2, 2, 2, 4), stride=2)


def test_memory_does_not_grow_with_the_volume_second_82_spconv_263() -> None:
    """20 k voxels in three batches of [127, 3199, 2815]: a table of all cells would take gigabytes."""
    shape = (127, 3199, 2815)
    coords = voxels(20_000, shape, batches=3, seed=7)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    map_ = sc.build_map(coords, 3, stride=2, padding=1, spatial_shape=shape, batch_size=3)
    tap, _, _ = map_.pairs()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert len(tap) > 20_000 and grown < 150e6


def test_repeated_maps_do_not_leak_minkowski_575() -> None:
    rng = np.random.default_rng(0)

    def once() -> None:
        coords = torch.from_numpy(voxels(int(rng.integers(1000, 20_000)), (20, 60, 60), seed=int(rng.integers(1000))))
        sc.sparse_conv3d(coords, torch.ones(len(coords), 4), torch.ones(4, 3, 3, 3, 4), stride=2, padding=1)

    for _ in range(20):
        once()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(60):
        once()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB
