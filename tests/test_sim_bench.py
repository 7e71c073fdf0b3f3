"""spconv-bench sim: what it measures, counts and writes, on a frame small enough for the numpy engine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conv_cases import voxels

from spconv_compiler import reference
from spconv_compiler.bench import frames, sim, sim_child, sim_goals, sim_layer, sim_lds
from spconv_compiler.bench.verify import Judge
from spconv_compiler.errors import InputError, SpconvError
from spconv_compiler.sim import watched
from spconv_compiler.sim.errors import Fault
from spconv_compiler.sim.interpreter import Machine
from spconv_compiler.sim.watched import WatchedMachine
from spconv_compiler.tools.bench import main

ARGUMENTS = ("sim", "--engine", "numpy", "--channels", "16", "--runs", "1", "--threads", "1")


def small() -> frames.Frame:
    coords = voxels(300, 9)
    return frames.Frame("small", coords, (9, 9, 9), reference.kernel_map(coords))


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The bench sets variables of its processes; the frame is small."""
    for name in ("SPCONV_CACHE", "SPCONV_CACHE_DIR", "SPCONV_NUM_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sim, "load_frame", lambda name, data: small())
    yield


def test_measures_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGUMENTS, "--counters", "--out", "o.json"]) == 0
    printed, found = capsys.readouterr().out, json.loads(Path("o.json").read_text())
    checked, frame = found["checked"], small()
    assert checked["check"]["ok"] and "unchecked" not in found and "handlers" not in found
    assert checked["seconds"] > sum(one["seconds"] for one in checked["launches"]) > 0
    assert checked["instructions"] == sum(one["instructions"] for one in checked["launches"])
    # Coordinates, features, weight and result at the least.
    assert checked["allocated_bytes"] > 16 * 300 + 2 * 16 * 300 + 2 * 27 * 256 + 4 * 16 * 300
    assert checked["lds_instructions_per_second"] > 0
    assert 0 < checked["peak_bytes"] < checked["peak_limit_bytes"]
    kernels = [one["kernel"] for one in checked["launches"]]
    assert [one["counters"]["kernel"] for one in found["launches"]] == kernels
    for one, launch in zip(found["launches"], checked["launches"], strict=True):
        # Workgroups of sort_digit wait for those before them: how often they look depends on who runs beside them.
        slack = 0.01 if launch["kernel"].startswith("sort_digit") else 0
        assert one["counters"]["instructions"] == pytest.approx(launch["instructions"], rel=slack, abs=0)
        assert one["modelled"]["label"] == "modelled, never measured on gfx950"
        assert one["modelled"]["lower_us"] < one["modelled"]["estimate_us"] < one["modelled"]["pessimistic_us"]
    assert all(fact["source"] for fact in found["facts"].values()) and "hbm_tb_s" in found["facts"]
    gemm = found["launches"][-1]["counters"]
    assert gemm["matrix"]["useful_macs"] == frame.pairs * 16 * 16 < gemm["matrix"]["executed_macs"]
    # Every row of the result has one owner.
    assert gemm["kernel"].startswith("gemm_small_channels") and gemm["atomic_segments"] == 0
    assert "modelled: no time of gfx950 was measured" in printed and "result right" in printed
    assert "results → " in printed and "\x1b" not in printed


def test_the_schedule_that_is_asked_for_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGUMENTS, "--schedule", "pairs_m16", "--out", "s.json"]) == 0
    found = json.loads(Path("s.json").read_text())
    assert found["settings"]["schedule"] == "pairs_m16" and found["checked"]["check"]["ok"]
    assert [one["kernel"] for one in found["checked"]["launches"] if one["kernel"].startswith("gemm_pairs_m16_bf16")]
    assert main([*ARGUMENTS, "--schedule", "none_such", "--out", "t.json"]) == 1
    assert "none_such" in capsys.readouterr().err and not Path("t.json").exists()


