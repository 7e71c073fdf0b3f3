"""Results of `spconv-bench gpu` as a table, and what they come to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spconv_compiler.bench.report import geometric_mean

OURS = "spconv_compiler"
# Key of a contender's figure -> what its ratio is called.
FIGURES = {
    "cached_gpu_us": "GPU time, map kept",
    "built_gpu_us": "GPU time, map built",
    "built_wall_us": "wall time, map built",
    "cached_wall_us": "wall time, map kept",
}


def best_ratio(row: dict[str, Any], figure: str) -> float | None:
    """The fastest peer's figure over ours in one row, however exact that peer is; None without any."""
    found = [facts[figure] for name, facts in row["contenders"].items() if name != OURS]
    return float(min(found) / row["contenders"][OURS][figure]) if found else None


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
            line += [f"{facts[key]:.1f}" for key in ("cached_gpu_us", "built_gpu_us")]
            line += [f"{facts['cached_launches']:.0f} / {facts['built_launches']:.0f}"]
            line += [f"{facts[key]:.0f}" for key in ("cached_wall_us", "built_wall_us")]
            line += [f"{facts['tflops']:.0f}", f"{100 * floor / facts['cached_gpu_us']:.0f} %"]
            line += [f"{facts['error']:.1e}" + ("" if facts["ok"] else " WRONG")]
            cells.append(line)
    return columns, cells


def notes(result: dict[str, Any]) -> list[str]:
    """Geometric means against the fastest peer of each row, and what of the GPU's limits is reached."""
    rows, limits = result["rows"], result["limits"]
    lines = [
        f"limits of this GPU: {limits['matmul_tflops']:.0f} TFLOP/s (bf16 matrix product), "
        f"{limits['copy_gbps']:.0f} GB/s (copy, read and written)"
    ]
    for figure, text in FIGURES.items():
        ratios = [ratio for row in rows if (ratio := best_ratio(row, figure)) is not None]
        if ratios:
            lines.append(
                f"{text}: fastest peer over ours {geometric_mean(ratios):.2f} in geometric mean, "
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
