"""spconv-bench gpu: what it exports, and what its report says of given figures."""

from __future__ import annotations

import pathlib
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from spconv_compiler import bundle
from spconv_compiler.bench import gpu, gpu_calls, gpu_layer, gpu_net, gpu_report
from spconv_compiler.bench.gpu_contenders import PEERS
from spconv_compiler.compiler import conv_options
from spconv_compiler.network.recipes import evaluate
from spconv_compiler.targets import get_target
from spconv_compiler.tools.bench import main


def facts(scale: float, ok: bool = True) -> dict[str, Any]:
    found: dict[str, Any] = {name: 100.0 * scale for name in gpu_report.FIGURES}
    return {**found, "built_launches": 15, "cached_launches": 1, "tflops": 1.0, "error": 1e-4, "ok": ok}


def row(**contenders: dict[str, Any]) -> dict[str, Any]:
    case = {"frame": "f", "N": 10, "pairs": 50, "channels": 64, "flops": 10**9, "floor_bytes": 10**6}
    return {**case, "contenders": contenders}


def test_the_fastest_peer_counts_however_exact_it_is() -> None:
    one = row(spconv_compiler=facts(1), spconv=facts(3), other=facts(2), rough=facts(1.5, ok=False))
    assert gpu_report.best_ratio(one, "cached_gpu_us") == 1.5
    assert gpu_report.best_ratio(row(spconv_compiler=facts(1)), "cached_gpu_us") is None


def test_a_graph_of_ours_is_no_peer_and_keeps_no_map() -> None:
    graph = {name: figure / 4 for name, figure in facts(1).items() if name.startswith("built")}
    one = row(spconv_compiler=facts(1), **{gpu_layer.NAME: {**graph, "error": 1e-4, "ok": True}}, spconv=facts(3))
    assert gpu_report.best_ratio(one, "built_wall_us") == 3
    assert gpu_report.best_ratio(one, "built_wall_us", gpu_layer.NAME) == 12
    assert gpu_report.best_ratio(one, "cached_wall_us", gpu_layer.NAME) is None
    result = {"limits": {"matmul_tflops": 500.0, "copy_gbps": 4000.0}, "rows": [one]}
    columns, cells = gpu_report.table(result)
    assert [len(line) for line in cells] == [len(columns)] * 3
    assert cells[1][columns.index("launches")] == "– / 4" and cells[1][columns.index("TFLOP/s")] == "–"
    lines = gpu_report.notes(result)
    assert "wall time, map built: fastest peer over our graph 12.00 in geometric mean, 12.00 to 12.00" in lines
    assert not any("map kept: fastest peer over our graph" in line for line in lines)


def test_time_that_two_operations_share_is_the_earlier_ones() -> None:
    """A kernel that begins early and waits counts from the end of the one before it; a hole counts for nobody."""
    given = [("b", 4, 12), ("a", 0, 10), ("inside", 5, 9), ("c", 20, 21.5)]
    events = [SimpleNamespace(name=name, time_range=SimpleNamespace(start=at, end=to)) for name, at, to in given]
    assert gpu.own_times(events) == [("a", 10), ("b", 2), ("inside", 0), ("c", 1.5)]
    assert gpu.own_times([]) == []


def test_steps_of_a_call_are_medians_of_runs_that_are_alike() -> None:
    runs = [[("record", 1e-6), ("return", 3e-6)], [("is_current", 1e-6)], [("record", 2e-6), ("return", 8e-6)]]
    assert gpu_calls._steps([*runs, [("record", 6e-6), ("return", 4e-6)]]) == [("record", 2.0), ("return", 4.0)]
    row = {"frame": "f", "channels": 64, "way": "overlapping", "gpu_us": {"kernel": 7.0, "gaps": 2.0}}
    modes = {"alone": 100.4, "in turns": 130.0}
    row |= {"wall_us": modes, "returns_us": modes, "steps_us": {"alone": [("return", 12.0)]}}
    columns, cells = gpu_calls.table({"rows": [row]})
    assert cells == [["f", "64", "overlapping", "100", "100", "130", "130", "9", "2"]] and len(columns) == len(cells[0])
    assert list(gpu_calls.notes({"rows": [row]})) == [
        "f, C = 64, overlapping, alone: return 12", "  GPU: kernel 7.0, gaps 2.0"
    ]


def test_the_floor_is_the_slower_of_product_and_copy() -> None:
    one = row(spconv_compiler=facts(1))
    assert gpu_report.floor_us(one, {"matmul_tflops": 500.0, "copy_gbps": 4000.0}) == pytest.approx(2.0)
    assert gpu_report.floor_us(one, {"matmul_tflops": 500.0, "copy_gbps": 100.0}) == pytest.approx(10.0)


