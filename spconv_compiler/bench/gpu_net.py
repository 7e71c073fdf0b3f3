"""The measurement behind `spconv-bench gpu --net`: whole networks on one NVIDIA GPU, ours beside spconv.

Every call gets coordinates that it has not seen, so that it builds all of its maps: voxels in, the network's result out
(a dense bird's-eye view for CenterPoint). Contestants take turns: ours with its graphs replayed, all maps built in one
go or each by itself; ours step by step; and spconv. All have the same definition of the network, the same parameters
and the same voxels. Results are compared with that of the network in f32 on a CPU, which the export has computed.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spconv_compiler.bench.gpu import _PROFILED, _versions, _wall, own_times
from spconv_compiler.bench.gpu_contenders import PEERS
from spconv_compiler.errors import InputError
from spconv_compiler.nets.registry import TOLERANCES, get_model, make_model

OURS, EACH, STEPS = "spconv_compiler", "each map by itself", "step by step"
_WARM_UP = 4
# Calls of the host that give the GPU something to do.
_QUEUES = ("Launch", "Memcpy", "Memset")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        folder: as export_nets writes it. nets: names (nets.registry).
        dtype: of all contestants, "f16" or "bf16" (which spconv does not have); the one that was exported.
        runs: calls behind each median. peers: names of gpu_contenders.PEERS. ours: which of ours.
    """

    folder: Path
    nets: tuple[str, ...]
    dtype: str = "f16"
    runs: int = 15
    peers: tuple[str, ...] = ()
    ours: tuple[str, ...] = (OURS, EACH, STEPS)


def export_nets(folder: Path, names: Sequence[str], dtype: str, data: Path, step: Callable[[str], None]) -> None:
    """Writes all that `measure` reads, on a machine with the compiler: a folder for each network.

    Raises:
        InputError: a network is unknown or cannot be compiled, or the folder cannot be written to.
    """
    import torch

    from spconv_compiler import nets
    from spconv_compiler.bench.net import as_tensor, load_voxels
    from spconv_compiler.network.saved import export_network
    from spconv_compiler.pytorch import use_target

    ours = importlib.import_module("spconv_compiler.pytorch")
    for name in names:
        step(name)
        spec = get_model(name)
        frame, voxels = load_voxels(spec, data)
        coords, values = torch.from_numpy(voxels.coords), nets.standardize(voxels.features)
        features = as_tensor(values, dtype)
        model = make_model(spec, ours, values.shape[1], voxels.spatial_shape)
        with torch.no_grad(), use_target("cpu"):
            expected = model(torch.from_numpy(values), coords)
        export_network(model.to(features.dtype), (features, coords), folder / name, target="sm_90")
        np.savez_compressed(
            folder / name / "frame.npz",
            frame=frame,
            dtype=dtype,
            coords=voxels.coords,
            features=values,
            shape=np.array(voxels.spatial_shape),
            # Its rounding is a tenth of the tolerance.
            expected=expected.half().numpy(),
        )


def measure(settings: Settings, step: Callable[[str], None]) -> dict[str, Any]:
    """All rows: one for each network and contestant.

    Raises:
        InputError: a network is not in the folder, or a library is not installed.
        LaunchError: there is no GPU of the kind that code is compiled for.
    """
    torch = importlib.import_module("torch")
    rows = []
    with torch.no_grad():
        for name in settings.nets:
            step(name)
            rows += _rows(settings, name, torch)
    return {
        "gpu": torch.cuda.get_device_name(0),
        "versions": _versions(torch, settings.peers),
        "settings": {"dtype": settings.dtype, "runs": settings.runs},
        "rows": rows,
    }


@dataclasses.dataclass
class _Contestant:
    """A network: run(features, coords) gives its result."""

    name: str
    run: Callable[[Any, Any], Any]
    load_s: float
    first_ms: float = 0.0
    wall: list[float] = dataclasses.field(default_factory=list)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)


def _rows(settings: Settings, name: str, torch: Any) -> list[dict[str, Any]]:
    place = settings.folder / name / "frame.npz"
    if not place.is_file():
        raise InputError(f"{place} does not exist; spconv-bench gpu --net {name} --export makes it")
    with np.load(place) as data:
        if str(data["dtype"]) != settings.dtype:
            raise InputError(f"{name} was exported in {data['dtype']}; accepted: --dtype {data['dtype']}")
        coords = torch.from_numpy(data["coords"]).cuda()
        features = torch.from_numpy(data["features"]).cuda().to(_dtype(settings.dtype, torch))
        expected = torch.from_numpy(data["expected"]).cuda().double()
        shape, frame = tuple(data["shape"].tolist()), str(data["frame"])
    contestants = _open(settings, name, features.shape[1], shape)
    for one in contestants:
        _warm(one, features, coords, expected, settings.dtype, torch)
    for _ in range(settings.runs):
        for one in contestants:
            one.wall.append(_wall(functools.partial(one.run, features, coords.clone()), torch))
    for one in contestants:
        one.facts |= _profile(one, features, coords, torch)
    return [
        {
            "net": name,
            "frame": frame,
            "N": coords.shape[0],
            "contestant": one.name,
            "load_s": one.load_s,
            "first_ms": one.first_ms,
            "wall_us": statistics.median(one.wall) * 1e6,
            "wall_min_us": min(one.wall) * 1e6,
            **one.facts,
        }
        for one in contestants
    ]


