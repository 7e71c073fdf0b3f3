"""The measurement behind `spconv-bench sim`: how fast the simulator runs, and what it says of gfx950.

Times are of this host: of the build of handlers, of a whole layer, of its gemm with and without checks. What is said
of gfx950 (--counters) is counted, and its times are modelled.
"""

from __future__ import annotations

import datetime
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spconv_compiler.bench import sim_child, sim_layer
from spconv_compiler.bench.frames import Frame, load_frame
from spconv_compiler.bench.machine import machine, versions
from spconv_compiler.bench.verify import Judge
from spconv_compiler.sim import chip
from spconv_compiler.sim.elf import Kernel
from spconv_compiler.sim.watched import WatchedMachine

_MB = 2**20
# What issue of the simulator asks for: memory beyond the allocations.
_MEMORY_ALLOWANCE = 2**30


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        frame: a name (frames.py); data: folder of the point clouds.
        channels: C of the C → C convolution; dtype: of features and weight.
        threads: of the engine. runs: behind each median.
        native: the native engine, else numpy's.
        counters: also count and model every launch; sample: of every so many workgroups.
        schedule: of the gemm, or "auto".
    """

    frame: str
    channels: int
    dtype: str
    threads: int
    runs: int
    data: Path
    native: bool = True
    counters: bool = False
    sample: int = chip.CHIPLETS
    schedule: str = "auto"


def steps(settings: Settings) -> int:
    """How often `measure` tells of progress."""
    return (3 if settings.native else 1) + settings.counters


def measure(settings: Settings, progress: Callable[[str], None] = lambda step: None) -> dict[str, Any]:
    """Measures and returns everything as plain JSON values.

    Raises:
        InputError: an unknown frame. SpconvError: an unknown schedule, a kernel that does what it must not do, or
            something that cannot be built.
    """
    frame = load_frame(settings.frame, settings.data)
    result: dict[str, Any] = {
        "format": 1,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(settings.threads),
        "versions": versions(),
        "settings": {**asdict(settings), "data": settings.data.name},
        "frame": {"name": frame.name, "N": len(frame.coords), "pairs": frame.pairs},
    }
    with tempfile.TemporaryDirectory(prefix="spconv-bench-") as scratch:
        if settings.native:
            progress("handlers")
            result["handlers"] = _handlers(scratch)
        for checks in (True, False)[: 2 if settings.native else 1]:
            progress("checked" if checks else "unchecked")
            result["checked" if checks else "unchecked"] = _layer(frame, settings, checks, scratch)
    if settings.counters:
        progress("counters")
        result["launches"] = _counters(frame, settings)
        result["facts"] = {name: asdict(fact) for name, fact in chip.FACTS.items()}
        result["chip"] = {name: {"value": getattr(chip, name), "source": text} for name, text in chip.SOURCES.items()}
    return result


def _handlers(scratch: str) -> dict[str, Any]:
    """First build of all handlers with checks, without, and loading what was built."""
    found = {}
    for name, checks in (("checked", True), ("unchecked", False)):
        first, again = (sim_child.measure("handlers", checks=checks, cache_dir=scratch) for _ in range(2))
        found[name] = {"build_ms": first["ms"], "load_ms": again["ms"], "handlers": first["handlers"]}
    return found


def _layer(frame: Frame, settings: Settings, checks: bool, scratch: str) -> dict[str, Any]:
    """The layer in a process of its own; its result is compared with exact sums here."""
    file = Path(scratch) / f"{frame.name}.npy"
    np.save(file, frame.coords)
    found = sim_child.measure(
        "layer",
        frame=str(file),
        channels=settings.channels,
        dtype=settings.dtype,
        threads=settings.threads,
        checks=checks,
        runs=settings.runs,
        native=settings.native,
        schedule=settings.schedule,
        cache_dir=scratch,
    )
    features, weight = sim_layer.Problem.make(frame.coords, settings.channels, settings.dtype).operands()
    check = Judge(frame.table, features, weight, "f32").compare(np.load(found["out"]))
    tiles = sim_child.measure(
        "lds", threads=settings.threads, checks=checks, runs=settings.runs, native=settings.native, cache_dir=scratch
    )
    launches = [
        {**one, "seconds": statistics.median(one["seconds"]), "all_seconds": one["seconds"]}
        for one in found["launches"]
    ]
    gemm = next(one for one in launches if one["kernel"].startswith("gemm"))
    return {
        "seconds": statistics.median(found["seconds"]),
        "all_seconds": found["seconds"],
        "launches": launches,
        "instructions": sum(one["instructions"] for one in launches),
        "gemm_instructions_per_second": gemm["instructions"] / gemm["seconds"],
        "lds_instructions_per_second": tiles["instructions"] / statistics.median(tiles["seconds"]),
        "allocated_bytes": found["allocated_bytes"],
        "peak_bytes": found["peak_bytes"],
        "peak_limit_bytes": 2 * found["allocated_bytes"] + _MEMORY_ALLOWANCE,
        "check": {"ok": check.ok and tiles["right"], "max_error": check.max_error, "of_bound": check.max_ratio},
    }


def _counters(frame: Frame, settings: Settings) -> list[dict[str, Any]]:
    """Counters and modelled band of every launch."""
    problem = sim_layer.Problem.make(frame.coords, settings.channels, settings.dtype)
    artifact = problem.compile(settings.schedule)
    make = sim_layer.engine(settings.native, settings.threads)
    # Only the gemm multiplies; how much it has to is known here.
    useful = {one.kernel: frame.pairs * settings.channels**2 for one in artifact.plan.launches if "gemm" in one.kernel}
    watched: list[WatchedMachine] = []

    def engine(kernels: Mapping[str, Kernel], budget: int) -> WatchedMachine:
        watched.append(WatchedMachine(make(kernels, budget), settings.sample, useful))
        return watched[-1]

    problem.run(artifact, engine)
    return [one.to_json() for one in watched[0].launches]


def speed_table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells: the launches of the layer on this host."""
    names = [name for name in ("checked", "unchecked") if name in result]
    columns = ["launch", "M wave-instr"]
    for name in names:
        columns += [f"{name} s", "M/s"]
    cells = []
    for number, one in enumerate(result[names[0]]["launches"]):
        line = [_short(one["kernel"]), f"{one['instructions'] / 1e6:.2f}"]
        for name in names:
            each = result[name]["launches"][number]
            line += [f"{each['seconds']:.3f}", f"{each['instructions'] / each['seconds'] / 1e6:.1f}"]
        cells.append(line)
    return columns, cells


