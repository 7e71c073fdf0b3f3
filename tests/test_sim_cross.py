"""Ops between two coordinate sets on target gfx950-sim, by the public functions: against the oracle and the CPU.

Whole numbers throughout, so that every sum is exact in any order and results are compared for equality.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from conv_cases import voxels
from cross_cases import GRIDS, SHAPE, cross_case

import spconv_compiler as sc
from spconv_compiler import reference, sparse_driver_gpu
from spconv_compiler import reference_cross as rc
from spconv_compiler.coordinates import Box
from spconv_compiler.errors import InputError
from spconv_compiler.geometry import ConvGeometry
from spconv_compiler.runtime import sim

TARGET = "gfx950-sim"
FORWARD_OR_SLOW = pytest.mark.parametrize(
    "transposed", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["forward", "transposed"]
)
# These run always; the others, which differ in numbers only, with the slow tests.
ALWAYS = (("k3s2p1", False), ("k3s2p1", True), ("k234s213p102d132", False))
BOTH_WAYS = [(name, transposed) for name in GRIDS for transposed in (False, True)]
ALL_GRIDS = [case if case in ALWAYS else pytest.param(*case, marks=pytest.mark.slow) for case in BOTH_WAYS]
GRID = rc.Grid.of(3, 2, 1)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Memory of the simulator goes back when nothing needs it any longer."""
    yield
    sc.clear_caches()
    gc.collect()
    assert sim.sim_device().live() == []


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that run."""
    names: list[str] = []
    monkeypatch.setattr(sim.sim_device(), "watch", lambda name, counts: names.append(name))
    return names


@pytest.mark.parametrize(("name", "transposed"), ALL_GRIDS)
def test_values_and_outputs(name: str, transposed: bool) -> None:
    case = cross_case(name, 200, transposed=transposed)
    grid = rc.Grid.of(*GRIDS[name])
    for options in ({"spatial_shape": SHAPE, "batch_size": 2}, {}):
        out_coords, out = case.run(target=TARGET, **options)
        shape = None
        if options:
            shape = grid.transposed_shape(SHAPE) if transposed else grid.output_shape(SHAPE)
        wanted = rc.outputs(case.coords, grid, transposed=transposed, shape=shape)
        assert np.array_equal(out_coords, np.array(wanted, np.int32).reshape(-1, 4))
        assert np.array_equal(out, case.expected(out_coords))
        on_cpu = case.run(target="cpu", **options)
        assert np.array_equal(out_coords, on_cpu[0]) and np.array_equal(out, on_cpu[1])


@FORWARD_OR_SLOW
def test_every_pair_once(transposed: bool) -> None:
    """Negative coordinates, three batches, rows in any order; tiles of every tap begun and filled up."""
    coords = voxels(330, SHAPE, batches=3, seed=2) - np.array([0, 4, 5, 6], np.int32)
    map_ = sc.build_map(coords, 3, stride=2, padding=1, transposed=transposed, target=TARGET)
    fine, coarse = (map_.out_coords, coords) if transposed else (coords, map_.out_coords)
    known = [(tap, c, f) if transposed else (tap, f, c) for tap, f, c in rc.triples(fine, coarse, GRID)]
    columns = [column.tolist() for column in map_.pairs()]
    assert list(zip(*columns, strict=True)) == sorted(known, key=lambda pair: (pair[0], pair[2]))
    kernel = map_.kernel("conv", c_in=1, c_out=1)
    assert map_.pairs_for(kernel).count == len(known)


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 255, 256, 257])
def test_rows(rows: int) -> None:
    """Around a tile of the gemm and around a workgroup of the lookup, with every row's eight outputs."""
    coords = voxels(rows, (8, 9, 10), seed=rows)
    rng = np.random.default_rng(rows)
    features = rng.integers(-3, 4, (rows, 16)).astype(np.float32)
    weight = rng.integers(-2, 3, (24, 3, 3, 3, 16)).astype(np.float32)
    options = {"stride": 2, "padding": 1, "spatial_shape": (8, 9, 10), "batch_size": 1, "target": TARGET}
    tensors = [torch.from_numpy(features).bfloat16(), torch.from_numpy(weight).bfloat16()]
    out_coords, out = sc.sparse_conv3d(torch.from_numpy(coords), *tensors, out_dtype="f32", **options)
    assert np.array_equal(out_coords, np.array(rc.outputs(coords, GRID, shape=(4, 5, 5)), np.int32).reshape(-1, 4))
    assert np.array_equal(out, rc.conv3d(coords, out_coords, features, weight, GRID))