def _dtype(name: str, torch: Any) -> Any:
    return {"f16": torch.float16, "bf16": torch.bfloat16}[name]


def _open(settings: Settings, name: str, channels: int, shape: tuple[int, int, int]) -> list[_Contestant]:
    from spconv_compiler.network.saved import load_network

    torch: Any = importlib.import_module("torch")
    spec, kind = get_model(name), _dtype(settings.dtype, torch)
    ours = importlib.import_module("spconv_compiler.pytorch")
    parameters = make_model(spec, ours, channels, shape).to(kind).state_dict()
    found = []
    for title in settings.ours:
        start = time.perf_counter()
        net = load_network(settings.folder / name, parameters)
        assert net.replay is not None
        net.replay.on = title != STEPS
        net.replay.together = title == OURS
        found.append(_Contestant(title, net, time.perf_counter() - start))
    for peer in settings.peers:
        start = time.perf_counter()
        try:
            layers = importlib.import_module(PEERS[peer].module)
        except Exception as error:  # its import runs code that fails in many ways beside another torch
            raise InputError(
                f"{peer} cannot be imported ({type(error).__name__}: {error}); install {PEERS[peer].requirement}"
            ) from None
        model = make_model(spec, layers, channels, shape).cuda().to(kind)
        found.append(_Contestant(peer, model, time.perf_counter() - start))
    return found


def _warm(one: _Contestant, features: Any, coords: Any, expected: Any, dtype: str, torch: Any) -> None:
    """Runs a contestant until it has settled, and compares every result, and the last for replays."""
    errors = []
    for number in range(_WARM_UP):
        start = time.perf_counter()
        out = one.run(features, coords.clone())
        torch.cuda.synchronize()
        if number == 0:
            one.first_ms = (time.perf_counter() - start) * 1e3
        errors.append(float((out.double() - expected).norm() / expected.norm()))
        del out
    worst = max(errors)
    one.facts = {"error": worst, "ok": worst <= TOLERANCES[dtype]}
    replay = getattr(one.run, "replay", None)
    if replay is not None:
        one.facts |= {"graphs": replay.graphs, "not_replayed": replay.reason, "room": replay.room}


def _profile(one: _Contestant, features: Any, coords: Any, torch: Any) -> dict[str, Any]:
    """Time on the GPU, what it ran, what the host queued, and the most memory of torch's that a call takes."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    one.run(features, coords.clone())
    peak = torch.cuda.max_memory_allocated() - before
    fresh = [coords.clone() for _ in range(_PROFILED)]
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as run:
        for given in fresh:
            one.run(features, given)
        torch.cuda.synchronize()
    events = list(run.events())
    on_gpu = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
    calls = collections.Counter(
        event.name
        for event in events
        if event.name.startswith("cu") and any(word in event.name for word in _QUEUES)
    )
    longest: dict[str, float] = collections.defaultdict(float)
    own = own_times(on_gpu)
    for name, us in own:
        longest[name] += us / _PROFILED
    top = sorted(longest.items(), key=lambda item: -item[1])[:12]
    return {
        "gpu_us": sum(us for _, us in own) / _PROFILED,
        "gpu_operations": len(on_gpu) / _PROFILED,
        "host_calls": {name: count / _PROFILED for name, count in sorted(calls.items())},
        "longest": {name[:80]: round(us, 1) for name, us in top},
        "peak_bytes": peak,
    }


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells: a line for each network and contestant."""
    columns = ["net", "N", "contestant", "wall us", "least", "GPU us", "on GPU", "queued", "graphs", "MiB", "error"]
    cells = []
    for row in result["rows"]:
        line = [row["net"], f"{row['N']:,}", row["contestant"], f"{row['wall_us']:.0f}", f"{row['wall_min_us']:.0f}"]
        line += [f"{row['gpu_us']:.0f}", f"{row['gpu_operations']:.0f}", f"{sum(row['host_calls'].values()):.0f}"]
        line += [str(row.get("graphs", "")), f"{row['peak_bytes'] / 2**20:.0f}"]
        line += [f"{row['error']:.1e}" + ("" if row["ok"] else " WRONG")]
        cells.append(line)
    return columns, cells


def notes(result: dict[str, Any]) -> list[str]:
    """What ours gains over the others, and why a call was not replayed."""
    lines = []
    for row in result["rows"]:
        # The first of a network is ours.
        ours = next(one for one in result["rows"] if one["net"] == row["net"])
        if row is not ours:
            ratios = (row[key] / max(ours[key], 1e-3) for key in ("wall_us", "gpu_us"))
            wall, gpu = (f"{ratio:.2f}" for ratio in ratios)
            lines.append(f"{row['net']}: {row['contestant']} over ours: wall time {wall}, GPU time {gpu}")
        if row.get("not_replayed") is not None and row["contestant"] != STEPS:
            lines.append(f"{row['net']}: {row['contestant']} not replayed: {row['not_replayed']}")
    return lines
