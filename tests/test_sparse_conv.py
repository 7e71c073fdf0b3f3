"""Strided, transposed and inverse convolution: exact values of whole numbers, dtypes, layouts, kinds, reuse."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from conv_cases import voxels
from cross_cases import GRIDS, SHAPE, cross_case, options_of

import spconv_compiler as sc
from spconv_compiler import reference, sparse_conv, sparse_driver
from spconv_compiler import reference_cross as rc
from spconv_compiler.errors import SpconvError

TRANSPOSED = pytest.mark.parametrize("transposed", [False, True], ids=["forward", "transposed"])


@pytest.mark.parametrize("name", GRIDS)
@TRANSPOSED
def test_values(name: str, transposed: bool) -> None:
    case = cross_case(name, 200, transposed=transposed)
    for options in ({"spatial_shape": SHAPE, "batch_size": 2}, {"activation": "relu"}):
        out_coords, out = case.run(**options)
        wanted = case.expected(out_coords)
        assert np.array_equal(out, np.maximum(wanted, 0) if "activation" in options else wanted)


@pytest.mark.parametrize("name", GRIDS)
@TRANSPOSED
def test_against_dense_torch(name: str, transposed: bool) -> None:
    """Without the oracle: torch's dense convolution, read at the outputs, and zero everywhere else."""
    case = cross_case(name, 100, transposed=transposed)
    steps = {axis: getattr(rc.Grid.of(*GRIDS[name]), axis) for axis in ("stride", "padding", "dilation")}
    volume = torch.zeros(2, *SHAPE, 3)
    volume[tuple(torch.from_numpy(case.coords.T).long())] = torch.from_numpy(case.features)
    volume, weight = volume.permute(0, 4, 1, 2, 3), torch.from_numpy(case.weight)
    if transposed:
        dense = torch.nn.functional.conv_transpose3d(volume, weight.permute(4, 0, 1, 2, 3), None, **steps)
    else:
        dense = torch.nn.functional.conv3d(volume, weight.permute(0, 4, 1, 2, 3), None, **steps)
    function = sc.sparse_conv_transpose3d if transposed else sc.sparse_conv3d
    # spconv's output shape leaves out what dilation adds; output_padding brings it back.
    grid = rc.Grid.of(*GRIDS[name])
    missing = [n - m for n, m in zip(dense.shape[2:], grid.transposed_shape(SHAPE), strict=True)]
    more = {"output_padding": missing} if transposed else {}
    operands = (case.coords, case.features, case.weight)
    out_coords, out = function(*operands, **options_of(name), spatial_shape=SHAPE, **more)
    place = tuple(torch.from_numpy(out_coords.T).long())
    rows = dense.permute(0, 2, 3, 4, 1)
    assert np.array_equal(out, rows[place].numpy())
    rows[place] = 0
    assert not rows.any()


@pytest.mark.parametrize("name", GRIDS)
@TRANSPOSED
def test_inverse(name: str, transposed: bool) -> None:
    """Back to the rows of the inputs, in their order, through the forward map's pairs."""
    coords = voxels(200, SHAPE, batches=2, seed=1)
    map_ = sc.build_map(coords, GRIDS[name][0], **options_of(name), transposed=transposed, spatial_shape=SHAPE)
    grid, rng = rc.Grid.of(*GRIDS[name]), np.random.default_rng(0)
    features = rng.integers(-3, 4, (map_.out_rows, 4)).astype(np.float32)
    weight = rng.integers(-3, 4, (6, *grid.kernel_size, 4)).astype(np.float32)
    bias = rng.integers(-3, 4, 6).astype(np.float32)
    out = sc.sparse_inverse_conv3d(features, weight, bias, map=map_)
    assert np.array_equal(
        out, rc.conv3d(map_.out_coords, coords, features, weight, grid, bias, transposed=not transposed)
    )
    # The forward op over the same handle, after the inverse.
    inputs = rng.integers(-3, 4, (200, 4)).astype(np.float32)
    forward = sc.mapped_conv3d(inputs, weight, map=map_)
    assert np.array_equal(forward, rc.conv3d(coords, map_.out_coords, inputs, weight, grid, transposed=transposed))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("channels", [(1, 1), (3, 5), (16, 32), (33, 20)])
