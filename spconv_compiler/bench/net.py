"""The measurement behind `spconv-bench net`: whole networks, end to end on one frame, beside spconv's CPU wheel.

Every run gets coordinates that it has not seen, so that it builds all of its maps. Contestants take turns within every
round; figures are medians over the rounds. All have the same definition of the network, the same parameters and the
same voxels (nets.registry). Compiled contestants are what `spconv_compiler.compile` makes of the eager one. Memory,
compilation, Python's part of a call and launches are measured in processes of their own (net_processes.py).
"""

from __future__ import annotations

import datetime
import importlib
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler import env, nets
from spconv_compiler.bench import net_goals, net_processes
from spconv_compiler.bench.frames import NUSCENES, SEMANTICKITTI
from spconv_compiler.bench.machine import machine, versions
from spconv_compiler.bench.peer import load_spconv, set_threads
from spconv_compiler.io import PointCloud, Voxels, demo_scan, get_preset, read_points, voxelize
from spconv_compiler.nets.registry import TOLERANCES, ModelSpec, get_model, make_model

KITTI = "kitti/000001.bin"
PEER, PEER_ONE = "spconv", "spconv_one_thread"
# See bench/cpu.py.
_SETTLE_SECONDS = 0.005
_FILES = {"centerpoint": NUSCENES, "second": KITTI, "spunet": SEMANTICKITTI, "minkunet": SEMANTICKITTI}
# The scan that stands in where there are no files: beams, points a turn.
_DENSE, _TINY = (128, 4000), (2, 200)


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        nets: names (nets.registry); data: folder of the point clouds; tiny: on some hundred generated voxels instead.
        dtypes: of ours, out of f32, bf16, f16; compiled: also compile the networks as one.
        runs: rounds behind each median; threads: of every contestant.
        peer: measure spconv beside; processes: also measure what needs processes of its own.
    """

    nets: tuple[str, ...]
    dtypes: tuple[str, ...]
    runs: int
    threads: int
    data: Path
    compiled: bool = True
    peer: bool = False
    processes: bool = True
    tiny: bool = False


@dataclass(eq=False)
class _Contestant:
    """A network with its input: run(features, coords) gives the result."""

    run: Callable[[Any, Any], Any]
    features: Any
    dtype: str
    threads: int
    first_ms: float = 0.0
    ms: list[float] = field(default_factory=list)
    out: Any = None
    differences: list[float] = field(default_factory=list)


def measure(settings: Settings, progress: Callable[[str], None] = lambda step: None) -> dict[str, Any]:
    """Measures and returns everything as plain JSON values.

    Args:
        progress: told what comes next: `steps` times.

    Raises:
        InputError: an unknown network, or the peer is not installed.
    """
    import torch  # noqa: F401  (before the threads are set)

    if settings.peer:
        load_spconv()
    env.NUM_THREADS.set(str(settings.threads))
    pools = set_threads(settings.threads)
    found: dict[str, list[dict[str, Any]]] = {"rows": []}
    with tempfile.TemporaryDirectory(prefix="spconv-bench-") as scratch:
        for name in settings.nets:
            for part, rows in _measure_net(get_model(name), settings, Path(scratch), progress).items():
                found.setdefault(part, []).extend(rows)
    if settings.processes:
        progress("layers")
        found["layers"] = net_processes.layers()
    result = {
        "format": 1,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(settings.threads),
        "versions": versions(),
        "settings": {**asdict(settings), "data": settings.data.name},
        "thread_pools": pools,
        **found,
    }
    goals = net_goals.goals(result) if net_goals.NET in settings.nets else []
    return {**result, "goals": [asdict(goal) for goal in goals]}


def steps(settings: Settings) -> int:
    """How often `measure` tells its progress."""
    each = 3 + 3 * (settings.processes and settings.compiled)
    return each * len(settings.nets) + settings.processes


def load_voxels(spec: ModelSpec, data: Path, *, tiny: bool = False) -> tuple[str, Voxels]:
    """(name of the frame, its voxels): the network's real frame where its file is, else a generated one.

    The ten-sweep nuScenes frame for CenterPoint, KITTI 000001 for SECOND, SemanticKITTI 00/000000 for the U-Nets.
    """
    file, preset = data / _FILES[spec.name], get_preset(spec.preset)
    name, cloud = _generated(*_TINY) if tiny else (file.stem, _read(file)) if file.is_file() else _generated(*_DENSE)
    return name, voxelize(cloud.xyz, cloud.features, preset.voxel_size, preset.point_range)


def _read(file: Path) -> PointCloud:
    return read_points(file, columns=5, dtype="float16") if file.match(NUSCENES) else read_points(file)


def _generated(beams: int, azimuths: int) -> tuple[str, PointCloud]:
    return f"generated-{beams}x{azimuths}", demo_scan(beams=beams, azimuths=azimuths)


def _measure_net(
    spec: ModelSpec, settings: Settings, scratch: Path, progress: Callable[[str], None]
) -> dict[str, list[dict[str, Any]]]:
    """rows: one a contestant; compile, calls, plans: one a dtype (net_processes.py)."""
    import torch

    frame, voxels = load_voxels(spec, settings.data, tiny=settings.tiny)
    coords, values = torch.from_numpy(voxels.coords), nets.standardize(voxels.features)
    progress(f"{spec.name}: compiling")
    entries = _contestants(spec, voxels, values, settings)
    progress(f"{spec.name}: {settings.runs} rounds")
    _take_turns(entries, coords, settings.runs)
    set_threads(settings.threads)
    progress(f"{spec.name}: profile, memory")
    file, peaks = scratch / f"{spec.name}.npz", dict[str, int]()
    if settings.processes:
        np.savez(file, coords=voxels.coords, features=values, spatial_shape=np.array(voxels.spatial_shape))
        given = spec.name, file, settings.threads, settings.dtypes
        peaks = net_processes.memory(*given, compiled=settings.compiled, peer=PEER if settings.peer else "")
    rows = []
    for name, entry in entries.items():
        row = _row(spec, frame, name, entry, entries)
        if name in settings.dtypes:
            row["profile"] = _profile(spec, voxels, entry)
        rows.append({**row, "rows": len(voxels), **({"peak_bytes": peaks[name]} if name in peaks else {})})
    if not (settings.processes and settings.compiled):
        return {"rows": rows}
    del entries
    progress(f"{spec.name}: compilation, cold and from disk")
    compilation = net_processes.compilation(spec.name, file, settings.threads, settings.dtypes)
    progress(f"{spec.name}: Python in calls")
    calls = net_processes.calls(spec.name, values.shape[1], settings.dtypes)
    progress(f"{spec.name}: launches")
    plans = net_processes.launches(spec.name, file, settings.dtypes)
    return {"rows": rows, "compile": compilation, "calls": calls, "plans": plans}


def _contestants(
    spec: ModelSpec, voxels: Voxels, values: npt.NDArray[np.float32], settings: Settings
) -> dict[str, _Contestant]:
    """All contestants, each run once."""
    import torch

    ours, compile_net = importlib.import_module("spconv_compiler.pytorch"), _compiler() if settings.compiled else None
    coords, channels, entries = torch.from_numpy(voxels.coords), values.shape[1], dict[str, _Contestant]()
    for dtype in settings.dtypes:
        features = as_tensor(values, dtype)
        model = make_model(spec, ours, channels, voxels.spatial_shape).to(features.dtype)
        entries[dtype] = _Contestant(model, features, dtype, settings.threads)
        if compile_net is not None:
            start = time.perf_counter()
            compiled = compile_net(model, (features, coords))
            entry = entries[f"{dtype}_compiled"] = _Contestant(compiled, features, dtype, settings.threads)
            entry.first_ms = (time.perf_counter() - start) * 1e3
    if settings.peer:
        features = torch.from_numpy(values)
        model = peer_model(spec, channels, voxels.spatial_shape)
        for name, threads in ((PEER, settings.threads), (PEER_ONE, 1)):
            entries[name] = _Contestant(model, features, "f32", threads)
    for entry in entries.values():
        entry.first_ms += _once(entry, coords)
    return entries


def _compiler() -> Any:
    """`spconv_compiler.compile`."""
    return getattr(importlib.import_module("spconv_compiler"), "compile", None)


def as_tensor(values: npt.NDArray[np.float32], dtype: str) -> Any:
    """A torch tensor of the values, rounded to dtype."""
    import torch

    given = nets.to_dtype(values, dtype)
    return torch.from_numpy(given) if isinstance(given, np.ndarray) else given


def peer_model(spec: ModelSpec, channels: int, spatial_shape: tuple[int, int, int]) -> Any:
    """The network in spconv's layers, which on the CPU accept a bias in training mode alone."""
    from spconv_compiler.nets.measure import convolutions

    model = make_model(spec, load_spconv(), channels, spatial_shape)
    for _, layer in convolutions(model):
        layer.train()

    def run(features: Any, coords: Any) -> Any:
        # dense() uses torch in a way that warns of its age.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return model(features, coords)

    return run


