"""What spconv-bench cpu says of its goals: each figure can miss its own, and nothing unmeasured counts as reached."""

from __future__ import annotations

from typing import Any

import pytest

from spconv_compiler.bench import cpu_goals


def reaching() -> dict[str, Any]:
    """Figures that are just good enough for every goal."""
    ratios = {"wrong_rows": 0, "rows": 1}
    rows = [{"peak_bytes": size, "peak_limit_bytes": 100} for size in (40, 100)]
    compile_rows = [("cpu", 600.0, 5.0), ("cpu", 1.0, 20.0), ("gfx950", 1000.0, 1.0)]
    return {
        "rows": rows,
        "summary": {
            "f32": {**ratios, "spconv_built": 3.0, "spconv_cached": 1.5},
            "bf16": {**ratios, "spconv_built": 4.0, "spconv_cached": 2.5},
        },
        "import": {"ms": 300.0, "torch": False, "mlir": False},
        "compile": [{"target": name, "cold_ms": cold, "from_disk_ms": disk} for name, cold, disk in compile_rows],
        "small_call_us": {"16": 60.0, "64": 59.0},
    }


def test_figures_at_the_bounds_reach_every_goal() -> None:
    found = cpu_goals.goals(reaching())
    assert [goal.reached for goal in found] == [True] * 12
    assert cpu_goals.summary_line(found) == "goals: 12 of 12 reached, 0 missed, 0 not measured"


@pytest.mark.parametrize(
    "place, value, missed",
    [
        (("summary", "f32", "spconv_built"), 2.99, "spconv f32 / our f32, as many threads, map built"),
        (("summary", "f32", "spconv_cached"), 1.49, "spconv f32 / our f32, as many threads, map cached"),
        (("summary", "bf16", "spconv_built"), 3.99, "spconv f32 / our bf16, as many threads, map built"),
        (("summary", "bf16", "spconv_cached"), 2.49, "spconv f32 / our bf16, as many threads, map cached"),
        (("rows", 1, "peak_bytes"), 101, "peak memory of one convolution"),
        (("import", "ms"), 301.0, "import spconv_compiler"),
        (("import", "torch"), True, "import without torch"),
        (("compile", 1, "cold_ms"), 601.0, "compile one convolution, cpu, cold"),
        (("compile", 2, "cold_ms"), 1001.0, "compile one convolution, gfx950, cold"),
        (("compile", 0, "from_disk_ms"), 20.1, "compile one convolution, from disk"),
        (("small_call_us", "64"), 61.0, "cached call on one voxel, C = 64"),
    ],
)
def test_each_figure_can_miss_its_goal(place: tuple[Any, ...], value: Any, missed: str) -> None:
    result: Any = reaching()
    *path, last = place
    inner = result
    for step in path:
        inner = inner[step]
    inner[last] = value
    assert [goal.name for goal in cpu_goals.goals(result) if not goal.reached] == [missed]


def test_a_wrong_row_reaches_no_ratio() -> None:
    result = reaching()
    result["summary"]["bf16"]["wrong_rows"] = 1
    missed = [goal for goal in cpu_goals.goals(result) if not goal.reached]
    assert [goal.reached for goal in missed] == [False] * 2 and "1 rows wrong" in missed[0].found


def test_what_was_left_out_is_neither_reached_nor_missed() -> None:
    found = cpu_goals.goals({"rows": [{}], "summary": {}, "small_call_us": {"16": 1.0}})
    assert [goal.reached for goal in found] == [None] * 10 + [True]
    _, cells = cpu_goals.table(found)
    assert [line[-1] for line in cells] == ["not measured"] * 10 + ["reached"]
    assert cpu_goals.summary_line(found) == "goals: 1 of 11 reached, 0 missed, 10 not measured"


def test_a_compilation_that_failed_has_missed_its_goal() -> None:
    result = reaching()
    result["compile"][2] = {"target": "gfx950", "failed": "no linker"}
    missed = [goal for goal in cpu_goals.goals(result) if not goal.reached]
    assert [(goal.name, goal.found) for goal in missed] == [
        ("compile one convolution, gfx950, cold", "failed: no linker")
    ]
