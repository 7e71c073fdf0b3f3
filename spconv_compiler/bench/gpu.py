"""The measurement behind `spconv-bench gpu`: submanifold convolutions on one NVIDIA GPU, ours beside other libraries.

In one run, in turns, on the same tensors: wall time of a call (from the call to the end of its work on the GPU) and
time that kernels, copies and fills take on the GPU, each with the kernel map built in the call and with the map kept.
GPU time and launches are those that CUPTI reports through torch's profiler, for all contenders alike; where operations
overlap, the later one counts from the end of the earlier one on (`own_times`). Every result is compared with the same
sums in f64.

The GPU's own limits are measured in the same run: the rate of a large matrix product, and of a large copy.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spconv_compiler import bundle
from spconv_compiler.bench.gpu_contenders import Contender, open_contenders
from spconv_compiler.bench.gpu_layer import export_layer
from spconv_compiler.errors import InputError

_WARM_UP = 3
_PROFILED = 10
_MATMUL = 8192
_COPY_BYTES = 4 << 30
# Relative error in the 2-norm that rounding of results (8 and 11 bits) and of sums in f32 can explain.
_ERRORS = {"bf16": 4e-3, "f16": 1e-3}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        folder: as export_cases writes it. frames, channels: which cases of it.
        dtype: of all contenders: "f16" or "bf16" (which spconv does not have).
        runs: calls behind each median of wall times. peers: names of gpu_contenders.PEERS.
    """

    folder: Path
    frames: tuple[str, ...]
    channels: tuple[int, ...]
    dtype: str = "f16"
    runs: int = 15
    peers: tuple[str, ...] = ()


def measure(settings: Settings, step: Callable[[str], None]) -> dict[str, Any]:
    """All rows, with what the GPU can do at most.

    Raises:
        InputError: a frame is not in the folder, or a library is not installed.
        LaunchError: there is no GPU of the kind that code is compiled for.
    """
    torch = importlib.import_module("torch")
    step("limits of the GPU")
    limits = {"matmul_tflops": _matmul_rate(torch), "copy_gbps": _copy_rate(torch)}
    rows = []
    with bundle.use(settings.folder / "kernels"):
        for frame, channels in _cases(settings):
            step(f"{frame}, C = {channels}")
            rows.append(_row(settings, frame, channels, torch))
    return {
        "gpu": torch.cuda.get_device_name(0),
        "versions": _versions(torch, settings.peers),
        "limits": limits,
        "settings": {"dtype": settings.dtype, "runs": settings.runs},
        "rows": rows,
    }


def steps(settings: Settings) -> int:
    """How often `measure` calls its `step`."""
    return 1 + sum(1 for _ in _cases(settings))


def cases(channels: Sequence[int]) -> dict[str, list[int]]:
    """Channels of each frame: all of them where a network has them, the wide ones on coarse levels."""
    level = {"nuscenes-l0": (0, 128), "nuscenes-l1": (0, 128), "nuscenes-l2": (128, 256), "nuscenes-l3": (128, 512)}
    level["semantickitti"] = (0, 128)
    return {name: [c for c in channels if low <= c <= high] for name, (low, high) in level.items()}


def export_cases(
    folder: Path, frames: Sequence[str], channels: Sequence[int], dtype: str, data: Path, step: Callable[[str], None]
) -> None:
    """Writes all that `measure` reads, on a machine with the compiler: frames, kernels (a bundle), layers (networks).

    Raises:
        InputError: a frame is unknown or its file is not in `data`; the folder cannot be written to.
    """
    from spconv_compiler.bench.frames import load_frame
    from spconv_compiler.bundle import export_kernels
    from spconv_compiler.compiler import conv_options

    (folder / "frames").mkdir(parents=True, exist_ok=True)
    for name in frames:
        step(name)
        frame = load_frame(name, data)
        np.savez_compressed(folder / "frames" / f"{name}.npz", coords=frame.coords, shape=frame.spatial_shape)
        for channels_ in cases(channels).get(name, channels):
            export_layer(
                layer_folder(folder, name, channels_), channels_, dtype, frame.coords, frame.spatial_shape
            )
    widths = sorted({c for name in frames for c in cases(channels).get(name, channels)})
    for width in widths:
        step(f"C = {width}")
        wanted = [
            conv_options(3, width, width, key_width, dtype=dtype, target="sm_90", mapper=mapper)
            for key_width in (32, 64)
            for mapper in ("auto", "z_delta")
        ]
        export_kernels(folder / "kernels", wanted)


def layer_folder(folder: Path, frame: str, channels: int) -> Path:
    """Where export_cases puts the layer of a case."""
    return folder / "layers" / f"{frame}-{channels}"


def _cases(settings: Settings) -> Iterator[tuple[str, int]]:
    wanted = cases(settings.channels)
    for frame in settings.frames:
        for channels in wanted.get(frame, settings.channels):
            yield frame, channels


