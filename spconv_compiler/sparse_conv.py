"""Convolutions between two coordinate sets: strided, transposed, over a given map, inverse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from spconv_compiler.arrays import as_array, empty_like_kind
from spconv_compiler.coordinates import check_coords
from spconv_compiler.epilogue import DEFAULT_SLOPE, Epilogue, epilogue_of
from spconv_compiler.errors import InputError
from spconv_compiler.forward_only import forward_only
from spconv_compiler.geometry import Triple
from spconv_compiler.layouts import channels_of, kernel_of
from spconv_compiler.map_request import MapRequest, forget_requests, map_request, target_for
from spconv_compiler.operands import check_bias, check_features, check_place, check_residual
from spconv_compiler.options import triple
from spconv_compiler.packed_weights import packed_weight
from spconv_compiler.sparse_map import MapState, SparseMap, make_map
from spconv_compiler.tensor_cache import TensorCache

# How many coordinate tensors' maps and how many packed weights are kept while the tensors live.
_KEPT_MAPS = 128
_KEPT_WEIGHTS = 1024

# In lists, so that a map whose outputs were written to can be made again.
_map_cache: TensorCache[list[MapState]] = TensorCache(_KEPT_MAPS)
_weight_cache: TensorCache[Any] = TensorCache(_KEPT_WEIGHTS)


def sparse_conv3d(
    coords: Any,
    features: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: int | Triple = 1,
    padding: int | Triple = 0,
    dilation: int | Triple = 1,
    residual: Any = None,
    activation: str = "none",
    negative_slope: float = DEFAULT_SLOPE,
    spatial_shape: Triple | None = None,
    batch_size: int | None = None,
    out_coords: Any = None,
    weight_layout: str = "native",
    kernel_size: int | Triple | None = None,
    out_dtype: str | None = None,
    target: str | None = None,
    schedule: str = "auto",
) -> tuple[Any, Any]:
    """Sparse convolution: out[o] = act(bias + Σ_tap W[tap]·features[x] + residual[o]).

    Through tap, output o reads x = o·stride − padding + tap·dilation. As spconv's SparseConv3d, and torch's conv3d read
    where any input reaches. Sums are taken in f32.

    Args:
        coords: int32 [N, 3] (z, y, x) or [N, 4] (batch, z, y, x), any order, every voxel once; int64 is accepted if it
            fits. Negative values are fine unless spatial_shape is given.
        features: [N, C_in] f32, bf16 or f16; torch tensors on the cpu or numpy arrays.
        weight: same dtype as features, in `weight_layout` as for subm_conv3d; kernels may be even.
        bias: [C_out], added in f32, at outputs only.
        stride, padding, dilation, kernel_size: one number or (z, y, x); kernel_size is needed for layout "taps" unless
            a cube.
        residual: [M, C_out] of out_dtype, added in f32 before the activation.
        activation, negative_slope: as for subm_conv3d.
        spatial_shape, batch_size, out_coords: see build_map. With out_coords the result has exactly these rows.
        out_dtype: "f32", "bf16" or "f16"; that of features by default.
        target, schedule: as in compile_conv; the target must be one this host can run.

    Returns:
        (out_coords, out_features [M, C_out]): the kind of coords and of features. Rows ascend in (batch, z, y, x); M
        may be 0. The map is kept while coords live unchanged; do not write to out_coords.

    Raises:
        InputError: an argument is not accepted; nothing is changed.
        CompileError, LaunchError, ToolchainError: see compile_conv and driver.load_conv.
    """
    return _between("sparse_conv3d", False, locals())


def sparse_conv_transpose3d(
    coords: Any,
    features: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: int | Triple = 1,
    padding: int | Triple = 0,
    output_padding: int | Triple = 0,
    dilation: int | Triple = 1,
    residual: Any = None,
    activation: str = "none",
    negative_slope: float = DEFAULT_SLOPE,
    spatial_shape: Triple | None = None,
    batch_size: int | None = None,
    out_coords: Any = None,
    weight_layout: str = "native",
    kernel_size: int | Triple | None = None,
    out_dtype: str | None = None,
    target: str | None = None,
    schedule: str = "auto",
) -> tuple[Any, Any]:
    """Transposed convolution: out[o] = act(bias + Σ_tap W[tap]·features[x] + residual[o]).

    Through tap, input x is read by o = x·stride − padding + tap·dilation. As spconv's SparseConvTranspose3d; for
    dilation 1 as torch's conv_transpose3d, read where any input reaches. An output shape follows spconv: dilation does
    not count in it, and what lies beyond is not made.

    Args, Returns, Raises: as for sparse_conv3d; output_padding as for build_map. weight is native
    [C_out, kz, ky, kx, C_in] here too (torch's transposed layout is weight.permute(4, 0, 1, 2, 3)).
    """
    return _between("sparse_conv_transpose3d", True, locals())


def mapped_conv3d(
    features: Any,
    weight: Any,
    bias: Any = None,
    *,
    map: SparseMap,
    residual: Any = None,
    activation: str = "none",
    negative_slope: float = DEFAULT_SLOPE,
    weight_layout: str = "native",
    kernel_size: int | Triple | None = None,
    out_dtype: str | None = None,
    schedule: str = "auto",
) -> Any:
    """The convolution that `map` was built for.

    features are [rows of map.in_coords, C_in]; the result is [rows of map.out_coords, C_out].

    Args, Raises: as for sparse_conv3d; the weight's kernel size is that of the map.
    """
    return _convolve("mapped_conv3d", _check_map(map), False, _operands(locals()))


def sparse_inverse_conv3d(
    features: Any,
    weight: Any,
    bias: Any = None,
    *,
    map: SparseMap,
    residual: Any = None,
    activation: str = "none",
    negative_slope: float = DEFAULT_SLOPE,
    weight_layout: str = "native",
    kernel_size: int | Triple | None = None,
    out_dtype: str | None = None,
    schedule: str = "auto",
) -> Any:
    """Inverse convolution: runs over the pairs of a forward map with inputs and outputs exchanged, taps as they are.

    As spconv's SparseInverseConv3d, with an explicit map in place of an indice_key:

        map = build_map(coords, 3, stride=2, padding=1)
        down = mapped_conv3d(features, weight, map=map)              # rows of map.out_coords
        up = sparse_inverse_conv3d(down, weight_up, map=map)         # rows of map.in_coords again, in their order

    Args:
        features: [rows of map.out_coords, C_in].
        map: what build_map returned for the forward convolution.
        weight: native [C_out, kz, ky, kx, C_in] (or as weight_layout says), of the map's kernel size.

    Returns:
        [rows of map.in_coords, C_out]: a row that no pair reaches is act(bias).

    Raises: as for sparse_conv3d.
    """
    return _convolve("sparse_inverse_conv3d", _check_map(map), True, _operands(locals()))


def over_map(map_: SparseMap, features: Any, weight: Any, bias: Any, activation: str, *, inverse: bool) -> Any:
    """mapped_conv3d, or sparse_inverse_conv3d, as layers call it: a native weight, and results of its dtype."""
    name, size = "sparse_inverse_conv3d" if inverse else "mapped_conv3d", weight.shape
    if len(size) != 5:
        raise InputError(f"weight has shape {list(size)}; accepted: [C_out, kz, ky, kx, C_in]")
    ending = epilogue_of(activation, DEFAULT_SLOPE)
    operands = _Operands(features, weight, bias, None, ending, "native", tuple(size[1:4]), None, "auto")
    # What the kernel depends on, in few words: a layer is called again and again.
    return _convolve(name, map_, inverse, operands, (inverse, size, weight.dtype, bias is None, activation))


def clear() -> None:
    """Forgets maps, packed weights and loaded kernels of this module."""
    _map_cache.clear()
    _weight_cache.clear()
    forget_requests()


class _Operands(NamedTuple):
    """What a convolution reads beside its map."""

    features: Any
    weight: Any
    bias: Any
    residual: Any
    ending: Epilogue
    layout: str
    kernel_size: Triple
    out_dtype: str | None
    schedule: str


def _operands(given: Mapping[str, Any]) -> _Operands:
    """The operands among the arguments of a function above."""
    same = {name: given[name] for name in ("features", "weight", "bias", "residual", "out_dtype", "schedule")}
    layout = given["weight_layout"]
    size = _kernel_of(given["weight"], layout, given["kernel_size"])
    return _Operands(
        ending=epilogue_of(given["activation"], given["negative_slope"]), layout=layout, kernel_size=size, **same
    )


def _between(name: str, transposed: bool, given: Mapping[str, Any]) -> tuple[Any, Any]:
    """(out_coords, out_features) of a convolution that makes its map, by its arguments."""
    coords, operands = given["coords"], _operands(given)
    request = map_request(
        kernel_size=operands.kernel_size,
        transposed=transposed,
        output_padding=given.get("output_padding", 0),
        target=target_for(given["target"], coords),
        **{axis: given[axis] for axis in ("stride", "padding", "dilation", "spatial_shape", "batch_size")},
    )
    check_features(operands.features, check_coords(coords, on_gpu=True).shape[0], "coords")
    map_ = cached_map(request, coords, given["out_coords"])
    return map_.out_coords, _convolve(name, map_, False, operands)


def _convolve(
    name: str, map_: SparseMap, inverse: bool, operands: _Operands, brief: tuple[Any, ...] | None = None
) -> Any:
    """brief: a key under which the map keeps the kernel, beside the full one."""
    features, weight, bias, residual, ending, layout, kernel_size, out_dtype, schedule = operands
    if kernel_size != map_.geometry.kernel_size:
        raise InputError(f"the weight's kernel is {kernel_size} but the map was built for {map_.geometry.kernel_size}")
    weights = as_array(weight, "weight", on_gpu=True)
    c_in, c_out = channels_of(weights.shape, layout)
    in_rows, out_rows = (map_.out_rows, map_.in_rows) if inverse else (map_.in_rows, map_.out_rows)
    inputs = check_features(features, in_rows, "out_coords" if inverse else "coords")
    if inputs.shape[1] != c_in:
        raise InputError(f"features have {inputs.shape[1]} channels but the weight takes {c_in}")
    if weights.dtype != inputs.dtype:
        raise InputError(f"features are {inputs.dtype} but the weight is {weights.dtype}; accepted: equal dtypes")
    kernel = map_.known_kernel(brief)
    if kernel is None:
        channels = {"c_in": c_in, "c_out": c_out, "dtype": inputs.dtype, "out_dtype": out_dtype or inputs.dtype}
        more = {"bias": bias is not None, "residual": residual is not None, "schedule": schedule}
        more |= vars(ending)
        kernel = map_.kernel("conv", brief, inverse=inverse, **channels, **more)
    biases = None if bias is None else check_bias(bias, c_out)
    added = None if residual is None else check_residual(residual, (out_rows, c_out), kernel.options.out_dtype)
    check_place(map_.device, features=inputs, weight=weights, bias=biases, residual=added)
    out = empty_like_kind(features, (out_rows, c_out), kernel.options.out_dtype)
    if out_rows > 0:
        pairs = map_.pairs_for(kernel, inverse=inverse)
        signature = kernel.signature("weights")
        packed = packed_weight(_weight_cache, kernel, signature, pairs, weight, weights, layout, kernel_size)
        kernel.run(pairs.buffers, map_.symbols, inputs, out.pointer, packed, biases, added)
    return forward_only(out.source, name, features, weight, bias, residual)


def _kernel_of(weight: Any, layout: str, kernel_size: int | Triple | None) -> Triple:
    said = None if kernel_size is None else triple(kernel_size, "kernel_size")
    return kernel_of(as_array(weight, "weight", on_gpu=True).shape, layout, said, odd=False)


def _check_map(map_: Any) -> SparseMap:
    if not isinstance(map_, SparseMap):
        raise InputError(f"map is a {type(map_).__name__}; accepted: what build_map returns")
    return map_


def cached_map(request: MapRequest, coords: Any, out_coords: Any = None) -> SparseMap:
    """The map, kept while `coords` live unchanged; one with given outputs is built anew."""
    if out_coords is not None:
        return SparseMap(coords, make_map(request, coords, out_coords))

    def make() -> list[MapState]:
        return [make_map(request, coords)]

    points = check_coords(coords, on_gpu=True)
    # Before anything is read: the target may not reach where coords lie.
    kernel = request.kernel.on(points.device)
    held = _map_cache.get(coords, points, request, kernel.checksum, make)
    if not held[0].outputs_unchanged():
        held[0] = make_map(request, coords)
    return SparseMap(coords, held[0])
