"""Building blocks of the networks: convolution, batch norm and ReLU, and the residual block.

`spconv` is the module whose layers are used: `spconv_compiler.pytorch`, or spconv's own `spconv.pytorch`. Both take the
same arguments, so one definition of a network runs on either.
"""

from __future__ import annotations

from typing import Any

from torch import nn


def norm(channels: int) -> nn.BatchNorm1d:
    """Batch norm over the active voxels, with the constants of OpenPCDet and Pointcept."""
    return nn.BatchNorm1d(channels, eps=1e-3, momentum=0.01)


def conv_norm_relu(spconv: Any, conv: nn.Module, channels: int) -> nn.Module:
    """The convolution, batch norm over its `channels` outputs, ReLU."""
    block: nn.Module = spconv.SparseSequential(conv, norm(channels), nn.ReLU())
    return block


class ResidualBlock(nn.Module):
    """Two submanifold 3x3x3 convolutions with batch norm, and a shortcut: ReLU(f(x) + x).

    Where the channels change, the shortcut is a 1x1x1 convolution with batch norm, `proj`.

    Args:
        key: indice_key that the block's convolutions share with others over the same voxels.
        bias: of the two convolutions.
    """

    def __init__(self, spconv: Any, c_in: int, c_out: int, key: str, *, bias: bool) -> None:
        super().__init__()
        self.conv1 = spconv.SubMConv3d(c_in, c_out, 3, padding=1, bias=bias, indice_key=key)
        self.bn1 = norm(c_out)
        self.relu = nn.ReLU()
        self.conv2 = spconv.SubMConv3d(c_out, c_out, 3, padding=1, bias=bias, indice_key=key)
        self.bn2 = norm(c_out)
        self.proj: nn.Module | None = None
        if c_in != c_out:
            self.proj = spconv.SparseSequential(spconv.SubMConv3d(c_in, c_out, 1, bias=False), norm(c_out))

    def forward(self, voxels: Any) -> Any:
        """A SparseConvTensor of c_in channels → one of c_out over the same voxels."""
        shortcut = voxels if self.proj is None else self.proj(voxels)
        out = self.conv1(voxels)
        out = out.replace_feature(self.relu(self.bn1(out.features)))
        out = self.conv2(out)
        return out.replace_feature(self.relu(self.bn2(out.features) + shortcut.features))
