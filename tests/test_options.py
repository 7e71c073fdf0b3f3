"""CompileOptions: what is accepted, and what enters the cache key."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from spconv_compiler.errors import InputError
from spconv_compiler.options import MAX_CHANNELS, CompileOptions, triple, whole

GOOD: dict[str, Any] = {"kernel_size": (3, 3, 3), "c_in": 16, "c_out": 32}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel_size": (3, 2, 3)}, "kernel_size is (3, 2, 3); accepted: three odd sizes (z, y, x)"),
        ({"kernel_size": (3, 3)}, "kernel_size is (3, 3); accepted"),
        ({"kernel_size": (3, -1, 3)}, "kernel_size is (3, -1, 3); accepted"),
        ({"dilation": (1, 0, 1)}, "dilation is (1, 0, 1); accepted: three numbers of at least 1 (z, y, x)"),
        ({"dilation": (1, 1)}, "dilation is (1, 1); accepted"),
        ({"kernel_size": (True, 3, 3)}, "kernel_size is (True, 3, 3); accepted: one whole number, or three"),
        ({"dilation": (1, 1.5, 1)}, "dilation is (1, 1.5, 1); accepted: one whole number, or three (z, y, x)"),
        ({"c_in": True}, "c_in is True; accepted: a whole number"),
        ({"c_in": 0}, f"channels are 0 → 32; accepted: 1 to {MAX_CHANNELS} each"),
        ({"c_in": MAX_CHANNELS + 1}, f"channels are {MAX_CHANNELS + 1} → 32; accepted"),
        ({"dilation": (1, 2**30, 1)}, f"reaches over {2**31} cells; accepted: at most {2**31 - 1}"),
        ({"c_out": -4}, "channels are 16 → -4; accepted"),
        ({"key_width": 48}, "key_width is 48; accepted: 32 or 64"),
        ({"dtype": "f64"}, "dtype is 'f64'; accepted: bf16, f16, f32"),
        ({"out_dtype": "i8"}, "out_dtype is 'i8'; accepted: bf16, f16, f32"),
        ({"activation": "tanh"}, "activation is 'tanh'; accepted: none, relu, leaky_relu, gelu, silu"),
    ],
)
def test_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        CompileOptions(**{**GOOD, **change})
    assert message in str(caught.value)


@pytest.mark.parametrize("size", [(1, 1, 1), (1, 3, 5), (7, 7, 7)])
def test_taps_and_name(size: tuple[int, int, int]) -> None:
    options = CompileOptions(kernel_size=size, c_in=6, c_out=10, key_width=64, dtype="bf16", out_dtype="f32")
    assert options.taps == size[0] * size[1] * size[2]
    assert options.name == f"k{size[0]}x{size[1]}x{size[2]}_c6x10_bf16-f32_i64"


def test_options_cannot_be_changed_and_can_be_keys() -> None:
    options = CompileOptions(**GOOD)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.c_in = 3  # type: ignore[misc]
    assert {options: 1}[CompileOptions(**GOOD)] == 1


def test_every_field_is_in_the_key_unless_it_is_marked() -> None:
    options = CompileOptions(**GOOD)
    unmarked = {field.name for field in dataclasses.fields(options)} - {"verify", "dump_dir", "print_after"}
    assert set(options.key_parts()) == unmarked
    changed: dict[str, Any] = {
        "kernel_size": (5, 3, 3),
        "c_in": 17,
        "c_out": 33,
        "key_width": 64,
        "dtype": "f16",
        "out_dtype": "f16",
        "dilation": (2, 1, 1),
        "bias": True,
        "residual": True,
        "activation": "relu",
        "negative_slope": 0.5,
        "target": "gfx950",
        "schedule": "pairs_m16",
        "mapper": "z_delta",
    }
    assert set(changed) == unmarked
    for name, value in changed.items():
        assert dataclasses.replace(options, **{name: value}).key_parts() != options.key_parts()
    quiet = dataclasses.replace(options, verify=False, dump_dir="d", print_after="all")
    assert quiet.key_parts() == options.key_parts() and quiet != options


def test_sizes_from_one_number_or_three() -> None:
    assert triple(3, "kernel_size") == (3, 3, 3) == triple(np.int64(3), "kernel_size")
    assert triple([1, np.int32(3), 5], "kernel_size") == (1, 3, 5) == triple(np.array([1, 3, 5]), "kernel_size")
    for bad in (3.0, "3", None, (3, 3), (3, 3, 3, 3), (3, 3, "3"), (3, 3, 1.5), [], "333"):
        with pytest.raises(InputError, match="kernel_size is .*; accepted: one whole number, or three"):
            triple(bad, "kernel_size")


def test_whole_numbers() -> None:
    assert whole(np.uint8(7), "c_in") == 7
    for bad in (7.0, "7", None, [7]):
        with pytest.raises(InputError, match="c_in is .*; accepted: a whole number"):
            whole(bad, "c_in")
