"""subm_conv3d on this processor, compared with the reference: exactly for whole numbers, within bounds for others.

The shapes are those of FlyDSL's pull request 942, and what users have reported against other libraries.
test_conv_mutations.py shows that the comparison can fail.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from conv_cases import check, make_case, mismatch, voxels

import spconv_compiler as sc
from spconv_compiler import reference
from spconv_compiler.arrays import as_array, dtype_name
from spconv_compiler.compiler import conv_options

# (kernel, C_in, C_out, box, N) of the pull request: seven of random voxels, three of its coordinate interface.
SHAPES = [
    (3, 32, 32, 20, 432),
    (5, 6, 32, 20, 432),
    (5, 32, 64, 12, 200),
    (3, 6, 32, 12, 200),
    (3, 32, 40, 12, 200),
    (3, 10, 24, 12, 200),
    (3, 1, 1, 12, 100),
    (3, 128, 128, 12, 56),
    (3, 512, 512, 6, 9),
]
BOTH = pytest.mark.parametrize("whole", [True, False], ids=["whole", "random"])


@BOTH
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("kernel", "c_in", "c_out", "box", "n"), SHAPES)
def test_shapes(kernel: int, c_in: int, c_out: int, box: int, n: int, dtype: str, whole: bool) -> None:
    check(make_case(voxels(n, box), kernel, c_in, c_out, dtype=dtype, whole=whole), whole=whole)


@BOTH
@pytest.mark.parametrize(
    ("kernel", "dilation"),
    [
        (1, 1),
        ((1, 3, 3), 1),
        ((3, 1, 5), 1),
        ((1, 1, 3), (1, 1, 4)),
        (3, 2),
        (3, (3, 1, 2)),
        (7, 1),
        ((1, 1, 9), 1),
        ((3, 1, 41), 1),
    ],
)
def test_geometries(kernel: Any, dilation: Any, whole: bool) -> None:
    check(make_case(voxels(600, 14), kernel, 8, 16, whole=whole, dilation=dilation), whole=whole)


@BOTH
@pytest.mark.parametrize(
    ("dtype", "out_dtype"), [("f32", "bf16"), ("f32", "f16"), ("bf16", "f32"), ("bf16", "f16"), ("f16", "f16")]
)
def test_dtypes_of_input_and_result(dtype: str, out_dtype: str, whole: bool) -> None:
    case = make_case(voxels(300, 10), 3, 16, 16, dtype=dtype, whole=whole, out_dtype=out_dtype)
    assert dtype_name(case.run()) == out_dtype
    check(case, whole=whole)


@BOTH
@pytest.mark.parametrize(
    ("dtype", "bias", "activation"),
    [("f32", True, "none"), ("f32", True, "relu"), ("f32", False, "relu"), ("bf16", True, "relu")],
)
def test_bias_and_activation(dtype: str, bias: bool, activation: str, whole: bool) -> None:
    case = make_case(voxels(300, 10), 3, 16, 20, dtype=dtype, whole=whole, bias=bias, activation=activation)
    check(case, whole=whole)
    assert (case.run() < 0).any() == (activation == "none")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_bias_of_any_float_type_is_added_in_f32(dtype: torch.dtype) -> None:
    case = make_case(voxels(300, 10), 3, 16, 20, whole=True, bias=True)
    coords, features, weight, bias = case.tensors()
    assert mismatch(sc.subm_conv3d(coords, features, weight, bias.to(dtype)), case, whole=True) is None
    kinds = {torch.float16: np.float16, torch.float32: np.float32}
    if dtype in kinds:
        out = sc.subm_conv3d(case.coords, case.features, case.weight, case.bias.astype(kinds[dtype]))
        assert mismatch(out, case, whole=True) is None


@BOTH
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("batches", [2, 5])
def test_batches(batches: int, dtype: str, whole: bool) -> None:
    check(make_case(voxels(500, 8, batches=batches), 3, 32, 32, dtype=dtype, whole=whole), whole=whole)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_explicit_and_derived_shape_agree(dtype: str) -> None:
    case = make_case(voxels(500, (8, 9, 10), batches=2), 3, 32, 32, dtype=dtype)
    derived = case.run()
    for shape, batches in [((8, 9, 10), 2), ((8, 9, 10), None), ((1000, 1000, 1000), 400), ([41, 1600, 1408], None)]:
        case.options.update(spatial_shape=shape, batch_size=batches)
        assert torch.equal(case.run(), derived)
        # A fresh tensor: nothing comes from the cache of maps.
        assert torch.equal(dataclasses.replace(case, coords=case.coords.copy()).run(), derived)


def test_three_columns_are_batch_zero() -> None:
    case = make_case(voxels(400, 12), 3, 8, 16)
    coords, features, weight, _ = case.tensors()
    out = sc.subm_conv3d(coords[:, 1:], features, weight, spatial_shape=(12, 12, 12), batch_size=1)
    assert torch.equal(out, case.run())


@pytest.mark.parametrize("low", [-(2**20), -7, 2**20, 2**31 - 20, -(2**31)])
def test_coordinates_anywhere_in_int32(low: int) -> None:
    """Negative ones, and a halo that reaches beyond int32."""
    case = make_case(voxels(400, 12), 3, 8, 16)
    moved = (case.coords + np.array([0, low, low, low])).astype(np.int32)
    assert torch.equal(dataclasses.replace(case, coords=moved).run(), case.run())


def test_int64_coordinates() -> None:
    case = make_case(voxels(400, 12, batches=2), 3, 8, 16)
    _, features, weight, _ = case.tensors()
    for coords in (torch.from_numpy(case.coords).long(), case.coords.astype(np.int64)):
        assert torch.equal(sc.subm_conv3d(coords, features, weight), case.run())
        assert torch.equal(sc.subm_conv3d(coords, features, weight), case.run()), "from the cache"


# More than 2^31 cells: the pull request's grid, a long road, sixteen batches of SphereFormer's, all of int32.
WIDE = {
    "2095x2095x695": lambda rng: rng.integers(0, (1, 2095, 2095, 695), (500, 4)),
    "16 batches of 2048x2048x129": lambda rng: rng.integers(0, (16, 2048, 2048, 129), (500, 4)),
    "a line through int32": lambda rng: np.stack([rng.integers(-(2**31), 2**31, 500)] * 4, 1) * [0, 1, 0, 0],
    "close to 2^63 cells": lambda rng: rng.integers(0, (1, 2**21 - 4, 2**21 - 4, 2**21 - 4), (500, 4)),
    "batches up to 2^31": lambda rng: rng.integers(0, (2**31 - 1, 3, 3, 3), (500, 4)),
}


@BOTH
@pytest.mark.parametrize("extent", list(WIDE))
def test_boxes_that_need_64_bit_keys(extent: str, whole: bool) -> None:
    rng = np.random.default_rng(0)
    seeds = WIDE[extent](rng).astype(np.int64)
    # Neighbours of what is drawn: far apart, most voxels would be alone.
    steps = np.array([[0, z, y, x] for z in (0, 1) for y in (0, 1) for x in (0, 1)])
    coords = np.unique((seeds[:, None] + steps).reshape(-1, 4).clip(-(2**31), 2**31 - 1), axis=0)
    case = make_case(rng.permutation(coords).astype(np.int32), 3, 8, 16, whole=whole)
    assert len(reference.pairs(reference.kernel_map_naive(case.coords))) > 2 * len(coords)
    check(case, whole=whole)


def test_32_and_64_bit_keys_give_the_same_bits() -> None:
    case = make_case(voxels(1000, 16, batches=3), 3, 8, 16, dtype="bf16")
    narrow, wide = (sc.load_conv(conv_options(3, 8, 16, bits, dtype="bf16")) for bits in (32, 64))
    coords, features, weight, _ = case.tensors()
    outs = []
    for kernel in (narrow, wide):
        points = as_array(coords, "coords")
        map_ = kernel.build_map(points, kernel.box(points))
        out = torch.empty(1000, 16, dtype=torch.bfloat16)
        kernel.run(map_, kernel.pack(as_array(weight, "w")), as_array(features, "f"), out.data_ptr())
        outs.append((out, map_.pairs))
    assert torch.equal(outs[0][0], outs[1][0])
    assert outs[0][1] == outs[1][1] == len(reference.pairs(reference.kernel_map(case.coords)))


@pytest.mark.parametrize("layout", reference.WEIGHT_LAYOUTS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_weight_layouts(layout: str, dtype: str) -> None:
    case = make_case(voxels(300, 10), (3, 1, 5), 8, 16, dtype=dtype)
    coords, features, weight, _ = case.tensors()
    held = torch.from_numpy(reference.from_native_weight(weight, layout)).to(weight.dtype)
    out = sc.subm_conv3d(coords, features, held, weight_layout=layout, kernel_size=(3, 1, 5))
    assert torch.equal(out, case.run())


def test_torch_layout_is_conv3d_on_the_dense_volume() -> None:
    """An oracle that shares nothing with ours: torch's own convolution, read at the voxels."""
    case = make_case(voxels(200, (6, 7, 8), batches=2), 3, 4, 5, bias=True)
    coords, features, weight, bias = case.tensors()
    layer = torch.nn.Conv3d(4, 5, 3, padding=1)
    with torch.no_grad():
        layer.weight.copy_(weight.permute(0, 4, 1, 2, 3))
        layer.bias.copy_(bias)
        volume = torch.zeros(2, 4, 6, 7, 8)
        b, z, y, x = coords.long().T
        volume[b, :, z, y, x] = features
        expected = layer(volume)[b, :, z, y, x]
        out = sc.subm_conv3d(coords, features, layer.weight, layer.bias, weight_layout="torch")
    table = reference.kernel_map(case.coords)
    # Both sides round: twice the bound of one.
    bound = 2 * reference.error_bound(case.features, case.weight, table, bias=case.bias)
    assert reference.compare(out, expected, bound).ok


