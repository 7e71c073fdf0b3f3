"""spconv-run: a point cloud file through a sparse convolution network, features out.

    spconv-run scan.pcd.bin                        presets, voxel size and network have defaults
    spconv-run scan.bin --preset kitti --net second-stage1 --dtype bf16
    spconv-run --demo --check                      a generated scan, every layer compared with the reference

Networks are untrained stacks (nets.py). Exit codes: 0 done, 1 failed (input, compiler, --check), 2 usage.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from spconv_compiler import env, nets, reference
from spconv_compiler.driver import thread_count
from spconv_compiler.errors import InputError
from spconv_compiler.io import PRESETS, PointCloud, Voxels, demo_scan, get_preset, read_points, voxelize
from spconv_compiler.options import DTYPES
from spconv_compiler.targets import CpuTarget, GpuTarget, get_target
from spconv_compiler.tools.console import (
    FAILURE,
    USAGE,
    check_writable,
    count,
    guarded,
    positive,
    print_table,
    progress_bar,
    say,
    size,
    write_whole,
)

_DEFAULT_VOXEL = 0.1
_COLUMNS = ("layer", "N", "pairs", "pairs/N", "C_in→C_out", "ms", "GFLOP/s")
_CHECK_COLUMNS = ("max error", "of bound")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: the program's) and returns the exit code."""
    try:
        arguments = _parse(argv)
    except SystemExit as stop:  # argparse has printed its message
        return stop.code if isinstance(stop.code, int) else USAGE
    return guarded("spconv-run", lambda: _list_nets() if arguments.list_nets else _run(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spconv-run",
        description="Voxelises a point cloud and runs a submanifold convolution network on it.",
        epilog="The network is not trained: its weights come from --seed.",
    )
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help=".bin, .pcd.bin, .npy or .npz")
    parser.add_argument("--demo", action="store_true", help="run on a generated street scan instead of a file")
    parser.add_argument("--beams", type=positive, default=64, help="beams of the --demo scan (default: 64)")
    grid = parser.add_argument_group("voxels")
    grid.add_argument("--preset", choices=tuple(PRESETS), help="voxel size and range of a data set")
    grid.add_argument(
        "--voxel-size", nargs="+", metavar="METRES", help=f"one length, or x y z (default: {_DEFAULT_VOXEL})"
    )
    grid.add_argument(
        "--range", nargs=6, type=float, metavar=("X0", "Y0", "Z0", "X1", "Y1", "Z1"), help="metres; drop points outside"
    )
    layout = parser.add_argument_group("files whose name does not say how they are laid out")
    layout.add_argument("--columns", type=positive, help="values a point in a raw file (.bin: 4, .pcd.bin: 5)")
    layout.add_argument("--raw-dtype", choices=("float16", "float32", "float64"), help="type of a raw file's values")
    layout.add_argument("--key", help="array of an .npz file")
    network = parser.add_argument_group("network")
    network.add_argument("--net", choices=tuple(nets.NETS), default=nets.DEFAULT_NET, help="which (see --list-nets)")
    network.add_argument("--list-nets", action="store_true", help="print the networks and stop")
    network.add_argument("--dtype", choices=DTYPES, default="f32", help="of features and weights (default: f32)")
    network.add_argument(
        "--target", help="cpu, auto, gfx950, gfx950-sim or an x86-64 level (default: SPCONV_TARGET, then auto)"
    )
    network.add_argument("--seed", type=_seed, default=0, help="of the weights and the --demo scan (default: 0)")
    network.add_argument(
        "--threads", type=positive, help="of the kernels (default: SPCONV_NUM_THREADS, then all cores)"
    )
    network.add_argument(
        "--repeats", type=positive, default=5, help="timed runs a layer; ms is the median (default: 5)"
    )
    network.add_argument("--check", action="store_true", help="compare every layer with the numpy reference (slow)")
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
    return arguments