def counter_table(launches: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells: counters and modelled times."""
    columns = ["launch", "M instr", "MFMA passes", "useful MACs", "MB asked", "coalescing", "atomic segments"]
    columns += ["LDS conflicts", "waves/SIMD", "limited by", "modelled us", "lower", "pessimistic", "busiest"]
    cells = []
    for one in launches:
        counted, modelled = one["counters"], one["modelled"]
        matrix, vmem = counted["matrix"], [v for k, v in counted["memory"].items() if k.startswith("vmem")]
        asked, touched = (sum(part[name] for part in vmem) for name in ("bytes", "lines_64"))
        phases, cycles = (sum(part[name] for part in counted["lds"].values()) for name in ("phases", "cycles"))
        useful = matrix["useful_macs"] and f"{matrix['useful_macs'] / matrix['executed_macs']:.1%}"
        cells.append(
            [
                _short(counted["kernel"]),
                f"{counted['instructions'] / 1e6:.2f}",
                f"{matrix['passes']:,}",
                useful or "-",
                f"{asked / _MB:.1f}",
                f"{asked / (64 * touched):.0%}" if touched else "-",
                f"{counted['atomic_segments']:,}",
                f"{cycles / phases - 1:.0%}" if phases else "-",
                f"{counted['occupancy']['waves_per_simd']:.0f}",
                counted["occupancy"]["limited_by"][0],
                *(f"{modelled[name]:.1f}" for name in ("estimate_us", "lower_us", "pessimistic_us")),
                modelled["limited_by"]["likely"],
            ]
        )
    return columns, cells


def notes(result: dict[str, Any]) -> list[str]:
    """What the tables do not say, one line each."""
    lines = []
    for name, one in result.get("handlers", {}).items():
        seconds, ms = one["build_ms"] / 1e3, one["load_ms"]
        lines.append(f"handlers, {name}: {one['handlers']} built in {seconds:.2f} s, loaded in {ms:.0f} ms")
    for name in ("checked", "unchecked"):
        if name in result:
            one = result[name]
            verdict = "right" if one["check"]["ok"] else "WRONG"
            lines.append(
                f"{name}: whole layer {one['seconds']:.2f} s, {one['instructions'] / 1e6:.1f} M wave instructions; "
                f"gemm {one['gemm_instructions_per_second'] / 1e6:.1f}, LDS tiles with barriers "
                f"{one['lds_instructions_per_second'] / 1e6:.1f} M wave-instr/s; result {verdict}"
            )
            lines.append(
                f"{name}: peak memory {one['peak_bytes'] / _MB:,.0f} MB for {one['allocated_bytes'] / _MB:,.0f} MB of "
                f"buffers; limit {one['peak_limit_bytes'] / _MB:,.0f} MB"
            )
    return lines


def _short(kernel: str) -> str:
    return kernel if len(kernel) <= 24 else kernel[:23] + "…"
