"""spconv-bench: measures this compiler's kernels on this machine and writes the figures as JSON.

    spconv-bench cpu                   all frames and widths
    spconv-bench cpu --peer spconv     beside spconv's CPU wheel, in the same run: what has to be reached, and what is
    spconv-bench cpu --maps            from coordinates to pairs alone, submanifold and strided; also with --peer spconv
    spconv-bench scaling               time and memory of maps as the number of voxels doubles; table and plot
    spconv-bench cpu --quick           a minute instead of a quarter of an hour
    spconv-bench sim                   the gfx950 simulator on one layer: its speed and memory on this machine
    spconv-bench sim --schedules       every gemm schedule on one layer: counters side by side, modelled times
    spconv-bench sim --goals           the chosen one beside pairs_m16, and what it should reach, on all frames
    spconv-bench sim --counters        and what it counts; times of gfx950 are modelled
    spconv-bench sim --maps            coordinates to pairs by both mappers, counted and modelled
    spconv-bench sim --strided         the same of a strided op: outputs, map and pairs by every mapper
    spconv-bench report                a page with rooflines, counters and annotated assembly of one convolution
    spconv-bench gpu --peers spconv    an NVIDIA GPU, beside other libraries in the same run
    spconv-bench net --peer spconv     a whole network beside the same in spconv's layers: time, memory, compilation,
                                       Python, launches; what has to be reached, and what is

Exit codes: 0 done, 1 failed or a result is wrong, 2 usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spconv_compiler import env
from spconv_compiler.errors import InputError
from spconv_compiler.tools.bench_gpu import add_gpu, run_gpu
from spconv_compiler.tools.bench_maps import add_scaling, run_maps, run_scaling, run_sim_maps
from spconv_compiler.tools.bench_net import add_net, run_net
from spconv_compiler.tools.bench_report import add_report, run_report
from spconv_compiler.tools.bench_schedules import run_schedules
from spconv_compiler.tools.console import (
    FAILURE,
    check_writable,
    guarded,
    need_torch,
    positive,
    print_table,
    progress_bar,
    say,
    write_whole,
)

if TYPE_CHECKING:
    from spconv_compiler.bench.cpu import Settings

_CHANNELS, _QUICK_CHANNELS = (16, 64, 128, 256), (16, 64)
_RUNS, _QUICK_RUNS = 7, 3


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: the program's) and returns the exit code."""
    return guarded("spconv-bench", lambda: _run(_parser().parse_args(argv)))


def _run(arguments: argparse.Namespace) -> int:
    return _COMMANDS[arguments.command](arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spconv-bench", description="Measures kernels on this machine.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="cpu|sim|scaling|net|gpu|report")
    _add_cpu(commands)
    _add_sim(commands)
    add_scaling(commands)
    add_net(commands)
    add_gpu(commands)
    add_report(commands)
    return parser


def _add_cpu(commands: Any) -> None:
    cpu = commands.add_parser("cpu", help="submanifold 3x3x3 convolutions on this host's cores")
    cpu.add_argument("--maps", action="store_true", help="only maps: submanifold and strided, on more frames")
    cpu.add_argument("--peer", choices=("spconv",), help="measure spconv's CPU wheel in the same rounds")
    cpu.add_argument(
        "--peer-threads",
        choices=("both", "same", "one"),
        help="of the peer: as many as ours, one, or one after the other (default: both)",
    )
    cpu.add_argument("--frames", nargs="+", metavar="NAME", help="voxel sets (default: the real ones where present)")
    cpu.add_argument("--channels", nargs="+", type=positive, metavar="C", help=f"widths (default: {_CHANNELS})")
    cpu.add_argument("--dtypes", nargs="+", choices=("f32", "bf16", "f16"), default=["f32", "bf16"], metavar="DTYPE")
    cpu.add_argument("--runs", type=positive, help=f"rounds behind each median (default: {_RUNS})")
    cpu.add_argument(
        "--threads", type=positive, help="of every contestant (default: SPCONV_NUM_THREADS, then all cores)"
    )
    cpu.add_argument("--quick", action="store_true", help=f"C = 16 and 64, first and last frame, {_QUICK_RUNS} rounds")
    cpu.add_argument("--shuffle", action="store_true", help="voxels in random order instead of sorted")
    cpu.add_argument("--no-processes", action="store_true", help="leave out import, compilation and memory")
    cpu.add_argument("--data", type=Path, metavar="DIR", help="point clouds (default: shared/data beside the checkout)")
    cpu.add_argument(
        "--out", type=Path, default=Path("spconv-bench-cpu.json"), metavar="FILE.json", help="default: %(default)s"
    )


