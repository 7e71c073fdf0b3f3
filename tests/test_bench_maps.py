"""spconv-bench cpu --maps and scaling: what they write, and that a wrong map cannot look good in them."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spconv_compiler import api
from spconv_compiler import reference_cross as rc
from spconv_compiler.bench import cpu_maps, frames, map_oracle, scaling
from spconv_compiler.bench.map_oracle import Triples, kernel_map_triples, same, sparse_map_triples, wanted
from spconv_compiler.sparse_map import build_map
from spconv_compiler.tools.bench import main

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The bench sets variables and threads of its process; tests give them back."""
    threads = torch.get_num_threads()
    monkeypatch.setenv("SPCONV_NUM_THREADS", os.environ.get("SPCONV_NUM_THREADS", ""))
    monkeypatch.chdir(tmp_path)
    yield
    torch.set_num_threads(threads)


def tiny() -> frames.Frame:
    return frames.load_frame(frames.TINY, Path("no such folder"), shuffle=True)


@pytest.mark.parametrize("label", list(cpu_maps.GEOMETRIES)[1:])
def test_the_oracle_is_that_of_the_dictionary(label: str) -> None:
    geometry, frame = cpu_maps.GEOMETRIES[label], tiny()
    frame = dataclasses.replace(frame, coords=frame.coords[:400], table=frame.table[:0])
    axes = geometry.kernel_size, geometry.stride, geometry.padding, geometry.dilation
    grid = rc.Grid.of(*axes)
    size = (frame.spatial_shape[0], frame.spatial_shape[1], frame.spatial_shape[2])
    found = wanted(frame, geometry, submanifold=False)
    assert found.out_coords.tolist() == list(
        map(list, rc.outputs(frame.coords, grid, shape=geometry.output_shape(size)))
    )
    assert sorted(map(tuple, found.pairs.tolist())) == sorted(rc.triples(frame.coords, found.out_coords, grid))


def maps_of(frame: frames.Frame) -> list[tuple[Triples, Triples]]:
    """(what the compiled kernels make, what the oracle says) of two geometries."""
    coords, size = torch.from_numpy(frame.coords), frame.spatial_shape
    subm, strided = cpu_maps.GEOMETRIES["submanifold k3"], cpu_maps.GEOMETRIES["k3 s2 p1"]
    made = build_map(coords, 3, stride=2, padding=1, spatial_shape=(size[0], size[1], size[2]))
    built: Any = api.cached_map(coords, 3), coords
    return [
        (kernel_map_triples(built), wanted(frame, subm, submanifold=True)),
        (sparse_map_triples((made, made.out_coords)), wanted(frame, strided, submanifold=False)),
    ]


def test_any_difference_of_two_maps_is_seen() -> None:
    for found, oracle in maps_of(tiny()):
        assert same(found, oracle)
        order = np.random.default_rng(0).permutation(len(found.pairs))
        assert same(dataclasses.replace(found, pairs=found.pairs[order]), oracle)
        for column in range(3):
            changed = found.pairs.copy()
            changed[7, column] += 1
            assert not same(dataclasses.replace(found, pairs=changed), oracle)
        twice = found.pairs.copy()
        twice[3] = twice[4]
        assert not same(dataclasses.replace(found, pairs=twice), oracle)
        assert not same(dataclasses.replace(found, pairs=found.pairs[1:]), oracle)
        moved = found.out_coords.copy()
        moved[0, 3] += 1
        assert not same(dataclasses.replace(found, out_coords=moved), oracle)


def fake_spconv(monkeypatch: pytest.MonkeyPatch, *, wrong: bool) -> None:
    """Modules in spconv's place that build maps by the oracle, or leave out a pair."""

    def get_indice_pairs(
        coords: Any, batches: int, shape: Any, algo: Any, kernel: Any, stride: Any, padding: Any, *rest: Any
    ) -> Any:
        _dilation, _out_padding, submanifold, transposed = rest
        assert not transposed and batches == 1 and algo == "native"
        frame = tiny()
        (geometry,) = (
            one
            for one in cpu_maps.GEOMETRIES.values()
            if [list(one.kernel_size), list(one.stride), list(one.padding)] == [kernel, stride, padding]
        )
        made = wanted(frame, geometry, submanifold=submanifold)
        taps = int(np.prod(kernel))
        counts, pairs = np.zeros(taps, np.int32), np.full((2, taps, len(coords)), -1, np.int32)
        for tap in range(taps):
            rows = made.pairs[made.pairs[:, 0] == tap]
            pairs[:, tap, : len(rows)] = rows[:, 1:].T
            counts[tap] = len(rows) if not submanifold or tap < taps // 2 else 0
        if wrong:
            pairs[0, 0, 0] += 1
        return torch.from_numpy(made.out_coords), torch.from_numpy(pairs), torch.from_numpy(counts)

    core, ops = types.ModuleType("spconv.core"), types.ModuleType("spconv.pytorch.ops")
    core.ConvAlgo = types.SimpleNamespace(Native="native")  # type: ignore[attr-defined]
    ops.get_indice_pairs = get_indice_pairs  # type: ignore[attr-defined]
    for name, module in (("spconv", types.ModuleType("spconv")), ("spconv.core", core)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "spconv.pytorch", types.ModuleType("spconv.pytorch"))
    monkeypatch.setitem(sys.modules, "spconv.pytorch.ops", ops)


