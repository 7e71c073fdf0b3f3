"""The launch of a gemm with schedule `wgmma_rows`, and of its weights.

Before:
    %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"weight_images", {columns = …, block_k = …}>}
    %out = "spconv.gemm"(%pairs, %features, %packed, %fill) {schedule = #spconv.schedule<"wgmma_rows", …>}
After:
    "spconv.launch"(%weight, %images)                {kernel = @kernels::@weight_images…, group = "weights"}
    "spconv.launch"(%features, %wide, rows)          {kernel = @kernels::@widen_rows…}, where channels fill no chunks
    "spconv.launch"(%wide, %images, %table, %steps, …, %out, rows)   {kernel = @kernels::@gemm_wgmma_rows…}
"""

from __future__ import annotations

from collections.abc import Mapping

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import FillOp, GemmOp, PackWeightOp
from spconv_compiler.dialect.plan import alloc, launch, symbol
from spconv_compiler.dialect.rules import element
from spconv_compiler.dialect.types import buffer_type, element_type
from spconv_compiler.passes.gpu.epilogue import finish
from spconv_compiler.passes.gpu.lanes import load, plus, store, times
from spconv_compiler.passes.gpu.limits import require
from spconv_compiler.passes.gpu.row_masks import BLOCK_ROWS
from spconv_compiler.passes.gpu.sorted_tiles import blocks
from spconv_compiler.passes.gpu.warpgroup import declare_dynamic_shared
from spconv_compiler.passes.gpu.weight_images import RUN, Images, pack_images, widen_rows
from spconv_compiler.passes.gpu.wgmma_rows import Finish, WgmmaRows
from spconv_compiler.passes.kernel_builder import V, bits, i32
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage, gpu_kernel, kernel_module, noted, rows_of
from spconv_compiler.targets import GpuTarget

PARAMETERS = ("columns", "block_k", "groups", "stages", "blocks_per_unit")
IMAGE_PARAMETERS = ("columns", "block_k")
# Names in a kernel module: of dynamic shared memory, and of the attribute that says how much a launch asks for.
SHARED = "dynamic_shared"
SHARED_BYTES = "spconv.dynamic_shared"
_LANES = 256


