"""The launches of a gemm with schedule `small_channels`: as a rule one, from features to finished rows."""

from __future__ import annotations

from collections.abc import Mapping

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import GemmOp
from spconv_compiler.dialect.plan import launch, symbol
from spconv_compiler.dialect.types import element_type
from spconv_compiler.passes.gpu.gemm_output_stationary import Ends, rows_around
from spconv_compiler.passes.gpu.limits import require
from spconv_compiler.passes.gpu.row_masks import BLOCK_ROWS
from spconv_compiler.passes.gpu.small_channels import SmallChannelsKernel, SmallGeometry, TapPanels
from spconv_compiler.passes.gpu.sorted_tiles import blocks
from spconv_compiler.passes.kernel_builder import bits, i32
from spconv_compiler.passes.kernel_module import buffers_of, gpu_kernel
from spconv_compiler.targets import GpuTarget, MmaShape

WEIGHT_PARAMETERS = ("tile_n", "mma_n", "chunk_k", "groups")
PARAMETERS = ("block_rows", "waves", "fragments", *WEIGHT_PARAMETERS)


def tap_panels(taps: int, c_in: int, c_out: int, values: Mapping[str, int]) -> TapPanels:
    """The layout that parameters of a weights or gemm schedule ask for."""
    return TapPanels(taps, c_in, c_out, *(values[name] for name in WEIGHT_PARAMETERS))


def misfits(mma: MmaShape, target: GpuTarget, values: Mapping[str, int]) -> list[str]:
    """What is wrong with the parameters of a schedule for this matrix instruction."""
    held, _ = mma.lane_elements(target.wave)
    rows = values["waves"] * values["fragments"] * mma.m
    rules = {
        f"mma_n is the instruction's {mma.n}": values["mma_n"] == mma.n,
        "tile_n is a multiple of mma_n": values["tile_n"] % values["mma_n"] == 0,
        f"chunk_k is a multiple of the {held} that a lane holds": values["chunk_k"] % held == 0,
        f"groups is {target.wave // mma.n}": values["groups"] == target.wave // mma.n,
        f"block_rows is a multiple of {rows}": values["block_rows"] == BLOCK_ROWS and BLOCK_ROWS % rows == 0,
    }
    return [rule for rule, kept in rules.items() if not kept]


def rewrite_small_channels(
    op: GemmOp, mma: MmaShape, module: ir.Module, target: GpuTarget, values: Mapping[str, int]
) -> list[ir.Value]:
    """The gemm of an op whose parameters fit and whose init is a fill."""
    moved = element_type(op.weight.type)
    panels = tap_panels(op.taps, op.c_in, op.c_out, values)
    geometry = SmallGeometry(panels, (mma.m, mma.n, mma.k), target.wave, values["waves"], values["fragments"])
    in_bytes = op.c_in * bits(moved) // 8
    limit = target.buffer_limit_bytes - 2 * in_bytes
    reads, writes = rows_around(op)
    require(op, f"bytes of features of {op.c_in} channels", f"{reads} * {in_bytes}", limit)
    order, table, *_ = buffers_of(op.pairs)
    (features,), (packed,) = buffers_of(op.features), buffers_of(op.weight)
    ends = Ends(op, module, target)
    arguments = [features, packed, table, order, *ends.buffers]
    kernel = gpu_kernel(
        module,
        f"gemm_small_channels_{moved}_t{op.taps}_{op.c_in}x{op.c_out}_{panels.name}"
        f"_w{geometry.waves}x{geometry.fragments}_{ends.name}",
        [buffer.type for buffer in arguments] + [i32()] * 2,
        geometry.lanes,
        SmallChannelsKernel(geometry, ends.finish),
    )
    grid = [f"{blocks(writes)} * {BLOCK_ROWS // geometry.rows}", str(geometry.slices)]
    numbers = [symbol(reads, i32()), symbol(writes, i32())]
    launch(kernel, [*arguments, *numbers], group="output", grid=grid, block=geometry.lanes)
    return ends.result()
