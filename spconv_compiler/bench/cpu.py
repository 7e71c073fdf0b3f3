"""The measurement behind `spconv-bench cpu`: this compiler's convolutions on this host, and a peer's beside them.

Contestants take turns within every round, so that what disturbs the machine disturbs all of them; figures are
medians over the rounds. Both get the same tensors and the same threads. With the map "built", every call gets
coordinates it has not seen; with it "cached", the same tensor again.
"""

from __future__ import annotations

import concurrent.futures
import datetime
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from spconv_compiler import env, nets
from spconv_compiler.api import clear_caches, subm_conv3d
from spconv_compiler.bench import child, cpu_goals, report
from spconv_compiler.bench.frames import Frame, load_frame
from spconv_compiler.bench.machine import machine, versions
from spconv_compiler.bench.peer import SpconvPeer, load_spconv, set_threads
from spconv_compiler.bench.report import KINDS
from spconv_compiler.bench.verify import Judge, relative_difference
from spconv_compiler.errors import SpconvError

# Other runtimes' threads spin for a while after their work; let them go to sleep before the next turn.
_SETTLE_SECONDS = 0.005
# spconv with the threads that all have, and with one (see peer.py), and which of them an option asks for.
_PEERS = ("spconv", "spconv_one_thread")
PEER_THREADS = {"both": _PEERS, "same": _PEERS[:1], "one": _PEERS[1:]}
# After this long a width has its median from fewer rounds, three at least: the wide ones vary little.
_WIDTH_SECONDS, _LEAST_RUNS = 5.0, 3
# Two correct f32 results differ by rounding, some 1e-6 of the largest value.
_PEER_WRONG = 1e-4
_MB = 2**20


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        frames: names (frames.py); data: folder of the point clouds; shuffle: rows in random order.
        channels: C of the C→C convolutions; dtypes: of ours, out of f32, bf16, f16.
        runs: rounds behind each median, three where they take long; threads: of every contestant.
        peer: measure spconv beside; peer_threads: with as many threads ("same"), with "one", or "both".
        processes: also measure import, compilation and memory in processes of their own.
    """

    frames: tuple[str, ...]
    channels: tuple[int, ...]
    dtypes: tuple[str, ...]
    runs: int
    threads: int
    data: Path
    shuffle: bool = False
    peer: bool = False
    peer_threads: str = "both"
    processes: bool = True


@dataclass
class _Contestant:
    """An implementation with its inputs: built(coords, features) and cached(…) give [N, C_out]."""

    built: Callable[[Any, Any], Any]
    cached: Callable[[Any, Any], Any]
    features: Any
    prepare: Callable[[], object] = lambda: None
    built_ms: list[float] = field(default_factory=list)
    cached_ms: list[float] = field(default_factory=list)
    wrong_runs: int | None = None


def measure(settings: Settings, progress: Callable[[str], None] = lambda step: None) -> dict[str, Any]:
    """Measures and returns everything as plain JSON values.

    Args:
        progress: told what comes next: one step a frame and width, and one for the rest.

    Raises:
        InputError: an unknown frame, or the peer is not installed.
    """
    import torch  # noqa: F401  (before the threads are set)

    if settings.peer:
        load_spconv()
    env.NUM_THREADS.set(str(settings.threads))
    pools = set_threads(settings.threads)
    with tempfile.TemporaryDirectory(prefix="spconv-bench-") as scratch:
        rows: list[dict[str, Any]] = []
        small = {}
        for name in settings.frames:
            frame = load_frame(name, settings.data, settings.shuffle)
            for channels in settings.channels:
                progress(f"{name}, C = {channels}")
                rows += _measure_width(frame, channels, settings, Path(scratch))
        progress("compilation, import, small calls")
        small = {str(channels): _small_call_us(channels) for channels in settings.channels}
        processes = _measure_processes(settings, Path(scratch)) if settings.processes else {}
    result = {
        "format": 1,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(settings.threads),
        "versions": versions(),
        "settings": {**asdict(settings), "data": settings.data.name},
        "thread_pools": pools,
        "rows": rows,
        "summary": report.summarize(rows),
        "small_call_us": small,
        **processes,
    }
    return {**result, "goals": cpu_goals.as_json(result)}


def _measure_width(frame: Frame, channels: int, settings: Settings, scratch: Path) -> list[dict[str, Any]]:
    """All contestants on one frame with C = channels; one row per dtype."""
    import torch

    rng = np.random.default_rng(channels)
    features = rng.standard_normal((len(frame.coords), channels), dtype=np.float32)
    weight = rng.standard_normal((channels, 3, 3, 3, channels), dtype=np.float32) / np.float32(channels**0.5)
    coords = torch.from_numpy(frame.coords)
    entries: dict[str, _Contestant] = {}
    first_ms, weights = {}, {}
    cache = scratch / f"{frame.name}-{channels}"
    for dtype in settings.dtypes:
        weights[dtype] = _tensor(weight, dtype)
        entries[dtype] = _own(weights[dtype], _tensor(features, dtype), settings.threads)
        first_ms[dtype] = _first_call_ms(entries[dtype], coords, cache)
    if settings.peer:
        for name in PEER_THREADS[settings.peer_threads]:
            threads = settings.threads if name == _PEERS[0] else 1
            peer = SpconvPeer(torch.from_numpy(weight), frame.spatial_shape, threads)
            entries[name] = _Contestant(peer.built, peer.cached, torch.from_numpy(features), peer.prepare)
    outs = _take_turns(entries, coords, settings.runs)
    set_threads(settings.threads)
    memory = _memory_of_all(frame, channels, settings, cache) if settings.processes else {}
    rows = []
    for dtype in settings.dtypes:
        judge = Judge(frame.table, entries[dtype].features, weights[dtype], dtype)
        row = _row(frame, channels, dtype, entries, outs, judge)
        row["first_call_ms"] = first_ms[dtype]
        row.update(memory.get(dtype, {}))
        rows.append(row)
    return rows


def _tensor(values: np.ndarray[Any, np.dtype[np.float32]], dtype: str) -> Any:
    import torch

    given = nets.to_dtype(values, dtype)
    return torch.from_numpy(given) if isinstance(given, np.ndarray) else given


def _own(weight: Any, features: Any, threads: int) -> _Contestant:
    def run(coords: Any, features: Any) -> Any:
        return subm_conv3d(coords, features, weight, target="cpu")

    # Threads of torch bound those of this package, and the peer has set them.
    return _Contestant(run, run, features, lambda: set_threads(threads))


def _first_call_ms(entry: _Contestant, coords: Any, folder: Path) -> float:
    """Compiling (`folder` has no such kernel), map, packing, convolution; MLIR itself is loaded already."""
    from spconv_compiler import bindings  # noqa: F401

    env.CACHE.set("on")
    env.CACHE_DIR.set(str(folder))
    clear_caches()
    start = time.perf_counter()
    entry.built(coords.clone(), entry.features)
    return (time.perf_counter() - start) * 1e3


def _take_turns(entries: dict[str, _Contestant], coords: Any, runs: int) -> dict[str, Any]:
    """Times all contestants in at most `runs` rounds after one that warms up; returns each one's last result."""
    outs: dict[str, Any] = {}
    began = time.perf_counter()
    for turn in range(runs + 1):
        if turn > _LEAST_RUNS and time.perf_counter() - began > _WIDTH_SECONDS:
            break
        for cached in (False, True):
            for name, entry in entries.items():
                given = coords if cached else coords.clone()
                entry.prepare()
                run, times = (entry.cached, entry.cached_ms) if cached else (entry.built, entry.built_ms)
                time.sleep(_SETTLE_SECONDS)
                start = time.perf_counter()
                out = run(given, entry.features)
                elapsed = (time.perf_counter() - start) * 1e3
                if turn:
                    times.append(elapsed)
                if name in _PEERS and "f32" in outs:
                    wrong = relative_difference(out, outs["f32"]) > _PEER_WRONG
                    entry.wrong_runs = (entry.wrong_runs or 0) + wrong
                outs[name] = out
    return outs


