"""What makes outputs and pairs of eight voxels at a time, and what takes its place where it cannot: by the oracle.

Frames are large enough for whole vectors, chunks and searches, with rests of every length; each path is broken once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from conv_cases import voxels

import spconv_compiler as sc
from spconv_compiler import reference_cross as rc
from spconv_compiler.geometry import key_width

SHAPE = (11, 41, 37)
# (kernel, stride, padding): strides that are powers of two, runs of one and two outputs, lines that are kept as they
# are, lines that are kept but begin elsewhere, and a stride that is no power of two.
GRIDS: dict[str, tuple[Any, ...]] = {
    "k2s2": (2, 2, 0),
    "k3s2p1": (3, 2, 1),
    "k4s1": (4, 1, 0),
    "k311s211": ((3, 1, 1), (2, 1, 1), 0),
    "k311s211p011": ((3, 1, 1), (2, 1, 1), (0, 1, 1)),
    "k211s211p100": ((2, 1, 1), (2, 1, 1), (1, 0, 0)),
    "k333s244": (3, (2, 4, 4), 1),
    "k2s3": (2, 3, 0),
}


def agrees(coords: npt.NDArray[np.int32], grid: tuple[Any, ...], **options: Any) -> bool:
    """Whether outputs, their order and all pairs are the oracle's."""
    kernel, stride, padding = grid
    map_ = sc.build_map(coords, kernel, stride=stride, padding=padding, **options)
    asked = rc.Grid.of(kernel, stride, padding, 1)
    wanted = rc.outputs(coords, asked, transposed=False, shape=map_.out_spatial_shape)
    if not np.array_equal(map_.out_coords, np.array(wanted, np.int32).reshape(-1, 4)):
        return False
    found = list(zip(*(column.tolist() for column in map_.pairs()), strict=True))
    return found == sorted(rc.triples(coords, map_.out_coords, asked), key=lambda pair: (pair[0], pair[2]))


def frame(rows: int, seed: int, *, ordered: bool = True) -> npt.NDArray[np.int32]:
    coords = voxels(rows, SHAPE, batches=2, seed=seed)
    return coords[np.lexsort(coords.T[::-1])] if ordered else coords


@pytest.mark.parametrize("ordered", [True, False], ids=["ascending", "shuffled"])
@pytest.mark.parametrize("name", GRIDS)
def test_frames_of_some_thousand_voxels(name: str, ordered: bool) -> None:
    """With an edge, odd along every axis, and without one, where coordinates are negative."""
    coords = frame(2500, 1, ordered=ordered)
    assert agrees(coords, GRIDS[name], spatial_shape=SHAPE, batch_size=2)
    assert agrees(coords - np.array([0, 6, 23, 19], np.int32), GRIDS[name])


@pytest.mark.parametrize("name", ["k2s2", "k3s2p1", "k311s211"])
@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 1023, 1024, 1025])
def test_rests_of_vectors_and_of_searches(name: str, rows: int) -> None:
    assert agrees(frame(rows, rows), GRIDS[name], spatial_shape=SHAPE)


@pytest.mark.parametrize("name", ["k2s2", "k3s2p1", "k311s211"])
def test_keys_of_64_bits(name: str) -> None:
    near = frame(600, 3)
    coords = np.concatenate([near, near + np.array([0, 90_000, 80_000, 1_000_000], np.int32)])
    assert key_width(sc.build_map(coords, 2, stride=2).symbols) == 64
    assert agrees(coords, GRIDS[name])


@pytest.mark.parametrize("first", [-(2**31), 2**31 - 64])
def test_the_ends_of_int32(first: int) -> None:
    """What is added to a place before it is divided does not leave 32 bits because coordinates nearly do."""
    coords = frame(500, 4)
    coords[:, 1:] += np.int32(first)
    assert agrees(coords, (2, 2, 0)) and agrees(coords, (3, 2, 0)) and agrees(coords, ((3, 1, 1), (2, 1, 1), 0))


@pytest.mark.parametrize("grid", [(3, 2, 1 << 25), (1, 1 << 23, 0), (1, 1 << 30, 0)])
def test_long_ways_from_inputs_to_outputs(grid: tuple[int, int, int]) -> None:
    """A padding moves both boxes; with a stride of 2^23 lanes still serve, with one of 2^30 they do not."""
    assert agrees(frame(500, 5), grid)


def test_many_lines_of_one_voxel() -> None:
    """Along y no two voxels share a line, and slabs end between lines."""
    coords = np.stack([np.zeros(4000), np.zeros(4000), np.arange(4000) * 3, np.arange(4000) % 61], 1).astype(np.int32)
    for name in ("k2s2", "k3s2p1", "k311s211"):
        assert agrees(coords, GRIDS[name])


# Code: (module, owner, attribute, what stands there instead, given the right one, the geometry that has to notice).
def _one_shift_more(right: Any) -> Any:
    return lambda self, axis: right(self, axis) + (1 if axis == 2 else 0)


def _one_output_less(right: Any) -> Any:
    return lambda self, axis, rest, number: right(self, axis, rest, number) & rest.ne(0)


def _rest_is_left_out(right: Any) -> Any:
    """The voxels behind the last whole vector of a range are not marked."""
    return lambda self, keys, marks, span, *given: right(self, keys, marks, (span[0], span[1] - 1), *given)


def _one_place_off(right: Any) -> Any:
    return lambda self, keys, marks, span, distance: right(self, keys, marks, span, distance + 1)


def _rows_change_places(right: Any) -> Any:
    return lambda columns: right([columns[0], columns[2], columns[1], columns[3]])


def _second_byte_is_lost(right: Any) -> Any:
    return lambda self, place, bits, most: right(self, place, bits, 1)


def _columns_too_few(right: Any) -> Any:
    """Runs of the searched table overlap: what one run found hides what another did."""
    return property(lambda self: right.fget(self) - self.chunk_rows)


BROKEN = [
    ("lane_marks", "LaneMarks", "_shift", _one_shift_more, "k3s2p1"),
    ("lane_marks", "LaneMarks", "_reached", _one_output_less, "k3s2p1"),
    ("lane_marks", "LaneMarks", "mark", _rest_is_left_out, "k2s2"),
    ("output_keys", "OutputKeys", "_move_range", _one_place_off, "k311s211"),
    ("decode_keys", None, "rows_of", _rows_change_places, "k2s2"),
    ("marks", "Marks", "mark_eight", _second_byte_is_lost, "k3s2p1"),
    ("cross_pairs", "CrossPairs", "columns", _columns_too_few, "k3s2p1"),
]


@pytest.fixture
def uncached(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SPCONV_CACHE", "off")
    sc.clear_caches()
    yield
    sc.clear_caches()


@pytest.mark.parametrize(("module", "owner", "attribute", "change", "name"), BROKEN)
def test_broken_code_is_seen(
    module: str,
    owner: str | None,
    attribute: str,
    change: Callable[[Any], Any],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    uncached: None,
) -> None:
    import importlib

    found = importlib.import_module(f"spconv_compiler.passes.cpu.{module}")
    place = found if owner is None else getattr(found, owner)
    right = vars(place)[attribute]
    monkeypatch.setattr(place, attribute, change(right))
    assert not agrees(frame(1500, 6), GRIDS[name])
