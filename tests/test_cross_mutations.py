"""The tests of maps between two sets can fail: kept buffers and the code of kernels are broken one at a time.

Buffers are broken as a wrong kernel would leave them. Code is broken before it is compiled, one expression at a time,
and the comparison with the oracle that test_build_map makes has to notice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conv_cases import voxels
from cross_cases import SHAPE

import spconv_compiler as sc
from spconv_compiler import reference_cross as rc
from spconv_compiler.arrays import as_array
from spconv_compiler.sparse_driver import SparseKernel

GRID = rc.Grid.of(3, 2, 1)


@dataclasses.dataclass
class Parts:
    """A strided convolution, or its inverse, taken apart."""

    inverse: bool
    map: sc.SparseMap
    kernel: SparseKernel
    pairs: dict[str, Any]
    features: Any
    weight: Any

    def run(self) -> Any:
        rows = self.map.in_rows if self.inverse else self.map.out_rows
        out = np.full((rows, 8), np.nan, np.float32)
        packed = self.kernel.pack(as_array(self.weight, "weight"))
        inputs = as_array(self.features, "features")
        self.kernel.run(self.pairs, self.map.symbols, inputs, out.ctypes.data, packed)
        return out

    def expected(self) -> Any:
        sets = (self.map.in_coords, self.map.out_coords)
        sets = sets[::-1] if self.inverse else sets
        return rc.conv3d(*sets, self.features, self.weight, GRID, transposed=self.inverse)


@pytest.fixture(params=[False, True], ids=["forward", "inverse"])
def parts(request: pytest.FixtureRequest) -> Parts:
    map_ = sc.build_map(voxels(400, SHAPE, seed=1), 3, stride=2, padding=1)
    kernel = map_.kernel("conv", inverse=request.param, c_in=4, c_out=8)
    pairs = dict(map_.pairs_for(kernel, inverse=request.param).buffers)
    rng = np.random.default_rng(0)
    # Never zero: a row that is left out is missed.
    features = rng.integers(1, 8, (map_.out_rows if request.param else 400, 4)).astype(np.float32)
    weight = rng.integers(1, 4, (8, 3, 3, 3, 4)).astype(np.float32)
    return Parts(request.param, map_, kernel, pairs, features, weight)


def drop_one_pair(parts: Parts) -> None:
    parts.pairs["tap_first"].array().reshape(-1, 28)[0, 27] -= 1


def count_one_pair_twice(parts: Parts) -> None:
    pairs = parts.pairs["pairs"].array()
    pairs[1] = pairs[0]


def read_another_row(parts: Parts) -> None:
    parts.pairs["pairs"].array()[5] ^= 1


def shift_a_tap(parts: Parts) -> None:
    parts.pairs["tap_first"].array().reshape(-1, 28)[0, 3] += 1


def forget_one_row(parts: Parts) -> None:
    origin = parts.pairs["origin" if parts.inverse else "coarse_origin"].array()
    origin[30] = origin[31]


BREAKAGES = [drop_one_pair, count_one_pair_twice, read_another_row, shift_a_tap, forget_one_row]


def test_unbroken_parts_agree(parts: Parts) -> None:
    assert np.array_equal(parts.run(), parts.expected())


@pytest.mark.parametrize("break_it", BREAKAGES)
def test_a_broken_buffer_is_seen(parts: Parts, break_it: Callable[[Parts], None]) -> None:
    break_it(parts)
    assert not np.array_equal(parts.run(), parts.expected())


# Code: (class, attribute, what stands there instead, given the right one).
def _wrong_offset(right: Any) -> Any:
    """Planes are taken to be a line longer than they are."""
    return lambda self, tap, extent_y, extent_x: right(self, tap, extent_y + 1, extent_x)


def _flipped_taps(right: Any) -> Any:
    return lambda self, tap, *extents: right(self, tap * -1 + (self.taps - 1), *extents)


def _duplicates_stay(right: Any) -> Any:
    return lambda self, keys, count: count


def _sorted_already(right: Any) -> Any:
    return lambda self, rows, cells: None


def _last_mark_is_lost(right: Any) -> Any:
    """Where a slab has outputs, the last is not counted: the next slab's first takes its place."""

    def changed(self: Any, cells: Any) -> Any:
        words, count = right(self, cells)
        return words, (count - 1).max(0)

    return changed


