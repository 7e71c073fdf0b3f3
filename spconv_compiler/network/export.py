"""Exports a model with torch.export for any number of voxels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree

from spconv_compiler.errors import InputError


def as_arguments(example: Any) -> tuple[Any, ...]:
    """The example as a tuple of positional arguments."""
    return tuple(example) if isinstance(example, (tuple, list)) else (example,)


def export(model: Any, example: Any, kwargs: Mapping[str, Any] | None = None) -> torch.export.ExportedProgram:
    """The program of a model; the number of rows stays free wherever the example has as many as a coordinate tensor.

    Args:
        model: in eval mode. example: its arguments. kwargs: those by keyword.

    Raises:
        InputError: the model trains, or the example has no coordinates or fewer than two voxels.
        Exception: what torch.export raises for a model that it cannot trace.
    """
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"model is a {type(model).__name__}; accepted: a torch.nn.Module or what torch.export gives")
    if model.training:
        raise InputError("the model is in training mode; accepted: model.eval()")
    arguments, named = as_arguments(example), dict(kwargs or {})
    tensors = [leaf for leaf in _pytree.tree_leaves((arguments, named)) if isinstance(leaf, torch.Tensor)]
    counts = {tensor.shape[0] for tensor in tensors if _is_coords(tensor)}
    if not counts:
        found = ", ".join(f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}" for tensor in tensors)
        raise InputError(f"the example has no coordinates among {found or 'its arguments'}; accepted: int32 [N, 4]")
    if min(counts) < 2:
        # torch.export takes sizes of 0 and 1 for constants.
        raise InputError(f"the example has {min(counts)} voxels; accepted: at least 2, for which calls then take any N")
    shapes: Any = torch.export.ShapesCollection()  # type: ignore[no-untyped-call]
    for tensor in tensors:
        if tensor.dim() > 0 and tensor.shape[0] in counts:
            shapes[tensor] = {0: torch.export.Dim.DYNAMIC}
    with torch.no_grad():
        return torch.export.export(model, arguments, named, dynamic_shapes=shapes, strict=False)


def _is_coords(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 2 and tensor.dtype == torch.int32 and tensor.shape[1] in (2, 3, 4)
