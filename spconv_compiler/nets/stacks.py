"""Small stacks of submanifold convolutions, as data, and a runner that measures every layer.

None of them is trained: weights come from a seed. The shapes are those of networks in use, so that what is
measured is what such a network costs; features that come out are numbers, not detections.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler import env
from spconv_compiler.api import Map, subm_conv3d
from spconv_compiler.coordinates import check_coords, with_batch
from spconv_compiler.driver import KernelMap, load_conv
from spconv_compiler.errors import InputError
from spconv_compiler.options import DTYPES, CompileOptions
from spconv_compiler.targets import get_target

# Part of a kernel's taps that meet a voxel. Whole scans have 3 to 8 of 27; surfaces, which decide how large
# activations grow, have 8 and more.
_OCCUPANCY = 0.3


@dataclasses.dataclass(frozen=True)
class Layer:
    """One submanifold convolution; its C_in is the C_out of the layer before.

    Attributes:
        name: for tables.
        c_out: channels.
        kernel_size, dilation: (z, y, x).
        bias: whether a bias is added; activation: "none" or "relu".
    """

    name: str
    c_out: int
    kernel_size: tuple[int, int, int] = (3, 3, 3)
    dilation: tuple[int, int, int] = (1, 1, 1)
    bias: bool = True
    activation: str = "relu"


@dataclasses.dataclass(frozen=True)
class Net:
    """A stack of layers over one set of coordinates.

    Attributes:
        name: as `--net` takes it.
        description: what it is, and whose shapes it has.
        layers: from the input on; the first takes as many channels as the features have.
    """

    name: str
    description: str
    layers: tuple[Layer, ...]

    def channels(self, c_in: int) -> list[tuple[int, int]]:
        """(C_in, C_out) of every layer for features of c_in channels."""
        outs = [layer.c_out for layer in self.layers]
        return list(zip([c_in, *outs], outs, strict=False))


NETS = {
    net.name: net
    for net in (
        Net(
            "small",
            "four 3x3x3 layers, F→16→16→32→64",
            tuple(Layer(f"conv{index}", c_out) for index, c_out in enumerate((16, 16, 32, 64), start=1)),
        ),
        Net(
            "second-stage1",
            "full-resolution stage of SECOND's VoxelBackBone8x (OpenPCDet): conv_input, conv1",
            (Layer("conv_input", 16, bias=False), Layer("conv1", 16, bias=False)),
        ),
        Net(
            "centerpoint-stage1",
            "full-resolution stage of CenterPoint's VoxelResBackBone8x (OpenPCDet) without its residual sums",
            (
                Layer("conv_input", 16, bias=False),
                *(Layer(f"conv1.{block}.conv{half}", 16) for block in (0, 1) for half in (1, 2)),
            ),
        ),
        Net(
            "spunet-stem",
            "5x5x5 stem of SpUNet (Pointcept) and two 3x3x3 layers of 32 channels",
            (Layer("stem", 32, (5, 5, 5), bias=False), *(Layer(f"block.conv{k}", 32, bias=False) for k in (1, 2))),
        ),
    )
}
DEFAULT_NET = "small"


def get_net(name: str) -> Net:
    """The net of that name; InputError lists the known names."""
    if name not in NETS:
        raise InputError(f"unknown net {name!r}; accepted: {', '.join(NETS)}")
    return NETS[name]


@dataclasses.dataclass(frozen=True, eq=False)
class Parameters:
    """Weight [C_out, kz, ky, kx, C_in] in the features' dtype, and bias [C_out] f32 or None."""

    weight: Any
    bias: npt.NDArray[np.float32] | None


def make_parameters(net: Net, c_in: int, dtype: str = "f32", seed: int = 0) -> list[Parameters]:
    """Seeded parameters, the same for the same arguments; the f32 draw is rounded to dtype.

    Weights are normal with variance 2 / (C_in · expected neighbours), which keeps the size of activations
    from layer to layer where ReLU halves their power (He et al., "Delving Deep into Rectifiers", 2015).
    """
    made = []
    for index, (layer, (c, c_out)) in enumerate(zip(net.layers, net.channels(c_in), strict=True)):
        rng = np.random.default_rng((seed, index))
        fan_in = c * max(1.0, _OCCUPANCY * math.prod(layer.kernel_size))
        weight = rng.standard_normal((c_out, *layer.kernel_size, c), dtype=np.float32) * np.float32(
            math.sqrt(2.0 / fan_in)
        )
        bias = 0.1 * rng.standard_normal(c_out, dtype=np.float32) if layer.bias else None
        made.append(Parameters(to_dtype(weight, dtype), bias))
    return made


