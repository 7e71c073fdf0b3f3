"""The report page as HTML: one file without scripts, images or addresses of others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from spconv_compiler.bench import report_plots as plots
from spconv_compiler.bench.report_listing import annotated
from spconv_compiler.bench.report_page import KernelPage, Page
from spconv_compiler.sim import chip

_COLOURS = {
    "mfma": "#7a3fb5",
    "vmem": "#1f6fb2",
    "lds": "#1d8a5a",
    "smem": "#4b94a8",
    "wait": "#c4422b",
    "barrier": "#a3195b",
    "valu": "#8a8a8a",
    "trans": "#6e6e6e",
    "salu": "#b5b5b5",
    "branch": "#c98a1b",
    "nop": "#d3c9b8",
    "cache": "#507a1f",
    "end": "#444444",
}
_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #fdfdfc; --faint: #e2e0dc; --accent: #7a3fb5; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e4e0; --paper: #17181a; --faint: #35363a; --accent: #b48be0; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2em auto;
  max-width: 1060px; padding: 0 1em; }
table { border-collapse: collapse; font-size: 13px; } td, th { padding: 2px 9px; text-align: right; }
th { border-bottom: 1px solid var(--faint); font-weight: 600; } td:first-child, th:first-child { text-align: left; }
.wide { overflow-x: auto; } .pair { display: flex; flex-wrap: wrap; gap: 2em; } svg { max-width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: var(--ink); } svg .tiny { font-size: 9px; } .inbar { fill: #fff; }
.grid { stroke: var(--faint); } .roof { stroke: var(--ink); stroke-width: 1.6; } .roofname { font-style: italic; }
.band { stroke: var(--accent); stroke-width: 5; opacity: .35; } .point, .cell, .marked { fill: var(--accent); }
.bar { fill: #8a8f98; } .bar.marked { fill: var(--accent); } .legend span { margin-right: 1.1em; font-size: 12px; }
.legend i { display: inline-block; width: 10px; height: 10px; margin-right: 4px; } .none, .small { opacity: .75; }
.asm { font: 12px/1.45 ui-monospace, monospace; width: 100%; } .asm td:last-child, .asm th:last-child {
  text-align: left; white-space: pre; } .asm .heat { width: 90px; } .heat i { display: block; height: 8px;
  background: var(--accent); } .asm tr.block td { border-top: 1px solid var(--faint); } .asm tr.dead { opacity: .45; }
.asm a { color: inherit; } details > summary { cursor: pointer; margin: .6em 0; }
"""


def page_html(page: Page) -> str:
    """The whole page."""
    settings, frame = page.settings, page.frame
    title = f"spconv report: {frame.name}, C = {settings.channels}, {settings.dtype}"
    used = ", ".join(f"{name} {version}" for name, version in page.versions.items() if version)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>A 3×3×3 submanifold convolution for gfx950, schedule <b>{escape(settings.schedule)}</b>, run in the "
        "simulator instruction by instruction. Everything below is <b>counted</b> there, or <b>modelled</b> from the "
        f"counts: no time of a gfx950 was measured. {escape(page.date)}; {escape(used)}.</p>",
        _frame(page),
        "<h2>Launches</h2>",
        _launches(page.kernels),
        *(_kernel(one) for one in page.kernels),
        _facts(),
    ]
    colours = "".join(
        f".k-{name} {{ fill: {colour}; }} i.k-{name} {{ background: {colour}; }} "
        f".asm tr.k-{name} td:last-child {{ border-left: 4px solid {colour}; }}\n"
        for name, colour in _COLOURS.items()
    )
    tinted = "".join(
        f".asm tr.k-{name} td:last-child {{ background: {_COLOURS[name]}26; }}\n"
        for name in ("mfma", "vmem", "lds", "wait", "barrier")
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}{colours}{tinted}</style></head>'
        f"<body>{''.join(parts)}</body></html>\n"
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table of texts."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _frame(page: Page) -> str:
    """The frame: how many neighbours voxels have, at which taps, and where."""
    frame, count = page.frame, max(1, len(page.frame.coords))
    volume = page.taps.size
    spread = np.bincount(page.pairs, minlength=volume + 1)[1 : volume + 1]
    names = [f"{z},{y},{x}" for z in (-1, 0, 1) for y in (-1, 0, 1) for x in (-1, 0, 1)]
    words = (
        f"<p>{len(frame.coords):,} voxels in a grid of {' × '.join(map(str, frame.spatial_shape))} (z, y, x); "
        f"{frame.pairs:,} pairs, {frame.pairs / count:.2f} a voxel of {volume}.</p>"
    )
    taps = plots.columns([100 * float(value) for value in page.taps], names, "voxels with a neighbour at the tap, %")
    shares = [100 * float(value) / count for value in spread]
    histogram = plots.columns(shares, [str(k) for k in range(1, volume + 1)], "voxels by number of pairs, %")
    seen = plots.density_map(frame.coords, page.pairs)
    return (
        f"<h2>Frame {escape(frame.name)}</h2>{words}<div class='pair'><div>{taps}{histogram}</div>"
        f"<div><p class='small'>pairs per voxel, seen from above</p>{seen}</div></div>"
    )


