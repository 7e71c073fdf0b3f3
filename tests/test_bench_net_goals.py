"""What `spconv-bench net` says is reached, and the clock that tells Python from kernels."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_networks import install

import spconv_compiler
from spconv_compiler.bench import net_calls, net_goals, net_processes
from spconv_compiler.bench.net_calls import Timed
from spconv_compiler.runtime.cpu import CpuModule
from spconv_compiler.tools.bench import main


def row(contestant: str, ratio: float, peak: float) -> dict[str, Any]:
    found = {"net": "centerpoint", "contestant": contestant, "ratio_spconv": ratio, "peak_bytes": peak}
    return {**found, "check": {"ok": True}}


def figures() -> dict[str, Any]:
    """As net.measure gives them, each as bad as it may be."""
    at = {"net": "centerpoint", "dtype": "f32"}
    rows = [row("f32", 1.5, 100), row("f32_compiled", 1.5, 60), row("bf16", 3.0, 50), row("bf16_compiled", 3.0, 30)]
    compiled = {**at, "cold_ms": 15e3, "from_disk_ms": 1e3, "from_disk_kernels": 0}
    plan = {**at, "convolutions": [2, 1, 2], "maps": 20, "host_reads": 0, "why": None}
    return {
        "rows": rows,
        "compile": [compiled, compiled],
        "calls": [{**at, "kept": {"python_us": 100.0}}],
        "plans": [plan, plan],
        "layers": [{"added_us": -3.0}, {"added_us": 10.0}],
    }


# Part of the goal's name → what misses it.
MISSES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "our f32": lambda found: found["rows"][1].update(ratio_spconv=1.49),
    "our bf16": lambda found: found["rows"][2]["check"].update(ok=False),
    "cold": lambda found: found["compile"].append({**found["compile"][0], "cold_ms": 15.1e3}),
    "from disk": lambda found: found["compile"].append({**found["compile"][0], "from_disk_kernels": 1}),
    "in a new process": lambda found: found["compile"].append({**found["compile"][0], "from_disk_ms": 1001.0}),
    "eager layer": lambda found: found["layers"].append({"added_us": 10.2}),
    "call of the compiled": lambda found: found["calls"].append({**found["calls"][0], "kept": {"python_us": 101.0}}),
    "peak memory": lambda found: found["rows"][3].update(peak_bytes=31),
    "of a convolution": lambda found: found["plans"].append({**found["plans"][0], "convolutions": [1, 3]}),
    "all levels and maps": lambda found: found["plans"].append({**found["plans"][0], "maps": 21}),
    "host reads": lambda found: found["plans"].append({**found["plans"][0], "host_reads": None, "why": "no shape"}),
}


def test_figures_at_the_bounds_reach_all_goals() -> None:
    found = net_goals.goals(figures())
    assert [goal.reached for goal in found] == [True] * 10 + [None]
    assert "RENO" in found[-1].name and found[-1].found == "pytest -m slow tests/test_reno.py"
    of_others = figures()
    for item in of_others["rows"] + of_others["compile"] + of_others["calls"] + of_others["plans"]:
        item["net"] = "second"
    assert [goal.reached for goal in net_goals.goals(of_others)].count(None) == 10


@pytest.mark.parametrize("name", MISSES)
def test_a_figure_that_misses_is_said(name: str) -> None:
    worse = copy.deepcopy(figures())
    MISSES[name](worse)
    missed = [goal.name for goal in net_goals.goals(worse) if goal.reached is False]
    assert len(missed) == 1 and name in missed[0]


def test_what_was_left_out_is_not_reached() -> None:
    found = net_goals.goals({"rows": []})
    assert all(goal.reached is None and goal.found for goal in found) and len(found) == 11


def test_the_command_ends_with_the_goals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its processes are not started: each says what it would be asked for."""
    threads, told = torch.get_num_threads(), list[str]()
    monkeypatch.setenv("SPCONV_NUM_THREADS", os.environ.get("SPCONV_NUM_THREADS", ""))
    monkeypatch.chdir(tmp_path)
    install(monkeypatch)
    monkeypatch.setattr(spconv_compiler, "compile", lambda model, example: model)
    call = {"python_us": 12.0, "kernels_us": 3.0, "torch_us": 2.0, "kernel_calls": 2.0}
    answers: dict[str, Any] = {
        "peak": {"bytes": 1000},
        "compile_time": {"ms": 900.0, "kernels": 0, "mlir": False, "parts_s": {}},
        "call_time": {"kept": call, "built": call},
        "launch_plan": {"target": "gfx950", "convolutions": [1] * 21, "maps": 9, "host_reads": 0, "why": None},
        "layers": {"rows": [{"added_us": 4.0}]},
    }

    def answer(task: str, **arguments: Any) -> Any:
        told.append(task)
        assert task == "layers" or arguments["dtype"] == "f32"
        return answers[task]

    monkeypatch.setattr(net_processes.net_child, "measure", answer)
    try:
        assert main(["net", "--tiny", "--dtypes", "f32", "--runs", "1"]) == 0
    finally:
        torch.set_num_threads(threads)
    assert told == ["peak", "peak", *["compile_time"] * 4, "call_time", "launch_plan", "layers"]
    goals = json.loads(Path("spconv-bench-net.json").read_text())["goals"]
    # A compiled network that takes as much memory as eager layers; without --peer there is nothing to compare.
    assert [goal["reached"] for goal in goals] == [None, None, *[True] * 4, False, *[True] * 3, None]
    printed = capsys.readouterr().out
    assert "goals: 7 of 11 reached, 1 missed, 3 not measured" in printed and "MISSED" in printed
    assert "maps kept: Python 12 µs, kernels 3, torch's part 2" in printed
    assert "21 launches for 21 convolutions, 9 for all levels and maps, 0 host reads" in printed


