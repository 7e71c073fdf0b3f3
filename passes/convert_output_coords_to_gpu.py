"""Lowers spconv.output_coords to kernels over a bit for every cell of the box of outputs, or to a sort of candidates.

Before:
    %out = "spconv.output_coords"(%coords) {kernel_size, stride, padding, dilation, transposed = false,
             schedule = #spconv.schedule<"marked_cells", {block = 256}>}
After:
    %marks = "spconv.alloc"() {name = "marks", size = cells / 32 + …}
    %rows  = "spconv.alloc"() {name = "out_coords", size = coarse_rows * 4}
    %count = "spconv.alloc"() {name = "out_coords_count", size = 2}
    "spconv.launch"(%marks, %rows, cells, coarse_rows) {kernel = @kernels::@clear_marks…, group = "coords"}
    "spconv.launch"(%coords, %coords_count, %marks, cells, box) {kernel = @kernels::@mark_outputs…, group = "coords"}
    "spconv.launch"(%marks, %rows, %count, …, box) {kernel = @kernels::@read_marks…, group = "coords"}

or, with schedule = #spconv.schedule<"sorted_candidates", {block, items}>, for boxes that have too many cells:
    "spconv.launch"(%state, %scan, %rows, …)                  {kernel = @kernels::@clear_candidates…}
    "spconv.launch"(%coords, %coords_count, %records, …, box) {kernel = @kernels::@candidate_records…}
    "spconv.launch"(%records, %state, rows)                   {kernel = @kernels::@sort_candidates…}, for each digit
    "spconv.launch"(%records, …, %rows, %count, …, box)       {kernel = @kernels::@unique_outputs…}

coarse_rows (or rows, where the op is transposed) is how many rows there is room for; how many there are stays on the
device. passes/gpu/output_cells.py and sorted_outputs.py have the bodies. `cells` are those of the box of outputs, so
that an op between the two sets may follow in the same function only where outputs are coarse. Needs level stages with
schedules, gives level gpu for this op. Fails on an op without a schedule, with one that is not for a GPU or lacks a
parameter, with a block that the target does not take, on a second op in a function, and on a transposed op whose
outputs the function uses.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import func, ir
from spconv_compiler.dialect import OutputCoordsOp
from spconv_compiler.dialect.plan import OUT_BOX, alloc, launch, symbol
from spconv_compiler.dialect.types import buffer_type
from spconv_compiler.passes.base import Pass, ops_named, replace_each
from spconv_compiler.passes.convert_host_to_plan import COUNT_SUFFIX
from spconv_compiler.passes.gpu import output_cells
from spconv_compiler.passes.gpu.box import key_type
from spconv_compiler.passes.gpu.cross_axes import candidates
from spconv_compiler.passes.gpu.device_counts import set_buffers
from spconv_compiler.passes.gpu.device_scan import MAX_COUNT, scan_shared
from spconv_compiler.passes.gpu.limits import require
from spconv_compiler.passes.gpu.radix_sort import LANES as SORT_LANES
from spconv_compiler.passes.gpu.radix_sort import Sort
from spconv_compiler.passes.gpu.scheduled import gpu_target, lanes_of, parameters
from spconv_compiler.passes.gpu.sorted_outputs import SortedOutputs, key_buffer_bytes
from spconv_compiler.passes.kernel_builder import i32
from spconv_compiler.passes.kernel_module import cast_to_stage, gpu_kernel
from spconv_compiler.passes.reach import Reach
from spconv_compiler.schedules.mappers import MARKED_CELLS, NARROW_KEYS, SORTED_CANDIDATES
from spconv_compiler.targets import GpuTarget

# Words of a count: rows that are there, rows that would be there with room for all.
COUNT_WORDS = 2


@dataclasses.dataclass(frozen=True)
class _Made:
    """What both forms share: the geometry, symbols of inputs and outputs, and the rows with their number."""

    reach: Reach
    inputs: str
    outputs: str
    rows: ir.Value
    count: ir.Value

    @staticmethod
    def of(op: OutputCoordsOp, target: GpuTarget) -> _Made:
        reach = Reach.of(op.kernel_size, op.stride, op.padding, op.dilation, transposed=op.transposed)
        inputs, outputs = ("coarse_rows", "rows") if op.transposed else ("rows", "coarse_rows")
        require(op, "bytes of coordinates", f"{inputs} * 16", target.buffer_limit_bytes)
        require(op, "bytes of the outputs' coordinates", f"{outputs} * 16", target.buffer_limit_bytes)
        require(op, "outputs", outputs, MAX_COUNT)
        rows = alloc("out_coords", i32(), f"{outputs} * 4")
        return _Made(reach, inputs, outputs, rows, alloc(f"out_coords{COUNT_SUFFIX}", i32(), str(COUNT_WORDS)))


def _box(key: ir.Type) -> tuple[list[ir.Value], list[ir.Type]]:
    """The launch arguments of the box of outputs, and their types."""
    return [symbol(name, key) for name in (*OUT_BOX, "batches")], [key] * (len(OUT_BOX) + 1)


def rewrite_by_marks(op: OutputCoordsOp, module: ir.Module, target: GpuTarget, lanes: int) -> list[ir.Value]:
    coords, coords_count = set_buffers(op.coords)
    width, key, words = op.key_width, key_type(op.key_width), buffer_type(i32())
    marks, made = alloc("marks", i32(), output_cells.mark_words(lanes)), _Made.of(op, target)
    reach, inputs, outputs, rows, count = made.reach, made.inputs, made.outputs, made.rows, made.count
    cells, capacity = symbol("cells", key), symbol(outputs, i32())
    box, boxes = _box(key)

    name = f"k{width}_b{lanes}"
    clear = gpu_kernel(
        module, f"clear_marks_{name}", [words, words, key, i32()], lanes, output_cells.clear(width, lanes)
    )
    mark = gpu_kernel(
        module,
        f"mark_outputs_{name}_{reach.name}",
        [words, words, words, key, *boxes],
        lanes,
        output_cells.mark(reach, width, lanes),
    )
    read = gpu_kernel(
        module,
        f"read_marks_{name}",
        [words, words, words, key, i32(), *boxes],
        lanes,
        output_cells.read_marks(width, lanes, target.wave),
        workgroup=scan_shared(lanes, target.wave),
    )
    clear_grid = [f"{output_cells.clear_blocks(lanes)} + {outputs} ceildiv {lanes}"]
    mark_grid = [f"{inputs} ceildiv {lanes}", str(candidates(reach, 0) * candidates(reach, 1))]
    read_grid = [f"cells ceildiv {output_cells.tile_cells(lanes)}"]
    launch(clear, [marks, rows, cells, capacity], group="coords", grid=clear_grid, block=lanes)
    launch(mark, [coords, coords_count, marks, cells, *box], group="coords", grid=mark_grid, block=lanes)
    launch(read, [marks, rows, count, cells, capacity, *box], group="coords", grid=read_grid, block=lanes)
    return [cast_to_stage([rows, count], op.operation.results[0].type)]


def rewrite_by_sort(
    op: OutputCoordsOp, module: ir.Module, target: GpuTarget, lanes: int, items: int
) -> list[ir.Value]:
    """The keys of all candidates, sorted, each once."""
    coords, coords_count = set_buffers(op.coords)
    width, key, words = op.key_width, key_type(op.key_width), buffer_type(i32())
    made, sort, keys = _Made.of(op, target), Sort(width, items, target.wave), buffer_type(key)
    outputs, inputs = SortedOutputs(made.reach, sort, lanes), made.inputs
    total = outputs.total(inputs)
    for what, size in key_buffer_bytes(outputs, inputs).items():
        require(op, f"bytes of {what}", size, target.buffer_limit_bytes)
    if width == 32:
        require(op, "cells of the box of outputs, with 32-bit keys", "cells", NARROW_KEYS)
    records, state = alloc("out_records", key, sort.records(total)), alloc("out_state", i32(), sort.words(total))
    scan = alloc("out_scan", i32(), outputs.scan_words(inputs))
    cells, number, capacity = symbol("cells", key), symbol(inputs, i32()), symbol(made.outputs, i32())
    box, boxes = _box(key)

    name = f"k{width}_c{outputs.each}"
    clear = gpu_kernel(
        module, f"clear_candidates_{name}_i{items}_b{lanes}", [words] * 3 + [i32(), key, i32()], lanes, outputs.clear()
    )
    make = gpu_kernel(
        module,
        f"candidate_records_k{width}_i{items}_{made.reach.name}",
        [words, words, keys, words, i32(), key, *boxes],
        SORT_LANES,
        outputs.make_records(),
        workgroup=sort.make_workgroup(),
    )
    digit = gpu_kernel(
        module,
        f"sort_candidates_{name}_i{items}",
        [keys, words, i32()],
        SORT_LANES,
        outputs.digit_pass(),
        workgroup=sort.pass_workgroup(),
    )
    unique = gpu_kernel(
        module,
        f"unique_outputs_{name}_b{lanes}",
        [keys, *[words] * 4, i32(), key, i32(), *boxes],
        lanes,
        outputs.unique(),
        workgroup=scan_shared(lanes, target.wave),
    )
    grid = [outputs.clear_grid(inputs, made.outputs)]
    launch(clear, [state, scan, made.rows, number, cells, capacity], group="coords", grid=grid, block=lanes)
    filled = [coords, coords_count, records, state, number, cells, *box]
    launch(make, filled, group="coords", grid=[sort.tiles(total)], block=SORT_LANES)
    for turn in range(sort.passes):
        reached = [sort.grid(turn, rows=total)]
        launch(digit, [records, state, number], group="coords", grid=reached, block=SORT_LANES)
    read = [records, state, scan, made.rows, made.count, number, cells, capacity, *box]
    launch(unique, read, group="coords", grid=[outputs.tiles(inputs)], block=lanes)
    return [cast_to_stage([made.rows, made.count], op.operation.results[0].type)]


@dataclasses.dataclass(frozen=True)
class ConvertOutputCoordsToGpu(Pass):
    """See the module."""

    target: str = "gfx950"
    name: ClassVar[str] = "convert-output-coords-to-gpu"
    needs: ClassVar[str] = "stages"
    gives: ClassVar[str] = "gpu"

    def run(self, module: ir.Module) -> None:
        target = gpu_target(self, module, self.target)
        found = ops_named(module, OutputCoordsOp.OPERATION_NAME)
        if len(found) > 1:
            self.fail(found[1], "a second set of outputs", "supported: one in a function, whose box the plan's is")

        def rewrite(op: OutputCoordsOp) -> list[ir.Value]:
            by_sort = op.schedule is not None and op.schedule[0] == SORTED_CANDIDATES
            lanes = lanes_of(self, op, SORTED_CANDIDATES if by_sort else MARKED_CELLS, target)
            users = [use.owner for use in op.operation.results[0].uses]
            if op.transposed and any(not isinstance(user, func.ReturnOp) for user in users):
                note = "supported: outputs that the function returns; those of a strided op have one box with their map"
                self.fail(op, "the outputs of a transposed op are used in the same function", note)
            if by_sort:
                items = parameters(self, op, SORTED_CANDIDATES, "items")["items"]
                return rewrite_by_sort(op, module, target, lanes, items)
            return rewrite_by_marks(op, module, target, lanes)

        replace_each(module, OutputCoordsOp.OPERATION_NAME, rewrite)