def _launches(kernels: Sequence[KernelPage]) -> str:
    columns = ["kernel", "workgroups", "M wave instr", "modelled µs", "band", "limited by", "MFMA busy", "useful MACs"]
    columns += ["coalescing", "waves/SIMD"]
    rows = []
    for one in kernels:
        counted, band = one.launch.counters, one.launch.band
        matrix, vmem = counted.matrix, [m for name, m in counted.memory.items() if name.startswith("vmem")]
        lines = sum(part.lines_64 for part in vmem)
        terms = band.terms["likely"]
        rows.append(
            [
                counted.kernel,
                f"{counted.groups:,}",
                f"{counted.instructions / 1e6:.2f}",
                f"{band.estimate_us:.1f}",
                f"{band.lower_us:.1f} – {band.pessimistic_us:.1f}",
                band.limited_by["likely"],
                f"{terms['matrix'] / band.estimate_us:.0%}" if matrix.passes else "–",
                f"{matrix.useful_macs / matrix.executed_macs:.0%}" if matrix.useful_macs and matrix.passes else "–",
                f"{sum(part.bytes for part in vmem) / (64 * lines):.0%}" if lines else "–",
                f"{counted.occupancy.waves_per_simd:g}",
            ]
        )
    return table(columns, rows)


def _kernel(one: KernelPage) -> str:
    counted, band, kernel = one.launch.counters, one.launch.band, one.kernel
    operations, unit = one.operations
    seconds = (band.lower_us * 1e-6, band.estimate_us * 1e-6, band.pessimistic_us * 1e-6)
    point = plots.Point(kernel.name, operations, float(one.launch.moved_bytes), seconds)
    roofs = [
        plots.Roof(f"{name} {chip.FACTS[key].likely:g} TB/s", chip.FACTS[key].likely * 1e12)
        for name, key in (("HBM", "hbm_tb_s"), ("Infinity Cache", "mall_tb_s"))
    ]
    peak = plots.Roof("MFMA, as this kernel mixes them" if unit == "FLOP" else "vector lanes", one.peak)
    terms = dict(sorted(band.terms["likely"].items(), key=lambda term: -term[1]))
    parts = plots.bars(terms, "µs", band.limited_by["likely"], 420)
    return (
        f"<h2>{escape(kernel.name)}</h2><div class='pair'>"
        f"<div><h3>Roofline</h3>{plots.roofline(point, peak, roofs, unit)}</div>"
        f"<div><h3>Modelled time of each part, µs</h3>{parts}</div></div>"
        f"<h3>Instructions</h3>{plots.stacked(counted.by_class)}"
        f"<div class='pair'><div><h3>Registers, LDS, occupancy</h3>{_resources(one)}</div>"
        f"<div><h3>Memory</h3>{_memory(one)}</div></div>"
        f"<details><summary>assembly: {len(one.instructions)} lines, coloured by class</summary>"
        f"{annotated(one.instructions, one.launch.by_address, counted.waves)}</details>"
    )


def _resources(one: KernelPage) -> str:
    descriptor, counted = one.kernel.descriptor, one.launch.counters
    occupancy, spills = counted.occupancy, counted.spills
    vectors = min(descriptor.vgprs, descriptor.accum_offset)
    rows = [
        ["vector registers", f"{vectors} + {descriptor.vgprs - vectors} accumulation"],
        ["scalar registers", f"{one.kernel.sgprs}"],
        ["LDS", f"{descriptor.lds_bytes:,} bytes a workgroup of {counted.block} lanes"],
        ["waves a SIMD", f"{occupancy.waves_per_simd:g} of {chip.WAVES_PER_SIMD}"],
        ["limited by", ", ".join(occupancy.limited_by)],
        ["workgroups a unit by resource", ", ".join(f"{name} {n}" for name, n in occupancy.limits.items())],
        ["scratch", f"{spills.scratch_bytes} bytes a lane"],
    ]
    return table(["", ""], rows)


def _memory(one: KernelPage) -> str:
    counted = one.launch.counters
    columns = ["", "instructions", "MB asked", "64-byte lines", "of the lines used"]
    rows = []
    for name, part in counted.memory.items():
        share = f"{part.bytes / (64 * part.lines_64):.0%}" if part.lines_64 else "–"
        rows.append([name, f"{part.instructions:,}", f"{part.bytes / 2**20:.2f}", f"{part.lines_64:,}", share])
    for name, local in counted.lds.items():
        conflicts = f"{local.cycles / local.phases - 1:.0%} conflicts" if local.phases else "–"
        rows.append([f"lds {name}", f"{local.instructions:,}", f"{local.bytes / 2**20:.2f}", "–", conflicts])
    rows.append(["between L2 and memory", "", f"{one.launch.moved_bytes / 2**20:.2f}", "", ""])
    return table(columns, rows)


def _facts() -> str:
    rows = [
        [name, f"{fact.fast:g}", f"{fact.likely:g}", f"{fact.slow:g}", fact.unit, fact.source]
        for name, fact in chip.FACTS.items()
    ]
    shown = table(["fact", "fast", "likely", "slow", "unit", "source"], rows)
    return f"<details><summary>what the model believes of the chip</summary>{shown}</details>"
