"""Lowers ops that upstream conversions make worse than the target's own instructions.

Before:
    %r = math.fma %a, %b, %c : f32
    %old = memref.atomic_rmw addi %v, %shared[%i] : (i32, memref<256xi32, #gpu.address_space<workgroup>>) -> i32
After:
    %r = llvm.intr.fma(%a, %b, %c) : (f32, f32, f32) -> f32
    %old = llvm.atomicrmw add %place, %v syncscope("block") monotonic : !llvm.ptr<3>, i32

The first would become a call of a library, the second an atomic that orders all memory of the system: a workgroup's
counters need neither. Needs level gpu. Fails on an atomic other than addi on a memref of one axis.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import arith, ir, llvm, memref
from spconv_compiler.passes.base import Pass, replace_each
from spconv_compiler.passes.kernel_builder import V, bits, i32


@dataclasses.dataclass(frozen=True)
class LowerToIntrinsics(Pass):
    """See the module."""

    name: ClassVar[str] = "lower-to-intrinsics"
    needs: ClassVar[str] = "gpu"
    gives: ClassVar[str] = "nvvm"

    def run(self, module: ir.Module) -> None:
        replace_each(module, "math.fma", _fma, in_kernels=True)
        replace_each(module, "memref.atomic_rmw", self._atomic, in_kernels=True)

    def _atomic(self, op: ir.OpView) -> list[ir.Value]:
        value, memory, *index = op.operation.operands
        kind = int(ir.IntegerAttr(op.operation.attributes["kind"]).value)
        if kind != int(arith.AtomicRMWKind.addi) or len(index) != 1:
            self.fail(op, "an atomic on shared memory that has no lowering", "supported: addi on one axis")
        base = V(memref.extract_aligned_pointer_as_index(memory)).to(i32())
        place = base + V(index[0]).to(i32()) * (bits(value.type) // 8)
        pointer = llvm.inttoptr(ir.Type.parse("!llvm.ptr<3>"), place.value)
        order = llvm.AtomicOrdering.monotonic
        return [llvm.AtomicRMWOp(llvm.AtomicBinOp.add, pointer, value, order, syncscope="block").result]


def _fma(op: ir.OpView) -> list[ir.Value]:
    operands = list(op.operation.operands)
    return list(ir.Operation.create("llvm.intr.fma", results=[operands[0].type], operands=operands).results)