def _flags_stay_behind(right: Any) -> Any:
    """What is read is not cleared: a slab has the outputs of the one before."""
    return lambda self, words, *given: right(self, words - 1, *given)


def _one_candidate_less(right: Any) -> Any:
    """The farthest of the outputs that follow each other along x is left out."""

    def changed(self: Any, axis: int, prepared: Any, extent: Any) -> Any:
        place, bits = right(self, axis, prepared, extent)
        return place, bits & -2

    return changed


def _never_reached(right: Any) -> Any:
    """The farther of two outputs that follow each other is left out."""
    return lambda self, axis, rest, number: right(self, axis, rest, number) & rest.eq(0)


def _sources_too_short(right: Any) -> Any:
    """The last lines of inputs that can reach a slab are left out; the very last is the box's edge, and empty."""

    def changed(self: Any, *given: Any) -> Any:
        begin, end = right(self, *given)
        return begin, end - 3

    return changed


def _range_too_short(right: Any) -> Any:
    """The last coarse voxel that can read a chunk of fine ones is left out."""
    return lambda self, *given: [right(self, *given)[0], right(self, *given)[1] - 1]


@pytest.fixture
def uncached(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SPCONV_CACHE", "off")
    sc.clear_caches()
    yield
    sc.clear_caches()


def agrees(*, wide: bool, transposed: bool) -> bool:
    """Whether outputs and pairs are what the oracle says; a large box has its outputs sorted, not marked."""
    coords = voxels(300, SHAPE, batches=2, seed=2)
    if wide:
        coords = np.concatenate([coords, np.array([[0, 0, 0, 4_000_000]], np.int32)])
    # In order, so that voxels next to each other follow each other.
    coords = coords[np.lexsort(coords.T[::-1])]
    map_ = sc.build_map(coords, 3, stride=2, padding=1, transposed=transposed)
    if not np.array_equal(map_.out_coords, rc.outputs(coords, GRID, transposed=transposed)):
        return False
    found = set(zip(*(column.tolist() for column in map_.pairs()), strict=True))
    fine, coarse = (map_.out_coords, coords) if transposed else (coords, map_.out_coords)
    known = rc.triples(fine, coarse, GRID)
    return found == {(tap, c, f) if transposed else (tap, f, c) for tap, f, c in known}


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_unbroken_code_agrees(wide: bool, transposed: bool, uncached: None) -> None:
    assert agrees(wide=wide, transposed=transposed)


@pytest.mark.parametrize(
    ("module", "owner", "attribute", "change", "wide", "transposed"),
    [
        ("cross_table", "CrossGeometry", "offset", _wrong_offset, False, False),
        ("cross_table", "CrossGeometry", "offset", _flipped_taps, False, True),
        ("output_keys", "OutputKeys", "_unique", _duplicates_stay, True, False),
        ("radix_sort", "RadixSort", "__call__", _sorted_already, True, False),
        ("marks", "Marks", "find", _last_mark_is_lost, False, False),
        ("marks", "Marks", "take", _flags_stay_behind, False, False),
        ("lane_marks", "LaneMarks", "_reached", _never_reached, False, False),
        ("candidates", "Candidates", "run", _one_candidate_less, False, True),
        ("candidates", "Candidates", "sources", _sources_too_short, False, False),
        ("candidates", "Candidates", "sources", _sources_too_short, False, True),
        ("cross_pairs", "CrossPairs", "_readers", _range_too_short, False, True),
    ],
)
def test_broken_code_is_seen(
    module: str,
    owner: str,
    attribute: str,
    change: Callable[[Any], Any],
    wide: bool,
    transposed: bool,
    monkeypatch: pytest.MonkeyPatch,
    uncached: None,
) -> None:
    import importlib

    class_ = getattr(importlib.import_module(f"spconv_compiler.passes.cpu.{module}"), owner)
    monkeypatch.setattr(class_, attribute, change(getattr(class_, attribute)))
    assert not agrees(wide=wide, transposed=transposed)
