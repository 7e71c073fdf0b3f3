"""Moves an affine op, which a batch norm in evaluation is, into weight and bias of the convolution before it.

Before:
    %y = "spconv.subm_conv3d"(%coords, %x, %weight, %bias) {…}
    %z = "spconv.affine"(%y, %scale, %shift)
After:
    %w = "spconv.scale_weight"(%weight, %scale)
    %b = "spconv.scale_bias"(%scale, %shift, %bias)
    %z = "spconv.subm_conv3d"(%coords, %x, %w, %b) {…}

Needs and gives level spconv. A convolution with other uses, or with an activation, is left alone, and so is an affine
op that nothing convolves before, or that has the attribute `spconv.kept`.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import AffineOp, ScaleBiasOp, ScaleWeightOp, SparseConv3dOp, SubmConv3dOp
from spconv_compiler.dialect.network import numbers
from spconv_compiler.epilogue import Epilogue
from spconv_compiler.passes.base import Pass, defining_op, ops_named

# On an affine op that must stay what it is.
KEPT = "spconv.kept"


def fold(op: AffineOp) -> bool:
    """Folds one op; False when it has to stay."""
    conv = defining_op(op.input)
    if KEPT in op.operation.attributes:
        return False
    if not isinstance(conv, (SubmConv3dOp, SparseConv3dOp)) or conv.epilogue != Epilogue():
        return False
    if len(list(op.input.uses)) != 1:
        return False
    place = list(conv.operation.operands).index(conv.weight)
    with ir.InsertionPoint(op), conv.operation.location:
        weight = numbers(ScaleWeightOp, [conv.weight, op.scale])
        bias = numbers(ScaleBiasOp, [op.scale, op.shift] + ([] if conv.bias is None else [conv.bias]))
        operands = [*list(conv.operation.operands)[:place], weight, bias]
        attributes = dict(conv.operation.attributes.items())
        folded = type(conv).create([op.operation.results[0].type], operands, attributes)
    op.operation.results[0].replace_all_uses_with(folded.results[0])
    op.operation.erase()
    conv.operation.erase()
    return True


@dataclasses.dataclass(frozen=True)
class FoldAffine(Pass):
    """See the module."""

    name: ClassVar[str] = "fold-affine"
    needs: ClassVar[str] = "spconv"
    gives: ClassVar[str] = "spconv"

    def run(self, module: ir.Module) -> None:
        for op in ops_named(module, AffineOp.OPERATION_NAME):
            fold(op)
