"""Drops spconv.fill, whose rows every gemm starts by itself, and lowers epilogues that stayed alone.

Before:
    %init = "spconv.fill"(%coords, %bias)
    %out  = "spconv.apply_epilogue"(%sum) {epilogue = #spconv.epilogue<"relu">}
After:
    %rows = "spconv.alloc"() {name = "rows", size = rows * C_out}
    "spconv.launch"(%sum, %rows, rows, threads) {kernel = @kernels::@apply_relu…, group = "output"}

Needs level stages with the gemms lowered, gives level loops for these ops. Fails on a fill whose rows something
else uses.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import ApplyEpilogueOp, FillOp
from spconv_compiler.dialect.plan import alloc, launch, symbol
from spconv_compiler.dialect.rules import channels, element
from spconv_compiler.passes.base import Pass, ops_named, replace_each
from spconv_compiler.passes.cpu.functions import Functions, pointer
from spconv_compiler.passes.cpu.rows import ApplyEpilogue
from spconv_compiler.passes.cpu.scheduled import functions_for
from spconv_compiler.passes.kernel_builder import i64
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage, rows_of


def rewrite_epilogue(op: ApplyEpilogueOp, functions: Functions) -> list[ir.Value]:
    result = op.operation.results[0]
    count, given = channels(result), element(result)
    name = f"apply_{op.activation}_{given}_{count}"
    (sums,) = buffers_of(op.input)
    rows = rows_of(op.input)
    out = alloc("rows", given, f"{rows} * {count}")
    body = ApplyEpilogue(functions, name, count, given, op.activation)
    kernel = functions.kernel(name, [pointer(), pointer(), i64(), i64()], body)
    launch(kernel, [sums, out, symbol(rows, i64()), symbol("threads", i64())], group="output")
    return [cast_to_stage([out], result.type)]


@dataclasses.dataclass(frozen=True)
class ConvertRowsToLoops(Pass):
    """See the module."""

    target: str = "cpu"
    name: ClassVar[str] = "convert-rows-to-loops"
    needs: ClassVar[str] = "stages"
    gives: ClassVar[str] = "loops"

    def run(self, module: ir.Module) -> None:
        functions = functions_for(self, module, self.target)
        for fill in ops_named(module, FillOp.OPERATION_NAME):
            if list(fill.operation.results[0].uses):
                self.fail(fill, "the rows have a use that is not a lowered gemm", "supported: init of a spconv.gemm")
            fill.operation.erase()
        replace_each(module, ApplyEpilogueOp.OPERATION_NAME, lambda op: rewrite_epilogue(op, functions))