def test_dtypes_and_channels(dtype: torch.dtype, channels: tuple[int, int]) -> None:
    """Random numbers within the bound of their sums."""
    coords, (c_in, c_out) = voxels(700, 14, seed=2), channels
    rng = torch.Generator().manual_seed(0)
    features = torch.randn(700, c_in, generator=rng).to(dtype)
    weight = torch.randn(c_out, 3, 3, 3, c_in, generator=rng).to(dtype)
    out_coords, out = sc.sparse_conv3d(torch.from_numpy(coords), features, weight, stride=2, padding=1)
    assert out.dtype == dtype
    grid = rc.Grid.of(3, 2, 1)
    exact = rc.conv3d(coords, out_coords, features, weight, grid)
    # A table over one set that reads from another: error_bound needs the counts and the values only.
    table = np.full((len(out_coords), 27), -1, np.int32)
    for tap, fine, coarse in rc.triples(coords, out_coords, grid):
        table[coarse, tap] = fine
    name = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}[dtype]
    bound = reference.error_bound(features, weight, table, name)
    comparison = reference.compare(out, exact, bound)
    assert comparison.ok, comparison


def test_layouts_agree() -> None:
    case = cross_case("k3s2p1", 100)
    native = torch.from_numpy(case.weight)
    layouts = {"native": native, "torch": native.permute(0, 4, 1, 2, 3), "taps": native.permute(1, 2, 3, 4, 0)}
    layouts["taps"] = layouts["taps"].reshape(27, 3, 5)
    coords, features = torch.from_numpy(case.coords), torch.from_numpy(case.features)
    results = [
        sc.sparse_conv3d(coords, features, weight, stride=2, padding=1, weight_layout=layout)[1]
        for layout, weight in layouts.items()
    ]
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_an_even_kernel_of_taps_layout() -> None:
    case = cross_case("k2s2", 60)
    taps = np.ascontiguousarray(case.weight.transpose(1, 2, 3, 4, 0).reshape(8, 3, 5))
    _, out = sc.sparse_conv3d(case.coords, case.features, taps, stride=2, weight_layout="taps")
    assert np.array_equal(out, sc.sparse_conv3d(case.coords, case.features, case.weight, stride=2)[1])


def test_a_kernel_of_no_stride_and_full_padding_is_submanifold_at_the_inputs() -> None:
    coords, rng = voxels(200, 8, seed=3), np.random.default_rng(0)
    features = rng.integers(-3, 4, (200, 4)).astype(np.float32)
    weight = rng.integers(-3, 4, (4, 3, 3, 3, 4)).astype(np.float32)
    _, out = sc.sparse_conv3d(coords, features, weight, padding=1, out_coords=coords)
    assert np.array_equal(out, sc.subm_conv3d(coords, features, weight))


def test_kinds() -> None:
    """Tensors give tensors and arrays give arrays, each for coordinates and for features."""
    case = cross_case("k2s2", 50)
    coords, features, weight = case.coords, case.features, case.weight
    for given in (coords, torch.from_numpy(coords)):
        for values in (features, torch.from_numpy(features)):
            filters = weight if isinstance(values, np.ndarray) else torch.from_numpy(weight)
            out_coords, out = sc.sparse_conv3d(given, values, filters, stride=2)
            assert type(out_coords) is type(given) and type(out) is type(values)


def test_a_row_that_nothing_reaches_is_the_bias() -> None:
    case = cross_case("k2s2", 50)
    far = np.array([[0, 900, 900, 900]], np.int32)
    _, out = case.run(out_coords=torch.from_numpy(far), activation="relu")
    assert np.array_equal(out, np.maximum(case.bias, 0)[None])
    # Inputs may even be missing altogether.
    nothing = (np.zeros((0, 4), np.int32), np.zeros((0, 3), np.float32))
    _, out = sc.sparse_conv3d(*nothing, case.weight, case.bias, stride=2, out_coords=far)
    assert np.array_equal(out, case.bias[None])