@pytest.mark.parametrize("wrong", [False, True])
def test_maps_beside_a_peer(wrong: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fake_spconv(monkeypatch, wrong=wrong)
    command = ["cpu", "--maps", "--peer", "spconv", "--frames", frames.TINY, "--runs", "2", "--shuffle"]
    assert main([*command, "--out", "maps.json"]) == 0
    found, printed = json.loads(Path("maps.json").read_text()), capsys.readouterr().out
    assert [row["geometry"] for row in found["rows"]] == list(cpu_maps.GEOMETRIES)
    for row in found["rows"]:
        assert row["ok"] and row["N"] == len(tiny().coords) and 0 < row["bytes"] <= row["bytes_limit"]
        assert len(row["all_ms"]) == 2 and row["ms"] == pytest.approx(sum(row["all_ms"]) / 2)
        for name in cpu_maps.PEERS:
            theirs = row[name]
            assert (theirs["runs"], theirs["wrong_runs"]) == (3, 3 if wrong else 0)
            assert theirs["ratio"] == pytest.approx(theirs["ms"] / row["ms"])
    strided = [row["spconv"]["ratio"] for row in found["rows"][1:]]
    assert found["summary"]["strided, all"]["spconv"]["ratio"] == pytest.approx(np.prod(strided) ** (1 / 3))
    assert "4 of 4 right, pair by pair" in printed and "geometric mean, spconv / ours, k2 s2" in printed


def test_a_wrong_map_of_ours_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    right = map_oracle.Triples

    def spoiled(made: Any) -> Triples:
        found = sparse_map_triples(made)
        return right(found.pairs[1:], found.out_coords)

    monkeypatch.setattr(cpu_maps, "sparse_map_triples", spoiled)
    assert main(["cpu", "--maps", "--frames", frames.TINY, "--runs", "1", "--out", "maps.json"]) == 1
    assert "our maps: 1 of 4 right" in capsys.readouterr().out


def test_tiles_keep_neighbourhoods_apart_and_the_frame_whole() -> None:
    frame = tiny().coords
    for voxels in (100, len(frame), 2 * len(frame) + 5, 5 * len(frame)):
        for shuffle in (False, True):
            made = scaling.tiled(frame, voxels, shuffle)
            assert made.shape == (voxels, 4) and len(np.unique(made, axis=0)) == voxels
    ascending = scaling.tiled(frame, 3 * len(frame), shuffle=False)
    assert (np.lexsort((ascending[:, 3], ascending[:, 2], ascending[:, 1])) == np.arange(len(ascending))).all()


def test_growth_is_that_of_a_doubling() -> None:
    rows = [{"voxels": n, "a": {"ms": ms}} for n, ms in ((100, 1.0), (200, 2.0), (800, 18.0))]
    assert scaling.growth(rows, "a") == pytest.approx([1.0, 1.5])


def test_scaling_writes_a_page_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["scaling", "--voxels", "3000", "6000", "--runs", "1", "--data", "no such folder", "--out", "s.html"]
    assert main(command) == 0
    printed, page = capsys.readouterr().out, Path("s.html").read_text()
    found = json.loads(Path("s.json").read_text())
    assert [row["voxels"] for row in found["rows"]] == [3000, 6000]
    for row in found["rows"]:
        for name in scaling.BUILDERS:
            one = row[name]
            assert one["ms"] > 0 and one["pairs"] > row["voxels"] and 0 < one["bytes"] <= one["bytes_limit"]
    assert page.count("<circle") == 4 and "<svg" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "twice the voxels raise the time of one" in printed and "plot → " in printed
