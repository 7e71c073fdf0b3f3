"""Drops spconv.fill, whose rows every gemm starts by itself, and lowers what works on rows alone.

Before:
    %init = "spconv.fill"(%coords, %bias)
    %out  = "spconv.apply_epilogue"(%sum) {epilogue = #spconv.epilogue<"relu">}
After:
    %rows = "spconv.alloc"() {name = "rows", size = rows * C_out}
    "spconv.launch"(%sum, %rows, rows, threads) {kernel = @kernels::@apply_relu…, group = "output"}

The same for spconv.affine and spconv.concat. Needs level stages with the gemms lowered, gives level loops for these
ops. Fails on a fill whose rows something else uses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import AffineOp, ApplyEpilogueOp, ConcatOp, FillOp
from spconv_compiler.dialect.plan import alloc, launch, symbol
from spconv_compiler.dialect.rules import channels, element
from spconv_compiler.passes.base import Pass, ops_named, replace_each
from spconv_compiler.passes.cpu.functions import Functions, pointer
from spconv_compiler.passes.cpu.rows import Affine, ApplyEpilogue, Concat
from spconv_compiler.passes.cpu.scheduled import functions_for
from spconv_compiler.passes.kernel_builder import f32, i64
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage, rows_of


def rewrite_epilogue(op: ApplyEpilogueOp, functions: Functions) -> list[ir.Value]:
    result = op.operation.results[0]
    count, source, given = channels(result), element(op.input), element(result)
    residuals = [] if op.residual is None else buffers_of(op.residual)
    added = None if op.residual is None else element(op.residual)
    plus = "" if added is None else f"_plus_{added}"
    from_ = "" if source == f32() else f"{source}_"
    name = f"apply_{op.epilogue.name}_{from_}{given}{plus}_{count}"
    body = ApplyEpilogue(functions, name, count, source, added, given, op.epilogue)
    return [_launch_on_rows(name, [op.input], residuals, result, functions, body)]


def rewrite_affine(op: AffineOp, functions: Functions) -> list[ir.Value]:
    result = op.operation.results[0]
    count, source, given = channels(result), element(op.input), element(result)
    name = f"affine_{source}_{given}_{count}"
    body = Affine(functions, name, count, source, given)
    vectors = [*buffers_of(op.scale), *buffers_of(op.shift)]
    return [_launch_on_rows(name, [op.input], vectors, result, functions, body)]


def rewrite_concat(op: ConcatOp, functions: Functions) -> list[ir.Value]:
    first, second = op.parts
    result = op.operation.results[0]
    widths, given = (channels(first), channels(second)), element(result)
    name = f"concat_{given}_{widths[0]}_{widths[1]}"
    body = Concat(functions, name, widths, given)
    return [_launch_on_rows(name, [first, second], [], result, functions, body)]


def _launch_on_rows(
    name: str,
    inputs: list[ir.Value],
    more: list[ir.Value],
    result: ir.Value,
    functions: Functions,
    body: Callable[..., None],
) -> ir.Value:
    """The result of a kernel(inputs…, more…, out, rows, threads) on as many rows as the first input has."""
    rows = rows_of(inputs[0])
    out = alloc("rows", element(result), f"{rows} * {channels(result)}")
    buffers = [*(buffer for value in inputs for buffer in buffers_of(value)), *more, out]
    kernel = functions.kernel(name, [pointer()] * len(buffers) + [i64(), i64()], body)
    launch(kernel, [*buffers, symbol(rows, i64()), symbol("threads", i64())], group="output")
    return cast_to_stage([out], result.type, rows=ir.StringAttr.get(rows))


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
        replace_each(module, ConcatOp.OPERATION_NAME, lambda op: rewrite_concat(op, functions))
        replace_each(module, AffineOp.OPERATION_NAME, lambda op: rewrite_affine(op, functions))