def _row(
    frame: Frame, channels: int, dtype: str, entries: dict[str, _Contestant], outs: dict[str, Any], judge: Judge
) -> dict[str, Any]:
    """The figures of one contestant, with the peer's in the same rounds."""
    own, peers = entries[dtype], [name for name in _PEERS if name in entries]
    check = judge.compare(outs[dtype], outs[peers[-1]] if peers else None)
    cached = statistics.median(own.cached_ms)
    row: dict[str, Any] = {
        "frame": frame.name,
        "c_in": channels,
        "c_out": channels,
        "dtype": dtype,
        "N": len(frame.coords),
        "pairs": frame.pairs,
        **_times(own),
        "gflops": 2 * frame.pairs * channels**2 / cached / 1e6,
        "check": {"ok": check.ok, "max_error": check.max_error, "of_bound": check.max_ratio},
    }
    for name in peers:
        theirs = {
            **_times(entries[name]),
            "runs": len(entries[name].built_ms) + len(entries[name].cached_ms) + 2,
            "wrong_runs": entries[name].wrong_runs,
            "max_relative_difference": relative_difference(outs[dtype], outs[name]),
        }
        row[name] = {**theirs, **{f"ratio_{kind}": theirs[f"{kind}_ms"] / row[f"{kind}_ms"] for kind in KINDS}}
    return row


