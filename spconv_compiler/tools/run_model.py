"""spconv-run on a torch network (nets.registry): every convolution in a table, the result in a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spconv_compiler import nets
from spconv_compiler.io import Voxels
from spconv_compiler.nets.registry import TOLERANCES, get_model, make_model
from spconv_compiler.tools.console import (
    FAILURE,
    count,
    need_torch,
    print_table,
    progress_bar,
    say,
    size,
)
from spconv_compiler.tools.run_files import make_grid, output_path, read_cloud, write_result
from spconv_compiler.tools.run_target import Target

if TYPE_CHECKING:
    from spconv_compiler.nets.measure import ConvRun

_COLUMNS = ("layer", "kind", "kernel", "N", "pairs", "pairs/N", "C_in→C_out", "ms", "GFLOP/s")


def run(arguments: argparse.Namespace) -> int:
    """Runs the network `arguments.net`; returns the exit code."""
    need_torch(f"--net {arguments.net}")
    import torch

    from spconv_compiler import pytorch as spconv
    from spconv_compiler.nets.measure import run_model
    from spconv_compiler.pytorch.target import use_target

    spec, target = get_model(arguments.net), Target.of(arguments)
    out = output_path(arguments)
    grid = make_grid(arguments, read_cloud(arguments, spec.preset), spec.preset)
    voxels = grid.voxels
    features = nets.standardize(voxels.features) if arguments.weights is None else voxels.features
    origin = f"seed {arguments.seed}, not trained" if arguments.weights is None else f"weights {arguments.weights}"
    say(f"net       {spec.name}: {spec.description}; {origin}")
    channels, weights = features.shape[1], arguments.weights
    model = make_model(spec, spconv, channels, voxels.spatial_shape, seed=arguments.seed, weights=weights)
    inputs = nets.to_dtype(features, arguments.dtype)
    inputs = inputs if isinstance(inputs, torch.Tensor) else torch.from_numpy(inputs)
    target.prepare()
    with progress_bar(1) as step, use_target(target.name):
        step(f"{spec.convolutions} convolutions, {arguments.dtype}")
        done = run_model(model.to(inputs.dtype), inputs, torch.from_numpy(voxels.coords), repeats=arguments.repeats)
    # Before anything that a closed pipe can cut short.
    written = None if out is None else write_result(out, arguments, grid, {"out": done.out})
    say(f"kernels   {arguments.dtype} for {target}; first run {done.first_ms:.0f} ms\n")
    _print_convs(done.convs)
    say(
        f"\nwhole network {done.fresh_ms:.1f} ms with all maps built, {done.kept_ms:.1f} ms with the maps kept"
        f"\nms{target.clock}: median of {count(arguments.repeats, 'run')}; in the table with the maps kept"
    )
    if written is not None:
        say(f"out       {list(done.out.shape)} → {out} ({size(written)})")
    return _check(done.out, features, voxels, arguments) if arguments.check else 0


def _check(out: Any, features: Any, voxels: Voxels, arguments: argparse.Namespace) -> int:
    """Runs the same parameters in f32 through plain numpy layers and compares results."""
    import torch

    from spconv_compiler.nets import plain
    from spconv_compiler.nets.measure import relative_l2

    spec, limit = get_model(arguments.net), TOLERANCES[arguments.dtype]
    options = {"seed": arguments.seed, "weights": arguments.weights}
    exact = make_model(spec, plain, features.shape[1], voxels.spatial_shape, **options)
    with torch.no_grad():
        off = relative_l2(out, exact(torch.from_numpy(features), torch.from_numpy(voxels.coords)))
    say(f"check     relative L2 distance {off:.2e} from plain layers in f32; accepted: {limit:g}")
    if not off <= limit:
        print(f"spconv-run: check failed: {spec.name}: {off:.2e} from plain layers in f32", file=sys.stderr)
        return FAILURE
    return 0


def _print_convs(convs: Sequence[ConvRun]) -> None:
    rows = []
    for conv in convs:
        row = [conv.name, conv.kind, "x".join(map(str, conv.kernel)), f"{conv.rows:,}", f"{conv.pairs:,}"]
        row += [f"{conv.pairs / conv.rows if conv.rows else 0.0:.2f}", f"{conv.c_in}→{conv.c_out}"]
        rows.append([*row, f"{conv.ms:.2f}", _rate(conv.flops, conv.ms)])
    ms, flops = sum(conv.ms for conv in convs), sum(conv.flops for conv in convs)
    pairs = sum(conv.pairs for conv in convs)
    rows.append(["convolutions", "", "", "", f"{pairs:,}", "", "", f"{ms:.2f}", _rate(flops, ms)])
    print_table(_COLUMNS, rows, left=3)


def _rate(flops: int, ms: float) -> str:
    return f"{flops / ms / 1e6 if ms > 0.0 else 0.0:.1f}"
