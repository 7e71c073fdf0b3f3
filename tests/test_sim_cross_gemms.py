"""Gemms between two coordinate sets on target gfx950-sim: those that own their rows, and maps by sorted keys.

Whole numbers throughout, as in test_sim_cross.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conv_cases import voxels
from cross_cases import GRIDS, SHAPE, cross_case, options_of
from test_sim_cross import FORWARD_OR_SLOW, GRID, TARGET, launched, nothing_is_left, up_again

import spconv_compiler as sc
from spconv_compiler import reference_cross as rc
from spconv_compiler import sparse_driver_gpu

__all__ = ["launched", "nothing_is_left"]


@FORWARD_OR_SLOW
def test_the_reference_schedule(transposed: bool, launched: list[str]) -> None:
    """Pairs by tap, sums by atomics: the list is another one than that of gemms that own their rows."""
    case = cross_case("k3s2p1", 200, transposed=transposed, seed=4)
    out_coords, out = case.run(target=TARGET, schedule="pairs_m16")
    assert np.array_equal(out, case.expected(out_coords))
    kinds = [name.partition("_k32")[0].partition("_t27")[0] for name in launched]
    # A transposed op looks up in a grid of its inputs, the other one in its outputs themselves.
    grid = ["fill_coarse", "scatter_coarse"] * transposed
    assert kinds[:3] == ["clear_marks", "mark_outputs", "read_marks"] and kinds[3 : 3 + len(grid)] == grid
    assert kinds[3 + len(grid) :][:3] == ["cross_lookup", "scan_chunks_b1024", "write_cross_pairs"]


@pytest.mark.parametrize(
    ("dtype", "name", "transposed", "schedule"),
    [
        ("bfloat16", "k3s2p1", False, "output_stationary"),
        ("float16", "k2s2", True, "output_stationary"),
        ("bfloat16", "k3s2p1", True, "output_stationary_tall"),
        pytest.param("float32", "k3s2p1", False, "output_stationary_tall", marks=pytest.mark.slow),
        pytest.param("float32", "k311s211", False, "output_stationary", marks=pytest.mark.slow),
        pytest.param("float32", "k3s2p1", True, "output_stationary", marks=pytest.mark.slow),
        pytest.param("bfloat16", "k311s211", True, "output_stationary", marks=pytest.mark.slow),
        pytest.param("bfloat16", "k3s2p1", False, "split_taps", marks=pytest.mark.slow),
        pytest.param("float16", "k3s2p1", True, "split_taps", marks=pytest.mark.slow),
    ],
)
def test_wide_rows_that_gemms_own(
    dtype: str, name: str, transposed: bool, schedule: str, launched: list[str]
) -> None:
    """More inputs than outputs or fewer: features end behind the rows that are read, results behind those written."""
    grid, rng = rc.Grid.of(*GRIDS[name]), np.random.default_rng(1)
    coords = voxels(290, SHAPE, batches=2, seed=9)
    c_in, c_out = (64, 160) if schedule == "output_stationary_tall" else (24, 20)
    sizes = ((290, c_in), (c_out, *grid.kernel_size, c_in), (c_out,))
    features, weight, bias = (rng.integers(-2, 3, size).astype(np.float32) for size in sizes)
    given = [torch.from_numpy(array).to(getattr(torch, dtype)) for array in (features, weight)]
    function = sc.sparse_conv_transpose3d if transposed else sc.sparse_conv3d
    options = {**options_of(name), "activation": "relu", "out_dtype": "f32", "schedule": schedule, "target": TARGET}
    out_coords, out = function(torch.from_numpy(coords), *given, torch.from_numpy(bias), **options)
    exact = rc.conv3d(coords, out_coords, features, weight, grid, bias, transposed=transposed)
    assert np.array_equal(out, np.maximum(exact, 0)) and len(out_coords) not in (0, 290)
    assert [kernel.startswith(f"gemm_{schedule}") for kernel in launched].count(True) == 1
    assert not any(kernel.startswith(("fill_rows", "apply_")) for kernel in launched)


@pytest.mark.parametrize("rows", [pytest.param(3800, marks=pytest.mark.slow), 3900])
def test_tall_shares_around_their_switch(rows: int, launched: list[str]) -> None:
    """To eight times as many rows: below one turn of 80 shares of 384 and three slices, and above."""
    rng, grid = np.random.default_rng(rows), rc.Grid.of(*GRIDS["k2s2"])
    coords = voxels(rows, 24, seed=rows)
    features, weight = (rng.integers(-2, 3, size).astype(np.float32) for size in ((rows, 64), (256, 2, 2, 2, 64)))
    moved = [torch.from_numpy(array).to(torch.bfloat16) for array in (features, weight)]
    out_coords, out = sc.sparse_conv_transpose3d(
        torch.from_numpy(coords), *moved, stride=2, out_dtype="f32", schedule="output_stationary_tall", target=TARGET
    )
    assert len(out_coords) == 8 * rows and (len(out_coords) > 80 * 384) == (rows == 3900)
    assert np.array_equal(out, rc.conv3d(coords, out_coords, features, weight, grid, transposed=True))
    assert len([kernel for kernel in launched if "_w8x1x3or4_" in kernel]) == 1


def with_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches in sorted keys whatever the volume."""
    monkeypatch.setattr(sparse_driver_gpu.GpuSparseKernel, "mapper", lambda *_, **__: "coarse_keys")


