"""The measurement behind `spconv-bench report`: one convolution on one frame, as a page to read (report_html.py).

Everything about gfx950 on it is counted in the simulator, or modelled from what is counted.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.bench import sim_layer
from spconv_compiler.bench.frames import Frame, load_frame
from spconv_compiler.bench.machine import versions
from spconv_compiler.sim import chip
from spconv_compiler.sim.decode import decode
from spconv_compiler.sim.elf import CodeObject, Kernel
from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.watched import WatchedLaunch, WatchedMachine

STEPS = 3


@dataclass(frozen=True)
class Settings:
    """What to report on.

    Attributes:
        frame: a name (frames.py); data: folder of the point clouds.
        channels: C of the C → C convolution; dtype: of features and weight; schedule: a name, or "auto".
        threads: of the engine; native: the native engine, else numpy's. sample: every so many workgroups are watched.
    """

    frame: str
    channels: int
    dtype: str
    schedule: str
    threads: int
    data: Path
    native: bool = True
    sample: int = chip.CHIPLETS


@dataclass(frozen=True, eq=False)
class KernelPage:
    """One launch: the kernel, its instructions, and what was counted and modelled."""

    kernel: Kernel
    instructions: list[Instruction]
    launch: WatchedLaunch

    @property
    def operations(self) -> tuple[float, str]:
        """(what the kernel computes, its name): operations of multiply-adds, or of lanes where it has no MFMA."""
        counters = self.launch.counters
        if counters.matrix.executed_macs:
            return 2.0 * counters.matrix.executed_macs, "FLOP"
        return float(chip.LANES * sum(counters.by_class.get(name, 0) for name in ("valu", "trans"))), "lane op"

    @property
    def peak(self) -> float:
        """Operations a second if only the unit that makes them had work: the likely clock, all compute units."""
        simds = chip.COMPUTE_UNITS * chip.SIMDS
        hertz = chip.FACTS["clock"].likely * 1e9
        matrix = self.launch.counters.matrix
        if matrix.executed_macs:
            cycles = chip.FACTS["mfma_pass"].likely * matrix.passes
            return 2.0 * matrix.executed_macs / cycles * simds * hertz
        return chip.LANES / chip.FACTS["valu"].likely * simds * hertz


@dataclass(frozen=True, eq=False)
class Page:
    """All that the page shows.

    Attributes:
        pairs: int64 [N], of each voxel. taps: share of voxels that have a neighbour at each tap [27].
    """

    settings: Settings
    date: str
    versions: dict[str, str | None]
    frame: Frame
    pairs: npt.NDArray[np.int64]
    taps: npt.NDArray[np.float64]
    kernels: list[KernelPage]


def measure(settings: Settings, progress: Callable[[str], None] = lambda step: None) -> Page:
    """Runs the convolution with every launch watched.

    Raises:
        InputError: an unknown frame. SpconvError: the schedule does not fit, or a kernel does what it must not do.
    """
    progress("frame")
    frame = load_frame(settings.frame, settings.data)
    progress("compile")
    problem = sim_layer.Problem.make(frame.coords, settings.channels, settings.dtype)
    artifact = problem.compile(settings.schedule)
    progress("run and count")
    make = sim_layer.engine(settings.native, settings.threads)
    useful = {one.kernel: frame.pairs * settings.channels**2 for one in artifact.plan.launches if "gemm" in one.kernel}
    watched: list[WatchedMachine] = []

    def engine(kernels: Mapping[str, Kernel], budget: int) -> WatchedMachine:
        watched.append(WatchedMachine(make(kernels, budget), settings.sample, useful))
        return watched[-1]

    problem.run(artifact, engine)
    kernels = CodeObject(artifact.object).kernels
    there = frame.table >= 0
    return Page(
        settings,
        datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        versions(),
        frame,
        there.sum(axis=1),
        there.mean(axis=0) if len(there) else np.zeros(there.shape[1]),
        [_kernel(kernels[launch.counters.kernel], launch) for launch in watched[0].launches],
    )


def _kernel(kernel: Kernel, launch: WatchedLaunch) -> KernelPage:
    return KernelPage(kernel, decode(kernel.code, kernel.address), launch)


def to_json(page: Page) -> dict[str, Any]:
    """The same counters as plain JSON values, as `spconv-bench sim --counters` gives them."""
    return {
        "frame": {"name": page.frame.name, "N": len(page.frame.coords), "pairs": page.frame.pairs},
        "launches": [one.launch.to_json() for one in page.kernels],
    }
