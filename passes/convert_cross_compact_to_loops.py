"""Lowers spconv.cross_compact to functions that look up which voxels of two sets meet, and write the pairs.

Before:
    %pairs = "spconv.cross_compact"(%map) {transposed = false,
               schedule = #spconv.schedule<"chunk_tap_row", {chunk_rows = 512}>}
After:
    %list  = "spconv.alloc"() {name = "pairs", size = rows * 8, grows}
    %first = "spconv.alloc"() {name = "chunk_first", size = coarse_rows ceildiv 512}
    %taps  = "spconv.alloc"() {name = "tap_first", size = (coarse_rows ceildiv 512) * 28}
    "spconv.launch"(%coarse_keys, %keys, %origin, %list, …) {kernel = @kernels::@cross_pairs_to_coarse…}

If outputs are fine (transposed = true), a table of what every coarse voxel meets comes first:
    %table = "spconv.alloc"() {name = "cross_table", size = coarse_rows * 9 + 16}
    "spconv.launch"(%coarse_keys, %keys, %table, …) {kernel = @kernels::@cross_table_k32_3x3x3_d1x1x1, group = "map"}

The pairs are (list, first, taps, origin of the outputs), and the cast that stands for them says which symbol counts
their output rows; passes/cpu/cross_pairs.py has the body. Needs convert-cross-map-to-loops before it, gives level
loops for this op. Fails on an op without a schedule or with one that is not for processors.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import CrossCompactOp
from spconv_compiler.dialect.geometry import AXES
from spconv_compiler.dialect.plan import alloc, launch, symbol
from spconv_compiler.passes.base import Pass, replace_each
from spconv_compiler.passes.cpu.cross_pairs import CrossPairs
from spconv_compiler.passes.cpu.cross_table import CrossGeometry, CrossTable
from spconv_compiler.passes.cpu.functions import Functions, pointer
from spconv_compiler.passes.cpu.half_table import TABLE_PADDING
from spconv_compiler.passes.cpu.scheduled import functions_for, parameters
from spconv_compiler.passes.kernel_builder import i32, i64
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage
from spconv_compiler.passes.reach import Reach

# The list starts with room for all pairs that a fine voxel can have, or for this many.
_PAIRS_PER_ROW = 18


def _table(coarse_keys: ir.Value, keys: ir.Value, functions: Functions, geometry: CrossGeometry) -> ir.Value:
    """Launches the search for all coarse voxels, and gives its table."""
    table = alloc("cross_table", i32(), f"coarse_rows * {geometry.table_rows} + {TABLE_PADDING}")
    name = f"cross_table_{geometry.name}"
    numbers = [symbol(number, i64()) for number in ("coarse_rows", "rows", "extent_y", "extent_x", "threads")]
    arguments = [pointer()] * 3 + [i64()] * len(numbers)
    kernel = functions.kernel(name, arguments, CrossTable(functions, name, geometry))
    launch(kernel, [coarse_keys, keys, table, *numbers], group="map")
    return table


def rewrite_cross_compact(op: CrossCompactOp, functions: Functions, chunk_rows: int) -> list[ir.Value]:
    keys, origin, status, coarse_keys, coarse_origin, coarse_status = buffers_of(op.map)
    noted = op.map.owner.attributes
    axes = [list(ir.DenseI64ArrayAttr(noted[name])) for name in AXES]
    geometry = CrossGeometry.of(axes[0], axes[3], ir.IntegerAttr(noted["key_width"]).value)
    outputs = "rows" if op.transposed else "coarse_rows"
    name = f"cross_pairs_{'to_fine' if op.transposed else 'to_coarse'}_{geometry.name}_r{chunk_rows}"
    body = CrossPairs(functions, name, geometry, chunk_rows, op.transposed)
    tables = [_table(coarse_keys, keys, functions, geometry)] if op.transposed else []
    chunks = f"{outputs} ceildiv {chunk_rows}"
    per_row = min(Reach.of(*axes, transposed=False).most, _PAIRS_PER_ROW)
    pairs = alloc("pairs", i64(), f"rows * {per_row}", grows=True)
    chunk_first = alloc("chunk_first", i64(), chunks)
    tap_first = alloc("tap_first", i32(), f"({chunks}) * {op.taps + 1}")
    scratch = alloc("pairs_scratch", i32(), f"threads * {body.scratch_words}")
    input_origin, output_origin = (coarse_origin, origin) if op.transposed else (origin, coarse_origin)
    buffers = [coarse_keys, keys, input_origin, *tables, pairs, chunk_first, tap_first, status, coarse_status, scratch]
    names = ("coarse_rows", "rows", "extent_y", "extent_x", "capacity", "threads")
    numbers = [symbol(number, i64()) for number in names]
    kernel = functions.kernel(name, [pointer()] * len(buffers) + [i64()] * len(numbers), body)
    launch(kernel, [*buffers, *numbers], group="pairs")
    result = [pairs, chunk_first, tap_first, output_origin]
    return [cast_to_stage(result, op.operation.results[0].type, rows=ir.StringAttr.get(outputs))]


@dataclasses.dataclass(frozen=True)
class ConvertCrossCompactToLoops(Pass):
    """See the module."""

    target: str = "cpu"
    name: ClassVar[str] = "convert-cross-compact-to-loops"
    needs: ClassVar[str] = "stages"
    gives: ClassVar[str] = "loops"

    def run(self, module: ir.Module) -> None:
        functions = functions_for(self, module, self.target)

        def rewrite(op: CrossCompactOp) -> list[ir.Value]:
            chunk_rows = parameters(self, op, "chunk_tap_row", "chunk_rows")["chunk_rows"]
            return rewrite_cross_compact(op, functions, chunk_rows)

        replace_each(module, CrossCompactOp.OPERATION_NAME, rewrite)