@pytest.mark.parametrize(
    ("name", "transposed"),
    [
        ("k3s2p1", True),
        pytest.param("k3s2p1", False, marks=pytest.mark.slow),
        pytest.param("k234s213p102d132", False, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("schedule", ["auto", pytest.param("pairs_m16", marks=pytest.mark.slow)])
def test_search_in_keys(name: str, transposed: bool, schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_keys(monkeypatch)
    case = cross_case(name, 150, transposed=transposed, seed=6)
    out_coords, out = case.run(target=TARGET, schedule=schedule)
    assert np.array_equal(out, case.expected(out_coords))


def test_a_volume_beyond_a_grid(launched: list[str]) -> None:
    """2048 × 2048 × 129 with batch 16, onto given outputs in any order, one of them twice, and back."""
    rng = np.random.default_rng(5)
    corners = np.stack([rng.integers(0, size, 60) for size in (16, 2040, 2040, 120)], axis=1)
    near = corners[:, None] + np.array([[0, *place] for place in voxels(5, 4, seed=1)[:, 1:]])
    coords = np.unique(near.reshape(-1, 4), axis=0).astype(np.int32)
    coords = coords[rng.permutation(len(coords))]
    outputs = np.array(rc.outputs(coords, GRID), np.int32)
    others = np.array([[0, 0, 0, 0], [15, 1023, 1023, 64]], np.int32)
    outputs = np.concatenate([rng.permutation(outputs), outputs[:1], others])
    map_ = sc.build_map(coords, 3, stride=2, padding=1, out_coords=outputs, target=TARGET)
    features, weight = (rng.integers(-3, 4, size).astype(np.float32) for size in ((len(coords), 3), (5, 3, 3, 3, 3)))
    out = sc.mapped_conv3d(features, weight, map=map_)
    assert any(name.startswith("coarse_records") for name in launched)
    assert not any(name.startswith(("fill_coarse", "scatter")) for name in launched)
    exact = rc.conv3d(coords, outputs[:-3], features, weight, GRID)
    row = int(np.flatnonzero((outputs[:-3] == outputs[-3]).all(axis=1))[0])
    assert np.array_equal(out[:-3], exact) and np.array_equal(out[-3], exact[row]) and not out[-2:].any()
    weight_up, bias_up = up_again()
    up = sc.sparse_inverse_conv3d(out, weight_up, bias_up, map=map_)
    back = rc.conv3d(outputs[:-3], coords, exact, weight_up, GRID, bias_up, transposed=True)
    assert np.array_equal(up, back)
    pooled = sc.mapped_pool3d(features, map=map_, mode="avg")
    assert np.array_equal(pooled[:-3], rc.pool3d(coords, outputs[:-3], features, GRID, "avg").astype(np.float32))
