"""Convolutions on an NVIDIA sm_90 GPU, where there is one: exact on whole numbers, deterministic, on any stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from spconv_compiler import clear_caches, reference, subm_conv3d
from spconv_compiler.errors import InputError

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs an sm_90 GPU"
)

SHAPES = [(1, 1), (5, 16), (16, 3), (33, 64), (64, 64), (96, 100), (128, 128), (256, 272), (64, 512)]


def scattered(rows: int, span: int = 24, batches: int = 2, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    cells = rng.choice(batches * span**3, rows, replace=False)
    return np.stack(np.unravel_index(cells, (batches, span, span, span)), axis=1).astype(np.int32)


def whole(coords: np.ndarray, c_in: int, c_out: int, kernel: tuple[int, ...], seed: int = 1) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    features = rng.integers(-2, 3, (len(coords), c_in)).astype(np.float32)
    weight = rng.integers(-2, 3, (c_out, *kernel, c_in)).astype(np.float32)
    return features, weight


def on_gpu(array: np.ndarray, dtype: torch.dtype | None = None) -> torch.Tensor:
    tensor = torch.from_numpy(array).cuda()
    return tensor if dtype is None else tensor.to(dtype)


@pytest.mark.parametrize(("c_in", "c_out"), SHAPES)
@pytest.mark.parametrize("rows", [1, 127, 128, 129, 3000])
def test_whole_numbers_are_exact(rows: int, c_in: int, c_out: int) -> None:
    coords = scattered(rows)
    features, weight = whole(coords, c_in, c_out, (3, 3, 3))
    out = subm_conv3d(on_gpu(coords), on_gpu(features, torch.bfloat16), on_gpu(weight, torch.bfloat16), out_dtype="f32")
    np.testing.assert_array_equal(out.cpu().numpy(), reference.subm_conv3d(coords, features, weight))


@pytest.mark.parametrize("kernel", [(1, 1, 1), (1, 3, 3), (5, 5, 5), (7, 3, 1)])
@pytest.mark.parametrize("dilation", [1, 2])
def test_kernels(kernel: tuple[int, ...], dilation: int) -> None:
    coords = scattered(2000, span=16)
    features, weight = whole(coords, 32, 32, kernel)
    given = [on_gpu(coords), on_gpu(features, torch.float16), on_gpu(weight, torch.float16)]
    out = subm_conv3d(*given, out_dtype="f32", dilation=dilation)
    expected = reference.subm_conv3d(coords, features, weight, dilation=dilation)
    np.testing.assert_array_equal(out.cpu().numpy(), expected)


@pytest.mark.parametrize("activation", ["none", "relu", "leaky_relu", "gelu", "silu"])
def test_epilogues(activation: str) -> None:
    coords = scattered(1000)
    features, weight = whole(coords, 32, 48, (3, 3, 3))
    rng = np.random.default_rng(2)
    bias, residual = rng.standard_normal(48).astype(np.float32), rng.standard_normal((1000, 48)).astype(np.float32)
    given = [on_gpu(features, torch.bfloat16), on_gpu(weight, torch.bfloat16), on_gpu(bias)]
    out = subm_conv3d(on_gpu(coords), *given, residual=on_gpu(residual), activation=activation, out_dtype="f32")
    total = torch.from_numpy(reference.subm_conv3d(coords, features, weight)).double() + torch.from_numpy(bias)
    total = total + torch.from_numpy(residual)
    functions: dict[str, Any] = {
        "none": lambda x: x,
        "relu": torch.relu,
        "leaky_relu": lambda x: torch.nn.functional.leaky_relu(x, 0.01),
        "gelu": torch.nn.functional.gelu,
        "silu": torch.nn.functional.silu,
    }
    torch.testing.assert_close(out.cpu().double(), functions[activation](total), rtol=1e-5, atol=1e-4)


def test_results_do_not_depend_on_the_run() -> None:
    coords = on_gpu(scattered(20_000, span=64))
    features, weight = torch.randn(20_000, 64, device="cuda").half(), torch.randn(64, 3, 3, 3, 64, device="cuda").half()
    first = subm_conv3d(coords, features, weight)
    for _ in range(50):
        clear_caches()
        assert torch.equal(subm_conv3d(coords, features, weight), first)


@pytest.mark.parametrize("known", [False, True])
def test_far_and_wide(known: bool) -> None:
    """A box of more than 2^31 cells, searched with 64-bit keys; negative coordinates where the box is read."""
    corner = np.array([[0, 0, 0, 0], [0, 0, 0, 1], [0, 694, 2094, 2094], [0, 694, 2094, 2093]], np.int32)
    coords = corner if known else corner - np.array([0, 7, 7, 7], np.int32)
    features, weight = whole(coords, 16, 16, (3, 3, 3))
    limits: dict[str, Any] = {"spatial_shape": (695, 2095, 2095), "batch_size": 1} if known else {}
    out = subm_conv3d(on_gpu(coords), on_gpu(features, torch.float16), on_gpu(weight, torch.float16), **limits)
    np.testing.assert_array_equal(out.cpu().numpy(), reference.subm_conv3d(coords, features, weight))


def test_rows_outside_a_given_shape_have_no_neighbours() -> None:
    coords = np.array([[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 9]], np.int32)
    features, weight = whole(coords, 16, 16, (3, 3, 3))
    given = [on_gpu(coords), on_gpu(features, torch.float16), on_gpu(weight, torch.float16)]
    out = subm_conv3d(*given, spatial_shape=(4, 4, 4), batch_size=1).cpu().numpy()
    np.testing.assert_array_equal(out[:2], reference.subm_conv3d(coords[:2], features[:2], weight))
    np.testing.assert_array_equal(out[2], 0)


def test_no_rows() -> None:
    out = subm_conv3d(
        torch.zeros(0, 4, dtype=torch.int32, device="cuda"),
        torch.zeros(0, 16, device="cuda").half(),
        torch.zeros(8, 3, 3, 3, 16, device="cuda").half(),
    )
    assert out.shape == (0, 8)


def test_two_streams_share_a_map() -> None:
    coords = on_gpu(scattered(30_000, span=64))
    features, weight = torch.randn(30_000, 64, device="cuda").half(), torch.randn(64, 3, 3, 3, 64, device="cuda").half()
    expected = subm_conv3d(coords.clone(), features, weight)
    torch.cuda.synchronize()
    streams, found = [torch.cuda.Stream() for _ in range(4)], []
    for stream in streams:
        with torch.cuda.stream(stream):
            found.append(subm_conv3d(coords, features, weight))
    torch.cuda.synchronize()
    assert all(torch.equal(out, expected) for out in found)


def test_a_graph_replays_the_convolution() -> None:
    coords = on_gpu(scattered(5000, span=32))
    features, weight = torch.randn(5000, 64, device="cuda").half(), torch.randn(64, 3, 3, 3, 64, device="cuda").half()
    subm_conv3d(coords, features, weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = subm_conv3d(coords, features, weight)
    features.copy_(torch.randn_like(features))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, subm_conv3d(coords, features, weight))


def test_operands_in_two_places_are_refused() -> None:
    coords = scattered(10)
    features, weight = whole(coords, 16, 16, (3, 3, 3))
    with pytest.raises(InputError, match="features are on GPU 0 but weight is on the cpu"):
        subm_conv3d(on_gpu(coords), on_gpu(features, torch.float16), torch.from_numpy(weight).half())
