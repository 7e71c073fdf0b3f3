"""spconv-bench: what it writes, and that neither a wrong kernel nor a racing peer can look good in it."""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spconv_compiler import reference
from spconv_compiler.bench import child, cpu, frames, machine, peer, report, verify
from spconv_compiler.errors import InputError, SpconvError
from spconv_compiler.tools.bench import main

torch = pytest.importorskip("torch")

TINY = ("--quick", "--frames", frames.TINY, "--channels", "16")
NO_DATA = Path("no such folder")


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The bench sets variables and threads of its process; tests give them back."""
    threads = torch.get_num_threads()
    for name in ("SPCONV_CACHE", "SPCONV_CACHE_DIR", "SPCONV_NUM_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.chdir(tmp_path)
    yield
    torch.set_num_threads(threads)
    cpu.clear_caches()


class FakeTensor:
    """spconv's SparseConvTensor, as far as the bench uses it."""

    def __init__(self, features: Any, indices: Any, shape: list[int], batches: int) -> None:
        assert indices.dtype == torch.int32 and (indices.amax(0)[1:] < torch.tensor(shape)).all() and batches == 1
        self.features, self.indices = features, indices
        self.indice_dict: dict[str, Any] = {}


def fake_spconv(monkeypatch: pytest.MonkeyPatch, spoil: Any = lambda out: out) -> list[str]:
    """Puts a module in spconv's place that convolves by the reference; returns what it is asked to do."""
    asked: list[str] = []

    class SubMConv3d(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, c_in: int, c_out: int, kernel: list[int], bias: bool, indice_key: str) -> None:
            super().__init__()
            self.key, self.weight = indice_key, torch.nn.Parameter(torch.zeros(c_out, *kernel, c_in))

        def forward(self, sparse: FakeTensor) -> FakeTensor:
            known = sparse.indice_dict.get(self.key)
            asked.append("built" if known is None else "cached")
            table = reference.kernel_map(sparse.indices, 3) if known is None else known
            out = reference.subm_conv3d(sparse.indices, sparse.features, self.weight, table=table)
            result = FakeTensor(spoil(torch.from_numpy(out).float()), sparse.indices, [1 << 30] * 3, 1)
            result.indice_dict = {**sparse.indice_dict, self.key: table}
            return result

    module = types.ModuleType("spconv.pytorch")
    module.SubMConv3d, module.SparseConvTensor = SubMConv3d, FakeTensor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "spconv", types.ModuleType("spconv"))
    monkeypatch.setitem(sys.modules, "spconv.pytorch", module)
    return asked


def results(path: str = "spconv-bench-cpu.json") -> Any:
    return json.loads(Path(path).read_text())


def test_quick_run_measures_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cpu", *TINY]) == 0
    found, printed = results(), capsys.readouterr().out
    assert [(row["frame"], row["dtype"], row["c_in"]) for row in found["rows"]] == [
        (frames.TINY, "f32", 16),
        (frames.TINY, "bf16", 16),
    ]
    frame = frames.load_frame(frames.TINY, NO_DATA)
    for row in found["rows"]:
        assert (row["N"], row["pairs"]) == (len(frame.coords), frame.pairs)
        assert row["check"]["ok"] and 0.0 < row["check"]["of_bound"] <= 1.0
        assert len(row["all_built_ms"]) == len(row["all_cached_ms"]) == 3
        assert row["cached_ms"] == sorted(row["all_cached_ms"])[1] and row["built_ms"] == sorted(row["all_built_ms"])[1]
        assert row["gflops"] == pytest.approx(2 * frame.pairs * 256 / (row["cached_ms"] * 1e-3) / 1e9)
        assert row["first_call_ms"] > row["built_ms"]
        item = 4 if row["dtype"] == "f32" else 2
        tensors = item * 16 * (2 * len(frame.coords) + 27 * 16)
        assert row["tensor_bytes"] == tensors
        assert row["peak_limit_bytes"] == tensors + 20 * frame.pairs + 64 * 2**20
        assert 0 < row["peak_bytes"] <= row["peak_limit_bytes"]
        assert "spconv" not in row
    assert found["summary"] == {}
    assert [(one["target"], one["dtype"]) for one in found["compile"]] == [
        ("cpu", "f32"),
        ("cpu", "bf16"),
        ("gfx950", "bf16"),
    ]
    for one in found["compile"]:
        assert one["cold_ms"] > one["from_disk_ms"] > 0.0 and one["import_ms"] > 0.0
        assert not one["from_disk_loads_mlir"] and one["object_bytes"] > 0
    assert found["import"]["ms"] > 0.0 and not found["import"]["torch"] and not found["import"]["mlir"]
    assert found["small_call_us"]["16"] > 0.0
    assert found["machine"]["threads"] == found["thread_pools"]["torch"] > 0
    assert found["machine"]["cores"] and found["machine"]["memory_mb"] and found["versions"]["torch"]
    assert "2 of 2 rows within the error bound" in printed and "results → " in printed and "\x1b" not in printed


