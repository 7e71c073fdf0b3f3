"""The measurement behind `spconv-bench scaling`: does the cost of a map grow with the number of voxels, and no faster?

Copies of one frame are laid side by side along y and x, so that the neighbourhoods stay what they are while voxels
double and the box grows; rows come in random order. Every size has a process of its own. The page has a plot in SVG.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler import sparse_map
from spconv_compiler.arrays import as_array
from spconv_compiler.bench import child
from spconv_compiler.bench.cpu_maps import PAIR_BYTES, VOXEL_BYTES
from spconv_compiler.bench.frames import default_names, load_frame
from spconv_compiler.bench.machine import machine, versions
from spconv_compiler.compiler import conv_options
from spconv_compiler.driver import ConvKernel, load_conv

Coords = npt.NDArray[np.int32]
# Doubling the voxels may raise the time of one by this much.
GROWTH_LIMIT = 1.5
_LEAST = 100_000
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 760, 380, 70, 50, 30
_COLOURS = {"submanifold k3": "#2457a6", "k3 s2 p1": "#b5482a"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Most voxels; or the sizes themselves; runs behind a median, threads, folder of frames, rows in random order."""

    most: int
    runs: int
    threads: int
    data: Path
    shuffle: bool = True
    voxels: tuple[int, ...] = ()


def sizes(settings: Settings) -> list[int]:
    """Numbers of voxels: those that were asked for, or doubling from 100 000 on."""
    count = max(0, int(math.log2(max(settings.most, _LEAST) / _LEAST))) + 1
    return list(settings.voxels) or [_LEAST << number for number in range(count)]


