"""How modules call the ops: directly where nothing watches, through torch's dispatcher otherwise.

The dispatcher costs about as much as everything else that Python does for a layer. It is needed by traces, modes,
transforms, tensor subclasses and autograd; an inference call on plain tensors needs none of it and runs the same
functions. A submanifold layer in host memory does not even ask for its kernel in full: what operands are is looked at
once, and whatever is unusual takes the long way, which has words for it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from spconv_compiler import api, sparse_conv
from spconv_compiler.arrays import as_array, dtype_name
from spconv_compiler.epilogue import DEFAULT_SLOPE
from spconv_compiler.errors import InputError
from spconv_compiler.operands import check_bias
from spconv_compiler.pytorch import ops
from spconv_compiler.pytorch.maps import Axes, KeptMap, geometry_of, keep, outputs_map, three
from spconv_compiler.pytorch.target import current_target

# Kernels of submanifold convolutions in host memory, by all that a call of a layer says of them.
_kernels: dict[tuple[Any, ...], Any] = {}
_KEPT_KERNELS = 512
_dispatch_modes, _function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_tracing, _transforms = torch._C._get_tracing_state, torch._C._functorch.peek_interpreter_stack
# Its level is -1 outside of forward-mode differentiation.
_forward_ad: Any = torch.autograd.forward_ad


def _plain(features: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> bool:
    """Whether nobody has to see the op: no trace, no mode, no transform, no subclass, no gradient.

    Raises:
        InputError: an operand has a tangent of forward-mode differentiation, which the result would lack.
    """
    if torch.compiler.is_compiling():
        return False
    if _forward_ad._current_level >= 0:
        _refuse_tangents(features, weight, bias)
    if type(features) is not Tensor:
        return False
    if _dispatch_modes() > 0 or _function_modes() > 0 or _tracing() is not None or _transforms() is not None:
        return False
    if not torch.is_grad_enabled():
        return True
    return not (
        features.requires_grad
        or (weight is not None and weight.requires_grad)
        or (bias is not None and bias.requires_grad)
    )


def _refuse_tangents(*operands: Tensor | None) -> None:
    for operand in operands:
        if operand is not None and _forward_ad.unpack_dual(operand).tangent is not None:
            raise InputError("an input has a tangent of forward-mode differentiation; accepted: plain tensors")


def subm_conv3d(
    features: Tensor,
    coords: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dilation: list[int],
    spatial_shape: list[int] | None,
    batch_size: int,
    activation: str,
) -> Tensor:
    """ops.subm_conv3d"""
    given = (features, coords, weight, bias, dilation, spatial_shape, batch_size, activation)
    if not _plain(features, weight, bias):
        out: Tensor = ops.subm_conv3d(*given)
        return out
    target = current_target()
    key = (weight.shape, features.dtype, bias is None, *dilation, activation, target)
    kernel = _kernels.get(key)
    made = None if kernel is None else _quick(kernel, *given)
    if made is not None:
        return made
    out = ops.run_subm_conv3d(*given)
    if kernel is None and features.is_cpu and len(_kernels) < _KEPT_KERNELS:
        _kernels[key] = _kernel_of(features, weight, bias, dilation, activation, target)
    return out


def _kernel_of(
    features: Tensor, weight: Tensor, bias: Tensor | None, dilation: list[int], activation: str, target: str
) -> Any:
    """The kernel that `subm_conv3d` has just run: on operands in host memory."""
    size, name = weight.shape, dtype_name(features)
    return api.find_kernel(
        api.Request(
            size, "native", None, size[4], name, None, three(dilation), bias is not None, False, activation,
            DEFAULT_SLOPE, target, "auto",
        )
    )


def _quick(
    kernel: Any,
    features: Tensor,
    coords: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dilation: list[int],
    spatial_shape: list[int] | None,
    batch_size: int,
    activation: str,
) -> Tensor | None:
    """The result, where all operands are as they usually are; else None, and the long way has words for it."""
    if not features.is_cpu:
        return None
    points, inputs = as_array(coords, "coords", on_gpu=True), as_array(features, "features", on_gpu=True)
    weights, rows = as_array(weight, "weight", on_gpu=True), points.shape[0]
    if points.shape != (rows, 4) or points.dtype != "i32" or inputs.shape != (rows, weights.shape[4]):
        return None
    if weights.dtype != inputs.dtype:
        return None
    limits = _limits(batch_size, *(spatial_shape or ()))
    biases = None if bias is None else check_bias(bias, weights.shape[0])
    out: Tensor = api.convolve(
        kernel, limits, coords, points, features, inputs, weight, weights, biases=biases
    )
    return out


@functools.lru_cache(maxsize=512, typed=True)
def _limits(batch_size: int, *spatial_shape: int) -> Any:
    return api.check_limits(spatial_shape or None, batch_size)


def clear() -> None:
    """Forgets kernels."""
    _kernels.clear()


def sparse_conv3d(
    features: Tensor,
    coords: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    axes: Axes,
    output_padding: list[int],
    transposed: bool,
    spatial_shape: list[int] | None,
    batch_size: int,
    activation: str,
) -> tuple[Tensor, Tensor, KeptMap | None]:
    """(out_coords, out, the map if there is one at hand): ops.output_coords and ops.sparse_conv3d."""
    if not _plain(features, weight, bias):
        out_coords = ops.output_coords(coords, *axes, output_padding, transposed, spatial_shape, batch_size)
        out = ops.sparse_conv3d(features, coords, out_coords, weight, bias, *axes[1:], transposed, activation)
        return out_coords, out, None
    geometry, target = geometry_of(*axes, transposed), current_target()
    map_ = outputs_map(coords, geometry, output_padding, spatial_shape, batch_size, target)
    out = sparse_conv.over_map(map_, features, weight, bias, activation, inverse=False)
    return map_.out_coords, out, keep(map_, target)


def inverse_conv3d(
    features: Tensor,
    coords: Tensor,
    out_coords: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    axes: Axes,
    transposed: bool,
    activation: str,
) -> Tensor:
    """ops.sparse_conv3d between two given sets."""
    if not _plain(features, weight, bias):
        out: Tensor = ops.sparse_conv3d(
            features, coords, out_coords, weight, bias, *axes[1:], transposed, activation
        )
        return out
    return ops.run_sparse_conv3d(features, coords, out_coords, weight, bias, *axes[1:], transposed, activation)


def inverse_over(
    kept: KeptMap | None,
    features: Tensor,
    coords: Tensor,
    out_coords: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
) -> Tensor | None:
    """inverse_conv3d, where the map the other way round is at hand and nobody has to see the op; else None."""
    if kept is None or not _plain(features, weight, bias) or not kept.joins(coords, out_coords, current_target()):
        return None
    out: Tensor = sparse_conv.over_map(kept.map, features, weight, bias, activation, inverse=True)
    return out


def sparse_pool3d(
    features: Tensor, coords: Tensor, axes: Axes, spatial_shape: list[int] | None, batch_size: int, mode: str
) -> tuple[Tensor, Tensor, KeptMap | None]:
    """(out_coords, out, the map if there is one at hand): ops.output_coords and ops.sparse_pool3d."""
    if not _plain(features):
        out_coords = ops.output_coords(coords, *axes, [0, 0, 0], False, spatial_shape, batch_size)
        return out_coords, ops.sparse_pool3d(features, coords, out_coords, *axes, mode), None
    target = current_target()
    map_ = outputs_map(coords, geometry_of(*axes, False), [0, 0, 0], spatial_shape, batch_size, target)
    return map_.out_coords, ops.run_pool3d(features, map_, mode), keep(map_, target)
