"""Bench results as tables for people, and their geometric means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

_MB = 2**20


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Geometric means of the ratios spconv f32 / ours, per dtype and for the map built and cached.

    `ratio` is of medians, `best_ratio` of the fastest runs, which other work on the machine disturbs least.
    Rows whose result is wrong take no part and are counted.
    """
    summary = {}
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        mine = [row for row in rows if row["dtype"] == dtype and "spconv" in row]
        right = [row for row in mine if row["check"]["ok"]]
        if right:
            names = ("ratio_built", "ratio_cached", "best_ratio_built", "best_ratio_cached")
            summary[dtype] = {
                "rows": len(right),
                "wrong_rows": len(mine) - len(right),
                **{f"geomean_{name}": geometric_mean(row[name] for row in right) for name in names},
                **{f"min_{name}": min(row[name] for row in right) for name in names},
            }
    return summary


def geometric_mean(values: Iterable[float]) -> float:
    """The n-th root of the product of n positive numbers, n ≥ 1."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def row_table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells of the convolutions."""
    peer = any("spconv" in row for row in rows)
    memory = any("peak_bytes" in row for row in rows)
    columns = ["frame", "C", "dtype", "N", "pairs/N", "first", "built", "cached", "GFLOP/s"]
    columns += ["MB", "limit"] if memory else []
    columns += ["spconv built", "cached", "x built", "x cached"] if peer else []
    cells = []
    for row in rows:
        line = [row["frame"], str(row["c_in"]), row["dtype"], f"{row['N']:,}", f"{row['pairs'] / row['N']:.2f}"]
        line += [_ms(row[name]) for name in ("first_call_ms", "built_ms", "cached_ms")] + [f"{row['gflops']:.1f}"]
        if memory:
            line += [f"{row['peak_bytes'] / _MB:.0f}", f"{row['peak_limit_bytes'] / _MB:.0f}"]
        if peer:
            line += [_ms(row["spconv"]["built_ms"]), _ms(row["spconv"]["cached_ms"])]
            line += [f"{row['ratio_built']:.2f}", f"{row['ratio_cached']:.2f}"]
        cells.append(line)
    return columns, cells


def notes(result: dict[str, Any]) -> list[str]:
    """What the table does not say, one line each."""
    lines = []
    for dtype, mean in result["summary"].items():
        lines.append(
            f"geometric mean of spconv f32 / {dtype}: {mean['geomean_ratio_built']:.2f} with the map built, "
            f"{mean['geomean_ratio_cached']:.2f} with it cached ({mean['rows']} rows; of the fastest runs: "
            f"{mean['geomean_best_ratio_built']:.2f}, {mean['geomean_best_ratio_cached']:.2f})"
        )
    rows = result["rows"]
    wrong = [row for row in rows if not row["check"]["ok"]]
    lines.append(f"results: {len(rows) - len(wrong)} of {len(rows)} rows within the error bound of exact sums")
    lines += [f"  WRONG: {row['frame']}, C = {row['c_in']}, {row['dtype']}: {row['check']}" for row in wrong]
    # Rows of one frame and width share the peer's runs.
    peers = {(row["frame"], row["c_in"]): row["spconv"] for row in rows if "spconv" in row}
    if any(one["wrong_runs"] is not None for one in peers.values()):
        bad, runs = (sum(one[name] for one in peers.values()) for name in ("wrong_runs", "runs"))
        lines.append(f"spconv: {bad} of {runs} runs differ from ours by more than 1e-4 of the largest value")
    over = [row for row in rows if row.get("peak_bytes", 0) > row.get("peak_limit_bytes", 0)]
    if any("peak_bytes" in row for row in rows):
        lines.append(f"peak memory: {len(rows) - len(over)} of {len(rows)} rows within tensors + 20 B x pairs + 64 MB")
    for one in result.get("compile", ()):
        lines.append(
            f"compile {one['target']} {one['dtype']} {one['channels']}→{one['channels']}: {one['cold_ms']:.0f} ms cold "
            f"(after {one['bindings_import_ms']:.0f} ms to import MLIR), {one['from_disk_ms']:.1f} ms from disk"
        )
    small = ", ".join(f"{us:.0f} us at C = {channels}" for channels, us in result["small_call_us"].items())
    lines.append(f"cached call on one voxel: {small}")
    if "import" in result:
        found = result["import"]
        extra = " and ".join(name for name in ("torch", "mlir") if found[name])
        lines.append(f"import spconv_compiler: {found['ms']:.0f} ms, loading {extra or 'neither torch nor MLIR'}")
    return lines


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"