def _add_sim(commands: Any) -> None:
    sim = commands.add_parser("sim", help="a 3x3x3 convolution for gfx950, simulated on this host")
    sim.add_argument("--counters", action="store_true", help="count and model every launch (minutes)")
    sim.add_argument("--maps", action="store_true", help="only count and model maps, beside their goals (minutes)")
    sim.add_argument("--strided", action="store_true", help="only count and model outputs and maps of a strided op")
    sim.add_argument(
        "--schedules", nargs="*", metavar="NAME", help="instead: count gemm schedules side by side (default: all legal)"
    )
    sim.add_argument(
        "--goals",
        nargs="*",
        type=positive,
        metavar="C",
        help="instead: the chosen schedule (or --schedule) beside pairs_m16 on all frames, what it should reach "
        "(default: C = 32 to 512; --frame pr942 or pr942-32371-4.2: shapes of that pull request alone; an hour)",
    )
    sim.add_argument(
        "--read", nargs="+", type=Path, metavar="FILE", help="with --goals: one table of what earlier runs have written"
    )
    sim.add_argument("--frame", metavar="NAME", help="voxel set (default: the ten-sweep frame, or a generated one)")
    sim.add_argument("--schedule", default="auto", metavar="NAME", help="of the gemm (default: the chosen one)")
    sim.add_argument("--channels", type=positive, default=128, metavar="C", help="width (default: %(default)s)")
    sim.add_argument("--dtype", choices=("bf16", "f16", "f32"), default="bf16", help="default: %(default)s")
    sim.add_argument("--threads", type=positive, help="of the simulator (default: SPCONV_NUM_THREADS, then all cores)")
    sim.add_argument("--runs", type=positive, default=3, help="runs behind each median (default: %(default)s)")
    sim.add_argument(
        "--sample", type=positive, default=8, metavar="N", help="watch every N-th workgroup (default: %(default)s)"
    )
    sim.add_argument("--engine", choices=("native", "numpy"), default="native", help="default: %(default)s")
    sim.add_argument("--data", type=Path, metavar="DIR", help="point clouds (default: shared/data beside the checkout)")
    sim.add_argument(
        "--out", type=Path, default=Path("spconv-bench-sim.json"), metavar="FILE.json", help="default: %(default)s"
    )


def _cpu(arguments: argparse.Namespace) -> int:
    if arguments.peer_threads is not None and (arguments.maps or arguments.peer is None):
        raise InputError("--peer-threads is given; accepted: beside --peer spconv, and without --maps")
    if arguments.maps:
        return run_maps(arguments)
    out = check_writable(arguments.out)
    settings = _settings(arguments)
    need_torch("spconv-bench cpu")
    from spconv_compiler.bench.cpu import measure

    with progress_bar(len(settings.frames) * len(settings.channels) + 1) as step:
        result = measure(settings, step)
    text = json.dumps(result, indent=1).encode()
    write_whole(out, lambda file: file.write(text))
    _print(result)
    say(f"results → {out}")
    return 0 if all(row["check"]["ok"] for row in result["rows"]) else FAILURE


def _settings(arguments: argparse.Namespace) -> Settings:
    from spconv_compiler.bench import frames
    from spconv_compiler.bench.cpu import Settings

    data = arguments.data or frames.default_data()
    names = tuple(arguments.frames or frames.default_names(data))
    unknown = [name for name in names if name not in frames.NAMES]
    if unknown:
        raise InputError(f"unknown frame {unknown[0]!r}; accepted: {', '.join(frames.NAMES)}")
    if arguments.quick and not arguments.frames:
        names = (names[0], names[-1])
    return Settings(
        frames=names,
        channels=tuple(arguments.channels or (_QUICK_CHANNELS if arguments.quick else _CHANNELS)),
        dtypes=tuple(dict.fromkeys(arguments.dtypes)),
        runs=arguments.runs or (_QUICK_RUNS if arguments.quick else _RUNS),
        threads=arguments.threads or env.NUM_THREADS.get(),
        data=data,
        shuffle=arguments.shuffle,
        peer=arguments.peer is not None,
        peer_threads=arguments.peer_threads or "both",
        processes=not arguments.no_processes,
    )


