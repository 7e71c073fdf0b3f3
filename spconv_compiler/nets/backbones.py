"""The 3D backbones of two detectors: CenterPoint on nuScenes and SECOND on KITTI.

Layers, channels, keys and names of parameters are those of OpenPCDet's VoxelResBackBone8x and VoxelBackBone8x, so that
their checkpoints fit. Yin et al., "Center-based 3D Object Detection and Tracking" (CVPR 2021); Yan et al., "SECOND:
Sparsely Embedded Convolutional Detection" (Sensors 2018).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from spconv_compiler.nets.blocks import ResidualBlock, conv_norm_relu

_OUT_CHANNELS = 128
_STAGES = ("conv_input", "conv1", "conv2", "conv3", "conv4", "conv_out")
# The last stage does not pad along z.
_PADDING = {"conv2": 1, "conv3": 1, "conv4": (0, 1, 1)}


class Backbone(nn.Module):
    """Four stages at 1, 1/2, 1/4 and 1/8 of the resolution, then 1/16 along z; the result is a bird's-eye view.

    Args:
        spconv: whose layers; see blocks.py.
        in_channels: of the voxels.
        spatial_shape: (z, y, x) of the grid. Detectors add one cell to z, so that the last stages divide evenly.
        channels: of the four stages.
        residual: two residual blocks a stage (CenterPoint); else one submanifold convolution in the first stage and two
            in the others (SECOND).
    """

    def __init__(
        self,
        spconv: Any,
        in_channels: int,
        spatial_shape: tuple[int, int, int],
        *,
        channels: tuple[int, int, int, int],
        residual: bool,
    ) -> None:
        super().__init__()
        self._spconv, self.spatial_shape = spconv, list(spatial_shape)
        first = channels[0]
        subm = spconv.SubMConv3d(in_channels, first, 3, padding=1, bias=False, indice_key="subm1")
        self.conv_input = conv_norm_relu(spconv, subm, first)
        self.conv1 = nn.Sequential(*self._blocks(first, "1", residual, 1))
        for index, (c_in, c_out) in enumerate(zip(channels, channels[1:], strict=False), start=2):
            name = f"conv{index}"
            options = {"stride": 2, "padding": _PADDING[name], "bias": False, "indice_key": f"spconv{index}"}
            down = conv_norm_relu(spconv, spconv.SparseConv3d(c_in, c_out, 3, **options), c_out)
            self.add_module(name, nn.Sequential(down, *self._blocks(c_out, str(index), residual, 2)))
        flat = {"stride": (2, 1, 1), "padding": 0, "bias": False, "indice_key": "spconv_down2"}
        last = spconv.SparseConv3d(channels[-1], _OUT_CHANNELS, (3, 1, 1), **flat)
        self.conv_out = conv_norm_relu(spconv, last, _OUT_CHANNELS)

    def _blocks(self, channels: int, stage: str, residual: bool, plain: int) -> list[nn.Module]:
        if residual:
            return [ResidualBlock(self._spconv, channels, channels, f"res{stage}", bias=True) for _ in range(2)]
        options = {"padding": 1, "bias": False, "indice_key": f"subm{stage}"}
        layers = [self._spconv.SubMConv3d(channels, channels, 3, **options) for _ in range(plain)]
        return [conv_norm_relu(self._spconv, layer, channels) for layer in layers]

    def forward(self, features: torch.Tensor, indices: torch.Tensor, batch_size: int = 1) -> torch.Tensor:
        """[N, in_channels] and int32 [N, 4] (batch, z, y, x) → [batch_size, 128·z/16, y/8, x/8]."""
        x = self._spconv.SparseConvTensor(features, indices, self.spatial_shape, batch_size)
        for name in _STAGES:
            x = getattr(self, name)(x)
        return torch.flatten(x.dense(), 1, 2)


def centerpoint(spconv: Any, in_channels: int, spatial_shape: tuple[int, int, int]) -> Backbone:
    """CenterPoint's backbone (OpenPCDet VoxelResBackBone8x): 21 convolutions."""
    return Backbone(spconv, in_channels, spatial_shape, channels=(16, 32, 64, 128), residual=True)


def second(spconv: Any, in_channels: int, spatial_shape: tuple[int, int, int]) -> Backbone:
    """SECOND's backbone (OpenPCDet VoxelBackBone8x): 12 convolutions."""
    return Backbone(spconv, in_channels, spatial_shape, channels=(16, 32, 64, 64), residual=False)
