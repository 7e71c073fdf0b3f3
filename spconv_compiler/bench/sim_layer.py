"""One convolution on the simulator, with the time that each launch takes: what the bench measures and counts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.artifact import Artifact
from spconv_compiler.coordinates import Box
from spconv_compiler.errors import SpconvError
from spconv_compiler.schedules.mappers import Z_DELTA
from spconv_compiler.sim.elf import CodeObject, Kernel
from spconv_compiler.sim.interpreter import Counts, Machine
from spconv_compiler.sim.run_plan import from_storage, run_plan, to_storage

Engine = Callable[[Mapping[str, Kernel], int], Any]


@dataclasses.dataclass(frozen=True)
class TimedLaunch:
    """A launch: wave instructions, and seconds of this host."""

    kernel: str
    instructions: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class LayerRun:
    """The result [N, C] as float32, the launches, and the bytes of all buffers."""

    out: npt.NDArray[np.float32]
    launches: list[TimedLaunch]
    allocated_bytes: int


class _TimedMachine:
    """A machine that notes how long its launches take."""

    def __init__(self, machine: Any) -> None:
        self.machine, self.memory = machine, machine.memory
        self.launches: list[TimedLaunch] = []

    def launch(self, name: str, *given: Any) -> Counts:
        start = time.perf_counter()
        counts: Counts = self.machine.launch(name, *given)
        self.launches.append(TimedLaunch(name, counts.instructions, time.perf_counter() - start))
        return counts


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """A C → C convolution over coords int32 [N, 4] with random operands, in storage dtype."""

    coords: npt.NDArray[np.int32]
    channels: int
    dtype: str
    features: npt.NDArray[Any]
    weight: npt.NDArray[Any]

    @staticmethod
    def load(file: str, channels: int, dtype: str) -> Problem:
        """From an .npy file of coordinates."""
        return Problem.make(np.load(file), channels, dtype)

    @staticmethod
    def make(coords: npt.NDArray[np.int32], channels: int, dtype: str) -> Problem:
        """Operands are drawn anew, the same for the same widths."""
        rng = np.random.default_rng(channels)
        features = rng.standard_normal((len(coords), channels), dtype=np.float32)
        weight = rng.standard_normal((channels, 3, 3, 3, channels), dtype=np.float32) / np.float32(channels**0.5)
        return Problem(coords, channels, dtype, to_storage(features, dtype), to_storage(weight, dtype))

    def operands(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Features and weight as the kernel reads them, float32."""
        return from_storage(self.features, self.dtype), from_storage(self.weight, self.dtype)

    def compile(self, schedule: str = "auto") -> Artifact:
        """The convolution; the result is f32. Its map is by a dense grid, by search where no buffer holds that."""
        from spconv_compiler.compiler import compile_conv
        from spconv_compiler.targets import get_target

        target, reach = get_target("gfx950"), ((3, 3, 3), (1, 1, 1))
        options: dict[str, Any] = {"dtype": self.dtype, "out_dtype": "f32", "schedule": schedule, "target": target.name}
        if len(self.coords) and self.box.symbols(*reach)["cells"] > target.narrow_cells:
            options |= {"mapper": Z_DELTA, "key_width": self.box.key_width(*reach)}
        return compile_conv(3, self.channels, self.channels, **options)

    @property
    def box(self) -> Box:
        """The box of the coordinates."""
        return Box(tuple(self.coords.min(axis=0).tolist()), tuple(self.coords.max(axis=0).tolist()))

    def run(self, artifact: Artifact, make: Engine, checks: bool = True) -> LayerRun:
        """Map, pairs, packing, fill and gemm, from the linked code object.

        checks: whether the engine keeps track of what was written; if so, all of the result must have been.

        Raises:
            SimulatorError: a kernel does what it must not do.
        """
        machines: list[_TimedMachine] = []

        def engine(kernels: Mapping[str, Kernel], budget: int) -> _TimedMachine:
            machines.append(_TimedMachine(make(kernels, budget)))
            return machines[-1]

        symbols = {**self.box.symbols((3, 3, 3), (1, 1, 1)), "rows": len(self.coords), "threads": 1}
        arrays = {"coords": self.coords, "features": self.features, "weight": self.weight}
        size = len(self.coords) * self.channels
        run = run_plan(CodeObject(artifact.object).kernels, artifact.plan, arrays, symbols, size, engine=engine)
        memory, result = run.machine.memory, run.buffers["out"]
        raw = memory.copy_out(result.address, result.size) if checks else memory.read_bytes(result)
        out = raw.view(np.float32)
        allocated = sum(buffer.size for buffer in run.buffers.values())
        return LayerRun(out.reshape(-1, self.channels), machines[0].launches, allocated)


def engine(native: bool, threads: int, checks: bool = True) -> Engine:
    """Makes machines of the native engine, or of the numpy engine, which has one thread and always checks.

    Raises:
        SpconvError: the numpy engine is asked to run without checks.
    """
    if not native:
        if not checks:
            raise SpconvError("the numpy engine always checks; accepted: the native engine without checks")
        return Machine
    from spconv_compiler.sim.native.machine import NativeMachine

    return lambda kernels, budget: NativeMachine(kernels, budget, threads=threads, checks=checks)


def warm_up(make: Engine, channels: int, dtype: str, checks: bool, schedule: str = "auto") -> None:
    """Runs one voxel, so that nothing is imported or built later."""
    problem = Problem.make(np.zeros((1, 4), np.int32), channels, dtype)
    problem.run(problem.compile(schedule), make, checks)
