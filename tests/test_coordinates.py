"""Coordinates: kinds and dtypes, conversion to int32 [N, 4], the box, its symbols, explicit limits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spconv_compiler.arrays import as_array
from spconv_compiler.coordinates import Box, check_box, check_coords, numpy_view, with_batch
from spconv_compiler.errors import InputError

INT32 = np.iinfo(np.int32)


def wide(coords: object) -> np.ndarray:
    return numpy_view(with_batch(check_coords(coords)))


def box_of(coords: np.ndarray) -> Box:
    return Box(tuple(coords.min(0).tolist()), tuple(coords.max(0).tolist()))


def test_int32_with_batch_is_taken_as_it_is() -> None:
    coords = np.array([[0, 1, 2, 3]], np.int32)
    assert with_batch(check_coords(coords)).source is coords


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_three_columns_get_batch_zero(kind: type, dtype: type) -> None:
    coords = kind(np.array([[1, -2, 3], [INT32.max, INT32.min, 0]], dtype))
    np.testing.assert_array_equal(wide(coords), [[0, 1, -2, 3], [0, INT32.max, INT32.min, 0]])


def test_int64_is_converted_when_it_fits() -> None:
    coords = np.array([[0, INT32.max, INT32.min, 3]], np.int64)
    assert wide(coords).dtype == np.int32
    np.testing.assert_array_equal(wide(coords), coords)


def test_int64_that_does_not_fit_is_counted_and_shown() -> None:
    coords = torch.tensor([[0, 0, 0, 0], [0, 2**31, 0, 0], [0, 0, 0, -(2**31) - 1]])
    with pytest.raises(InputError, match=r"2 coords are outside int32, the first in row 1: \[0, 2147483648, 0, 0\]"):
        wide(coords)


def test_columns_of_a_wider_array_are_copied_together() -> None:
    table = np.arange(40, dtype=np.int32).reshape(5, 8)
    np.testing.assert_array_equal(wide(table[::2, 1:5]), table[::2, 1:5])


def test_empty() -> None:
    assert wide(np.zeros((0, 3), np.int64)).shape == (0, 4)
    assert wide(torch.zeros((0, 4), dtype=torch.int32)).shape == (0, 4)


@pytest.mark.parametrize(
    ("coords", "words"),
    [
        ([[0, 0, 0, 0]], ["list", "torch.Tensor", "numpy.ndarray"]),
        (np.zeros(4, np.int32), ["[4]", "[N, 3]", "[N, 4]"]),
        (np.zeros((4, 2), np.int32), ["[4, 2]"]),
        (np.zeros((4, 5), np.int32), ["[4, 5]"]),
        (torch.zeros((2, 4, 1), dtype=torch.int32), ["[2, 4, 1]"]),
        (np.zeros((4, 4), np.uint8), ["uint8", "int32"]),
        (np.zeros((4, 4), np.uint32), ["uint32"]),
        (torch.zeros((4, 4), dtype=torch.int16), ["int16"]),
        (torch.zeros((4, 4)), ["f32", "int32"]),
        (np.zeros((4, 4)), ["float64"]),
        (np.zeros((4, 4), bool), ["bool"]),
        (np.zeros((4, 4), ">i4"), [">i4", "native order"]),
    ],
)
def test_refused_kinds(coords: object, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        check_coords(coords)
    for word in ["coords", *words]:
        assert word in str(caught.value)


rows = st.lists(st.tuples(*[st.integers(-20, 20)] * 4), min_size=1, max_size=20)
sizes = st.tuples(*[st.sampled_from([1, 3, 5])] * 3)
steps = st.tuples(*[st.integers(1, 3)] * 3)


@given(rows, sizes, steps)
def test_no_two_cells_of_the_padded_box_share_a_key(
    coords: list[tuple[int, ...]], kernel: tuple[int, int, int], dilation: tuple[int, int, int]
) -> None:
    """Every neighbour position of every voxel packs into a key of its own, below `cells`."""
    points = np.abs(np.array(coords)) * [1, 0, 0, 0] + np.array(coords) * [0, 1, 1, 1]
    found = box_of(points).symbols(kernel, dilation)
    reach = [range(-(k // 2) * d, k // 2 * d + 1, d) for k, d in zip(kernel, dilation, strict=True)]
    keys: dict[int, tuple[int, ...]] = {}
    for b, z, y, x in {tuple(row) for row in points.tolist()}:
        for dz, dy, dx in itertools.product(*reach):
            key = b
            for name, value in zip("zyx", (z + dz, y + dy, x + dx), strict=True):
                assert 0 <= value - found[f"min_{name}"] < found[f"extent_{name}"]
                key = key * found[f"extent_{name}"] + value - found[f"min_{name}"]
            assert 0 <= key < found["cells"]
            assert keys.setdefault(key, (b, z + dz, y + dy, x + dx)) == (b, z + dz, y + dy, x + dx)


def test_symbols_by_hand() -> None:
    assert Box((0, -3, 5, 7), (1, 4, 5, 9)).symbols((3, 1, 5), (2, 4, 1)) == {
        "batches": 2,
        "min_z": -5,
        "extent_z": 12,
        "min_y": 5,
        "extent_y": 1,
        "min_x": 5,
        "extent_x": 7,
        "cells": 2 * 12 * 1 * 7,
    }


def test_key_width_changes_at_2_31_cells() -> None:
    # With a 1x1x1 kernel there is no halo: 2^31 - 1 cells (a prime), then 2^31.
    below, at = Box((0, 0, 0, 0), (0, 0, 0, 2**31 - 2)), Box((0, 0, 0, 0), (0, 0, 0, 2**31 - 1))
    assert below.key_width((1, 1, 1), (1, 1, 1)) == 32
    assert at.key_width((1, 1, 1), (1, 1, 1)) == 64
    assert below.key_width((1, 1, 3), (1, 1, 1)) == 64, "the halo counts"


def test_boxes_of_2_63_cells_are_refused() -> None:
    edge = 2**21 - 1
    largest = Box((0, 0, 0, 0), (0, edge - 1, edge - 1, edge - 1))
    assert largest.symbols((1, 1, 1), (1, 1, 1))["cells"] == edge**3
    with pytest.raises(InputError, match=r"9223372036854775808 cells.*accepted: below 2\^63"):
        Box((0, 0, 0, 0), (0, edge, edge, edge)).symbols((1, 1, 1), (1, 1, 1))


COORDS = np.array([[0, 0, 0, 0], [1, 4, 5, 6], [0, 4, 5, 6]], np.int32)


def test_limits_are_exclusive() -> None:
    check_box(box_of(COORDS), as_array(COORDS, "coords"), (5, 6, 7), 2)
    check_box(box_of(COORDS), as_array(COORDS, "coords"), None, None)


@pytest.mark.parametrize(
    ("shape", "batches", "message"),
    [
        ((4, 6, 7), None, r"2 coords are out of range, the first in row 1: \[1, 4, 5, 6\].*0 ≤ z < 4, 0 ≤ y < 6"),
        ((5, 5, 7), None, r"2 coords .* row 1"),
        ((5, 6, 6), None, r"2 coords .* row 1"),
        ((5, 6, 7), 1, r"1 coords .* row 1: \[1, 4, 5, 6\] .*0 ≤ batch < 1"),
        (None, 1, r"1 coords .*accepted: 0 ≤ batch < 1$"),
    ],
)
def test_outside_the_limits(shape: tuple[int, int, int] | None, batches: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_box(box_of(COORDS), as_array(COORDS, "coords"), shape, batches)


def test_negative_values() -> None:
    negative = np.array([[0, 0, 0, 0], [0, -1, 0, 0], [-2, 0, 0, 0]], np.int32)
    with pytest.raises(InputError, match=r"1 coords .* row 2: \[-2, 0, 0, 0\].*accepted: batch ≥ 0"):
        check_box(box_of(negative), as_array(negative, "coords"), None, None)
    with pytest.raises(InputError, match=r"2 coords .* row 1: \[0, -1, 0, 0\].*batch ≥ 0, 0 ≤ z < 9"):
        check_box(box_of(negative), as_array(negative, "coords"), (9, 9, 9), None)
    check_box(box_of(negative[:2]), as_array(negative[:2], "coords"), None, None)


def test_rows_of_three_columns_are_shown_with_their_batch() -> None:
    coords = np.array([[0, 0, 7]], np.int32)
    with pytest.raises(InputError, match=r"row 0: \[0, 0, 0, 7\] \(batch, z, y, x\)"):
        check_box(Box((0, 0, 0, 7), (0, 0, 0, 7)), as_array(coords, "coords"), (9, 9, 7), None)
