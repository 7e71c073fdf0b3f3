"""`subm_conv3d`: raw voxels in, features out; compiles, builds the map and packs the weights as needed."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from spconv_compiler import compiler, env, sparse_conv
from spconv_compiler.arrays import (
    Array,
    as_array,
    empty_like_kind,
    gpu_target_name,
    is_tensor,
    torch_module,
)
from spconv_compiler.coordinates import Box, check_box, check_coords, with_batch
from spconv_compiler.driver import ConvKernel, KernelMap, load_conv
from spconv_compiler.epilogue import DEFAULT_SLOPE
from spconv_compiler.errors import InputError
from spconv_compiler.layouts import channels_of, kernel_of
from spconv_compiler.map_request import SIZES
from spconv_compiler.operands import check_bias, check_residual
from spconv_compiler.options import DTYPES, CompileOptions, triple, whole
from spconv_compiler.packed_weights import packed_weight
from spconv_compiler.tensor_cache import TensorCache

if TYPE_CHECKING:
    from spconv_compiler.driver_gpu import DeviceMap, GpuConvKernel

# How many tensors' maps and packed weights are kept while the tensors live.
_KEPT_COORDS = 64
_KEPT_WEIGHTS = 1024

Kernel: TypeAlias = "ConvKernel | GpuConvKernel"
# Of the kernel's own kind: KernelMap for a ConvKernel, DeviceMap for a GpuConvKernel.
Map: TypeAlias = "KernelMap | DeviceMap"
_Limits: TypeAlias = "tuple[tuple[int, int, int] | None, int | None]"


@dataclasses.dataclass
class _CoordsEntry:
    """What is known of one coordinate tensor.

    Attributes:
        box: of the coordinates.
        maps: built so far, by all that they depend on.
        ready: for a kernel with 32-bit keys, the kernel to run and its map.
    """

    box: Box
    maps: dict[tuple[Any, ...], Map] = dataclasses.field(default_factory=dict)
    ready: dict[Kernel, tuple[Kernel, Any]] = dataclasses.field(default_factory=dict)


_coords_cache: TensorCache[_CoordsEntry] = TensorCache(_KEPT_COORDS)
_weight_cache: TensorCache[Any] = TensorCache(_KEPT_WEIGHTS)


def subm_conv3d(
    coords: Any,
    features: Any,
    weight: Any,
    bias: Any = None,
    *,
    dilation: int | tuple[int, int, int] = 1,
    residual: Any = None,
    activation: str = "none",
    negative_slope: float = DEFAULT_SLOPE,
    spatial_shape: tuple[int, int, int] | None = None,
    batch_size: int | None = None,
    weight_layout: str = "native",
    kernel_size: int | tuple[int, int, int] | None = None,
    out_dtype: str | None = None,
    target: str | None = None,
    schedule: str = "auto",
) -> Any:
    """Submanifold sparse convolution: out[i] = act(bias + Σ_tap W[tap]·features[j] + residual[i]), j the neighbours.

    Coordinates of j: coord[i] + dilation·(tap − K//2), taps in (z, y, x) order. Sums are taken in f32.

    Args:
        coords: int32 [N, 3] (z, y, x) or [N, 4] (batch, z, y, x), any order, every voxel once; int64 is accepted
            if it fits. Negative values are fine unless spatial_shape is given.
        features: [N, C_in] f32, bf16 or f16; torch tensors or numpy arrays. Tensors may lie on a GPU, all on one; work
            is then queued on torch's current stream. Changes of such coords and weights are noticed by torch's version
            counter alone.
        weight: same dtype as features, in `weight_layout`: "native" [C_out, kz, ky, kx, C_in],
            "torch" [C_out, C_in, kz, ky, kx] or "taps" [kz·ky·kx, C_in, C_out]; kernel odd along every axis.
        bias: [C_out], added in f32.
        dilation, kernel_size: one number or (z, y, x); kernel_size is needed for "taps" unless a cube.
        residual: [N, C_out] of out_dtype, added in f32 before the activation.
        activation: "none", "relu", "leaky_relu", "gelu" (the exact one) or "silu", in f32, before the one rounding;
            negative_slope is that of leaky_relu.
        spatial_shape: (z, y, x) that coords must lie in; derived from coords if absent.
        batch_size: number of batches that coords must lie in. With both, coords on a GPU are not looked at by the host:
            nothing waits, and a row that lies outside has no neighbours, not even itself.
        out_dtype: "f32", "bf16" or "f16"; that of features by default.
        target, schedule: as in compile_conv; the target must be one this host can run.

    Returns:
        [N, C_out], rows in the order of coords; a tensor if features is one, else an array.

    Raises:
        InputError: an argument is not accepted; nothing is changed.
        CompileError, LaunchError, ToolchainError: see compile_conv and driver.load_conv.
    """
    _refuse_transforms(features, weight, bias, residual)
    points, inputs = check_coords(coords, on_gpu=True), as_array(features, "features", on_gpu=True)
    weights = as_array(weight, "weight", on_gpu=True)
    _check_operands(points, inputs, weights)
    limits = check_limits(spatial_shape, batch_size)
    kernel = find_kernel(
        Request(
            weights.shape,
            weight_layout,
            None if kernel_size is None else triple(kernel_size, "kernel_size"),
            inputs.shape[1],
            inputs.dtype,
            out_dtype,
            triple(dilation, "dilation"),
            bias is not None,
            residual is not None,
            activation,
            negative_slope,
            target_of(target, points),
            schedule,
        )
    )
    shape, out_type = (points.shape[0], kernel.options.c_out), kernel.options.out_dtype
    biases = None if bias is None else check_bias(bias, shape[1])
    added = None if residual is None else check_residual(residual, shape, out_type)
    operands = (coords, points, features, inputs, weight, weights)
    out = convolve(kernel, limits, *operands, layout=weight_layout, biases=biases, added=added)
    return _guard_gradient(out, features, weight, bias, residual)


def convolve(
    kernel: Kernel,
    limits: _Limits | None,
    coords: Any,
    points: Array,
    features: Any,
    inputs: Array,
    weight: Any,
    weights: Array,
    *,
    layout: str = "native",
    biases: Array | None = None,
    added: Array | None = None,
) -> Any:
    """The submanifold convolution of operands that are checked, each as it was given and as an array.

    Raises:
        InputError: operands lie in several places, or coords are out of range or repeat.
        LaunchError: see subm_conv3d.
    """
    rows, options = points.shape[0], kernel.options
    out = empty_like_kind(features, (rows, options.c_out), options.out_dtype)
    kernel = kernel.on(_place(inputs, points, weights, biases, added))
    if rows > 0:
        kernel, map_ = _map(kernel, coords, points, limits)
        signature = kernel.pack_signature
        packed = packed_weight(_weight_cache, kernel, signature, map_, weight, weights, layout, options.kernel_size)
        kernel.run(map_, packed, inputs, out.pointer, biases, added)
    return out.source


def cached_map(
    coords: Any,
    kernel_size: int | tuple[int, int, int],
    *,
    dilation: int | tuple[int, int, int] = 1,
    spatial_shape: tuple[int, int, int] | None = None,
    batch_size: int | None = None,
    target: str | None = None,
) -> Map | None:
    """The map that subm_conv3d uses for these coordinates, built if it is not there yet; None if there are no rows.

    Args, Raises: as for subm_conv3d. Tensors on a GPU are not accepted.
    """
    points = check_coords(coords)
    limits = check_limits(spatial_shape, batch_size)
    # Maps do not depend on channels: the narrowest convolution has the same kernels for them.
    options = compiler.conv_options(triple(kernel_size, "kernel_size"), 1, 1, dilation=dilation, target=target)
    if points.shape[0] == 0:
        return None
    built: Map = _map(_kernel(options), coords, points, limits)[1]
    return built


def target_of(target: str | None, points: Array) -> str:
    """The name of the target of a call: what is asked for, or for "auto" what runs where the coordinates lie."""
    name = env.TARGET.get() if target is None else target
    return gpu_target_name() if name == "auto" and points.device is not None else name


def clear_caches() -> None:
    """Forgets kernels, maps and packed weights of this process; the disk cache keeps its entries.

    A kernel that is loaded is not compiled again: after a change of SPCONV_DUMP_DIR or SPCONV_PRINT_AFTER, this is
    what makes it dump or print.
    """
    from spconv_compiler.runtime import calls, memory_pool

    _coords_cache.clear()
    _weight_cache.clear()
    _kernel_for.cache_clear()
    _kernel.cache_clear()
    sparse_conv.clear()
    compiler.clear_memory()
    calls.forget_captured()
    memory_pool.clear()
    for name in ("maps", "calls"):
        module = sys.modules.get(f"spconv_compiler.pytorch.{name}")
        if module is not None:
            module.clear()


@functools.lru_cache(maxsize=256)
def _kernel(options: CompileOptions) -> Kernel:
    return load_conv(options)


class Request(NamedTuple):
    """What a call asks of the compiler; equal requests are served by one kernel."""

    weight_shape: tuple[int, ...]
    layout: str
    kernel_size: tuple[int, int, int] | None
    channels: int
    dtype: str
    out_dtype: str | None
    dilation: tuple[int, int, int]
    bias: bool
    residual: bool
    activation: str
    negative_slope: float
    target: str
    schedule: str


def find_kernel(request: Request) -> Kernel:
    try:
        return _kernel_for(request)
    except TypeError:
        for name, value in request._asdict().items():
            if not isinstance(value, Hashable):
                raise InputError(f"{name} is {value!r}; accepted: a name, as str") from None
        raise


@functools.lru_cache(maxsize=512)
def _kernel_for(request: Request) -> Kernel:
    """The kernel, with 32-bit keys."""
    kernel_size = kernel_of(request.weight_shape, request.layout, request.kernel_size)
    c_in, c_out = channels_of(request.weight_shape, request.layout)
    if request.channels != c_in:
        raise InputError(f"features have {request.channels} channels but the weight takes {c_in}")
    options = compiler.conv_options(
        kernel_size,
        c_in,
        c_out,
        dtype=request.dtype,
        out_dtype=request.out_dtype,
        dilation=request.dilation,
        bias=request.bias,
        activation=request.activation,
        negative_slope=request.negative_slope,
        residual=request.residual,
        target=request.target,
        schedule=request.schedule,
    )
    return _kernel(options)


def _check_operands(points: Array, inputs: Array, weights: Array) -> None:
    if len(inputs.shape) != 2:
        raise InputError(f"features have shape {list(inputs.shape)}; accepted: [N, C_in]")
    if inputs.shape[0] != points.shape[0]:
        raise InputError(
            f"features have {inputs.shape[0]} rows but coords have {points.shape[0]}; accepted: as many of each"
        )
    if inputs.dtype not in DTYPES:
        raise InputError(f"features have dtype {inputs.dtype}; accepted: float32, bfloat16, float16")
    if weights.dtype != inputs.dtype:
        raise InputError(f"features are {inputs.dtype} but the weight is {weights.dtype}; accepted: equal dtypes")


def _place(features: Array, *others: Array | None) -> int | None:
    """Where all arrays lie: the number of a GPU, or None for host memory; others: coords, weight, bias, residual."""
    first = features.device
    for place, array in enumerate(others):
        if array is not None and array.device != first:
            name = ("coords", "weight", "bias", "residual")[place]
            places = ["the cpu" if device is None else f"GPU {device}" for device in (first, array.device)]
            raise InputError(f"features are on {places[0]} but {name} is on {places[1]}; accepted: one place for all")
    return first


def check_limits(spatial_shape: Any, batch_size: Any) -> _Limits | None:
    """(spatial_shape, batch_size) if either is given."""
    if spatial_shape is None and batch_size is None:
        return None
    shape = None if spatial_shape is None else triple(spatial_shape, "spatial_shape")
    if shape is not None and min(shape) < 0:
        raise InputError(f"spatial_shape is {shape}; accepted: {SIZES}")
    batches = None if batch_size is None else whole(batch_size, "batch_size")
    if batches is not None and batches < 1:
        raise InputError(f"batch_size is {batches}; accepted: at least 1")
    return shape, batches


def _map(kernel: Kernel, coords: Any, points: Array, limits: _Limits | None) -> tuple[Kernel, Any]:
    """The kernel with the key width that the coordinates need, and the map."""

    def built() -> _CoordsEntry:
        # The whole map, so that nothing is kept of coordinates that turn out to be bad.
        wide = with_batch(points)
        given = _given_box(points, limits)
        entry = _CoordsEntry(given or kernel.box(wide))
        if given is None:
            check_box(entry.box, wide, *(limits or (None, None)))
        _map_in(entry, kernel, wide)
        return entry

    entry = _coords_cache.get(coords, points, type(kernel), kernel.checksum, built)
    if limits is not None:
        check_box(entry.box, points, *limits)
    return entry.ready.get(kernel) or _map_in(entry, kernel, points)


def _given_box(points: Array, limits: _Limits | None) -> Box | None:
    """For coordinates on a GPU the box that spatial_shape and batch_size say: to read one would wait."""
    if points.device is None or limits is None:
        return None
    shape, batches = limits
    if shape is None or batches is None or min(shape) == 0:
        return None
    return Box((0, 0, 0, 0), (batches - 1, shape[0] - 1, shape[1] - 1, shape[2] - 1))


def _map_in(entry: _CoordsEntry, kernel: Kernel, points: Array) -> tuple[Kernel, Any]:
    """As `_map`, for coordinates that are known."""
    geometry = (kernel.options.kernel_size, kernel.options.dilation)
    wide = kernel
    if kernel.key_width(entry.box) == 64:
        wide = _kernel(dataclasses.replace(kernel.options, key_width=64)).on(points.device)
    signature = (wide.map_signature, wide.options.target, geometry)
    if signature not in entry.maps:
        entry.maps[signature] = wide.build_map(with_batch(points), entry.box)
    entry.ready[kernel] = wide, entry.maps[signature]
    return entry.ready[kernel]


def _refuse_transforms(*inputs: Any) -> None:
    """A trace would record the allocation of the result and not the work that fills it; a tangent would be lost."""
    torch = torch_module()
    if torch is None:
        return
    if torch.jit.is_tracing():
        raise InputError("subm_conv3d is called under torch.jit.trace, which cannot record it; accepted: eager calls")
    forward = torch.autograd.forward_ad
    # The level is -1 outside of forward-mode differentiation: ordinary calls pay nothing.
    if getattr(forward, "_current_level", 0) >= 0 and any(
        is_tensor(value) and forward.unpack_dual(value).tangent is not None for value in inputs
    ):
        raise InputError("an input has a tangent of forward-mode differentiation; accepted: plain tensors")


def _guard_gradient(out: Any, *inputs: Any) -> Any:
    """Marks the result so that asking for a gradient raises instead of silently giving none."""
    for value in inputs:
        # Only tensors have the attribute.
        if getattr(value, "requires_grad", False):
            break
    else:
        return out
    torch = torch_module()
    if torch is None or not torch.is_grad_enabled() or not is_tensor(out):
        return out
    from spconv_compiler.autograd import without_gradient

    return without_gradient(out, inputs)
