"""What of a whole network needs a process of its own: peak memory, compilation, Python's part of a call, launches.

    python -m spconv_compiler.bench.net_child TASK JSON

Prints one line of JSON; `measure` starts it. Kernels come from the cache that the parent filled, where none is named.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from spconv_compiler import env
from spconv_compiler.bench.child import _reset_peak, _run, _status, _use_cache

# Voxels of the run that loads kernels and starts threads before memory is measured.
_WARM_ROWS = 64


def measure(task: str, **arguments: Any) -> dict[str, Any]:
    """What a task of this file finds in a new process.

    Raises:
        SpconvError: the process failed; the message ends with the last line it printed.
    """
    what = f"{task} of {arguments['net']}" if "net" in arguments else task
    return _run([sys.executable, "-m", __name__, task, json.dumps(arguments)], what)


def peak(*, net: str, frame: str, dtype: str, mode: str, threads: int) -> dict[str, int]:
    """bytes: beyond parameters and input that one run takes at its peak, its result and its maps included.

    Args:
        frame: an .npz file with coords, features and spatial_shape.
        mode: "eager", "compiled" or "peer".
    """
    import torch

    from spconv_compiler.bench.net import _compiler

    model, features, coords = _given(net, frame, dtype, threads, peer=mode == "peer")
    if mode == "compiled":
        model = _compiler()(model, (features[:_WARM_ROWS], coords[:_WARM_ROWS]))
    with torch.no_grad():
        model(features[:_WARM_ROWS].clone(), coords[:_WARM_ROWS].clone())
        ctypes.CDLL(None).malloc_trim(0)
        before = _status("VmRSS")
        _reset_peak()
        out = model(features, coords)
    found = _status("VmHWM") - before
    assert out.shape[0] > 0
    return {"bytes": found}


def compile_time(*, net: str, frame: str, dtype: str, threads: int, cache_dir: str) -> dict[str, Any]:
    """What spconv_compiler.compile takes in this process, with what it imports on the way, for a frame as the example.

    ms: its wall time; kernels: how many it compiled, as neither memory nor disk had them; mlir: whether it needed MLIR.
    """
    from spconv_compiler.bench.net import _compiler

    _use_cache(cache_dir)
    model, features, coords = _given(net, frame, dtype, threads)
    compile_net = _compiler()
    begin = time.perf_counter()
    network = compile_net(model, (features, coords), target="cpu")
    ms = (time.perf_counter() - begin) * 1e3
    return {"ms": ms, "kernels": network.compiled, "mlir": "flydsl" in sys.modules, "parts_s": network.timings}


def _given(net: str, frame: str, dtype: str, threads: int, *, peer: bool = False) -> tuple[Any, Any, Any]:
    """(the model, its features, its coords); frame: as for peak."""
    import numpy as np
    import torch

    from spconv_compiler.bench.net import as_tensor, peer_model
    from spconv_compiler.nets.registry import get_model, make_model

    env.NUM_THREADS.set(str(threads))
    torch.set_num_threads(threads)
    with np.load(frame) as file:
        coords, values = torch.from_numpy(file["coords"]), file["features"]
        shape = tuple(file["spatial_shape"].tolist())
    features, spec = as_tensor(values, dtype), get_model(net)
    if peer:
        return peer_model(spec, values.shape[1], shape), features, coords
    ours = importlib.import_module("spconv_compiler.pytorch")
    return make_model(spec, ours, values.shape[1], shape).to(features.dtype), features, coords


def launch_plan(*, net: str, frame: str, dtype: str, target: str) -> dict[str, Any]:
    """As net_plan.launch_plan, of a network that is compiled for this host; frame: as for peak."""
    from spconv_compiler.bench import net_plan
    from spconv_compiler.bench.net import _compiler

    model, features, coords = _given(net, frame, dtype, env.NUM_THREADS.get())
    example = features[:_WARM_ROWS], coords[:_WARM_ROWS]
    return net_plan.launch_plan(_compiler()(model, example, target="cpu").plan, target)


def call_time(**arguments: Any) -> dict[str, Any]:
    """As net_calls.call_time."""
    from spconv_compiler.bench import net_calls

    return net_calls.call_time(**arguments)


def layers(*, rounds: int) -> dict[str, Any]:
    """rows: as layers.measure."""
    return {"rows": importlib.import_module("spconv_compiler.bench.layers").measure(rounds)}


_TASKS: dict[str, Callable[..., Any]] = {
    task.__name__: task for task in (peak, compile_time, launch_plan, call_time, layers)
}

if __name__ == "__main__":
    print(json.dumps(_TASKS[sys.argv[1]](**json.loads(sys.argv[2]))))
