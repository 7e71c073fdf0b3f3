"""Lowers spconv.gemm to one function that starts, accumulates and finishes every output row.

Before:
    %out = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"relu">,
             schedule = #spconv.schedule<"chunk_stationary", {chunk_rows, tile_m, tile_n, pair_k, unroll_k}>}
    or <"chunk_tiles", {chunk_rows, tile_m, tile_n, pair_k, tile_k}>
After:
    %rows    = "spconv.alloc"() {name = "rows", size = rows * C_out}
    %scratch = "spconv.alloc"() {name = "gemm_scratch", size = threads * …}
    "spconv.launch"(%features, %packed, %bias, %rows, …) {kernel = @kernels::@gemm_chunk_stationary…}

The rows start from the bias of the spconv.fill behind init; convert-rows-to-loops drops that op. Needs level stages
with schedules and with map, pairs and weights lowered; gives level loops for this op. Fails on an op without a
schedule or with one that is not for processors, and on an init that is not a spconv.fill.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import FillOp, GemmOp
from spconv_compiler.dialect.plan import alloc, launch, symbol
from spconv_compiler.dialect.rules import element
from spconv_compiler.dialect.types import element_type
from spconv_compiler.epilogue import Epilogue
from spconv_compiler.passes.base import Pass, defining_op, replace_each
from spconv_compiler.passes.cpu.chunk_gemm import ChunkGemm
from spconv_compiler.passes.cpu.functions import Functions, pointer
from spconv_compiler.passes.cpu.micro_kernel import MicroKernel
from spconv_compiler.passes.cpu.register_gemm import RegisterGemm
from spconv_compiler.passes.cpu.row_panels import RowPanels
from spconv_compiler.passes.cpu.scheduled import functions_for, parameters
from spconv_compiler.passes.cpu.tile_block import TileBlock
from spconv_compiler.passes.cpu.tile_gemm import TileGemm
from spconv_compiler.passes.kernel_builder import i32, i64
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage, rows_of

# The schedules of processors, and what each takes beside chunk_rows, tile_m, tile_n and pair_k.
SCHEDULES = {"chunk_stationary": "unroll_k", "chunk_tiles": "tile_k"}
_LETTERS = {"unroll_k": "u", "tile_k": "k"}


def _schedule(op: GemmOp) -> tuple[str, str]:
    """The op's schedule and the parameter that no other has; the first one where it has none of processors."""
    found = op.schedule[0] if op.schedule else ""
    name = found if found in SCHEDULES else next(iter(SCHEDULES))
    return name, SCHEDULES[name]


def rewrite_gemm(op: GemmOp, fill: FillOp, functions: Functions, values: dict[str, int]) -> list[ir.Value]:
    result = op.operation.results[0]
    taken, given = element_type(op.weight.type), element(result)
    biases = [] if fill.bias is None else buffers_of(fill.bias)
    residuals = [] if op.residual is None else buffers_of(op.residual)
    added = None if op.residual is None else element(op.residual)
    ending = f"_{op.epilogue.name}" if op.epilogue != Epilogue() else ""
    schedule, special = _schedule(op)
    name = (
        f"gemm_{schedule}_{taken}_{given}_t{op.taps}_{op.c_in}x{op.c_out}_r{values['chunk_rows']}"
        f"_m{values['tile_m']}_n{values['tile_n']}_p{values['pair_k']}_{_LETTERS[special]}{values[special]}"
        f"{'_bias' if biases else ''}{f'_plus_{added}' if residuals else ''}{ending}"
    )
    more = values["chunk_rows"], taken, given, op.epilogue, bool(biases), added
    body: ChunkGemm
    panels = RowPanels(op.taps, op.c_in, op.c_out, values["tile_n"], values["pair_k"], values.get("tile_k", 0))
    if special == "tile_k" and functions.target.tile_unit is not None:
        tiles = TileBlock(panels, values["tile_m"], functions.target.lanes, functions.target.tile_unit)
        body = TileGemm(functions, name, tiles, *more)
    else:
        micro = MicroKernel(panels, values["tile_m"], functions.target.lanes, values["unroll_k"])
        body = RegisterGemm(functions, name, micro, *more)
    rows = rows_of(op.pairs)
    out = alloc("rows", given, f"{rows} * {op.c_out}")
    scratch = alloc("gemm_scratch", i32(), f"threads * {body.scratch_bytes // 4}")
    (features,), (packed,) = buffers_of(op.features), buffers_of(op.weight)
    pairs, chunk_first, tap_first, origin = buffers_of(op.pairs)
    buffers = [features, packed, *biases, *residuals, out, pairs, chunk_first, tap_first, origin, scratch]
    numbers = [symbol(rows, i64()), symbol("threads", i64())]
    kernel = functions.kernel(name, [pointer()] * len(buffers) + [i64()] * len(numbers), body)
    launch(kernel, [*buffers, *numbers], group="output")
    return [cast_to_stage([out], result.type, rows=ir.StringAttr.get(rows))]


@dataclasses.dataclass(frozen=True)
class ConvertGemmToLoops(Pass):
    """See the module."""

    target: str = "cpu"
    name: ClassVar[str] = "convert-gemm-to-loops"
    needs: ClassVar[str] = "stages"
    gives: ClassVar[str] = "loops"

    def run(self, module: ir.Module) -> None:
        functions = functions_for(self, module, self.target)

        def rewrite(op: GemmOp) -> list[ir.Value]:
            name, special = _schedule(op)
            if special == "tile_k" and functions.target.tile_unit is None:
                self.fail(op, f'schedule "{name}" needs tile registers', f"{functions.target.name} has none")
            values = parameters(self, op, name, "chunk_rows", "tile_m", "tile_n", "pair_k", special)
            fill = defining_op(op.init)
            if not isinstance(fill, FillOp):
                self.fail(op, "init is not the result of spconv.fill", "a gemm adds into rows of its own")
            return rewrite_gemm(op, fill, functions, values)

        replace_each(module, GemmOp.OPERATION_NAME, rewrite)
