"""Residual and activations at the end of a convolution, on the CPU and as gfx950 code on the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import spconv_compiler
from spconv_compiler import reference
from spconv_compiler.epilogue import ACTIVATIONS, Epilogue, epilogue_of

sc: Any = spconv_compiler
torch = pytest.importorskip("torch")

TORCH_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
SLOPE = 0.3


def identity_case(values: npt.NDArray[np.float32], channels: int) -> tuple[Any, Any, Any]:
    """Coordinates, features [N, channels] of `values` row by row, and the 1x1x1 weight that copies them."""
    rows = -(-values.size // channels)
    features = np.zeros((rows, channels), np.float32)
    features.reshape(-1)[: values.size] = values
    coords = np.stack([np.zeros(rows), np.zeros(rows), np.zeros(rows), np.arange(rows)], axis=1).astype(np.int32)
    weight = np.eye(channels, dtype=np.float32).reshape(channels, 1, 1, 1, channels)
    return coords, features, weight


def numbers() -> npt.NDArray[np.float32]:
    """Floats over all magnitudes, both signs, dense where activations bend."""
    rng = np.random.default_rng(0)
    dense = rng.uniform(-14, 14, 3000)
    wide = np.exp(rng.uniform(np.log(1e-30), np.log(1e30), 600)) * rng.choice((-1, 1), 600)
    edges = [0.0, -0.0, 1.0, -1.0, 87.0, -87.0, -87.1, -88.5, 88.5, 13.0, -13.0, -13.1, 1e38, -1e38]
    return np.concatenate([dense, wide, edges]).astype(np.float32)


def check_activation(out: npt.NDArray[np.float32], given: npt.NDArray[np.float32], activation: str) -> None:
    """Within what activation.py promises."""
    exact = reference.finish(given, None, activation, SLOPE)
    bound = {
        "gelu": 2.0**-21 * np.abs(given) + 1e-36,
        "silu": 4 * 2.0**-23 * np.abs(exact) + 1e-34,
    }.get(activation, 2.0**-24 * np.abs(exact))
    worst = np.max(np.abs(out - exact) - bound)
    assert worst <= 0, f"{activation}: {worst} beyond the bound"


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_of_f32_keep_their_promise_and_agree_on_both_targets(activation: str) -> None:
    values = numbers()
    coords, features, weight = identity_case(values, 16)
    runs = [
        sc.subm_conv3d(coords, features, weight, activation=activation, negative_slope=SLOPE, target=target)
        for target in ("cpu", "gfx950-sim")
    ]
    check_activation(runs[0], features, activation)
    assert np.array_equal(*runs)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_infinities_and_nan(activation: str) -> None:
    values = np.array([np.inf, -np.inf, np.nan, 0.0], np.float32)
    coords = np.array([[0, 0, 0, x] for x in (0, 2, 4, 6)], np.int32)
    weight = np.ones((1, 1, 1, 1, 1), np.float32)
    out = sc.subm_conv3d(coords, values[:, None], weight, activation=activation, target="cpu")[:, 0]
    assert out[0] == np.inf
    assert out[1] == (-np.inf if activation in ("none", "leaky_relu") else 0)
    assert np.isnan(out[2])
    assert out[3] == 0


@pytest.mark.parametrize(
    ("channels", "dtype", "target"),
    [
        ((16, 18), "f32", "cpu"),
        ((5, 33), "bf16", "cpu"),
        ((16, 18), "f16", "cpu"),
        ((16, 18), "bf16", "gfx950-sim"),
        ((5, 33), "f32", "gfx950-sim"),
    ],
)
def test_residual_is_added_once_before_relu_and_rounding(channels: tuple[int, int], dtype: str, target: str) -> None:
    rng = np.random.default_rng(1)
    c_in, c_out = channels
    coords = np.unique(rng.integers(0, 9, (150, 4)) // [9, 1, 1, 1], axis=0).astype(np.int32)
    features, weight, bias, residual = (
        torch.from_numpy(rng.integers(-2, 3, shape).astype(np.float32))
        for shape in ((len(coords), c_in), (c_out, 3, 3, 3, c_in), (c_out,), (len(coords), c_out))
    )
    # Too fine for bf16 beside a sum of 2^7 and more: only one rounding gives the exact result's.
    residual = residual + 0.25
    kind = TORCH_DTYPES[dtype]
    out = sc.subm_conv3d(
        torch.from_numpy(coords),
        features.to(kind),
        weight.to(kind),
        bias,
        residual=residual.to(kind),
        activation="relu",
        target=target,
    )
    total = reference.subm_conv3d(coords, features, weight, bias)
    exact = reference.finish(total, residual, "relu")
    assert torch.equal(out.float(), torch.from_numpy(reference.round_to(exact, dtype)))
    assert np.count_nonzero(exact) > exact.size // 4


@pytest.mark.parametrize("activation", ("leaky_relu", "silu"))
def test_strided_and_inverse_convolutions_end_the_same_way(activation: str) -> None:
    rng = np.random.default_rng(2)
    coords = np.unique(rng.integers(0, 12, (200, 3)), axis=0).astype(np.int32)
    features = rng.integers(-2, 3, (len(coords), 4)).astype(np.float32)
    weight, up = (rng.integers(-2, 3, shape).astype(np.float32) / 8 for shape in ((9, 3, 3, 3, 4), (4, 3, 3, 3, 9)))
    net_map = sc.build_map(coords, 3, stride=2, padding=1)
    residual = rng.integers(-3, 4, (net_map.out_rows, 9)).astype(np.float32)
    end: dict[str, Any] = {"activation": activation, "negative_slope": SLOPE}
    plain = sc.mapped_conv3d(features, weight, map=net_map)
    down = sc.mapped_conv3d(features, weight, residual=residual, map=net_map, **end)
    check_activation(down, (plain + residual).astype(np.float32), activation)
    back = sc.sparse_inverse_conv3d(plain, up, map=net_map)
    check_activation(
        sc.sparse_inverse_conv3d(plain, up, residual=features, map=net_map, **end), back + features, activation
    )


def test_bad_arguments() -> None:
    coords, features, weight = identity_case(np.ones(8, np.float32), 4)
    run = lambda **more: sc.subm_conv3d(coords, features, weight, **more)  # noqa: E731
    with pytest.raises(sc.SpconvError, match=r"activation is 'tanh'; accepted: none, relu, leaky_relu, gelu, silu"):
        run(activation="tanh")
    with pytest.raises(sc.SpconvError, match=r"negative_slope is 'steep'; accepted: a number that f32 can hold"):
        run(activation="leaky_relu", negative_slope="steep")
    with pytest.raises(sc.SpconvError, match=r"negative_slope is inf; accepted: a finite number"):
        run(activation="leaky_relu", negative_slope=float("inf"))
    with pytest.raises(sc.SpconvError, match=r"residual has shape \[1, 4\]; accepted: \[2, 4\]"):
        run(residual=np.zeros((1, 4), np.float32))
    with pytest.raises(sc.SpconvError, match=r"residual has dtype f16; accepted: f32"):
        run(residual=np.zeros((2, 4), np.float16))


def test_names_and_defaults() -> None:
    assert Epilogue() == epilogue_of("none", 0.5)
    assert epilogue_of("leaky_relu", 0.1) != epilogue_of("leaky_relu", 0.2)
    assert epilogue_of("leaky_relu", 0.1).name != epilogue_of("leaky_relu", 0.2).name
    assert epilogue_of("leaky_relu", 0.1).negative_slope == float(np.float32(0.1))
