"""Max and average pools against the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from conv_cases import voxels
from cross_cases import SHAPE

import spconv_compiler as sc
from spconv_compiler import reference
from spconv_compiler import reference_cross as rc
from spconv_compiler.errors import InputError, SpconvError

POOLS: dict[str, Callable[..., Any]] = {"max": sc.sparse_max_pool3d, "avg": sc.sparse_avg_pool3d}
MODES = pytest.mark.parametrize("mode", POOLS)


@MODES
@pytest.mark.parametrize("grid", [(2, 2, 0, 1), (3, 2, 1, 1), ((3, 1, 1), (2, 1, 1), 0, 1), (2, 1, 0, 2), (3, 3, 1, 1)])
@pytest.mark.parametrize("channels", [1, 7, 8, 21])
def test_whole_numbers(mode: str, grid: tuple[Any, ...], channels: int) -> None:
    """Below zero throughout: a maximum that started from zero would show."""
    coords = voxels(200, SHAPE, batches=2, seed=1)
    features = np.random.default_rng(0).integers(-9, 0, (200, channels)).astype(np.float32)
    kernel, stride, padding, dilation = grid
    steps = {"stride": stride, "padding": padding, "dilation": dilation}
    out_coords, out = POOLS[mode](coords, features, kernel, **steps, spatial_shape=SHAPE, batch_size=2)
    geometry = rc.Grid.of(*grid)
    assert np.array_equal(out_coords, rc.outputs(coords, geometry, shape=geometry.output_shape(SHAPE)))
    exact = rc.pool3d(coords, out_coords, features, geometry, mode)
    # Sums of whole numbers are exact; one division rounds once.
    assert np.array_equal(out, exact.astype(np.float32))


@MODES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_types(mode: str, dtype: torch.dtype) -> None:
    coords = voxels(300, SHAPE, seed=2)
    features = torch.randn(300, 20, generator=torch.Generator().manual_seed(0)).to(dtype)
    out_coords, out = POOLS[mode](torch.from_numpy(coords), features, 3, stride=2)
    assert out.dtype == dtype
    exact = rc.pool3d(coords, out_coords, features, rc.Grid.of(3, 2), mode)
    if mode == "max":
        assert np.array_equal(reference.to_numpy(out), exact)
    else:
        spacing = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
        assert (np.abs(reference.to_numpy(out) - exact) <= spacing * np.abs(exact) + 1e-6).all()


@MODES
def test_the_stride_is_the_kernel_by_default(mode: str) -> None:
    coords, features = voxels(60, SHAPE, seed=3), np.ones((60, 4), np.float32)
    assert np.array_equal(POOLS[mode](coords, features, 3)[0], POOLS[mode](coords, features, 3, stride=3)[0])


@MODES
def test_nan_and_infinity(mode: str) -> None:
    """A NaN reaches its own output only; minus infinity is a value as any other."""
    coords = np.array([[0, 0, 0, 0], [0, 0, 0, 1], [0, 4, 4, 4], [0, 8, 8, 8]], np.int32)
    features = np.array([[1.0], [np.nan], [-np.inf], [2.0]], np.float32)
    for order in ([0, 1, 2, 3], [1, 0, 2, 3]):
        _, out = POOLS[mode](coords[order], features[order], 2)
        assert np.array_equal(out, [[np.nan], [-np.inf], [2.0]], equal_nan=True)


@MODES
def test_rows_that_nothing_reaches_are_zero(mode: str) -> None:
    coords, features = voxels(30, 4, seed=4), np.full((30, 3), -5, np.float32)
    targets = np.array([[0, 0, 0, 0], [0, 50, 50, 50]], np.int32)
    out_coords, out = POOLS[mode](coords, features, 4, out_coords=targets)
    assert out_coords is targets
    assert np.array_equal(out, [[-5, -5, -5], [0, 0, 0]])


@MODES
def test_nothing_in_nothing_out(mode: str) -> None:
    out_coords, out = POOLS[mode](np.zeros((0, 4), np.int32), np.zeros((0, 3), np.float32), 2, spatial_shape=SHAPE)
    assert out_coords.shape == (0, 4) and out.shape == (0, 3)


def test_threads_do_not_matter() -> None:
    coords = torch.from_numpy(voxels(40_000, (20, 100, 100), seed=5))
    features = torch.randn(40_000, 32, generator=torch.Generator().manual_seed(0))
    results, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            results.append(sc.sparse_avg_pool3d(coords, features, 3, stride=2)[1])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_a_pool_over_a_map_shares_it() -> None:
    coords, features = voxels(100, SHAPE, seed=6), np.ones((100, 4), np.float32)
    map_ = sc.build_map(coords, 2, stride=2)
    assert np.array_equal(sc.mapped_pool3d(features, map=map_, mode="avg"), np.ones((map_.out_rows, 4)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"map": 3}, "map is 3; accepted: what build_map returns without transposed=True"),
        ({"mode": "min"}, "mode is 'min'; accepted: max, avg"),
        ({"features": np.ones((9, 4), np.float32)}, "features have 9 rows but coords have 30"),
        ({"features": np.ones((30, 4))}, "features have dtype float64; accepted: float32, bfloat16, float16"),
        ({"features": np.ones((30, 0), np.float32)}, "channels are 0 → 0; accepted: 1 to"),
    ],
)
def test_refused(change: dict[str, Any], message: str) -> None:
    map_ = sc.build_map(voxels(30, 4), 2, stride=2)
    features: Any = np.ones((30, 4), np.float32)
    with pytest.raises(InputError) as caught:
        sc.mapped_pool3d(**{"features": features, "map": map_, "mode": "max", **change})
    assert message in str(caught.value)


def test_a_transposed_map_has_no_pool() -> None:
    map_ = sc.build_map(voxels(30, 4), 2, stride=2, transposed=True)
    with pytest.raises(InputError, match="without transposed=True"):
        sc.mapped_pool3d(np.ones((30, 4), np.float32), map=map_, mode="max")


def test_a_backward_pass_is_refused_aloud() -> None:
    features = torch.ones(30, 4, requires_grad=True)
    _, out = sc.sparse_max_pool3d(torch.from_numpy(voxels(30, 4)), features, 2)
    with pytest.raises(SpconvError, match="sparse_max_pool3d has no backward pass"):
        out.sum().backward()
