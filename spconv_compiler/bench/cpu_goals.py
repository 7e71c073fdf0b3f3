"""What the CPU path has to reach, and whether the figures of `spconv-bench cpu` do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

# dtype -> least geometric mean of spconv's time over ours, with as many threads: map built, map cached.
_RATIOS = {"f32": (3.0, 1.5), "bf16": (4.0, 2.5)}
_COLD_MS = {"gfx950": 1000.0, "cpu": 600.0}
_DISK_MS, _IMPORT_MS, _SMALL_CALL_US = 20.0, 300.0, 60.0
_UNMEASURED = "left out: --no-processes"


@dataclass(frozen=True)
class Goal:
    """One line of the list.

    Attributes:
        name: what is bounded; wanted: the bound; found: the figure, or why there is none.
        reached: whether it holds; None when it was not measured.
    """

    name: str
    wanted: str
    found: str
    reached: bool | None


def goals(result: dict[str, Any]) -> list[Goal]:
    """Every goal, with what `cpu.measure` found; of several figures the worst counts."""
    return [*_ratios(result), _memory(result), *_import(result), *_compile(result), *_small_calls(result)]


def as_json(result: dict[str, Any]) -> list[dict[str, Any]]:
    """`goals` as plain values."""
    return [asdict(goal) for goal in goals(result)]


def table(found: list[Goal]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells."""
    words = {True: "reached", False: "MISSED", None: "not measured"}
    return ["goal", "wanted", "found", ""], [[one.name, one.wanted, one.found, words[one.reached]] for one in found]


def summary_line(found: list[Goal]) -> str:
    """How many goals are reached, missed and not measured."""
    counts = [sum(one.reached is state for one in found) for state in (True, False, None)]
    return f"goals: {counts[0]} of {len(found)} reached, {counts[1]} missed, {counts[2]} not measured"


def _ratios(result: dict[str, Any]) -> Iterator[Goal]:
    for dtype, limits in _RATIOS.items():
        means = result["summary"].get(dtype, {})
        for kind, limit in zip(("built", "cached"), limits, strict=True):
            name = f"spconv f32 / our {dtype}, as many threads, map {kind}"
            mean = means.get(f"spconv_{kind}")
            if mean is None:
                yield Goal(name, f">= {limit:g}", "needs --peer spconv with as many threads", None)
            else:
                # A row whose result is wrong has no time, and so the mean stands for nothing.
                wrong = means["wrong_rows"]
                found = f"{mean:.2f}" + (f", {wrong} rows wrong" if wrong else "")
                yield Goal(name, f">= {limit:g}", found, mean >= limit and not wrong)


def _memory(result: dict[str, Any]) -> Goal:
    rows = [row for row in result["rows"] if "peak_bytes" in row]
    kept = sum(row["peak_bytes"] <= row["peak_limit_bytes"] for row in rows)
    name, wanted = "peak memory of one convolution", "tensors + 20 B x pairs + 64 MB"
    if not rows:
        return Goal(name, wanted, _UNMEASURED, None)
    worst = max(row["peak_bytes"] / row["peak_limit_bytes"] for row in rows)
    return Goal(name, wanted, f"{kept} of {len(rows)} rows, at most {worst:.0%} of it", kept == len(rows))


def _import(result: dict[str, Any]) -> list[Goal]:
    name, without = "import spconv_compiler", "import without torch"
    found = result.get("import")
    if found is None:
        return [_at_most(name, "ms", _IMPORT_MS, []), Goal(without, "not imported", _UNMEASURED, None)]
    words = "imported" if found["torch"] else "not imported"
    return [_at_most(name, "ms", _IMPORT_MS, [found["ms"]]), Goal(without, "not imported", words, not found["torch"])]


def _compile(result: dict[str, Any]) -> Iterator[Goal]:
    rows = result.get("compile", [])
    for target, limit in _COLD_MS.items():
        name, of_target = f"compile one convolution, {target}, cold", [row for row in rows if row["target"] == target]
        failed = [row["failed"] for row in of_target if "failed" in row]
        if failed:
            yield Goal(name, f"<= {limit:g} ms", f"failed: {failed[0]}", False)
        else:
            yield _at_most(name, "ms", limit, [row["cold_ms"] for row in of_target])
    loaded = [row["from_disk_ms"] for row in rows if "failed" not in row]
    yield _at_most("compile one convolution, from disk", "ms", _DISK_MS, loaded)


def _small_calls(result: dict[str, Any]) -> Iterator[Goal]:
    for channels, found in result["small_call_us"].items():
        yield _at_most(f"cached call on one voxel, C = {channels}", "us", _SMALL_CALL_US, [found])


def _at_most(name: str, unit: str, limit: float, found: list[float]) -> Goal:
    if not found:
        return Goal(name, f"<= {limit:g} {unit}", _UNMEASURED, None)
    worst = max(found)
    return Goal(name, f"<= {limit:g} {unit}", f"{worst:.3g} {unit}", worst <= limit)