def tiled(frame: Coords, voxels: int, shuffle: bool) -> Coords:
    """`voxels` rows int32 [N, 4]: copies of `frame` side by side in a square, the last one cut."""
    side = frame[:, 2:].max(axis=0) + 1
    copies = -(-voxels // len(frame))
    wide = math.isqrt(copies - 1) + 1
    made = np.tile(frame, (copies, 1))[:voxels]
    number = np.arange(voxels) // len(frame)
    made[:, 2] += number // wide * side[0]
    made[:, 3] += number % wide * side[1]
    if shuffle:
        return np.random.default_rng(0).permutation(made)
    return made[np.lexsort((made[:, 3], made[:, 2], made[:, 1]))]


@functools.cache
def _kernel(key_width: int) -> ConvKernel:
    kernel = load_conv(conv_options(3, 1, 1, key_width, target="cpu"))
    assert isinstance(kernel, ConvKernel)
    return kernel


def _submanifold(coords: Coords) -> Any:
    # Beside the cache of maps, which would find the one of the run before.
    points = as_array(coords, "coords")
    box = _kernel(32).box(points)
    return _kernel(_kernel(32).key_width(box)).build_map(points, box)


def _strided(coords: Coords) -> Any:
    made = sparse_map.build_map(coords, 3, stride=2, padding=1, target="cpu")
    made.pairs_for(made.kernel("conv", c_in=1, c_out=1))
    return made


BUILDERS: dict[str, Callable[[Coords], Any]] = {"submanifold k3": _submanifold, "k3 s2 p1": _strided}


def size_of(made: Any) -> dict[str, int]:
    """Pairs and outputs of a map, the bytes that it holds, and those that it may."""
    if hasattr(made, "out_rows"):
        pairs, outputs = made.pairs_for(made.kernel("conv", c_in=1, c_out=1)).count, made.out_rows
        voxels = made.in_rows + outputs
    else:
        pairs, outputs, voxels = made.pairs, made.rows, made.rows
    return {
        "pairs": pairs,
        "outputs": outputs,
        "bytes": made.nbytes,
        "bytes_limit": PAIR_BYTES * pairs + VOXEL_BYTES * voxels,
    }


def measure(settings: Settings, progress: Callable[[str], None] = lambda step: None) -> dict[str, Any]:
    """Measures and returns everything as plain JSON values; `progress` is told what comes next, once a size."""
    frame = load_frame(default_names(settings.data)[0], settings.data)
    rows = []
    with tempfile.TemporaryDirectory(prefix="spconv-scaling-") as folder:
        file = Path(folder, "frame.npy")
        np.save(file, frame.coords)
        for voxels in sizes(settings):
            progress(f"{voxels:,} voxels")
            given = {"shuffle": settings.shuffle, "runs": settings.runs, "threads": settings.threads}
            rows.append(child.measure("maps_of", frame=str(file), voxels=voxels, **given))
    return {
        "format": 1,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(settings.threads),
        "versions": versions(),
        "settings": {**dataclasses.asdict(settings), "data": settings.data.name, "frame": frame.name},
        "rows": rows,
        "growth": {name: growth(rows, name) for name in BUILDERS},
    }


def growth(rows: Sequence[dict[str, Any]], name: str, kind: str = "ms") -> list[float]:
    """By how much the time of a voxel grew from each size to the next, brought to a doubling; kind: ms or cpu_ms."""
    found = []
    for before, after in zip(rows, rows[1:], strict=False):
        doublings = math.log2(after["voxels"] / before["voxels"])
        ratio = (after[name][kind] / after["voxels"]) / (before[name][kind] / before["voxels"])
        found.append(ratio ** (1 / doublings))
    return found


def table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells."""
    columns = ["map", "voxels", "ms", "ns/voxel", "x for twice", "CPU ns/voxel", "first ms", "peak MB"]
    columns += ["map MB", "limit MB"]
    cells = []
    for name in BUILDERS:
        steps = [None, *growth(rows, name)]
        for row, step in zip(rows, steps, strict=True):
            one, voxels = row[name], row["voxels"]
            line = [name, f"{voxels:,}", f"{one['ms']:.1f}", f"{one['ms'] * 1e6 / voxels:.1f}"]
            line += ["" if step is None else f"{step:.2f}", f"{one['cpu_ms'] * 1e6 / voxels:.1f}"]
            line += [f"{one['first_ms']:.0f}"]
            line += [f"{one[key] / 1e6:.1f}" for key in ("peak_bytes", "bytes", "bytes_limit")]
            cells.append(line)
    return columns, cells


def notes(result: dict[str, Any]) -> list[str]:
    """What the table says, in lines."""
    lines = []
    for name, steps in result["growth"].items():
        if steps:
            lines.append(
                f"{name}: twice the voxels raise the time of one by x {max(steps):.2f} at most (limit {GROWTH_LIMIT}), "
                f"its CPU time by x {max(growth(result['rows'], name, 'cpu_ms')):.2f}"
            )
        kept = sum(row[name]["bytes"] <= row[name]["bytes_limit"] for row in result["rows"])
        lines.append(
            f"{name}: {kept} of {len(result['rows'])} maps within {PAIR_BYTES} B a pair + {VOXEL_BYTES} B a voxel"
        )
    return lines


def page(result: dict[str, Any]) -> str:
    """The figures as one HTML page without anything outside of it: a plot and a table."""
    columns, cells = table(result["rows"])
    head = "".join(f"<th>{text}</th>" for text in columns)
    body = "".join("<tr>" + "".join(f"<td>{text}</td>" for text in line) + "</tr>\n" for line in cells)
    said = "".join(f"<li>{line}</li>" for line in notes(result))
    host = result["machine"]
    return f"""<!doctype html><meta charset="utf-8"><title>Time of a map per voxel</title>
<style>body{{font:14px system-ui,sans-serif;margin:2em;max-width:60em}}td,th{{padding:.15em .6em;text-align:right}}
td:first-child,th:first-child{{text-align:left}}text{{font:12px system-ui,sans-serif}}</style>
<h1>Time of a map per voxel, as voxels double</h1>
<p>{host["cpu"]}, {host["threads"]} threads, {result["date"]}; copies of {result["settings"]["frame"]} side by side,
rows in {"random" if result["settings"]["shuffle"] else "ascending"} order.</p>
{plot(result["rows"])}
<ul>{said}</ul>
<table><tr>{head}</tr>
{body}</table>
"""


def plot(rows: Sequence[dict[str, Any]]) -> str:
    """An SVG: ns per voxel over voxels, the latter in powers of two."""
    values = {name: [row[name]["ms"] * 1e6 / row["voxels"] for row in rows] for name in BUILDERS}
    top: float = 1.15 * max(max(line) for line in values.values())
    exponents = [math.log2(row["voxels"]) for row in rows]
    span = (exponents[-1] - exponents[0]) or 1.0

    def x(exponent: float) -> float:
        return _LEFT + (exponent - exponents[0]) / span * (_WIDTH - _LEFT - 20)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _BOTTOM - _TOP)

    parts = []
    step = 10 ** math.floor(math.log10(top)) / 2
    for tick in np.arange(0.0, top, step):
        parts.append(f'<path d="M{_LEFT} {y(tick):.1f}H{_WIDTH - 20}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for exponent, row in zip(exponents, rows, strict=True):
        name = f"{row['voxels'] / 1e6:.1f} M"
        parts.append(f'<text x="{x(exponent):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{name}</text>')
    for number, (name, line) in enumerate(values.items()):
        points = [(x(exponent), y(value)) for exponent, value in zip(exponents, line, strict=True)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{_COLOURS[name]}" stroke-width="2"/>')
        for (a, b), value in zip(points, line, strict=True):
            parts.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{_COLOURS[name]}">')
            parts.append(f"<title>{name}: {value:.1f} ns/voxel</title></circle>")
        parts.append(f'<text x="{_LEFT + 10 + 170 * number}" y="18" fill="{_COLOURS[name]}">{name}</text>')
    parts.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 8}" text-anchor="middle">voxels</text>')
    parts.append(f'<text x="14" y="{_HEIGHT / 2}" transform="rotate(-90 14 {_HEIGHT / 2})">ns per voxel</text>')
    size = f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}</svg>'
