"""What Python adds to a call of a compiled network, apart from its kernels and from what stays torch's.

One voxel on a small grid: kernels take little, and leave in the caches what Python needs; its work depends on neither.
The clock is the thread's processor time, with one thread, so that nobody else's work counts. All machine code of this
package is called through `CpuModule.function`: in this process each such function adds up the time spent in it, and so
does the part of the model that stays torch's (a dense head). What is left is Python: checks, look-ups, the list of
calls, memory for results. It runs in a process of its own, since kernels that are loaded already have no clock.
"""

from __future__ import annotations

import dataclasses
import importlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from spconv_compiler import env
from spconv_compiler.nets.registry import get_model, make_model
from spconv_compiler.runtime.cpu import CpuModule

# Of the grid, deep and wide enough for every level of the networks; voxels of the example, which has to have two.
_GRID, _ROWS = (40, 64, 64), 20
_WARM = 20


class Timed:
    """A function that adds up the nanoseconds, and counts the calls, of all that are given the same `spent`."""

    def __init__(self, function: Callable[..., Any], spent: list[int]) -> None:
        self._function, self._spent = function, spent
        # ctypes takes this where it wants the address.
        self._as_parameter_ = function

    def __call__(self, *arguments: Any) -> Any:
        begin = time.thread_time_ns()
        try:
            return self._function(*arguments)
        finally:
            self._spent[0] += time.thread_time_ns() - begin
            self._spent[1] += 1


def call_time(*, net: str, channels: int, dtype: str, rounds: int) -> dict[str, Any]:
    """Medians in microseconds by whether maps are "kept" or "built": total_us, kernels_us, torch_us, python_us.

    kernel_calls: how often Python calls machine code. Maps that are built are built in every call.
    """
    import torch

    native = [0, 0]
    _clock_functions(native)
    env.NUM_THREADS.set("1")
    torch.set_num_threads(1)
    compile_net = importlib.import_module("spconv_compiler").compile
    features, coords = _frame(channels, dtype)
    model = make_model(get_model(net), importlib.import_module("spconv_compiler.pytorch"), channels, _GRID)
    model = model.to(features.dtype)
    found: dict[str, Any] = {"rows": 1, "rounds": rounds}
    for name in ("kept", "built"):
        network = compile_net(model, (features, coords), target="cpu", keep_maps=name == "kept")
        found[name] = _medians(network, features[:1].clone(), coords[:1].clone(), native, rounds, name == "kept")
    return found


def _clock_functions(spent: list[int]) -> None:
    """From now on functions of machine code that are loaded have a clock."""
    load = CpuModule.function

    def function(self: CpuModule, name: str, kinds: Sequence[str], *, result: bool = True) -> Any:
        return Timed(load(self, name, kinds, result=result), spent)

    setattr(CpuModule, "function", function)  # noqa: B010  (a method is not assigned to, by mypy's rules)


def _frame(channels: int, dtype: str) -> tuple[Any, Any]:
    import torch

    from spconv_compiler.bench.net import as_tensor

    values = torch.randn(_ROWS, channels, generator=torch.Generator().manual_seed(0)).numpy()
    coords = torch.zeros(_ROWS, 4, dtype=torch.int32)
    coords[:, 1], coords[:, 3] = _GRID[0] // 2, torch.arange(_ROWS)
    return as_tensor(values, dtype), coords


def _medians(network: Any, features: Any, coords: Any, native: list[int], rounds: int, kept: bool) -> dict[str, float]:
    import torch

    torch_part = [0, 0]
    network.graph = dataclasses.replace(network.graph, tail=Timed(network.graph.tail, torch_part))
    rows: list[tuple[float, ...]] = []
    with torch.no_grad():
        for _ in range(rounds + _WARM):
            given = coords if kept else coords.clone()
            native[:], torch_part[:] = [0, 0], [0, 0]
            begin = time.thread_time_ns()
            network(features, given)
            total = time.thread_time_ns() - begin
            parts = (total, native[0], torch_part[0], total - native[0] - torch_part[0])
            rows.append((*(part / 1e3 for part in parts), float(native[1])))
    names = ("total_us", "kernels_us", "torch_us", "python_us", "kernel_calls")
    return dict(zip(names, map(statistics.median, zip(*rows[_WARM:], strict=True)), strict=True))
