"""The measurement behind `spconv-bench sim --schedules`: every gemm schedule on one frame, counted in one run.

What is compared is the launches from features to the result: the gemm, and the fill or the sum of parts that it needs.
Times are modelled, never measured on gfx950. Counters of memory come from every n-th workgroup, all of one chiplet.
That one may have more or less to do than others: what it asked for is scaled up by how often each instruction ran in
all of them. Then the layer runs once more, with the workgroups of these launches in an order drawn at random: whether
the result has the same bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from spconv_compiler.artifact import Artifact
from spconv_compiler.bench import sim_layer
from spconv_compiler.bench.frames import Frame
from spconv_compiler.bench.verify import Judge
from spconv_compiler.errors import Rejection
from spconv_compiler.sim import chip
from spconv_compiler.sim.access_counter import AccessCounter, Trace
from spconv_compiler.sim.cache_model import Traffic, replay
from spconv_compiler.sim.counters import LaunchCounters, count_launch
from spconv_compiler.sim.elf import Kernel
from spconv_compiler.sim.interpreter import Counts
from spconv_compiler.sim.memory import Allocation
from spconv_compiler.sim.timing import Band, model_launch
from spconv_compiler.sim.watched import Watcher

LINE = 128
_MB = 1e6


@dataclasses.dataclass(frozen=True)
class Launched:
    """One launch: counters, and caches of the workgroups that were replayed.

    asked: lines of 128 bytes that loads asked L2 for, by buffer; written: those that stores and atomics touch.
    moved: (bytes, 64-byte lines) of loads by buffer. busiest: memory instructions of the workgroup with the most, over
    those of the mean one.
    """

    counters: LaunchCounters
    traffic: Traffic
    band: Band
    asked: dict[str, float]
    written: float
    moved: dict[str, tuple[float, float]]
    busiest: float

    @property
    def l2_requests(self) -> float:
        return sum(self.asked.values()) + self.written


class Recorder:
    """A machine that counts and models the launches that write the output, and only runs the others."""

    def __init__(self, machine: Any, every: int, useful: Mapping[str, int]) -> None:
        self.machine, self.memory = machine, machine.memory
        self.useful = useful
        self.launches: list[Launched] = []
        # No less than the chiplets, so that all workgroups looked at are of one.
        self._watcher = Watcher(machine, max(every, chip.CHIPLETS))

    def launch(
        self,
        name: str,
        grid: Sequence[int],
        block: int,
        arguments: Sequence[int | Allocation],
        order: Sequence[int] | None = None,
    ) -> Counts:
        """Runs a launch: see interpreter.Machine.launch."""
        if name not in self.useful:
            counts: Counts = self.machine.launch(name, grid, block, arguments, order)
            return counts
        counter, sample = self._watcher.watch(name, grid, block, arguments)
        counts = self.machine.launch(name, grid, block, arguments, order)
        self.launches.append(self._count(name, int(np.prod(grid)), block, len(sample), arguments, counter, counts))
        return counts

    def _count(
        self,
        name: str,
        groups: int,
        block: int,
        watched: int,
        arguments: Sequence[int | Allocation],
        counter: AccessCounter,
        counts: Counts,
    ) -> Launched:
        program = self._watcher.program(name)
        counters = count_launch(
            program.kernel,
            program.instructions,
            counts.by_address,
            groups=groups,
            block=block,
            accesses=counter,
            useful_macs=self.useful[name] or None,
        )
        kinds = {address: one.kind for address, one in counter.by_address.items()}
        trace = counter.trace()
        traffic = replay(trace, kinds, max(1, counters.occupancy.groups_per_unit))
        buffers = [argument for argument in arguments if isinstance(argument, Allocation)]
        owners = _owners(trace, buffers)
        asked: dict[str, float] = {}
        moved: dict[str, tuple[float, float]] = {}
        for code, lines in traffic.asked.items():
            whole = counts.by_address.get(code, 0) / counter.ran[code]
            asked[owners[code]] = asked.get(owners[code], 0.0) + lines * whole
        for code, one in counter.by_address.items():
            if one.kind == "load" and code in owners:
                bytes_, lines_64 = moved.get(owners[code], (0.0, 0.0))
                moved[owners[code]] = bytes_ + one.bytes, lines_64 + one.lines_64
        stored = [counters.memory.get(f"vmem {kind}") for kind in ("store", "atomic")]
        written = sum(one.lines_128 for one in stored if one is not None)
        requests, seen = sum(asked.values()) + written, traffic.l2_requests
        scale = requests / seen if seen else groups / watched
        touched = sum(one.size for one in buffers)
        band = model_launch(program.instructions, counts.by_address, counters, traffic, scale, touched)
        return Launched(counters, traffic, band, asked, written, moved, _busiest(trace))


class _Shuffled:
    """A machine that starts the workgroups of the launches named in an order drawn at random."""

    def __init__(self, machine: Any, names: Collection[str]) -> None:
        self.machine, self.memory, self._names = machine, machine.memory, names
        self._rng = np.random.default_rng(len(names))

    def launch(
        self,
        name: str,
        grid: Sequence[int],
        block: int,
        arguments: Sequence[int | Allocation],
        order: Sequence[int] | None = None,
    ) -> Counts:
        """Runs a launch: see interpreter.Machine.launch."""
        if name in self._names:
            order = self._rng.permutation(int(np.prod(grid))).tolist()
        counts: Counts = self.machine.launch(name, grid, block, arguments, order)
        return counts


def _busiest(trace: Trace) -> float:
    """Memory instructions of the workgroup with the most of them, over those of the mean one."""
    each = np.unique(trace.groups, return_counts=True)[1]
    return float(each.max() / each.mean()) if len(each) else 1.0


def _owners(trace: Trace, buffers: Sequence[Allocation]) -> dict[int, str]:
    """The buffer that each instruction reads or writes, from its first line."""
    owners: dict[int, str] = {}
    codes, firsts = np.unique(trace.codes, return_index=True)
    for code, index in zip(codes.tolist(), firsts.tolist(), strict=True):
        lines = trace.lines[trace.starts[index] : trace.starts[index + 1]]
        if len(lines):
            at = int(lines[0]) * LINE
            found = [one for one in buffers if one.address - LINE < at < one.address + one.size]
            owners[code] = found[0].name if found else ""
    return owners


def measure(
    frame: Frame,
    channels: int,
    dtype: str,
    schedules: Sequence[str],
    *,
    threads: int,
    every: int,
    progress: Callable[[str], None] = lambda name: None,
) -> list[dict[str, Any]]:
    """One row of figures for each schedule, as plain JSON values.

    Raises:
        SpconvError: a schedule does not serve the problem, or a kernel does what it must not do.
    """
    rows = []
    problem = sim_layer.Problem.make(frame.coords, channels, dtype)
    for name in schedules:
        progress(name)
        rows.append(_row(name, frame, problem, threads, every))
    return rows


def _row(name: str, frame: Frame, problem: sim_layer.Problem, threads: int, every: int) -> dict[str, Any]:
    artifact = problem.compile(schedule=name)
    output = [one.kernel for one in artifact.plan.launches if one.group == "output"]
    useful = {kernel: frame.pairs * problem.channels**2 if "gemm" in kernel else 0 for kernel in output}
    make, recorders = sim_layer.engine(True, threads), list[Recorder]()

    def engine(kernels: Mapping[str, Kernel], budget: int) -> Recorder:
        recorders.append(Recorder(make(kernels, budget), every, useful))
        return recorders[-1]

    run = problem.run(artifact, engine)
    features, weight = problem.operands()
    check = Judge(frame.table, features, weight, "f32").compare(run.out)
    figures = _figures(artifact, recorders.pop().launches)
    again = problem.run(artifact, lambda kernels, budget: _Shuffled(make(kernels, budget), output))
    same = np.array_equal(again.out.view(np.uint32), run.out.view(np.uint32))
    return {"schedule": name, "right": bool(check.ok), "same_bits": same, **figures}


def _figures(artifact: Artifact, launches: Sequence[Launched]) -> dict[str, Any]:
    gemm = next(one for one in launches if "gemm" in one.counters.kernel)
    counted, terms = gemm.counters, gemm.band.terms["likely"]
    lds = counted.lds.values()
    phases, cycles = sum(one.phases for one in lds), sum(one.cycles for one in lds)
    bytes_, lines = gemm.moved.get("features", (0.0, 0.0))
    facts = artifact.meta["kernels"][counted.kernel]
    useful = counted.matrix.useful_macs or 1
    return {
        "kernel": counted.kernel,
        "launches": len(launches),
        "executed_over_useful": counted.matrix.executed_macs / useful,
        "l2_requests": sum(one.l2_requests for one in launches),
        "weights_from_l2_bytes": LINE * gemm.asked.get("packed", 0.0),
        "l2_lines": {**gemm.asked, "written": gemm.written},
        "modelled_terms": terms,
        "gather_coalescing": bytes_ / (64 * lines) if lines else None,
        "atomic_segments": sum(one.counters.atomic_segments or 0 for one in launches),
        "lds_conflicts": cycles / phases if phases else None,
        "waves_per_simd": counted.occupancy.waves_per_simd,
        "registers": facts["vgpr"],
        "spills": facts["vgpr_spills"] + facts["scratch_bytes"],
        "matrix_busy": terms["matrix"] / (gemm.band.estimate_us - terms["launch"]),
        "busiest_group": gemm.busiest,
        "limited_by": gemm.band.limited_by["likely"],
        "gemm_us": gemm.band.estimate_us,
        "modelled_us": [sum(getattr(one.band, f"{which}_us") for one in launches) for which in _BAND],
    }


_BAND = ("lower", "estimate", "pessimistic")


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells."""
    columns = ["schedule", "result", "same bits", "executed/useful", "L2 requests", "weights from L2", "coalescing"]
    columns += ["atomics", "LDS", "registers", "waves/SIMD", "MFMA busy", "busiest group", "limited by", "launches"]
    columns += ["modelled us", "band"]
    cells = []
    for row in rows:
        low, likely, high = row["modelled_us"]
        cells.append(
            [
                row["schedule"],
                "right" if row["right"] else "WRONG",
                "yes" if row["same_bits"] else "no",
                f"{row['executed_over_useful']:.2f}",
                f"{row['l2_requests'] / 1e6:.2f} M",
                f"{row['weights_from_l2_bytes'] / _MB:.0f} MB",
                _share(row["gather_coalescing"]),
                f"{row['atomic_segments'] / 1e6:.2f} M",
                "-" if row["lds_conflicts"] is None else f"{row['lds_conflicts']:.2f}",
                str(row["registers"]) + (" SPILLS" if row["spills"] else ""),
                f"{row['waves_per_simd']:.0f}",
                f"{row['matrix_busy']:.0%}",
                f"{row['busiest_group']:.1f}",
                row["limited_by"],
                str(row["launches"]),
                f"{likely:.1f}",
                f"{low:.1f}-{high:.0f}",
            ]
        )
    return columns, cells


def _share(value: float | None) -> str:
    return "-" if value is None else f"{min(value, 1.0):.0%}"


def legal(channels: int, dtype: str, taps: int = 27) -> tuple[list[str], list[Rejection]]:
    """The schedules that serve a C → C convolution on gfx950, and why the others do not."""
    from spconv_compiler.schedules import Problem, rejections
    from spconv_compiler.targets import get_target

    found = rejections(Problem(taps, channels, channels, dtype), get_target("gfx950"))
    refused = [Rejection(name, reason) for name, reason in found.items() if reason is not None]
    return [name for name, reason in found.items() if reason is None], refused
