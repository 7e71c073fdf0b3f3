"""spconv-run: a point cloud file through a sparse convolution network, features out.

    spconv-run scan.pcd.bin                        presets, voxel size and network have defaults
    spconv-run scan.bin --preset kitti --net second-stage1 --dtype bf16
    spconv-run --demo --check                      a generated scan, every layer compared with the reference
    spconv-run scan.pcd.bin --net centerpoint      a whole network, every convolution of it in a table
    spconv-run scan.bin --net reno --weights ckpt.pt --pos-q 64,16
                                                   a trained network: the bits that the scan is compressed to

Networks are stacks (run_stack.py), torch modules (run_model.py) and RENO (run_reno.py). Exit codes: 0 done, 1 failed
(input, compiler, --check), 2 usage.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from spconv_compiler import env, nets
from spconv_compiler.io import PRESETS
from spconv_compiler.nets.registry import MODELS
from spconv_compiler.nets.reno_pyramid import POS_Q
from spconv_compiler.options import DTYPES
from spconv_compiler.tools.console import guarded, positive, say
from spconv_compiler.tools.run_files import DEFAULT_VOXEL

_RENO = "reno"
_RENO_TEXT = "RENO, which compresses a scan (CVPR 2025); trained, needs --weights; prints bits"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: the program's) and returns the exit code."""
    return guarded("spconv-run", lambda: _run(_parse(argv)))


def _run(arguments: argparse.Namespace) -> int:
    if arguments.list_nets:
        return _list_nets()
    if arguments.threads is not None:
        env.NUM_THREADS.set(str(arguments.threads))
    mode = "run_reno" if arguments.net == _RENO else "run_model" if arguments.net in MODELS else "run_stack"
    code: int = importlib.import_module(f"spconv_compiler.tools.{mode}").run(arguments)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spconv-run",
        description="Voxelises a point cloud and runs a sparse convolution network on it.",
        epilog="Without --weights the network is not trained: its weights come from --seed.",
    )
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="points: .bin, .pcd.bin, .npy or .npz")
    parser.add_argument("--demo", action="store_true", help="run on a generated street scan instead of a file")
    parser.add_argument("--beams", type=positive, default=64, help="beams of the --demo scan (default: 64)")
    grid = parser.add_argument_group("voxels")
    grid.add_argument("--preset", choices=tuple(PRESETS), help="voxel size and range of a data set")
    grid.add_argument(
        "--voxel-size", nargs="+", metavar="METRES", help=f"one length, or x y z (default: {DEFAULT_VOXEL})"
    )
    grid.add_argument(
        "--range", nargs=6, type=float, metavar=("X0", "Y0", "Z0", "X1", "Y1", "Z1"), help="metres; drop points outside"
    )
    layout = parser.add_argument_group("files whose name does not say how they are laid out")
    layout.add_argument("--columns", type=positive, help="values a point in a raw file (.bin: 4, .pcd.bin: 5)")
    layout.add_argument("--raw-dtype", choices=("float16", "float32", "float64"), help="type of a raw file's values")
    layout.add_argument("--key", help="array of an .npz file that holds the points")
    network = parser.add_argument_group("network")
    network.add_argument(
        "--net", choices=(*nets.NETS, *MODELS, _RENO), default=nets.DEFAULT_NET, help="which (see --list-nets)"
    )
    network.add_argument("--list-nets", action="store_true", help="print the networks and stop")
    network.add_argument("--weights", type=Path, metavar="FILE.pt", help="a checkpoint that torch.save wrote")
    network.add_argument(
        "--pos-q",
        type=_depths,
        default=POS_Q,
        metavar="Q[,Q…]",
        help=f"reno: edges of a voxel in millimetres (default: {','.join(map(str, POS_Q))})",
    )
    network.add_argument("--dtype", choices=DTYPES, default="f32", help="of features and weights (default: f32)")
    network.add_argument(
        "--target", help="cpu, auto, gfx950, gfx950-sim, sm_90 or an x86-64 level (default: SPCONV_TARGET, then auto)"
    )
    network.add_argument("--seed", type=_seed, default=0, help="of the weights and the --demo scan (default: 0)")
    network.add_argument(
        "--threads", type=positive, help="of the kernels (default: SPCONV_NUM_THREADS, then all cores)"
    )
    network.add_argument(
        "--repeats", type=positive, default=5, help="timed runs a layer; ms is the median (default: 5)"
    )
    network.add_argument("--check", action="store_true", help="compare with the numpy reference (slow)")
    output = parser.add_mutually_exclusive_group()
    output.add_argument(
        "--out", type=Path, metavar="FILE.npz", help="where features go (default: STEM-features.npz in this folder)"
    )
    output.add_argument("--no-output", action="store_true", help="do not write the features")
    return parser


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    arguments = parser.parse_args(argv)
    lengths = arguments.voxel_size or []
    # `--voxel-size 0.1 FILE`: argparse gives the option all that follows.
    if len(lengths) in (2, 4) and arguments.file is None and not _is_number(lengths[-1]):
        arguments.file = Path(lengths.pop())
    if lengths and (len(lengths) not in (1, 3) or not all(map(_is_number, lengths))):
        parser.error(f"argument --voxel-size: {' '.join(lengths)!r}; accepted: one number, or three (x y z)")
    arguments.voxel_size = tuple(map(float, lengths)) or None
    if not arguments.list_nets and arguments.demo == (arguments.file is not None):
        parser.error("accepted: either FILE or --demo")
    if arguments.out is not None and arguments.out.suffix != ".npz":
        parser.error(f"argument --out: {str(arguments.out)!r}; accepted: a name that ends in .npz")
    if not arguments.list_nets:
        _check_weights(parser, arguments)
    return arguments


def _check_weights(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if arguments.weights is not None and arguments.net in nets.NETS:
        parser.error(f"argument --weights: {arguments.net} has none; accepted with --net {', '.join((*MODELS, _RENO))}")
    if arguments.net != _RENO:
        return
    if arguments.weights is None:
        parser.error("--net reno needs --weights: it is a trained network")
    if arguments.out is not None:
        parser.error("argument --out: --net reno makes bits and writes no features")


def _list_nets() -> int:
    for net in nets.NETS.values():
        say(f"{net.name}{' (default)' if net.name == nets.DEFAULT_NET else ''}: {net.description}")
        outs = ["F", *(str(layer.c_out) for layer in net.layers)]
        for layer, c_in in zip(net.layers, outs, strict=False):
            kernel = "x".join(map(str, layer.kernel_size))
            extras = (["bias"] if layer.bias else []) + ([layer.activation] if layer.activation != "none" else [])
            say(f"    {layer.name}: {kernel}, {c_in}→{layer.c_out}{''.join(f', {extra}' for extra in extras)}")
    for spec in MODELS.values():
        say(f"{spec.name}: {spec.description}; {spec.convolutions} convolutions, preset {spec.preset}")
    say(f"{_RENO}: {_RENO_TEXT}")
    return 0


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _depths(text: str) -> tuple[int, ...]:
    return tuple(positive(part) for part in text.split(","))


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}; accepted: a whole number, at least 0")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