def test_inverse_over_a_held_map(launched: list[str]) -> None:
    """Down and up again: both search in the outputs, which ascend."""
    case, weight_up, bias_up = cross_case("k3s2p1", 150, seed=3), *up_again()
    map_ = sc.build_map(case.coords, 3, stride=2, padding=1, target=TARGET)
    assert [name.partition("_k32")[0] for name in launched] == ["clear_marks", "mark_outputs", "read_marks"]
    launched.clear()
    down = sc.mapped_conv3d(case.features, case.weight, case.bias, map=map_)
    name = "k32_ascending_3x3x3_s2x2x2_p1x1x1_d1x1x1_b256"
    table = ["fill_table_t27_b256", f"output_lookup_{name}"]
    sort = ["row_keys_3x3x3_i4", "mask_records_i4", *["sort_digit_k32_i4_d3"] * 3, "arrange_t27_i4"]
    assert launched[:8] == [*table, *sort] and len(launched) == 10  # and packing, gemm
    launched.clear()
    up = sc.sparse_inverse_conv3d(down, weight_up, bias_up, map=map_, activation="relu")
    assert launched[:7] == [f"input_lookup_{name}", *sort] and len(launched) == 9
    assert np.array_equal(down, case.expected(map_.out_coords))
    exact = rc.conv3d(map_.out_coords, case.coords, down, weight_up, GRID, bias_up, transposed=True)
    assert np.array_equal(up, np.maximum(exact, 0))


def up_again() -> tuple[Any, Any]:
    """Weight and bias of an inverse of cross_case's convolution."""
    rng = np.random.default_rng(9)
    return rng.integers(-2, 3, (4, 3, 3, 3, 5)).astype(np.float32), np.arange(-2, 2, dtype=np.float32)


