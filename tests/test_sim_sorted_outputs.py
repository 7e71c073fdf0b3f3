"""Outputs by a sort of candidates, and maps by search in outputs that ascend, on target gfx950-sim.

Both are compared with marks and a grid where these apply, and with the dictionary oracle on boxes that have no others.
"""

from __future__ import annotations

import gc
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from conv_cases import voxels
from cross_cases import GRIDS, SHAPE, cross_case

import spconv_compiler as sc
import spconv_compiler.pytorch as spconv
from spconv_compiler import reference_cross as rc
from spconv_compiler import sparse_driver_gpu
from spconv_compiler.arrays import as_array
from spconv_compiler.coordinates import Box
from spconv_compiler.errors import InputError
from spconv_compiler.geometry import ConvGeometry
from spconv_compiler.reference import as_triple
from spconv_compiler.runtime import sim
from spconv_compiler.schedules import mappers
from spconv_compiler.sparse_driver import load_sparse
from spconv_compiler.sparse_driver_gpu import GpuSparseKernel
from spconv_compiler.sparse_options import SparseOptions

TARGET = "gfx950-sim"
GRID = rc.Grid.of(3, 2, 1)
# What differs in numbers only runs with the slow tests.
ALWAYS = {("k3s2p1", False)}
GEOMETRIES = [
    pytest.param(name, transposed, marks=() if (name, transposed) in ALWAYS else pytest.mark.slow)
    for name in ("k2s2", "k3s2p1", "k311s211", "k3s2p2d2", "k3s2p3d3", "k234s213p102d132", "k1s2", "k5s1p0")
    for transposed in (False, True)
]


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


def geometry_of(name: str, transposed: bool) -> ConvGeometry:
    axes: Any = [as_triple(value) for value in GRIDS[name]]
    return ConvGeometry(*axes, transposed=transposed)


def outputs_by(
    mapper: str, coords: Any, geometry: ConvGeometry, width: int = 32, capacity: int | None = None, shape: Any = None
) -> Any:
    """What a mapper makes of coords int32 [N, 4]; with a capacity beside the two counts."""
    kernel: Any = load_sparse(SparseOptions("outputs", geometry, width, target=TARGET, mapper=mapper))
    box = Box(tuple(coords.min(axis=0).tolist()), tuple(coords.max(axis=0).tolist()))
    out_box = geometry.output_box(box, shape)
    assert out_box is not None
    made = kernel.outputs(as_array(coords, "coords"), kernel.output_numbers(box, out_box)[0], capacity)
    return made.rows if capacity is None else (made.rows, kernel.total(made.count))


def wanted_of(coords: Any, name: str, transposed: bool = False) -> Any:
    found = rc.outputs(coords, rc.Grid.of(*GRIDS[name]), transposed=transposed)
    return np.array(found, np.int32).reshape(-1, 4)


@pytest.mark.parametrize(("name", "transposed"), GEOMETRIES)
def test_both_ways_make_the_same(name: str, transposed: bool) -> None:
    """Negative coordinates, three batches, a row that repeats, keys of both widths."""
    coords = voxels(330, SHAPE, batches=3, seed=2) - np.array([0, 4, 5, 6], np.int32)
    coords, geometry = np.concatenate([coords, coords[:9]]), geometry_of(name, transposed)
    wanted = wanted_of(coords, name, transposed)
    for width in (32, 64):
        assert np.array_equal(outputs_by(mappers.SORTED_CANDIDATES, coords, geometry, width), wanted)
    assert np.array_equal(outputs_by(mappers.MARKED_CELLS, coords, geometry), wanted)


