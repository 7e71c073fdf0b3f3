"""What ops between two coordinate sets refuse, with the words of the message, and what they leave alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conv_cases import voxels

import spconv_compiler as sc
from spconv_compiler.errors import InputError, LaunchError, ScheduleError
from spconv_compiler.geometry import ConvGeometry
from spconv_compiler.sparse_options import SparseOptions

COORDS = voxels(30, 6, seed=1)
FEATURES = np.ones((30, 4), np.float32)
WEIGHT = np.ones((8, 3, 3, 3, 4), np.float32)
BIG = 2**31 - 1


def refused(message: str, function: Any = sc.sparse_conv3d, **change: Any) -> None:
    operands: dict[str, Any] = {"coords": COORDS, "features": FEATURES, "weight": WEIGHT, "stride": 2, "padding": 1}
    with pytest.raises(InputError) as caught:
        function(**{**operands, **change})
    assert message in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stride": 0}, "stride is (0, 0, 0); accepted: three numbers (z, y, x) from 1 to 2147483647"),
        ({"stride": (2, 2)}, "stride is (2, 2); accepted: one whole number, or three (z, y, x)"),
        ({"stride": True}, "stride is True; accepted: one whole number, or three (z, y, x)"),
        ({"padding": np.array([True, True, True])}, "padding is array([ True,  True,  True]); accepted: one whole"),
        ({"dilation": (1, torch.tensor(True), 1)}, "dilation is (1, tensor(True), 1); accepted: one whole number"),
        ({"batch_size": True}, "batch_size is True; accepted: a whole number"),
        ({"stride": 1.5}, "stride is 1.5; accepted: one whole number, or three (z, y, x)"),
        ({"padding": -1}, "padding is (-1, -1, -1); accepted: three numbers (z, y, x) from 0 to"),
        ({"padding": "same"}, "padding is 'same'; accepted: one whole number"),
        ({"dilation": (1, 0, 1)}, "dilation is (1, 0, 1); accepted: three numbers (z, y, x) from 1 to"),
        ({"dilation": 2**30}, "reaches over 2147483648 cells; accepted: at most 2147483647"),
        ({"spatial_shape": (-1, 6, 6)}, "spatial_shape is (-1, 6, 6); accepted: three sizes (z, y, x) of at least"),
        ({"spatial_shape": (0, 6, 6)}, "30 coords are out of range, the first in row 0"),
        ({"spatial_shape": (6, 6, 4)}, "0 ≤ x < 4"),
        ({"batch_size": 0}, "batch_size is 0; accepted: at least 1"),
        ({"activation": "tanh"}, "activation is 'tanh'; accepted: none, relu, leaky_relu, gelu, silu"),
        ({"out_dtype": "f64"}, "out_dtype is 'f64'; accepted: bf16, f16, f32"),
        ({"weight_layout": "rsck"}, "weight_layout is 'rsck'; accepted: native, torch, taps"),
        ({"kernel_size": 2}, "weight has kernel (3, 3, 3) but kernel_size is (2, 2, 2)"),
        ({"weight": WEIGHT[..., :3]}, "features have 4 channels but the weight takes 3"),
        ({"weight": WEIGHT.astype(np.float16)}, "features are f32 but the weight is f16; accepted: equal dtypes"),
        ({"weight": np.ones((8, 3, 0, 3, 4), np.float32)}, "kernel is (3, 0, 3); accepted: at least one tap"),
        ({"features": FEATURES[:9]}, "features have 9 rows but coords have 30; accepted: as many of each"),
        ({"features": FEATURES[0]}, "features have shape [4]; accepted: [N, C_in]"),
        ({"features": FEATURES.astype(np.float64)}, "features have dtype float64; accepted: float32"),
        ({"bias": np.ones(7, np.float32)}, "bias has shape [7]; accepted: [8], one for each output channel"),
        ({"bias": np.ones(8)}, "bias has dtype float64; accepted: float32, bfloat16, float16"),
        ({"coords": COORDS.astype(np.float32)}, "coords have dtype f32; accepted: int32, or int64"),
        ({"coords": COORDS[:, :2]}, "coords have shape [30, 2]; accepted: [N, 3] (z, y, x) or [N, 4]"),
        ({"coords": COORDS.astype(np.int64) + 2**31}, "30 coords are outside int32"),
        ({"out_coords": torch.from_numpy(COORDS)}, "coords are a ndarray of 4 columns but out_coords a Tensor of 4"),
        ({"out_coords": COORDS[:, 1:]}, "4 columns but out_coords a ndarray of 3; accepted: the same kind"),
        ({"target": 7}, "target is 7; accepted: auto, cpu"),
        ({"target": "z80"}, "unknown target 'z80'; accepted: auto, cpu"),
    ],
)
def test_refused(change: dict[str, Any], message: str) -> None:
    refused(message, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"output_padding": 1}, "output_padding is (1, 1, 1); accepted: 0, or a transposed geometry"),
        ({"output_padding": -1, "spatial_shape": (6, 6, 6)}, "output_padding is (-1, -1, -1); accepted: three numbers"),
        ({"stride": BIG}, "outputs along z go from"),
    ],
)
def test_refused_when_transposed(change: dict[str, Any], message: str) -> None:
    refused(message, sc.sparse_conv_transpose3d, **change)


def test_targets_outside_of_the_output_shape_are_named() -> None:
    """Nothing is clipped in silence: a row that cannot be an output is an error, not a row less."""
    targets = np.array([[0, 0, 0, 0], [0, 3, 0, 0]], np.int32)
    refused("1 out_coords are out of range, the first in row 1", spatial_shape=(6, 6, 6), out_coords=targets)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (np.zeros((1, 4), np.float32), "out_coords have dtype f32; accepted: int32"),
        (np.zeros(4, np.int32), "out_coords have shape [4]; accepted: [N, 3] (z, y, x) or"),
        (np.array([[0, 2**40, 0, 0]]), "1 out_coords are outside int32, the first in row 0"),
        (np.array([[-1, 0, 0, 0]], np.int32), "1 out_coords are out of range, the first in row 0: [-1, 0, 0, 0]"),
        ([[0, 0, 0, 0]], "out_coords is a list; accepted"),
    ],
)
def test_a_bad_set_of_targets_is_called_by_its_name(targets: Any, message: str) -> None:
    refused(message, out_coords=targets)


def test_negative_coordinates_in_a_shape_are_named() -> None:
    refused("out of range", coords=COORDS - np.array([0, 1, 0, 0], np.int32), spatial_shape=(6, 6, 6))


def test_a_map_of_another_kernel() -> None:
    map_ = sc.build_map(COORDS, 2, stride=2)
    for function in (sc.mapped_conv3d, sc.sparse_inverse_conv3d):
        rows = map_.in_rows if function is sc.mapped_conv3d else map_.out_rows
        with pytest.raises(InputError, match=r"kernel is \(3, 3, 3\) but the map was built for \(2, 2, 2\)"):
            function(np.ones((rows, 4), np.float32), WEIGHT, map=map_)
        with pytest.raises(InputError, match="map is a str; accepted: what build_map returns"):
            function(FEATURES, WEIGHT, map="conv1")


def test_rows_of_the_wrong_side() -> None:
    """An inverse convolution takes the rows of the forward one's outputs."""
    map_ = sc.build_map(COORDS, 3, stride=2, padding=1)
    assert map_.out_rows != 30
    with pytest.raises(InputError, match=f"features have 30 rows but out_coords have {map_.out_rows}"):
        sc.sparse_inverse_conv3d(FEATURES, WEIGHT, map=map_)


