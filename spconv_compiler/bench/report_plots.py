"""Plots of the report page as inline SVG: rooflines, bars, a map of density. Plain text in, plain text out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 560, 330, 62, 44, 14


@dataclass(frozen=True)
class Roof:
    """A bound: name, and operations or bytes a second."""

    name: str
    rate: float


@dataclass(frozen=True)
class Point:
    """A kernel in the roofline: operations, bytes, and seconds (lower, estimate, pessimistic)."""

    name: str
    operations: float
    bytes: float
    seconds: tuple[float, float, float]


def _svg(width: float, height: float, parts: Sequence[str], title: str) -> str:
    box = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    return f'<svg {box} role="img" aria-label="{escape(title, True)}">{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "label") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _rect(x: float, y: float, width: float, height: float, kind: str, title: str = "", style: str = "") -> str:
    inside = f"<title>{escape(title)}</title>" if title else ""
    more = f' style="{style}"' if style else ""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{max(0.0, height):.1f}"'
    return f'<rect {place} class="{kind}"{more}>{inside}</rect>'


def quantity(value: float, unit: str) -> str:
    """A number with a prefix of thousands, such as "39.1 T" with the unit."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def roofline(point: Point, peak: Roof, memories: Sequence[Roof], unit: str) -> str:
    """Operations a second over operations a byte, both logarithmic: the roofs, the kernel, and its modelled band.

    peak: operations a second; memories: bytes a second. A kernel that moves no bytes, or does nothing, has no place.
    """
    if point.operations <= 0 or point.bytes <= 0:
        return '<p class="none">no roofline: the kernel has no operations, or moves no bytes to or from memory</p>'
    intensity = point.operations / point.bytes
    rates = [point.operations / seconds for seconds in point.seconds]
    low_x, high_x = math.floor(math.log10(intensity)) - 1, math.ceil(math.log10(intensity)) + 1
    ridges = [math.log10(peak.rate / memory.rate) for memory in memories]
    low_x, high_x = min([low_x, *map(math.floor, ridges)]), max([high_x, *(math.ceil(r + 0.3) for r in ridges)])
    high_y = math.ceil(math.log10(peak.rate) + 0.1)
    low_y = min(math.floor(math.log10(min(rates))), high_y - 3)

    def x(value: float) -> float:
        return _LEFT + (math.log10(value) - low_x) / (high_x - low_x) * (_WIDTH - _LEFT - 10)

    def y(value: float) -> float:
        return _TOP + (high_y - math.log10(value)) / (high_y - low_y) * (_HEIGHT - _TOP - _BOTTOM)

    parts = []
    for power in range(low_x, high_x + 1):
        parts += [_line(x(10**power), _TOP, x(10**power), _HEIGHT - _BOTTOM, "grid")]
        parts.append(_text(x(10**power), _HEIGHT - _BOTTOM + 15, f"{10.0**power:g}", "middle"))
    for power in range(low_y, high_y + 1):
        parts += [_line(_LEFT, y(10.0**power), _WIDTH - 10, y(10.0**power), "grid")]
        parts.append(_text(_LEFT - 6, y(10.0**power) + 4, quantity(10.0**power, ""), "end"))
    parts.append(_text((_LEFT + _WIDTH) / 2, _HEIGHT - 8, f"{unit} a byte between L2 and memory", "middle"))
    for memory in memories:
        start, end = 10.0**low_x, peak.rate / memory.rate
        bottom = max(start, 10.0**low_y / memory.rate)
        parts.append(_line(x(bottom), y(bottom * memory.rate), x(end), y(peak.rate), "roof"))
        middle = math.sqrt(bottom * end)
        parts.append(_text(x(middle) - 4, y(middle * memory.rate) - 4, memory.name, "end", "roofname"))
    corner = min(peak.rate / memory.rate for memory in memories)
    parts.append(_line(x(corner), y(peak.rate), _WIDTH - 10, y(peak.rate), "roof"))
    parts.append(_text(_WIDTH - 12, y(peak.rate) - 5, f"{peak.name}: {quantity(peak.rate, unit)}/s", "end", "roofname"))
    parts.append(_line(x(intensity), y(rates[0]), x(intensity), y(rates[2]), "band"))
    label = f"{point.name}: {quantity(rates[1], unit)}/s modelled, {intensity:.3g} {unit} a byte"
    parts.append(f'<circle cx="{x(intensity):.1f}" cy="{y(rates[1]):.1f}" r="5" class="point">')
    parts.append(f"<title>{escape(label)}</title></circle>")
    return _svg(_WIDTH, _HEIGHT, parts, label)


