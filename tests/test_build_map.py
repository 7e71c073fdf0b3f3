"""build_map: output sets and pairs of every geometry against the dictionary oracle, and the laws they keep."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from conv_cases import voxels
from cross_cases import GRIDS, SHAPE, options_of
from hypothesis import given, settings
from hypothesis import strategies as st

import spconv_compiler as sc
from spconv_compiler import reference_cross as rc
from spconv_compiler import sparse_driver, sparse_map
from spconv_compiler.errors import InputError
from spconv_compiler.geometry import key_width

Triples = list[tuple[int, int, int]]
relaxed = settings(deadline=None, max_examples=25)
# Tap, input row and output row in one list, the order of pairs().
TRANSPOSED = pytest.mark.parametrize("transposed", [False, True], ids=["forward", "transposed"])


def triples_of(map_: sc.SparseMap) -> Triples:
    return list(zip(*(column.tolist() for column in map_.pairs()), strict=True))


def expected_triples(map_: sc.SparseMap, coords: Any, grid: rc.Grid) -> Triples:
    fine, coarse = (map_.out_coords, coords) if map_.geometry.transposed else (coords, map_.out_coords)
    found = [(tap, f, c) for tap, f, c in rc.triples(fine, coarse, grid)]
    if map_.geometry.transposed:
        found = [(tap, c, f) for tap, f, c in found]
    return sorted(found, key=lambda pair: (pair[0], pair[2]))


def check(coords: npt.NDArray[np.int32], name: str, *, transposed: bool, **options: Any) -> sc.SparseMap:
    """Builds a map and compares outputs and pairs with the oracle: every pair exactly once, in order."""
    map_ = sc.build_map(coords, GRIDS[name][0], **options_of(name), transposed=transposed, **options)
    grid = rc.Grid.of(*GRIDS[name])
    shape = map_.out_spatial_shape
    if "out_coords" not in options:
        wanted = rc.outputs(coords, grid, transposed=transposed, shape=shape)
        assert np.array_equal(map_.out_coords, np.array(wanted, np.int32).reshape(-1, 4))
    assert triples_of(map_) == expected_triples(map_, coords, grid)
    return map_


@pytest.mark.parametrize("name", GRIDS)
@TRANSPOSED
def test_within_a_shape(name: str, transposed: bool) -> None:
    coords = voxels(150, SHAPE, batches=2, seed=1)
    map_ = check(coords, name, transposed=transposed, spatial_shape=SHAPE, batch_size=2)
    grid = rc.Grid.of(*GRIDS[name])
    shape = grid.transposed_shape(SHAPE) if transposed else grid.output_shape(SHAPE)
    assert map_.out_spatial_shape == shape
    assert (map_.out_coords[:, 1:] < shape).all() and (map_.out_coords >= 0).all()


@pytest.mark.parametrize("name", GRIDS)
@TRANSPOSED
def test_without_an_edge(name: str, transposed: bool) -> None:
    coords = voxels(150, SHAPE, batches=2, seed=2) - np.array([0, 4, 5, 6], np.int32)
    assert check(coords, name, transposed=transposed).out_spatial_shape is None


@pytest.mark.parametrize("name", ["k2s2", "k3s2p1", "k234s213p102d132", "k3s2p2d2"])
@TRANSPOSED
def test_wide_keys(name: str, transposed: bool) -> None:
    """Two clusters so far apart that keys take 64 bits and outputs are sorted, not marked."""
    near = voxels(60, SHAPE, batches=2, seed=3)
    coords = np.concatenate([near, near + np.array([0, 90_000, -80_000, 1_000_000], np.int32)])
    map_ = check(coords, name, transposed=transposed)
    assert key_width(map_.symbols) == 64


@pytest.mark.parametrize("name", ["k2s2", "k3s2p1", "k234s213p102d132", "k3s2p2d2"])
@TRANSPOSED
def test_sorting_and_marking_outputs_agree(name: str, transposed: bool) -> None:
    """A voxel at a distance makes lines so long that outputs are sorted; the others stay as they are."""
    coords = voxels(120, SHAPE, batches=1, seed=4)
    alone = check(coords, name, transposed=transposed)
    far = np.array([[0, 0, 0, 1_000_000]], np.int32)
    both = check(np.concatenate([coords, far]), name, transposed=transposed)
    assert key_width(both.symbols) == 32
    near = both.out_coords[both.out_coords[:, 3] < 1000]
    assert np.array_equal(near, alone.out_coords) and len(near) < len(both.out_coords)


@pytest.mark.parametrize("name", ["k3s2p1", "k2s2", "k234s213p102d132"])
@TRANSPOSED
@pytest.mark.parametrize("rows", [0, 1, 2, 511, 512, 513])
def test_sizes_around_a_chunk(name: str, transposed: bool, rows: int) -> None:
    check(voxels(rows, (8, 9, 10), seed=rows), name, transposed=transposed, spatial_shape=(8, 9, 10))


@pytest.mark.parametrize("name", ["k3s2p1", "k2s2", "k1s2", "k3s2p2d2"])
@TRANSPOSED
def test_target_coordinates(name: str, transposed: bool) -> None:
    """Given outputs in any order, some that no input reaches, some far away; rows keep their order."""
    coords = voxels(150, SHAPE, batches=2, seed=5)
    targets = np.concatenate([voxels(80, SHAPE, batches=2, seed=6), np.array([[0, 5, -7, 400]], np.int32)])
    map_ = check(coords, name, transposed=transposed, out_coords=targets)
    assert map_.out_coords is targets
    assert len(map_.pairs()[0]) > 0


@TRANSPOSED
def test_a_target_set_of_another_batch_meets_nothing(transposed: bool) -> None:
    coords, targets = voxels(50, 4), voxels(50, 4) + np.array([3, 0, 0, 0], np.int32)
    map_ = sc.build_map(coords, 3, padding=1, transposed=transposed, out_coords=targets)
    assert [len(column) for column in map_.pairs()] == [0, 0, 0]


@relaxed
@given(st.sampled_from(list(GRIDS)), st.booleans(), st.integers(1, 200), st.integers(0, 2**32 - 1))
def test_the_order_of_rows_does_not_matter(name: str, transposed: bool, rows: int, seed: int) -> None:
    coords = voxels(rows, SHAPE, batches=3, seed=seed)
    order = np.random.default_rng(seed).permutation(rows)
    options = {**options_of(name), "transposed": transposed, "spatial_shape": SHAPE}
    first, second = (sc.build_map(given, GRIDS[name][0], **options) for given in (coords, coords[order]))
    assert np.array_equal(first.out_coords, second.out_coords)
    renamed = [(tap, int(order[row]), out) for tap, row, out in triples_of(second)]
    assert renamed == triples_of(first)


@relaxed
@given(
    st.sampled_from(list(GRIDS)),
    st.booleans(),
    st.tuples(*[st.integers(-500, 500)] * 3),
    st.integers(0, 2**32 - 1),
)
def test_translation_by_whole_strides(name: str, transposed: bool, steps: Any, seed: int) -> None:
    """Moving the fine grid by a multiple of the stride moves the coarse one, and the pairs stay."""
    coords = voxels(100, SHAPE, batches=2, seed=seed)
    stride = rc.Grid.of(*GRIDS[name]).stride
    coarse, fine = np.array([0, *steps]), np.array([0, *(n * s for n, s in zip(steps, stride, strict=True))])
    moved_in, moved_out = (coarse, fine) if transposed else (fine, coarse)
    options = {**options_of(name), "transposed": transposed}
    here = sc.build_map(coords, GRIDS[name][0], **options)
    there = sc.build_map((coords + moved_in).astype(np.int32), GRIDS[name][0], **options)
    assert np.array_equal(there.out_coords, here.out_coords + moved_out)
    assert triples_of(there) == triples_of(here)


@relaxed
@given(st.sampled_from(list(GRIDS)), st.booleans(), st.integers(2, 4), st.integers(0, 2**32 - 1))
def test_batches_do_not_meet(name: str, transposed: bool, batches: int, seed: int) -> None:
    coords = voxels(120, SHAPE, batches=batches, seed=seed)
    options = {**options_of(name), "transposed": transposed}
    whole = sc.build_map(coords, GRIDS[name][0], **options)
    for batch in range(batches):
        alone = sc.build_map(coords[coords[:, 0] == batch], GRIDS[name][0], **options)
        assert np.array_equal(whole.out_coords[whole.out_coords[:, 0] == batch], alone.out_coords)
    tap, in_rows, out_rows = whole.pairs()
    assert np.array_equal(coords[in_rows, 0], whole.out_coords[out_rows, 0])


@pytest.mark.parametrize("transposed", [False, True])
def test_threads_do_not_matter(transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough rows that several threads take part."""
    coords = voxels(60_000, (30, 100, 100), seed=7)

    def build(threads: int) -> tuple[npt.NDArray[Any], ...]:
        monkeypatch.setenv("SPCONV_NUM_THREADS", str(threads))
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            map_ = sc.build_map(coords, 3, stride=2, padding=1, transposed=transposed)
            return map_.out_coords, *map_.pairs()
        finally:
            torch.set_num_threads(before)

    one = build(1)
    for threads in (2, 5):
        assert all(np.array_equal(a, b) for a, b in zip(one, build(threads), strict=True))


