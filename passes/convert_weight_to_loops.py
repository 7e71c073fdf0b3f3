"""Lowers spconv.pack_weight to a function that lays weights out in panels for the micro-kernel.

Before:
    %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"row_panels", {tile_n, pair_k[, tile_k]}>}
After:
    %packed = "spconv.alloc"() {name = "packed", size = taps * padded C_in * padded C_out}
    "spconv.launch"(%weight, %packed, threads) {kernel = @kernels::@pack_panels…, group = "weights"}

Needs level stages with schedules, gives level loops for this op. Fails on an op without a schedule or with one
that is not for processors. passes/cpu/row_panels.py has the body and the layout.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import PackWeightOp
from spconv_compiler.dialect.plan import alloc, launch, symbol
from spconv_compiler.dialect.types import element_type
from spconv_compiler.passes.base import Pass, replace_each
from spconv_compiler.passes.cpu.functions import Functions, pointer
from spconv_compiler.passes.cpu.row_panels import PackRowPanels, RowPanels
from spconv_compiler.passes.cpu.scheduled import functions_for, parameters
from spconv_compiler.passes.kernel_builder import i64
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage


def rewrite_pack(op: PackWeightOp, functions: Functions, values: dict[str, int]) -> list[ir.Value]:
    (weight,) = buffers_of(op.weight)
    element = element_type(op.operation.results[0].type)
    panels = RowPanels(op.taps, op.c_in, op.c_out, values["tile_n"], values["pair_k"], values.get("tile_k", 0))
    name = (
        f"pack_panels_{element}_t{op.taps}_{op.c_in}x{op.c_out}_n{panels.tile_n}_p{panels.pair_k}"
        f"{f'_k{panels.tile_k}' if panels.tile_k else ''}"
    )
    packed = alloc("packed", panels.packed_element(element), str(panels.elements))
    body = PackRowPanels(functions, name, panels, element)
    kernel = functions.kernel(name, [pointer(), pointer(), i64()], body)
    launch(kernel, [weight, packed, symbol("threads", i64())], group="weights")
    return [cast_to_stage([packed], op.operation.results[0].type)]


@dataclasses.dataclass(frozen=True)
class ConvertWeightToLoops(Pass):
    """See the module."""

    target: str = "cpu"
    name: ClassVar[str] = "convert-weight-to-loops"
    needs: ClassVar[str] = "stages"
    gives: ClassVar[str] = "loops"

    def run(self, module: ir.Module) -> None:
        functions = functions_for(self, module, self.target)

        def rewrite(op: PackWeightOp) -> list[ir.Value]:
            return rewrite_pack(op, functions, parameters(self, op, "row_panels", "tile_n", "pair_k"))

        replace_each(module, PackWeightOp.OPERATION_NAME, rewrite)
