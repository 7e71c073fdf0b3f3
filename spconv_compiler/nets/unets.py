"""Segmentation networks of the U-Net form: SpUNet and MinkUNet.

SpUNet has the layers, keys and names of parameters of Pointcept's SpUNet-v1m1. MinkUNet is that of Choy et al., "4D
Spatio-Temporal ConvNets: Minkowski Convolutional Neural Networks" (CVPR 2019) in the size that TorchSparse's
SemanticKITTI example has, written with spconv's layers: strided convolutions and inverse ones over the same maps.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from spconv_compiler.nets.blocks import ResidualBlock, conv_norm_relu

_SCALES = 4


class UNet(nn.Module):
    """Four scales down by a 2x2x2 convolution of stride 2, and up again with the features of the way down beside.

    Args:
        spconv: whose layers; see blocks.py.
        in_channels: of the voxels.
        spatial_shape: (z, y, x) of the grid; multiples of 16, since an odd size loses its last cells on the way down.
        classes: channels of the result.
        stem: edges of the kernels of the first convolutions.
        channels: of the stem, of four scales down, of four scales up.
        blocks: residual blocks at these eight scales.
    """

    def __init__(
        self,
        spconv: Any,
        in_channels: int,
        spatial_shape: tuple[int, int, int],
        *,
        classes: int,
        stem: Sequence[int],
        channels: Sequence[int],
        blocks: Sequence[int],
    ) -> None:
        super().__init__()
        self._spconv, self.spatial_shape = spconv, list(spatial_shape)
        base, down, up = channels[0], list(channels[1 : 1 + _SCALES]), list(channels[1 + _SCALES :])
        stems = []
        for c_in, size in zip([in_channels, base], stem, strict=False):
            options = {"padding": size // 2, "bias": False, "indice_key": f"stem{size}"}
            stems.append(conv_norm_relu(spconv, spconv.SubMConv3d(c_in, base, size, **options), base))
        self.conv_input = stems[0] if len(stems) == 1 else nn.Sequential(*stems)
        self.down, self.enc, self.up, self.dec = (nn.ModuleList() for _ in range(4))
        before = [base, *down]
        for scale in range(_SCALES):
            c_in, c_out = before[scale], before[scale + 1]
            # Names count from the finest scale, on the way up too.
            c_up, c_same = (up[::-1] + down[-1:])[scale + 1], up[::-1][scale]
            key = f"spconv{scale + 1}"
            step = spconv.SparseConv3d(c_in, c_out, 2, stride=2, indice_key=key, bias=False)
            back = spconv.SparseInverseConv3d(c_up, c_same, 2, indice_key=key, bias=False)
            self.down.append(conv_norm_relu(spconv, step, c_out))
            self.up.append(conv_norm_relu(spconv, back, c_same))
            self.enc.append(self._blocks(c_out, c_out, blocks[scale], f"subm{scale + 1}"))
            self.dec.append(self._blocks(c_same + c_in, c_same, blocks[-1 - scale], f"subm{scale}"))
        self.final = spconv.SubMConv3d(up[-1], classes, 1, bias=True)

    def _blocks(self, c_in: int, c_out: int, count: int, key: str) -> nn.Sequential:
        inputs = [c_in] + [c_out] * (count - 1)
        named = ((f"block{i}", ResidualBlock(self._spconv, c, c_out, key, bias=False)) for i, c in enumerate(inputs))
        return nn.Sequential(OrderedDict(named))

    def forward(self, features: torch.Tensor, indices: torch.Tensor, batch_size: int = 1) -> torch.Tensor:
        """[N, in_channels] and int32 [N, 4] (batch, z, y, x) → [N, classes], scores of every voxel."""
        x = self.conv_input(self._spconv.SparseConvTensor(features, indices, self.spatial_shape, batch_size))
        skips = []
        for down, encode in zip(self.down, self.enc, strict=True):
            skips.append(x)
            x = encode(down(x))
        for up, decode in zip(reversed(self.up), reversed(self.dec), strict=True):
            x = up(x)
            x = decode(x.replace_feature(torch.cat((x.features, skips.pop().features), dim=1)))
        scores: torch.Tensor = self.final(x).features
        return scores


def spunet(spconv: Any, in_channels: int, spatial_shape: tuple[int, int, int]) -> UNet:
    """SpUNet (Pointcept SpUNet-v1m1, its ScanNet configuration): blocks 2, 3, 4, 6 on the way down, 20 classes."""
    return UNet(
        spconv,
        in_channels,
        spatial_shape,
        classes=20,
        stem=(5,),
        channels=(32, 32, 64, 128, 256, 256, 128, 96, 96),
        blocks=(2, 3, 4, 6, 2, 2, 2, 2),
    )


def minkunet(spconv: Any, in_channels: int, spatial_shape: tuple[int, int, int]) -> UNet:
    """MinkUNet: two convolutions in front, two residual blocks a scale, 19 classes."""
    return UNet(
        spconv,
        in_channels,
        spatial_shape,
        classes=19,
        stem=(3, 3),
        channels=(32, 32, 64, 128, 256, 256, 128, 96, 96),
        blocks=(2,) * 8,
    )