def stacked(shares: Mapping[str, float], width: int = 560) -> str:
    """One bar whose parts are shares of a whole; classes of the parts: k-<name>."""
    whole = sum(shares.values()) or 1.0
    parts, legend, place = [], [], 0.0
    for name, value in sorted(shares.items(), key=lambda one: -one[1]):
        size = value / whole * width
        parts.append(_rect(place, 0, size, 22, f"k-{name}", f"{name}: {value:,.0f} ({value / whole:.1%})"))
        if size > 44:
            parts.append(_text(place + 4, 15, name, kind="inbar"))
        legend.append(f'<span><i class="k-{escape(name)}"></i>{escape(name)} {value / whole:.1%}</span>')
        place += size
    return _svg(width, 22, parts, "shares") + f'<div class="legend">{"".join(legend)}</div>'


def bars(values: Mapping[str, float], unit: str, marked: str = "", width: int = 560) -> str:
    """Horizontal bars with their numbers; `marked` stands out."""
    most = max(values.values(), default=0.0) or 1.0
    parts = []
    for number, (name, value) in enumerate(values.items()):
        top = 20 * number
        parts.append(_text(0, top + 14, name))
        kind = "bar marked" if name == marked else "bar"
        parts.append(_rect(110, top + 3, value / most * (width - 210), 14, kind))
        parts.append(_text(116 + value / most * (width - 210), top + 14, f"{value:,.3g} {unit}"))
    return _svg(width, 20 * len(values) + 4, parts, "bars")


def columns(values: Sequence[float], names: Sequence[str], title: str, width: int = 560, height: int = 150) -> str:
    """Upright bars with a name under each and the value as its title."""
    most, step = max(values, default=0.0) or 1.0, (width - 10) / max(1, len(values))
    parts = [_text(0, 12, title)]
    for number, (value, name) in enumerate(zip(values, names, strict=True)):
        size = value / most * (height - 46)
        parts.append(_rect(5 + number * step, height - 20 - size, step - 2, size, "bar", f"{name}: {value:,.4g}"))
        if len(values) <= 30:
            parts.append(_text(5 + (number + 0.5) * step - 1, height - 6, name, "middle", "tiny"))
    return _svg(width, height, parts, title)


def density_map(coords: npt.NDArray[np.int32], pairs: npt.NDArray[np.int64], cells: int = 72) -> str:
    """The frame from above: mean pairs per voxel in square cells; cells without voxels stay empty."""
    if not len(coords):
        return '<p class="none">no voxels</p>'
    y, x = coords[:, -2].astype(np.int64), coords[:, -1].astype(np.int64)
    y, x = y - y.min(), x - x.min()
    size = max(1, -(-int(max(y.max(), x.max()) + 1) // cells))
    rows, places = int(y.max()) // size + 1, int(x.max()) // size + 1
    flat = y // size * places + x // size
    count = np.bincount(flat, minlength=rows * places)
    mean = np.bincount(flat, pairs, minlength=rows * places) / np.maximum(count, 1)
    most = float(mean.max()) or 1.0
    side, parts = 7.5, []
    for cell in np.flatnonzero(count):
        row, place = divmod(int(cell), places)
        title = f"{count[cell]:,} voxels, {mean[cell]:.1f} pairs each"
        strength = 0.12 + 0.88 * float(mean[cell]) / most
        parts.append(_rect(place * side, row * side, side, side, "cell", title, f"opacity:{strength:.2f}"))
    return _svg(places * side, rows * side, parts, "pairs per voxel from above")
