"""`subm_conv3d`: raw voxels in, features out; compiles, builds the map and packs the weights as needed."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from spconv_compiler import compiler, env
from spconv_compiler.arrays import Array, as_array, dtype_name, empty_like_kind, is_tensor, torch_module
from spconv_compiler.coordinates import Box, check_box, check_coords, with_batch
from spconv_compiler.driver import ConvKernel, KernelMap, load_conv
from spconv_compiler.errors import InputError
from spconv_compiler.layouts import channels_of, kernel_of, to_native
from spconv_compiler.options import DTYPES, CompileOptions, triple
from spconv_compiler.targets import get_target
from spconv_compiler.tensor_cache import TensorCache

_KEY_32 = 2**31


@dataclasses.dataclass
class _CoordsEntry:
    """What is known of one coordinate tensor: its box and the maps built so far."""

    box: Box
    maps: dict[tuple[Any, ...], KernelMap] = dataclasses.field(default_factory=dict)


_coords_cache: TensorCache[_CoordsEntry] = TensorCache()
_weight_cache: TensorCache[Any] = TensorCache()


def subm_conv3d(
    coords: Any,
    features: Any,
    weight: Any,
    bias: Any = None,
    *,
    dilation: int | tuple[int, int, int] = 1,
    activation: str = "none",
    spatial_shape: tuple[int, int, int] | None = None,
    batch_size: int | None = None,
    weight_layout: str = "native",
    kernel_size: int | tuple[int, int, int] | None = None,
    out_dtype: str | None = None,
    target: str | None = None,
    schedule: str = "auto",
) -> Any:
    """Submanifold sparse convolution: out[i] = act(bias + Σ_tap W[tap]·features[j]) over the present neighbours j.

    Coordinates of j: coord[i] + dilation·(tap − K//2), taps in (z, y, x) order. Sums are taken in f32.

    Args:
        coords: int32 [N, 3] (z, y, x) or [N, 4] (batch, z, y, x), any order, every voxel once; int64 is accepted
            if it fits. Negative values are fine unless spatial_shape is given.
        features: [N, C_in] f32, bf16 or f16; torch tensors on the cpu or numpy arrays.
        weight: same dtype as features, in `weight_layout`: "native" [C_out, kz, ky, kx, C_in],
            "torch" [C_out, C_in, kz, ky, kx] or "taps" [kz·ky·kx, C_in, C_out]; kernel odd along every axis.
        bias: [C_out], added in f32.
        dilation, kernel_size: one number or (z, y, x); kernel_size is needed for "taps" unless a cube.
        activation: "none" or "relu".
        spatial_shape: (z, y, x) that coords must lie in; derived from coords if absent.
        batch_size: number of batches that coords must lie in.
        out_dtype: "f32", "bf16" or "f16"; that of features by default.
        target, schedule: as in compile_conv; the target must be one this host can run.

    Returns:
        [N, C_out], rows in the order of coords; a tensor if features is one, else an array.

    Raises:
        InputError: an argument is not accepted; nothing is changed.
        CompileError, LaunchError, ToolchainError: see compile_conv and driver.load_conv.
    """
    points = check_coords(coords)
    inputs = as_array(features, "features")
    weights = as_array(weight, "weight")
    options = _options(
        points, inputs, weights, bias, dilation, activation, weight_layout, kernel_size, out_dtype, target, schedule
    )
    biases = None if bias is None else _check_bias(bias, options.c_out)
    out = empty_like_kind(features, (points.shape[0], options.c_out), options.out_dtype)
    shape = _check_shape(spatial_shape)
    if points.shape[0] > 0:
        kernel, map_ = _map(coords, points, options, shape, batch_size)
        layout = (weight_layout, options.kernel_size)
        packed = _weight_cache.get(
            weight, weights, (kernel.pack_signature, layout), kernel.checksum,
            lambda: kernel.pack(as_array(to_native(weight, *layout), "weight")),
        )  # fmt: skip
        kernel.run(map_, packed, inputs, as_array(out, "out").pointer, biases)
    return _guard_gradient(out, features, weight, bias)


def clear_caches() -> None:
    """Forgets kernels, maps and packed weights of this process; the disk cache keeps its entries."""
    _coords_cache.clear()
    _weight_cache.clear()
    _kernel.cache_clear()
    compiler.clear_memory()


@functools.lru_cache(maxsize=256)
def _kernel(options: CompileOptions) -> ConvKernel:
    return load_conv(options)


def _options(
    points: Array,
    inputs: Array,
    weights: Array,
    bias: Any,
    dilation: int | tuple[int, int, int],
    activation: str,
    layout: str,
    kernel_size: int | tuple[int, int, int] | None,
    out_dtype: str | None,
    target: str | None,
    schedule: str,
) -> CompileOptions:
    """The convolution that the arguments ask for, with 32-bit keys; checks that they fit together."""
    wanted = None if kernel_size is None else triple(kernel_size, "kernel_size")
    kernel = kernel_of(weights.shape, layout, wanted)
    c_in, c_out = channels_of(weights.shape, layout)
    if len(inputs.shape) != 2:
        raise InputError(f"features have shape {list(inputs.shape)}; accepted: [N, C_in]")
    if inputs.shape[0] != points.shape[0]:
        raise InputError(f"features have {inputs.shape[0]} rows but coords have {points.shape[0]}")
    if inputs.shape[1] != c_in:
        raise InputError(f"features have {inputs.shape[1]} channels but the weight takes {c_in}")
    if inputs.dtype not in DTYPES:
        raise InputError(f"features have dtype {inputs.dtype}; accepted: float32, bfloat16, float16")
    if weights.dtype != inputs.dtype:
        raise InputError(f"features are {inputs.dtype} but the weight is {weights.dtype}; accepted: equal dtypes")
    resolved = get_target(env.TARGET.get() if target is None else target)
    return CompileOptions(
        kernel_size=kernel,
        c_in=c_in,
        c_out=c_out,
        dtype=inputs.dtype,
        out_dtype=out_dtype or inputs.dtype,
        dilation=triple(dilation, "dilation"),
        bias=bias is not None,
        activation=activation,
        target=resolved.name,
        schedule=schedule,
        verify=env.VERIFY.get(),
        dump_dir=str(env.DUMP_DIR.get() or ""),
        print_after=env.PRINT_AFTER.get(),
    )


def _check_bias(bias: Any, c_out: int) -> Array:
    if tuple(getattr(bias, "shape", ())) != (c_out,):
        raise InputError(f"bias has shape {list(getattr(bias, 'shape', ()))}; accepted: [{c_out}]")
    array = as_array(bias, "bias")
    if array.dtype not in DTYPES:
        raise InputError(f"bias has dtype {dtype_name(bias)}; accepted: float32, bfloat16, float16")
    if array.dtype == "f32":
        return array
    source = array.source
    return as_array(source.float() if is_tensor(source) else source.astype("float32"), "bias")


def _check_shape(spatial_shape: Any) -> tuple[int, int, int] | None:
    if spatial_shape is None:
        return None
    shape = triple(spatial_shape, "spatial_shape")
    if min(shape) < 1:
        raise InputError(f"spatial_shape is {shape}; accepted: three sizes (z, y, x) of at least 1")
    return shape


def _map(
    coords: Any,
    points: Array,
    options: CompileOptions,
    spatial_shape: tuple[int, int, int] | None,
    batch_size: int | None,
) -> tuple[ConvKernel, KernelMap]:
    """The kernel with the key width that the coordinates need, and the map."""
    kernel = _kernel(options)
    entry = _coords_cache.get(
        coords, points, None, kernel.checksum, lambda: _CoordsEntry(kernel.box(with_batch(points)))
    )
    check_box(entry.box, with_batch(points) if spatial_shape or batch_size else points, spatial_shape, batch_size)
    if entry.box.symbols(options.kernel_size, options.dilation)["cells"] >= _KEY_32:
        kernel = _kernel(dataclasses.replace(options, key_width=64))
    signature = (kernel.map_signature, kernel.options.target, options.kernel_size, options.dilation)
    if signature not in entry.maps:
        entry.maps[signature] = kernel.build_map(with_batch(points), entry.box)
    return kernel, entry.maps[signature]


def _guard_gradient(out: Any, *inputs: Any) -> Any:
    """Marks the result so that asking for a gradient raises instead of silently giving none."""
    torch = torch_module()
    if torch is None or not torch.is_grad_enabled() or not is_tensor(out):
        return out
    if not any(is_tensor(value) and value.requires_grad for value in inputs):
        return out
    from spconv_compiler.autograd import without_gradient

    return without_gradient(out, inputs)