def _row(settings: Settings, frame: str, channels: int, torch: Any) -> dict[str, Any]:
    place = settings.folder / "frames" / f"{frame}.npz"
    if not place.is_file():
        raise InputError(f"{place} does not exist; spconv-bench gpu --export makes it")
    with np.load(place) as data:
        coords = torch.from_numpy(data["coords"]).cuda()
        shape = tuple(int(size) for size in data["shape"])
    kind = {"f16": torch.float16, "bf16": torch.bfloat16}[settings.dtype]
    generator = torch.Generator(device="cuda").manual_seed(0)
    rows = coords.shape[0]
    features = torch.randn(rows, channels, device="cuda", generator=generator).to(kind)
    table = _neighbours(coords, torch)
    pairs = int((table >= 0).sum())
    scale = (channels * pairs / rows) ** -0.5
    weight = (torch.randn(channels, 3, 3, 3, channels, device="cuda", generator=generator) * scale).to(kind)
    expected = _expected(features, weight, table, torch)
    found = {}
    layer = layer_folder(settings.folder, frame, channels)
    opened = open_contenders(settings.peers, coords, shape, features, weight, layer)
    for contender in opened:
        found[contender.name] = _checked(contender, expected, settings.dtype, torch)
    for _ in range(settings.runs):
        for contender, kind_ in ((one, kind_) for one in opened for kind_ in one.kinds):
            contender.prepare(1)
            found[contender.name].setdefault(f"{kind_}_wall", []).append(_wall(getattr(contender, kind_), torch))
    flops = 2 * pairs * channels * channels
    for contender in opened:
        facts = found[contender.name]
        for kind_ in contender.kinds:
            contender.prepare(_PROFILED + 1)
            gpu_us, launches = _profiled(getattr(contender, kind_), torch)
            facts[f"{kind_}_wall_us"] = statistics.median(facts.pop(f"{kind_}_wall")) * 1e6
            facts[f"{kind_}_gpu_us"], facts[f"{kind_}_launches"] = gpu_us, launches
        if "cached_gpu_us" in facts:
            facts["tflops"] = flops / facts["cached_gpu_us"] / 1e6
        facts |= contender.facts()
    moved = rows * channels * 2 * 2 + weight.numel() * 2 + pairs * 4
    return {
        "frame": frame,
        "N": rows,
        "pairs": pairs,
        "channels": channels,
        "flops": flops,
        "floor_bytes": moved,
        "contenders": found,
    }


def _checked(contender: Contender, expected: Any, dtype: str, torch: Any) -> dict[str, Any]:
    """Warms a contender up and compares what it gives, map built and map kept, with the sums in f64."""
    worst = 0.0
    contender.prepare(_WARM_UP)
    for kind in contender.kinds:
        for _ in range(_WARM_UP):
            out = getattr(contender, kind)()
        worst = max(worst, float((out.double() - expected).norm() / expected.norm()))
    torch.cuda.synchronize()
    return {"error": worst, "ok": worst <= _ERRORS[dtype]}


def _wall(call: Callable[[], Any], torch: Any) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def _profiled(call: Callable[[], Any], torch: Any) -> tuple[float, float]:
    """(microseconds on the GPU, operations there) of a call: means over some calls."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as run:
        for _ in range(_PROFILED):
            call()
        torch.cuda.synchronize()
    events = [event for event in run.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return sum(us for _, us in own_times(events)) / _PROFILED, len(events) / _PROFILED


def own_times(events: Sequence[Any]) -> list[tuple[str, float]]:
    """(name, microseconds) of operations on the GPU, in the order of their begins; the sum is how long it is busy.

    A kernel may begin while the one before it runs, and wait for it: its time begins with the end of all before it.
    """
    found, reached = [], float("-inf")
    for event in sorted(events, key=lambda one: (one.time_range.start, one.time_range.end)):
        start, end = event.time_range.start, event.time_range.end
        found.append((event.name, max(0.0, end - max(start, reached))))
        reached = max(reached, end)
    return found


def _neighbours(coords: Any, torch: Any) -> Any:
    """i64 [N, 27], −1 where there is none: by sorted keys and torch's search, independent of every contender."""
    wide = coords.long()
    low = wide.min(0).values - 1
    extent = wide.max(0).values - low + 2
    strides = torch.stack([extent[1] * extent[2] * extent[3], extent[2] * extent[3], extent[3], extent[3] * 0 + 1])
    keys = ((wide - low) * strides).sum(1)
    ascending, order = torch.sort(keys)
    columns = []
    for offset in itertools.product((-1, 0, 1), repeat=3):
        wanted = keys + sum(step * int(stride) for step, stride in zip(offset, strides[1:].tolist(), strict=True))
        place = torch.searchsorted(ascending, wanted).clamp(max=len(keys) - 1)
        columns.append(torch.where(ascending[place] == wanted, order[place], -1))
    return torch.stack(columns, 1)


def _expected(features: Any, weight: Any, table: Any, torch: Any) -> Any:
    taps = weight.double().reshape(weight.shape[0], -1, weight.shape[-1])
    wide, out = features.double(), torch.zeros(len(table), weight.shape[0], dtype=torch.float64, device="cuda")
    for tap in range(taps.shape[1]):
        rows = (table[:, tap] >= 0).nonzero()[:, 0]
        out[rows] += wide[table[rows, tap]] @ taps[:, tap].T
    return out


def _matmul_rate(torch: Any) -> float:
    a, b = (torch.randn(_MATMUL, _MATMUL, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * _MATMUL**3 / _event_seconds(lambda: a @ b, torch) / 1e12


def _copy_rate(torch: Any) -> float:
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * _COPY_BYTES / _event_seconds(lambda: target.copy_(source), torch) / 1e9


def _event_seconds(call: Callable[[], Any], torch: Any) -> float:
    times = []
    for number in range(2 * _WARM_UP + 1):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        torch.cuda.synchronize()
        if number >= _WARM_UP:
            times.append(first.elapsed_time(last) / 1e3)
    return float(statistics.median(times))


def _versions(torch: Any, peers: Sequence[str]) -> dict[str, str]:
    import spconv_compiler
    from spconv_compiler.bench.gpu_contenders import PEERS

    names = {"torch": str(torch.__version__), "spconv_compiler": spconv_compiler.__version__}
    return {**names, **{name: PEERS[name].requirement for name in peers}}