def test_goals_are_counted_beside_the_reference(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    coords = voxels(400, 9)
    frame = frames.Frame("small", coords, (9, 9, 9), reference.kernel_map(coords))
    monkeypatch.setattr(sim_goals, "cases", lambda data, name, widths: [(frame, width) for width in widths])
    assert main(["sim", "--goals", "32", "--threads", "1", "--out", "g.json"]) == 0
    printed, (row,) = capsys.readouterr().out, json.loads(Path("g.json").read_text())["rows"]
    assert row["schedule"] == "output_stationary" and row["right"] and row["spills"] == 0
    for name, key in (("fewer_weights", "weights_from_l2_bytes"), ("fewer_requests", "l2_requests")):
        assert row[name] == row["before"][key] / row["after"][key] > 0
    assert row["executed_over_useful"] == row["after"]["executed_over_useful"] >= row["before"]["executed_over_useful"]
    # At this width, on a frame that is not the pull request's, five figures have a goal.
    assert list(row["reached"]) == ["executed_over_useful", "lds_conflicts", "waves_per_simd", "spills", "same_bits"]
    # What adds into memory has other bits where workgroups start in another order, what owns its rows has not.
    assert row["same_bits"] is row["after"]["same_bits"] is True and row["before"]["same_bits"] is False
    assert "same_bits" in sim_goals.missed({**row, "same_bits": False})
    assert "same_bits" not in sim_goals.missed({**row, "same_bits": False, "schedule": "pair_major"})
    assert len(sim_goals.reached({key: row[key] for key in row if key != "same_bits"})) == 4
    assert row["after"]["busiest_group"] >= 1
    worse = {**row, "channels": 256, "fewer_weights": 5.9, "fewer_requests": 3.5, "matrix_busy": 0.2}
    worse |= {"gather_coalescing": 0.5, "executed_over_useful": 1.5}
    assert sim_goals.missed(worse) == ["fewer_weights", "gather_coalescing", "matrix_busy"]
    # A schedule that runs over pairs should multiply little else.
    of_pairs = {**row, "published": False, "executed_over_useful": 1.3, "schedule": "pair_major"}
    assert sim_goals.missed(of_pairs) == ["executed_over_useful"]
    assert sim_goals.missed({**of_pairs, "schedule": "output_stationary"}) == []
    assert sim_goals.chosen(32, "bf16", wanted="pair_major") == "pair_major"
    assert {"5.9!", "6 of 9"} <= set(sim_goals.table([worse])[1][0]) and "spills ≤ 0: 1 of 1" in printed
    # Runs of one case each are put together, and judged by the goals as they are.
    Path("w.json").write_text(json.dumps({"rows": [{**worse, "reached": {}}]}))
    assert main(["sim", "--goals", "--read", "g.json", "w.json", "--out", "both.json"]) == 0
    printed, both = capsys.readouterr().out, json.loads(Path("both.json").read_text())["rows"]
    assert both[0] == row and both[1]["reached"]["matrix_busy"] is False and "spills ≤ 0: 2 of 2" in printed
    assert "MFMA busy ≥ 35% from C = 256 on: 0 of 1; worst 20%: small, C = 256, output_stationary\n" in printed
    assert "right, with every check of the simulator on: 2 of 2" in printed
    # Against the bound of its own schedule 1.3 is worse than 1.5, and a figure that there is not is not the worst.
    good = {**worse, "frame": "good", "fewer_weights": 7.0, "right": False}
    lines = list(sim_goals.notes([{**good, "fewer_weights": None}, worse, {**of_pairs, "frame": "pairs"}, good]))
    assert lines[1].endswith("2 of 3; worst 5.9: small, C = 256, output_stationary")
    assert lines[4].endswith("3 of 4; worst 1.30: pairs, C = 32, pair_major") and lines[-1].endswith("on: 2 of 4")


def test_a_box_that_no_grid_holds_is_searched() -> None:
    """1,200 cells a side take 7 GB of a grid: the goals of such a frame are counted all the same."""
    coords = np.array([[0, 0, 0, 0], [0, 1199, 1199, 1198], [0, 1199, 1199, 1199]], np.int32)
    problem = sim_layer.Problem.make(coords, 32, "bf16")
    for schedule in ("pairs_m16", "output_stationary"):
        artifact = problem.compile(schedule)
        assert any(one.kernel.startswith("search_") for one in artifact.plan.launches)
        features, weight = problem.operands()
        check = Judge(reference.kernel_map(coords), features, weight, "f32")
        assert check.compare(problem.run(artifact, sim_layer.engine(True, 1)).out).ok


def test_cases_of_goals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All frames, or one, or shapes of the pull request at both densities, or at one."""
    monkeypatch.setattr(sim_goals, "published", lambda rows, density, data: f"pr942-{rows}-{density}")
    monkeypatch.setattr(frames, "load_frame", lambda name, data: name)

    def found(frame: str | None) -> list[tuple[Any, int]]:
        return list(sim_goals.cases(tmp_path, frame, (32, 64)))

    every = found(None)
    assert len(every) == 2 * len(frames.GENERATED) + 8 and every[-1] == ("pr942-94517-5.7", 128)
    assert found("waymo") == [("waymo", 32), ("waymo", 64)]
    assert found("pr942") == every[-8:] and len(found("pr942-15052")) == 2
    assert found("pr942-15052-5.7") == [("pr942-15052-5.7", 512)]
    with pytest.raises(InputError, match="accepted of that pull request: pr942, pr942-32371-4.2"):
        found("pr942-1505")


def test_a_wrong_result_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    right = sim_child.measure

    def spoiled(task: str, **arguments: Any) -> dict[str, Any]:
        found = right(task, **arguments)
        if task != "layer":
            return found
        out = np.load(found["out"])
        out[17, 3] += 1.0
        np.save(found["out"], out)
        return found

    monkeypatch.setattr(sim_child, "measure", spoiled)
    assert main([*ARGUMENTS]) == 1
    assert "result WRONG" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["sim", "--channels", "0"], 2, "accepted: a whole number, at least 1"),
        (["sim", "--engine", "fpga"], 2, "invalid choice: 'fpga'"),
        (["sim", "--out", "nowhere/o.json"], 1, "nowhere/o.json: cannot be written"),
        (["sim", "--goals", "32", "--out", "nowhere/o.json"], 1, "nowhere/o.json: cannot be written"),
        (["sim", "--goals", "--sample", "3"], 1, "--sample 3; accepted with --schedules and --goals: multiples of 8"),
        (["sim", "--maps", "--counters"], 1, "--counters and --maps are given; accepted: one of"),
        (["sim", "--strided", "--schedules"], 1, "--strided and --schedules are given; accepted: one of"),
        (["sim", "--goals", "--maps"], 1, "--maps and --goals are given; accepted: one of"),
        (["sim", "--schedules", "pairs_m16", "--goals"], 1, "accepted with --goals: --schedule NAME"),
        (["sim", "--read", "a.json"], 1, "--read is given without --goals"),
        (["sim", "--goals", "--read", "none.json"], 1, "none.json"),
    ],
)
def test_errors(arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""


def test_a_fault_in_the_child_is_told_in_full(tmp_path: Path) -> None:
    np.save(tmp_path / "empty.npy", np.zeros((0, 4), np.int32))
    given: dict[str, Any] = {"frame": str(tmp_path / "empty.npy"), "channels": 16, "dtype": "bf16", "threads": 1}
    with pytest.raises(SpconvError, match="measuring layer in a new process failed: .*always checks"):
        sim_child.measure("layer", **given, checks=False, runs=1, native=False, cache_dir=str(tmp_path))


def test_the_kernel_with_lds_tiles_needs_its_barriers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its result is known, a launch counts as many instructions as its text has, and without a barrier it is a race."""
    monkeypatch.setattr(sim_lds, "ROUNDS", 3)
    found = sim_lds.measure(Machine, 1, groups=2)
    assert found["right"] and found["instructions"] == 2 * 4 * (18 + 3 * 13 + 3) and len(found["seconds"]) == 1
    first = sim_lds._LOOP.index("s_barrier")
    monkeypatch.setattr(sim_lds, "_LOOP", sim_lds._LOOP[:first] + "s_nop 0" + sim_lds._LOOP[first + 9 :])
    with pytest.raises(Fault, match="race|nobody wrote"):
        sim_lds.measure(Machine, 1, groups=2)


def test_watching_changes_nothing() -> None:
    """Sampled workgroups run twice; memory and its cells are put back, so that the result is the same."""
    problem = sim_layer.Problem.make(small().coords, 16, "bf16")
    artifact = problem.compile()
    plain = problem.run(artifact, Machine)
    machines: list[WatchedMachine] = []

    def engine(kernels: Any, budget: int) -> WatchedMachine:
        machines.append(WatchedMachine(Machine(kernels, budget), 1))
        return machines[-1]

    seen = problem.run(artifact, engine)
    np.testing.assert_array_equal(seen.out, plain.out)
    assert [one.instructions for one in seen.launches] == [one.instructions for one in plain.launches]
    assert len(machines[0].launches) == len(plain.launches)


def test_the_step_between_watched_workgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = watched.Watcher(Machine({}), 8)
    most = watched.MOST_WATCHED
    assert [watcher._every(groups) for groups in (1, most, 8 * most, 8 * most + 1, 17 * most)] == [8, 8, 8, 16, 24]
    assert watched.Watcher(Machine({}), 1)._every(most) == 1 and watched.Watcher(Machine({}), 1)._every(most + 1) == 8
