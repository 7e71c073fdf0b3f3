"""Layers of every kind and dimension as parts of a compiled network: what eager gives, on voxels and on none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from network_cases import with_integers
from torch import nn

import spconv_compiler
import spconv_compiler.pytorch as spconv

sc: Any = spconv_compiler
pytestmark = pytest.mark.usefixtures("without_gradients")


def down_and_up(ndim: int) -> nn.Module:
    layer: Callable[[str], Any] = lambda name: getattr(spconv, f"{name}{ndim}d")  # noqa: E731
    return spconv.SparseSequential(
        layer("SubMConv")(4, 4, 3, indice_key="subm"),
        nn.ReLU(),
        layer("SparseConv")(4, 8, 3, 2, 1, indice_key="down"),
        layer("SparseMaxPool")(2, 2, indice_key="pool"),
        layer("SparseInverseConv")(8, 4, 2, "pool"),
        layer("SparseInverseConv")(4, 4, 3, "down"),
        layer("SparseConvTranspose")(4, 4, 2, 2),
    )


MODELS: dict[str, tuple[int, Callable[[], nn.Module]]] = {
    **{f"down and up, {ndim} axes": (ndim, lambda ndim=ndim: down_and_up(ndim)) for ndim in (1, 2, 3)},
    # Means of up to four small integers, and of sums of them, are exact.
    **{
        f"average, {ndim} axes": (
            ndim,
            lambda ndim=ndim: spconv.SparseSequential(
                getattr(spconv, f"SubMConv{ndim}d")(4, 4, 3), spconv.SparseAvgPool(ndim, 2, 2), nn.ReLU()
            ),
        )
        for ndim in (1, 2)
    },
    "dense head": (
        3,
        lambda: spconv.SparseSequential(
            spconv.SparseConv3d(4, 4, 2, 2), spconv.ToDense(), nn.ReLU(), nn.Conv3d(4, 2, 1)
        ),
    ),
    "remove grid, names of modules": (
        3,
        lambda: spconv.SparseSequential(
            spconv.SubMConv3d(4, 4, 3),
            spconv.RemoveGrid(),
            spconv.SparseIdentity(),
            spconv.SparseReLU(),
            spconv.Identity(),
            spconv.SubMConv3d(4, 4, 3),
        ),
    ),
    "greatest of all voxels": (
        3,
        lambda: spconv.SparseSequential(spconv.SubMConv3d(4, 4, 3), spconv.SparseGlobalMaxPool()),
    ),
}


class Model(nn.Module):
    def __init__(self, ndim: int, body: nn.Module) -> None:
        super().__init__()
        self.ndim, self.body = ndim, body

    def forward(self, features: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        out = self.body(spconv.SparseConvTensor(features, indices, [12] * self.ndim, 2))
        return out if isinstance(out, torch.Tensor) else out.features


def frame(ndim: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(ndim)
    cells = torch.randperm(2 * 12**ndim, generator=rng)[:17]
    columns = [cells // 12**axis % 12 for axis in range(ndim)]
    indices = torch.stack([cells // 12**ndim, *columns], 1).int()
    return torch.randint(-2, 3, (17, 4), generator=rng).to(dtype), indices


CASES = [
    pytest.param(name, dtype, id=f"{name}-{dtype}", marks=() if name in quick else pytest.mark.slow)
    for dtype, quick in (
        (torch.float32, ("down and up, 1 axes", "average, 1 axes", "dense head", "remove grid, names of modules")),
        (torch.float16, ("dense head",)),
    )
    for name in MODELS
]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_compiled_layers_are_eager_to_the_last_bit(name: str, dtype: torch.dtype) -> None:
    ndim, build = MODELS[name]
    model = with_integers(Model(ndim, build()), 3).to(dtype)
    features, indices = frame(ndim, dtype)
    net, wanted = sc.compile(model, (features, indices), target="cpu"), model(features, indices)
    assert torch.equal(net(features, indices), wanted) and wanted.abs().sum() > 0
    for rows in (5, 1, 0):
        fewer = features[:rows], indices[:rows]
        assert torch.equal(net(*fewer), model(*fewer))