def test_numpy_in_numpy_out() -> None:
    case = make_case(voxels(300, 10), 3, 8, 16, bias=True)
    out = sc.subm_conv3d(case.coords, case.features, case.weight, case.bias)
    assert isinstance(out, np.ndarray)
    np.testing.assert_array_equal(out, case.run().numpy())
    half = sc.subm_conv3d(case.coords, case.features, case.weight, case.bias, out_dtype="f16")
    assert half.dtype == np.float16


def test_numpy_and_torch_may_be_mixed() -> None:
    case = make_case(voxels(300, 10), 3, 8, 16)
    coords, features, weight, _ = case.tensors()
    out = sc.subm_conv3d(case.coords, features, case.weight)
    assert isinstance(out, torch.Tensor)
    assert torch.equal(out, case.run())
    np.testing.assert_array_equal(sc.subm_conv3d(coords, case.features, weight), out.numpy())


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_strided_operands(kind: str) -> None:
    case = make_case(voxels(300, 10), 3, 8, 16)
    table = np.zeros((300, 6), np.int32)
    table[:, 1:5] = case.coords
    features, weight = np.asfortranarray(case.features), np.ascontiguousarray(case.weight[..., ::-1])[..., ::-1]
    coords: Any = table[:, 1:5]
    if kind == "torch":
        features = torch.from_numpy(np.ascontiguousarray(case.features.T)).T
        weight = torch.from_numpy(np.ascontiguousarray(case.weight.transpose(4, 1, 2, 3, 0))).permute(4, 1, 2, 3, 0)
        coords = torch.from_numpy(table)[:, 1:5]
        assert not (features.is_contiguous() or weight.is_contiguous() or coords.is_contiguous())
    np.testing.assert_array_equal(np.asarray(sc.subm_conv3d(coords, features, weight)), case.run().numpy())


