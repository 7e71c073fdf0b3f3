"""Weights of other libraries, against what those libraries compute: dense torch, and sums over taps in their order."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from pytorch_cases import at, dense_of, sparse, whole
from torch import Tensor, nn

import spconv_compiler.pytorch as spconv
from spconv_compiler.errors import InputError
from spconv_compiler.pytorch import convert

KERNELS = pytest.mark.parametrize("size", [(3, 3, 3), (3, 1, 1), (1, 5, 3), (2, 2, 2), (2, 1, 3)])


def integers(*shape: int) -> Tensor:
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(0)).float()


@pytest.fixture(autouse=True)
def inference() -> Any:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("size", [3, 1])
def test_dense_torch(size: int) -> None:
    """A dense network's weights in a sparse one: the same values at the outputs."""
    x, pad = sparse(), size // 2
    dense = whole(nn.Sequential(nn.Conv3d(4, 4, size, 2, pad), nn.ReLU(), nn.Conv3d(4, 6, 1)))
    net = spconv.SparseSequential(
        spconv.SparseConv3d(4, 4, size, 2, pad) if size > 1 else spconv.SparseConv3d(4, 4, 1, 2),
        nn.ReLU(),
        spconv.SubMConv3d(4, 6, 1),
    ).eval()
    net.load_state_dict(convert.convert_state_dict(net, dense.state_dict(), "torch"), strict=True)
    out = net(x)
    assert torch.equal(out.features, at(dense(dense_of(x)), out.indices))


def test_dense_torch_transposed() -> None:
    x, dense, layer = sparse(), whole(nn.ConvTranspose3d(4, 4, 3, 2, 1)), spconv.SparseConvTranspose3d(4, 4, 3, 2, 1)
    layer.load_state_dict(convert.convert_state_dict(layer, dense.state_dict(), "torch"), strict=True)
    out = layer.eval()(x)
    assert torch.equal(out.features, at(dense(dense_of(x)), out.indices))


def test_spconv1() -> None:
    weight = integers(3, 2, 1, 4, 6)
    out = convert.from_spconv1(weight)
    assert out.shape == (6, 3, 2, 1, 4)
    for z, y, x, i, o in itertools.product(*map(range, weight.shape)):
        assert out[o, z, y, x, i] == weight[z, y, x, i, o]


def torchsparse_offsets(size: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Taps as TorchSparse 2.1 lists them, by column of its coordinates."""
    a, b, c = (range(n) for n in size)
    if size[0] * size[1] * size[2] % 2:
        return [(i, j, k) for k in c for j in b for i in a]
    return [(i, j, k) for i in a for j in b for k in c]


def minkowski_offsets(size: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Taps as MinkowskiEngine counts them: the first axis fastest."""
    return [(n % size[0], n // size[0] % size[1], n // (size[0] * size[1])) for n in range(size[0] * size[1] * size[2])]


@KERNELS
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("source", ["torchsparse", "minkowski"])
def test_taps(size: tuple[int, int, int], reverse: bool, source: str) -> None:
    """Every tap's matrix ends up where its offset says; here columns may be reversed."""
    kernel = integers(size[0] * size[1] * size[2], 4, 6)
    offsets = torchsparse_offsets(size) if source == "torchsparse" else minkowski_offsets(size)
    here = size[::-1] if reverse else size
    out = getattr(convert, f"from_{source}")(kernel, here, reverse_axes=reverse)
    assert out.shape == (6, *here, 4) and out.is_contiguous()
    for offset, matrix in zip(offsets, kernel, strict=True):
        place = offset[::-1] if reverse else offset
        assert torch.equal(out[:, place[0], place[1], place[2], :], matrix.T)


@pytest.mark.parametrize("source", ["torchsparse", "minkowski"])
def test_a_network_of_taps(source: str) -> None:
    """A whole state_dict: submanifold, one tap, batch norm with the other library's names; by sums over offsets."""
    x = sparse()
    net = spconv.SparseSequential(spconv.SubMConv3d(4, 6, 3), nn.BatchNorm1d(6), spconv.SubMConv3d(6, 5, 1)).eval()
    minkowski = source == "minkowski"
    norm, bias = ("1.bn." if minkowski else "1."), integers(6)
    state = {"0.kernel": integers(27, 4, 6), "0.bias": bias[None] if minkowski else bias, "2.kernel": integers(6, 5)}
    state |= {"2.bias": torch.zeros(1, 5)}
    state |= {f"{norm}{name}": value.clone() for name, value in net[1].state_dict().items()}
    state[f"{norm}running_mean"] = integers(6)
    net.load_state_dict(convert.convert_state_dict(net, state, source), strict=True)
    rows = {tuple(row): number for number, row in enumerate(x.indices.tolist())}
    wanted = bias.repeat(30, 1)
    for (b, *place), number in rows.items():
        for tap, offset in enumerate(torchsparse_offsets((3, 3, 3))):
            other = rows.get((b, *(p + o - 1 for p, o in zip(place, offset, strict=True))))
            if other is not None:
                wanted[number] += x.features[other] @ state["0.kernel"][tap]
    wanted = nn.functional.batch_norm(wanted, state[f"{norm}running_mean"], torch.ones(6)) @ state["2.kernel"]
    torch.testing.assert_close(net(x).features, wanted)


def test_what_does_not_fit() -> None:
    layer = spconv.SubMConv3d(4, 6, 3)
    for call, match in (
        (lambda: convert.from_minkowski(integers(9, 4, 6), (3, 3, 3)), r"\[9, 4, 6\]; accepted: \[27, C_in, C_out\]"),
        (lambda: convert.from_torch(integers(4, 6)), "accepted: .C_out, C_in"),
        (lambda: convert.from_spconv1(integers(4, 6)), "accepted: ..kernel, C_in"),
        (lambda: convert.to_layer(layer, integers(6, 3, 3, 3, 5)), r"accepted: \[6, 3, 3, 3, 4\]"),
        (lambda: convert.convert_state_dict(layer, {}, "caffe"), "accepted: torch, spconv1, torchsparse, minkowski"),
    ):
        with pytest.raises(InputError, match=match):
            call()
