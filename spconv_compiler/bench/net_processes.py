"""Figures of a whole network that need processes of their own: net_child.py measures, here is what is asked of it."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spconv_compiler.bench import net_child

# Processes behind the time of a compilation from disk, calls behind that of a call, rounds behind that of a layer.
_DISK_RUNS, _CALLS, _ROUNDS = 3, 400, 40
_TARGET = "gfx950"


def memory(net: str, frame: Path, threads: int, dtypes: Sequence[str], *, compiled: bool, peer: str) -> dict[str, int]:
    """Peak bytes of one run of every contestant; peer: the name of spconv's among them, or ""."""
    modes = [(dtype, dtype, "eager") for dtype in dtypes]
    modes += [(f"{dtype}_compiled", dtype, "compiled") for dtype in dtypes if compiled]
    modes += [(peer, "f32", "peer")] if peer else []
    return {name: _ask("peak", net, frame, dtype, threads=threads, mode=mode)["bytes"] for name, dtype, mode in modes}


def compilation(net: str, frame: Path, threads: int, dtypes: Sequence[str]) -> list[dict[str, Any]]:
    """A row a dtype: the whole network compiled with an empty cache, then found on disk by processes that are new."""
    rows = []
    for dtype in dtypes:
        with tempfile.TemporaryDirectory(prefix="spconv-bench-") as folder:
            given = {"threads": threads, "cache_dir": folder}
            cold = _ask("compile_time", net, frame, dtype, **given)
            disk = [_ask("compile_time", net, frame, dtype, **given) for _ in range(_DISK_RUNS)]
        rows.append(
            {
                "net": net,
                "dtype": dtype,
                "cold_ms": cold["ms"],
                "kernels": cold["kernels"],
                "cold_parts_s": cold["parts_s"],
                "from_disk_ms": statistics.median(one["ms"] for one in disk),
                "all_from_disk_ms": [one["ms"] for one in disk],
                "from_disk_kernels": max(one["kernels"] for one in disk),
                "from_disk_mlir": any(one["mlir"] for one in disk),
            }
        )
    return rows


def calls(net: str, channels: int, dtypes: Sequence[str]) -> list[dict[str, Any]]:
    """A row a dtype: what Python adds to a call of the compiled network (net_calls.py)."""
    given = {"net": net, "channels": channels, "rounds": _CALLS}
    return [{"net": net, "dtype": dtype, **net_child.measure("call_time", dtype=dtype, **given)} for dtype in dtypes]


def launches(net: str, frame: Path, dtypes: Sequence[str]) -> list[dict[str, Any]]:
    """A row a dtype: the launches of a call on gfx950 (net_plan.py)."""
    return [{"net": net, "dtype": dtype, **_ask("launch_plan", net, frame, dtype, target=_TARGET)} for dtype in dtypes]


def layers() -> list[dict[str, Any]]:
    """What eager layers add to their functions (layers.py)."""
    rows: list[dict[str, Any]] = net_child.measure("layers", rounds=_ROUNDS)["rows"]
    return rows


def _ask(task: str, net: str, frame: Path, dtype: str, **more: Any) -> dict[str, Any]:
    return net_child.measure(task, net=net, frame=str(frame), dtype=dtype, **more)
