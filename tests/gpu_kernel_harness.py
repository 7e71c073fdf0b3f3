"""Kernel bodies of passes/gpu on their own: compiled to a code object, and run on the simulator with all checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spconv_compiler.bindings import ir
from spconv_compiler.codegen_gpu import emit_gpu
from spconv_compiler.context import make_context
from spconv_compiler.linker import toolkit_dir
from spconv_compiler.passes.kernel_module import gpu_kernel
from spconv_compiler.pipeline import passes_between
from spconv_compiler.sim.elf import CodeObject, Kernel
from spconv_compiler.sim.interpreter import Machine
from spconv_compiler.sim.native.machine import NativeMachine
from spconv_compiler.targets import GpuTarget, get_target

NAME = "kernel"


def compiled(
    types: Callable[[], Sequence[ir.Type]],
    lanes: int,
    body: Callable[..., None],
    workgroup: Callable[[], Sequence[ir.Type]] = tuple,
    lower: Callable[[ir.Module], None] = lambda module: None,
) -> dict[str, Kernel]:
    """The kernels of a code object with one kernel, called NAME.

    Args:
        types, workgroup: make the types of its arguments and of its workgroup memory, in a context.
        lower: what is done to the module at level gpu first.
    """
    target = get_target("gfx950")
    assert isinstance(target, GpuTarget)
    with make_context(), ir.Location.unknown():
        module = ir.Module.create()
        gpu_kernel(module, NAME, types(), lanes, body, workgroup=workgroup())
        assert module.operation.verify()
        lower(module)
        for stage in passes_between(target, "gpu", "rocdl"):
            for pass_ in stage.passes:
                pass_.run(module)
        return dict(CodeObject(emit_gpu(module, target, toolkit_dir()).object).kernels)


def machine_for(kernels: dict[str, Kernel], threads: int = 1, native: bool = True) -> Any:
    """The native engine, or numpy's."""
    return NativeMachine(kernels, threads=threads) if native else Machine(kernels)


def run(
    kernels: dict[str, Kernel],
    grid: Sequence[int],
    lanes: int,
    arguments: Sequence[Any],
    *,
    seed: int | None = None,
    threads: int = 1,
    native: bool = True,
) -> list[Any]:
    """Runs the kernel; arrays among the arguments become buffers. Their contents afterwards, numbers as they were.

    Args:
        seed: shuffles the order in which workgroups start.
        native: on the native engine, else on numpy's.
    """
    machine = machine_for(kernels, threads, native)
    values: list[Any] = []
    for number, argument in enumerate(arguments):
        if isinstance(argument, np.ndarray):
            values.append(machine.memory.allocate(f"argument {number}", argument.nbytes))
            machine.memory.write_array(values[-1], argument)
        else:
            values.append(argument)
    order = None if seed is None else np.random.default_rng(seed).permutation(int(np.prod(grid))).tolist()
    machine.launch(NAME, list(grid), lanes, values, order)
    return [
        machine.memory.read_bytes(value).view(argument.dtype) if isinstance(argument, np.ndarray) else argument
        for value, argument in zip(values, arguments, strict=True)
    ]
