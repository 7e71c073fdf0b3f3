"""Moves an epilogue into the gemm where the schedule finishes whole output rows.

Before:
    %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule}
    %out = "spconv.apply_epilogue"(%sum, %residual) {epilogue = #spconv.epilogue<"relu">}
After:
    %out = "spconv.gemm"(%pairs, %features, %packed, %init, %residual) {epilogue = #spconv.epilogue<"relu">, schedule}

Needs and gives level stages, after choose-schedule. A sum with other uses is left alone, and one that is rounded
before the epilogue.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import ApplyEpilogueOp, GemmOp
from spconv_compiler.epilogue import Epilogue
from spconv_compiler.passes.base import Pass, defining_op, ops_named
from spconv_compiler.schedules import schedule_named


def fuse(op: ApplyEpilogueOp) -> bool:
    """Fuses one epilogue; False when it has to stay."""
    gemm = defining_op(op.input)
    if not isinstance(gemm, GemmOp) or gemm.epilogue != Epilogue() or gemm.residual is not None:
        return False
    if gemm.schedule is None or op.input.type != gemm.init.type:
        return False
    if len(list(op.input.uses)) != 1 or not schedule_named(gemm.schedule[0]).owns_rows:
        return False
    with ir.InsertionPoint(op), gemm.operation.location:
        attributes = dict(gemm.operation.attributes.items())
        attributes["epilogue"] = op.attribute("epilogue")
        residual = [] if op.residual is None else [op.residual]
        operands = [*gemm.operation.operands, *residual]
        fused = GemmOp.create([op.operation.results[0].type], operands, attributes)
    op.operation.results[0].replace_all_uses_with(fused.results[0])
    op.operation.erase()
    gemm.operation.erase()
    return True


@dataclasses.dataclass(frozen=True)
class FuseEpilogue(Pass):
    """See the module."""

    name: ClassVar[str] = "fuse-epilogue"
    needs: ClassVar[str] = "stages"
    gives: ClassVar[str] = "stages"

    def run(self, module: ir.Module) -> None:
        for op in ops_named(module, ApplyEpilogueOp.OPERATION_NAME):
            fuse(op)
