"""Results of `spconv-bench gpu` as a table, and what they come to."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from spconv_compiler.bench.gpu_layer import NAME as GRAPH
from spconv_compiler.bench.report import geometric_mean

OURS = "spconv_compiler"
# Key of a contender's figure -> what its ratio is called.
FIGURES = {
    "cached_gpu_us": "GPU time, map kept",
    "built_gpu_us": "GPU time, map built",
    "built_wall_us": "wall time, map built",
    "cached_wall_us": "wall time, map kept",
}
# What ours are called beside peers.
_TITLES = {OURS: "ours", GRAPH: "our graph"}
_NONE = "–"


def best_ratio(row: dict[str, Any], figure: str, ours: str = OURS) -> float | None:
    """The fastest peer's figure over that of ours in one row, however exact that peer is; None without one of them."""
    found = [facts[figure] for name, facts in row["contenders"].items() if name not in (OURS, GRAPH)]
    own = row["contenders"].get(ours, {}).get(figure)
    return float(min(found) / own) if found and own is not None else None


def floor_us(row: dict[str, Any], limits: dict[str, float]) -> float:
    """The least time that the GPU's measured limits allow: of its matrix product, or of moving every byte once."""
    computed = float(row["flops"]) / limits["matmul_tflops"] / 1e6
    return max(computed, float(row["floor_bytes"]) / limits["copy_gbps"] / 1e3)


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells: a line for each case and contender."""
    columns = ["frame", "C", "N", "pairs/N", "library", "GPU us kept", "built", "launches", "wall us kept", "built"]
    columns += ["TFLOP/s", "of floor", "error"]
    cells = []
    for row in result["rows"]:
        floor = floor_us(row, result["limits"])
        for name, facts in row["contenders"].items():
            line = [row["frame"], str(row["channels"]), f"{row['N']:,}", f"{row['pairs'] / row['N']:.1f}", name]
            kept = facts.get("cached_gpu_us")
            line += [_cell(facts, key, 1) for key in ("cached_gpu_us", "built_gpu_us")]
            line += [" / ".join(_cell(facts, key) for key in ("cached_launches", "built_launches"))]
            line += [_cell(facts, key) for key in ("cached_wall_us", "built_wall_us")]
            line += [_cell(facts, "tflops"), _NONE if kept is None else f"{100 * floor / kept:.0f} %"]
            line += [f"{facts['error']:.1e}" + ("" if facts["ok"] else " WRONG")]
            cells.append(line)
    return columns, cells


def _cell(facts: dict[str, Any], key: str, digits: int = 0) -> str:
    return f"{facts[key]:.{digits}f}" if key in facts else _NONE


def notes(result: dict[str, Any]) -> list[str]:
    """Geometric means against the fastest peer of each row, and what of the GPU's limits is reached."""
    rows, limits = result["rows"], result["limits"]
    lines = [
        f"limits of this GPU: {limits['matmul_tflops']:.0f} TFLOP/s (bf16 matrix product), "
        f"{limits['copy_gbps']:.0f} GB/s (copy, read and written)"
    ]
    for (figure, text), (ours, title) in itertools.product(FIGURES.items(), _TITLES.items()):
        ratios = [ratio for row in rows if (ratio := best_ratio(row, figure, ours)) is not None]
        if ratios:
            lines.append(
                f"{text}: fastest peer over {title} {geometric_mean(ratios):.2f} in geometric mean, "
                f"{min(ratios):.2f} to {max(ratios):.2f}"
            )
    lines.extend(_wrong(rows))
    return lines


def _wrong(rows: Sequence[dict[str, Any]]) -> list[str]:
    found = []
    for row in rows:
        for name, facts in row["contenders"].items():
            if not facts["ok"]:
                found.append(f"  error {facts['error']:.1e} of {name}: {row['frame']}, C = {row['channels']}")
    return [f"results beyond rounding: {len(found)}", *found]
