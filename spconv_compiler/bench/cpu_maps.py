"""The measurement behind `spconv-bench cpu --maps`: from coordinates to pairs on this host, and a peer's beside it.

Contestants take turns within every round, on coordinates that neither has seen; figures are medians over the rounds.
What is timed ends with the pairs that a convolution runs over. Every result is compared with numpy's, pair by pair.
"""

from __future__ import annotations

import dataclasses
import datetime
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from spconv_compiler import api, env, sparse_map
from spconv_compiler.bench.frames import Frame, load_frame
from spconv_compiler.bench.machine import machine, versions
from spconv_compiler.bench.map_oracle import Triples, kernel_map_triples, peer_triples, same, sparse_map_triples, wanted
from spconv_compiler.bench.peer import SpconvMaps, load_spconv, set_threads
from spconv_compiler.bench.report import geometric_mean
from spconv_compiler.geometry import ConvGeometry

# A map may take 12 bytes for a pair and 40 for a voxel of either set.
PAIR_BYTES, VOXEL_BYTES = 12, 40
# Other runtimes' threads spin for a while after their work; let them go to sleep before the next turn.
_SETTLE_SECONDS = 0.005
_SUBMANIFOLD = "submanifold k3"
GEOMETRIES = {
    _SUBMANIFOLD: ConvGeometry((3, 3, 3), (1, 1, 1), (1, 1, 1)),
    "k2 s2": ConvGeometry((2, 2, 2), (2, 2, 2)),
    "k3 s2 p1": ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1)),
    "(3,1,1) s(2,1,1)": ConvGeometry((3, 1, 1), (2, 1, 1)),
}
PEERS = ("spconv", "spconv_one_thread")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to measure: names of frames, rounds behind a median, threads of every contestant, folder of the frames,
    rows in random order, and whether to measure spconv beside."""

    frames: tuple[str, ...]
    runs: int
    threads: int
    data: Path
    shuffle: bool = False
    peer: bool = False


@dataclasses.dataclass
class _Contestant:
    """build(coords) makes a map, triples(map) says what is in it."""

    build: Callable[[Any], Any]
    triples: Callable[[Any], Triples]
    prepare: Callable[[], object]
    wall_ms: list[float] = dataclasses.field(default_factory=list)
    cpu_ms: list[float] = dataclasses.field(default_factory=list)
    wrong_runs: int = 0
    last: Any = None


def measure(settings: Settings, progress: Callable[[str], None] = lambda step: None) -> dict[str, Any]:
    """Measures and returns everything as plain JSON values.

    Args:
        progress: told what comes next: one step a frame.

    Raises:
        InputError: an unknown frame, or the peer is not installed.
    """
    import torch  # noqa: F401  (before the threads are set)

    if settings.peer:
        load_spconv()
    env.NUM_THREADS.set(str(settings.threads))
    pools = set_threads(settings.threads)
    rows: list[dict[str, Any]] = []
    for name in settings.frames:
        progress(name)
        frame = load_frame(name, settings.data, settings.shuffle)
        rows += [_measure(frame, label, geometry, settings) for label, geometry in GEOMETRIES.items()]
    set_threads(settings.threads)
    return {
        "format": 1,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(settings.threads),
        "versions": versions(),
        "settings": {**dataclasses.asdict(settings), "data": settings.data.name},
        "thread_pools": pools,
        "rows": rows,
        "summary": summarize(rows),
    }


def _measure(frame: Frame, label: str, geometry: ConvGeometry, settings: Settings) -> dict[str, Any]:
    """All contestants on one frame and geometry."""
    import torch

    coords, shape, submanifold = torch.from_numpy(frame.coords), frame.spatial_shape, label == _SUBMANIFOLD
    size = (shape[0], shape[1], shape[2])

    def submanifold_map(coords: Any) -> Any:
        return api.cached_map(coords, geometry.kernel_size, spatial_shape=size, target="cpu"), coords

    def strided_map(coords: Any) -> Any:
        given = {name: getattr(geometry, name) for name in ("kernel_size", "stride", "padding")}
        made = sparse_map.build_map(coords, **given, spatial_shape=size, target="cpu")
        made.pairs_for(made.kernel("conv", c_in=1, c_out=1))
        return made, made.out_coords

    build, triples = (submanifold_map, kernel_map_triples) if submanifold else (strided_map, sparse_map_triples)
    entries = {"ours": _Contestant(build, triples, lambda: set_threads(settings.threads))}
    for name, threads in zip(PEERS, (settings.threads, 1), strict=True) if settings.peer else ():
        peer = SpconvMaps(shape, threads)

        def theirs(coords: Any, peer: SpconvMaps = peer) -> Any:
            return peer.build(coords, geometry, submanifold=submanifold)

        entries[name] = _Contestant(theirs, partial(peer_triples, submanifold=submanifold), peer.prepare)
    oracle = wanted(frame, geometry, submanifold=submanifold)
    _take_turns(entries, coords, settings.runs, oracle)
    return _row(frame, label, entries, oracle, submanifold=submanifold)


def _take_turns(entries: dict[str, _Contestant], coords: Any, runs: int, oracle: Triples) -> None:
    """Times all contestants in `runs` rounds after one round that warms up; counts wrong results of all rounds."""
    for turn in range(runs + 1):
        for entry in entries.values():
            given = coords.clone()
            entry.prepare()
            time.sleep(_SETTLE_SECONDS)
            cpu, start = time.process_time(), time.perf_counter()
            made = entry.build(given)
            wall, cpu = time.perf_counter() - start, time.process_time() - cpu
            if turn:
                entry.wall_ms.append(wall * 1e3)
                entry.cpu_ms.append(cpu * 1e3)
            entry.wrong_runs += not same(entry.triples(made), oracle)
            entry.last = made


def _row(
    frame: Frame, label: str, entries: dict[str, _Contestant], oracle: Triples, *, submanifold: bool
) -> dict[str, Any]:
    own = entries["ours"]
    voxels, pairs = len(frame.coords), len(oracle.pairs)
    outputs = 0 if submanifold else len(oracle.out_coords)
    row: dict[str, Any] = {
        "frame": frame.name,
        "geometry": label,
        "N": voxels,
        "outputs": voxels if submanifold else outputs,
        "pairs": pairs,
        **_times(own),
        "ok": own.wrong_runs == 0,
        "bytes": own.last[0].nbytes,
        "bytes_limit": PAIR_BYTES * pairs + VOXEL_BYTES * (voxels + outputs),
    }
    for name in PEERS:
        if name in entries:
            theirs = _times(entries[name])
            row[name] = {
                **theirs,
                "runs": len(entries[name].wall_ms) + 1,
                "wrong_runs": entries[name].wrong_runs,
                "ratio": theirs["ms"] / row["ms"],
                "cpu_ratio": theirs["cpu_ms"] / row["cpu_ms"],
            }
    return row


def _times(entry: _Contestant) -> dict[str, Any]:
    return {
        "ms": statistics.median(entry.wall_ms),
        "cpu_ms": statistics.median(entry.cpu_ms),
        "all_ms": entry.wall_ms,
        "all_cpu_ms": entry.cpu_ms,
    }


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means over frames of spconv's time over ours, per geometry and over all strided ones."""
    summary: dict[str, Any] = {}
    groups = {label: [row for row in rows if row["geometry"] == label] for label in GEOMETRIES}
    groups["strided, all"] = [row for row in rows if row["geometry"] != _SUBMANIFOLD]
    for label, chosen in groups.items():
        for name in PEERS:
            measured = [row[name] for row in chosen if name in row]
            if measured:
                ratios = {kind: geometric_mean(one[kind] for one in measured) for kind in ("ratio", "cpu_ratio")}
                summary.setdefault(label, {})[name] = {**ratios, "least": min(one["ratio"] for one in measured)}
    return summary