def test_neg_view() -> None:
    case = make_case(voxels(300, 10), 3, 8, 16)
    coords, features, weight, _ = case.tensors()
    negated = torch.complex(torch.zeros_like(features), -features).conj().imag
    assert negated.is_neg()
    assert torch.equal(sc.subm_conv3d(coords, negated, weight), case.run())


@pytest.mark.parametrize("channels", [1, 3, 5, 18, 33, 100])
def test_odd_channels(channels: int) -> None:
    case = make_case(voxels(200, 10), 3, channels, channels, dtype="f16", whole=True)
    check(case, whole=True)


def test_f32_is_ieee_f32() -> None:
    """Features up to 500: a multiplication in fewer bits would be seen."""
    case = make_case(voxels(400, 10), (1, 1, 3), 32, 32)
    case.features[:] = np.random.default_rng(1).uniform(0, 500, case.features.shape)
    check(case, whole=False)


def test_every_pair_is_covered_once() -> None:
    """One output channel per tap and a feature that names the row: the result is the neighbour table itself."""
    for kernel in (3, 5, (1, 3, 5)):
        coords = voxels(1500, 12, batches=2)
        table = reference.kernel_map_naive(coords, kernel)
        taps = table.shape[1]
        weight = np.zeros((taps, *reference.as_triple(kernel), 1), np.float32)
        weight.reshape(taps, taps)[:] = np.eye(taps)
        features = np.arange(1, 1501, dtype=np.float32)[:, None]
        np.testing.assert_array_equal(sc.subm_conv3d(coords, features, weight), table + 1)


