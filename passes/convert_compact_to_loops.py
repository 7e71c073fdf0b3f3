"""Lowers spconv.compact to a function that writes the pairs of a table of neighbours.

Before:
    %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"chunk_tap_row", {chunk_rows = 512}>}
After:
    %list  = "spconv.alloc"() {name = "pairs", size = rows * 16, grows}
    %first = "spconv.alloc"() {name = "chunk_first", size = rows ceildiv 512}
    %taps  = "spconv.alloc"() {name = "tap_first", size = (rows ceildiv 512) * 28}
    "spconv.launch"(%keys, %origin, %table, %list, %first, %taps, …) {kernel = @kernels::@chunk_pairs…}

The pairs are (list, first, taps, origin); passes/cpu/chunk_pairs.py has the body and the layout. Needs
convert-map-to-loops before it, gives level loops for this op. Fails on an op without a schedule or with one that
is not for processors.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import CompactOp
from spconv_compiler.dialect.plan import alloc, launch, symbol
from spconv_compiler.passes.base import Pass, replace_each
from spconv_compiler.passes.cpu.chunk_pairs import ChunkPairs
from spconv_compiler.passes.cpu.functions import Functions, pointer
from spconv_compiler.passes.cpu.half_table import Geometry
from spconv_compiler.passes.cpu.scheduled import functions_for, parameters
from spconv_compiler.passes.kernel_builder import i32, i64
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage

# The list starts with room for this many pairs a row, or a quarter of the taps: real frames have 3 to 8 pairs of
# 27 a row, and up to 17 after a strided convolution. Pages that nothing is written to take no memory.
_PAIRS_PER_ROW = 18


def rewrite_compact(op: CompactOp, functions: Functions, chunk_rows: int) -> list[ir.Value]:
    keys, origin, table, status = buffers_of(op.map)
    geometry = geometry_of(op.map)
    name = f"chunk_pairs_{geometry.name}_r{chunk_rows}"
    body = ChunkPairs(functions, name, geometry, chunk_rows)
    chunks = f"rows ceildiv {chunk_rows}"
    per_row = min(op.taps, max(_PAIRS_PER_ROW, op.taps // 4))
    pairs = alloc("pairs", i64(), f"rows * {per_row}", grows=True)
    chunk_first = alloc("chunk_first", i64(), chunks)
    tap_first = alloc("tap_first", i32(), f"({chunks}) * {op.taps + 1}")
    scratch = alloc("pairs_scratch", i32(), f"threads * {body.scratch_words}")
    buffers = [keys, origin, table, pairs, chunk_first, tap_first, status, scratch]
    numbers = [symbol(number, i64()) for number in ("rows", "extent_y", "extent_x", "capacity", "threads")]
    kernel = functions.kernel(name, [pointer()] * len(buffers) + [i64()] * len(numbers), body)
    launch(kernel, [*buffers, *numbers], group="pairs")
    return [cast_to_stage([pairs, chunk_first, tap_first, origin], op.operation.results[0].type)]


def geometry_of(map_: ir.Value) -> Geometry:
    """What convert-map-to-loops noted on the cast that stands for a map."""
    noted = map_.owner.attributes
    kernel_size, dilation = (ir.DenseI64ArrayAttr(noted[name]) for name in ("kernel_size", "dilation"))
    return Geometry.of(kernel_size, dilation, ir.IntegerAttr(noted["key_width"]).value)


@dataclasses.dataclass(frozen=True)
class ConvertCompactToLoops(Pass):
    """See the module."""

    target: str = "cpu"
    name: ClassVar[str] = "convert-compact-to-loops"
    needs: ClassVar[str] = "stages"
    gives: ClassVar[str] = "loops"

    def run(self, module: ir.Module) -> None:
        functions = functions_for(self, module, self.target)

        def rewrite(op: CompactOp) -> list[ir.Value]:
            return rewrite_compact(op, functions, parameters(self, op, "chunk_tap_row", "chunk_rows")["chunk_rows"])

        replace_each(module, CompactOp.OPERATION_NAME, rewrite)
