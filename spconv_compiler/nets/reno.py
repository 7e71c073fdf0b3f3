"""RENO, a trained network that compresses LiDAR scans; its result is the length of the compressed file in bits.

You et al., "RENO: Real-Time Neural Compression for 3D LiDAR Point Clouds" (CVPR 2025); checkpoints of TorchSparse from
github.com/NJUVISION/RENO. A level of the octree is coded with what is known of the level above it: ten submanifold
3x3x3 convolutions of 32 channels a level, five over the parents and five over the voxels that are coded. Every level is
first the voxels of one step and then the parents of the next, so its ten convolutions share one kernel map.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import embedding, linear, log_softmax, relu

from spconv_compiler.api import subm_conv3d
from spconv_compiler.errors import InputError
from spconv_compiler.nets.reno_pyramid import Level

Convolve = Callable[..., Any]
"""A submanifold convolution with the arguments of `subm_conv3d`."""

_CHANNELS, _TAPS = 32, 27
_STACK = ("0", "2.conv0", "2.conv1", "3.conv0", "3.conv1")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def _shapes() -> dict[str, tuple[int, ...]]:
    """The tensors of a checkpoint. `fog.conv.kernel`, which it also has, is all ones and only builds the octree."""
    found: dict[str, tuple[int, ...]] = {
        "prior_embedding.weight": (256, _CHANNELS),
        "target_embedding.target_res_embedding.weight": (8, _CHANNELS),
        "pred_head_s1_emb.weight": (16, _CHANNELS),
    }
    for stack in ("prior_resnet", "target_resnet"):
        found |= {f"{stack}.{layer}.kernel": (_TAPS, _CHANNELS, _CHANNELS) for layer in _STACK}
    for head in ("pred_head_s0", "pred_head_s1"):
        found |= {f"{head}.0.weight": (_CHANNELS, _CHANNELS), f"{head}.0.bias": (_CHANNELS,)}
        found |= {f"{head}.2.weight": (16, _CHANNELS), f"{head}.2.bias": (16,)}
    return found


def load_checkpoint(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint, f32.

    Raises:
        InputError: the file cannot be read, or lacks a tensor, or one has another shape.
    """
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zip and torch each fail in their own ways on a file that is no checkpoint
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"{path}: cannot be read as a checkpoint ({reason})") from None
    if not isinstance(loaded, Mapping):
        raise InputError(f"{path}: holds a {type(loaded).__name__}; accepted: a dictionary of tensors")
    for name, shape in _shapes().items():
        tensor = loaded.get(name)
        if not isinstance(tensor, torch.Tensor) or tuple(tensor.shape) != shape:
            found = list(tensor.shape) if isinstance(tensor, torch.Tensor) else "missing"
            raise InputError(f"{path}: {name} is {found}; a checkpoint of RENO has {list(shape)}")
    return {name: loaded[name].float() for name in _shapes()}


@dataclass(frozen=True)
class LevelBits:
    """One coded level.

    Attributes:
        depth: 1 for the level below the coarsest.
        voxels: whose codes are coded.
        streams: bits of the codes' lower and upper halves, as an ideal arithmetic coder writes them.
        ms: of the network on this level, kernel maps included.
    """

    depth: int
    voxels: int
    streams: tuple[float, float]
    ms: float

    @property
    def bits(self) -> float:
        """Of both streams."""
        return sum(self.streams)


class Reno:
    """The network, ready to run.

    Args:
        tensors: of a checkpoint; see `load_checkpoint`.
        dtype: "f32", "bf16" or "f16" of weights and of every layer's result; sums are taken in f32.
        target: of the convolutions; see `subm_conv3d`.
        convolve: another implementation of `subm_conv3d`, to compare with.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        dtype: str = "f32",
        target: str | None = None,
        convolve: Convolve = subm_conv3d,
    ) -> None:
        if dtype not in DTYPES:
            raise InputError(f"dtype is {dtype!r}; accepted: {', '.join(DTYPES)}")
        self._tensors = {name: tensor.to(DTYPES[dtype]) for name, tensor in tensors.items()}
        self._target, self._convolve = target, convolve

    def code(self, levels: Sequence[Level]) -> Iterator[LevelBits]:
        """Codes a pyramid level by level, coarse to fine; yields each when it is done.

        Raises:
            InputError, CompileError, LaunchError, ToolchainError: see subm_conv3d.
        """
        coords = [torch.from_numpy(level.coords) for level in levels]
        # The finest level has no codes: it is known once those of the level above are.
        for depth in range(1, len(levels) - 1):
            start = time.perf_counter()
            streams = self._code_level(levels[depth - 1], levels[depth], coords[depth - 1], coords[depth])
            yield LevelBits(depth, len(levels[depth]), streams, (time.perf_counter() - start) * 1e3)

    @torch.no_grad()
    def _code_level(self, above: Level, level: Level, above_coords: Any, coords: Any) -> tuple[float, float]:
        known = embedding(_index(above.codes), self._tensors["prior_embedding.weight"])
        known = self._stack("prior_resnet", above_coords, known)
        place = embedding(_index(level.children), self._tensors["target_embedding.target_res_embedding.weight"])
        features = self._stack("target_resnet", coords, known[torch.from_numpy(level.parents)] + place)
        codes = _index(level.codes)
        low, high = codes & 15, codes >> 4
        told = features + embedding(low, self._tensors["pred_head_s1_emb.weight"])
        return self._head("pred_head_s0", features, low), self._head("pred_head_s1", told, high)

    def _stack(self, name: str, coords: Any, features: torch.Tensor) -> torch.Tensor:
        """A convolution and two residual blocks, each result after ReLU."""
        features = self._conv(f"{name}.0", coords, features, "relu")
        for block in ("2", "3"):
            inner = self._conv(f"{name}.{block}.conv0", coords, features, "relu")
            features = relu(self._conv(f"{name}.{block}.conv1", coords, inner, "none") + features)
        return features

    def _conv(self, name: str, coords: Any, features: torch.Tensor, activation: str) -> torch.Tensor:
        weight, options = self._tensors[f"{name}.kernel"], {"activation": activation, "target": self._target}
        out: torch.Tensor = self._convolve(coords, features, weight, weight_layout="taps", **options)
        return out

    def _head(self, name: str, features: torch.Tensor, symbols: torch.Tensor) -> float:
        """Bits of the symbols under the distributions that a head predicts."""
        hidden, out = ((self._tensors[f"{name}.{k}.weight"], self._tensors[f"{name}.{k}.bias"]) for k in (0, 2))
        logits = linear(relu(linear(features, *hidden)), *out)
        nats = log_softmax(logits.double(), dim=1).gather(1, symbols[:, None])
        return -float(nats.sum()) / math.log(2.0)


def file_bits(levels: Sequence[Level], coded: Sequence[LevelBits]) -> int:
    """Bits of the whole file: posQ, coordinates and codes of the coarsest level, two streams a coded level.

    Every stream is a whole number of bytes.
    """
    header = 2 + 4 + 13 * len(levels[0]) + 2 + 4 * 2 * len(coded)
    return 8 * (header + sum(math.ceil(bits / 8) for level in coded for bits in level.streams))


def _index(values: Any) -> torch.Tensor:
    return torch.from_numpy(values).long()
