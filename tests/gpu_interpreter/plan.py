"""Runs the host plan of a level-gpu module: allocations and launches in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spconv_compiler.bindings import ir
from spconv_compiler.plan import Plan, evaluate, extract_plan

from . import ops as ops
from .launch import Launch
from .memory import Array, Buffer, storage


def _argument(kind: str, dtype: str, value: Any) -> Any:
    """A symbol as the kernel sees it: the low 32 or all 64 bits."""
    bits = 32 if dtype == "i32" else 64
    return np.array(int(value) % 2**bits, f"uint{bits}").view(storage(dtype))[()] if kind == "symbol" else value


def kernels_of(module: ir.Module) -> dict[str, ir.OpView]:
    """The gpu.func ops of a module by name."""
    return {
        ir.StringAttr(op.operation.attributes["sym_name"]).value: op
        for nested in module.body.operations
        if nested.operation.name == "gpu.module"
        for op in nested.operation.regions[0].blocks[0].operations
    }


def run_plan(
    module: ir.Module,
    inputs: Mapping[str, Array],
    symbols: Mapping[str, int],
    out_size: int,
    between: Callable[[str, dict[str, Buffer]], None] | None = None,
) -> dict[str, Buffer]:
    """Runs the host plan of a level-gpu module.

    Args:
        inputs: arrays by the names of the plan's inputs, all but `out`.
        symbols: values of the plan's symbols.
        out_size: elements of the output.
        between: called with a kernel's name and all buffers after each launch.

    Returns:
        Every buffer by name, `out` among them.
    """
    plan: Plan = extract_plan(module)
    plan.check(symbols)
    kernels = kernels_of(module)
    buffers = {
        name: Buffer(name, dtype, out_size) if name == "out" else Buffer(name, dtype, inputs[name].size, inputs[name])
        for name, dtype in plan.inputs
    }
    for buffer in plan.buffers:
        buffers[buffer.name] = Buffer(buffer.name, buffer.dtype, evaluate(buffer.size, symbols))
    for launch in plan.launches:
        axes = [evaluate(axis, symbols) for axis in launch.grid]
        grid = (*axes, *[1] * (3 - len(axes)))
        arguments = [
            _argument(a.kind, a.dtype, buffers[a.name] if a.kind == "buffer" else symbols[a.name])
            for a in launch.arguments
        ]
        for argument in arguments:
            if isinstance(argument, Buffer):
                argument.new_launch()
        if min(grid) > 0:
            Launch.run(kernels[launch.kernel], grid, arguments)
        if between is not None:
            between(launch.kernel, buffers)
    return buffers
