"""Runs a compiled convolution's launch plan on the simulator: the host's side of a launch, on numpy arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.arrays import ITEM_BYTES
from spconv_compiler.artifact import Artifact
from spconv_compiler.coordinates import Box
from spconv_compiler.plan import Plan, evaluate
from spconv_compiler.sim import algebra as al
from spconv_compiler.sim.elf import CodeObject, Kernel
from spconv_compiler.sim.errors import Fault, LaunchFault
from spconv_compiler.sim.interpreter import BUDGET, Counts, Machine
from spconv_compiler.sim.memory import Allocation

Values = npt.NDArray[Any]
_STORAGE = {"f32": np.float32, "i32": np.int32, "i64": np.int64, "bf16": np.uint16, "f16": np.float16}


@dataclasses.dataclass
class PlanRun:
    """What a run leaves: the machine, every buffer of the plan by name, and the counts of each launch."""

    machine: Any
    buffers: dict[str, Allocation]
    launches: list[tuple[str, Counts]]

    def array(self, name: str, dtype: str) -> Values:
        """The contents of a buffer; bf16 as uint16."""
        return np.asarray(self.machine.memory.read_bytes(self.buffers[name]).view(_STORAGE[dtype]))


def to_storage(values: Any, dtype: str) -> Values:
    """An array in the plan's dtype; values of bf16 are float32 numbers that it represents, or others to round."""
    array = np.asarray(values)
    if dtype == "bf16":
        return np.asarray(al.bf16_bits(array.astype(np.float32)).astype(np.uint16))
    return array.astype(_STORAGE[dtype])


def from_storage(raw: Values, dtype: str) -> npt.NDArray[np.float32]:
    """float32 values of what a buffer of a floating-point dtype holds."""
    if dtype == "bf16":
        return np.asarray(al.from_bf16(raw), np.float32)
    return raw.astype(np.float32)


def run_plan(
    kernels: Mapping[str, Kernel],
    plan: Plan,
    inputs: Mapping[str, Values],
    symbols: Mapping[str, int],
    out_size: int,
    *,
    budget: int = BUDGET,
    reverse: bool = False,
    engine: Callable[[Mapping[str, Kernel], int], Any] = Machine,
) -> PlanRun:
    """Runs every launch of a plan in order.

    Args:
        inputs: arrays by the names of the plan's inputs, in storage dtype, all but `out`.
        symbols: values of the plan's symbols.
        out_size: elements of the output.
        budget: wave instructions that a launch may take. reverse: workgroups start in descending order.
        engine: makes the machine from kernels and budget.

    Raises:
        LaunchError: a requirement of the plan does not hold.
        SimulatorError: the code object is damaged, or a kernel does what it must not do.
    """
    plan.check(symbols)
    machine = engine(kernels, budget)
    buffers: dict[str, Allocation] = {}
    for name, dtype in plan.inputs:
        size = out_size if name == "out" else inputs[name].size
        buffers[name] = machine.memory.allocate(name, size * ITEM_BYTES[dtype], writable=name == "out")
        if name != "out":
            machine.memory.write_array(buffers[name], inputs[name])
    for buffer in plan.buffers:
        size = evaluate(buffer.size, symbols) * ITEM_BYTES[buffer.dtype]
        buffers[buffer.name] = machine.memory.allocate(buffer.name, size)
    launches = []
    for launch in plan.launches:
        grid = [evaluate(axis, symbols) for axis in launch.grid]
        arguments = [buffers[a.name] if a.kind == "buffer" else symbols[a.name] for a in launch.arguments]
        if min(grid) > 0:
            groups = range(int(np.prod(grid)) - 1, -1, -1) if reverse else None
            launches.append((launch.kernel, machine.launch(launch.kernel, grid, launch.block, arguments, groups)))
    return PlanRun(machine, buffers, launches)


def run_conv(
    artifact: Artifact,
    coords: Any,
    features: Any,
    weight: Any,
    bias: Any = None,
    *,
    budget: int = BUDGET,
    reverse: bool = False,
    kernels: Mapping[str, Kernel] | None = None,
    engine: Callable[[Mapping[str, Kernel], int], Any] = Machine,
) -> npt.NDArray[np.float32]:
    """A submanifold convolution, run from its linked code object.

    Args:
        artifact: what compile_conv gives for a GPU target.
        coords: int [N, 4] (batch, z, y, x). features: [N, C_in]. weight: [C_out, kz, ky, kx, C_in]. bias: [C_out].
        kernels: to run instead of the artifact's. engine: see run_plan.

    Returns:
        float32 [N, C_out], the values of the compiled out_dtype.

    Raises:
        SimulatorError: see run_plan; a Fault too when an element of the output is left unwritten.
    """
    options = artifact.meta["options"]
    rows = np.asarray(coords, np.int32)
    if (bias is not None) != options["bias"]:
        raise LaunchFault("a bias is given if and only if the convolution was compiled with one")
    given = {"coords": rows, "features": features, "weight": weight, "bias": bias}
    dtypes = dict(artifact.plan.inputs)
    arrays = {name: to_storage(given[name], dtype) for name, dtype in dtypes.items() if name != "out"}
    low, high = (rows.min(axis=0), rows.max(axis=0)) if len(rows) else (np.zeros(4, int), np.zeros(4, int))
    box = Box(tuple(map(int, low)), tuple(map(int, high)))  # type: ignore[arg-type]
    kernel, dilation = tuple(options["kernel_size"]), tuple(options["dilation"])
    symbols = {**box.symbols(kernel, dilation), "rows": len(rows), "threads": 1}
    size = len(rows) * options["c_out"]
    found = CodeObject(artifact.object).kernels if kernels is None else kernels
    run = run_plan(found, artifact.plan, arrays, symbols, size, budget=budget, reverse=reverse, engine=engine)
    written = run.machine.memory.initialised(run.buffers["out"])
    if not written.all():
        raise Fault(f"the output is not whole: byte {int((~written).argmax())} of {len(written)} was never written")
    return from_storage(run.array("out", dtypes["out"]), dtypes["out"]).reshape(len(rows), options["c_out"])
