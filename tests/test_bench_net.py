"""spconv-bench net: what it writes, and that neither a wrong network nor a racing peer can look good in it."""

from __future__ import annotations

import json
import os
import statistics
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_networks import install

import spconv_compiler
import spconv_compiler.pytorch
from spconv_compiler.bench import net, net_child
from spconv_compiler.errors import SpconvError
from spconv_compiler.nets import plain, registry
from spconv_compiler.tools.bench import main

QUICK = ("net", "--net", "second", "--tiny", "--dtypes", "f32", "--runs", "2", "--no-processes")


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The bench sets variables and threads of its process; tests give them back. Networks are tiny."""
    threads = torch.get_num_threads()
    monkeypatch.setenv("SPCONV_NUM_THREADS", os.environ.get("SPCONV_NUM_THREADS", ""))
    monkeypatch.chdir(tmp_path)
    install(monkeypatch)
    yield
    torch.set_num_threads(threads)


def fake_spconv(monkeypatch: pytest.MonkeyPatch, spoil: bool = False) -> list[Any]:
    """Puts plain layers in spconv's place, with two threads wrong if `spoil`; returns the coordinates it is given."""
    asked: list[Any] = []

    class Watched(plain.SparseConvTensor):
        def __init__(self, features: Any, indices: Any, *rest: Any) -> None:
            super().__init__(features, indices, *rest)
            if features.shape[1] == 4:
                asked.append(indices)

        def dense(self) -> Any:
            wrong = spoil and torch.get_num_threads() > 1
            return super().dense() * (1.01 if wrong else 1.0)

        def replace_feature(self, features: Any) -> Any:
            return Watched(features, self.indices, self.spatial_shape, self.batch_size, self.indice_dict)

    class Strided(plain.SparseConv3d):
        def forward(self, voxels: Any) -> Any:
            out = super().forward(voxels)
            return Watched(out.features, out.indices, out.spatial_shape, out.batch_size, out.indice_dict)

    module: Any = types.ModuleType("spconv.pytorch")
    module.__dict__.update(vars(plain), SparseConvTensor=Watched, SparseConv3d=Strided)
    monkeypatch.setitem(sys.modules, "spconv", types.ModuleType("spconv"))
    monkeypatch.setitem(sys.modules, "spconv.pytorch", module)
    return asked


def results() -> Any:
    return json.loads(Path("spconv-bench-net.json").read_text())


def test_peer_takes_turns_with_new_maps(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_spconv(monkeypatch, spoil=True)
    assert main([*QUICK, "--peer", "spconv", "--no-compiled", "--threads", "2"]) == 0
    rows = {row["contestant"]: row for row in results()["rows"]}
    assert list(rows) == ["f32", "spconv", "spconv_one_thread"]
    # A first run and two timed ones of both settings, each with coordinates of its own.
    assert len(asked) == len({id(coords) for coords in asked}) == 6
    own, peer, one = rows.values()
    assert own["ms"] == statistics.median(own["all_ms"]) and len(own["all_ms"]) == 2
    assert own["ratio_spconv"] == peer["ms"] / own["ms"] and own["ratio_spconv_one_thread"] == one["ms"] / own["ms"]
    assert (own["threads"], peer["threads"], one["threads"]) == (2, 2, 1)
    assert own["check"]["ok"] and own["check"]["difference"] < 1e-5
    assert peer["check"]["wrong_runs"] == 2 and peer["check"]["difference"] == pytest.approx(0.01, rel=1e-3)
    assert one["check"]["wrong_runs"] == 0 and "ratio_spconv" not in peer
    profile = own["profile"]
    assert profile["convolutions_ms"] > 0.0 and len(profile["layers"]) == 12
    assert profile["gflop"] == sum(2 * one["pairs"] * one["c_in"] * one["c_out"] for one in profile["layers"]) / 1e9
    printed = capsys.readouterr().out
    assert "2 of 2" in printed and "second f32, eager: convolutions" in printed and "WRONG" not in printed


def test_a_wrong_network_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fake_spconv(monkeypatch)
    right = registry.make_model

    def mirrored(spec: Any, layers: Any, *rest: Any, **options: Any) -> Any:
        model = right(spec, layers, *rest, **options)
        if layers is spconv_compiler.pytorch:
            weight = model.get_parameter("conv3.1.0.weight")
            weight.copy_(weight.flip(3))
        return model

    monkeypatch.setattr(net, "make_model", mirrored)
    assert main([*QUICK, "--peer", "spconv", "--no-compiled"]) == 1
    assert "WRONG: second f32: " in capsys.readouterr().out


def test_compiled_contestants(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def compile_net(model: Any, example: Any) -> Any:
        given.append(example)
        return lambda features, coords: 2.0 * model(features, coords)

    monkeypatch.setattr(spconv_compiler, "compile", compile_net, raising=False)
    assert main([*QUICK]) == 1
    rows = {row["contestant"]: row for row in results()["rows"]}
    assert list(rows) == ["f32", "f32_compiled"] and len(given) == 1 and given[0][0].shape[1] == 4
    assert rows["f32"]["check"]["ok"] and rows["f32_compiled"]["check"]["difference"] == pytest.approx(1.0)
    assert "profile" not in rows["f32_compiled"] and "second f32 compiled" in capsys.readouterr().out.replace("_", " ")


def test_frames_fall_back_to_a_generated_scan(tmp_path: Path) -> None:
    spec = registry.get_model("second")
    name, voxels = net.load_voxels(spec, tmp_path, tiny=True)
    assert name == "generated-2x200" and 50 < len(voxels) < 5000 and voxels.spatial_shape == (40, 1600, 1408)


def test_real_frames(shared_dir: Path) -> None:
    name, voxels = net.load_voxels(registry.get_model("centerpoint"), shared_dir / "data")
    assert name == "ff9eff4389a740848f9a56ad749a4ae8" and len(voxels) == 105_086


@pytest.mark.slow
def test_memory_is_measured() -> None:
    assert main(["net", "--net", "second", "--tiny", "--dtypes", "f32", "--runs", "1", "--no-compiled"]) == 0
    # The result alone, 128 · 2 x 200 x 176 in f32, has 36 MB.
    assert 36e6 < results()["rows"][0]["peak_bytes"] < 300e6


def test_a_failing_process_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpconvError, match="measuring peak of second in a new process failed: "):
        net_child.measure("peak", net="second", frame="missing.npz", dtype="f32", mode="eager", threads=1)


def test_layers_are_compared_with_their_functions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    assert main(["net", "--layers", "--runs", "1"]) == 0
    rows = json.loads((tmp_path / "spconv-bench-net.json").read_text())["layers"]
    assert {row["layer"] for row in rows} >= {"SubMConv3d", "SubMConv3d, key", "SparseConv3d", "SparseInverseConv3d"}
    for row in rows:
        assert 0 < row["functional_us"] < 1e5 and abs(row["layer_us"] - row["functional_us"]) < 1e5
    printed = capsys.readouterr().out
    assert "added µs" in printed and "512" in printed
    assert torch.get_num_threads() == threads
