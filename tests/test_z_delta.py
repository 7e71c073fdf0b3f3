"""The z-delta mapper on gfx950 kernels: bit-equal with the reference and the dense grid, beyond what a grid holds."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conv_cases import check, make_case, voxels
from hypothesis import example, given, settings
from hypothesis import strategies as st

import spconv_compiler as sc
from spconv_compiler import reference
from spconv_compiler.arrays import as_array
from spconv_compiler.artifact import Artifact
from spconv_compiler.bench import frames
from spconv_compiler.compiler import compile_options
from spconv_compiler.coordinates import Box
from spconv_compiler.driver_gpu import GpuConvKernel
from spconv_compiler.errors import CompileError, InputError
from spconv_compiler.options import CompileOptions
from spconv_compiler.plan import Argument, evaluate
from spconv_compiler.schedules import mappers
from spconv_compiler.sim.elf import CodeObject
from spconv_compiler.sim.native.machine import NativeMachine
from spconv_compiler.targets import GpuTarget, get_target

TILE = 16
CUBE, FLAT = (3, 3, 3), (1, 1, 1)
Triple = tuple[int, int, int]


@functools.cache
def compiled(kernel: Triple, dilation: Triple, key_width: int, mapper: str, schedule: str = "pairs_m16") -> Artifact:
    options = CompileOptions(
        kernel, 16, 16, key_width, dtype="bf16", dilation=dilation, target="gfx950", schedule=schedule, mapper=mapper
    )
    return compile_options(options)


def symbols_of(coords: np.ndarray, kernel: Triple, dilation: Triple) -> dict[str, int]:
    box = Box(tuple(coords.min(axis=0).tolist()), tuple(coords.max(axis=0).tolist()))
    return {**box.symbols(kernel, dilation), "rows": len(coords), "threads": 1}


def number_of(argument: Argument, symbols: dict[str, int]) -> int:
    """As the executor passes it: 32-bit keys are computed modulo 2^32, and so are distances from the box's corner."""
    value = symbols[argument.name]
    return value % 2**32 if argument.dtype == "i32" and argument.name.startswith("min_") else value


def run_map(
    coords: np.ndarray,
    kernel: Triple = CUBE,
    dilation: Triple = FLAT,
    key_width: int = 32,
    mapper: str = "z_delta",
    seed: int | None = None,
    schedule: str = "pairs_m16",
    artifact: Artifact | None = None,
) -> dict[str, np.ndarray]:
    """The buffers that the launches of the map and of the pairs leave, and the names of these launches."""
    artifact = artifact or compiled(kernel, dilation, key_width, mapper, schedule)
    machine = NativeMachine(CodeObject(artifact.object).kernels, threads=1)
    plan, symbols = artifact.plan, symbols_of(coords, kernel, dilation)
    plan.check(symbols)
    launches = [launch for launch in plan.launches if launch.group == "pairs"]
    used = {item.name for launch in launches for item in launch.arguments}
    sizes = {"i32": 4, "i64": 8}
    places = {
        item.name: machine.memory.allocate(item.name, evaluate(item.size, symbols) * sizes[item.dtype])
        for item in plan.buffers
        if item.name in used
    }
    places["coords"] = machine.memory.allocate("coords", coords.nbytes, writable=False)
    machine.memory.write_array(places["coords"], coords)
    ran = []
    for launch in launches:
        grid = [evaluate(axis, symbols) for axis in launch.grid]
        arguments = [places[a.name] if a.kind == "buffer" else number_of(a, symbols) for a in launch.arguments]
        if min(grid) > 0:
            groups = int(np.prod(grid))
            order = None if seed is None else np.random.default_rng(seed).permutation(groups).tolist()
            machine.launch(launch.kernel, grid, launch.block, arguments, order)
            ran.append(launch.kernel)
    found = {
        name: machine.memory.read_bytes(place).view(np.int32) for name, place in places.items() if name != "coords"
    }
    return {**found, "launches": np.array(ran)}


def table_of(buffers: dict[str, np.ndarray], taps: int) -> np.ndarray:
    """The table as [rows of whole tiles, taps]."""
    return buffers["table"].reshape(-1, taps, TILE).transpose(0, 2, 1).reshape(-1, taps)


def check_map(coords: np.ndarray, kernel: Triple = CUBE, dilation: Triple = FLAT, **how: Any) -> dict[str, np.ndarray]:
    """Table and pairs bit for bit."""
    buffers = run_map(coords, kernel, dilation, **how)
    taps = int(np.prod(kernel))
    table, expected = table_of(buffers, taps), reference.kernel_map(coords, kernel, dilation)
    np.testing.assert_array_equal(table[: len(coords)], expected)
    assert (table[len(coords) :] == -1).all()
    pairs = reference.pad_pairs(reference.pairs(expected), TILE)
    for name, values in {
        "in_rows": pairs.in_rows,
        "out_rows": pairs.out_rows,
        "tile_tap": reference.tile_taps(pairs, TILE),
        "tap_tile": pairs.tap_start // TILE,
    }.items():
        np.testing.assert_array_equal(buffers[name][: len(values)], values, err_msg=name)
    return buffers


