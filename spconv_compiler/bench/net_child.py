"""Peak memory of a whole network, which needs a process of its own.

    python -m spconv_compiler.bench.net_child JSON

Prints one line of JSON; `measure` starts it. Kernels come from the cache that the parent filled.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from spconv_compiler import env
from spconv_compiler.bench.child import _reset_peak, _status
from spconv_compiler.errors import SpconvError

# Voxels of the run that loads kernels and starts threads before memory is measured.
_WARM_ROWS = 64


def measure(**arguments: Any) -> int:
    """Bytes by which one run of a network raises a process's peak; arguments as for `peak`.

    Raises:
        SpconvError: the process failed; the message ends with the last line it printed.
    """
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", __name__, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise SpconvError(f"measuring the memory of {arguments['net']} in a new process failed: {last}")
    return int(json.loads(done.stdout.splitlines()[-1]))


def peak(*, net: str, frame: str, dtype: str, mode: str, threads: int) -> int:
    """Bytes beyond parameters and input that one run takes at its peak, its result and its maps included.

    Args:
        frame: an .npz file with coords, features and spatial_shape.
        mode: "eager", "compiled" or "peer".
    """
    import numpy as np
    import torch

    from spconv_compiler.bench.net import _compiler, as_tensor, peer_model
    from spconv_compiler.nets.registry import get_model, make_model

    env.NUM_THREADS.set(str(threads))
    torch.set_num_threads(threads)
    with np.load(frame) as file:
        coords, values = torch.from_numpy(file["coords"]), file["features"]
        shape = tuple(file["spatial_shape"].tolist())
    features, spec = as_tensor(values, dtype), get_model(net)
    if mode == "peer":
        model = peer_model(spec, values.shape[1], shape)
    else:
        ours = importlib.import_module("spconv_compiler.pytorch")
        model = make_model(spec, ours, values.shape[1], shape).to(features.dtype)
        model = _compiler()(model, (features[:_WARM_ROWS], coords[:_WARM_ROWS])) if mode == "compiled" else model
    with torch.no_grad():
        model(features[:_WARM_ROWS].clone(), coords[:_WARM_ROWS].clone())
        ctypes.CDLL(None).malloc_trim(0)
        before = _status("VmRSS")
        _reset_peak()
        out = model(features, coords)
    found = _status("VmHWM") - before
    assert out.shape[0] > 0
    return found


if __name__ == "__main__":
    print(json.dumps(peak(**json.loads(sys.argv[1]))))
