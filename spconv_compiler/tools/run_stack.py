"""spconv-run on a stack of submanifold convolutions (nets.stacks): runs, checks and prints layer by layer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from spconv_compiler import nets, reference
from spconv_compiler.io import Voxels
from spconv_compiler.tools.console import FAILURE, count, print_table, progress_bar, say, size
from spconv_compiler.tools.run_files import make_grid, output_path, read_cloud, write_result
from spconv_compiler.tools.run_target import Target

_COLUMNS = ("layer", "N", "pairs", "pairs/N", "C_in→C_out", "ms", "GFLOP/s")
_CHECK_COLUMNS = ("max error", "of bound")


def run(arguments: argparse.Namespace) -> int:
    """Runs the stack `arguments.net`; returns the exit code."""
    net, target = nets.get_net(arguments.net), Target.of(arguments)
    out = output_path(arguments)
    grid = make_grid(arguments, read_cloud(arguments))
    features = nets.standardize(grid.voxels.features)
    say(f"net       {net.name}: {net.description}; seed {arguments.seed}, not trained")
    target.prepare()
    runs, checks = list[nets.LayerRun](), list[reference.Comparison]()
    oracle = _Oracle(grid.voxels)
    with progress_bar(len(net.layers) * (3 if arguments.check else 2)) as step:
        for one in nets.run_net(
            net,
            grid.voxels.coords,
            features,
            dtype=arguments.dtype,
            target=target.name,
            seed=arguments.seed,
            repeats=arguments.repeats,
            progress=step,
        ):
            runs.append(one)
            if arguments.check:
                step(f"checking {one.layer.name}")
                checks.append(oracle.compare(one, arguments.dtype))
    # Before anything that a closed pipe can cut short.
    written = None if out is None else write_result(out, arguments, grid, {"features": runs[-1].out})
    say(
        f"kernels   {arguments.dtype} for {target}; "
        f"ready in {sum(one.compile_ms for one in runs):.0f} ms, maps in {sum(one.map_ms for one in runs):.1f} ms\n"
    )
    _print_layers(runs, checks)
    say(f"\nms{target.clock}: median of {count(arguments.repeats, 'run')}, kernel map and packed weights cached")
    if written is not None:
        rows, channels = runs[-1].out.shape
        say(f"features  [{rows}, {channels}] → {out} ({size(written)})")
    return _verdict(runs, checks) if arguments.check else 0


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
