"""`spconv-bench cpu --maps`, `sim --maps`, `sim --strided` and `scaling`: their arguments, and what they print."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from spconv_compiler import env
from spconv_compiler.errors import InputError
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

_RUNS = 7


def run_maps(arguments: argparse.Namespace) -> int:
    """`cpu --maps`: measures, prints and writes; returns the exit code."""
    out = check_writable(arguments.out)
    need_torch("spconv-bench")
    from spconv_compiler.bench import cpu_maps, frames

    data = arguments.data or frames.default_data()
    names = tuple(arguments.frames or frames.map_names(data))
    unknown = [name for name in names if name not in frames.NAMES]
    if unknown:
        raise InputError(f"unknown frame {unknown[0]!r}; accepted: {', '.join(frames.NAMES)}")
    settings = cpu_maps.Settings(
        frames=names,
        runs=arguments.runs or _RUNS,
        threads=arguments.threads or env.NUM_THREADS.get(),
        data=data,
        shuffle=arguments.shuffle,
        peer=arguments.peer is not None,
    )
    with progress_bar(len(names)) as step:
        result = cpu_maps.measure(settings, step)
    _write(out, result)
    _say_machine(result)
    print_table(*cpu_maps.table(result["rows"]), left=2)
    say("\nmedians; x: time of spconv over ours; wrong: results that are not numpy's, pair by pair\n")
    for line in cpu_maps.notes(result):
        say(line)
    say(f"results → {out}")
    return 0 if all(row["ok"] for row in result["rows"]) else FAILURE


def run_sim_maps(arguments: argparse.Namespace, data: Path, out: Path) -> int:
    """`sim --maps` and `sim --strided`: counts, prints and writes; returns the exit code."""
    from spconv_compiler.bench import cpu_goals, frames, map_goals, maps, strided_maps

    made: Any = strided_maps if arguments.strided else maps
    standing = frames.default_names if arguments.strided else frames.map_names
    names = (arguments.frame,) if arguments.frame else standing(data)
    settings = maps.Settings(names, data, arguments.engine == "native", arguments.sample)
    with progress_bar(len(names)) as step:
        entries = made.measure(settings, step)
    found = [] if arguments.strided else map_goals.goals(entries)
    _write(out, entries if arguments.strided else map_goals.result(settings, entries, found))
    print_table(*made.table(entries))
    say("\ncounted, and modelled: no time of gfx950 was measured; *: the mapper that the driver chooses")
    if found:
        say()
        print_table(*cpu_goals.table(found), left=3)
        say(cpu_goals.summary_line(found) + "\n")
    say(f"results → {out}")
    return 0 if all(entry["ok"] for entry in entries) else FAILURE


def add_scaling(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    scaling = commands.add_parser("scaling", help="time and memory of maps as the number of voxels doubles")
    scaling.add_argument(
        "--most", type=positive, default=12_800_000, metavar="N", help="most voxels (default: %(default)s)"
    )
    scaling.add_argument("--voxels", nargs="+", type=positive, metavar="N", help="these sizes, and no others")
    scaling.add_argument("--runs", type=positive, default=3, help="runs behind each median (default: %(default)s)")
    scaling.add_argument("--threads", type=positive, help="default: SPCONV_NUM_THREADS, then all cores")
    scaling.add_argument("--sorted", action="store_true", help="voxels in ascending instead of random order")
    scaling.add_argument("--data", type=Path, metavar="DIR", help="point clouds (default: beside the checkout)")
    scaling.add_argument(
        "--out", type=Path, default=Path("spconv-scaling.html"), metavar="FILE.html", help="default: %(default)s"
    )


def run_scaling(arguments: argparse.Namespace) -> int:
    """`scaling`: measures, prints, writes a page and its figures; returns the exit code."""
    out = check_writable(arguments.out)
    need_torch("spconv-bench")
    from spconv_compiler.bench import frames, scaling

    settings = scaling.Settings(
        most=arguments.most,
        runs=arguments.runs,
        threads=arguments.threads or env.NUM_THREADS.get(),
        data=arguments.data or frames.default_data(),
        shuffle=not arguments.sorted,
        voxels=tuple(sorted(set(arguments.voxels or ()))),
    )
    with progress_bar(len(scaling.sizes(settings))) as step:
        result = scaling.measure(settings, step)
    _write(out.with_suffix(".json"), result)
    page = scaling.page(result).encode()
    write_whole(out, lambda file: file.write(page))
    _say_machine(result)
    print_table(*scaling.table(result["rows"]), left=2)
    say()
    for line in scaling.notes(result):
        say(line)
    say(f"plot → {out}, figures → {out.with_suffix('.json')}")
    return 0


def _write(out: Path, result: Any) -> None:
    text = json.dumps(result, indent=1).encode()
    write_whole(out, lambda file: file.write(text))


def _say_machine(result: dict[str, Any]) -> None:
    host = result["machine"]
    say(f"{host['cpu']}, {host['level']}, {host['threads']} of {host['cores']} cores, {host['memory_mb']:,} MB")
    say(", ".join(f"{name} {version}" for name, version in result["versions"].items() if version) + "\n")