def test_notes_name_what_is_wrong() -> None:
    result = {
        "limits": {"matmul_tflops": 500.0, "copy_gbps": 4000.0},
        "rows": [
            row(spconv_compiler=facts(1), spconv=facts(4)),
            row(spconv_compiler=facts(1, ok=False), spconv=facts(9)),
        ],
    }
    lines = gpu_report.notes(result)
    assert "GPU time, map kept: fastest peer over ours 6.00 in geometric mean, 4.00 to 9.00" in lines
    assert "  error 1.0e-04 of spconv_compiler: f, C = 64" in lines
    columns, cells = gpu_report.table(result)
    assert len(cells) == 4
    assert all(len(line) == len(columns) for line in cells)


def test_export_writes_frames_kernels_and_layers(tmp_path: pathlib.Path) -> None:
    arguments = ["gpu", "--export", str(tmp_path), "--frames", "generated-tiny", "--channels", "16"]
    assert main(arguments) == 0
    with np.load(tmp_path / "frames" / "generated-tiny.npz") as data:
        assert data["coords"].shape[1] == 4
        assert data["shape"].shape == (3,)
    for mapper in ("auto", "z_delta"):
        wanted = conv_options(3, 16, 16, dtype="f16", target="sm_90", mapper=mapper)
        assert bundle.find(tmp_path / "kernels", wanted, get_target("sm_90")) is not None
    layer = gpu.layer_folder(tmp_path, "generated-tiny", 16)
    assert bundle.find(layer / "kernels", conv_options(3, 16, 16, dtype="f16", target="sm_90"), get_target("sm_90"))
    weight = torch.arange(16 * 27 * 16, dtype=torch.float16).reshape(16, 3, 3, 3, 16)
    (step,) = torch.load(layer / "network.pt", weights_only=False)["plan"].steps
    assert torch.equal(evaluate(dict(step.recipes)["weight"], {"conv.weight": weight}, {}), weight)


def test_widths_of_frames() -> None:
    found = gpu.cases((16, 64, 128, 256, 512))
    assert found["nuscenes-l0"] == [16, 64, 128]
    assert found["nuscenes-l3"] == [128, 256, 512]


def test_unknown_peers_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu", "--peers", "nobody"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in PEERS)


def net_row(name: str, us: float, **others: Any) -> dict[str, Any]:
    found = {"net": "n", "N": 1000, "contestant": name, "ok": True}
    found |= {"wall_us": us, "wall_min_us": us, "gpu_us": us / 2}
    found |= {"gpu_operations": 9, "host_calls": {"cuGraphLaunch": 1.0}, "peak_bytes": 2**20, "error": 1e-4}
    return {**found, **others}


def test_networks_are_compared_with_the_first() -> None:
    ours = net_row(gpu_net.OURS, 100, graphs=1, not_replayed=None)
    each = net_row(gpu_net.EACH, 150, graphs=0, not_replayed="too large", ok=False)
    result = {"rows": [ours, each, net_row("spconv", 400)]}
    columns, cells = gpu_net.table(result)
    assert len(cells) == 3 and all(len(line) == len(columns) for line in cells)
    assert cells[1][-1] == "1.0e-04 WRONG" and cells[0][-1] == "1.0e-04"
    assert gpu_net.notes(result) == [
        "n: each map by itself over ours: wall time 1.50, GPU time 1.50",
        "n: each map by itself not replayed: too large",
        "n: spconv over ours: wall time 4.00, GPU time 4.00",
    ]


@pytest.mark.parametrize("command", ["cpu", "cpu --maps", "gpu", "gpu --export cases", "gpu --cases cases", "net"])
def test_without_torch_commands_say_that_they_need_it(
    command: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(command.split()) == 1
    error = capsys.readouterr().err
    assert "needs torch, which is not installed; install spconv_compiler[torch]" in error and "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("more", [[], ["--net", "centerpoint"], ["--cases", "cases"]])
def test_without_a_gpu_nothing_is_made_for_one(
    more: list[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["gpu", *more, "--out", str(tmp_path / "out.json")]) == 1
    assert f"torch {torch.__version__} finds none; accepted: a machine with one" in capsys.readouterr().err


def test_networks_that_were_not_exported_are_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    out = str(tmp_path / "out.json")
    assert main(["gpu", "--net", "centerpoint", "--cases", str(tmp_path), "--out", out]) == 1
    assert "frame.npz does not exist; spconv-bench gpu --net centerpoint --export makes it" in capsys.readouterr().err
