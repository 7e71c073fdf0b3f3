"""Takes the order away that upstream gives atomics on a workgroup's memory; barriers order them already.

Before:
    llvm.atomicrmw add %counter, %one acq_rel : !llvm.ptr<3>, i32
After:
    llvm.atomicrmw add %counter, %one syncscope("workgroup") monotonic : !llvm.ptr<3>, i32

memref.atomic_rmw can name no order, and its lowering takes the strongest, for which the code generator waits before and
after each one. Needs and gives level rocdl; atomics on other memory stay as they are.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir, llvm
from spconv_compiler.passes.base import Pass, ops_named

_LOCAL = "!llvm.ptr<3>"


@dataclasses.dataclass(frozen=True)
class RelaxLocalAtomics(Pass):
    """See the module."""

    name: ClassVar[str] = "relax-local-atomics"
    needs: ClassVar[str] = "rocdl"
    gives: ClassVar[str] = "rocdl"

    def run(self, module: ir.Module) -> None:
        for op in ops_named(module, "llvm.atomicrmw", in_kernels=True):
            pointer, value = op.operation.operands
            if str(pointer.type) == _LOCAL:
                with ir.InsertionPoint(op), op.operation.location:
                    order = llvm.AtomicOrdering.monotonic
                    made = llvm.AtomicRMWOp(op.bin_op, pointer, value, order, syncscope="workgroup")
                op.operation.results[0].replace_all_uses_with(made.result)
                op.operation.erase()