def random_coords(rows: int, span: int, batches: int = 2, seed: int = 0) -> np.ndarray:
    """Distinct, shuffled, negative ones among them."""
    return np.random.default_rng(seed).permutation(voxels(rows, span, batches=batches, seed=seed)) - np.array(
        [0, 3, 5, 4], np.int32
    )


@pytest.mark.parametrize("rows", [1, 16, 17, 1025, 3000])
@pytest.mark.parametrize("key_width", [32, 64])
def test_random_voxels(rows: int, key_width: int) -> None:
    check_map(random_coords(rows, 14, seed=rows), key_width=key_width, seed=rows)


@pytest.mark.parametrize(
    ("kernel", "dilation"),
    [
        ((5, 3, 3), FLAT),
        ((1, 3, 5), (1, 2, 3)),
        pytest.param((1, 1, 7), (1, 1, 2), marks=pytest.mark.slow),
        pytest.param((1, 1, 1), FLAT, marks=pytest.mark.slow),
        pytest.param((7, 7, 7), FLAT, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_kernels_and_dilation(kernel: Triple, dilation: Triple) -> None:
    """Up to (5 − 1)·3 + 1 places along x: more than the window, so that some lanes search again; 45 taps: two lines."""
    check_map(random_coords(900, 8), kernel, dilation)


@pytest.mark.parametrize("repeats", [2, 40])
def test_repeated_coordinates(repeats: int) -> None:
    """The lowest row is the neighbour, however many equal keys push the next one out of the window."""
    coords = np.repeat(random_coords(60, 4), repeats, axis=0)
    check_map(np.random.default_rng(1).permutation(coords))


def test_sorted_coordinates_are_not_sorted_again() -> None:
    coords = random_coords(5000, 20)
    coords = coords[np.lexsort(coords.T[::-1])]
    buffers = check_map(coords)
    records = buffers["records"].reshape(2, -1, 2)
    np.testing.assert_array_equal(records[0, :, 1], np.arange(5000))
    assert buffers["sort_state"][:2].tolist() == [0, 0], "a pass has taken tickets"


def test_equals_the_dense_grid() -> None:
    coords = np.concatenate([random_coords(2000, 11), random_coords(50, 11)])
    one, other = (run_map(coords, mapper=mapper) for mapper in mappers.MAPPERS)
    for name in ("table", "tap_tile", "tap_count"):
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@settings(deadline=None, max_examples=5)
@given(st.integers(1, 300), st.tuples(*[st.integers(1, 9)] * 3), st.integers(1, 3), st.integers(0, 2**20))
@example(1, (1, 1, 1), 1, 0)
@example(17, (1, 1, 17), 1, 1)
@example(60, (1, 8, 8), 1, 2)
def test_both_mappers_of_any_box(rows: int, span: Triple, batches: int, seed: int) -> None:
    """Lines and planes among them, rows in any order and with repetitions, workgroups in any order."""
    rng = np.random.default_rng(seed)
    coords = rng.integers(0, (batches, *span), (rows, 4)).astype(np.int32) + rng.integers(-9, 9, 4) * [0, 1, 1, 1]
    for mapper in mappers.MAPPERS:
        check_map(coords.astype(np.int32), mapper=mapper, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("frame", frames.NAMES[:7])
def test_both_mappers_on_real_frames(frame: str, shuffle: bool, shared_dir: Path) -> None:
    """Of the seven frames those whose grid a simulator holds, by both; table, pairs and tiles against the reference."""
    coords = frames.load_frame(frame, shared_dir / "data", shuffle).coords
    cells = symbols_of(coords, CUBE, FLAT)["cells"]
    check_map(coords, key_width=32 if cells < 2**31 else 64)
    if cells < 2**28:
        check_map(coords, mapper="dense_grid")


@pytest.mark.parametrize("low", [-(2**31), 2**31 - 9], ids=["least", "greatest"])
def test_extreme_coordinates(low: int) -> None:
    coords = voxels(200, 8, batches=1, seed=3).astype(np.int64) + [0, low, low, low]
    check_map(coords.astype(np.int32))


@pytest.mark.parametrize(
    ("shape", "batches", "passes"), [((695, 2095, 2095), 1, 4), ((129, 2048, 2048), 16, 5)], ids=str
)
def test_more_than_2_31_cells(shape: Triple, batches: int, passes: int) -> None:
    """Corners of the box, and clusters that meet across batches and lines if keys alias."""
    rng = np.random.default_rng(batches)
    ends = np.array([[batches - 1, *(size - 1 for size in shape)]])
    corners = np.array(np.meshgrid(*[[0, 1]] * 4, indexing="ij")).reshape(4, -1).T * ends
    near = (corners[rng.integers(0, 16, 600)] + rng.integers(-2, 3, (600, 4)) * [0, 1, 1, 1]).clip(0, ends)
    far = rng.integers(0, ends[0] + 1, (500, 4))
    coords = rng.permutation(np.unique(np.concatenate([corners, near, far]), axis=0)).astype(np.int32)
    assert symbols_of(coords, CUBE, FLAT)["cells"] > 2**31
    launches = check_map(coords, key_width=64)["launches"].tolist()
    assert sum(name.startswith("sort_digit") for name in launches) == passes
    assert len(launches) <= 12


def test_launches() -> None:
    """Coordinates to pairs: at most 12 with all digits of 32-bit keys, at most 6 by the dense grid."""
    for mapper, most in (("z_delta", 12), ("dense_grid", 6)):
        plan = compiled(CUBE, FLAT, 32, mapper).plan
        assert sum(launch.group == "pairs" for launch in plan.launches) <= most
    wide = random_coords(100, 8) * np.array([1, 70, 70, 70], np.int32)
    assert len(run_map(wide)["launches"]) <= 12


# The choice between the two.


def loaded(**others: Any) -> GpuConvKernel:
    options = CompileOptions(CUBE, 16, 16, 32, dtype="bf16", target="gfx950-sim", schedule="pairs_m16", **others)
    found = sc.load_conv(options)
    assert isinstance(found, GpuConvKernel)
    return found


def test_the_driver_chooses_by_volume_and_rows() -> None:
    kernel = loaded()
    small, large = Box((0, 0, 0, 0), (0, 40, 190, 190)), Box((0, 0, 0, 0), (0, 690, 2000, 700))
    assert kernel.mapper(small, 50_000) == "dense_grid"
    assert kernel.mapper(large, 50_000) == "z_delta"
    assert loaded(mapper="dense_grid").mapper(large, 50_000) == "dense_grid"
    assert loaded(mapper="z_delta").mapper(small, 50_000) == "z_delta"


def test_more_voxels_favour_the_grid() -> None:
    """In one box the sort grows with the voxels and the fill does not."""
    target = get_target("gfx950")
    assert isinstance(target, GpuTarget)
    cells = 60_000_000
    chosen = [mappers.choose_mapper(cells, rows, 27, target) for rows in (1_000, 10_000_000)]
    assert chosen == ["z_delta", "dense_grid"]
    assert mappers.choose_mapper(target.narrow_cells + 1, 10_000_000, 27, target) == "z_delta"


def test_key_width() -> None:
    """Search needs wide keys from 2^31 cells on, the grid where a buffer's offsets end."""
    between = Box((0, 0, 0, 0), (3, 13, 13, 2**20))
    beyond = Box((0, 0, 0, 0), (7, 13, 13, 2**20))
    for mapper, widths in (("auto", [32, 64]), ("z_delta", [32, 64]), ("dense_grid", [64, 64])):
        kernel = loaded(mapper=mapper)
        assert [kernel.key_width(box) for box in (between, beyond)] == widths


def test_a_map_of_either_mapper_serves_the_convolution() -> None:
    """Far apart, so that the automatic choice is the search; the result is exact."""
    coords = voxels(80, 5, batches=1, seed=2)
    spread = np.concatenate([coords, coords + np.array([0, 600, 900, 900], np.int32)])
    kernel = loaded()
    points = as_array(spread, "coords")
    assert kernel.mapper(kernel.box(points), len(spread)) == "z_delta"
    case = make_case(
        spread, 3, 16, 16, dtype="bf16", whole=True, target="gfx950-sim", schedule="pairs_m16", out_dtype="f32"
    )
    check(case, whole=True)
    built = kernel.build_map(points, kernel.box(points))
    assert built.pairs == int((reference.kernel_map(spread, 3) >= 0).sum())


def test_beyond_64_bits() -> None:
    coords = np.array([[0, -(2**31), -(2**31), -(2**31)], [0, 2**31 - 1, 2**31 - 1, 2**31 - 1]], np.int32)
    with pytest.raises(InputError, match=r"cells with halo; accepted: below 2\^63"):
        features, weight = np.zeros((2, 16), np.float32), np.zeros((16, 3, 3, 3, 16), np.float32)
        sc.subm_conv3d(coords, features, weight, target="gfx950-sim")


def test_unknown_mapper() -> None:
    with pytest.raises(InputError, match="unknown mapper 'hash'; accepted: auto, dense_grid, z_delta"):
        CompileOptions(CUBE, 16, 16, mapper="hash")
    with pytest.raises(CompileError, match="it builds submanifold maps on a GPU; chunk_stationary takes a map by"):
        sc.compile_conv(3, 16, 16, target="cpu", mapper="z_delta")
