"""Lowers spconv.map to functions that sort coordinates as packed keys and look up half of the neighbours.

Before:
    %map = "spconv.map"(%coords) {dilation, kernel_size, schedule = #spconv.schedule<"sorted_keys", {}>}
After:
    %keys   = "spconv.alloc"() {name = "keys", size = rows + 16}
    %origin = "spconv.alloc"() {name = "origin", size = rows}
    %status = "spconv.alloc"() {name = "status", size = 8}
    %table  = "spconv.alloc"() {name = "table", size = rows * 5 + 16}
    "spconv.launch"(%coords, %keys, %origin, …, %status, rows, box) {kernel = @kernels::@sort_keys_k32}
    "spconv.launch"(%keys, %table, rows, …) {kernel = @kernels::@half_table_k32_3x3x3_d1x1x1}

The map is (keys, origin, table, status); the cast that stands for it keeps the op's geometry. Also adds the
functions of passes/cpu/host_functions.py. Needs level stages with schedules, gives level loops for this op. Fails on
an op without a schedule or with one that is not for processors.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import MapOp
from spconv_compiler.dialect.plan import alloc, launch, symbol
from spconv_compiler.passes.base import Pass, replace_each
from spconv_compiler.passes.convert_cross_map_to_loops import sort_set
from spconv_compiler.passes.cpu.functions import Functions, pointer
from spconv_compiler.passes.cpu.half_table import TABLE_PADDING, Geometry, HalfTable
from spconv_compiler.passes.cpu.host_functions import define_host_functions
from spconv_compiler.passes.cpu.scheduled import functions_for, parameters
from spconv_compiler.passes.cpu.sorted_keys import Packing
from spconv_compiler.passes.gpu.limits import require
from spconv_compiler.passes.kernel_builder import i32, i64
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage


def rewrite_map(op: MapOp, functions: Functions) -> list[ir.Value]:
    (coords,) = buffers_of(op.coords)
    keys, origin, status = sort_set(coords, functions, Packing(op.key_width), "", "pairs")
    geometry = Geometry.of(op.kernel_size, op.dilation, op.key_width)
    require(op, "voxels of one map", "rows", geometry.most_rows)
    table = alloc("table", i32(), f"rows * {geometry.table_rows} + {TABLE_PADDING}")
    name = f"half_table_{geometry.name}"
    numbers = [symbol(number, i64()) for number in ("rows", "extent_y", "extent_x", "threads")]
    arguments = [pointer(), pointer()] + [i64()] * len(numbers)
    kernel = functions.kernel(name, arguments, HalfTable(functions, name, geometry))
    launch(kernel, [keys, table, *numbers], group="pairs")

    result = cast_to_stage([keys, origin, table, status], op.operation.results[0].type)
    cast = result.owner
    for name in ("kernel_size", "dilation"):
        cast.attributes[name] = op.operation.attributes[name]
    cast.attributes["key_width"] = ir.IntegerAttr.get(i64(), op.key_width)
    return [result]


@dataclasses.dataclass(frozen=True)
class ConvertMapToLoops(Pass):
    """See the module."""

    target: str = "cpu"
    name: ClassVar[str] = "convert-map-to-loops"
    needs: ClassVar[str] = "stages"
    gives: ClassVar[str] = "loops"

    def run(self, module: ir.Module) -> None:
        functions = functions_for(self, module, self.target)
        define_host_functions(functions)

        def rewrite(op: MapOp) -> list[ir.Value]:
            parameters(self, op, "sorted_keys")
            return rewrite_map(op, functions)

        replace_each(module, MapOp.OPERATION_NAME, rewrite)
