"""What every conversion to level loops asks first: is the target a processor, and has the op the right schedule."""

from __future__ import annotations

from spconv_compiler.bindings import ir
from spconv_compiler.dialect.stages import StageOp
from spconv_compiler.passes.base import Pass, enclosing_function, ops_named
from spconv_compiler.passes.cpu.functions import Functions
from spconv_compiler.targets import CpuTarget, get_target


def functions_for(pass_: Pass, module: ir.Module, name: str) -> Functions:
    """The functions of `module`, for the target called `name`; the pass fails when it is not a processor."""
    target = get_target(name)
    if not isinstance(target, CpuTarget):
        pass_.fail(module.operation, f"target {target.name} is not a processor", "accepted here: cpu, x86-64-v3, …")
    return Functions(module, target)


def only_one(pass_: Pass, module: ir.Module, name: str) -> None:
    """The pass fails on a second op called `name` in a function: a plan has one box, which describes the first."""
    seen: set[str] = set()
    for op in ops_named(module, name):
        function = ir.StringAttr(enclosing_function(op).operation.attributes["sym_name"]).value
        if function in seen:
            pass_.fail(op, f"this is the second {name} of the function", "supported: one; equal ones are merged by cse")
        seen.add(function)


def parameters(pass_: Pass, op: StageOp, accepted: str, *required: str) -> dict[str, int]:
    """The parameters of the op's schedule.

    The pass fails when there is no schedule, when it is not the accepted one, and when a parameter is missing.
    """
    if op.schedule is None:
        pass_.fail(op, "the op has no schedule", "run choose-schedule first")
    name, values = op.schedule
    if name != accepted:
        pass_.fail(op, f'schedule "{name}" is not one for processors', f"accepted here: {accepted}")
    missing = [key for key in required if key not in values]
    if missing:
        pass_.fail(op, f'schedule "{name}" lacks {", ".join(missing)}', f"it takes {', '.join(required)}")
    return values
