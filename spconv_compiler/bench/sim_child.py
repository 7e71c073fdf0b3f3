"""Measurements of the simulator that need a process of their own: first builds and peak memory.

    python -m spconv_compiler.bench.sim_child TASK JSON

Prints one line of JSON; `measure` starts it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from spconv_compiler import env
from spconv_compiler.bench.child import _reset_peak, _status, _timed, _use_cache
from spconv_compiler.errors import SpconvError


def measure(task: str, **arguments: Any) -> dict[str, Any]:
    """Runs a task of this file in a new process and returns what it found.

    Raises:
        SpconvError: the process failed; the message ends with the last lines it printed.
    """
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", __name__, task, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    if done.returncode:
        # A fault takes two lines: the instruction, and what is wrong with it.
        last = " ".join(done.stderr.split("\n")[-3:]).strip() or f"exit code {done.returncode}"
        raise SpconvError(f"measuring {task} in a new process failed: {last}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def handlers(*, checks: bool, cache_dir: str) -> dict[str, Any]:
    """Milliseconds to build all handlers with an empty cache, or to load them where it has them; their number."""
    _use_cache(cache_dir)
    from spconv_compiler.sim.native import library

    loaded, ms = _timed(lambda: library.load(library.build_of(checks)))
    return {"ms": ms, "handlers": len(loaded.addresses)}


def layer(
    *,
    frame: str,
    channels: int,
    dtype: str,
    threads: int,
    checks: bool,
    runs: int,
    native: bool,
    cache_dir: str,
    schedule: str = "auto",
) -> dict[str, Any]:
    """One convolution from coordinates to result, several times over.

    frame: an .npy file with coords int32 [N, 4].

    Returns:
        seconds: of each run; launches: kernel, wave instructions and seconds of each run; allocated_bytes, peak_bytes:
        of the first run; out: file with the result, float32.
    """
    _use_cache(cache_dir)
    env.NUM_THREADS.set(str(threads))
    from spconv_compiler.bench import sim_layer

    problem = sim_layer.Problem.load(frame, channels, dtype)
    # What is imported and compiled is there before the clock starts; so are the handlers.
    artifact = problem.compile(schedule)
    make = sim_layer.engine(native, threads, checks)
    sim_layer.warm_up(make, channels, dtype, checks, schedule)
    _reset_peak()
    before = _status("VmRSS")
    seconds: list[float] = []
    runs_of: list[Any] = []
    found: Any = None
    for turn in range(runs):
        start = time.perf_counter()
        found = problem.run(artifact, make, checks)
        seconds.append(time.perf_counter() - start)
        runs_of.append(found.launches)
        if turn == 0:
            peak = _status("VmHWM") - before
    out = Path(cache_dir) / f"out-{channels}-{dtype}-{checks}.npy"
    np.save(out, found.out)
    return {
        "seconds": seconds,
        "launches": [
            {
                "kernel": one[0].kernel,
                "instructions": one[0].instructions,
                "seconds": [launch.seconds for launch in one],
            }
            for one in zip(*runs_of, strict=True)
        ],
        "allocated_bytes": found.allocated_bytes,
        "peak_bytes": peak,
        "out": str(out),
    }


def lds(*, threads: int, checks: bool, runs: int, native: bool, cache_dir: str) -> dict[str, Any]:
    """The kernel of sim_lds.py: see its measure; fewer workgroups on the numpy engine."""
    _use_cache(cache_dir)
    env.NUM_THREADS.set(str(threads))
    from spconv_compiler.bench import sim_layer, sim_lds

    groups = sim_lds.GROUPS if native else sim_lds.GROUPS // 128
    return sim_lds.measure(sim_layer.engine(native, threads, checks), runs, groups)


_TASKS: dict[str, Callable[..., dict[str, Any]]] = {task.__name__: task for task in (handlers, layer, lds)}

if __name__ == "__main__":
    print(json.dumps(_TASKS[sys.argv[1]](**json.loads(sys.argv[2]))))
