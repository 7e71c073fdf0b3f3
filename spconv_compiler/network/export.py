"""Exports a model with torch.export for any number of voxels."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._dynamo.exc import UserError, UserErrorType
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree

from spconv_compiler.errors import InputError, SpconvError, ToolchainError
from spconv_compiler.network.arguments import as_arguments, rows_of
from spconv_compiler.network.lines import is_library, user_line

# What torch compares sizes with in place of "to the end".
_ENDLESS = 2**62


def export(model: Any, example: Any, kwargs: Mapping[str, Any] | None = None) -> torch.export.ExportedProgram:
    """The program of a model; the number of rows stays free wherever the example has as many as a coordinate tensor.

    Args:
        model: in eval mode. example: its arguments. kwargs: those by keyword.

    Raises:
        InputError: the model trains or has layers of spconv itself, the example has no coordinates or fewer than two
            voxels, or torch cannot trace the model, as where a Python number depends on the values of a tensor or on
            the number of voxels.
        ToolchainError: torch is too old.
        Exception: what the model raises.
    """
    _check_torch()
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"model is a {type(model).__name__}; accepted: a torch.nn.Module or what torch.export gives")
    if model.training:
        raise InputError("the model is in training mode; accepted: model.eval()")
    foreign = next((layer for layer in model.modules() if type(layer).__module__.split(".")[0] == "spconv"), None)
    if foreign is not None:
        raise InputError(
            f"the model has a {type(foreign).__name__} of spconv's own; accepted: layers of spconv_compiler.pytorch, "
            "which have the same names and load the same weights (import spconv_compiler.pytorch as spconv)"
        )
    arguments, named = as_arguments(example, kwargs), dict(kwargs or {})
    leaves = _pytree.tree_leaves((arguments, named))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    counts = rows_of(leaves)
    if not counts:
        found = ", ".join(f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}" for tensor in tensors)
        found = found or " and ".join(sorted({f"a {type(leaf).__name__}" for leaf in leaves})) or "no arguments"
        raise InputError(f"the example has no coordinates among {found}; accepted: a tensor int32 [N, 4]")
    if min(counts) < 2:
        # torch.export takes sizes of 0 and 1 for constants.
        raise InputError(f"the example has {min(counts)} voxels; accepted: at least 2, for which calls then take any N")
    shapes: Any = torch.export.ShapesCollection()  # type: ignore[no-untyped-call]
    for tensor in tensors:
        if tensor.dim() > 0 and tensor.shape[0] in counts:
            shapes[tensor] = {0: torch.export.Dim.DYNAMIC}
    with torch.no_grad():
        try:
            with _without_partial_graphs():
                return torch.export.export(model, arguments, named, dynamic_shapes=shapes, strict=False)
        except (RuntimeError, UserError) as error:
            raise _explained(error, min(counts)) from error


@contextlib.contextmanager
def _without_partial_graphs() -> Iterator[None]:
    """Keeps torch.export from printing all that it had traced when it failed: what is raised here names the line."""
    held, printed = io.StringIO(), ""
    try:
        with contextlib.redirect_stderr(held):
            yield
    except Exception as error:
        printed = f"{getattr(error, 'partial_fx_graph', '')}\n"
        raise
    finally:
        sys.stderr.write(held.getvalue().replace(printed, "") if printed.strip() else held.getvalue())


def _explained(error: RuntimeError, voxels: int) -> BaseException:
    """What torch.export's error means for a user; the model's own errors and this package's as they are."""
    if isinstance(error, SpconvError):
        return error
    line = user_line(error)
    if isinstance(error, GuardOnDataDependentSymNode):
        return InputError(
            f"a number depends on the values of a tensor; at {line}; accepted: numbers known before "
            "the model runs, as a batch_size that is passed as an argument and compiled as a constant"
        )
    if isinstance(error, UserError) and error.error_type is UserErrorType.CONSTRAINT_VIOLATION:
        return InputError(_other_voxels(f"the example's {voxels} are a constant in its Python code"))
    if not is_library(traceback.extract_tb(error.__traceback__)[-1].filename):
        return error
    return InputError(
        f"the model cannot be traced: {str(error).splitlines()[0]}; at {line}; accepted: ops of torch and layers of "
        "this package on tensors, and results that are tensors, SparseConvTensors, or lists, tuples and dicts of them"
    )


def check_any_rows(program: torch.export.ExportedProgram) -> None:
    """Raises InputError where the graph is right for some numbers of voxels only, as its forward has compared them."""
    metas = (node.meta.get("val") for node in program.graph.nodes)
    modes = (meta.fake_mode for meta in metas if isinstance(meta, FakeTensor))
    guards = getattr(getattr(next(modes, None), "shape_env", None), "guards", ())
    for guard in guards:
        # Features have as many rows as coordinates: a call checks that.
        equal = type(guard.expr).__name__ == "Equality" and all(side.is_Symbol for side in guard.expr.args)
        if not equal and not any(atom.is_Integer and abs(int(atom)) > _ENDLESS for atom in guard.expr.atoms()):
            found = re.sub(r"\b[su]\d+\b", "N", str(guard.expr))
            raise InputError(_other_voxels(f"its Python code has compared their number N, and found {found}"))


def _other_voxels(why: str) -> str:
    return (
        f"the model is another for other numbers of voxels: {why}; accepted: a forward that is the same for any number "
        "of voxels, without a comparison, a loop over rows, tolist() or a reshape to fixed rows"
    )


def _check_torch() -> None:
    """Raises ToolchainError where torch.export cannot leave the number of rows free."""
    for owner, name in ((torch.export, "ShapesCollection"), (torch.export.Dim, "DYNAMIC")):
        if not hasattr(owner, name):
            missing = name if owner is torch.export else f"Dim.{name}"
            raise ToolchainError(
                f"torch {torch.__version__} has no torch.export.{missing}, which sc.compile needs; accepted: torch 2.6 "
                "or newer"
            )
