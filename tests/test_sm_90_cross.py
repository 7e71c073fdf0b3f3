"""Ops between two coordinate sets on an NVIDIA sm_90 GPU, where there is one: the same as on the CPU, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import spconv_compiler as sc

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs an sm_90 GPU"
)

GEOMETRIES: list[dict[str, Any]] = [
    {"kernel_size": (2, 2, 2), "stride": 2},
    {"kernel_size": (3, 3, 3), "stride": 2, "padding": 1},
    {"kernel_size": (3, 1, 1), "stride": (2, 1, 1)},
]
LIMITS = {"spatial_shape": (24, 24, 24), "batch_size": 2}


def scattered(rows: int, span: int = 24, batches: int = 2) -> torch.Tensor:
    rng = np.random.default_rng(rows)
    cells = rng.choice(batches * span**3, rows, replace=False)
    place = np.unravel_index(np.sort(cells), (batches, span, span, span))
    return torch.from_numpy(np.stack(place, axis=1).astype(np.int32))


def whole(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32))


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("rows", [1, 300, 4000])
def test_down_and_up_again(rows: int, geometry: dict[str, Any]) -> None:
    coords, size = scattered(rows), geometry["kernel_size"]
    features, weight, up = whole(rows, 32), whole(64, *size, 32, seed=1), whole(32, *size, 64, seed=2)
    found: dict[str, list[torch.Tensor]] = {}
    for place in ("cpu", "cuda"):
        map_ = sc.build_map(coords.to(place), **geometry, **LIMITS)
        down = sc.mapped_conv3d(features.to(place).half(), weight.to(place).half(), map=map_, out_dtype="f32")
        small = down.clamp(-8, 8).half()
        again = sc.sparse_inverse_conv3d(small, up.to(place).half(), map=map_, out_dtype="f32")
        triples = torch.stack([torch.as_tensor(part).cpu() for part in map_.pairs()], 1)
        found[place] = [map_.out_coords.cpu(), down.cpu(), again.cpu(), torch.unique(triples.long(), dim=0)]
    for ours, expected in zip(found["cuda"], found["cpu"], strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_transposed(geometry: dict[str, Any]) -> None:
    coords, size = scattered(500), geometry["kernel_size"]
    stride, padding = geometry["stride"], geometry.get("padding", 0)
    features, weight = whole(500, 32), whole(48, *size, 32, seed=1)
    results = []
    for place in ("cpu", "cuda"):
        given = [tensor.to(place) for tensor in (coords, features.half(), weight.half())]
        results.append(sc.sparse_conv_transpose3d(*given, stride=stride, padding=padding, out_dtype="f32", **LIMITS))
    assert torch.equal(results[0][0], results[1][0].cpu())
    assert torch.equal(results[0][1], results[1][1].cpu())


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("pool", [sc.sparse_max_pool3d, sc.sparse_avg_pool3d])
def test_pools(pool: Any, geometry: dict[str, Any]) -> None:
    coords, features = scattered(2000), whole(2000, 32).half()
    options = {**geometry, **LIMITS}
    size = options.pop("kernel_size")
    ours = pool(coords.cuda(), features.cuda(), size, **options)
    expected = pool(coords, features, size, **options)
    assert torch.equal(ours[0].cpu(), expected[0])
    torch.testing.assert_close(ours[1].cpu(), expected[1], rtol=1e-3, atol=1e-3)
