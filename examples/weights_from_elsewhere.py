# %% [markdown]
# # Weights from elsewhere, and another target
#
# Weights of a dense network, of TorchSparse and of MinkowskiEngine in the same sparse network; then that network on the
# gfx950 simulator. Run the cells one by one, or the file: `python examples/weights_from_elsewhere.py`.

# %%
from __future__ import annotations

import torch
from torch import nn

import spconv_compiler.pytorch as spconv
from spconv_compiler.pytorch import convert

torch.manual_seed(0)
indices = torch.tensor([[0, z, y, x] for z in range(4) for y in range(4) for x in range(4)], dtype=torch.int32)
indices = indices[torch.randperm(64)[:24]].contiguous()
features = torch.randint(-3, 4, (24, 4)).float()
x = spconv.SparseConvTensor(features, indices, [4, 4, 4], batch_size=1)
net = spconv.SparseSequential(spconv.SubMConv3d(4, 8, 3), nn.ReLU(), spconv.SubMConv3d(8, 8, 1)).eval()

# %% [markdown]
# ## A dense network
#
# Read at the voxels, a submanifold layer is a dense convolution. The 1x1 layer needs care: spconv reads the memory of
# its weight as [C_in, C_out], and so do these modules; `convert_state_dict` knows which layers do.

# %%
dense = nn.Sequential(nn.Conv3d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 8, 1)).eval()
net.load_state_dict(convert.convert_state_dict(net, dense.state_dict(), "torch"), strict=True)
with torch.no_grad():
    sparse_out = net(x).features
    dense_out = dense(x.dense()).movedim(1, -1)[tuple(indices.long().unbind(1))]
print(f"dense and sparse differ by {float((sparse_out - dense_out).abs().max()):.1e}")
torch.testing.assert_close(sparse_out, dense_out)

# %% [markdown]
# ## TorchSparse and MinkowskiEngine
#
# They keep [taps, C_in, C_out] with the first axis fastest (TorchSparse: for an odd number of taps). The same taps,
# listed in that order, come back to the same weight.

# %%
native = net[0].weight.detach()
taps = native.permute(3, 2, 1, 4, 0).reshape(27, 4, 8)
for name, convert_taps in (("TorchSparse", convert.from_torchsparse), ("MinkowskiEngine", convert.from_minkowski)):
    assert torch.equal(convert_taps(taps, (3, 3, 3)), native)
    print(f"{name}: [27, 4, 8] becomes {list(native.shape)}")

# %% [markdown]
# ## Another target
#
# A model says nothing of hardware. Within `use_target` its sparse ops run elsewhere: here gfx950 machine code,
# instruction by instruction.

# %%
with torch.no_grad(), spconv.use_target("gfx950-sim"):
    simulated = net[0](x).features
with torch.no_grad():
    torch.testing.assert_close(simulated, net[0](x).features)
print("gfx950-sim agrees with the cpu")
