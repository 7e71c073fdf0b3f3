"""The oracle itself: against dense torch convolution, a dictionary, index formulas, and deliberate damage."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spconv_compiler import reference as ref
from spconv_compiler.errors import InputError

KERNELS = [(3, 1), (5, 1), (1, 1), ((1, 3, 3), 1), ((3, 1, 5), 1), (3, 2), (3, (1, 2, 3)), (5, 2)]


def random_case(
    seed: int,
    n: int = 150,
    box: int = 9,
    channels: tuple[int, int] = (6, 10),
    size: tuple[int, int, int] = (3, 3, 3),
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct coords in two batches with negative values, float32 features, native weight."""
    rng = np.random.default_rng(seed)
    cells = rng.choice(2 * box**3, n, replace=False)
    coords = np.stack(np.unravel_index(cells, (2, box, box, box)), axis=1) - [0, 4, 3, 5]
    features = rng.standard_normal((n, channels[0]), dtype=np.float32)
    weight = rng.standard_normal((channels[1], *size, channels[0]), dtype=np.float32)
    return coords.astype(np.int32), features, weight


@pytest.mark.parametrize(("kernel_size", "dilation"), KERNELS, ids=str)
def test_equals_dense_convolution(kernel_size: int | tuple[int, ...], dilation: int | tuple[int, ...]) -> None:
    coords, features, weight = random_case(1, size=ref.as_triple(kernel_size))
    bias = np.random.default_rng(2).standard_normal(10)
    got = ref.subm_conv3d(coords, features, weight, bias, dilation)
    expected = ref.dense_conv3d(coords, features, weight, bias, dilation)
    assert np.abs(got - expected).max() < 1e-12
    assert np.abs(expected).max() > 5.0


@pytest.mark.parametrize(("kernel_size", "dilation"), KERNELS, ids=str)
def test_integers_are_exact(kernel_size: int | tuple[int, ...], dilation: int | tuple[int, ...]) -> None:
    coords, features, weight = random_case(3, size=ref.as_triple(kernel_size))
    features, weight = np.round(4 * features), np.round(4 * weight)
    for accumulate in (np.float32, np.float64):
        got = ref.subm_conv3d(coords, features, weight, None, dilation, accumulate)
        assert got.dtype == accumulate
        assert np.array_equal(got, ref.dense_conv3d(coords, features, weight, None, dilation))


def test_three_column_coords_are_batch_zero() -> None:
    coords, features, weight = random_case(4)
    coords = coords[coords[:, 0] == 0]
    features = features[: len(coords)]
    assert np.array_equal(ref.subm_conv3d(coords[:, 1:], features, weight), ref.subm_conv3d(coords, features, weight))


def test_torch_tensors_and_bf16_are_read_exactly() -> None:
    coords, features, weight = random_case(5)
    tensors = [torch.from_numpy(a).to(torch.bfloat16) for a in (features, weight)]
    got = ref.subm_conv3d(torch.from_numpy(coords), *tensors)
    rounded = [t.double().numpy() for t in tensors]
    assert np.array_equal(got, ref.subm_conv3d(coords, *rounded))
    assert ref.to_numpy(tensors[0].half()).dtype == np.float32