def test_kinds_of_coordinates() -> None:
    """Outputs have the kind, the dtype and the columns of the inputs."""
    coords = voxels(40, 6, seed=8)
    for kind in (coords, coords.astype(np.int64), torch.from_numpy(coords), torch.from_numpy(coords).long()):
        out = sc.build_map(kind, 2, stride=2).out_coords
        assert type(out) is type(kind) and out.dtype == kind.dtype and out.shape[1] == 4
        three = sc.build_map(kind[:, 1:], 2, stride=2).out_coords
        assert three.dtype == kind.dtype and np.array_equal(np.asarray(three), np.asarray(out)[:, 1:])


def test_one_and_two_dimensions_through_unit_axes() -> None:
    line = voxels(30, (1, 1, 60), seed=9)
    map_ = sc.build_map(line, (1, 1, 3), stride=(1, 1, 2), padding=(0, 0, 1), spatial_shape=(1, 1, 60))
    assert map_.out_spatial_shape == (1, 1, 30)
    reached = {x // 2 + more for x in line[:, 3].tolist() for more in range(x % 2 + 1)}
    assert set(map_.out_coords[:, 3].tolist()) == reached - {30}


@pytest.mark.parametrize("end", [64, 256, 2048, 1 << 17])
def test_outputs_on_both_sides_of_an_end(end: int) -> None:
    """An input reaches two outputs in two words, blocks or slabs of marks, of which nothing else is marked."""
    for x in range(2 * end - 4, 2 * end + 5):
        # Ten lines of `end` cells and more: with slabs of 2^17 cells the last ones are in others.
        coords = np.array([[0, 0, 0, 0], [0, 0, 5, x], [0, 0, 19, x]], np.int32)
        map_ = sc.build_map(coords, 3, stride=2, padding=1)
        wanted = rc.outputs(coords, rc.Grid.of(3, 2, 1), transposed=False, shape=None)
        assert np.array_equal(map_.out_coords, np.array(wanted, np.int32))


def test_what_the_handle_says() -> None:
    coords = voxels(40, SHAPE, seed=10)
    map_ = sc.build_map(coords, (3, 1, 1), stride=(2, 1, 1), spatial_shape=SHAPE, batch_size=1)
    assert map_.in_coords is coords and map_.in_rows == 40 and map_.batch_size == 1
    assert (map_.spatial_shape, map_.out_spatial_shape) == (SHAPE, (4, 10, 11))
    assert map_.geometry.kernel_size == (3, 1, 1) and not map_.geometry.transposed
    assert repr(map_).startswith(f"SparseMap(40 → {map_.out_rows} voxels")


@pytest.mark.parametrize("side", ["in", "out"])
def test_coordinates_that_change_before_the_pairs_are_built(side: str) -> None:
    coords = torch.from_numpy(voxels(40, SHAPE, seed=11))
    map_ = sc.build_map(coords, 2, stride=2)
    (map_.in_coords if side == "in" else map_.out_coords)[0, 1] += 1
    with pytest.raises(InputError, match="changed after it was built"):
        map_.pairs()


@TRANSPOSED
def test_duplicates_are_counted_and_named(transposed: bool) -> None:
    coords = np.array([[0, 1, 2, 3], [0, 4, 4, 4], [0, 1, 2, 3], [0, 1, 2, 3]], np.int32)
    map_ = sc.build_map(coords, 2, stride=2, transposed=transposed)
    with pytest.raises(InputError, match=r"2 coords repeat an earlier row, .*: rows 0 and 2 are both \[0, 1, 2, 3\]"):
        map_.pairs()
    with pytest.raises(InputError, match=r"1 out_coords repeat an earlier row, the first: rows 0 and 1"):
        sc.build_map(coords[:2], 2, transposed=transposed, out_coords=coords[[1, 1, 0]]).pairs()


@TRANSPOSED
def test_duplicates_are_called_what_the_map_was_given(transposed: bool) -> None:
    """By an inverse as well, whose outputs are the coords of the map."""
    coords = np.array([[0, 1, 2, 3], [0, 4, 4, 4], [0, 1, 2, 3]], np.int32)
    weight = np.ones((4, 2, 2, 2, 4), np.float32)
    for sets, message in (((coords, coords[:2]), "1 coords repeat"), ((coords[:2], coords), "1 out_coords repeat")):
        for inverse, run in enumerate((sc.mapped_conv3d, sc.sparse_inverse_conv3d)):
            map_ = sc.build_map(sets[0], 2, transposed=transposed, out_coords=sets[1])
            with pytest.raises(InputError, match=f"^{message} an earlier row, the first: rows 0 and 2"):
                run(np.ones((len(sets[inverse]), 4), np.float32), weight, map=map_)


@pytest.mark.parametrize("ascending", [False, True])
@pytest.mark.parametrize("taps", [1, 27, 70000])
def test_pairs_are_ordered_by_tap_then_by_output(taps: int, ascending: bool) -> None:
    rng = np.random.default_rng(taps)
    tap = rng.integers(0, taps, 2000).astype(np.int32)
    rows = rng.permutation(2000).astype(np.int32)
    rows = np.sort(rows) if ascending else rows
    np.testing.assert_array_equal(sparse_map._by_tap(tap, rows), np.lexsort((rows, tap)))


def test_outputs_that_memory_has_no_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of 1000 x 1000 x 1000 was killed; here the host has memory for 2^20 outputs, and a little more."""
    monkeypatch.setattr(sparse_driver, "host_bytes", lambda: 2 * 28 * 2**20 + 55)
    coords = np.array([[0, 1, 2, 3], [0, 500, 500, 500]], np.int32)
    found = r"kernel \(120, 120, 120\) may make 3456000 outputs of 2 coords, which take 96768000 bytes"
    with pytest.raises(InputError, match=f"{found}; accepted: at most 1048576 outputs"):
        sc.build_map(coords, 120)
    # The grid, and a stride, leave less.
    middle = np.array([[0, 60, 60, 60]], np.int32)
    assert sc.build_map(middle, 120, spatial_shape=(121, 122, 123)).out_rows == 2 * 3 * 4
    assert sc.build_map(coords, 120, stride=4).out_rows == 2 * 30**3
    # As many outputs of few taps are not looked at: inputs share theirs.
    many = voxels(40_000, (40, 40, 40))
    assert sc.build_map(many, 3).out_rows < 2**20 < len(many) * 27


def test_outputs_that_a_simulated_gpu_has_no_room_for() -> None:
    with pytest.raises(InputError, match="343000000 outputs takes 5488000000 bytes; accepted by target gfx950-sim"):
        sc.build_map(np.array([[0, 1, 2, 3]], np.int32), 700, target="gfx950-sim")
