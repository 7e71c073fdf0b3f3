"""Lets a kernel be launched while the one before it still runs (programmatic dependent launch).

Before:
    gpu.func @k(%in: !llvm.ptr<1>) kernel {
      %v = llvm.load %in : !llvm.ptr<1> -> i32
After:
    gpu.func @k(%in: !llvm.ptr<1>) kernel {
      nvvm.griddepcontrol wait
      nvvm.griddepcontrol launch_dependents
      %v = llvm.load %in : !llvm.ptr<1> -> i32

The wait ends when all work before this kernel on its stream is done and can be seen. It comes first in every kernel, or
behind an op of its entry block that is marked `spconv.early`: what comes before touches nothing that work before the
kernel may touch. Where a kernel is done, all before it are done too. From launch_dependents on
the next kernel's blocks may take the places that this one's leave; they wait in their turn. Neither does anything in a
launch that does not ask for it, as those of runtime/cuda_launch.py do.

Source: NVIDIA's CUDA programming guide, programmatic dependent launch, and the PTX ISA, griddepcontrol.

Needs level gpu, of a target that has these instructions; kernels that have a wait already are left alone.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.passes.base import Pass, kernel_functions

_OP = "nvvm.griddepcontrol"
# Of an op: the kernel's wait is to come behind it.
EARLY = "spconv.early"


@dataclasses.dataclass(frozen=True)
class OverlapLaunches(Pass):
    """See the module."""

    name: ClassVar[str] = "overlap-launches"
    needs: ClassVar[str] = "gpu"
    gives: ClassVar[str] = "nvvm"

    def run(self, module: ir.Module) -> None:
        for function in kernel_functions(module):
            entry = function.operation.regions[0].blocks[0]
            if any(op.operation.name == _OP for op in entry.operations):
                continue
            early = [op for op in entry.operations if EARLY in op.operation.attributes]
            point = ir.InsertionPoint.after(early[-1]) if early else ir.InsertionPoint.at_block_begin(entry)
            with point, function.operation.location:
                for kind in ("wait", "launch_dependents"):
                    attribute = ir.Attribute.parse(f"#nvvm<grid_dep_action {kind}>")
                    ir.Operation.create(_OP, attributes={"kind": attribute})
