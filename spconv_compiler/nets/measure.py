"""Runs a torch network and says of every convolution in it: how many voxels and pairs, how long it took."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from spconv_compiler.geometry import Triple


@dataclass(frozen=True)
class ConvRun:
    """One convolution, run.

    Attributes:
        name: of the module.
        kind: "subm", "down" (strided) or "up" (inverse).
        kernel: (z, y, x).
        c_in, c_out: channels; rows_in, rows: voxels.
        pairs: of input and output voxels, over all taps.
        ms: with the kernel map kept; the median of the repeats.
    """

    name: str
    kind: str
    kernel: Triple
    c_in: int
    c_out: int
    rows_in: int
    rows: int
    pairs: int
    ms: float

    @property
    def flops(self) -> int:
        """Multiplications and additions of the pairs."""
        return 2 * self.pairs * self.c_in * self.c_out


@dataclass(frozen=True, eq=False)
class ModelRun:
    """A network, run.

    Attributes:
        out: its result.
        convs: in the order in which they ran.
        first_ms: of the first run: kernels are compiled or loaded.
        fresh_ms: with kernels ready and every map built; kept_ms: with the maps kept. Medians.
    """

    out: torch.Tensor
    convs: list[ConvRun]
    first_ms: float
    fresh_ms: float
    kept_ms: float


@dataclass(eq=False)
class _Watch:
    """One convolution's clock and what passed through it last."""

    name: str
    module: nn.Module
    start: float = 0.0
    seconds: list[float] = field(default_factory=list)
    inputs: Any = None
    outputs: Any = None

    def before(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        self.inputs, self.start = arguments[0], time.perf_counter()

    def after(self, module: nn.Module, arguments: tuple[Any, ...], out: Any) -> None:
        self.seconds.append(time.perf_counter() - self.start)
        self.outputs = out


def convolutions(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Its sparse convolutions by name, whoever's layers they are: they have a weight of five axes."""
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, torch.Tensor) and weight.dim() == 5:
            yield name, module


@torch.no_grad()
def run_model(model: nn.Module, features: torch.Tensor, indices: torch.Tensor, *, repeats: int = 5) -> ModelRun:
    """Runs a network once to make it ready, and then `repeats` times with new maps and with kept ones.

    Args:
        model: takes (features, indices); nets.registry makes such.
        features: [N, F], of the parameters' dtype.
        indices: int32 [N, 4] (batch, z, y, x), every voxel once.
    """
    start = time.perf_counter()
    out = model(features, indices)
    first = time.perf_counter() - start
    fresh, kept = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        # Maps belong to the tensor of coordinates: another tensor has none.
        model(features, indices.clone())
        fresh.append(time.perf_counter() - start)
        start = time.perf_counter()
        model(features, indices)
        kept.append(time.perf_counter() - start)
    watches = _watched(model, features, indices, repeats)
    counted: dict[Any, int] = {}
    convs = [_report(watch, counted) for watch in watches]
    return ModelRun(out, convs, first * 1e3, statistics.median(fresh) * 1e3, statistics.median(kept) * 1e3)


def _watched(model: nn.Module, features: torch.Tensor, indices: torch.Tensor, repeats: int) -> list[_Watch]:
    """The convolutions in the order in which they ran, timed over runs of their own."""
    watches = [_Watch(name, module) for name, module in convolutions(model)]
    hooks: list[Any] = [watch.module.register_forward_pre_hook(watch.before) for watch in watches]
    hooks += [watch.module.register_forward_hook(watch.after) for watch in watches]
    try:
        for _ in range(repeats):
            model(features, indices)
    finally:
        for hook in hooks:
            hook.remove()
    return sorted(watches, key=lambda watch: watch.start)


def _report(watch: _Watch, counted: dict[Any, int]) -> ConvRun:
    module, inputs, outputs = watch.module, watch.inputs, watch.outputs
    weight: Any = module.weight
    kind = "subm" if module.subm else "up" if module.inverse else "down"
    kernel = (int(weight.shape[1]), int(weight.shape[2]), int(weight.shape[3]))
    return ConvRun(
        watch.name,
        kind,
        kernel,
        int(weight.shape[4]),
        int(weight.shape[0]),
        inputs.features.shape[0],
        outputs.features.shape[0],
        _pairs(kind, kernel, module, inputs.indices, outputs.indices, counted),
        statistics.median(watch.seconds) * 1e3,
    )


def _pairs(kind: str, kernel: Triple, module: Any, inputs: Any, outputs: Any, counted: dict[Any, int]) -> int:
    """How many pairs there are; counted once for each pair of coordinate sets."""
    fine, coarse = (outputs, inputs) if kind == "up" else (inputs, outputs)
    sizes = (fine.shape[0], coarse.shape[0], kernel)
    # The forward convolution over the same map has run before its inverse, which does not know its stride.
    if sizes not in counted:
        stride = (1, 1, 1) if kind == "subm" else tuple(module.stride)
        padding = tuple(size // 2 for size in kernel) if kind == "subm" else tuple(module.padding)
        counted[sizes] = count_pairs(fine.numpy(), coarse.numpy(), kernel, stride, padding)
    return counted[sizes]


def count_pairs(
    fine: npt.NDArray[np.int32],
    coarse: npt.NDArray[np.int32],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> int:
    """Pairs of a convolution from fine voxels to coarse ones, int32 [., 4]: fine = coarse·stride - padding + tap."""
    base = coarse.astype(np.int64)
    base[:, 1:] = base[:, 1:] * np.array(stride) - np.array(padding)
    # One number a voxel, with room for every tap.
    low = np.minimum(fine.min(0, initial=0), base.min(0, initial=0))
    spans = np.maximum(fine.max(0, initial=0), base.max(0, initial=0)) + np.array([0, *kernel]) - low + 1
    steps = np.array([spans[1] * spans[2] * spans[3], spans[2] * spans[3], spans[3], 1])
    known, first = np.sort((fine - low) @ steps), (base - low) @ steps
    return sum(int(np.isin(first + np.array(tap) @ steps[1:], known).sum()) for tap in np.ndindex(*kernel))


def relative_l2(out: torch.Tensor, other: torch.Tensor) -> float:
    """|out - other| over |other|, both as vectors; infinite for a NaN or another shape."""
    if out.shape != other.shape:
        return math.inf
    apart, scale = float((out.float() - other.float()).norm()), float(other.float().norm())
    return math.inf if math.isnan(apart) else apart / (scale or 1.0)
