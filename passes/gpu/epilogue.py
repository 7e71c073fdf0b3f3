"""The end of a sum on a GPU: what every kernel does with an f32 value before it is stored."""

from __future__ import annotations

from spconv_compiler.bindings import ir
from spconv_compiler.epilogue import Epilogue
from spconv_compiler.passes.activation import activate
from spconv_compiler.passes.kernel_builder import V, f32, vec


def finish(total: V, residual: V | None, epilogue: Epilogue, element: ir.Type) -> V:
    """Residual added, activation applied, rounded once to `element`.

    Args:
        total: f32, scalar or vector; a bias is in it already.
        residual: of the same length, any float type; None if there is none.
    """
    if residual is not None:
        total = total + residual.to(_alike(total, f32()))
    return activate(total, epilogue).to(_alike(total, element))


def _alike(value: V, element: ir.Type) -> ir.Type:
    """`element`, as often as `value` has elements."""
    return vec(ir.VectorType(value.type).shape[0], element) if isinstance(value.type, ir.VectorType) else element
