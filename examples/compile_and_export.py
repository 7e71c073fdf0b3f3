# %% [markdown]
# # One graph: torch.compile and torch.export
#
# Sparse layers are ops of `torch.library`: a network is traced as a whole, though nobody knows how many voxels a
# strided layer will give. Run the cells one by one, or the file: `python examples/compile_and_export.py`.

# %%
from __future__ import annotations

import torch
from torch import Tensor, nn

import spconv_compiler.pytorch as spconv

SHAPE = [16, 32, 32]


def scene(voxels: int, seed: int) -> tuple[Tensor, Tensor]:
    """Features [N, 4] and indices [N, 4] of distinct voxels."""
    generator = torch.Generator().manual_seed(seed)
    cells = torch.randperm(SHAPE[0] * SHAPE[1] * SHAPE[2], generator=generator)[:voxels]
    z, y, x = torch.unravel_index(cells, SHAPE)
    return torch.randn(voxels, 4, generator=generator), torch.stack([0 * z, z, y, x], dim=1).int()


class Net(nn.Module):
    """Convolutions, batch norm behind an unknown number of rows, a pool, a dense result."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = spconv.SparseSequential(
            *(spconv.SubMConv3d(4, 8, 3), nn.BatchNorm1d(8), nn.ReLU()),
            *(spconv.SparseConv3d(8, 16, 3, 2, 1), nn.BatchNorm1d(16), nn.ReLU()),
            spconv.SparseMaxPool3d(2),
            spconv.ToDense(),
        )

    def forward(self, features: Tensor, indices: Tensor) -> Tensor:
        out: Tensor = self.layers(spconv.SparseConvTensor(features, indices, SHAPE, batch_size=1))
        return out


torch.manual_seed(0)
net = Net().eval()

# %% [markdown]
# ## Compile
#
# `fullgraph=True` refuses any break. The second size makes the number of voxels a symbol; further sizes make no new
# graph.
# (`aot_eager` traces as inductor does, without its C++ compiler.)

# %%
compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
with torch.no_grad():
    for voxels in (500, 1200, 80):
        features, indices = scene(voxels, seed=voxels)
        assert torch.equal(compiled(features, indices), net(features, indices))
        print(f"{voxels:5d} voxels: equal to eager")

# %% [markdown]
# ## Export
#
# The exported program holds coordinates as tensors, and no maps: these are found again by the tensors.

# %%
rows = torch.export.Dim("rows")
with torch.no_grad():
    program = torch.export.export(net, scene(500, seed=1), dynamic_shapes=({0: rows}, {0: rows}))
    for node in program.graph.nodes:
        if node.op == "call_function" and "spconv_compiler" in str(node.target):
            print(f"{node.target}  {[list(a) if isinstance(a, (list, tuple)) else str(a) for a in node.args[2:]]}")
    features, indices = scene(900, seed=2)
    assert torch.equal(program.module()(features, indices), net(features, indices))
print("the exported program gives what eager gives")
