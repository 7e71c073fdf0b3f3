"""Small networks of integers: with exact batch norms, eager and compiled results are equal to the last bit."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

import spconv_compiler.pytorch as spconv

SHAPE = [12, 12, 12]
CHANNELS = 4


def exact_norm(rng: random.Random) -> nn.BatchNorm1d:
    """A batch norm that multiplies by a power of two and adds whole numbers: no rounding in f32."""
    norm = nn.BatchNorm1d(CHANNELS, eps=0.0)
    for vector, choices in (
        (norm.weight, (0.5, 1.0)),
        (norm.bias, (-2.0, 0.0, 3.0)),
        (norm.running_mean, (-1.0, 0.0, 2.0)),
    ):
        assert vector is not None
        vector.data = torch.tensor([rng.choice(choices) for _ in range(CHANNELS)])
    return norm


def with_integers(model: nn.Module, seed: int) -> nn.Module:
    """The model in eval mode, its weights −1, 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if hasattr(module, "weight") and not isinstance(module, nn.BatchNorm1d):
            module.weight.data = torch.randint(-1, 2, module.weight.shape, generator=generator).float()
            if module.bias is not None:
                module.bias.data = torch.randint(-3, 4, module.bias.shape, generator=generator).float()
    return model.eval()


class Residual(spconv.SparseModule):
    """Two submanifold convolutions and a shortcut, with or without a norm."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.conv1 = spconv.SubMConv3d(CHANNELS, CHANNELS, 3, bias=rng.random() < 0.5)
        self.conv2 = spconv.SubMConv3d(CHANNELS, CHANNELS, 3, bias=False)
        self.norm = exact_norm(rng)

    def forward(self, x: Any) -> Any:
        out = self.conv1(x)
        out = out.replace_feature(torch.relu(out.features))
        out = self.conv2(out)
        return out.replace_feature(torch.relu(self.norm(out.features) + x.features))


class RandomNet(nn.Module):
    """A seeded pile of blocks: residual, plain, strided and back, and features side by side."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = random.Random(seed)
        self.first = spconv.SubMConv3d(3, CHANNELS, 3, bias=False)
        self.steps = nn.ModuleList()
        self.kinds: list[str] = []
        self.joins = nn.ModuleList()
        for number in range(4):
            kind = rng.choice(("plain", "residual", "down_up", "concat", "pool"))
            self.kinds.append(kind)
            self.steps.append(self._block(kind, number, rng))
            join = spconv.SubMConv3d(2 * CHANNELS, CHANNELS, 1, bias=False) if kind == "concat" else nn.Identity()
            self.joins.append(join)

    def _block(self, kind: str, number: int, rng: random.Random) -> nn.Module:
        plain = spconv.SparseSequential(
            spconv.SubMConv3d(CHANNELS, CHANNELS, 3, bias=False), exact_norm(rng), nn.ReLU()
        )
        if kind == "residual":
            return Residual(rng)
        if kind in ("down_up", "pool"):
            key = f"down{number}"
            down = (
                spconv.SparseConv3d(CHANNELS, CHANNELS, 2, 2, bias=False, indice_key=key)
                if kind == "down_up"
                else spconv.SparseMaxPool3d(2, 2, indice_key=key)
            )
            up = spconv.SparseInverseConv3d(CHANNELS, CHANNELS, 2, indice_key=key, bias=False)
            return spconv.SparseSequential(down, exact_norm(rng), nn.ReLU(), up)
        return plain

    def forward(self, features: torch.Tensor, indices: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.first(spconv.SparseConvTensor(features, indices, SHAPE, 2))
        for kind, step, join in zip(self.kinds, self.steps, self.joins, strict=True):
            before = x
            x = step(x)
            if kind == "concat":
                x = join(x.replace_feature(torch.cat([x.features, before.features], dim=1)))
        return {"features": x.features, "indices": x.indices}


def voxels(count: int, seed: int, channels: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """(features of −1, 0, 1, coordinates in two batches): `count` distinct voxels, in any order."""
    generator = torch.Generator().manual_seed(seed)
    cells = torch.randperm(2 * 12**3, generator=generator)[:count]
    indices = torch.stack([cells // 1728, cells // 144 % 12, cells // 12 % 12, cells % 12], dim=1).int()
    return torch.randint(-1, 2, (count, channels), generator=generator).float(), indices
