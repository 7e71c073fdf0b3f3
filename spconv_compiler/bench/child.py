"""Measurements that need a process of their own: imports, compilation, peak memory.

    python -m spconv_compiler.bench.child TASK JSON

Prints one line of JSON. `measure` starts it; what the parent has loaded or allocated plays no part.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spconv_compiler import env
from spconv_compiler.errors import SpconvError

# Alone in its process, so that nothing of this package is loaded before the clock runs.
_IMPORT = """
import json, sys, time
start = time.perf_counter()
import spconv_compiler
elapsed = time.perf_counter() - start
print(json.dumps({"ms": elapsed * 1e3, "torch": "torch" in sys.modules, "mlir": "flydsl" in sys.modules}))
"""


def import_time() -> dict[str, Any]:
    """Milliseconds of `import spconv_compiler`, and whether it imports torch or MLIR."""
    return _run([sys.executable, "-c", _IMPORT], "import")


def measure(task: str, **arguments: Any) -> dict[str, Any]:
    """Runs a task of this file in a new process and returns what it found.

    Raises:
        SpconvError: the process failed; the message ends with the last line it printed.
    """
    return _run([sys.executable, "-m", __name__, task, json.dumps(arguments)], task)


def _run(command: list[str], task: str) -> dict[str, Any]:
    # From here the child finds this package as it is, installed or not.
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise SpconvError(f"measuring {task} in a new process failed: {last}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    value = call()
    return value, (time.perf_counter() - start) * 1e3


def compile_cold(*, target: str, dtype: str, channels: int, cache_dir: str) -> dict[str, Any]:
    """Compiles one 3x3x3 convolution with an empty cache; importing MLIR and the passes is timed apart.

    `ms` has all of compile_conv: fingerprint, every pass, code generation, linking, storing.
    """
    _use_cache(cache_dir)
    compiler, import_ms = _timed(lambda: _import_compiler(target))
    artifact, ms = _timed(lambda: compiler.compile_conv(3, channels, channels, dtype=dtype, target=target))
    return {
        "ms": ms,
        "import_ms": import_ms,
        "object_bytes": len(artifact.object),
        "passes_ms": artifact.meta["milliseconds"],
    }


def _import_compiler(target: str) -> Any:
    """Imports everything that compiling for a target imports on the way."""
    from spconv_compiler import compiler, pipeline
    from spconv_compiler.targets import GpuTarget, get_target

    resolved = get_target(target)
    pipeline.stages_for(resolved, "auto")
    for name in ("context", "frontend", "runner", "codegen_gpu" if isinstance(resolved, GpuTarget) else "codegen_cpu"):
        importlib.import_module(f"spconv_compiler.{name}")
    return compiler


def compile_from_disk(*, target: str, dtype: str, channels: int, cache_dir: str) -> dict[str, Any]:
    """The same convolution when an earlier process has compiled it."""
    _use_cache(cache_dir)
    compiler, import_ms = _timed(lambda: importlib.import_module("spconv_compiler.compiler"))
    _, ms = _timed(lambda: compiler.compile_conv(3, channels, channels, dtype=dtype, target=target))
    return {"ms": ms, "import_ms": import_ms, "mlir": "flydsl" in sys.modules}


def peak_memory(
    *, frame: str, spatial_shape: list[int], channels: int, dtype: str, peer: bool, threads: int, cache_dir: str
) -> dict[str, Any]:
    """Bytes by which one convolution, inputs and result included, raises this process's peak.

    frame: an .npy file with coords int32 [N, 4].
    """
    import numpy as np

    from spconv_compiler import nets

    _use_cache(cache_dir)
    env.NUM_THREADS.set(str(threads))
    convolve = _peer_convolution(spatial_shape, threads) if peer else _own_convolution()
    rng = np.random.default_rng(0)
    weight = nets.to_dtype(rng.standard_normal((channels, 3, 3, 3, channels), dtype=np.float32), dtype)
    # Imports, thread pools and the kernel's code are there before the clock of memory starts.
    convolve(np.zeros((1, 4), np.int32), nets.to_dtype(np.zeros((1, channels), np.float32), dtype), weight)
    shape, weight = weight.shape, None
    ctypes.CDLL(None).malloc_trim(0)
    before = _status("VmRSS")
    weight = nets.to_dtype(rng.standard_normal(tuple(shape), dtype=np.float32), dtype)
    coords = np.load(frame)
    features = nets.to_dtype(rng.standard_normal((len(coords), channels), dtype=np.float32), dtype)
    reset = _reset_peak()
    out = convolve(coords, features, weight)
    return {"bytes": _status("VmHWM") - before, "peak_was_reset": reset, "rows": int(out.shape[0])}


def _own_convolution() -> Callable[[Any, Any, Any], Any]:
    from spconv_compiler.api import subm_conv3d

    return subm_conv3d


def _peer_convolution(spatial_shape: list[int], threads: int) -> Callable[[Any, Any, Any], Any]:
    import torch

    from spconv_compiler.bench.peer import SpconvPeer

    def convolve(coords: Any, features: Any, weight: Any) -> Any:
        peer = SpconvPeer(torch.from_numpy(weight), tuple(spatial_shape), threads)
        peer.prepare()
        return peer.built(torch.from_numpy(coords), torch.from_numpy(features))

    return convolve


def _use_cache(folder: str) -> None:
    env.CACHE.set("on")
    env.CACHE_DIR.set(folder)


def _status(name: str) -> int:
    """A size from /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise SpconvError(f"/proc/self/status has no {name}")


def _reset_peak() -> bool:
    """Sets VmHWM back to VmRSS; where the kernel refuses, temporaries of the inputs may count."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def maps_of(*, frame: str, voxels: int, shuffle: bool, runs: int, threads: int) -> dict[str, Any]:
    """Milliseconds of both maps of scaling.py for so many voxels, and bytes by which they raise the peak of memory.

    frame: an .npy file with coords int32 [N, 4], of which copies are laid side by side.
    """
    import numpy as np

    from spconv_compiler.bench import scaling
    from spconv_compiler.runtime import memory_pool

    env.NUM_THREADS.set(str(threads))
    coords = scaling.tiled(np.load(frame), voxels, shuffle)
    found: dict[str, Any] = {"voxels": voxels}
    made = None
    for name, build in scaling.BUILDERS.items():
        made = build(coords[:1000].copy())
        made = None
        memory_pool.clear()
        ctypes.CDLL(None).malloc_trim(0)
        before, reset = _status("VmRSS"), _reset_peak()
        times, cpu_times = [], []
        # The first run also asks the system for memory: it is reported apart.
        for _ in range(runs + 1):
            made, cpu = None, time.process_time()
            made, ms = _timed(functools.partial(build, coords))
            times.append(ms)
            cpu_times.append((time.process_time() - cpu) * 1e3)
        middle = sorted(times[1:])[runs // 2], sorted(cpu_times[1:])[runs // 2]
        found[name] = {"first_ms": times[0], "ms": middle[0], "cpu_ms": middle[1], "peak_was_reset": reset}
        found[name] |= {"peak_bytes": _status("VmHWM") - before, **scaling.size_of(made)}
    return found


_TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    task.__name__: task for task in (compile_cold, compile_from_disk, peak_memory, maps_of)
}

if __name__ == "__main__":
    print(json.dumps(_TASKS[sys.argv[1]](**json.loads(sys.argv[2]))))