def standardize(features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """[N, F] with every column at mean 0 and variance 1; a constant column becomes 0.

    Raw columns are metres and intensities of up to 255: untrained weights have no scale for each of them.
    Columns' moments are taken over finite values; NaN and infinities stay where they are.
    """
    wide = np.where(np.isfinite(features), features, np.nan).astype(np.float64)
    count = np.maximum(np.isfinite(wide).sum(axis=0), 1)
    mean = np.nansum(wide, axis=0) / count
    spread = np.sqrt(np.nansum((wide - mean) ** 2, axis=0) / count)
    scaled: npt.NDArray[np.float32] = ((features - mean) / np.where(spread > 0.0, spread, 1.0)).astype(np.float32)
    return scaled


def to_dtype(values: npt.NDArray[np.float32], dtype: str) -> Any:
    """f32 values rounded to dtype: a numpy array, or for bf16, which numpy lacks, a torch tensor.

    Raises:
        InputError: dtype is unknown, or bf16 without torch installed.
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype is {dtype!r}; accepted: {', '.join(DTYPES)}")
    if dtype != "bf16":
        return values.astype(np.float16 if dtype == "f16" else np.float32, copy=False)
    try:
        import torch
    except ImportError as error:
        raise InputError(
            f"dtype bf16 needs torch ({error}); install spconv_compiler[torch], or use f32 or f16"
        ) from None
    return torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16)


@dataclasses.dataclass(frozen=True, eq=False)
class LayerRun:
    """One layer, run.

    Attributes:
        layer, c_in: what ran.
        rows, pairs: voxels, and (input, output) pairs over all taps.
        compile_ms: compiling the kernel, or finding it in a cache.
        map_ms: building the kernel map; 0 where an earlier layer has built it.
        ms: one convolution with the map and the packed weight cached; the median of the repeats.
        features, parameters, out: its input, weights and result.
    """

    layer: Layer
    c_in: int
    rows: int
    pairs: int
    compile_ms: float
    map_ms: float
    ms: float
    features: Any
    parameters: Parameters
    out: Any

    @property
    def pairs_per_row(self) -> float:
        return self.pairs / self.rows if self.rows else 0.0

    @property
    def flops(self) -> int:
        """Multiplications and additions of the pairs."""
        return 2 * self.pairs * self.c_in * self.layer.c_out

    @property
    def gflops(self) -> float:
        """1e9 operations a second."""
        return self.flops / self.ms / 1e6 if self.ms > 0.0 else 0.0


def run_net(
    net: Net,
    coords: npt.NDArray[np.int32],
    features: npt.NDArray[np.float32],
    *,
    dtype: str = "f32",
    target: str | None = None,
    seed: int = 0,
    repeats: int = 5,
    progress: Callable[[str], None] = lambda step: None,
) -> Iterator[LayerRun]:
    """Runs the layers one after another and yields each when it is done.

    Args:
        coords: [N, 4] (batch, z, y, x) or [N, 3], every voxel once.
        features: f32 [N, F]; rounded to dtype, in which all layers compute (sums in f32).
        target: one this host can run; SPCONV_TARGET by default.
        seed: of the parameters.
        repeats: timed runs of each layer after a first one, at least 1.
        progress: told what comes next, twice a layer: compiling, running.

    Raises:
        InputError, CompileError, LaunchError, ToolchainError: see subm_conv3d.
    """
    if repeats < 1:
        raise InputError(f"repeats is {repeats}; accepted: at least 1")
    name = get_target(env.TARGET.get() if target is None else target).name
    values, maps = to_dtype(features, dtype), dict[tuple[Any, ...], Map]()
    parameters = make_parameters(net, features.shape[1], dtype, seed)
    for layer, (c_in, c_out), given in zip(net.layers, net.channels(features.shape[1]), parameters, strict=True):
        size = "x".join(map(str, layer.kernel_size))
        progress(f"compiling {layer.name}: {size}, {c_in}→{c_out} {dtype}")
        options = _options(layer, c_in, dtype, name)
        start = time.perf_counter()
        load_conv(options)
        compiled = time.perf_counter()
        progress(f"running {layer.name}: {size}, {c_in}→{c_out} {dtype}")
        geometry = (layer.kernel_size, layer.dilation)
        mapped = 0.0
        if geometry not in maps:
            maps[geometry], mapped = _build_map(options, coords)
        out, seconds = _time_layer(layer, coords, values, given, name, repeats)
        yield LayerRun(
            layer,
            c_in,
            coords.shape[0],
            maps[geometry].pairs,
            (compiled - start) * 1e3,
            mapped * 1e3,
            seconds * 1e3,
            values,
            given,
            out,
        )
        values = out


def _options(layer: Layer, c_in: int, dtype: str, target: str) -> CompileOptions:
    return CompileOptions(
        kernel_size=layer.kernel_size,
        c_in=c_in,
        c_out=layer.c_out,
        dtype=dtype,
        out_dtype=dtype,
        dilation=layer.dilation,
        bias=layer.bias,
        activation=layer.activation,
        target=target,
        verify=env.VERIFY.get(),
    )


def _build_map(options: CompileOptions, coords: npt.NDArray[np.int32]) -> tuple[Map, float]:
    """The map of the coordinates, for its number of pairs, and the seconds it took."""
    points = with_batch(check_coords(coords))
    if points.shape[0] == 0:
        return KernelMap(0, 0, {}, {}), 0.0
    kernel = load_conv(options)
    box = kernel.box(points)
    if kernel.key_width(box) == 64:
        kernel = load_conv(dataclasses.replace(options, key_width=64))
    start = time.perf_counter()
    built = kernel.build_map(points, box)
    return built, time.perf_counter() - start


def _time_layer(
    layer: Layer, coords: npt.NDArray[np.int32], values: Any, given: Parameters, target: str, repeats: int
) -> tuple[Any, float]:
    """(result, median seconds of the runs after the first)."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        out = subm_conv3d(
            coords,
            values,
            given.weight,
            given.bias,
            dilation=layer.dilation,
            activation=layer.activation,
            target=target,
        )
        times.append(time.perf_counter() - start)
    return out, statistics.median(times[1:])