def table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells."""
    peers = [name for name in PEERS if any(name in row for row in rows)]
    columns = ["frame", "geometry", "N", "outputs", "pairs", "ms", "CPU ms", "B/pair", "limit"]
    columns += [text for name in peers for text in (name.replace("_", " "), "x", "x CPU", "wrong")]
    cells = []
    for row in rows:
        line = [row["frame"], row["geometry"], *(f"{row[name]:,}" for name in ("N", "outputs", "pairs"))]
        line += [f"{row['ms']:.2f}", f"{row['cpu_ms']:.2f}"]
        line += [f"{row[name] / max(row['pairs'], 1):.1f}" for name in ("bytes", "bytes_limit")]
        for name in peers:
            one = row[name]
            line += [f"{one['ms']:.1f}", f"{one['ratio']:.1f}", f"{one['cpu_ratio']:.1f}"]
            line += [f"{one['wrong_runs']}/{one['runs']}"]
        cells.append(line)
    return columns, cells


def notes(result: dict[str, Any]) -> list[str]:
    """What the table does not say, one line each."""
    lines = [
        f"geometric mean, {name.replace('_', ' ')} / ours, {label}: {mean['ratio']:.2f} "
        f"(CPU time {mean['cpu_ratio']:.2f})"
        for label, peers in result["summary"].items()
        for name, mean in peers.items()
    ]
    rows = result["rows"]
    kept = sum(row["bytes"] <= row["bytes_limit"] for row in rows)
    lines.append(f"memory: {kept} of {len(rows)} maps within {PAIR_BYTES} B a pair + {VOXEL_BYTES} B a voxel")
    lines.append(f"our maps: {sum(row['ok'] for row in rows)} of {len(rows)} right, pair by pair, in all rounds")
    return lines