class Calls:
    """Counts how often a function of the driver runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.count = 0
        kept = getattr(sparse_driver.SparseKernel, name)

        def counted(*arguments: Any, **others: Any) -> Any:
            self.count += 1
            return kept(*arguments, **others)

        monkeypatch.setattr(sparse_driver.SparseKernel, name, counted)


def test_layers_over_one_tensor_share_outputs_map_and_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {name: Calls(monkeypatch, name) for name in ("outputs", "relate", "pairs", "pack")}
    case = cross_case("k3s2p1", 100, seed=12)
    coords, features = torch.from_numpy(case.coords), torch.from_numpy(case.features)
    weights = [torch.from_numpy(case.weight), torch.ones(9, 3, 3, 3, 3)]
    for weight in (*weights, *weights):
        sc.sparse_conv3d(coords, features, weight, stride=2, padding=1)
    assert {name: call.count for name, call in calls.items()} == {"outputs": 1, "relate": 1, "pairs": 1, "pack": 2}
    # Another geometry over the same coordinates, and the same one over others, have maps of their own.
    sc.sparse_conv3d(coords, features, weights[0], stride=2)
    sc.sparse_conv3d(coords.clone(), features, weights[0], stride=2, padding=1)
    assert calls["outputs"].count == 3


def test_each_direction_of_a_map_searches_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {name: Calls(monkeypatch, name) for name in ("relate", "pairs")}
    coords = voxels(100, 8, seed=13)
    map_ = sc.build_map(coords, 3, stride=2, padding=1)
    down = sc.mapped_conv3d(np.ones((100, 4), np.float32), np.ones((8, 3, 3, 3, 4), np.float32), map=map_)
    for _ in range(2):
        sc.sparse_inverse_conv3d(down, np.ones((4, 3, 3, 3, 8), np.float32), map=map_)
    # The table of the search is let go once its pairs are made: it is the larger part of a map.
    assert (calls["relate"].count, calls["pairs"].count) == (2, 2)


def test_maps_do_not_keep_coordinates_alive() -> None:
    case = cross_case("k2s2", 50)
    coords = torch.from_numpy(case.coords.copy())
    operands = torch.from_numpy(case.features), torch.from_numpy(case.weight)
    gc.collect()
    before = len(sparse_conv._map_cache)
    out_coords, _ = sc.sparse_conv3d(coords, *operands, stride=2)
    sc.sparse_conv3d(out_coords, torch.ones(len(out_coords), 3), operands[1], stride=2)
    assert len(sparse_conv._map_cache) == before + 2
    del coords, out_coords
    gc.collect()
    assert len(sparse_conv._map_cache) == before


def test_outputs_that_were_written_to_are_made_again() -> None:
    case = cross_case("k2s2", 50)
    coords, operands = torch.from_numpy(case.coords), (torch.from_numpy(case.features), torch.from_numpy(case.weight))
    out_coords, out = sc.sparse_conv3d(coords, *operands, stride=2)
    kept = out_coords.clone()
    out_coords[:, 1] += 5
    again, result = sc.sparse_conv3d(coords, *operands, stride=2)
    assert torch.equal(again, kept) and torch.equal(result, out)


def test_clear_caches_forgets_maps() -> None:
    case = cross_case("k2s2", 50)
    case.run()
    sc.clear_caches()
    assert len(sparse_conv._map_cache) == 0 and len(sparse_conv._weight_cache) == 0
    assert sparse_driver.load_sparse.cache_info().currsize == 0


def test_a_backward_pass_is_refused_aloud() -> None:
    case = cross_case("k2s2", 50)
    coords, features = torch.from_numpy(case.coords), torch.from_numpy(case.features)
    weight = torch.from_numpy(case.weight).requires_grad_()
    _, out = sc.sparse_conv3d(coords, features, weight, stride=2)
    assert out.requires_grad
    out = out.relu_() * 2
    with pytest.raises(SpconvError, match="sparse_conv3d has no backward pass in this version"):
        out.sum().backward()
    with torch.no_grad():
        assert not sc.sparse_conv3d(coords, features, weight, stride=2)[1].requires_grad