def test_too_many_taps_name_every_schedule() -> None:
    with pytest.raises(ScheduleError) as caught:
        sc.sparse_conv3d(COORDS, FEATURES, np.ones((8, 8, 8, 8, 4), np.float32))
    assert "the kernel has 512 taps; at most 343" in str(caught.value)


def test_a_target_that_cannot_run_here() -> None:
    with pytest.raises(LaunchError, match="no AMD GPU: .* use target='gfx950-sim'"):
        sc.sparse_conv3d(COORDS, FEATURES, WEIGHT, target="gfx950")


def test_a_box_beyond_64_bits() -> None:
    corners = np.array([[0, -(2**31), -(2**31), -(2**31)], [0, BIG, BIG, BIG]], np.int32)
    with pytest.raises(InputError, match=r"cells; accepted: below 2\^63"):
        sc.sparse_conv3d(corners, FEATURES[:2], WEIGHT, stride=2, padding=1)


def test_nothing_is_changed_by_a_refusal() -> None:
    coords, features = COORDS.copy(), FEATURES.copy()
    refused("bias has shape", coords=coords, features=features, bias=np.ones(3, np.float32))
    assert np.array_equal(coords, COORDS) and np.array_equal(features, FEATURES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"operation": "unpool"}, "operation is 'unpool'; accepted: outputs, conv, max_pool, avg_pool"),
        ({"key_width": 16}, "key_width is 16; accepted: 32 or 64"),
        ({"c_in": 0}, "channels are 0 → 8; accepted: 1 to"),
        ({"dtype": "i8"}, "dtype is 'i8'; accepted: bf16, f16, f32"),
    ],
)
def test_refused_options(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"operation": "conv", "geometry": ConvGeometry((2, 2, 2)), "c_in": 4, "c_out": 8}
    with pytest.raises(InputError) as caught:
        SparseOptions(**{**good, **change})
    assert message in str(caught.value)


def test_every_option_that_affects_code_is_in_the_key() -> None:
    import dataclasses

    options = SparseOptions("conv", ConvGeometry((2, 2, 2)), c_in=4, c_out=8)
    without = {"verify", "dump_dir", "print_after"}
    assert set(options.key_parts()) == {field.name for field in dataclasses.fields(options)} - without
    assert options.name == "conv_k2x2x2_s1x1x1_c4x8_f32-f32_i32"
