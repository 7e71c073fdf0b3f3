"""Where the wall time of one call goes: `spconv-bench gpu --calls`, one layer behind sc.compile on an NVIDIA GPU.

The layer is called in three ways: launches overlap the kernel before them, or not, and the graph finds its frame in
words that the stream writes, or that lie in host memory. Each is called alone, again and again, and in turns with work
that leaves host and GPU with cold caches, as other libraries do in `spconv-bench gpu`. A map is built in every call.

Steps are times since the call's begin at which the host has returned from each call of the driver; they are taken in
runs of their own, since taking them costs time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spconv_compiler.bench.gpu import Settings, _cases, layer_folder, own_times
from spconv_compiler.errors import InputError
from spconv_compiler.runtime.cuda_device import cuda_device
from spconv_compiler.runtime.cuda_library import load_cuda
from spconv_compiler.targets import GpuTarget, get_target

_WARM_UP = 5
# What is gone through between two calls: more than the second-level caches of a core and of the GPU.
_HOST_BYTES, _GPU_BYTES = 48 << 20, 256 << 20
# By name: whether launches overlap, whether the stream writes the words.
_WAYS = {
    "one by one": (False, True),
    "overlapping": (True, True),
    "overlapping, words of the host": (True, False),
}


@dataclasses.dataclass
class _Way:
    """One way to call the layer. waits: seconds until the work is done; returns: until the call has returned."""

    name: str
    net: Any
    waits: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    returns: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    steps: dict[str, list[list[tuple[str, float]]]] = dataclasses.field(default_factory=dict)


def measure(settings: Settings, step: Callable[[str], None]) -> dict[str, Any]:
    """All rows: one for each case and way; times in microseconds, medians.

    Raises:
        InputError: a frame is not in the folder.
        LaunchError: there is no GPU of the kind that code is compiled for.
    """
    torch = importlib.import_module("torch")
    rows = []
    with torch.no_grad():
        for frame, channels in _cases(settings):
            step(f"{frame}, C = {channels}")
            rows += _rows(settings, frame, channels, torch)
    return {"gpu": torch.cuda.get_device_name(0), "torch": str(torch.__version__), "rows": rows}


def _rows(settings: Settings, frame: str, channels: int, torch: Any) -> list[dict[str, Any]]:
    place = settings.folder / "frames" / f"{frame}.npz"
    if not place.is_file():
        raise InputError(f"{place} does not exist; spconv-bench gpu --export makes it")
    with np.load(place) as data:
        coords = torch.from_numpy(data["coords"]).cuda()
    kind = {"f16": torch.float16, "bf16": torch.bfloat16}[settings.dtype]
    features = torch.randn(coords.shape[0], channels, device="cuda").to(kind)
    weight = torch.randn(channels, 3, 3, 3, channels, device="cuda").to(kind)
    folder = layer_folder(settings.folder, frame, channels)
    ways = [_open(name, folder, weight, features, coords) for name in _WAYS]
    first = ways[0].net(features, coords)
    for way in ways:
        if not torch.equal(way.net(features, coords), first):
            raise InputError(f"{way.name} gives other sums than {ways[0].name}")
    chill = _Chill(torch)
    for cold in (False, True):
        mode = "in turns" if cold else "alone"
        for way in ways:
            for _ in range(0 if cold else settings.runs):
                _time(way, mode, features, coords, torch)
        for _ in range(settings.runs if cold else 0):
            for way in ways:
                chill()
                _time(way, mode, features, coords, torch)
        for way in ways:
            with _traced(way, coords.device.index) as marks:
                for _ in range(settings.runs):
                    if cold:
                        chill()
                    _trace(way, mode, marks, features, coords, torch)
    return [
        {
            "frame": frame,
            "channels": channels,
            "N": coords.shape[0],
            "way": way.name,
            "wall_us": {mode: _median(times) for mode, times in way.waits.items()},
            "returns_us": {mode: _median(times) for mode, times in way.returns.items()},
            "steps_us": {mode: _steps(found) for mode, found in way.steps.items()},
            "gpu_us": _gpu_time(way, features, coords, torch),
        }
        for way in ways
    ]


def _open(name: str, folder: Path, weight: Any, features: Any, coords: Any) -> _Way:
    """A layer that is captured in one of the ways, and called until its calls are quick."""
    from spconv_compiler.network.saved import load_network

    if not folder.is_dir():
        raise InputError(f"{folder} does not exist; spconv-bench gpu --export makes it")
    net = load_network(folder, {"conv.weight": weight})
    assert net.replay is not None
    overlaps, net.replay.stream_writes = _WAYS[name]
    with _overlapping(overlaps, coords.device.index):
        for _ in range(_WARM_UP):
            net(features, coords)
    if net.replay.graphs != 1:
        raise InputError(f"the layer is not called as one graph: {net.replay.reason}")
    return _Way(name, net)


@contextlib.contextmanager
def _overlapping(on: bool, index: int) -> Iterator[None]:
    """In this block launches overlap or do not; a graph keeps what held when it was captured."""
    target = get_target("sm_90")
    assert isinstance(target, GpuTarget)
    driver = cuda_device(load_cuda(), index, target.chip).driver
    before, driver.overlaps = driver.overlaps, on
    try:
        yield
    finally:
        driver.overlaps = before


class _Chill:
    """Leaves the caches of host and GPU full of other things."""

    def __init__(self, torch: Any) -> None:
        self._torch, self._host = torch, np.zeros(_HOST_BYTES, np.uint8)
        self._gpu = torch.empty(_GPU_BYTES, dtype=torch.uint8, device="cuda")

    def __call__(self) -> None:
        self._gpu.add_(1)
        self._host += 1
        self._torch.cuda.synchronize()


def _time(way: _Way, mode: str, features: Any, coords: Any, torch: Any) -> None:
    fresh = coords.clone()
    torch.cuda.synchronize()
    start = time.perf_counter()
    way.net(features, fresh)
    back = time.perf_counter()
    torch.cuda.synchronize()
    way.waits.setdefault(mode, []).append(time.perf_counter() - start)
    way.returns.setdefault(mode, []).append(back - start)


@contextlib.contextmanager
def _traced(way: _Way, index: int) -> Iterator[list[tuple[str, float]]]:
    """In this block every call of the driver in a quick call leaves (name, time) in the list that `with` gives."""
    marks: list[tuple[str, float]] = []

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any) -> Any:
            found = call(*given)
            marks.append((name, time.perf_counter()))
            return found

        return timed

    with _overlapping(_WAYS[way.name][0], index):
        way.net.replay.make_quick(noted)
        try:
            yield marks
        finally:
            way.net.replay.make_quick()


def _trace(way: _Way, mode: str, marks: list[tuple[str, float]], features: Any, coords: Any, torch: Any) -> None:
    fresh = coords.clone()
    torch.cuda.synchronize()
    marks.clear()
    start = time.perf_counter()
    way.net(features, fresh)
    marks.append(("return", time.perf_counter()))
    torch.cuda.synchronize()
    marks.append(("end of the work", time.perf_counter()))
    way.steps.setdefault(mode, []).append([(name, at - start) for name, at in marks])


def _gpu_time(way: _Way, features: Any, coords: Any, torch: Any) -> dict[str, float]:
    """By kernel, with the time between the first begin and the last end that belongs to none as "gaps"."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as run:
        way.net(features, coords)
        torch.cuda.synchronize()
    events = [event for event in run.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    found: dict[str, float] = {}
    for name, us in own_times(events):
        found[name[:60]] = found.get(name[:60], 0.0) + us
    begin, end = min(one.time_range.start for one in events), max(one.time_range.end for one in events)
    found["gaps"] = end - begin - sum(found.values())
    return {name: round(us, 1) for name, us in found.items()}


def _median(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) * 1e6


def _steps(runs: Sequence[Sequence[tuple[str, float]]]) -> list[tuple[str, float]]:
    """The median of each step, of runs that all have the same."""
    names = [name for name, _ in runs[-1]]
    same = [run for run in runs if [name for name, _ in run] == names]
    return [(name, round(_median([run[place][1] for run in same]), 1)) for place, name in enumerate(names)]


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells: a line for each case and way."""
    columns = ["frame", "C", "launches", "alone us", "returns", "in turns us", "returns", "GPU us", "of it gaps"]
    cells = []
    for row in result["rows"]:
        line = [row["frame"], str(row["channels"]), row["way"]]
        for mode in ("alone", "in turns"):
            line += [f"{row[key][mode]:.0f}" for key in ("wall_us", "returns_us")]
        line += [f"{sum(row['gpu_us'].values()):.0f}", f"{row['gpu_us']['gaps']:.0f}"]
        cells.append(line)
    return columns, cells


def notes(result: dict[str, Any]) -> Iterator[str]:
    """The steps of every row."""
    for row in result["rows"]:
        for mode, steps in row["steps_us"].items():
            said = ", ".join(f"{name} {us:.0f}" for name, us in steps)
            yield f"{row['frame']}, C = {row['channels']}, {row['way']}, {mode}: {said}"
        yield "  GPU: " + ", ".join(f"{name} {us}" for name, us in row["gpu_us"].items())
