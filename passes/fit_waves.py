"""Fits what kernels say of waves to a target: ballots to their width, and numbers that a wave has in common.

Before (wave of 32 lanes):
    %bits = gpu.ballot %condition : i64
    %same = gpu.subgroup_broadcast %number, first_active_lane : i32
After:
    %narrow = gpu.ballot %condition : i32
    %bits = arith.extui %narrow : i32 to i64

Kernels take 64 bits, which serve any wave; an instruction exists for the wave's own width only. A broadcast says that
all lanes hold the same number already: a target without scalar registers has no use for that, and %number stands for
%same. Needs level gpu.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import arith, gpu, ir
from spconv_compiler.passes.base import Pass, replace_each
from spconv_compiler.passes.gpu.scheduled import gpu_target


@dataclasses.dataclass(frozen=True)
class FitWaves(Pass):
    """See the module."""

    target: str = "sm_90"
    name: ClassVar[str] = "fit-waves"
    needs: ClassVar[str] = "gpu"
    gives: ClassVar[str] = "gpu"

    def run(self, module: ir.Module) -> None:
        wave = gpu_target(self, module, self.target).wave

        def rewrite(op: ir.OpView) -> list[ir.Value]:
            wanted = op.operation.results[0].type
            lanes = ir.IntegerType.get_signless(wave)
            bits = gpu.ballot(lanes, op.operation.operands[0])
            return [bits if lanes == wanted else arith.extui(wanted, bits)]

        replace_each(module, "gpu.ballot", rewrite, in_kernels=True)
        replace_each(module, "gpu.subgroup_broadcast", lambda op: [op.operation.operands[0]], in_kernels=True)
