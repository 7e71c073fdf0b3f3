"""Moves pointwise ops to the end of the convolution before them, so that its sum is rounded once, after them.

Before:
    %y = "spconv.subm_conv3d"(%coords, %x, %weight) {epilogue = #spconv.epilogue<"none">} : … -> tensor<?x16xbf16>
    %s = "spconv.pointwise"(%y, %r) {epilogue = #spconv.epilogue<"none">}
    %z = "spconv.pointwise"(%s) {epilogue = #spconv.epilogue<"relu">}
After:
    %y = "spconv.subm_conv3d"(%coords, %x, %weight) {epilogue = #spconv.epilogue<"none">} : … -> tensor<?x16xf32>
    %z = "spconv.pointwise"(%y, %r) {epilogue = #spconv.epilogue<"relu">}

Without a residual the epilogue becomes the convolution's own. With one, the convolution gives its f32 sum to a
pointwise op that follows it at once; the stages below make one gemm of the two. Where both operands are convolutions,
the later one takes the other as residual.

Needs and gives level spconv. Values with other uses are left alone.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import PointwiseOp, SparseConv3dOp, SubmConv3dOp
from spconv_compiler.dialect.network import pointwise
from spconv_compiler.dialect.rules import element
from spconv_compiler.dialect.types import epilogue_attr
from spconv_compiler.epilogue import Epilogue
from spconv_compiler.passes.base import Pass, defining_op, ops_named

Conv = (SubmConv3dOp, SparseConv3dOp)


def unfinished(value: ir.Value) -> SubmConv3dOp | SparseConv3dOp | None:
    """The convolution that makes `value` for one user and without an epilogue, if there is one."""
    op = defining_op(value)
    alone = isinstance(op, Conv) and op.epilogue == Epilogue() and len(list(value.uses)) == 1
    return op if alone else None


def merge(op: PointwiseOp) -> PointwiseOp:
    """Takes over the sum of a pointwise op before an activation; gives the op that is there then."""
    before = defining_op(op.input)
    if op.residual is not None or not isinstance(before, PointwiseOp) or len(list(op.input.uses)) != 1:
        return op
    if before.epilogue != Epilogue():
        return op
    with ir.InsertionPoint(op), op.operation.location:
        result = op.operation.results[0]
        made = pointwise(before.input, result.type, residual=before.residual, epilogue=op.epilogue)
    result.replace_all_uses_with(made)
    op.operation.erase()
    before.operation.erase()
    merged = defining_op(made)
    assert isinstance(merged, PointwiseOp)
    return merged


def fuse(op: PointwiseOp) -> bool:
    """Fuses one op; False when it has to stay."""
    result = op.operation.results[0]
    if op.residual is None:
        conv = unfinished(op.input)
        if conv is None:
            return False
        with ir.InsertionPoint(op):
            total = _again(conv, result.type, op.epilogue)
        result.replace_all_uses_with(total)
        op.operation.erase()
    else:
        found = _last([value for value in (op.input, op.residual) if unfinished(value) is not None])
        if found is None:
            return False
        other = op.residual if found == op.input else op.input
        # A kernel adds rows of the type that it writes.
        if element(other) != element(result):
            return False
        conv = unfinished(found)
        assert conv is not None
        exact = ir.RankedTensorType.get(ir.RankedTensorType(result.type).shape, ir.F32Type.get())
        with ir.InsertionPoint(op), op.operation.location:
            total = _again(conv, exact, Epilogue())
            made = pointwise(total, result.type, residual=other, epilogue=op.epilogue)
        result.replace_all_uses_with(made)
        op.operation.erase()
    conv.operation.erase()
    return True


def _again(conv: SubmConv3dOp | SparseConv3dOp, type_: ir.Type, epilogue: Epilogue) -> ir.Value:
    """The convolution once more, here, with another end."""
    attributes = dict(conv.operation.attributes.items())
    attributes["epilogue"] = epilogue_attr(epilogue)
    with conv.operation.location:
        return type(conv).create([type_], list(conv.operation.operands), attributes).results[0]


def _last(values: list[ir.Value]) -> ir.Value | None:
    """The value that is made last, of values in one block."""
    if len(values) < 2:
        return values[0] if values else None
    first, second = (value.owner.operation for value in values)
    return values[1] if first.is_before_in_block(second) else values[0]


@dataclasses.dataclass(frozen=True)
class FusePointwise(Pass):
    """See the module."""

    name: ClassVar[str] = "fuse-pointwise"
    needs: ClassVar[str] = "spconv"
    gives: ClassVar[str] = "spconv"

    def run(self, module: ir.Module) -> None:
        for op in ops_named(module, PointwiseOp.OPERATION_NAME):
            merge(op)
        for op in ops_named(module, PointwiseOp.OPERATION_NAME):
            fuse(op)