def _check_sim(arguments: argparse.Namespace) -> None:
    """Raises InputError where one option would be silently ignored for another."""
    asked = [f"--{name}" for name in ("counters", "maps", "strided") if getattr(arguments, name)]
    asked += ["--schedules"] * (arguments.schedules is not None and arguments.goals is None)
    asked += ["--goals"] * (arguments.goals is not None)
    if len(asked) > 1:
        raise InputError(
            f"{' and '.join(asked)} are given; accepted: one of --counters, --maps, --strided, --schedules, --goals"
        )
    if arguments.goals is not None and arguments.schedules:
        names = " ".join(arguments.schedules)
        raise InputError(f"--goals and --schedules {names} are given; accepted with --goals: --schedule NAME")
    if arguments.read and arguments.goals is None:
        raise InputError("--read is given without --goals; accepted: both")


def _sim(arguments: argparse.Namespace) -> int:
    _check_sim(arguments)
    if arguments.schedules is not None or arguments.goals is not None:
        return run_schedules(arguments)
    from spconv_compiler.bench import frames, sim

    out = check_writable(arguments.out)
    data = arguments.data or frames.default_data()
    if arguments.maps or arguments.strided:
        return run_sim_maps(arguments, data, out)
    settings = sim.Settings(
        frame=arguments.frame or frames.default_names(data)[0],
        channels=arguments.channels,
        dtype=arguments.dtype,
        threads=arguments.threads or env.NUM_THREADS.get(),
        runs=arguments.runs,
        data=data,
        native=arguments.engine == "native",
        counters=arguments.counters,
        sample=arguments.sample,
        schedule=arguments.schedule,
    )
    with progress_bar(sim.steps(settings)) as step:
        result = sim.measure(settings, step)
    text = json.dumps(result, indent=1).encode()
    write_whole(out, lambda file: file.write(text))
    _print_sim(result)
    say(f"results → {out}")
    return 0 if all(result[name]["check"]["ok"] for name in ("checked", "unchecked") if name in result) else FAILURE


def _print_sim(result: dict[str, Any]) -> None:
    from spconv_compiler.bench import sim

    frame, settings = result["frame"], result["settings"]
    say(
        f"{frame['name']}: {frame['N']:,} voxels, {frame['pairs']:,} pairs; C = {settings['channels']}, "
        f"{settings['dtype']}; {settings['threads']} threads of {result['machine']['cpu']}\n"
    )
    print_table(*sim.speed_table(result))
    say()
    for line in sim.notes(result):
        say(line)
    if "launches" in result:
        say("\ncounted, and modelled: no time of gfx950 was measured\n")
        print_table(*sim.counter_table(result["launches"]))
        say()


_COMMANDS = {"cpu": _cpu, "sim": _sim, "scaling": run_scaling, "net": run_net, "gpu": run_gpu, "report": run_report}


def _print(result: dict[str, Any]) -> None:
    from spconv_compiler.bench import cpu_goals, report

    host = result["machine"]
    say(f"{host['cpu']}, {host['level']}, {host['threads']} of {host['cores']} cores, {host['memory_mb']:,} MB")
    say(", ".join(f"{name} {version}" for name, version in result["versions"].items() if version) + "\n")
    columns, cells = report.row_table(result["rows"])
    print_table(columns, cells)
    say("\ntimes in ms, medians; first: compile, map, pack, convolve; built, cached: the kernel map\n")
    for line in report.notes(result):
        say(line)
    found = cpu_goals.goals(result)
    say()
    print_table(*cpu_goals.table(found), left=2)
    say(cpu_goals.summary_line(found))


if __name__ == "__main__":
    sys.exit(main())
