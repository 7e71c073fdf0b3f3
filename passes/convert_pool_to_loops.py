"""Lowers spconv.pool to a function that finishes output rows a chunk at a time.

Before:
    %out = "spconv.pool"(%pairs, %features) {mode = "max",
             schedule = #spconv.schedule<"chunk_pool", {chunk_rows = 512}>}
After:
    %rows    = "spconv.alloc"() {name = "rows", size = coarse_rows * C}
    %scratch = "spconv.alloc"() {name = "pool_scratch", size = threads * …}
    "spconv.launch"(%features, %rows, …) {kernel = @kernels::@pool_max_f32…, group = "output"}

passes/cpu/chunk_pool.py has the body. Needs level stages with schedules and with the pairs lowered; gives level loops
for this op. Fails on an op without a schedule or with one that is not for processors.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import PoolOp
from spconv_compiler.dialect.plan import alloc, launch, symbol
from spconv_compiler.dialect.rules import channels, element
from spconv_compiler.passes.base import Pass, replace_each
from spconv_compiler.passes.cpu.chunk_pool import ChunkPool
from spconv_compiler.passes.cpu.functions import Functions, pointer
from spconv_compiler.passes.cpu.scheduled import functions_for, parameters
from spconv_compiler.passes.kernel_builder import i32, i64
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage, rows_of


def rewrite_pool(op: PoolOp, functions: Functions, chunk_rows: int) -> list[ir.Value]:
    result = op.operation.results[0]
    count, kind, rows = channels(result), element(result), rows_of(op.pairs)
    name = f"pool_{op.mode}_{kind}_t{op.taps}_{count}_r{chunk_rows}"
    body = ChunkPool(functions, name, op.taps, count, chunk_rows, kind, op.mode)
    out = alloc("rows", kind, f"{rows} * {count}")
    scratch = alloc("pool_scratch", i32(), f"threads * {body.scratch_bytes // 4}")
    buffers = [*buffers_of(op.features), out, *buffers_of(op.pairs), scratch]
    numbers = [symbol(rows, i64()), symbol("threads", i64())]
    kernel = functions.kernel(name, [pointer()] * len(buffers) + [i64()] * len(numbers), body)
    launch(kernel, [*buffers, *numbers], group="output")
    return [cast_to_stage([out], result.type, rows=ir.StringAttr.get(rows))]


@dataclasses.dataclass(frozen=True)
class ConvertPoolToLoops(Pass):
    """See the module."""

    target: str = "cpu"
    name: ClassVar[str] = "convert-pool-to-loops"
    needs: ClassVar[str] = "stages"
    gives: ClassVar[str] = "loops"

    def run(self, module: ir.Module) -> None:
        functions = functions_for(self, module, self.target)

        def rewrite(op: PoolOp) -> list[ir.Value]:
            return rewrite_pool(op, functions, parameters(self, op, "chunk_pool", "chunk_rows")["chunk_rows"])

        replace_each(module, PoolOp.OPERATION_NAME, rewrite)
