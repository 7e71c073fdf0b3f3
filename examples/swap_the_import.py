# %% [markdown]
# # A model written for spconv, with one import swapped
#
# A small detector backbone over a generated LiDAR scan. It is what one writes for `spconv.pytorch`; only the import
# differs. Run the cells one by one, or the file: `python examples/swap_the_import.py`.

# %%
from __future__ import annotations

import torch
from torch import Tensor, nn

import spconv_compiler.pytorch as spconv  # was: import spconv.pytorch as spconv
from spconv_compiler.io import demo_scan
from spconv_compiler.pytorch.utils import PointToVoxel

# %% [markdown]
# ## Points to voxels
#
# `PointToVoxel` is spconv's: xyz sizes and ranges in; voxels with their points, and (z, y, x) indices out.

# %%
points = demo_scan(beams=16, azimuths=512).features
voxelise = PointToVoxel([0.2, 0.2, 0.4], [0, -16, -3, 32, 16, 1], points.shape[1], 20000, 5)
voxels, zyx, count = voxelise(points)
features = voxels.sum(1) / count[:, None]
indices = torch.cat([torch.zeros_like(zyx[:, :1]), zyx], dim=1)
print(f"{len(points)} points, {len(features)} voxels in a grid of {voxelise.grid_size}")

# %% [markdown]
# ## The model
#
# Submanifold blocks share a key; the inverse layer names the layer that it undoes. Keys are checked here, and not
# needed for speed: maps belong to coordinate tensors.


# %%
class Backbone(nn.Module):
    """Two levels and back up: features per voxel, and a dense map for a detection head."""

    def __init__(self, c_in: int) -> None:
        super().__init__()

        def norm(c: int) -> tuple[nn.Module, nn.Module]:
            return nn.BatchNorm1d(c), nn.ReLU()

        self.fine = spconv.SparseSequential(
            *(spconv.SubMConv3d(c_in, 16, 3, bias=False, indice_key="subm1"), *norm(16)),
            *(spconv.SubMConv3d(16, 16, 3, bias=False, indice_key="subm1"), *norm(16)),
        )
        self.coarse = spconv.SparseSequential(
            *(spconv.SparseConv3d(16, 32, 3, stride=2, padding=1, bias=False, indice_key="down2"), *norm(32)),
            *(spconv.SubMConv3d(32, 32, 3, bias=False, indice_key="subm2"), *norm(32)),
        )
        self.up = spconv.SparseInverseConv3d(32, 16, 3, indice_key="down2", bias=False)
        self.to_dense = spconv.ToDense()

    def forward(self, x: spconv.SparseConvTensor) -> tuple[Tensor, Tensor]:
        fine = self.fine(x)
        coarse = self.coarse(fine)
        per_voxel = self.up(coarse) + fine
        return per_voxel.features, self.to_dense(coarse)


torch.manual_seed(0)
model = Backbone(points.shape[1]).eval()
with torch.no_grad():
    x = spconv.SparseConvTensor(features, indices, voxelise.grid_size, batch_size=1)
    per_voxel, dense = model(x)
print(f"features per voxel {list(per_voxel.shape)}, dense {list(dense.shape)}")

# %% [markdown]
# ## Half precision, autocast
#
# bf16 and f16 are computed with sums in f32. Autocast gives the dtype that was asked for, in training and in eval.

# %%
with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
    half, _ = model(x)
error = float((half.float() - per_voxel).abs().max() / per_voxel.abs().max())
print(f"{half.dtype}: off by {error:.4f} of the largest value")
assert half.dtype == torch.bfloat16 and error < 0.05

# %% [markdown]
# ## What goes wrong says so
#
# In spconv a key that is found is taken, whatever voxels it was written for.

# %%
spconv.assign_name_for_sparse_modules(model)
stale = spconv.SparseConvTensor(features, indices.roll(1, 0).contiguous(), voxelise.grid_size, 1)
with torch.no_grad():
    stale.indice_dict = model.fine(x).indice_dict
    try:
        model.fine(stale)
    except ValueError as problem:
        print(problem)
    else:
        raise SystemExit("a stale key was accepted")
