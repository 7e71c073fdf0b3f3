"""Sparse tensors of whole numbers for the modules, and dense torch as the oracle of what they compute."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import spconv_compiler.pytorch as spconv

SHAPES = {1: [40], 2: [9, 11], 3: [7, 8, 9]}


def sparse(ndim: int = 3, n: int = 30, channels: int = 4, *, batches: int = 2, seed: int = 0) -> Any:
    """A SparseConvTensor with n voxels of whole numbers, each a few units in size."""
    shape, rng = SHAPES[ndim], np.random.default_rng(seed)
    cells = rng.choice(batches * math.prod(shape), n, replace=False)
    indices = np.stack(np.unravel_index(cells, (batches, *shape)), axis=1).astype(np.int32)
    features = rng.integers(-3, 4, (n, channels)).astype(np.float32)
    return spconv.SparseConvTensor(torch.from_numpy(features), torch.from_numpy(indices), shape, batches)


def whole(module: nn.Module, seed: int = 0) -> Any:
    """The module in eval mode, with whole numbers as parameters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randint(-2, 3, parameter.shape, generator=generator))
    return module.eval()


def at(dense: Tensor, indices: Tensor) -> Tensor:
    """Rows of a dense [B, C, *shape] at indices [N, 1 + ndim]."""
    rows: Tensor = dense.movedim(1, -1)[tuple(indices.long().unbind(1))]
    return rows


def dense_conv(x: Any, layer: Any, padding: list[int]) -> Tensor:
    """The layer's convolution by torch on x.dense(), with another padding."""
    run = (nn.functional.conv1d, nn.functional.conv2d, nn.functional.conv3d)[layer.ndim - 1]
    stride = [1] * layer.ndim if layer.subm else layer.stride
    weight = layer.weight.movedim(-1, 1)
    return run(dense_of(x), weight, layer.bias, stride, padding, layer.dilation)


def dense_of(x: Any) -> Tensor:
    """x as [B, C, *shape], by indexing alone."""
    dense = torch.zeros(x.batch_size, *x.spatial_shape, x.features.shape[1])
    dense[tuple(x.indices.long().unbind(1))] = x.features.float()
    return dense.movedim(-1, 1)


def occupied(x: Any) -> Tensor:
    """1.0 where a voxel is, [B, 1, *shape]."""
    return dense_of(x.replace_feature(torch.ones(x.features.shape[0], 1)))