def _times(entry: _Contestant) -> dict[str, Any]:
    return {
        "built_ms": statistics.median(entry.built_ms),
        "cached_ms": statistics.median(entry.cached_ms),
        "all_built_ms": entry.built_ms,
        "all_cached_ms": entry.cached_ms,
    }


def _memory_of_all(frame: Frame, channels: int, settings: Settings, cache: Path) -> dict[str, dict[str, Any]]:
    """`_memory` of every dtype, two processes at a time: what one takes, the others do not see."""
    file = cache.parent / f"{frame.name}.npy"
    if not file.exists():
        np.save(file, frame.coords)
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        measured = pool.map(functools.partial(_memory, frame, channels, settings, cache), settings.dtypes)
        return dict(zip(settings.dtypes, measured, strict=True))


def _memory(frame: Frame, channels: int, settings: Settings, cache: Path, dtype: str) -> dict[str, Any]:
    """Peak memory of one convolution, and its budget."""
    item = 4 if dtype == "f32" else 2
    rows, taps = len(frame.coords), 27
    tensors = item * (2 * rows * channels + taps * channels**2)
    given: dict[str, Any] = {
        "frame": str(cache.parent / f"{frame.name}.npy"),
        "spatial_shape": list(frame.spatial_shape),
        "channels": channels,
        "threads": settings.threads,
        "cache_dir": str(cache),
    }
    found = {"peak_bytes": child.measure("peak_memory", dtype=dtype, peer=False, **given)["bytes"]}
    if settings.peer and dtype == "f32":
        found["spconv_peak_bytes"] = child.measure("peak_memory", dtype=dtype, peer=True, **given)["bytes"]
    return {**found, "tensor_bytes": tensors, "peak_limit_bytes": int(tensors + 2.5 * 8 * frame.pairs) + 64 * _MB}


def _small_call_us(channels: int, calls: int = 1000) -> float:
    """Median microseconds of a call on one voxel with kernel, map and weight cached."""
    import torch

    coords = torch.zeros((1, 4), dtype=torch.int32)
    features, weight = torch.ones(1, channels), torch.ones(channels, 3, 3, 3, channels)
    times = []
    for _ in range(calls + 20):
        start = time.perf_counter_ns()
        subm_conv3d(coords, features, weight, target="cpu")
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times[20:]) / 1e3


def _measure_processes(settings: Settings, scratch: Path) -> dict[str, Any]:
    """Import and compilation, each in new processes; medians of `repeats`.

    What fails is kept beside what does not: by then an hour of other figures may have been taken.
    """
    repeats = 3
    imports = [child.import_time() for _ in range(repeats)]
    compiled = []
    for target, dtype in (("cpu", "f32"), ("cpu", "bf16"), ("gfx950", "bf16")):
        for channels in sorted({min(settings.channels), max(settings.channels)}):
            given: dict[str, Any] = {"target": target, "dtype": dtype, "channels": channels}
            try:
                compiled.append({**given, **_measure_compilation(given, repeats, scratch)})
            except SpconvError as error:
                compiled.append({**given, "failed": str(error)})
    return {"import": {**imports[0], "ms": _median(imports, "ms")}, "compile": compiled}


def _measure_compilation(given: dict[str, Any], repeats: int, scratch: Path) -> dict[str, Any]:
    cold, warm = [], []
    for index in range(repeats):
        cache = str(scratch / "-".join(["compile", *map(str, given.values()), str(index)]))
        cold.append(child.measure("compile_cold", **given, cache_dir=cache))
        warm.append(child.measure("compile_from_disk", **given, cache_dir=cache))
    return {
        "cold_ms": _median(cold, "ms"),
        "import_ms": _median(cold, "import_ms"),
        "from_disk_ms": _median(warm, "ms"),
        "from_disk_loads_mlir": any(one["mlir"] for one in warm),
        "object_bytes": cold[0]["object_bytes"],
        "passes_ms": cold[0]["passes_ms"],
    }


def _median(found: Sequence[dict[str, Any]], name: str) -> float:
    return statistics.median(float(one[name]) for one in found)
