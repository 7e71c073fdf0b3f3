"""Networks of the package's own classes with few channels, and clouds of few voxels: quick to compile and to check."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from spconv_compiler.nets.backbones import Backbone
from spconv_compiler.nets.registry import ModelSpec
from spconv_compiler.nets.unets import UNet

SHAPE = (24, 32, 32)
RESIDUAL = ModelSpec("residual", "", ("backbones", "centerpoint"), 21, "nuscenes", extra=1)
PLAIN = ModelSpec("plain", "", ("backbones", "second"), 12, "kitti", extra=1)
UNETS = ModelSpec("unet", "", ("unets", "spunet"), 0, "semantickitti", multiple=16)


def residual_backbone(spconv: Any, in_channels: int, spatial_shape: tuple[int, int, int]) -> Backbone:
    """CenterPoint's backbone with 8 channels."""
    return Backbone(spconv, in_channels, spatial_shape, channels=(8, 8, 8, 8), residual=True)


def plain_backbone(spconv: Any, in_channels: int, spatial_shape: tuple[int, int, int]) -> Backbone:
    """SECOND's backbone with 8 channels."""
    return Backbone(spconv, in_channels, spatial_shape, channels=(8, 8, 8, 8), residual=False)


def unet(spconv: Any, in_channels: int, spatial_shape: tuple[int, int, int]) -> UNet:
    """SpUNet with 8 channels at all scales and one block each."""
    return UNet(spconv, in_channels, spatial_shape, classes=5, stem=(5,), channels=(8,) * 9, blocks=(1,) * 8)


def install(monkeypatch: Any) -> None:
    """Puts them in the place of the registry's networks."""
    from spconv_compiler.nets import backbones, unets

    monkeypatch.setattr(backbones, "centerpoint", residual_backbone)
    monkeypatch.setattr(backbones, "second", plain_backbone)
    monkeypatch.setattr(unets, "spunet", unet)


def voxels(rows: int = 250, channels: int = 4, seed: int = 0, batches: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """(features f32 [rows, channels], coords int32 [rows, 4]): patches of a slanted plane, in random order."""
    rng = np.random.default_rng(seed)
    cells = rng.choice(batches * SHAPE[1] * SHAPE[2] // 4, rows, replace=False)
    batch, y, x = np.unravel_index(cells, (batches, SHAPE[1] // 2, SHAPE[2] // 2))
    z = (y // 3 + x // 5 + rng.integers(0, 2, rows)) % SHAPE[0]
    coords = np.stack([batch, z, y + 8, x + 3], axis=1).astype(np.int32)
    return torch.from_numpy(rng.standard_normal((rows, channels), dtype=np.float32)), torch.from_numpy(coords)