def _run(arguments: argparse.Namespace) -> int:
    if arguments.threads is not None:
        env.NUM_THREADS.set(str(arguments.threads))
    net, target = nets.get_net(arguments.net), get_target(arguments.target or env.TARGET.get())
    out = None if arguments.no_output else _output(arguments)
    cloud = _cloud(arguments)
    grid = _voxelize(arguments, cloud)
    features = nets.standardize(grid.voxels.features)
    say(f"net       {net.name}: {net.description}; seed {arguments.seed}, not trained")
    simulated = isinstance(target, GpuTarget) and target.simulated
    if simulated:
        _prepare_simulator()
    runs, checks = list[nets.LayerRun](), list[reference.Comparison]()
    oracle = _Oracle(grid.voxels)
    with progress_bar(len(net.layers) * (3 if arguments.check else 2)) as step:
        for run in nets.run_net(
            net,
            grid.voxels.coords,
            features,
            dtype=arguments.dtype,
            target=target.name,
            seed=arguments.seed,
            repeats=arguments.repeats,
            progress=step,
        ):
            runs.append(run)
            if arguments.check:
                step(f"checking {run.layer.name}")
                checks.append(oracle.compare(run, arguments.dtype))
    # Before anything that a closed pipe can cut short.
    written = None if out is None else _write(out, arguments, grid, runs[-1].out)
    place = f", {count(thread_count(), 'thread')}" if isinstance(target, CpuTarget) else ""
    say(
        f"kernels   {arguments.dtype} for {target.name}{place}; "
        f"ready in {sum(run.compile_ms for run in runs):.0f} ms, maps in {sum(run.map_ms for run in runs):.1f} ms\n"
    )
    _print_layers(runs, checks)
    clock = " of the simulator on this host, not of a GPU" if simulated else ""
    say(f"\nms{clock}: median of {count(arguments.repeats, 'run')}, kernel map and packed weights cached")
    if written is not None:
        rows, channels = runs[-1].out.shape
        say(f"features  [{rows}, {channels}] → {out} ({size(written)})")
    return _verdict(runs, checks) if arguments.check else 0


def _prepare_simulator() -> None:
    """Builds what the simulator needs once on a machine, under a bar of its own."""
    from spconv_compiler.runtime.sim import prepare

    with contextlib.ExitStack() as stack:
        prepare(lambda steps: stack.enter_context(progress_bar(steps)))


def _cloud(arguments: argparse.Namespace) -> PointCloud:
    if arguments.demo:
        cloud = demo_scan(arguments.seed, arguments.beams)
    else:
        columns = arguments.columns
        name = arguments.file.name.lower()
        # A preset knows its data set's files better than the bare suffix does; .pcd.bin names its own.
        if columns is None and arguments.preset and name.endswith(".bin") and not name.endswith(".pcd.bin"):
            known = get_preset(arguments.preset).columns
            columns = known if known != 4 else None
        try:
            cloud = read_points(arguments.file, columns=columns, dtype=arguments.raw_dtype, key=arguments.key)
        except InputError as error:
            # The reader speaks of its arguments; say what they are called here.
            hints = {"columns=": "--columns", "dtype=": "--raw-dtype", "key=": "--key"}
            named = [option for argument, option in hints.items() if argument in str(error)]
            raise InputError(f"{error} (options: {', '.join(named)})" if named else str(error)) from error
    lost = f", {count(cloud.dropped, 'row')} with NaN or infinite x, y, z dropped" if cloud.dropped else ""
    say(f"points    {len(cloud):,} from {_source(arguments)} ({cloud.source_format}){lost}")
    return cloud


def _source(arguments: argparse.Namespace) -> str:
    return "the demo" if arguments.demo else str(arguments.file)


@dataclass(frozen=True, eq=False)
class _Grid:
    """Voxels and the edge lengths they were made with, metres, (x, y, z)."""

    voxels: Voxels
    voxel_size: tuple[float, ...]


def _voxelize(arguments: argparse.Namespace, cloud: PointCloud) -> _Grid:
    name = arguments.preset
    if name is None and arguments.voxel_size is None and str(arguments.file or "").lower().endswith(".pcd.bin"):
        name = "nuscenes"
    preset = None if name is None else get_preset(name)
    lengths = arguments.voxel_size or (preset.voxel_size if preset else (_DEFAULT_VOXEL,))
    lengths = lengths * 3 if len(lengths) == 1 else lengths
    box = arguments.range or (preset.point_range if preset else None)
    voxels = voxelize(cloud.xyz, cloud.features, lengths, box)
    if len(voxels) == 0:
        raise InputError(f"{_source(arguments)}: no voxel: {_why_empty(cloud, box)}")
    say(
        f"voxels    {len(voxels):,} of {' x '.join(f'{length:g}' for length in lengths)} m"
        f"{f' (preset {name})' if name else ''}, grid {' x '.join(map(str, voxels.spatial_shape))} (z, y, x)"
        f"{_losses(voxels)}; {count(voxels.features.shape[1], 'feature')}, standardised"
    )
    return _Grid(voxels, lengths)


def _losses(voxels: Voxels) -> str:
    odd = int((~np.isfinite(voxels.features)).any(axis=1).sum())
    outside = f", {count(voxels.dropped, 'point')} out of range" if voxels.dropped else ""
    return outside + (f", {odd:,} with NaN or infinite features" if odd else "")


def _why_empty(cloud: PointCloud, box: Sequence[float] | None) -> str:
    if len(cloud) == 0:
        return "no point has finite x, y, z"
    low, high = cloud.xyz.min(axis=0), cloud.xyz.max(axis=0)
    extents = ", ".join(f"{axis} {a:g}..{b:g}" for axis, a, b in zip("xyz", low, high, strict=True))
    return f"its points span {extents} m, all outside the range {tuple(box or ())}; give --range or another --preset"