def rewrite_images(op: PackWeightOp, module: ir.Module, values: Mapping[str, int]) -> list[ir.Value]:
    """The weights as images of shared memory."""
    (weight,) = buffers_of(op.weight)
    moved = element_type(op.operation.results[0].type)
    images = images_of(op, values)
    packed = alloc("packed", moved, str(images.elements))
    name = f"weight_images_{moved}_t{op.taps}_{op.c_in}x{op.c_out}_{images.name}"
    types = [buffer_type(moved)] * 2
    kernel = gpu_kernel(module, name, types, _LANES, pack_images(images, _LANES))
    grid = [str(-(-images.elements // RUN // _LANES))]
    launch(kernel, [weight, packed], group="weights", grid=grid, block=_LANES)
    return [cast_to_stage([packed], op.operation.results[0].type)]


def rewrite_wgmma_rows(
    op: GemmOp, fill: FillOp, module: ir.Module, target: GpuTarget, values: Mapping[str, int]
) -> list[ir.Value]:
    result, images = op.operation.results[0], images_of(op, values)
    moved, out_type = element_type(op.weight.type), element(result)
    c_in, limit = images.steps * images.block_k, target.buffer_limit_bytes
    # Between two coordinate sets the inputs have another number of rows than the outputs.
    reads, writes = noted(op.pairs, "in_rows", "rows"), rows_of(op.pairs)
    row_bytes = op.c_out * bits(out_type) // 8
    require(op, f"bytes of features of {c_in} channels", f"{reads} * {c_in * bits(moved) // 8}", limit)
    require(op, f"bytes of {out_type} rows of {op.c_out} channels", f"{writes} * {row_bytes}", limit)

    order, table, steps, step_count = buffers_of(op.pairs)
    (features,), (packed,) = buffers_of(op.features), buffers_of(op.weight)
    rows = symbol(writes, i32())
    if c_in != op.c_in:
        features = _widened(features, op.c_in, c_in, reads, module)
    biases = [] if fill.bias is None else buffers_of(fill.bias)
    residuals = [] if op.residual is None else buffers_of(op.residual)
    out = alloc("out", out_type, f"{writes} * {op.c_out}")
    kernel = WgmmaRows(
        op.taps,
        c_in,
        op.c_out,
        str(moved),
        images.columns,
        images.block_k,
        values["groups"],
        values["stages"],
        _Ending(op, out_type, bool(biases), bool(residuals)),
        SHARED,
    )
    end = f"{op.epilogue.name}_{out_type}" + "_bias" * bool(biases) + "_plus" * bool(residuals)
    arguments = [features, packed, table, steps, step_count, order, *biases, *residuals, out]
    _declare(module)
    symbol_ = gpu_kernel(
        module,
        f"gemm_wgmma_rows_{moved}_t{op.taps}_{c_in}x{op.c_out}_{images.name}"
        f"_g{kernel.groups}_s{kernel.stages}_b{values['blocks_per_unit']}_{end}",
        [buffer.type for buffer in arguments] + [i32()],
        kernel.lanes,
        kernel,
        attributes={
            SHARED_BYTES: ir.IntegerAttr.get(i32(), kernel.shared_bytes),
            "nvvm.minctasm": ir.IntegerAttr.get(i32(), values["blocks_per_unit"]),
        },
    )
    grid = [f"{blocks(writes)} * {BLOCK_ROWS // kernel.rows * kernel.slices}"]
    launch(symbol_, [*arguments, rows], group="output", grid=grid, block=kernel.lanes)
    return [cast_to_stage([out], result.type, rows=ir.StringAttr.get(writes))]


def misfits(op: GemmOp, values: Mapping[str, int], target: GpuTarget) -> list[str]:
    """What is wrong with the parameters of a schedule."""
    block_k, columns, groups = values["block_k"], values["columns"], values["groups"]
    moved = str(element_type(op.weight.type))
    rules = {
        f"warpgroups multiply {', '.join(target.warpgroup_dtypes) or 'nothing'}": moved in target.warpgroup_dtypes,
        "block_k is 16, 32 or 64": block_k in (16, 32, 64),
        "columns is a multiple of 16, at most 256": columns % 16 == 0 and 0 < columns <= 256,
        "groups is 1, 2 or 4": groups in (1, 2, 4),
        "stages is at least 2": values["stages"] >= 2,
    }
    return [rule for rule, kept in rules.items() if not kept]


def images_of(op: GemmOp | PackWeightOp, values: Mapping[str, int]) -> Images:
    """The shape of the packed weights."""
    return Images(op.taps, op.c_in, op.c_out, values["columns"], values["block_k"])


def _widened(features: ir.Value, c_in: int, padded: int, reads: str, module: ir.Module) -> ir.Value:
    """Rows of whole steps, zeros behind the last channel."""
    type_, rows = buffer_type(element_type(features.type)), symbol(reads, i32())
    wide = alloc("wide", element_type(features.type), f"{reads} * {padded}")
    name = f"widen_rows_{element_type(features.type)}_{c_in}to{padded}"
    kernel = gpu_kernel(module, name, [type_, type_, i32()], _LANES, widen_rows(c_in, padded, _LANES))
    grid = [f"({reads} * {padded // RUN}) ceildiv {_LANES}"]
    launch(kernel, [features, wide, rows], group="output", grid=grid, block=_LANES)
    return wide


def _declare(module: ir.Module) -> None:
    """Names the dynamic shared memory of the module's kernels, once."""
    block = kernel_module(module, on_gpu=True)
    if not any(op.operation.name == "llvm.mlir.global" for op in block.operations):
        with ir.InsertionPoint.at_block_begin(block), ir.Location.unknown():
            declare_dynamic_shared(SHARED)


class _Ending:
    """Writes finished rows: bias and residual added, activation applied, rounded."""

    def __init__(self, op: GemmOp, out_type: ir.Type, bias: bool, residual: bool) -> None:
        self.channels, self.epilogue, self.out_type = op.c_out, op.epilogue, out_type
        self.bias, self.residual = bias, residual

    def __call__(self, others: list[V]) -> Finish:
        def write(row: V, channel: V, total: V) -> None:
            lanes = total.type.shape[0] if isinstance(total.type, ir.VectorType) else 1
            at = plus(times(row, self.channels), channel)
            if self.bias:
                total = total + load(others[0], channel, lanes)
            added = load(others[-2], at, lanes) if self.residual else None
            store(finish(total, added, self.epilogue, self.out_type), others[-1], at)

        return write
