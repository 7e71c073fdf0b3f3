"""The torch networks by name: what they are, the voxels they take, and how to make one.

Without torch everything but `make_model` works.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spconv_compiler.errors import InputError

if TYPE_CHECKING:
    import torch

TOLERANCES = {"f32": 1e-4, "bf16": 5e-2, "f16": 5e-3}
"""Relative L2 distance of a network's result from exact sums, per dtype. Two right f32 results differ by some 1e-6."""

# As in stacks.py: the part of a kernel's taps that meet a voxel.
_OCCUPANCY = 0.3
# Scale of a residual branch; with 1 the features of a deep network grow by half a block.
_BRANCH = 0.3
# Where frameworks put the parameters in what they save, and the name of the backbone in a detector.
_SECTIONS, _PREFIXES = ("model_state", "state_dict", "model"), ("", "module.", "backbone.", "backbone_3d.")


@dataclass(frozen=True)
class ModelSpec:
    """One network.

    Attributes:
        name: as `--net` takes it.
        description: what it is, and whose shapes it has.
        builder: module of this package and function (spconv, in_channels, spatial_shape) → module.
        convolutions: how many it has.
        preset: voxels that it is made for; io.presets.
        extra, multiple: the grid is (z + extra, y, x), rounded up to a multiple along every axis.
    """

    name: str
    description: str
    builder: tuple[str, str]
    convolutions: int
    preset: str
    extra: int = 0
    multiple: int = 1

    def grid(self, spatial_shape: tuple[int, int, int]) -> tuple[int, int, int]:
        """The spatial shape to build the network for, given that of the voxels."""
        z, y, x = (math.ceil(size / self.multiple) * self.multiple for size in spatial_shape)
        return z + self.extra, y, x


MODELS = {
    spec.name: spec
    for spec in (
        ModelSpec(
            "centerpoint",
            "3D backbone of CenterPoint on nuScenes (OpenPCDet VoxelResBackBone8x), stages of 16, 32, 64, 128 channels",
            ("backbones", "centerpoint"),
            21,
            "nuscenes",
            extra=1,
        ),
        ModelSpec(
            "second",
            "3D backbone of SECOND on KITTI (OpenPCDet VoxelBackBone8x), stages of 16, 32, 64, 64 channels",
            ("backbones", "second"),
            12,
            "kitti",
            extra=1,
        ),
        ModelSpec(
            "spunet",
            "segmentation U-Net (Pointcept SpUNet-v1m1), 5x5x5 stem, residual blocks 2, 3, 4, 6 down and 2 up",
            ("unets", "spunet"),
            60,
            "semantickitti",
            multiple=16,
        ),
        ModelSpec(
            "minkunet",
            "segmentation U-Net (MinkUNet of TorchSparse's SemanticKITTI example), two residual blocks a scale",
            ("unets", "minkunet"),
            47,
            "semantickitti",
            multiple=16,
        ),
    )
}


def get_model(name: str) -> ModelSpec:
    """The network of that name; InputError lists the known names."""
    if name not in MODELS:
        raise InputError(f"unknown network {name!r}; accepted: {', '.join(MODELS)}")
    return MODELS[name]


def make_model(
    spec: ModelSpec,
    spconv: Any,
    in_channels: int,
    spatial_shape: tuple[int, int, int],
    *,
    seed: int = 0,
    weights: Path | None = None,
) -> torch.nn.Module:
    """The network in f32, for inference.

    Args:
        spconv: whose layers: spconv_compiler.pytorch, or spconv.pytorch.
        in_channels: of the voxels.
        spatial_shape: of the voxels' grid (z, y, x); the network is built for spec.grid of it.
        seed: of the parameters; equal for equal arguments, whoever's layers they are in.
        weights: a checkpoint instead, from torch.save: a state dict, or a dictionary with one in "model_state",
            "state_dict" or "model"; names may begin with "module.", "backbone." or "backbone_3d.".

    Raises:
        InputError: the checkpoint cannot be read or does not fit.
    """
    module, function = spec.builder
    build = getattr(importlib.import_module(f"{__package__}.{module}"), function)
    model: torch.nn.Module = build(spconv, in_channels, spec.grid(spatial_shape)).eval().requires_grad_(False)
    if weights is None:
        _seed(model, seed)
    else:
        _load(model, weights)
    return model


def _seed(model: torch.nn.Module, seed: int) -> None:
    """Draws parameters that keep the size of features (He et al., 2015), and statistics that batch norm must use."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        if not tensor.is_floating_point():
            continue
        normal = torch.randn(tensor.shape, generator=generator)
        if name.endswith("running_var"):
            tensor.copy_(0.75 + 0.5 * torch.rand(tensor.shape, generator=generator))
        elif tensor.dim() == 5:
            fan_in = tensor.shape[4] * max(1.0, _OCCUPANCY * math.prod(tensor.shape[1:4]))
            tensor.copy_(normal * math.sqrt(2.0 / fan_in))
        elif name.endswith("weight"):
            tensor.copy_((1.0 + 0.1 * normal) * (_BRANCH if ".bn2." in name else 1.0))
        else:
            tensor.copy_(0.1 * normal)


def _load(model: torch.nn.Module, path: Path) -> None:
    found, wanted = _tensors(path), model.state_dict()
    prefix = max(_PREFIXES, key=lambda text: sum(text + name in found for name in wanted))
    # Batch norm's counter of batches, which older files lack, is not used in inference.
    for name, tensor in wanted.items():
        given = found.get(prefix + name)
        if given is None and name.endswith("num_batches_tracked"):
            continue
        if given is None:
            raise InputError(f"{path}: has no {prefix + name}; the network needs {len(wanted)} tensors")
        if given.shape != tensor.shape:
            raise InputError(f"{path}: {prefix + name} is {list(given.shape)}; the network has {list(tensor.shape)}")
        tensor.copy_(given)


def _tensors(path: Path) -> Mapping[str, torch.Tensor]:
    import torch

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zip and torch each fail in their own ways on a file that is no checkpoint
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"{path}: cannot be read as a checkpoint ({reason})") from None
    while isinstance(loaded, Mapping) and not any(isinstance(value, torch.Tensor) for value in loaded.values()):
        section = next((name for name in _SECTIONS if name in loaded), None)
        if section is None:
            break
        loaded = loaded[section]
    if not isinstance(loaded, Mapping):
        raise InputError(f"{path}: holds a {type(loaded).__name__}; accepted: a dictionary of tensors")
    return {name: value for name, value in loaded.items() if isinstance(value, torch.Tensor)}