@dataclass(eq=False)
class _Oracle:
    """The reference for one set of voxels; neighbour tables are shared by layers of one geometry."""

    voxels: Voxels
    _tables: dict[tuple[tuple[int, ...], tuple[int, ...]], reference.Rows] = field(default_factory=dict)

    def compare(self, run: nets.LayerRun, dtype: str) -> reference.Comparison:
        """A layer against the reference on the same input."""
        layer, given = run.layer, run.parameters
        geometry = (layer.kernel_size, layer.dilation)
        if geometry not in self._tables:
            self._tables[geometry] = reference.kernel_map(self.voxels.coords, *geometry)
        table = self._tables[geometry]
        expected = reference.subm_conv3d(self.voxels.coords, run.features, given.weight, given.bias, table=table)
        if layer.activation == "relu":
            expected = np.maximum(expected, 0.0)
        bound = reference.error_bound(run.features, given.weight, table, dtype, given.bias)
        return reference.compare(run.out, expected, bound)


def _print_layers(runs: Sequence[nets.LayerRun], checks: Sequence[reference.Comparison]) -> None:
    rows = []
    for index, run in enumerate(runs):
        row = [run.layer.name, f"{run.rows:,}", f"{run.pairs:,}", f"{run.pairs_per_row:.2f}"]
        row += [f"{run.c_in}→{run.layer.c_out}", f"{run.ms:.2f}", f"{run.gflops:.1f}"]
        if checks:
            row += [f"{checks[index].max_error:.2e}", f"{100 * checks[index].max_ratio:.1f} %"]
        rows.append(row)
    total = sum(run.ms for run in runs)
    flops = sum(run.flops for run in runs)
    rows.append(["total", "", "", "", "", f"{total:.2f}", f"{flops / total / 1e6 if total else 0.0:.1f}"])
    rows[-1] += ["", ""] if checks else []
    print_table(_COLUMNS + (_CHECK_COLUMNS if checks else ()), rows)


def _verdict(runs: Sequence[nets.LayerRun], checks: Sequence[reference.Comparison]) -> int:
    failed = [(run, check) for run, check in zip(runs, checks, strict=True) if not check.ok]
    if not failed:
        say(f"check     {count(len(checks), 'layer')} within the error bound of the reference")
        return 0
    for run, check in failed:
        print(
            f"spconv-run: check failed: {run.layer.name}: {count(check.bad, 'element')} beyond the bound, the worst at "
            f"(row, channel) {check.worst}: {check.max_ratio:.3g} times the bound",
            file=sys.stderr,
        )
    return FAILURE


def _output(arguments: argparse.Namespace) -> Path:
    """Where the features go; refuses what cannot be written before any work is done."""
    out = arguments.out
    if out is None:
        name = "demo" if arguments.demo else arguments.file.name
        for suffix in (".npz", ".npy", ".bin", ".pcd"):
            name = name.removesuffix(suffix)
        out = Path(f"{name}-features.npz")
    real = check_writable(out)
    if arguments.file is not None and arguments.file.exists() and real.exists() and real.samefile(arguments.file):
        raise InputError(f"{out}: is the input; it is not overwritten")
    return real


def _write(out: Path, arguments: argparse.Namespace, grid: _Grid, features: Any) -> int:
    """Writes the .npz and returns its size.

    bf16 features are stored as float32, which holds them exactly: numpy has no bfloat16.
    """
    arrays: dict[str, Any] = {
        "features": features if isinstance(features, np.ndarray) else reference.to_numpy(features),
        "coords": grid.voxels.coords,
        "points_per_voxel": grid.voxels.points_per_voxel,
        "spatial_shape": np.array(grid.voxels.spatial_shape, np.int64),
        "voxel_size": np.array(grid.voxel_size, np.float64),
        "origin": np.array(grid.voxels.origin, np.float64),
        "net": np.array(arguments.net),
        "dtype": np.array(arguments.dtype),
        "seed": np.array(arguments.seed, np.int64),
    }
    return write_whole(out, lambda file: np.savez(file, **arrays))


def _list_nets() -> int:
    for net in nets.NETS.values():
        say(f"{net.name}{' (default)' if net.name == nets.DEFAULT_NET else ''}: {net.description}")
        outs = ["F", *(str(layer.c_out) for layer in net.layers)]
        for layer, c_in in zip(net.layers, outs, strict=False):
            kernel = "x".join(map(str, layer.kernel_size))
            extras = (["bias"] if layer.bias else []) + ([layer.activation] if layer.activation != "none" else [])
            say(f"    {layer.name}: {kernel}, {c_in}→{layer.c_out}{''.join(f', {extra}' for extra in extras)}")
    return 0


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}; accepted: a whole number, at least 0")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
