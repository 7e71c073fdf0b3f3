"""Layers at the sizes at which those of others failed: every row, exactly, against torch's own look-ups."""

from __future__ import annotations

import pytest
import torch

import spconv_compiler.pytorch as spconv

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_gradients")]


def distinct(rows: int, batches: int, shape: tuple[int, int, int], seed: int) -> torch.Tensor:
    """So many voxels, in random order."""
    rng = torch.Generator().manual_seed(seed)
    z, y, x = shape
    cells = torch.randperm(batches * z * y * x, generator=rng)[:rows]
    return torch.stack([cells // (x * y * z), cells // (x * y) % z, cells // x % y, cells % x], 1).int()


def whole_numbers(*shape: int) -> torch.Tensor:
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(len(shape))).float()


def test_inverse_of_four_batches_with_half_a_million_rows() -> None:
    """64 to 32 channels, kernel 2, where others read outside of their memory; every row, exactly."""
    indices = distinct(531_843, 4, (64, 256, 256), 1)
    down = spconv.SparseConv3d(4, 64, 2, 2, indice_key="down", bias=False).eval()
    up = spconv.SparseInverseConv3d(64, 32, 2, "down", bias=False).eval()
    up.weight.copy_(whole_numbers(*up.weight.shape))
    coarse = down(spconv.SparseConvTensor(whole_numbers(len(indices), 4), indices, [64, 256, 256], 4))
    features = whole_numbers(len(coarse.indices), 64)
    out = up(coarse.replace_feature(features))
    assert torch.equal(out.indices, indices)
    halves = indices.clone()
    halves[:, 1:] //= 2
    scale = torch.tensor([32 * 128 * 128, 128 * 128, 128, 1])
    keys = (coarse.indices.long() * scale).sum(1)
    above = torch.searchsorted(keys, (halves.long() * scale).sum(1))
    assert torch.equal(coarse.indices[above], halves)
    taps = ((indices[:, 1:] % 2).long() * torch.tensor([4, 2, 1])).sum(1)
    weight = up.weight.reshape(32, 8, 64)
    for tap in range(8):
        mine = taps == tap
        assert torch.equal(out.features[mine], features[above[mine]] @ weight[:, tap].T)


def test_nearly_three_million_rows() -> None:
    """A grid of 360 x 96 x 480 with 4 batches, 16 to 32 channels; every row, exactly."""
    shape = (360, 96, 480)
    indices = distinct(2_830_000, 4, shape, 2)
    layer = spconv.SubMConv3d(16, 32, 3, bias=False).eval()
    layer.weight.copy_(whole_numbers(*layer.weight.shape))
    features = whole_numbers(len(indices), 16)
    out = layer(spconv.SparseConvTensor(features, indices, list(shape), 4)).features
    # A border of one cell keeps neighbours of other rows and batches apart.
    scale = torch.tensor([362 * 98 * 482, 98 * 482, 482, 1])
    keys, order = (indices.long() * scale).sum(1).sort()
    wanted = torch.zeros_like(out)
    for tap in range(27):
        step = (torch.tensor([tap // 9 - 1, tap // 3 % 3 - 1, tap % 3 - 1]) * scale[1:]).sum()
        at = torch.searchsorted(keys, keys + step).clamp(max=len(keys) - 1)
        met = keys[at] == keys + step
        wanted.index_add_(0, order[met], features[order[at[met]]] @ layer.weight.reshape(32, 27, 16)[:, tap].T)
    assert torch.equal(out, wanted)