def _once(entry: _Contestant, coords: Any) -> float:
    """Milliseconds of one run with new maps."""
    import torch

    set_threads(entry.threads)
    given = coords.clone()
    time.sleep(_SETTLE_SECONDS)
    with torch.no_grad():
        start = time.perf_counter()
        entry.out = entry.run(entry.features, given)
        return (time.perf_counter() - start) * 1e3


def _take_turns(entries: dict[str, _Contestant], coords: Any, runs: int) -> None:
    """Times all in `runs` rounds, and compares every result with the last of spconv on one thread, or of our f32."""
    from spconv_compiler.nets.measure import relative_l2

    judge = PEER_ONE if PEER_ONE in entries else next(iter(entries))
    for _ in range(runs):
        for entry in entries.values():
            entry.ms.append(_once(entry, coords))
            entry.differences.append(relative_l2(entry.out, entries[judge].out))


def _row(spec: ModelSpec, frame: str, name: str, entry: _Contestant, entries: dict[str, _Contestant]) -> dict[str, Any]:
    ms = statistics.median(entry.ms)
    limit = TOLERANCES[entry.dtype]
    wrong = sum(not one <= limit for one in entry.differences)
    row: dict[str, Any] = {
        "net": spec.name,
        "frame": frame,
        "contestant": name,
        "dtype": entry.dtype,
        "threads": entry.threads,
        "first_ms": entry.first_ms,
        "ms": ms,
        "all_ms": entry.ms,
        "check": {"ok": wrong == 0, "wrong_runs": wrong, "difference": max(entry.differences), "limit": limit},
    }
    for peer in (PEER, PEER_ONE):
        if peer in entries and name not in (PEER, PEER_ONE):
            row[f"ratio_{peer}"] = statistics.median(entries[peer].ms) / ms
    return row


def _profile(spec: ModelSpec, voxels: Voxels, entry: _Contestant) -> dict[str, Any]:
    """Where an eager network's time goes: convolutions, maps, and what torch does between them."""
    import torch

    from spconv_compiler.nets.measure import run_model

    model: Any = entry.run
    found = run_model(model, entry.features, torch.from_numpy(voxels.coords), repeats=min(3, len(entry.ms)))
    convs = sum(conv.ms for conv in found.convs)
    return {
        "convolutions_ms": convs,
        "maps_ms": found.fresh_ms - found.kept_ms,
        "between_ms": found.kept_ms - convs,
        "gflop": sum(conv.flops for conv in found.convs) / 1e9,
        "layers": [asdict(conv) for conv in found.convs],
    }
