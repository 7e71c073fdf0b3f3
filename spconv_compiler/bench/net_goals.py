"""What networks have to reach, and whether the figures of `spconv-bench net` on CenterPoint's backbone do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spconv_compiler.bench.cpu_goals import Goal

NET = "centerpoint"
# dtype -> least of spconv's time in f32 over ours, with as many threads.
_RATIOS = {"bf16": 3.0, "f32": 1.5}
_COLD_S, _DISK_S = 15.0, 1.0
_LAYER_US, _CALL_US = 10.0, 100.0
_MEMORY = 0.6
_CONVOLUTION, _MAPS = 2, 20
_UNMEASURED = "left out: --no-processes or --no-compiled"


def goals(result: dict[str, Any]) -> list[Goal]:
    """Every goal, with what `net.measure` found; of several figures the worst counts."""
    rows = {row["contestant"]: row for row in result["rows"] if row["net"] == NET}
    found = {name: [row for row in result.get(name, ()) if row["net"] == NET] for name in ("compile", "calls", "plans")}
    return [
        *_ratios(rows),
        *_compile(found["compile"]),
        *_python(result.get("layers", []), found["calls"]),
        _memory(rows),
        *_launches(found["plans"]),
        Goal("RENO's published bits, all depths", "0.1 %, bf16 0.15 %", "pytest -m slow tests/test_reno.py", None),
    ]


def _ratios(rows: dict[str, Any]) -> Iterator[Goal]:
    for dtype, limit in _RATIOS.items():
        name, wanted = f"spconv f32 / our {dtype}, as many threads", f">= {limit:g}"
        ours = {kind: rows[row] for kind, row in (("eager", dtype), ("compiled", f"{dtype}_compiled")) if row in rows}
        ratios = {kind: row["ratio_spconv"] for kind, row in ours.items() if "ratio_spconv" in row}
        if not ratios:
            yield Goal(name, wanted, "needs --peer spconv" if ours else f"left out: --dtypes {dtype}", None)
            continue
        wrong = sum(not row["check"]["ok"] for row in ours.values())
        found = ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in ratios.items()) + (", WRONG" if wrong else "")
        yield Goal(name, wanted, found, min(ratios.values()) >= limit and not wrong)


def _compile(rows: list[dict[str, Any]]) -> Iterator[Goal]:
    cold, disk = "compile the network, cold", "compile the network, from disk, in a new process"
    yield _at_most(cold, "s", _COLD_S, [row["cold_ms"] / 1e3 for row in rows])
    missing = sum(row["from_disk_kernels"] for row in rows)
    goal = _at_most(disk, "s", _DISK_S, [row["from_disk_ms"] / 1e3 for row in rows])
    # What is compiled again was not on disk.
    yield goal if not missing else Goal(goal.name, goal.wanted, f"{goal.found}, {missing} kernels compiled", False)


def _python(layers: list[dict[str, Any]], calls: list[dict[str, Any]]) -> Iterator[Goal]:
    yield _at_most("Python that an eager layer adds", "us", _LAYER_US, [row["added_us"] for row in layers])
    name = "Python that a call of the compiled network adds, maps kept"
    yield _at_most(name, "us", _CALL_US, [row["kept"]["python_us"] for row in calls])


def _memory(rows: dict[str, Any]) -> Goal:
    name, wanted = "peak memory, compiled / eager", f"<= {_MEMORY:g}"
    pairs = [(rows[f"{row}_compiled"], rows[row]) for row in rows if f"{row}_compiled" in rows]
    ratios = [one["peak_bytes"] / other["peak_bytes"] for one, other in pairs if "peak_bytes" in one]
    if not ratios:
        return Goal(name, wanted, _UNMEASURED, None)
    return Goal(name, wanted, f"{max(ratios):.2f}", max(ratios) <= _MEMORY)


def _launches(plans: list[dict[str, Any]]) -> Iterator[Goal]:
    names = "gfx950: launches of a convolution", "gfx950: launches of all levels and maps", "gfx950: host reads"
    wanted = f"<= {_CONVOLUTION}", f"<= {_MAPS}", "0"
    if not plans:
        yield from (Goal(*pair, _UNMEASURED, None) for pair in zip(names, wanted, strict=True))
        return
    most, maps = max(max(plan["convolutions"]) for plan in plans), max(plan["maps"] for plan in plans)
    count = len(plans[0]["convolutions"])
    yield Goal(names[0], wanted[0], f"{most}, of {count} convolutions", most <= _CONVOLUTION)
    yield Goal(names[1], wanted[1], str(maps), maps <= _MAPS)
    why = [plan["why"] for plan in plans if plan["why"] is not None]
    reads = 0 if why else max(plan["host_reads"] for plan in plans)
    yield Goal(names[2], wanted[2], f"not queued as one: {why[0]}" if why else str(reads), not why and reads == 0)


def _at_most(name: str, unit: str, limit: float, found: list[float]) -> Goal:
    if not found:
        return Goal(name, f"<= {limit:g} {unit}", _UNMEASURED, None)
    worst = max(found)
    return Goal(name, f"<= {limit:g} {unit}", f"{worst:.3g} {unit}", worst <= limit)