@pytest.mark.parametrize("order", [pytest.param("ascending", marks=pytest.mark.slow), "shuffled"])
def test_a_real_frame(order: str, shared_dir: pathlib.Path) -> None:
    """A part of SemanticKITTI at 5 cm, whose keys of kernel 2 and stride 2 come in order where the frame does."""
    from spconv_compiler.bench.frames import load_frame

    coords = load_frame("semantickitti", shared_dir / "data").coords[20_000:23_000]
    if order == "shuffled":
        coords = coords[np.random.default_rng(0).permutation(len(coords))]
    for name in ("k3s2p1", "k2s2"):
        made = [
            outputs_by(mapper, coords, geometry_of(name, False))
            for mapper in (mappers.MARKED_CELLS, mappers.SORTED_CANDIDATES)
        ]
        assert np.array_equal(*made) and np.array_equal(made[1], wanted_of(coords, name))


@pytest.mark.parametrize(
    ("name", "rows"),
    [("k3s2p1", rows) for rows in (1, 127, 128, 129)] + [("k2s2", rows) for rows in (1, 1023, 1024, 1025)],
)
def test_rows(name: str, rows: int) -> None:
    """Around a tile of 1024 candidates: eight of each input, or one."""
    coords = voxels(rows, (10, 11, 12), batches=2, seed=rows)
    found = outputs_by(mappers.SORTED_CANDIDATES, coords, geometry_of(name, False))
    assert np.array_equal(found, wanted_of(coords, name))


def test_capacities() -> None:
    """Rows behind the last output lie in batch −1; outputs beyond the capacity are left out, and counted."""
    coords, geometry = voxels(300, SHAPE, batches=2, seed=4), geometry_of("k3s2p1", False)
    wanted = wanted_of(coords, "k3s2p1")
    for room in (20, len(wanted), len(wanted) + 500):
        rows, total = outputs_by(mappers.SORTED_CANDIDATES, coords, geometry, capacity=room)
        there = min(room, len(wanted))
        assert total == len(wanted) and len(rows) == room
        assert np.array_equal(rows[:there], wanted[:there])
        assert (rows[there:] == np.array([-1, 0, 0, 0])).all()


def test_vanishing_outputs() -> None:
    """Stride 2 without a kernel to speak of: odd places have no output, whatever lies in the box."""
    coords, geometry = np.array([[0, 1, 1, 1], [0, 9, 9, 9], [1, 3, 3, 3]], np.int32), geometry_of("k1s2", False)
    assert outputs_by(mappers.SORTED_CANDIDATES, coords, geometry).shape == (0, 4)
    far = np.concatenate([coords, coords[:1] + np.array([0, 2**20, 2**20, 2**20], np.int32)])
    map_ = sc.build_map(far, 1, stride=2, target=TARGET)
    assert map_.out_rows == 0 and [len(column) for column in map_.pairs()] == [0, 0, 0]
    nothing = sc.build_map(far[:0], 3, stride=2, target=TARGET)
    assert nothing.out_rows == 0 and nothing.out_total() == 0


def clusters(side: int, seed: int, count: int = 12) -> Any:
    """Small groups of voxels in batches of a box with this side, its corners among them, in random order."""
    rng = np.random.default_rng(seed)
    corners = np.stack([rng.integers(0, size, count) for size in (4, *[side - 3] * 3)], axis=1)
    corners = np.concatenate([corners, [[0, 0, 0, 0], [3, side - 3, side - 3, side - 3]]])
    near = corners[:, None] + np.array([[0, *place] for place in voxels(5, 3, seed=1)[:, 1:]])
    coords = np.unique(near.reshape(-1, 4), axis=0).astype(np.int32)
    return coords[rng.permutation(len(coords))]


