"""The `net` command of spconv-bench: its arguments, and what it prints."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from spconv_compiler import env
from spconv_compiler.nets.registry import MODELS
from spconv_compiler.tools.console import (
    FAILURE,
    check_writable,
    need_torch,
    positive,
    print_table,
    progress_bar,
    say,
    write_whole,
)


def add_net(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    net = commands.add_parser("net", help="whole networks on this host's cores, end to end")
    net.add_argument("--net", nargs="+", choices=tuple(MODELS), default=["centerpoint"], help="default: centerpoint")
    net.add_argument("--peer", choices=("spconv",), help="measure spconv's CPU wheel in the same rounds")
    net.add_argument("--dtypes", nargs="+", choices=("f32", "bf16", "f16"), default=["f32", "bf16"], metavar="DTYPE")
    net.add_argument("--runs", type=positive, default=5, help="rounds behind each median (default: %(default)s)")
    net.add_argument("--threads", type=positive, help="of everyone (default: SPCONV_NUM_THREADS, then all cores)")
    net.add_argument("--no-compiled", action="store_true", help="only eager modules, no network compiled as one")
    net.add_argument("--no-processes", action="store_true", help="leave out memory, compilation, Python, launches")
    net.add_argument("--layers", action="store_true", help="what an eager layer costs beside its function; no network")
    net.add_argument("--tiny", action="store_true", help="some hundred generated voxels instead of a real frame")
    net.add_argument("--data", type=Path, metavar="DIR", help="point clouds (default: shared/data beside the checkout)")
    net.add_argument(
        "--out", type=Path, default=Path("spconv-bench-net.json"), metavar="FILE.json", help="default: %(default)s"
    )


def run_net(arguments: argparse.Namespace) -> int:
    """Measures, prints and writes; returns the exit code."""
    out = check_writable(arguments.out)
    need_torch("spconv-bench net")
    if arguments.layers:
        return _run_layers(arguments.runs, out)
    from spconv_compiler.bench import cpu_goals, frames, net, net_report

    settings = net.Settings(
        nets=tuple(dict.fromkeys(arguments.net)),
        dtypes=tuple(dict.fromkeys(arguments.dtypes)),
        runs=arguments.runs,
        threads=arguments.threads or env.NUM_THREADS.get(),
        data=arguments.data or frames.default_data(),
        compiled=not arguments.no_compiled,
        peer=arguments.peer is not None,
        processes=not arguments.no_processes,
        tiny=arguments.tiny,
    )
    with progress_bar(net.steps(settings)) as step:
        result = net.measure(settings, step)
    text = json.dumps(result, indent=1).encode()
    write_whole(out, lambda file: file.write(text))
    host, rows = result["machine"], result["rows"]
    say(f"{host['cpu']}, {host['level']}, {host['threads']} of {host['cores']} cores, {host['memory_mb']:,} MB")
    say(", ".join(f"{name} {version}" for name, version in result["versions"].items() if version) + "\n")
    columns, cells = net_report.row_table(rows)
    print_table(columns, cells, left=2)
    say()
    for line in [*net_report.notes(rows), *net_report.process_notes(result)]:
        say(line)
    found = [cpu_goals.Goal(**goal) for goal in result["goals"]]
    if found:
        say()
        print_table(*cpu_goals.table(found), left=2)
        say(cpu_goals.summary_line(found))
    say(f"results → {out}")
    own = [row for row in rows if row["contestant"] not in (net.PEER, net.PEER_ONE)]
    return 0 if all(row["check"]["ok"] for row in own) else FAILURE


def _run_layers(runs: int, out: Path) -> int:
    from spconv_compiler.bench import layers

    rows = layers.measure(20 * runs)
    text = json.dumps({"layers": rows}, indent=1).encode()
    write_whole(out, lambda file: file.write(text))
    cells = [
        [row["layer"], str(row["rows"]), *(f"{row[name]:.1f}" for name in ("functional_us", "layer_us", "added_us"))]
        for row in rows
    ]
    print_table(["layer", "voxels", "function µs", "layer µs", "added µs"], cells)
    say(f"processor time on one core, kernels included, maps kept; medians of {20 * runs} rounds in turns")
    say(f"results → {out}")
    return 0
