"""Lowers spconv.output_coords to functions that make packed keys and unpack them.

Before:
    %out = "spconv.output_coords"(%coords) {kernel_size, stride, padding, dilation, transposed = false,
             schedule = #spconv.schedule<"sorted_keys", {}>}
After:
    %keys   = "spconv.alloc"() {name = "out_keys", size = rows * 8}
    %status = "spconv.alloc"() {name = "out_status", size = 8}
    "spconv.launch"(%coords, %keys, …, %status, rows, box) {kernel = @kernels::@output_keys_k32…, group = "coords"}
    %rows   = "spconv.alloc"() {name = "out_coords", size = coarse_rows * 4}
    "spconv.launch"(%keys, %rows, coarse_rows, box) {kernel = @kernels::@decode_keys_k32, group = "map"}

Once group "coords" has run, word 0 of out_status is the number of outputs: coarse_rows, or rows where the op is
transposed. passes/cpu/output_keys.py has the bodies. Needs level stages with schedules, gives level loops for this
op. Fails on an op without a schedule or with one that is not for processors, and on a second op in a function: the
box of outputs is one.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import OutputCoordsOp
from spconv_compiler.dialect.plan import OUT_BOX, alloc, launch, symbol
from spconv_compiler.passes.base import Pass, replace_each
from spconv_compiler.passes.cpu.functions import Functions, pointer
from spconv_compiler.passes.cpu.output_keys import DecodeKeys, OutputKeys, Reach
from spconv_compiler.passes.cpu.radix_sort import MOST_ROWS
from spconv_compiler.passes.cpu.scheduled import functions_for, only_one, parameters
from spconv_compiler.passes.cpu.sorted_keys import STATUS_WORDS, key_type
from spconv_compiler.passes.gpu.limits import require
from spconv_compiler.passes.kernel_builder import i32, i64
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage


def rewrite_output_coords(op: OutputCoordsOp, functions: Functions) -> list[ir.Value]:
    (coords,) = buffers_of(op.coords)
    reach = Reach.of(op.kernel_size, op.stride, op.padding, op.dilation, transposed=op.transposed)
    inputs, outputs = ("coarse_rows", "rows") if op.transposed else ("rows", "coarse_rows")
    body = OutputKeys(reach, op.key_width)
    keys = alloc("out_keys", key_type(op.key_width), f"{inputs} * {reach.most}")
    scratch = alloc("out_scratch", i64(), body.scratch_words(inputs), grows=True)
    require(op, "candidates for outputs", f"{inputs} * {reach.most}", MOST_ROWS)
    status = alloc("out_status", i64(), str(STATUS_WORDS))
    numbers = [symbol(name, i64()) for name in (inputs, "capacity", *OUT_BOX, "batches")]
    types = [pointer()] * 4 + [i64()] * len(numbers)
    kernel = functions.kernel(f"output_keys_k{op.key_width}_{reach.name}", types, body)
    launch(kernel, [coords, keys, scratch, status, *numbers], group="coords")

    rows = alloc("out_coords", i32(), f"{outputs} * 4")
    numbers = [symbol(name, i64()) for name in (outputs, *OUT_BOX)]
    types = [pointer()] * 2 + [i64()] * len(numbers)
    kernel = functions.kernel(f"decode_keys_k{op.key_width}", types, DecodeKeys(op.key_width))
    launch(kernel, [keys, rows, *numbers], group="map")
    return [cast_to_stage([rows], op.operation.results[0].type)]


@dataclasses.dataclass(frozen=True)
class ConvertOutputCoordsToLoops(Pass):
    """See the module."""

    target: str = "cpu"
    name: ClassVar[str] = "convert-output-coords-to-loops"
    needs: ClassVar[str] = "stages"
    gives: ClassVar[str] = "loops"

    def run(self, module: ir.Module) -> None:
        functions = functions_for(self, module, self.target)
        only_one(self, module, OutputCoordsOp.OPERATION_NAME)

        def rewrite(op: OutputCoordsOp) -> list[ir.Value]:
            parameters(self, op, "sorted_keys")
            return rewrite_output_coords(op, functions)

        replace_each(module, OutputCoordsOp.OPERATION_NAME, rewrite)