@pytest.mark.parametrize(
    ("side", "transposed", "bits"),
    [
        # Four batches of 8190³ outputs, or of 820,000³.
        pytest.param(2 * 8190, False, 41, id="2^41", marks=pytest.mark.slow),
        pytest.param(2 * 820_000, False, 60, id="2^60"),
        pytest.param(4095, True, 41, id="2^41 transposed", marks=pytest.mark.slow),
        pytest.param(410_000, True, 60, id="2^60 transposed", marks=pytest.mark.slow),
    ],
)
def test_far_beyond_a_grid(side: int, transposed: bool, bits: int, launched: list[str]) -> None:
    """Outputs, pairs, values and the way back against the dictionary oracle."""
    coords, rng = clusters(side, seed=side), np.random.default_rng(1)
    map_ = sc.build_map(coords, 3, stride=2, padding=1, transposed=transposed, target=TARGET)
    digits = mappers.passes_of(2**bits)
    assert [name.partition("_k64")[0] for name in launched] == [
        "clear_candidates", "candidate_records", *["sort_candidates"] * digits, "unique_outputs",
    ]  # fmt: skip
    assert np.array_equal(map_.out_coords, rc.outputs(coords, GRID, transposed=transposed))
    fine, coarse = (map_.out_coords, coords) if transposed else (coords, map_.out_coords)
    known = {(tap, c, f) if transposed else (tap, f, c) for tap, f, c in rc.triples(fine, coarse, GRID)}
    columns = [column.tolist() for column in map_.pairs()]
    assert set(zip(*columns, strict=True)) == known and len(columns[0]) == len(known)

    sizes = (len(coords), 3), (5, 3, 3, 3, 3), (4, 3, 3, 3, 5)
    features, weight, weight_up = (rng.integers(-2, 3, size).astype(np.float32) for size in sizes)
    out = sc.mapped_conv3d(features, weight, map=map_)
    exact = rc.conv3d(coords, map_.out_coords, features, weight, GRID, transposed=transposed)
    assert np.array_equal(out, exact)
    back = sc.sparse_inverse_conv3d(out, weight_up, map=map_)
    assert np.array_equal(back, rc.conv3d(map_.out_coords, coords, exact, weight_up, GRID, transposed=not transposed))
    if not transposed:
        pooled = sc.mapped_pool3d(features, map=map_, mode="max")
        assert np.array_equal(pooled, rc.pool3d(coords, map_.out_coords, features, GRID, "max"))


