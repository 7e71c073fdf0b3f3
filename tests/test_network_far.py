"""A network in a box that no grid and no marks hold, as graphs on the simulated GPU: its maps are built one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hip_harness import Shim
from network_cases import with_integers
from test_hip_tensors import Gpu, gpu
from torch import nn

import spconv_compiler
import spconv_compiler.pytorch as spconv

__all__ = ["gpu"]
sc: Any = spconv_compiler

# 2^48 fine cells with two batches, 2^43 of the level behind kernel 3 and stride 2 along each axis.
_SIDE = 2**15
_CHANNELS = 16


class Far(nn.Module):
    """Down and up again, and a pool of what is down."""

    def __init__(self) -> None:
        super().__init__()
        self.down = spconv.SparseConv3d(3, _CHANNELS, 3, 2, padding=1, bias=True, indice_key="down")
        self.pool = spconv.SparseMaxPool3d(2, 2)
        self.up = spconv.SparseInverseConv3d(_CHANNELS, _CHANNELS, 3, indice_key="down", bias=False)

    def forward(self, features: torch.Tensor, indices: torch.Tensor) -> dict[str, torch.Tensor]:
        down = self.down(spconv.SparseConvTensor(features, indices, [_SIDE] * 3, 2))
        pooled = self.pool(down)
        return {"up": self.up(down).features, "pooled": pooled.features, "indices": pooled.indices}


def frame(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Small whole features, and distinct voxels in pairs, far from each other."""
    rng = np.random.default_rng(seed)
    places = np.stack([rng.integers(0, size, rows) for size in (2, *[_SIDE - 1] * 3)], axis=1)
    indices = np.unique(np.concatenate([places, places + np.array([0, 0, 1, 1])]), axis=0)[:rows].astype(np.int32)
    features = rng.integers(-2, 3, (rows, 3)).astype(np.float32)
    return torch.from_numpy(features), torch.from_numpy(indices[rng.permutation(rows)])


@pytest.mark.slow
@pytest.mark.usefixtures("shim")
def test_maps_beyond_a_grid(gpu: Gpu, shim: Shim) -> None:
    """The first call goes step by step; the others replay graphs, on other numbers of voxels."""
    model: Any = with_integers(Far(), 1)
    with torch.no_grad():
        net = sc.compile(model, frame(70, 0), target="gfx950")
        for number, count in enumerate((70, 60, 33)):
            given = frame(count, count)
            found = {name: gpu.fetch(rows) for name, rows in net(*(gpu.put(tensor) for tensor in given)).items()}
            with spconv.use_target("cpu"):
                wanted = model(*given)
            assert all(torch.equal(found[name], wanted[name]) for name in wanted)
            assert (net.replay.graphs > 0) == (number > 0), net.replay.reason
    kinds = {name.partition("_k64")[0] for name in shim.launched}
    assert {"unique_outputs", "output_lookup", "input_lookup"} <= kinds
    assert not kinds & {"clear_marks", "fill_coarse", "scatter_coarse"}
