"""How modules call the ops: directly where nothing watches, through torch's dispatcher otherwise.

The dispatcher costs about as much as everything else that Python does for a layer. It is needed by traces, dispatch
modes, tensor subclasses and autograd; an inference call on plain tensors needs none of it and runs the same functions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spconv_compiler import sparse_conv
from spconv_compiler.pytorch import ops
from spconv_compiler.pytorch.maps import Axes, geometry_of, outputs_map
from spconv_compiler.pytorch.target import current_target


def _plain(features: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> bool:
    """Whether nobody has to see the op: no trace, no mode, no subclass, no gradient."""
    if torch.compiler.is_compiling() or type(features) is not Tensor:
        return False
    if torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None:
        return False
    if not torch.is_grad_enabled():
        return True
    return not (
        features.requires_grad
        or (weight is not None and weight.requires_grad)
        or (bias is not None and bias.requires_grad)
    )


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
    if not _plain(features, weight, bias):
        out: Tensor = ops.subm_conv3d(
            features, coords, weight, bias, dilation, spatial_shape, batch_size, activation
        )
        return out
    return ops.run_subm_conv3d(features, coords, weight, bias, dilation, spatial_shape, batch_size, activation)


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
) -> tuple[Tensor, Tensor]:
    """(out_coords, out): ops.output_coords and ops.sparse_conv3d."""
    if not _plain(features, weight, bias):
        out_coords = ops.output_coords(coords, *axes, output_padding, transposed, spatial_shape, batch_size)
        out = ops.sparse_conv3d(features, coords, out_coords, weight, bias, *axes[1:], transposed, activation)
        return out_coords, out
    geometry = geometry_of(*axes, transposed)
    map_ = outputs_map(coords, geometry, output_padding, spatial_shape, batch_size, current_target())
    return map_.out_coords, sparse_conv.mapped_conv3d(features, weight, bias, map=map_, activation=activation)


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


def sparse_pool3d(
    features: Tensor, coords: Tensor, axes: Axes, spatial_shape: list[int] | None, batch_size: int, mode: str
) -> tuple[Tensor, Tensor]:
    """(out_coords, out): ops.output_coords and ops.sparse_pool3d."""
    if not _plain(features):
        out_coords = ops.output_coords(coords, *axes, [0, 0, 0], False, spatial_shape, batch_size)
        return out_coords, ops.sparse_pool3d(features, coords, out_coords, *axes, mode)
    map_ = outputs_map(coords, geometry_of(*axes, False), [0, 0, 0], spatial_shape, batch_size, current_target())
    return map_.out_coords, ops.run_pool3d(features, map_, mode)
