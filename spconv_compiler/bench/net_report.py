"""Results of `spconv-bench net` as a table and notes for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_MB = 2**20
_NAMES = {"spconv": "spconv, as many threads", "spconv_one_thread": "spconv, one thread"}


def row_table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells, one line a contestant."""
    peer = any("ratio_spconv" in row for row in rows)
    columns = ["net", "contestant", "N", "ms", "first", "MB"] + (["x spconv", "x one thread"] if peer else [])
    columns += ["difference", "wrong runs"]
    cells = []
    for row in rows:
        name = _NAMES.get(row["contestant"], row["contestant"].replace("_", " "))
        line = [row["net"], name, f"{row['rows']:,}", f"{row['ms']:.1f}", f"{row['first_ms']:.0f}"]
        line.append(f"{row['peak_bytes'] / _MB:.0f}" if "peak_bytes" in row else "")
        if peer:
            line += [f"{row[name]:.2f}" if name in row else "" for name in ("ratio_spconv", "ratio_spconv_one_thread")]
        check = row["check"]
        cells.append([*line, f"{check['difference']:.1e}", f"{check['wrong_runs']} of {len(row['all_ms'])}"])
    return columns, cells


def process_notes(result: dict[str, Any]) -> list[str]:
    """What was found in processes of their own, one line each."""
    lines = []
    for row in result.get("compile", ()):
        lines.append(
            f"{row['net']} {row['dtype']}: compiled in {row['cold_ms'] / 1e3:.1f} s with an empty cache "
            f"({row['kernels']} kernels), in {row['from_disk_ms'] / 1e3:.2f} s from disk"
        )
    for row in result.get("calls", ()):
        kept, built = row["kept"], row["built"]
        lines.append(
            f"{row['net']} {row['dtype']}, a call on one voxel, maps kept: Python {kept['python_us']:.0f} µs, kernels "
            f"{kept['kernels_us']:.0f}, torch's part {kept['torch_us']:.0f}; maps built in it: Python "
            f"{built['python_us']:.0f}, kernels {built['kernels_us']:.0f} ({built['kernel_calls']:.0f} calls)"
        )
    for row in result.get("plans", ()):
        reads = f"not queued as one: {row['why']}" if row["why"] else f"{row['host_reads']} host reads"
        lines.append(
            f"{row['net']} {row['dtype']} on {row['target']}: {sum(row['convolutions'])} launches for "
            f"{len(row['convolutions'])} convolutions, {row['maps']} for all levels and maps, {reads}"
        )
    if "layers" in result:
        added = [row["added_us"] for row in result["layers"]]
        lines.append(f"eager layers: {min(added):.1f} to {max(added):.1f} µs more than their functions (--layers)")
    return lines


def notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What the table does not say, one line each."""
    lines = ["ms: medians, all maps built in every run; first: compilation and the first run; MB: peak beyond inputs"]
    against = "spconv on one thread" if any("ratio_spconv" in row for row in rows) else "the first contestant"
    lines.append(f"difference: relative L2 distance from {against}, the largest of all runs")
    for row in rows:
        if "profile" in row:
            found = row["profile"]
            rate = found["gflop"] / found["convolutions_ms"] * 1e3
            lines.append(
                f"{row['net']} {row['dtype']}, eager: convolutions {found['convolutions_ms']:.1f} ms "
                f"({rate:.1f} GFLOP/s), maps {found['maps_ms']:.1f} ms, torch between them {found['between_ms']:.1f} ms"
            )
    for row in rows:
        check = row["check"]
        if not check["ok"] and not row["contestant"].startswith("spconv"):
            lines.append(f"WRONG: {row['net']} {row['contestant']}: {check}")
    return lines