@pytest.mark.parametrize(
    ("wide", "transposed"),
    [(False, False), (False, True), (True, False), pytest.param(True, True, marks=pytest.mark.slow)],
)
def test_target_coordinates_and_wide_keys(transposed: bool, wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given outputs in any order, some that no input reaches; with keys of both widths."""
    if wide:
        for name in ("narrow_lookups", "narrow_outputs"):
            monkeypatch.setattr(sparse_driver_gpu, name, lambda *boxes: False)
    case = cross_case("k3s2p1", 150, transposed=transposed, seed=5)
    targets = np.concatenate([voxels(80, SHAPE, batches=2, seed=6), np.array([[0, 5, -7, 400]], np.int32)])
    out_coords, out = case.run(target=TARGET, out_coords=torch.from_numpy(targets))
    assert np.array_equal(out, case.expected(out_coords)) and np.array_equal(out[-1], case.bias)
    out_coords, out = case.run(target=TARGET)
    assert np.array_equal(out_coords, rc.outputs(case.coords, GRID, transposed=transposed))
    assert np.array_equal(out, case.expected(out_coords))


def test_sets_that_are_2_to_the_32_apart_do_not_meet() -> None:
    """Modulo 2^32 they would lie on each other: the driver has to take wide keys."""
    case = cross_case("k3s2p1", 20, seed=1, shape=(2, 3, 4))
    low = case.coords + np.array([0, *[-(2**31)] * 3], np.int64)
    case = dataclasses.replace(case, coords=low.astype(np.int32))
    near = np.array(rc.outputs(case.coords, GRID), np.int32)[1:]
    # A coarse voxel stands at twice its place: these are where the near ones are, but for 2^32.
    far = (near + np.array([0, *[2**31] * 3], np.int64)).astype(np.int32)
    for targets in (near, far):
        out_coords, out = case.run(out_coords=torch.from_numpy(targets), target=TARGET)
        assert np.array_equal(out, case.expected(out_coords))
    assert (out == case.bias).all()


@pytest.mark.parametrize(
    ("fine", "coarse", "stride", "narrow"),
    [
        ((0, 2**31 - 1), (0, 2**29 - 1), 2, True),
        ((-(2**31), -1), (-(2**30), -1), 2, False),
        ((-(2**31), -(2**31) + 9), (2**31 - 9, 2**31 - 1), 1, False),
        ((2**31 - 9, 2**31 - 1), (-(2**31), -(2**31) + 9), 1, False),
        ((0, 99), (0, 2**30), 2, False),
    ],
)
def test_when_keys_are_narrow(fine: Any, coarse: Any, stride: int, narrow: bool) -> None:
    geometry = ConvGeometry((1, 1, 3), (1, 1, stride))
    boxes = [Box((0, 0, 0, low), (0, 0, 0, high)) for low, high in (fine, coarse)]
    assert sparse_driver_gpu.narrow_lookups(geometry, *boxes) == narrow


@pytest.mark.parametrize(
    ("low", "high", "narrow"),
    [(-(2**30), 2**30 - 3, True), (0, 2**30 - 2, True), (0, 2**30 - 1, False), (-(2**30) - 1, 0, False)],
)
def test_when_keys_of_transposed_outputs_are_narrow(low: int, high: int, narrow: bool) -> None:
    """Kernel 3 and stride 2 reach from 2·low to 2·high + 2."""
    geometry = ConvGeometry((1, 1, 3), (1, 1, 2), transposed=True)
    box, outputs = Box((0, 0, 0, low), (0, 0, 0, high)), Box((0, 0, 0, 0), (0, 0, 0, 9))
    assert sparse_driver_gpu.narrow_outputs(geometry, box, outputs) == narrow


def test_a_capacity_needs_no_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows behind the last output lie in batch −1 and are those of an output without inputs."""
    case, (weight_up, bias_up) = cross_case("k3s2p1", 150, seed=7), up_again()
    coords, features, weight, bias = case.coords, case.features, case.weight, case.bias
    wanted = np.array(rc.outputs(coords, GRID, shape=GRID.output_shape(SHAPE)), np.int32)
    exact = case.expected(wanted)
    grid = {"stride": 2, "padding": 1, "spatial_shape": SHAPE, "batch_size": 2, "target": TARGET}
    with monkeypatch.context() as patch:
        patch.setattr(sparse_driver_gpu, "read", None)
        map_ = sc.build_map(coords, 3, **grid, capacity=len(wanted) + 70)
        down = sc.mapped_conv3d(features, weight, bias, map=map_)
        up = sc.sparse_inverse_conv3d(down, weight_up, bias_up, map=map_, activation="relu")
        pooled = sc.mapped_pool3d(features, map=map_, mode="avg")
    assert map_.out_total() == len(wanted) and map_.out_rows == len(wanted) + 70
    assert np.array_equal(map_.out_coords[: len(wanted)], wanted) and (map_.out_coords[len(wanted) :, 0] == -1).all()
    assert np.array_equal(down[: len(wanted)], exact)
    assert (down[len(wanted) :] == bias).all()
    back = rc.conv3d(wanted, coords, exact, weight_up, GRID, bias_up, transposed=True)
    assert np.array_equal(up, np.maximum(back, 0))
    assert np.array_equal(pooled[: len(wanted)], rc.pool3d(coords, wanted, features, GRID, "avg").astype(np.float32))
    assert not pooled[len(wanted) :].any()

    # The inverse first, and a set that nothing reaches.
    other = sc.build_map(coords, 3, **grid, capacity=len(wanted) + 70)
    assert np.array_equal(sc.sparse_inverse_conv3d(down, weight_up, bias_up, map=other, activation="relu"), up)
    nothing = sc.build_map(coords[:0], 3, **grid, capacity=9)
    assert nothing.out_total() == 0 and (nothing.out_coords == -1).all() and nothing.out_rows == 9
    assert (sc.mapped_conv3d(features[:0], weight, bias, map=nothing) == bias).all()

    few = sc.build_map(coords, 3, **grid, capacity=20)
    assert few.out_total() == len(wanted) and np.array_equal(few.out_coords, wanted[:20])
    assert np.array_equal(sc.mapped_conv3d(features, weight, bias, map=few), exact[:20])


def test_a_capacity_of_fine_outputs() -> None:
    case = cross_case("k3s2p1", 40, seed=2, transposed=True)
    wanted = np.array(rc.outputs(case.coords, GRID, transposed=True), np.int32)
    options = {"stride": 2, "padding": 1, "transposed": True, "target": TARGET}
    map_ = sc.build_map(case.coords, 3, **options, capacity=len(wanted) + 300)
    out = sc.mapped_conv3d(case.features, case.weight, case.bias, map=map_)
    assert np.array_equal(map_.out_coords[: len(wanted)], wanted) and map_.out_total() == len(wanted)
    assert np.array_equal(out[: len(wanted)], case.expected(wanted)) and (out[len(wanted) :] == case.bias).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 0}, "capacity is 0; accepted: at least 1, or None"),
        ({"capacity": 9, "out_coords": np.zeros((1, 4), np.int32)}, "both out_coords and a capacity are given"),
        ({"capacity": 9, "target": "cpu"}, "capacity is 9; accepted by target x86-64"),
    ],
)
def test_refused_capacities(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        sc.build_map(voxels(5, 4), 2, **{"stride": 2, "target": TARGET, **options})


@pytest.mark.parametrize("axes", [1, 2])
def test_one_and_two_dimensions_through_unit_axes(axes: int) -> None:
    span, kernel, stride, padding = ((1, 1, 90), (1, 11, 13))[axes - 1], *(
        (one,) * (3 - axes) + (many,) * axes for one, many in ((1, 3), (1, 2), (0, 1))
    )
    coords, grid = voxels(40, span, batches=2, seed=axes), rc.Grid.of(kernel, stride, padding)
    map_ = sc.build_map(
        coords, kernel, stride=stride, padding=padding, spatial_shape=span, batch_size=2, target=TARGET
    )
    assert map_.out_spatial_shape == (((1, 1, 45), (1, 6, 7))[axes - 1])
    assert np.array_equal(map_.out_coords, rc.outputs(coords, grid, shape=map_.out_spatial_shape))
    found = set(zip(*(column.tolist() for column in map_.pairs()), strict=True))
    assert found == set(rc.triples(coords, map_.out_coords, grid))


def test_vanishing_outputs() -> None:
    """The last plane of an odd axis without padding has no output: empty arrays, and an inverse of biases."""
    coords = np.array([[0, 4, 0, 0], [0, 4, 3, 3]], np.int32)
    map_ = sc.build_map(coords, 2, stride=2, spatial_shape=(5, 4, 4), target=TARGET)
    assert map_.out_rows == 0 and [len(column) for column in map_.pairs()] == [0, 0, 0]
    ones = np.ones((4, 2, 2, 2, 8), np.float32)
    nothing = np.ones((0, 8), np.float32)
    assert np.array_equal(sc.sparse_inverse_conv3d(nothing, ones, ones[:, 0, 0, 0, 0], map=map_), np.ones((2, 4)))


def test_more_than_2_to_the_31_fine_cells() -> None:
    """Only the coarse set is laid out in a grid: 3·10⁹ fine cells with stride 8 are six million coarse ones."""
    shape, rng = (2095, 2095, 695), np.random.default_rng(0)
    columns = [rng.integers(0, size, 300) for size in (1, *shape)]
    corners = [[0, z, y, x] for z in (0, 2094) for y in (0, 2094) for x in (0, 694)]
    coords = np.unique(np.concatenate([np.stack(columns, axis=1), corners]), axis=0).astype(np.int32)
    map_ = sc.build_map(coords, 3, stride=8, padding=1, spatial_shape=shape, target=TARGET)
    grid = rc.Grid.of(3, 8, 1)
    assert np.array_equal(map_.out_coords, rc.outputs(coords, grid, shape=grid.output_shape(shape)))
    found = set(zip(*(column.tolist() for column in map_.pairs()), strict=True))
    assert found == set(rc.triples(coords, map_.out_coords, grid)) and len(found) > 20


def test_repeated_coordinates() -> None:
    """The lowest row is the neighbour, and every row has an output of its own."""
    coords = np.array([[0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 4]], np.int32)
    map_ = sc.build_map(coords, (1, 1, 2), stride=(1, 1, 2), target=TARGET)
    assert [column.tolist() for column in map_.pairs()] == [[0, 1], [2, 0], [1, 0]]
    features = np.array([[1], [2], [3]], np.float32)
    assert sc.mapped_pool3d(features, map=map_, mode="max").tolist() == [[1], [3]]
    twice = np.array([[0, 0, 0, 0], [0, 0, 0, 0]], np.int32)
    onto = sc.build_map(coords, (1, 1, 2), stride=(1, 1, 2), out_coords=twice, target=TARGET)
    assert [column.tolist() for column in onto.pairs()] == [[1, 1], [0, 0], [0, 1]]
    weight = np.arange(1, 5, dtype=np.float32).reshape(2, 1, 1, 2, 1)
    assert sc.mapped_conv3d(features, weight, map=onto).tolist() == [[2, 4], [2, 4]]
    up = sc.sparse_inverse_conv3d(np.array([[1], [9]], np.float32), weight, map=onto)
    assert up.tolist() == [[2, 4], [2, 4], [0, 0]]
    assert sc.mapped_pool3d(features, map=onto, mode="max").tolist() == [[1], [1]]


POOLS = {"max": sc.sparse_max_pool3d, "avg": sc.sparse_avg_pool3d}


@pytest.mark.parametrize(
    ("mode", "channels", "dtype"),
    [
        ("avg", 3, "float32"),
        pytest.param("max", 21, "float32", marks=pytest.mark.slow),
        ("max", 24, "bfloat16"),
        pytest.param("avg", 8, "float16", marks=pytest.mark.slow),
        pytest.param("max", 1, "float16", marks=pytest.mark.slow),
    ],
)
def test_pools(mode: str, channels: int, dtype: str, launched: list[str]) -> None:
    """Values below zero, so that a maximum that started from zero would show; NaN stays where it is."""
    coords = voxels(200, SHAPE, batches=2, seed=1)
    features = torch.from_numpy(np.random.default_rng(0).integers(-9, 0, (200, channels)).astype(np.float32))
    features[20], features[40] = torch.nan, -torch.inf
    given = features.to(getattr(torch, dtype))
    options = {"stride": 2, "padding": 1, "spatial_shape": SHAPE, "batch_size": 2}
    out_coords, out = POOLS[mode](torch.from_numpy(coords), given, 3, **options, target=TARGET)
    kinds = [name.partition("_k32")[0].partition("_t27")[0] for name in launched[3:]]
    assert kinds[:-1] == ["fill_table", "output_lookup"]
    exact = rc.pool3d(coords, out_coords, features, GRID, mode)
    assert np.array_equal(reference.to_numpy(out), reference.round_to(exact, str(dtype_of[dtype])), equal_nan=True)
    on_cpu = POOLS[mode](torch.from_numpy(coords), given, 3, **options, target="cpu")
    assert torch.equal(out_coords, on_cpu[0])
    assert np.array_equal(reference.to_numpy(out), reference.to_numpy(on_cpu[1]), equal_nan=True)


dtype_of = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def test_rows_that_nothing_reaches_are_zero() -> None:
    coords, features = voxels(30, 4, seed=4), np.full((30, 3), -5, np.float32)
    targets = np.array([[0, 0, 0, 0], [0, 50, 50, 50]], np.int32)
    _, out = sc.sparse_max_pool3d(coords, features, 4, out_coords=targets, target=TARGET)
    assert np.array_equal(out, [[-5, -5, -5], [0, 0, 0]])


def test_the_map_is_kept_while_coordinates_live(launched: list[str]) -> None:
    coords = torch.from_numpy(voxels(60, SHAPE, seed=8))
    operands = torch.ones(60, 4), torch.ones(4, 2, 2, 2, 4)
    sc.sparse_conv3d(coords, *operands, stride=2, target=TARGET)
    launched.clear()
    sc.sparse_conv3d(coords, *operands, stride=2, target=TARGET)
    assert [name.partition("_")[0] for name in launched] == ["gemm"]
    # Written past the version counter, which the checksum sees.
    coords.numpy()[0, 1] += 40
    out_coords, out = sc.sparse_conv3d(coords, *operands, stride=2, target=TARGET)
    assert np.array_equal(out, rc.conv3d(coords, out_coords, *operands, rc.Grid.of(2, 2)))
