"""`spconv-bench gpu`: convolutions and whole networks on an NVIDIA GPU, beside other libraries in the same run.

    spconv-bench gpu --export gpu-cases                   where the compiler is: frames and kernels into a folder
    spconv-bench gpu --cases gpu-cases --peers spconv     where the GPU is; needs torch, and no compiler

With --net centerpoint spunet both are about whole networks instead of submanifold convolutions. With --calls the second
is about our one layer behind sc.compile alone: where the wall time of a call goes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

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

_CHANNELS = (64, 128, 256, 512)


def add_gpu(commands: Any) -> None:
    """The command's arguments."""
    from spconv_compiler.bench.gpu_contenders import PEERS
    from spconv_compiler.nets.registry import MODELS

    gpu = commands.add_parser("gpu", help="submanifold 3x3x3 convolutions, or networks, on an NVIDIA GPU")
    gpu.add_argument("--net", nargs="+", choices=tuple(MODELS), metavar="NAME", help=f"networks: {', '.join(MODELS)}")
    gpu.add_argument("--calls", action="store_true", help="where the wall time of one compiled layer's call goes")
    gpu.add_argument("--export", type=Path, metavar="DIR", help="write what a run needs to a folder, and run nothing")
    gpu.add_argument("--cases", type=Path, metavar="DIR", help="a folder that --export wrote (default: made now)")
    gpu.add_argument("--peers", nargs="+", choices=tuple(PEERS), default=[], help="measure these in the same rounds")
    gpu.add_argument("--frames", nargs="+", metavar="NAME", help="voxel sets (default: the real ones where present)")
    gpu.add_argument("--channels", nargs="+", type=positive, metavar="C", help=f"widths (default: {_CHANNELS})")
    gpu.add_argument("--dtype", choices=("f16", "bf16"), default="f16", help="of all (default: %(default)s)")
    gpu.add_argument("--runs", type=positive, default=15, help="calls behind each median (default: %(default)s)")
    gpu.add_argument("--data", type=Path, metavar="DIR", help="point clouds (default: shared/data beside the checkout)")
    gpu.add_argument(
        "--out", type=Path, default=Path("spconv-bench-gpu.json"), metavar="FILE.json", help="default: %(default)s"
    )


def run_gpu(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    import tempfile

    need_torch("spconv-bench gpu")
    if arguments.export is None:
        _need_gpu()
    from spconv_compiler.bench import frames, gpu, gpu_net

    data = arguments.data or frames.default_data()
    names = tuple(arguments.frames or frames.default_names(data))
    channels = tuple(arguments.channels or _CHANNELS)

    def export(folder: Path) -> None:
        if arguments.net:
            with progress_bar(len(arguments.net)) as step:
                gpu_net.export_nets(folder, arguments.net, arguments.dtype, data, step)
            return
        with progress_bar(len(names) + len(channels)) as step:
            gpu.export_cases(folder, names, channels, arguments.dtype, data, step)

    if arguments.export is not None:
        export(arguments.export)
        say(f"cases → {arguments.export}")
        return 0
    out = check_writable(arguments.out)
    if arguments.cases is not None:
        return _measure(arguments, arguments.cases, names, channels, out)
    with tempfile.TemporaryDirectory() as folder:
        export(Path(folder))
        return _measure(arguments, Path(folder), names, channels, out)


def _need_gpu() -> None:
    """Checks that torch reaches a GPU, before anything is made for it.

    Raises:
        InputError: it does not.
    """
    import torch

    if not torch.cuda.is_available():
        raise InputError(
            f"spconv-bench gpu measures on an NVIDIA GPU, and torch {torch.__version__} finds none; accepted: a "
            "machine with one, or --export DIR, which writes what a run needs and runs nothing"
        )


def _measure(
    arguments: argparse.Namespace, folder: Path, names: tuple[str, ...], channels: tuple[int, ...], out: Path
) -> int:
    from spconv_compiler.bench import gpu, gpu_report

    if arguments.net:
        return _measure_nets(arguments, folder, out)
    settings = gpu.Settings(folder, names, channels, arguments.dtype, arguments.runs, tuple(arguments.peers))
    if arguments.calls:
        return _measure_calls(settings, out)
    with progress_bar(gpu.steps(settings)) as step:
        result = gpu.measure(settings, step)
    text = json.dumps(result, indent=1).encode()
    write_whole(out, lambda file: file.write(text))
    say(f"{result['gpu']}; " + ", ".join(f"{name} {version}" for name, version in result["versions"].items()) + "\n")
    print_table(*gpu_report.table(result))
    say("\nGPU time: kernels, copies and fills; wall time: from the call to the end of its work; medians\n")
    for line in gpu_report.notes(result):
        say(line)
    say(f"results → {out}")
    ours = [row["contenders"][gpu_report.OURS]["ok"] for row in result["rows"]]
    return 0 if all(ours) else FAILURE


def _measure_calls(settings: Any, out: Path) -> int:
    from spconv_compiler.bench import gpu, gpu_calls

    with progress_bar(gpu.steps(settings)) as step:
        result = gpu_calls.measure(settings, step)
    text = json.dumps(result, indent=1).encode()
    write_whole(out, lambda file: file.write(text))
    print_table(*gpu_calls.table(result))
    say("\nsteps: microseconds from the call's begin until the host is past each\n")
    for line in gpu_calls.notes(result):
        say(line)
    say(f"results → {out}")
    return 0


def _measure_nets(arguments: argparse.Namespace, folder: Path, out: Path) -> int:
    from spconv_compiler.bench import gpu_net

    settings = gpu_net.Settings(folder, tuple(arguments.net), arguments.dtype, arguments.runs, tuple(arguments.peers))
    with progress_bar(len(settings.nets)) as step:
        result = gpu_net.measure(settings, step)
    text = json.dumps(result, indent=1).encode()
    write_whole(out, lambda file: file.write(text))
    say(f"{result['gpu']}; " + ", ".join(f"{name} {version}" for name, version in result["versions"].items()) + "\n")
    print_table(*gpu_net.table(result))
    say("\nvoxels in, result out, all maps built in every call; medians\n")
    for line in gpu_net.notes(result):
        say(line)
    say(f"results → {out}")
    ours = [row["ok"] for row in result["rows"] if row["contestant"] in (gpu_net.OURS, gpu_net.STEPS)]
    return 0 if all(ours) else FAILURE