def test_dense_blocks_fill_more_pairs_than_first_guessed() -> None:
    """A full cube: every inner row has all its neighbours, so that the pairs outgrow their first buffer."""
    full = np.stack(np.unravel_index(np.arange(12**3), (1, 12, 12, 12)), axis=1).astype(np.int32)
    check(make_case(np.random.default_rng(0).permutation(full), 5, 3, 4, whole=True), whole=True)


def test_result_is_fresh_memory() -> None:
    case = make_case(voxels(64, 8), 3, 8, 16)
    first = case.run()
    kept = first.clone()
    second = dataclasses.replace(case, features=case.features * 2).run()
    assert first.data_ptr() != second.data_ptr()
    assert torch.equal(first, kept)


def test_nan_and_infinity_reach_their_neighbours_and_nobody_else() -> None:
    case = make_case(voxels(600, 10), 3, 8, 16)
    table = reference.kernel_map(case.coords)
    clean = case.run()
    case.features[17, 3], case.features[100] = np.nan, np.inf
    case.weight[:, 1, 1, 1, :] = 0.0
    clean_zero = dataclasses.replace(case, features=np.nan_to_num(case.features, nan=1.0, posinf=1.0)).run()
    out = case.run()
    touched = np.isin(table, [17, 100]).any(axis=1)
    assert torch.isnan(out[(table == 17).any(axis=1)]).all()
    assert torch.isnan(out[100]).all(), "infinity times zero"
    assert not torch.isfinite(out[touched]).any()
    assert torch.equal(out[~touched], clean_zero[~touched])
    assert torch.isfinite(clean).all()


@pytest.mark.parametrize("c_in", [8, 7])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_infinity_is_not_lost_and_not_spread_by_padding(dtype: str, c_in: int) -> None:
    """Padded channels hold zeros, and infinity times zero would be NaN."""
    case = make_case(voxels(300, 8), 3, c_in, 5, dtype=dtype)
    case.features[40, c_in - 1] = np.inf
    case.weight[:] = np.abs(case.weight) + 1
    out, near = case.run(), (reference.kernel_map(case.coords) == 40).any(axis=1)
    assert (out[near] == torch.inf).all()
    assert torch.isfinite(out[~near]).all()


def test_results_beyond_the_range_of_the_result_type() -> None:
    case = make_case(voxels(300, 8), 3, 8, 5, dtype="f16", whole=True)
    case.features[:] = 60000.0
    case.weight[:] = 1.0
    assert (case.run() == torch.inf).all(), "f16 ends at 65504"
    case.options["out_dtype"] = "f32"
    assert torch.isfinite(case.run()).all(), "but sums are f32"


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_subnormals(dtype: str) -> None:
    tiny = {"f32": 2.0**-140, "bf16": 2.0**-130, "f16": 2.0**-20}[dtype]
    case = make_case(voxels(300, 8), 3, 8, 5, dtype=dtype, whole=True)
    case.features[:] *= tiny
    check(case, whole=dtype == "f16")
