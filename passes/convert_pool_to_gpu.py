"""Lowers spconv.pool to a kernel in which every lane finishes a run of channels of one output row.

Before:
    %out = "spconv.pool"(%pairs, %features) {mode = "max", schedule = #spconv.schedule<"row_pool", {block = 256}>}
After:
    %rows = "spconv.alloc"() {name = "rows", size = coarse_rows * C}
    "spconv.launch"(%features, %table, %out_count, %rows, coarse_rows) {kernel = @kernels::@pool_max_f32…}

passes/gpu/pool_rows.py has the body. Needs level stages with schedules and with the pairs lowered; gives level gpu for
this op. Fails on an op without a schedule, with one that is not for a GPU, with a block that the target does not take,
and on pairs that are not the table of outputs.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import PoolOp
from spconv_compiler.dialect.plan import alloc, launch, symbol
from spconv_compiler.dialect.rules import channels, element
from spconv_compiler.dialect.types import buffer_type
from spconv_compiler.passes.base import Pass, replace_each
from spconv_compiler.passes.convert_rows_to_gpu import lower_epilogue_of
from spconv_compiler.passes.gpu.limits import require
from spconv_compiler.passes.gpu.pool_rows import PoolRows
from spconv_compiler.passes.gpu.scheduled import gpu_target, lanes_of
from spconv_compiler.passes.kernel_builder import bits, i32
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage, gpu_kernel, rows_of
from spconv_compiler.targets import GpuTarget


def rewrite_pool(op: PoolOp, module: ir.Module, target: GpuTarget, lanes: int) -> list[ir.Value]:
    result = op.operation.results[0]
    count, kind, rows = channels(result), element(result), rows_of(op.pairs)
    body = PoolRows(op.taps, count, kind, op.mode, lanes)
    for what, size in (("features", "rows"), ("pooled rows", rows)):
        message, text = f"bytes of {what} of {count} channels", f"{size} * {count * bits(kind) // 8}"
        require(op, message, text, target.buffer_limit_bytes)
    out = alloc("rows", kind, f"{rows} * {count}")
    (features,), (table, out_count) = buffers_of(op.features), buffers_of(op.pairs)
    moved, words = buffer_type(kind), buffer_type(i32())
    name = f"pool_{op.mode}_{kind}_t{op.taps}_{count}_b{lanes}"
    kernel = gpu_kernel(module, name, [moved, words, words, moved, i32()], lanes, body)
    grid = [f"({rows} * {body.runs}) ceildiv {lanes}"]
    launch(kernel, [features, table, out_count, out, symbol(rows, i32())], group="output", grid=grid, block=lanes)
    return [cast_to_stage([out], result.type, rows=ir.StringAttr.get(rows))]


@dataclasses.dataclass(frozen=True)
class ConvertPoolToGpu(Pass):
    """See the module."""

    target: str = "gfx950"
    name: ClassVar[str] = "convert-pool-to-gpu"
    needs: ClassVar[str] = "stages"
    gives: ClassVar[str] = "gpu"

    def run(self, module: ir.Module) -> None:
        target = gpu_target(self, module, self.target)

        def rewrite(op: PoolOp) -> list[ir.Value]:
            lanes = lanes_of(self, op, "row_pool", target)
            lower_epilogue_of(op.features, module, target)
            if len(buffers_of(op.pairs)) != 2:
                self.fail(op, "the pairs are not a table of outputs", 'supported: cross_compact with "output_table"')
            return rewrite_pool(op, module, target, lanes)

        replace_each(module, PoolOp.OPERATION_NAME, rewrite)
