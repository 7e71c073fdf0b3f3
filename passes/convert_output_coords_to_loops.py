"""Lowers spconv.output_coords to functions that sort the inputs, make packed keys of outputs, and unpack them.

Before:
    %out = "spconv.output_coords"(%coords) {kernel_size, stride, padding, dilation, transposed = false,
             schedule = #spconv.schedule<"sorted_keys", {}>}
After:
    "spconv.launch"(%coords, %keys, …, rows, box)  {kernel = @kernels::@sort_keys_k32, group = "fine"}
    %keys   = "spconv.alloc"() {name = "out_keys", size = rows * 8}
    %status = "spconv.alloc"() {name = "out_status", size = 8}
    "spconv.launch"(%keys, %out_keys, …, %status, rows, boxes)  {kernel = @kernels::@output_keys_k32…, group = "coords"}
    %rows   = "spconv.alloc"() {name = "out_coords", size = coarse_rows * 4}
    "spconv.launch"(%out_keys, …, %rows, …, coarse_rows, boxes) {kernel = @kernels::@decode_keys_k32…, group = "decode"}

Once group "coords" has run, word 0 of out_status is the number of outputs: coarse_rows, or rows where the op is
transposed; its inputs are then sorted in group "coarse". Group "decode" also leaves the keys, rows and status of the
outputs as their sort would. passes/cpu/output_keys.py and decode_keys.py have the bodies. Needs level stages with
schedules, gives level loops for this op. Fails on an op without a schedule or with one that is not for processors, and
on a second op in a function: the box of outputs is one.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import OutputCoordsOp
from spconv_compiler.dialect.plan import BOX, OUT_BOX, alloc, launch, symbol
from spconv_compiler.passes.base import Pass, replace_each
from spconv_compiler.passes.convert_cross_map_to_loops import sort_set
from spconv_compiler.passes.cpu.decode_keys import DecodeKeys
from spconv_compiler.passes.cpu.functions import Functions, pointer
from spconv_compiler.passes.cpu.marks import MARKS_WORDS
from spconv_compiler.passes.cpu.output_keys import OutputKeys
from spconv_compiler.passes.cpu.radix_sort import MOST_ROWS
from spconv_compiler.passes.cpu.scheduled import functions_for, only_one, parameters
from spconv_compiler.passes.cpu.sorted_keys import KEY_PADDING, STATUS_WORDS, Packing
from spconv_compiler.passes.gpu.limits import require
from spconv_compiler.passes.kernel_builder import i32, i64
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage
from spconv_compiler.passes.reach import Reach

_BOXES = (*BOX, *OUT_BOX)


def rewrite_output_coords(op: OutputCoordsOp, functions: Functions) -> list[ir.Value]:
    (coords,) = buffers_of(op.coords)
    reach = Reach.of(op.kernel_size, op.stride, op.padding, op.dilation, transposed=op.transposed)
    fine, coarse = Packing(op.key_width), Packing.of(op.key_width, op.stride, op.padding)
    (read, prefix, group), (made, out_prefix) = ((fine, "", "fine"), (coarse, "coarse_"))
    if op.transposed:
        (read, prefix, group), (made, out_prefix) = ((coarse, "coarse_", "coarse"), (fine, ""))
    inputs, outputs = f"{prefix}rows", f"{out_prefix}rows"
    keys, *_ = sort_set(coords, functions, read, prefix, group)

    name = f"output_keys_k{op.key_width}_{reach.name}"
    body = OutputKeys(functions, name, reach, op.key_width)
    require(op, "candidates for outputs", f"{inputs} * {reach.most}", MOST_ROWS)
    out_keys, spare = (alloc(name, fine.key, f"{inputs} * {reach.most} + 1") for name in ("out_keys", "out_spare"))
    slabs = alloc("out_slabs", i64(), body.slab_words(inputs))
    scratch = alloc("out_scratch", i64(), f"threads * {MARKS_WORDS}")
    status = alloc("out_status", i64(), str(STATUS_WORDS))
    buffers = [keys, out_keys, spare, slabs, scratch, status]
    numbers = [symbol(number, i64()) for number in (inputs, *_BOXES, "batches", "threads")]
    kernel = functions.kernel(name, [pointer()] * len(buffers) + [i64()] * len(numbers), body)
    launch(kernel, [*buffers, *numbers], group="coords")

    rows = alloc("out_coords", i32(), f"{outputs} * 4")
    set_keys = alloc(f"{out_prefix}keys", made.key, f"{outputs} + {KEY_PADDING}")
    origin = alloc(f"{out_prefix}origin", i32(), outputs)
    set_status = alloc(f"{out_prefix}status", i64(), str(STATUS_WORDS))
    buffers = [out_keys, slabs, status, rows, set_keys, origin, set_status]
    numbers = [symbol(number, i64()) for number in (outputs, *_BOXES, "threads")]
    name = f"decode_keys_{made.name}"
    types = [pointer()] * len(buffers) + [i64()] * len(numbers)
    kernel = functions.kernel(name, types, DecodeKeys(functions, name, made))
    launch(kernel, [*buffers, *numbers], group="decode")
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
