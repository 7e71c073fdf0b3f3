"""Weight layouts: what kernel and channels a shape means, and the way to the native layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spconv_compiler import reference
from spconv_compiler.errors import InputError
from spconv_compiler.layouts import LAYOUTS, channels_of, kernel_of, to_native

KERNEL, C_IN, C_OUT = (1, 3, 5), 2, 4
SHAPES = {"native": (C_OUT, *KERNEL, C_IN), "torch": (C_OUT, C_IN, *KERNEL), "taps": (15, C_IN, C_OUT)}


def native_weight() -> np.ndarray:
    shape = SHAPES["native"]
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_every_layout_of_the_reference_is_known() -> None:
    assert set(LAYOUTS) == set(reference.WEIGHT_LAYOUTS) == set(SHAPES)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_kernel_and_channels(layout: str) -> None:
    assert kernel_of(SHAPES[layout], layout, KERNEL) == KERNEL
    assert channels_of(SHAPES[layout], layout) == (C_IN, C_OUT)


@pytest.mark.parametrize("layout", ["native", "torch"])
def test_kernel_is_read_off_the_shape(layout: str) -> None:
    assert kernel_of(SHAPES[layout], layout, None) == KERNEL


@given(st.integers(0, 8).map(lambda half: 2 * half + 1))
def test_taps_that_make_a_cube_need_no_kernel_size(side: int) -> None:
    assert kernel_of((side**3, 2, 3), "taps", None) == (side, side, side)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_to_native_agrees_with_the_reference(layout: str, kind: str) -> None:
    native = native_weight()
    given_weight = reference.from_native_weight(native, layout)
    if kind == "torch":
        given_weight = torch.from_numpy(given_weight)
    found = to_native(given_weight, layout, KERNEL)
    assert isinstance(found, type(given_weight))
    np.testing.assert_array_equal(np.asarray(found), native)


def test_to_native_shares_the_memory() -> None:
    for layout in LAYOUTS:
        weight = reference.from_native_weight(native_weight(), layout)
        assert np.shares_memory(to_native(weight, layout, KERNEL), weight), layout


def test_torch_layout_is_that_of_conv3d() -> None:
    weight = torch.nn.Conv3d(C_IN, C_OUT, KERNEL).weight
    assert kernel_of(weight.shape, "torch", None) == KERNEL
    assert channels_of(weight.shape, "torch") == (C_IN, C_OUT)


@pytest.mark.parametrize(
    ("shape", "layout", "kernel_size", "words"),
    [
        ((4, 3, 3, 3, 2), "KRSC", None, ["'KRSC'", "native, torch, taps"]),
        ((4, 3, 3, 2), "native", None, ["[4, 3, 3, 2]", "5 axes"]),
        ((27, 2, 4, 1), "taps", None, ["[27, 2, 4, 1]", "3 axes"]),
        ((4, 2, 3, 3, 2), "native", None, ["(2, 3, 3)", "odd"]),
        ((4, 2, 3, 3, 4), "torch", None, ["(3, 3, 4)", "odd"]),
        ((4, 0, 3, 3, 2), "native", None, ["(0, 3, 3)", "odd"]),
        ((4, 3, 3, 3, 2), "native", (3, 3, 1), ["(3, 3, 3)", "(3, 3, 1)"]),
        ((9, 2, 4), "taps", None, ["9 taps", "kernel_size=(kz, ky, kx)"]),
        ((0, 2, 4), "taps", None, ["odd"]),
        ((8, 2, 4), "taps", None, ["(2, 2, 2)", "odd"]),
        ((27, 2, 4), "taps", (1, 3, 3), ["27 taps", "(1, 3, 3)"]),
        ((27, 2, 4), "taps", (-3, -3, 3), ["odd"]),
    ],
)
def test_refused_shapes(
    shape: tuple[int, ...], layout: str, kernel_size: tuple[int, int, int] | None, words: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        kernel_of(shape, layout, kernel_size)
    for word in words:
        assert word in str(caught.value)