def test_twelve_launches(launched: list[str]) -> None:
    """From coordinates to the pairs of pairs_m16 in 2^41 cells, without a number read when there is a capacity."""
    coords = clusters(2 * 8190, seed=3)
    options = {"spatial_shape": (2 * 8190,) * 3, "batch_size": 4, "capacity": 500, "target": TARGET}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_driver_gpu, "read", None)
        map_ = sc.build_map(coords, 3, stride=2, padding=1, **options)
        kernel = map_.kernel("conv", c_in=16, c_out=16, dtype="bf16", schedule="pairs_m16")
        pairs = map_.pairs_for(kernel)
    assert [name.partition("_k64")[0] for name in launched[-3:]] == [
        "cross_lookup", "scan_chunks_b1024", "write_cross_pairs_t27_m16",
    ]  # fmt: skip
    assert len(launched) == 12
    wanted = rc.outputs(coords, GRID, shape=(8190,) * 3)
    assert np.array_equal(map_.out_coords[: len(wanted)], wanted) and map_.out_total() == len(wanted)
    assert pairs.count == len(list(rc.triples(coords, wanted, GRID)))


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["auto", "pairs_m16"])
@pytest.mark.parametrize("name", ["k1x1x9", "k234s213p102d132", "k3s2p1", "k5s1p0"])
def test_every_index_gives_the_same(name: str, schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid, sorted keys, and outputs that ascend, with a row of the inputs that repeats."""
    case, found = cross_case(name, 150, seed=6), []
    coords = np.concatenate([case.coords, case.coords[:3]])
    features = np.concatenate([case.features, case.features[:3]])
    for mapper in ("auto", mappers.COARSE_KEYS, mappers.COARSE_ASCENDING):
        monkeypatch.setattr(GpuSparseKernel, "mapper", lambda *_, mapper=mapper, **__: mapper)
        kernel, stride, padding, dilation = GRIDS[name]
        axes = {"stride": stride, "padding": padding, "dilation": dilation}
        map_ = sc.build_map(coords, kernel, **axes, target=TARGET)
        found.append(sc.mapped_conv3d(features, case.weight, case.bias, map=map_, schedule=schedule))
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


@pytest.mark.slow
def test_modules_far_apart() -> None:
    """spconv's modules: down and up again in a box of 2^45 cells, as on the processor."""
    indices = clusters(2**15, seed=5)
    rows = torch.from_numpy(np.random.default_rng(2).integers(-2, 3, (len(indices), 4)).astype(np.float32))
    net = torch.nn.Sequential(
        spconv.SparseConv3d(4, 8, 3, stride=2, padding=1, indice_key="down"),
        spconv.SparseInverseConv3d(8, 4, 3, indice_key="down"),
    )
    for parameter in net.parameters():
        parameter.data = torch.randint(-2, 3, parameter.shape).float()
    found = {}
    for target in (TARGET, "cpu"):
        tensor = spconv.SparseConvTensor(rows, torch.from_numpy(indices), [2**15] * 3, 4)
        with spconv.use_target(target), torch.no_grad():
            found[target] = net(tensor)
    assert torch.equal(found[TARGET].indices, found["cpu"].indices)
    assert torch.equal(found[TARGET].features, found["cpu"].features)


def test_boxes_that_no_key_tells_apart() -> None:
    """The message says how large the box is and what is accepted."""
    far = np.array([[0, 0, 0, 0], [15, 2**21, 2**21, 2**21]], np.int32)
    shape = re.escape("outputs span 16 x 2097155 x 2097155 x 2097155 (batches, z, y, x), ")
    with pytest.raises(InputError, match=shape):
        sc.build_map(far, 3, padding=1, target=TARGET)
    with pytest.raises(InputError, match=r"below 2\^63 - 64 cells, which a key of 64 bits can tell apart"):
        sc.build_map(far, 3, stride=1, out_coords=far, target=TARGET)


def numbers(rows: int, cells: int) -> str:
    kernel: Any = load_sparse(SparseOptions("outputs", geometry_of("k3s2p1", False), target=TARGET))
    return str(kernel.outputs_by({"cells": cells}, rows, 32 if cells < 2**31 else 64))


@pytest.mark.parametrize(
    ("rows", "cells", "mapper"),
    [
        (100_000, 10**7, "auto"),
        (100_000, 3 * 10**8, "auto"),
        (100_000, 3 * 10**9, mappers.SORTED_CANDIDATES),
        (1000, 2**40, mappers.SORTED_CANDIDATES),
        # More candidates than 32-bit offsets reach: marks, as long as these fit.
        (20_000_000, 2**33, "auto"),
    ],
)
def test_how_outputs_are_made(rows: int, cells: int, mapper: str) -> None:
    assert numbers(rows, cells) == mapper


def test_neither_way_to_make_outputs() -> None:
    with pytest.raises(InputError, match="20000000 coords have 160000000 candidates for outputs, in a box of .* cells"):
        numbers(20_000_000, 2**50)


@pytest.mark.parametrize(
    ("cells", "rows", "ascending", "mapper"),
    [
        (10**7, 10**5, True, mappers.COARSE_ASCENDING),
        (10**5, 10**7, True, "auto"),
        (10**6, 10**5, False, "auto"),
        (4 * 10**8, 10**5, False, mappers.COARSE_KEYS),
        # A grid is not even thought of.
        (2**40, 10**7, True, mappers.COARSE_ASCENDING),
        (2**40, 10**7, False, mappers.COARSE_KEYS),
    ],
)
def test_how_coarse_voxels_are_found(cells: int, rows: int, ascending: bool, mapper: str) -> None:
    kernel: Any = load_sparse(SparseOptions("outputs", geometry_of("k3s2p1", False), target=TARGET))
    assert kernel.mapper({"cells": cells}, rows, rows, ascending=ascending) == mapper