def busy(us: float) -> None:
    end = time.thread_time_ns() + us * 1e3
    while time.thread_time_ns() < end:
        pass


@dataclasses.dataclass(frozen=True)
class _Graph:
    tail: Callable[..., Any]


class _Network:
    """Takes 3000 µs in kernels, 2000 in torch's part, and 1000 by itself."""

    def __init__(self, kernel: Callable[..., Any]) -> None:
        self.graph, self._kernel, self.frames = _Graph(lambda: busy(2000)), kernel, list[Any]()

    def __call__(self, features: Any, coords: Any) -> None:
        self.frames.append(coords)
        self._kernel(1500)
        busy(1000)
        self._kernel(1500)
        self.graph.tail()


@pytest.mark.parametrize("kept", [True, False])
def test_python_is_what_kernels_and_torch_leave(kept: bool) -> None:
    spent, coords = [0, 0], torch.zeros(1, 4).int()
    network = _Network(Timed(busy, spent))
    found = net_calls._medians(network, None, coords, spent, 3, kept)
    assert found["kernel_calls"] == 2 and found["kernels_us"] == pytest.approx(3000, rel=0.1)
    assert found["torch_us"] == pytest.approx(2000, rel=0.1) and found["python_us"] == pytest.approx(1000, rel=0.2)
    parts = found["kernels_us"] + found["torch_us"] + found["python_us"]
    assert found["total_us"] == pytest.approx(parts, rel=0.05)
    assert len({id(frame) for frame in network.frames}) == (1 if kept else len(network.frames))


def test_functions_of_machine_code_get_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuModule, "function", CpuModule.function)
    spent = [0, 0]
    net_calls._clock_functions(spent)
    kernel: Any = spconv_compiler.compile_conv(3, 3, 5, target="cpu")
    module = CpuModule(kernel.object)
    plan = kernel.plan.launches[0]
    function: Any = module.function(plan.kernel, [argument.kind for argument in plan.arguments])
    assert isinstance(function, Timed) and spent == [0, 0]
    with pytest.raises(Exception, match="argument"):
        function()
    assert spent[1] == 1
