"""What every conversion to level gpu asks first: is the target a GPU, and does the op have the right schedule."""

from __future__ import annotations

from spconv_compiler.bindings import ir
from spconv_compiler.dialect.stages import StageOp
from spconv_compiler.passes.base import Pass
from spconv_compiler.targets import GpuTarget, get_target


def gpu_target(pass_: Pass, module: ir.Module, name: str) -> GpuTarget:
    """The target called `name`; the pass fails when it is not a GPU."""
    target = get_target(name)
    if not isinstance(target, GpuTarget):
        pass_.fail(module.operation, f"target {target.name} is not a GPU")
    return target


def lanes_of(pass_: Pass, op: StageOp, accepted: str, target: GpuTarget) -> int:
    """Parameter `block` of the op's schedule; the pass fails when it is not a workgroup of the target."""
    lanes = parameters(pass_, op, accepted, "block")["block"]
    if lanes % target.wave or lanes > target.max_workgroup:
        limits = f"{target.name} takes whole waves of {target.wave}, at most {target.max_workgroup} lanes"
        pass_.fail(op, f"a block of {lanes} lanes", limits)
    return lanes


def parameters(pass_: Pass, op: StageOp, accepted: str, *required: str) -> dict[str, int]:
    """The parameters of the op's schedule.

    The pass fails when there is no schedule, when it is not the accepted one, and when a required parameter is
    missing.
    """
    if op.schedule is None:
        pass_.fail(op, "the op has no schedule", "run choose-schedule first")
    name, values = op.schedule
    if name != accepted:
        pass_.fail(op, f'schedule "{name}" is not one for a GPU', f'accepted here: "{accepted}"')
    missing = [key for key in required if key not in values]
    if missing:
        pass_.fail(op, f'schedule "{name}" lacks {", ".join(missing)}', f"it takes {', '.join(required)}")
    return values