def test_peer_takes_turns_and_ratios_are_of_the_same_rounds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = fake_spconv(monkeypatch)
    assert main(["cpu", *TINY, "--peer", "spconv", "--no-processes", "--runs", "2", "--out", "o.json"]) == 0
    found, printed = results("o.json"), capsys.readouterr().out
    # A warming round and two timed ones, in two settings; the map that each first cached call builds is kept.
    assert asked == ["built"] * 4 + (["built"] * 2 + ["cached"] * 2) * 2
    for row in found["rows"]:
        for setting in ("spconv", "spconv_one_thread"):
            theirs = row[setting]
            assert (theirs["runs"], theirs["wrong_runs"]) == (6, 0)
            assert theirs["max_relative_difference"] < (1e-5 if row["dtype"] == "f32" else 2e-2)
            for kind in ("built", "cached"):
                assert theirs[f"{kind}_ms"] == pytest.approx(sum(theirs[f"all_{kind}_ms"]) / 2)
                assert theirs[f"ratio_{kind}"] == pytest.approx(theirs[f"{kind}_ms"] / row[f"{kind}_ms"])
    first = found["rows"][0]
    mean = found["summary"]["f32"]
    assert mean["spconv_built"] == pytest.approx(first["spconv"]["ratio_built"])
    assert mean["faster_cached"] == min(mean["spconv_cached"], mean["spconv_one_thread_cached"])
    assert "f32 of spconv with as many threads / our bf16: " in printed and "0 of 6 results differ" in printed


