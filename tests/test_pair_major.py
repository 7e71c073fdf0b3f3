"""Schedule `pair_major` on the simulator: exact on whole numbers, whatever the widths, the tiles and their order."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from conv_cases import Case, make_case, voxels
from cross_cases import cross_case
from gemm_cases import check, compiled, naming, result, run

import spconv_compiler as sc
from spconv_compiler import reference
from spconv_compiler.schedules import DEFAULT, Problem, Workload, choose, estimates
from spconv_compiler.schedules.cost import DENSITIES, SIZES
from spconv_compiler.schedules.pair_major import TILE_M
from spconv_compiler.sim.elf import CodeObject
from spconv_compiler.sim.errors import Fault
from spconv_compiler.targets import get_target

SCHEDULE = "pair_major"
GFX950 = get_target("gfx950")
# Every width once or more on either side: pieces of rows, stages of K that divide and do not, odd panels, slices.
CHANNELS = [(1, 3), (3, 16), (5, 33), (16, 5), (18, 1), (33, 18), (64, 96), (96, 64), (100, 128), (128, 100)]
WIDE = [(256, 512), (512, 256)]
FAST = {("bf16", (33, 18)), ("f16", (64, 96)), ("f32", (5, 33))}


@pytest.mark.parametrize(
    ("dtype", "channels"),
    [
        pytest.param(dtype, pair, marks=() if (dtype, pair) in FAST else pytest.mark.slow)
        for dtype in ("bf16", "f16", "f32")
        for pair in CHANNELS + WIDE
    ],
    ids=str,
)
def test_channels(dtype: str, channels: tuple[int, int]) -> None:
    coords = voxels(90 if channels in WIDE else 300, 8, seed=1) - np.array([0, 3, 5, 4], np.int32)
    check(make_case(coords, 3, *channels, dtype=dtype, whole=True), schedule=SCHEDULE)


@pytest.mark.parametrize("rows", [1, 16, 255, 256, 257, 511, 513])
def test_pairs_around_tiles(rows: int) -> None:
    """With one tap every row is one pair."""
    check(make_case(voxels(rows, 14, seed=rows), 1, 16, 16, dtype="bf16", whole=True), schedule=SCHEDULE)


def test_more_tiles_than_workgroups() -> None:
    """Four slices leave eight workgroups of a chiplet and slice, which take several tiles each, of several stages."""
    case = make_case(voxels(1600, 12, seed=2), 3, 160, 512, dtype="bf16", whole=True)
    found = check(case, schedule=SCHEDULE, out_dtype="f32")
    tiles = found.array("tap_tile", "i32")[27]
    assert tiles > 2 * 64
    name, _ = found.launches[-1]
    assert name.startswith("gemm_pair_major_bf16_t27_160x512_n128") and name.endswith("_g256")


def test_what_the_gemm_reads_of_the_pairs() -> None:
    case = make_case(voxels(700, 10, seed=3), 3, 16, 16, dtype="bf16", whole=True)
    found = check(case, schedule=SCHEDULE)
    table = reference.kernel_map(case.coords, (3, 3, 3), 1)
    rows = [np.flatnonzero(table[:, tap] >= 0) for tap in range(27)]
    sizes = np.array([-(-len(one) // TILE_M) for one in rows])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    np.testing.assert_array_equal(found.array("tap_tile", "i32"), starts)
    np.testing.assert_array_equal(found.array("tile_tap", "i32")[: starts[-1]], np.repeat(np.arange(27), sizes))
    targets = np.full(starts[-1] * TILE_M, -1)
    for start, one in zip(starts, rows, strict=False):
        targets[start * TILE_M : start * TILE_M + len(one)] = one
    np.testing.assert_array_equal(found.array("out_rows", "i32")[: len(targets)], targets)


@pytest.mark.parametrize("out_dtype", ["bf16", pytest.param("f32", marks=pytest.mark.slow)])
def test_the_epilogue_is_a_kernel_of_its_own(out_dtype: str) -> None:
    case = make_case(voxels(290, 8, batches=2), 3, 24, 20, dtype="bf16", bias=True, whole=True)
    found = check(case, schedule=SCHEDULE, activation="relu", dilation=2, out_dtype=out_dtype)
    kinds = [name.split("_")[0] for name, _ in found.launches][-3:]
    assert kinds == ["fill", "gemm", "apply"]


@pytest.mark.parametrize("c_in", [65, 96])
def test_a_last_stage_of_one_load(c_in: int) -> None:
    check(naming(c_in, 20, "bf16"), schedule=SCHEDULE, out_dtype="f32")


def test_weights_that_name_their_tap_and_channels() -> None:
    """Every weight is another number, and features pick out one channel: a wrong tap, lane or row shows."""
    c_in, c_out = 32, 48
    coords = voxels(200, 7, seed=3)
    weight = np.arange(27 * c_in * c_out, dtype=np.float32).reshape(c_out, 3, 3, 3, c_in)
    features = np.zeros((len(coords), c_in), np.float32)
    features[np.arange(len(coords)), np.arange(len(coords)) % c_in] = 1.0
    check(Case(coords, features, weight, None, "f32", {}), schedule=SCHEDULE)


def test_any_order_of_workgroups() -> None:
    """Whole numbers add up to the same in every order, others within the bound of f32 sums."""
    case = make_case(voxels(900, 11, seed=5), 3, 40, 24, dtype="bf16", whole=True)
    artifact = compiled(3, 40, 24, dtype="bf16", out_dtype="f32", schedule=SCHEDULE)
    exact = reference.subm_conv3d(case.coords, case.features, case.weight, None, 1)
    for seed in range(1, 4):
        np.testing.assert_array_equal(result(run(artifact, case, seed), artifact, case), exact)
    case = make_case(voxels(900, 11, seed=5), 3, 40, 24, dtype="bf16", whole=False)
    exact = reference.subm_conv3d(case.coords, case.features, case.weight, None, 1)
    table = reference.kernel_map(case.coords, (3, 3, 3), 1)
    bound = reference.error_bound(case.features, case.weight, table, "f32", None)
    assert reference.compare(result(run(artifact, case, 1), artifact, case), exact, bound).ok


def test_many_terms_are_summed_in_f32() -> None:
    """2,700 products of 1e-2 by 1: in f16 the sum would stop growing."""
    coords = np.stack(np.meshgrid([0], *[range(5)] * 3, indexing="ij"), axis=-1).reshape(-1, 4).astype(np.int32)
    features = np.full((len(coords), 100), np.float16(1e-2), np.float32)
    case = Case(coords, features, np.ones((16, 3, 3, 3, 100), np.float32), None, "f16", {})
    artifact = compiled(3, 100, 16, dtype="f16", out_dtype="f32", schedule=SCHEDULE)
    exact = reference.subm_conv3d(case.coords, case.features, case.weight, None, 1)
    assert exact.max() > 26
    np.testing.assert_allclose(result(run(artifact, case), artifact, case), exact, rtol=1e-6)


def test_no_voxels() -> None:
    empty: dict[str, Any] = {"schedule": SCHEDULE, "target": "gfx950-sim", "spatial_shape": (4, 4, 4)}
    coords, features = torch.zeros((0, 4), dtype=torch.int32), torch.zeros((0, 16), dtype=torch.bfloat16)
    out = sc.subm_conv3d(coords, features, torch.ones((8, 3, 3, 3, 16), dtype=torch.bfloat16), **empty)
    assert out.shape == (0, 8)


@pytest.mark.parametrize(
    ("name", "transposed"), [("k3s2p1", False), pytest.param("k2s2", True, marks=pytest.mark.slow)]
)
def test_between_two_sets(name: str, transposed: bool) -> None:
    case = cross_case(name, 200, transposed=transposed, seed=4)
    out_coords, out = case.run(target="gfx950-sim", schedule=SCHEDULE)
    assert np.array_equal(out, case.expected(out_coords))


@pytest.mark.slow
def test_a_missing_barrier_is_noticed() -> None:
    from sim_kernels import encode

    case = make_case(voxels(1300, 12), 3, 64, 64, dtype="bf16", whole=True)
    artifact = compiled(3, 64, 64, dtype="bf16", schedule=SCHEDULE)
    kernels = dict(CodeObject(artifact.object).kernels)
    name = next(name for name in kernels if name.startswith("gemm"))
    barrier, nothing = encode("s_barrier"), encode("s_nop 0")
    assert kernels[name].code.count(barrier) >= 1
    kernels[name] = dataclasses.replace(kernels[name], code=kernels[name].code.replace(barrier, nothing))
    with pytest.raises(Fault):
        run(artifact, case, kernels=kernels)


def test_it_is_for_those_who_ask() -> None:
    """It saves weights and pays atomics, and its pairs are others than those that layers of one set share."""
    for channels in (16, 128, 256, 512, 1024):
        problem = Problem(27, channels, channels, "bf16")
        assert choose(problem, GFX950)[0].name != SCHEDULE and choose(problem, GFX950, SCHEDULE)[0].name == SCHEDULE
        found = estimates(problem, GFX950, DEFAULT)
        assert (found[SCHEDULE].us < found["pairs_m16"].us) == (channels > 16)
    wide = estimates(Problem(27, 256, 256, "bf16"), GFX950)[SCHEDULE]
    assert wide.limited_by == "atomics"
    times = [estimates(Problem(27, 256, 256, "bf16"), GFX950, Workload(size, "usual"))[SCHEDULE].us for size in SIZES]
    assert times == sorted(times) and len(DENSITIES) == 3
