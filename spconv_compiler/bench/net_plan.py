"""How many launches a compiled network takes on a GPU that need not be there: counted in plans, nothing is run."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

from spconv_compiler.compiler import compile_options
from spconv_compiler.errors import InputError
from spconv_compiler.network.kernels import compile_all, plan_options, step_options
from spconv_compiler.network.level_plan import launches, level_plan
from spconv_compiler.network.plan import NetworkPlan
from spconv_compiler.network.replay import why_never
from spconv_compiler.sparse_options import ON_ROWS
from spconv_compiler.targets import GpuTarget, get_target


@dataclasses.dataclass(frozen=True, eq=False)
class _Compiled:
    """A kernel that is compiled and not loaded, as far as level_plan.py looks at it."""

    options: Any
    artifact: Any


def launch_plan(plan: NetworkPlan, target: str) -> dict[str, Any]:
    """Launches of a call that is queued as one, its kernels compiled for `target`.

    Returns:
        convolutions: launches of each convolution or pool, in order; maps: of all levels and maps; on_rows: ops that
        torch does between them; together: whether one plan builds all levels; host_reads: how often the host waits for
        a number between the first launch and the last; why: if that is None, why such a call is not queued as one.

    Raises:
        InputError: the target is no GPU.
        CompileError, ToolchainError: see compiler.compile_conv.
    """
    if not isinstance(get_target(target), GpuTarget):
        raise InputError(f"{target} is no GPU, and has no launches; accepted: gfx950, sm_90")
    compile_all([item for item in plan_options(plan, target) if getattr(item, "operation", "") not in ON_ROWS])
    kernels = [None if step.operation in ON_ROWS else _compiled(step_options(step, target)) for step in plan.steps]
    together = level_plan(plan, kernels, target)
    own, maps = launches(plan, kernels, together)
    # Of the network's steps it asks for these two.
    steps: Any = types.SimpleNamespace(target=target, any_kernel=next(filter(None, kernels), None))
    why = why_never(plan, steps, keep_maps=False)
    return {
        "target": target,
        "convolutions": own,
        "maps": maps,
        "on_rows": sum(kernel is None for kernel in kernels),
        "together": together is not None,
        # A call that is queued as one waits behind its last launch alone (replay.py), or not at all.
        "host_reads": 0 if why is None else None,
        "why": why,
    }


def _compiled(options: Any) -> _Compiled:
    return _Compiled(options, compile_options(options))