@pytest.mark.parametrize("threads, setting", [("same", "spconv"), ("one", "spconv_one_thread")])
def test_the_peer_can_be_measured_in_one_setting(
    threads: str, setting: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = fake_spconv(monkeypatch)
    command = ["cpu", *TINY, "--peer", "spconv", "--peer-threads", threads, "--no-processes", "--runs", "1"]
    assert main(command) == 0
    found, printed = results(), capsys.readouterr().out
    assert asked == ["built"] * 2 + ["built", "cached"]
    for row in found["rows"]:
        assert {"spconv", "spconv_one_thread"} & set(row) == {setting}
    mean = found["summary"]["bf16"]
    assert mean["faster_built"] == mean[f"{setting}_built"] and "the faster of these" not in printed
    ratios = [goal for goal in found["goals"] if goal["name"].startswith("spconv f32")]
    # The goals are about as many threads.
    assert [goal["reached"] is not None for goal in ratios] == [threads == "same"] * 4
    assert printed.count("needs --peer spconv") == (0 if threads == "same" else 4) and "goals: " in printed


def test_long_widths_have_three_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    coords = torch.zeros((3, 4), dtype=torch.int32)
    for seconds, rounds in ((0.0, 3), (1e9, 7)):
        monkeypatch.setattr(cpu, "_WIDTH_SECONDS", seconds)
        entry = cpu._Contestant(lambda coords, features: coords, lambda coords, features: coords, None)
        cpu._take_turns({"a": entry}, coords, 7)
        assert len(entry.built_ms) == len(entry.cached_ms) == rounds


def test_wrong_runs_of_the_peer_are_counted_not_blamed_on_us(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = iter(range(100))

    def race(out: Any) -> Any:
        if next(runs) % 2:
            out[5] += 1.0
        return out

    fake_spconv(monkeypatch, race)
    assert main(["cpu", *TINY, "--dtypes", "f32", "--peer", "spconv", "--no-processes", "--runs", "2"]) == 0
    (row,) = results()["rows"]
    assert row["check"]["ok"] and row["spconv"]["wrong_runs"] + row["spconv_one_thread"]["wrong_runs"] == 6
    assert f"{row['spconv']['wrong_runs']} of 6 results differ" in capsys.readouterr().out


def test_a_wrong_kernel_cannot_win(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    right = cpu.subm_conv3d

    def one_row_wrong(coords: Any, features: Any, weight: Any, **options: Any) -> Any:
        out = right(coords, features, weight, **options)
        if features.dtype == torch.bfloat16 and len(out) > 1000:
            out[1000] = 0.0
        return out

    fake_spconv(monkeypatch)
    monkeypatch.setattr(cpu, "subm_conv3d", one_row_wrong)
    assert main(["cpu", *TINY, "--peer", "spconv", "--no-processes", "--runs", "1"]) == 1
    found, printed = results(), capsys.readouterr().out
    assert [row["check"]["ok"] for row in found["rows"]] == [True, False]
    assert list(found["summary"]) == ["f32"]
    assert f"WRONG: {frames.TINY}, C = 16, bf16" in printed and "1 of 2 rows within the error bound" in printed


def test_built_calls_get_new_coordinates_and_cached_ones_the_same() -> None:
    coords, given = torch.zeros((3, 4), dtype=torch.int32), []

    def run(name: str) -> Any:
        return lambda coords, features: given.append((name, coords)) or torch.zeros(3, 1)

    entries = {name: cpu._Contestant(run(f"{name} built"), run(f"{name} cached"), None) for name in ("a", "b")}
    cpu._take_turns(entries, coords, 2)
    assert [name for name, _ in given] == ["a built", "b built", "a cached", "b cached"] * 3
    built = [one for name, one in given if name.endswith("built")]
    assert all(one is coords for name, one in given if name.endswith("cached"))
    assert len({id(one) for one in built} | {id(coords)}) == len(built) + 1
    assert [len(entry.built_ms) for entry in entries.values()] == [2, 2]


def test_a_missing_peer_says_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "spconv", None)
    monkeypatch.delitem(sys.modules, "spconv.pytorch", raising=False)
    assert main(["cpu", *TINY, "--peer", "spconv"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "spconv cannot be imported" in error and "pip install spconv==2.3.8" in error
    assert not Path("spconv-bench-cpu.json").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "required: cpu|sim"),
        (["tpu"], 2, "invalid choice: 'tpu'"),
        (["cpu", "--channels", "0"], 2, "accepted: a whole number, at least 1"),
        (["cpu", "--dtypes", "f64"], 2, "invalid choice: 'f64'"),
        (["cpu", "--peer", "magic"], 2, "invalid choice: 'magic'"),
        (["cpu", "--peer-threads", "same"], 1, "accepted: beside --peer spconv, and without --maps"),
        (["cpu", "--maps", "--peer", "spconv", "--peer-threads", "one"], 1, "accepted: beside --peer spconv, and"),
        (["cpu", "--peer", "spconv", "--peer-threads", "two"], 2, "invalid choice: 'two'"),
        (["cpu", "--frames", "mars"], 1, "unknown frame 'mars'; accepted: nuscenes-l0"),
        (["cpu", "--frames", "semantickitti", "--data", "nowhere"], 1, "000000.bin: cannot be read"),
        (["cpu", "--out", "nowhere/o.json"], 1, "nowhere/o.json: cannot be written"),
        (["cpu", "--out", "."], 1, "exists and is not a regular file"),
    ],
)
def test_errors(arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""


def judged(rows: int = 300, channels: int = 8) -> tuple[verify.Judge, Any]:
    """A random problem and its right result in f32."""
    rng = np.random.default_rng(0)
    cells = rng.permutation(8 * 8 * 10)[:rows]
    coords = np.stack((np.zeros_like(cells), *np.unravel_index(cells, (8, 8, 10))), axis=1).astype(np.int32)
    features = rng.standard_normal((rows, channels)).astype(np.float32)
    weight = rng.standard_normal((channels, 3, 3, 3, channels)).astype(np.float32)
    table = reference.kernel_map(coords)
    out = reference.subm_conv3d(coords, features, weight, table=table)
    return verify.Judge(table, features, weight, "f32"), out.astype(np.float32)


def test_the_judge_accepts_the_right_result_and_sees_each_kind_of_wrong_one(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, right = judged()
    assert judge.compare(right).ok and judge.compare(right, right + 1.0).ok
    out_rows = {}
    for name, change in {
        "one pair dropped": lambda table: table.__setitem__((np.nonzero(table[:, 0] >= 0)[0][0], 0), -1),
        "two taps swapped": lambda table: table.__setitem__((slice(None), [3, 4]), table[:, [4, 3]]),
        "a neighbour's row": lambda table: table.__setitem__((17, 13), 18),
    }.items():
        table = judge.table.copy()
        change(table)
        pairs = reference.pairs(table)
        out_rows[name] = reference.gather_gemm_scatter(judge.features, judge.weight, pairs, len(table), np.float32)
    for name, wrong in out_rows.items():
        assert not judge.compare(wrong).ok, name
    # In a large frame chance would miss one row; the other result points at it.
    monkeypatch.setattr(verify, "_RANDOM_ROWS", 1)
    monkeypatch.setattr(verify, "_DISPUTED_ROWS", 1)
    for name, wrong in out_rows.items():
        assert not judge.compare(wrong, right).ok, name
        assert judge.compare(right, wrong).ok, name


def test_relative_difference() -> None:
    left = np.array([[1.0, 2.0], [3.0, -4.0]], np.float32)
    right = np.array([[1.0, 2.5], [3.0, -5.0]], np.float32)
    assert verify.relative_difference(left, right) == pytest.approx(0.2)
    assert verify.relative_difference(torch.from_numpy(left), torch.from_numpy(left)) == 0.0
    right[0, 0] = np.nan
    assert verify.relative_difference(left, right) == np.inf
    left[0, 0] = np.nan
    assert verify.relative_difference(left, right) == pytest.approx(0.2)
    assert verify.relative_difference(left[:0], right[:0]) == 0.0


def test_summary_leaves_wrong_rows_out() -> None:
    def row(many: float, one: float, ok: bool = True) -> dict[str, Any]:
        peers = {"spconv": many, "spconv_one_thread": one}
        ratios = {name: {"ratio_built": ratio, "ratio_cached": 2 * ratio} for name, ratio in peers.items()}
        return {"dtype": "f32", "check": {"ok": ok}, **ratios}

    mean = report.summarize([row(2.0, 1.0), row(8.0, 16.0), row(1000.0, 1000.0, ok=False)])["f32"]
    assert (mean["rows"], mean["wrong_rows"]) == (2, 1)
    assert mean["spconv_built"] == pytest.approx(4.0) and mean["spconv_cached"] == pytest.approx(8.0)
    assert mean["spconv_one_thread_built"] == pytest.approx(4.0)
    assert mean["faster_built"] == pytest.approx(8.0**0.5) and mean["faster_built_min"] == 1.0
    assert report.summarize([row(1.0, 1.0, ok=False)]) == {}


def test_frames_are_distinct_voxels_inside_their_grid() -> None:
    sorted_frame, shuffled = (frames.load_frame(frames.TINY, NO_DATA, shuffle) for shuffle in (False, True))
    for frame in (sorted_frame, shuffled):
        assert frame.coords.dtype == np.int32 and len(np.unique(frame.coords, axis=0)) == len(frame.coords)
        assert (frame.coords[:, 1:] >= 0).all() and (frame.coords[:, 1:] < frame.spatial_shape).all()
        assert np.array_equal(frame.table, reference.kernel_map(frame.coords))
    assert not np.array_equal(sorted_frame.coords, shuffled.coords)
    assert set(map(tuple, sorted_frame.coords.tolist())) == set(map(tuple, shuffled.coords.tolist()))
    assert sorted_frame.pairs == shuffled.pairs > len(sorted_frame.coords)
    with pytest.raises(InputError, match="unknown frame 'x'"):
        frames.load_frame("x", NO_DATA)


def test_generated_frames_stand_in_for_missing_files(shared_dir: Path) -> None:
    assert frames.default_names(NO_DATA) == frames.GENERATED
    assert frames.default_names(shared_dir / "data") == frames.REAL


@pytest.mark.parametrize(
    ("name", "rows", "density"),
    [
        ("nuscenes-l0", 105_086, 6.14),
        ("nuscenes-l1", 110_087, 12.67),
        ("nuscenes-l3", 20_381, 15.40),
        ("semantickitti", 91_888, 3.78),
    ],
)
def test_real_frames_have_the_published_sizes(name: str, rows: int, density: float, shared_dir: Path) -> None:
    frame = frames.load_frame(name, shared_dir / "data")
    assert len(frame.coords) == rows and frame.pairs / rows == pytest.approx(density, abs=0.005)


def test_children_report_their_failure() -> None:
    with pytest.raises(SpconvError, match="measuring compile_cold in a new process failed: .*unknown target 'tpu'"):
        child.measure("compile_cold", target="tpu", dtype="f32", channels=16, cache_dir="cache")


def test_peak_memory_sees_what_a_convolution_holds(tmp_path: Path) -> None:
    frame = frames.load_frame(frames.TINY, NO_DATA)
    np.save("frame.npy", frame.coords)
    given = {
        "frame": str(tmp_path / "frame.npy"),
        "spatial_shape": list(frame.spatial_shape),
        "dtype": "f32",
        "threads": 1,
        "cache_dir": str(tmp_path / "kernels"),
    }
    found = child.measure("peak_memory", channels=128, peer=False, **given)
    # Features, result and weight are 128 channels of f32.
    tensors = 4 * 128 * (2 * len(frame.coords) + 27 * 128)
    assert found["rows"] == len(frame.coords) and tensors < found["bytes"] < tensors + 64 * 2**20


def test_machine_and_threads() -> None:
    found = machine.machine(1)
    assert found["level"] in str(found) and isinstance(found["cores"], int) and found["cores"] >= 1
    assert machine.versions()["numpy"] == np.__version__
    assert set(peer.set_threads(1).values()) == {1}
