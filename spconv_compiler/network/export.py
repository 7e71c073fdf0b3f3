"""Exports a model with torch.export for any number of voxels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree

from spconv_compiler.errors import InputError, ToolchainError
from spconv_compiler.network.lines import user_line


def as_arguments(example: Any, kwargs: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
    """The example as a tuple of positional arguments; None is none where there are `kwargs`."""
    if example is None and kwargs:
        return ()
    return tuple(example) if isinstance(example, (tuple, list)) else (example,)


def export(model: Any, example: Any, kwargs: Mapping[str, Any] | None = None) -> torch.export.ExportedProgram:
    """The program of a model; the number of rows stays free wherever the example has as many as a coordinate tensor.

    Args:
        model: in eval mode. example: its arguments. kwargs: those by keyword.

    Raises:
        InputError: the model trains, the example has no coordinates or fewer than two voxels, or a Python number
            depends on the values of a tensor.
        ToolchainError: torch is too old.
        Exception: what torch.export raises for a model that it cannot trace.
    """
    _check_torch()
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"model is a {type(model).__name__}; accepted: a torch.nn.Module or what torch.export gives")
    if model.training:
        raise InputError("the model is in training mode; accepted: model.eval()")
    arguments, named = as_arguments(example, kwargs), dict(kwargs or {})
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
        try:
            return torch.export.export(model, arguments, named, dynamic_shapes=shapes, strict=False)
        except GuardOnDataDependentSymNode as error:
            raise InputError(
                f"a number depends on the values of a tensor; at {user_line(error)}; accepted: numbers known before "
                "the model runs, as a batch_size that is passed as an argument and compiled as a constant"
            ) from error


def _check_torch() -> None:
    """Raises ToolchainError where torch.export cannot leave the number of rows free."""
    for owner, name in ((torch.export, "ShapesCollection"), (torch.export.Dim, "DYNAMIC")):
        if not hasattr(owner, name):
            missing = name if owner is torch.export else f"Dim.{name}"
            raise ToolchainError(
                f"torch {torch.__version__} has no torch.export.{missing}, which sc.compile needs; accepted: a newer "
                "torch that has it (eager layers work with this one)"
            )


def _is_coords(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 2 and tensor.dtype == torch.int32 and tensor.shape[1] in (2, 3, 4)
