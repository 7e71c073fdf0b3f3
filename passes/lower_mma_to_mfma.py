"""Lowers spconv.tile_mma to the target's matrix instruction.

Before:
    %d = "spconv.tile_mma"(%a, %b, %c) {shape = array<i64: 16, 16, 32>} : (vector<8xbf16>, …) -> vector<4xf32>
After:
    rocdl.sched.barrier none
    %d = rocdl.mfma.f32.16x16x32.bf16 %a, %b, %c, 0, 0, none : …

An operand of one element is passed as a scalar. The barrier (not an instruction) stands before the first matrix
instruction of a block: the loads that a schedule puts there are all issued, where the code generator would rather
wait for one at a time to save registers. Needs level gpu. Fails when the target has no instruction of that shape and
type, or when a lane's fragment has another length.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir, rocdl, vector
from spconv_compiler.dialect import TileMmaOp
from spconv_compiler.passes.base import Pass, replace_each
from spconv_compiler.passes.gpu.scheduled import gpu_target
from spconv_compiler.passes.kernel_builder import i32
from spconv_compiler.targets import GpuTarget


def _instruction(pass_: LowerMmaToMfma, op: TileMmaOp, target: GpuTarget) -> str:
    """The op that does this multiplication on the target."""
    wanted, element = tuple(ir.DenseI64ArrayAttr(op.attribute("shape"))), str(_element(op.operation.operands[0]))
    for shape in target.mma:
        if (shape.m, shape.n, shape.k) == wanted and shape.element == element:
            break
    else:
        known = ", ".join(f"{shape.m}x{shape.n}x{shape.k} {shape.element}" for shape in target.mma)
        pass_.fail(op, f"no matrix instruction {'x'.join(map(str, wanted))} of {element}", f"supported: {known}")
    lengths = tuple(ir.VectorType(op.operation.operands[number].type).shape[0] for number in (0, 2))
    if lengths != shape.lane_elements(target.wave):
        expected = shape.lane_elements(target.wave)
        pass_.fail(op, f"fragments of {lengths} elements a lane; {shape.intrinsic} takes {expected}")
    return shape.intrinsic


def _element(value: ir.Value) -> ir.Type:
    return ir.VectorType(value.type).element_type


def _operand(value: ir.Value) -> ir.Value:
    return vector.extract(value, [], [0]) if ir.VectorType(value.type).shape[0] == 1 else value


@dataclasses.dataclass(frozen=True)
class LowerMmaToMfma(Pass):
    """See the module."""

    target: str = "gfx950"
    name: ClassVar[str] = "lower-mma-to-mfma"
    needs: ClassVar[str] = "gpu"
    gives: ClassVar[str] = "rocdl"

    def run(self, module: ir.Module) -> None:
        target = gpu_target(self, module, self.target)

        fenced: set[ir.Block] = set()

        def rewrite(op: TileMmaOp) -> list[ir.Value]:
            if op.operation.block not in fenced:
                fenced.add(op.operation.block)
                rocdl.sched_barrier(ir.Attribute.parse("#rocdl<sched_group_mask none>"))
            a, b, c = op.operation.operands
            # No broadcast of A blocks, no permutation of B.
            attributes = {
                "cbsz": ir.IntegerAttr.get(i32(), 0),
                "abid": ir.IntegerAttr.get(i32(), 0),
                "blgp": ir.Attribute.parse("#rocdl<mfma_perm_b none>"),
            }
            operands = [_operand(a), _operand(b), c]
            return list(ir.Operation.create(_instruction(self, op, target), [c.type], operands, attributes).results)

        replace_each(module, TileMmaOp.OPERATION_NAME, rewrite, in_kernels=True)