@pytest.mark.parametrize(
    ("dtype", "torch_dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16), ("f32", torch.float32)]
)
def test_rounding_equals_torch(dtype: str, torch_dtype: torch.dtype) -> None:
    rng = np.random.default_rng(6)
    values = (rng.standard_normal(5000) * 10.0 ** rng.integers(-30, 30, 5000)).astype(np.float32)
    ties = (np.arange(0x3F800000, 0x3F880000, 0x4000, dtype=np.uint32)).view(np.float32)
    values = np.concatenate([values, ties, [0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, 1e-45]]).astype(np.float32)
    with np.errstate(over="ignore"):
        rounded = ref.round_to(values, dtype)
    assert np.array_equal(rounded, torch.from_numpy(values).to(torch_dtype).float().numpy(), equal_nan=True)


def test_offsets_are_row_major_zyx() -> None:
    offsets = ref.kernel_offsets((1, 3, 5), (1, 2, 3)).tolist()
    assert offsets == [[0, y, x] for y in (-2, 0, 2) for x in (-6, -3, 0, 3, 6)]
    assert len(ref.kernel_offsets(3)) == 27 and ref.kernel_offsets(3)[13].tolist() == [0, 0, 0]
    for bad in (2, 0, (3, 3, 4), -1):
        with pytest.raises(InputError, match="odd sizes"):
            ref.kernel_offsets(bad)
    with pytest.raises(InputError, match="dilations"):
        ref.kernel_offsets(3, 0)
    with pytest.raises(InputError, match="an int or three"):
        ref.kernel_offsets((3, 3))


@given(
    n=st.integers(0, 60),
    seed=st.integers(0, 2**32 - 1),
    kernel_size=st.sampled_from([3, 5, (1, 3, 3), (3, 1, 1)]),
    dilation=st.sampled_from([1, 2, (1, 2, 3)]),
    spread=st.sampled_from([2, 5, 40]),
)
@settings(max_examples=60, deadline=None)
def test_map_equals_the_dictionary(
    n: int, seed: int, kernel_size: int | tuple[int, ...], dilation: int | tuple[int, ...], spread: int
) -> None:
    """Duplicates included: the lowest of equal rows is the neighbour of all."""
    rng = np.random.default_rng(seed)
    coords = np.concatenate([rng.integers(-1, 2, (n, 1)), rng.integers(-spread, spread, (n, 3))], axis=1)
    got = ref.kernel_map(coords, kernel_size, dilation)
    assert got.dtype == np.int32
    assert np.array_equal(got, ref.kernel_map_naive(coords, kernel_size, dilation))


def test_map_of_a_row_of_voxels() -> None:
    table = ref.kernel_map([[0, 0, 7], [0, 0, 5], [0, 0, 6], [0, 0, 6]], (1, 1, 3))
    assert table.tolist() == [[2, 0, -1], [-1, 1, 2], [1, 2, 0], [1, 2, 0]]


def test_map_at_the_ends_of_int32() -> None:
    """2^128 cells do not fit a key; the neighbour relation still holds and nothing wraps around."""
    low, high = -(2**31), 2**31 - 1
    corners = np.array(list(itertools.product((low, high), repeat=3)), np.int32)
    table = ref.kernel_map(corners)
    assert (table >= 0).sum() == 8
    assert table[:, 13].tolist() == list(range(8))
    line = np.array([[0, 0, low], [0, 0, high], [0, 0, low + 1]], np.int32)
    assert ref.kernel_map(line, (1, 1, 3)).tolist() == [[-1, 0, 2], [-1, 1, -1], [0, 2, -1]]


@pytest.mark.parametrize("coords", [np.zeros((3, 5), np.int32), np.zeros(4, np.int32), np.zeros((3, 4), np.float32)])
def test_coords_of_another_shape_or_type_are_refused(coords: np.ndarray) -> None:
    with pytest.raises(InputError, match="accepted: int"):
        ref.kernel_map(coords)


def test_pairs_cover_the_table_once() -> None:
    coords, _, _ = random_case(7)
    table = ref.kernel_map(coords)
    found = ref.pairs(table)
    listed = [(tap, int(o), int(i)) for tap in range(27) for i, o in zip(*found.of_tap(tap), strict=True)]
    assert listed == [(t, r, table[r, t]) for t in range(27) for r in range(len(table)) if table[r, t] >= 0]
    assert len(found) == len(listed) == found.tap_start[-1]
    assert found.in_rows.dtype == found.out_rows.dtype == np.int32


@pytest.mark.parametrize("tile", [1, 16, 64])
def test_padding_fills_whole_tiles_of_one_tap(tile: int) -> None:
    coords, features, weight = random_case(8, n=70)
    found = ref.pairs(ref.kernel_map(coords))
    padded = ref.pad_pairs(found, tile)
    assert (padded.tap_start % tile == 0).all() and len(padded) == padded.tap_start[-1]
    for tap in range(27):
        (in_rows, out_rows), (i, o) = padded.of_tap(tap), found.of_tap(tap)
        assert 0 <= len(in_rows) - len(i) < tile
        assert np.array_equal(in_rows[: len(i)], i) and np.array_equal(out_rows[: len(o)], o)
        assert (in_rows[len(i) :] == 0).all() and (out_rows[len(o) :] == -1).all()
    taps = ref.tile_taps(padded, tile)
    assert len(taps) * tile == len(padded)
    for index, tap in enumerate(taps):
        assert padded.tap_start[tap] <= index * tile < padded.tap_start[tap + 1]
    same = [ref.gather_gemm_scatter(features, weight, p, 70) for p in (found, padded)]
    assert np.array_equal(same[0], same[1])


def test_no_rows() -> None:
    table = ref.kernel_map(np.zeros((0, 4), np.int32))
    assert table.shape == (0, 27)
    found = ref.pairs(table)
    assert len(found) == 0 and len(ref.pad_pairs(found, 16)) == 0 and len(found.tap_start) == 28
    weight = np.ones((5, 3, 3, 3, 4))
    assert ref.subm_conv3d(np.zeros((0, 4), np.int32), np.zeros((0, 4)), weight).shape == (0, 5)
    assert ref.dense_conv3d(np.zeros((0, 4), np.int32), np.zeros((0, 4)), weight).shape == (0, 5)
    bound = ref.error_bound(np.zeros((0, 4)), weight, table)
    assert bound.shape == (0, 5) and ref.compare(bound, bound, bound).ok


@pytest.mark.parametrize(("c_in", "c_out"), [(32, 16), (1, 1), (40, 24), (64, 48)])
def test_packed_weight_element_by_element(c_in: int, c_out: int) -> None:
    weight = np.random.default_rng(9).standard_normal((c_out, 3, 1, 3, c_in)).astype(np.float32)
    packed = ref.pack_weight_mfma(weight)
    assert packed.shape == (9, -(-c_out // 16), -(-c_in // 32) * 4, 16, 8)
    for t, n, q, j, e in np.ndindex(*packed.shape):
        k, c = 8 * q + e, 16 * n + j
        expected = weight[c, t // 3, 0, t % 3, k] if k < c_in and c < c_out else 0.0
        assert packed[t, n, q, j, e] == expected


def test_weight_layouts() -> None:
    native = np.random.default_rng(10).standard_normal((5, 1, 3, 5, 4))
    torch_weight, taps = (ref.from_native_weight(native, layout) for layout in ("torch", "taps"))
    assert torch_weight.shape == (5, 4, 1, 3, 5) and taps.shape == (15, 4, 5)
    assert torch_weight[3, 2, 0, 1, 4] == taps[1 * 5 + 4, 2, 3] == native[3, 0, 1, 4, 2]
    assert np.array_equal(ref.to_native_weight(torch_weight, "torch"), native)
    assert np.array_equal(ref.to_native_weight(taps, "taps", (1, 3, 5)), native)
    assert np.array_equal(ref.to_native_weight(native, "native"), native)
    for call, message in [
        (lambda: ref.to_native_weight(native, "RSCK"), "accepted: native, torch, taps"),
        (lambda: ref.from_native_weight(native, "RSCK"), "accepted: native, torch, taps"),
        (lambda: ref.to_native_weight(native, "taps", 3), "not the layout 'taps'"),
        (lambda: ref.to_native_weight(taps, "taps", 3), "15 taps; kernel_size=3"),
        (lambda: ref.to_native_weight(taps, "taps"), "15 taps; kernel_size=None"),
    ]:
        with pytest.raises(InputError, match=message):
            call()


@pytest.mark.parametrize(("kernel_size", "c_in"), [(3, 16), (3, 128), (5, 64)])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_bound_holds_for_sums_in_float32(kernel_size: int, c_in: int, dtype: str) -> None:
    """Products and sums one at a time in float32, in tap order and reversed."""
    coords, features, weight = random_case(11, 80, 5, (c_in, 4), (kernel_size,) * 3)
    features, weight = ref.round_to(features, dtype), ref.round_to(weight, dtype)
    table = ref.kernel_map(coords, kernel_size)
    expected = ref.subm_conv3d(coords, features, weight, table=table)
    bound = ref.error_bound(features, weight, table, dtype)
    taps = ref.from_native_weight(weight, "taps")
    gathered = np.where((table >= 0)[:, :, None], features[table], np.float32(0))
    for step in (1, -1):
        total = np.zeros_like(expected, dtype=np.float32)
        for tap, k in list(np.ndindex(len(taps), c_in))[::step]:
            total += gathered[:, tap, k, None] * taps[tap, k]
        result = ref.compare(ref.round_to(total, dtype), expected, bound)
        assert result.ok and 0.0 < result.max_ratio
    if dtype == "f32":  # The bound is far below what one lost pair changes, so it is worth comparing with.
        pairs = np.argwhere(table >= 0)[:400]
        assert min(np.abs(features[table[r, t]] @ taps[t]).max() for r, t in pairs) > 4 * bound.max()


def test_bound_grows_with_the_number_of_terms() -> None:
    lone, line = np.array([[0, 0, 0]]), np.array([[0, 0, x] for x in range(3)])
    bounds = []
    for coords, c_in in [(lone, 8), (lone, 64), (line, 64)]:
        features, weight = np.ones((len(coords), c_in)), np.ones((1, 3, 3, 3, c_in))
        bounds.append(ref.error_bound(features, weight, ref.kernel_map(coords)).max())
    assert bounds[1] == pytest.approx(64 * bounds[0], rel=1e-3)  # 8 times the terms, 8 times the magnitude
    assert bounds[2] == pytest.approx(9 * bounds[1], rel=1e-3)
    assert bounds[0] == pytest.approx(8 * 2.0**-24 * 8, rel=1e-3)


def swap_taps(pairs: ref.Pairs) -> ref.Pairs:
    """Tap 12's rows gathered for tap 14 and the other way round (both have as many pairs)."""
    (a_in, a_out), (b_in, b_out) = pairs.of_tap(12), pairs.of_tap(14)
    parts = {12: (b_in, b_out), 14: (a_in, a_out)}
    rows = [parts.get(tap, pairs.of_tap(tap)) for tap in range(27)]
    return dataclasses.replace(
        pairs, in_rows=np.concatenate([r[0] for r in rows]), out_rows=np.concatenate([r[1] for r in rows])
    )


def drop_pair(pairs: ref.Pairs) -> ref.Pairs:
    out_rows = pairs.out_rows.copy()
    out_rows[len(pairs) // 3] = -1
    return dataclasses.replace(pairs, out_rows=out_rows)


def forget_row(pairs: ref.Pairs) -> ref.Pairs:
    return dataclasses.replace(pairs, out_rows=np.where(pairs.out_rows == 17, -1, pairs.out_rows))


def gather_wrong_row(pairs: ref.Pairs) -> ref.Pairs:
    in_rows = pairs.in_rows.copy()
    in_rows[len(pairs) // 2] = (in_rows[len(pairs) // 2] + 1) % 150
    return dataclasses.replace(pairs, in_rows=in_rows)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("damage", [drop_pair, swap_taps, forget_row, gather_wrong_row])
def test_damage_is_seen(damage: object, dtype: str) -> None:
    """One wrong pair in about 700, with 64 channels in, exceeds the bound; the undamaged result does not."""
    assert callable(damage)
    coords, features, weight = random_case(12, channels=(64, 16))
    features, weight = ref.round_to(features, dtype), ref.round_to(weight, dtype)
    table = ref.kernel_map(coords)
    expected = ref.subm_conv3d(coords, features, weight, table=table)
    bound = ref.error_bound(features, weight, table, dtype)
    good, bad = (
        ref.round_to(ref.gather_gemm_scatter(features, weight, p, 150, np.float32), dtype)
        for p in (ref.pairs(table), damage(ref.pairs(table)))
    )
    assert ref.compare(good, expected, bound).ok
    result = ref.compare(bad, expected, bound)
    assert not result.ok and result.bad > 4 and result.max_ratio > 10.0


def test_comparison_reports_the_worst_element() -> None:
    expected = np.zeros((3, 2))
    actual = expected.copy()
    actual[1, 0], actual[2, 1] = 0.5, -3.0
    result = ref.compare(actual, expected, np.array([[1.0, 1.0], [0.1, 1.0], [9.0, 9.0]]))
    assert (result.max_error, result.max_ratio, result.bad, result.worst) == (3.0, 5.0, 1, (1, 0))
    assert ref.compare(expected, expected, np.zeros((3, 2))).ok
    with pytest.raises(InputError, match="cannot be compared"):
        ref.compare(actual[:2], expected, expected)


def test_comparison_of_nan_and_infinity() -> None:
    special, bound = np.array([[np.nan, np.inf, -np.inf, 1.0]]), np.full((1, 4), np.nan)
    bound[0, 3] = 0.1
    assert ref.compare(special, special, bound).ok
    for column, wrong in [(0, 1.0), (1, np.nan), (1, -np.inf), (2, 5.0), (3, np.nan), (3, np.inf)]:
        other = special.copy()
        other[0, column] = wrong
        result = ref.compare(other, special, bound)
        assert result.bad == 1 and result.worst == (0, column)


def test_nan_reaches_exactly_the_neighbours() -> None:
    coords, features, weight = random_case(13)
    features[40, 2] = np.nan
    out = ref.subm_conv3d(coords, features, weight)
    touched = (ref.kernel_map(coords) == 40).any(axis=1)
    assert np.array_equal(np.isnan(out).all(axis=1), touched)
    assert np.array_equal(np.isnan(out).any(axis=1), touched)
