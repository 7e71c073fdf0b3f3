"""spconv-run on RENO: how many bits a scan is compressed to, depth by depth."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from spconv_compiler.tools.console import (
    FAILURE,
    need_torch,
    print_table,
    progress_bar,
    say,
)
from spconv_compiler.tools.run_files import read_cloud
from spconv_compiler.tools.run_target import Target

if TYPE_CHECKING:
    from torch import Tensor

    from spconv_compiler.nets.reno import LevelBits
    from spconv_compiler.nets.reno_pyramid import Level

_COLUMNS = ("posQ", "levels", "voxels coded", "finest coded", "bits", "bits/point", "ms")
_LEVEL_COLUMNS = ("level", "N", "low bits", "high bits", "bits/voxel", "ms")
# Bits that a dtype may differ from f32 of the plain reference, as a part of them.
_TOLERANCE = {"f32": 1e-4, "bf16": 1.5e-3, "f16": 1e-3}


def run(arguments: argparse.Namespace) -> int:
    """Codes the cloud at every depth of --pos-q; returns the exit code."""
    need_torch("--net reno")
    from spconv_compiler.nets.reno import Reno, file_bits, load_checkpoint
    from spconv_compiler.nets.reno_pyramid import pyramid, quantize

    target = Target.of(arguments)
    tensors = load_checkpoint(arguments.weights)
    cloud = read_cloud(arguments)
    say(f"net       reno: weights {arguments.weights}")
    target.prepare()
    net = Reno(tensors, dtype=arguments.dtype, target=target.name)
    pyramids = {step: pyramid(quantize(cloud.xyz, step)) for step in arguments.pos_q}
    coded: dict[int, list[LevelBits]] = {step: [] for step in pyramids}
    with progress_bar(sum(len(levels) - 2 for levels in pyramids.values())) as progress:
        for step, levels in pyramids.items():
            coder = net.code(levels)
            for level in levels[1:-1]:
                progress(f"posQ {step}: {len(level):,} voxels")
                coded[step].append(next(coder))
    say(f"kernels   {arguments.dtype} for {target}\n")
    bits = {step: file_bits(levels, coded[step]) for step, levels in pyramids.items()}
    rows = []
    for step, found in coded.items():
        row = [str(step), str(len(found)), f"{sum(level.voxels for level in found):,}"]
        row += [f"{found[-1].voxels:,}" if found else "0", f"{bits[step]:,}", f"{bits[step] / len(cloud):.4f}"]
        rows.append([*row, f"{sum(level.ms for level in found):.1f}"])
    print_table(_COLUMNS, rows)
    if len(coded) == 1:
        say()
        _print_levels(next(iter(coded.values())))
    say(f"\nms{target.clock}: one run, kernel maps included, kernels of the first level compiled or loaded")
    return _check(pyramids, bits, tensors, arguments.dtype) if arguments.check else 0


def _print_levels(coded: Sequence[LevelBits]) -> None:
    rows = []
    for level in coded:
        low, high = level.streams
        row = [str(level.depth), f"{level.voxels:,}", f"{low:,.1f}", f"{high:,.1f}"]
        rows.append([*row, f"{level.bits / level.voxels:.3f}", f"{level.ms:.1f}"])
    print_table(_LEVEL_COLUMNS, rows)


def _check(pyramids: dict[int, list[Level]], bits: dict[int, int], tensors: Mapping[str, Tensor], dtype: str) -> int:
    """Codes again with the plain convolution in f32 and compares bits."""
    from spconv_compiler.nets.reno import Reno, file_bits
    from spconv_compiler.nets.reno_reference import plain_convolution

    reference = Reno(tensors, convolve=plain_convolution())
    code = 0
    for step, levels in pyramids.items():
        expected = file_bits(levels, list(reference.code(levels)))
        off = bits[step] / expected - 1.0
        say(f"check     posQ {step}: {off:+.4%} of the {expected:,} bits of the f32 reference")
        if abs(off) > _TOLERANCE[dtype]:
            limit = _TOLERANCE[dtype]
            print(f"spconv-run: check failed: posQ {step}: {off:+.4%}; accepted: {limit:.2%}", file=sys.stderr)
            code = FAILURE
    return code
