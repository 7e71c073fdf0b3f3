"""The `report` command of spconv-bench: its arguments, and the page that it writes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from spconv_compiler import env
from spconv_compiler.tools.console import check_writable, positive, progress_bar, say, write_whole


def add_report(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    report = commands.add_parser("report", help="one self-contained HTML page on a convolution for gfx950, simulated")
    report.add_argument("--frame", metavar="NAME", help="voxel set (default: the ten-sweep frame, or a generated one)")
    report.add_argument("--channels", type=positive, default=128, metavar="C", help="width (default: %(default)s)")
    report.add_argument("--dtype", choices=("bf16", "f16", "f32"), default="bf16", help="default: %(default)s")
    report.add_argument("--schedule", default="auto", metavar="NAME", help="default: %(default)s")
    report.add_argument(
        "--threads", type=positive, help="of the simulator (default: SPCONV_NUM_THREADS, then all cores)"
    )
    report.add_argument(
        "--sample", type=positive, default=8, metavar="N", help="watch every N-th workgroup (default: %(default)s)"
    )
    report.add_argument("--engine", choices=("native", "numpy"), default="native", help="default: %(default)s")
    report.add_argument("--data", type=Path, metavar="DIR", help="point clouds (default: shared/data of the checkout)")
    report.add_argument(
        "--out", type=Path, default=Path("spconv-report.html"), metavar="FILE.html", help="default: %(default)s"
    )


def run_report(arguments: argparse.Namespace) -> int:
    """Measures and writes the page; returns the exit code."""
    from spconv_compiler.bench import frames, report_html, report_page

    out = check_writable(arguments.out)
    data = arguments.data or frames.default_data()
    settings = report_page.Settings(
        frame=arguments.frame or frames.default_names(data)[0],
        channels=arguments.channels,
        dtype=arguments.dtype,
        schedule=arguments.schedule,
        threads=arguments.threads or env.NUM_THREADS.get(),
        data=data,
        native=arguments.engine == "native",
        sample=arguments.sample,
    )
    with progress_bar(report_page.STEPS) as step:
        page = report_page.measure(settings, step)
    text = report_html.page_html(page).encode()
    write_whole(out, lambda file: file.write(text))
    say(f"{len(page.kernels)} launches, {len(text) / 1e3:,.0f} kB → {out}")
    return 0
