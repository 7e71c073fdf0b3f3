"""Bench results as tables for people, and their geometric means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

KINDS = ("built", "cached")
_MB = 2**20
# How spconv was set -> what its figures are called.
_SETTINGS = {"spconv": "with as many threads", "spconv_one_thread": "on one thread"}


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Geometric means of the ratios spconv f32 / ours, per dtype, setting of spconv, and map built or cached.

    "faster" is, row by row, against the setting in which spconv took less time, of those that were measured. Rows
    whose result is wrong take no part and are counted.
    """
    summary: dict[str, dict[str, Any]] = {}
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        mine = [row for row in rows if row["dtype"] == dtype and _settings_of(row)]
        right = [row for row in mine if row["check"]["ok"]]
        if not right:
            continue
        summary[dtype] = {"rows": len(right), "wrong_rows": len(mine) - len(right)}
        for setting in (*_settings_of(right[0]), "faster"):
            for kind in KINDS:
                ratios = [row_ratio(row, setting, kind) for row in right]
                summary[dtype][f"{setting}_{kind}"] = geometric_mean(ratios)
                summary[dtype][f"{setting}_{kind}_min"] = min(ratios)
    return summary


def row_ratio(row: dict[str, Any], setting: str, kind: str) -> float:
    """spconv's time over ours in one row, for one of its settings or the "faster"."""
    settings = _settings_of(row) if setting == "faster" else (setting,)
    return min(float(row[name][f"ratio_{kind}"]) for name in settings)


def _settings_of(row: dict[str, Any]) -> tuple[str, ...]:
    """The settings in which spconv was measured beside this row."""
    return tuple(name for name in _SETTINGS if name in row)


def geometric_mean(values: Iterable[float]) -> float:
    """The n-th root of the product of n positive numbers, n ≥ 1."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def row_table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells of the convolutions; spconv's times are those of its faster setting."""
    peer = any(_settings_of(row) for row in rows)
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
            ratios = [row_ratio(row, "faster", kind) for kind in KINDS]
            line += [_ms(ratio * row[f"{kind}_ms"]) for ratio, kind in zip(ratios, KINDS, strict=True)]
            line += [f"{ratio:.2f}" for ratio in ratios]
        cells.append(line)
    return columns, cells


def notes(result: dict[str, Any]) -> list[str]:
    """What the table does not say, one line each."""
    rows = result["rows"]
    lines = [*_ratio_notes(result["summary"]), *_peer_notes(rows)]
    wrong = [row for row in rows if not row["check"]["ok"]]
    lines.append(f"results: {len(rows) - len(wrong)} of {len(rows)} rows within the error bound of exact sums")
    lines += [f"  WRONG: {row['frame']}, C = {row['c_in']}, {row['dtype']}: {row['check']}" for row in wrong]
    measured = [row for row in rows if "peak_bytes" in row]
    if measured:
        kept = sum(row["peak_bytes"] <= row["peak_limit_bytes"] for row in measured)
        lines.append(f"peak memory: {kept} of {len(measured)} rows within tensors + 20 B x pairs + 64 MB")
    for one in result.get("compile", ()):
        figures = (
            f"failed: {one['failed']}"
            if "failed" in one
            else (
                f"{one['cold_ms']:.0f} ms cold (after {one['import_ms']:.0f} ms to import MLIR and the passes), "
                f"{one['from_disk_ms']:.1f} ms from disk"
            )
        )
        lines.append(f"compile {one['target']} {one['dtype']} {one['channels']}→{one['channels']}: {figures}")
    small = ", ".join(f"{us:.0f} us at C = {channels}" for channels, us in result["small_call_us"].items())
    lines.append(f"cached call on one voxel: {small}")
    if "import" in result:
        found = result["import"]
        extra = " and ".join(name for name in ("torch", "mlir") if found[name])
        lines.append(f"import spconv_compiler: {found['ms']:.0f} ms, loading {extra or 'neither torch nor MLIR'}")
    return lines


def _ratio_notes(summary: dict[str, dict[str, Any]]) -> list[str]:
    names = {**{name: f"spconv {words}" for name, words in _SETTINGS.items()}, "faster": "the faster of these"}

    def tells(mean: dict[str, Any], setting: str) -> bool:
        """Whether the setting was measured, and "faster" of more than one."""
        measured = [name for name in _SETTINGS if f"{name}_built" in mean]
        return setting in measured or (setting == "faster" and len(measured) > 1)

    return [
        f"geometric mean, f32 of {words} / our {dtype}: {mean[f'{setting}_built']:.2f} with the map built, "
        f"{mean[f'{setting}_cached']:.2f} with it cached"
        for dtype, mean in summary.items()
        for setting, words in names.items()
        if tells(mean, setting)
    ]


def _peer_notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = []
    for setting, words in _SETTINGS.items():
        # Rows of one frame and width share the peer's runs.
        shared = {(row["frame"], row["c_in"]): row[setting] for row in rows if setting in row}
        if any(one["wrong_runs"] is not None for one in shared.values()):
            bad, runs = (sum(one[name] for one in shared.values()) for name in ("wrong_runs", "runs"))
            lines.append(f"spconv {words}: {bad} of {runs} results differ from ours by over 1e-4 of the largest value")
    return lines


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"
