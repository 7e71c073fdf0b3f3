"""Lowers what is left of spconv.fill and spconv.apply_epilogue to elementwise kernels.

Before:
    %out = "spconv.apply_epilogue"(%sum) {epilogue = #spconv.epilogue<"relu">}
After:
    %res = "spconv.alloc"() {name = "out", size = rows * C_out}
    "spconv.launch"(%acc, %res, rows) {kernel = @kernels::@apply_relu…, group = "output"}

A gemm fills the rows that it adds into itself (filled_rows), so a fill op behind gemms only is dropped here; one
with other uses becomes a launch of the same kernel. Needs level stages with the gemms lowered, gives level gpu for
these ops.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import ApplyEpilogueOp, FillOp
from spconv_compiler.dialect.plan import alloc, launch, symbol
from spconv_compiler.dialect.rules import channels, element
from spconv_compiler.dialect.types import buffer_type
from spconv_compiler.passes.base import Pass, defining_op, ops_named, replace_each
from spconv_compiler.passes.gpu import rows
from spconv_compiler.passes.gpu.limits import require
from spconv_compiler.passes.gpu.scheduled import gpu_target
from spconv_compiler.passes.kernel_builder import bits, f32, i32
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage, gpu_kernel, rows_of
from spconv_compiler.targets import GpuTarget

_LANES = 256


def filled_rows(op: FillOp, module: ir.Module, target: GpuTarget, symbol_: str = "rows") -> ir.Value:
    """A new buffer of the rows that `op` describes, f32 [rows, C_out], with the launch that fills it.

    symbol_: the plan's symbol for their number.
    """
    count, biases = op.c_out, [] if op.bias is None else buffers_of(op.bias)
    floats = buffer_type(f32())
    require(op, f"bytes of f32 rows of {count} channels", f"{symbol_} * {count * 4}", target.buffer_limit_bytes)
    sums = alloc("sums", f32(), f"{symbol_} * {count}")
    name = f"fill_rows_{count}" + ("_bias" if biases else "")
    types = [floats, *[floats for _ in biases], i32()]
    kernel = gpu_kernel(module, name, types, _LANES, rows.fill_rows(count, _LANES, bias=bool(biases)))
    grid = [f"({symbol_} * {count}) ceildiv {rows.span(count, _LANES)}"]
    launch(kernel, [sums, *biases, symbol(symbol_, i32())], group="output", grid=grid, block=_LANES)
    return sums


def rewrite_fill(op: FillOp, module: ir.Module, target: GpuTarget) -> list[ir.Value]:
    return [cast_to_stage([filled_rows(op, module, target)], op.operation.results[0].type)]


def rewrite_epilogue(op: ApplyEpilogueOp, module: ir.Module, target: GpuTarget) -> list[ir.Value]:
    (sums,) = buffers_of(op.input)
    residuals = [] if op.residual is None else buffers_of(op.residual)
    result = op.operation.results[0]
    count, source, type_ = channels(result), element(op.input), element(result)
    plus = "" if op.residual is None else f"_plus_{element(op.residual)}"
    from_ = "" if source == f32() else f"{source}_"
    symbol_ = rows_of(op.input)
    size = f"{symbol_} * {count}"
    limit = target.buffer_limit_bytes
    require(op, f"bytes of {type_} rows of {count} channels", f"{symbol_} * {count * bits(type_) // 8}", limit)
    out = alloc("out", type_, size)
    kernel = gpu_kernel(
        module,
        f"apply_{op.epilogue.name}_{from_}{type_}{plus}_{count}",
        [sums.type, *(buffer.type for buffer in residuals), buffer_type(type_), i32()],
        _LANES,
        rows.apply_epilogue(count, op.epilogue, source, type_, _LANES, residual=bool(residuals)),
    )
    grid = [f"({size}) ceildiv {rows.span(count, _LANES)}"]
    launch(kernel, [sums, *residuals, out, symbol(symbol_, i32())], group="output", grid=grid, block=_LANES)
    return [cast_to_stage([out], result.type, rows=ir.StringAttr.get(symbol_))]


def lower_epilogue_of(value: ir.Value, module: ir.Module, target: GpuTarget) -> None:
    """Lowers the epilogue that makes `value`, if one does: what reads it next finds its rows as a buffer."""
    op = defining_op(value)
    if isinstance(op, ApplyEpilogueOp):
        with ir.InsertionPoint(op), op.operation.location:
            (rows_,) = rewrite_epilogue(op, module, target)
        op.operation.results[0].replace_all_uses_with(rows_)
        op.operation.erase()


@dataclasses.dataclass(frozen=True)
class ConvertRowsToGpu(Pass):
    """See the module."""

    target: str = "gfx950"
    name: ClassVar[str] = "convert-rows-to-gpu"
    needs: ClassVar[str] = "stages"
    gives: ClassVar[str] = "gpu"

    def run(self, module: ir.Module) -> None:
        target = gpu_target(self, module, self.target)
        for fill in ops_named(module, FillOp.OPERATION_NAME):
            if not list(fill.operation.results[0].uses):
                fill.operation.erase()
        replace_each(module, FillOp.OPERATION_NAME, lambda op: rewrite_fill(op, module, target))
        replace_each(module, ApplyEpilogueOp.OPERATION_NAME, lambda op: rewrite_epilogue(op, module, target))
