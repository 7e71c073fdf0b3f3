"""What every conversion to level loops asks first: is the target a processor, and has the op the right schedule."""

from __future__ import annotations

from spconv_compiler.bindings import ir
from spconv_compiler.dialect.stages import StageOp
from spconv_compiler.passes.base import Pass
from spconv_compiler.passes.cpu.functions import Functions
from spconv_compiler.targets import CpuTarget, get_target


def functions_for(pass_: Pass, module: ir.Module, name: str) -> Functions:
    """The functions of `module`, for the target called `name`; the pass fails when it is not a processor."""
    target = get_target(name)
    if not isinstance(target, CpuTarget):
        pass_.fail(module.operation, f"target {target.name} is not a processor", "accepted here: cpu, x86-64-v3, …")
    return Functions(module, target)


def parameters(pass_: Pass, op: StageOp, accepted: str) -> dict[str, int]:
    """The parameters of the op's schedule; the pass fails when there is none or it is not the accepted one."""
    if op.schedule is None:
        pass_.fail(op, "the op has no schedule", "run choose-schedule first")
    name, values = op.schedule
    if name != accepted:
        pass_.fail(op, f'schedule "{name}" is not one for processors', f"accepted here: {accepted}")
    return values
