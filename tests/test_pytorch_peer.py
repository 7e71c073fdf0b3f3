"""The modules beside spconv's CPU wheel, where it is installed: signatures, parameters, outputs of random networks."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_cases import SHAPES, sparse
from torch import nn

import spconv_compiler.pytorch as ours
from spconv_compiler.bench.peer import load_spconv, set_threads
from spconv_compiler.errors import InputError


@pytest.fixture(scope="module")
def theirs() -> Any:
    """spconv.pytorch, in one thread: with more, some of its results are wrong."""
    try:
        module = load_spconv()
    except InputError as error:
        pytest.skip(str(error))
    set_threads(1)
    return module


NAMES = [
    *(f"{kind}{n}d" for kind in ("SubMConv", "SparseConv", "SparseInverseConv") for n in (1, 2, 3)),
    *(f"SparseConvTranspose{n}d" for n in (1, 2, 3)),
    *(f"Sparse{kind}Pool{n}d" for kind in ("Max", "Avg") for n in (1, 2, 3)),
    *("SparseGlobalMaxPool", "SparseGlobalAvgPool", "SparseConvTensor", "SparseSequential", "ToDense", "RemoveGrid"),
    *("AddTable", "ConcatTable", "JoinTable", "SparseIdentity", "SparseReLU", "SparseBatchNorm", "Identity"),
]


@pytest.mark.parametrize("name", NAMES)
def test_constructors(theirs: Any, name: str) -> None:
    """Names, order and defaults of arguments; and every public member."""
    mine, other = getattr(ours, name), getattr(theirs, name)
    found, expected = (list(inspect.signature(cls.__init__).parameters.values()) for cls in (mine, other))
    assert [(p.name, p.default) for p in found] == [(p.name, p.default) for p in expected]
    missing = {member for member in vars(other) if not member.startswith("_")} - set(dir(mine))
    assert missing <= {"dequantize", "q_scale", "input_spatial_size"}


def test_parameters_are_drawn_alike(theirs: Any) -> None:
    for build in (
        lambda m: m.SubMConv3d(5, 7, 3),
        lambda m: m.SparseConv2d(5, 7, (2, 3), 2),
        lambda m: m.SparseInverseConv1d(5, 7, 3, "k"),
    ):
        states = []
        for module in (ours, theirs):
            torch.manual_seed(3)
            states.append(build(module).state_dict())
        assert list(states[0]) == list(states[1])
        for name in states[0]:
            assert torch.equal(states[0][name], states[1][name])


def network(m: Any, ndim: int, seed: int) -> Any:
    """A random network of m's layers: the same for the same seed."""
    rng = np.random.default_rng(seed)
    kind = lambda name: getattr(m, f"{name}{ndim}d")  # noqa: E731
    pick = lambda *values: values[rng.integers(len(values))]  # noqa: E731
    c = [4, int(pick(3, 8)), int(pick(5, 16)), int(pick(4, 9))]
    k, stride, padding, dilation = pick(2, 3, 4), pick(1, 2, 3), pick(0, 1), pick(1, 2)
    down = kind("SparseConv")(c[1], c[2], k, stride, padding, dilation, bias=False, indice_key="down")
    if pick(False, True):
        pool = kind("SparseMaxPool")(k, stride, padding, dilation, indice_key="down")
        down = m.SparseSequential(pool, kind("SubMConv")(c[1], c[2], 1, bias=False))
    return m.SparseSequential(
        kind("SubMConv")(c[0], c[1], pick(1, 3, 5), dilation=pick(1, 2), bias=False, indice_key="a"),
        nn.BatchNorm1d(c[1]),
        nn.ReLU(),
        down,
        kind("SubMConv")(c[2], c[2], 3, bias=False, indice_key="b"),
        kind("SubMConv")(c[2], c[2], 3, bias=False, indice_key="b"),
        kind("SparseInverseConv")(c[2], c[3], k, "down", bias=False),
        kind("SparseConvTranspose")(c[3], 4, pick(2, 3), pick(1, 2), pick(0, 1), bias=False),
    )


def ascending(x: Any) -> tuple[Any, Any]:
    """(indices, features) in the order of the indices."""
    indices = x.indices.numpy()
    order = np.lexsort(indices.T[::-1])
    return indices[order], x.features.detach().numpy()[order]


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_random_networks(theirs: Any, ndim: int, seed: int) -> None:
    """spconv's state_dict, loaded strictly, gives spconv's outputs."""
    other = network(theirs, ndim, seed).eval()
    net = network(ours, ndim, seed).eval()
    net.load_state_dict(other.state_dict(), strict=True)
    x = sparse(ndim, n=60, seed=seed)
    with torch.no_grad():
        made = net(x)
        wanted = other(theirs.SparseConvTensor(x.features, x.indices, SHAPES[ndim], 2))
        assert made.spatial_shape == list(wanted.spatial_shape)
        for mine, found in zip(ascending(made), ascending(wanted), strict=True):
            np.testing.assert_allclose(mine, found, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(made.dense().numpy(), wanted.dense().numpy(), rtol=1e-4, atol=1e-4)


def test_sparse_add(theirs: Any) -> None:
    x, y = sparse(seed=1), sparse(seed=2)
    mine = ours.functional.sparse_add(x, y)
    other = [theirs.SparseConvTensor(t.features, t.indices, SHAPES[3], 2) for t in (x, y)]
    for found, wanted in zip(ascending(mine), ascending(theirs.functional.sparse_add(*other)), strict=True):
        assert np.array_equal(found, wanted)


def test_voxelisers(theirs: Any) -> None:
    from spconv.pytorch.utils import PointToVoxel

    arguments = ([0.1, 0.2, 0.4], [-2.0, -2.0, -1.0, 2.0, 2.0, 1.0], 4, 500, 3)
    cloud = torch.rand(3000, 4, generator=torch.Generator().manual_seed(0)) * 5 - 2.5
    mine = ours.utils.PointToVoxel(*arguments)
    other = PointToVoxel(*arguments)
    assert mine.grid_size == list(other.grid_size)
    for found, wanted in zip(mine.generate_voxel_with_id(cloud), other.generate_voxel_with_id(cloud), strict=True):
        assert torch.equal(found, wanted)
