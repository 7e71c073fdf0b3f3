"""The page of `spconv-bench report`: what it shows is what was counted, and it needs nothing from elsewhere."""

from __future__ import annotations

import dataclasses
import functools
import html.parser
import pathlib
import re

import numpy as np
import pytest

from spconv_compiler import reference
from spconv_compiler.bench import frames, report_html, report_page, report_plots
from spconv_compiler.bench.report_listing import annotated
from spconv_compiler.tools import bench

VOID = {"meta", "br", "link", "img"}


class Balance(html.parser.HTMLParser):
    """Tags that are open, and all that were seen."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def small_frame(name: str, data: pathlib.Path) -> frames.Frame:
    """A few hundred voxels in a small box."""
    cells = np.random.default_rng(2).choice(10**3, 220, replace=False)
    coords = np.stack([np.zeros_like(cells), *np.unravel_index(np.sort(cells), (10, 10, 10))], axis=1).astype(np.int32)
    return frames.Frame(name, coords, (10, 10, 10), reference.kernel_map(coords))


@functools.cache
def page() -> report_page.Page:
    settings = report_page.Settings(
        frames.TINY, 16, "bf16", "pairs_m16", 1, frames.default_data(), native=False, sample=1
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_page, "load_frame", small_frame)
        return report_page.measure(settings)


@functools.cache
def text() -> str:
    return report_html.page_html(page())


def test_the_page_stands_alone() -> None:
    parser = Balance()
    parser.feed(text())
    assert parser.open == []
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in parser.seen}
    assert not re.search(r"https?://|url\(|@import|src=", text())
    names = {attributes["id"] for _, attributes in parser.seen if "id" in attributes}
    links = [attributes["href"] for tag, attributes in parser.seen if tag == "a"]
    assert links and all(link is not None and link[0] == "#" and link[1:] in names for link in links)


def test_every_kernel_is_there_with_its_counters() -> None:
    assert [one.kernel.name for one in page().kernels] == re.findall(r"<h2>(\w+)</h2><div class='pair'>", text())
    gemm = next(one for one in page().kernels if "gemm" in one.kernel.name)
    matrix = gemm.launch.counters.matrix
    assert matrix.useful_macs == page().frame.pairs * 16 * 16 and gemm.operations == (
        2.0 * matrix.executed_macs,
        "FLOP",
    )
    row = next(part for part in text().split("<tr>") if part.startswith(f"<td>{gemm.kernel.name}</td>"))
    assert f"<td>{matrix.useful_macs / matrix.executed_macs:.0%}</td>" in row
    assert f"<td>{gemm.launch.band.estimate_us:.1f}</td>" in row


def test_the_peak_is_that_of_the_chip_for_the_kernels_own_opcodes() -> None:
    """gfx950.md: 4096 operations a clock and unit for bf16; lanes: 64 a clock and unit."""
    gemm = next(one for one in page().kernels if "gemm" in one.kernel.name)
    opcodes = [name for name in gemm.launch.counters.by_opcode if name.startswith("v_mfma")]
    assert opcodes == ["v_mfma_f32_16x16x32_bf16"]
    assert gemm.peak == pytest.approx(4096 * 256 * 2.2e9)
    other = next(one for one in page().kernels if one.launch.counters.matrix.passes == 0)
    assert other.operations[1] == "lane op" and other.peak == pytest.approx(64 * 256 * 2.2e9)


def test_the_frame_as_it_is() -> None:
    coords = [tuple(map(int, row)) for row in page().frame.coords]
    there = set(coords)
    taps = [(z, y, x) for z in (-1, 0, 1) for y in (-1, 0, 1) for x in (-1, 0, 1)]
    found = [[(b, z + dz, y + dy, x + dx) in there for dz, dy, dx in taps] for b, z, y, x in coords]
    np.testing.assert_array_equal(page().pairs, np.sum(found, axis=1))
    np.testing.assert_allclose(page().taps, np.mean(found, axis=0))
    shown = dict(re.findall(r"<title>(-?\d,-?\d,-?\d): ([\d.]+)</title>", text()))
    assert {name: float(value) for name, value in shown.items()} == {
        ",".join(map(str, tap)): pytest.approx(100 * share, rel=1e-3)
        for tap, share in zip(taps, np.mean(found, axis=0), strict=True)
    }
    cells = re.findall(r"<title>([\d,]+) voxels, ([\d.]+) pairs each</title>", text())
    assert sum(int(count.replace(",", "")) for count, _ in cells) == len(coords)


def test_the_listing_counts_every_run() -> None:
    for one in page().kernels:
        shown = annotated(one.instructions, one.launch.by_address, 1)
        runs = [float(number.replace(",", "")) for number in re.findall(r'of all">([\d,.e+]+)</td>', shown)]
        assert len(runs) == len(one.instructions)
        np.testing.assert_allclose(runs, [one.launch.by_address.get(i.address, 0) for i in one.instructions], rtol=1e-3)
        kinds = re.findall(r'<tr class="k-(\w+)', shown)
        assert [k == "mfma" for k in kinds] == [item.row.kind == "mfma" for item in one.instructions]
        assert [k == "wait" for k in kinds] == [item.row.name == "s_waitcnt" for item in one.instructions]
        for number, item in enumerate(one.instructions):
            if item.row.kind == "branch":
                line = [i.address for i in one.instructions].index(item.operands[0].number) + 1
                arrow = "↓" if line > number + 1 else "↺"
                assert f'<a href="#x{item.operands[0].number:x}">{arrow} line {line}</a>' in shown


def numbers(shape: str, names: tuple[str, ...], svg: str, kind: str) -> list[tuple[float, ...]]:
    found = re.findall(rf'<{shape} [^>]*class="{kind}"[^>]*>', svg)
    return [tuple(float(re.search(rf'\b{name}="([-\d.]+)"', one)[1]) for name in names) for one in found]  # type: ignore[index]


def test_a_kernel_on_the_ridge_stands_on_the_corner_of_the_roof() -> None:
    peak, memory = report_plots.Roof("peak", 2e15), report_plots.Roof("memory", 5e12)
    bytes_ = 1e9
    operations = bytes_ * peak.rate / memory.rate
    seconds = operations / peak.rate
    on_roof = report_plots.Point("k", operations, bytes_, (seconds, seconds, 10 * seconds))
    svg = report_plots.roofline(on_roof, peak, [memory], "FLOP")
    (slope, flat) = numbers("line", ("x1", "y1", "x2", "y2"), svg, "roof")
    ((x, y),) = numbers("circle", ("cx", "cy"), svg, "point")
    assert (x, y) == slope[2:] == flat[:2]
    ((_, top, _, bottom),) = numbers("line", ("x1", "y1", "x2", "y2"), svg, "band")
    decade = abs(numbers("line", ("y1",), svg, "grid")[-1][0] - numbers("line", ("y1",), svg, "grid")[-2][0])
    assert top == y and bottom - top == pytest.approx(decade, abs=0.2)
    half = dataclasses.replace(on_roof, bytes=bytes_ / 10)
    other = report_plots.roofline(half, peak, [memory], "FLOP")
    ((moved, same),) = numbers("circle", ("cx", "cy"), other, "point")
    corner = numbers("line", ("x1", "x2"), other, "roof")[0][1]
    upright = [x1 for x1, x2 in numbers("line", ("x1", "x2"), other, "grid") if x1 == x2]
    assert same == y and moved - corner == pytest.approx(upright[1] - upright[0], abs=0.2)
    assert "no roofline" in report_plots.roofline(dataclasses.replace(on_roof, bytes=0), peak, [memory], "FLOP")


def test_shares_fill_the_bar() -> None:
    svg = report_plots.stacked({"mfma": 3.0, "valu": 1.0, "end": 0.0}, width=400)
    found = dict(re.findall(r'width="([\d.]+)"[^>]*class="k-(\w+)"', svg))
    assert {kind: float(width) for width, kind in found.items()} == {"mfma": 300.0, "valu": 100.0, "end": 0.0}


def test_the_command(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_page, "measure", lambda settings, step: page())
    out = tmp_path / "page.html"
    assert bench.main(["report", "--frame", frames.TINY, "--channels", "16", "--out", str(out)]) == 0
    assert out.read_text() == text()
    assert bench.main(["report", "--out", str(tmp_path)]) == 1
    assert bench.main(["report", "--channels", "0"]) == 2
