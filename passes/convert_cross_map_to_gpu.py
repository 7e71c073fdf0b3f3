"""Lowers spconv.cross_map to kernels that put the coarse set into a dense grid, or sort its keys.

Before:
    %map = "spconv.cross_map"(%fine, %coarse) {kernel_size, stride, padding, dilation,
             schedule = #spconv.schedule<"coarse_grid", {block = 256}>}
After:
    %grid = "spconv.alloc"() {name = "coarse_grid", size = (cells ceildiv 4) * 4}
    "spconv.launch"(%grid, cells)                        {kernel = @kernels::@fill_coarse…, group = "map"}
    "spconv.launch"(%coarse, %coarse_count, %grid, box)  {kernel = @kernels::@scatter_coarse…, group = "map"}

or, with schedule = #spconv.schedule<"coarse_keys", {block, items}>, for boxes that are too large for a grid:
    "spconv.launch"(%state, coarse_rows, cells)             {kernel = @kernels::@clear_keys…}
    "spconv.launch"(%coarse, %records, %state, …, box)      {kernel = @kernels::@coarse_records…}
    "spconv.launch"(%records, %state, coarse_rows)          {kernel = @kernels::@sort_digit…}, for each digit

With "coarse_ascending" nothing is launched: the coarse set ascends, each voxel once, and is searched itself.

The map is carried as both sets with their numbers of rows, and the grid (or records and the sort's state), in which
both directions look up (passes/gpu/cross_lookup.py). The plan's box and cells are those of the coarse set, without
halo. Needs level stages with schedules, gives level gpu for this op. Fails on an op without a schedule, with one that
is not for a GPU, with a block that the target does not take, and on a second map in a function: the box is one.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import CrossMapOp
from spconv_compiler.dialect.geometry import AXES
from spconv_compiler.dialect.plan import alloc, launch, symbol
from spconv_compiler.dialect.types import buffer_type
from spconv_compiler.passes.base import Pass, ops_named, replace_each
from spconv_compiler.passes.gpu import cross_lookup, z_delta
from spconv_compiler.passes.gpu.box import box_symbols, box_types, key_type
from spconv_compiler.passes.gpu.device_counts import set_buffers
from spconv_compiler.passes.gpu.limits import require
from spconv_compiler.passes.gpu.radix_sort import LANES as SORT_LANES
from spconv_compiler.passes.gpu.radix_sort import Sort
from spconv_compiler.passes.gpu.scheduled import gpu_target, lanes_of, parameters
from spconv_compiler.passes.kernel_builder import i32
from spconv_compiler.passes.kernel_module import cast_to_stage, gpu_kernel
from spconv_compiler.schedules.mappers import COARSE_ASCENDING, COARSE_GRID, COARSE_KEYS, NARROW_KEYS
from spconv_compiler.targets import GpuTarget


def rewrite_cross_map(op: CrossMapOp, module: ir.Module, target: GpuTarget, lanes: int) -> list[ir.Value]:
    (fine, fine_count), (coarse, coarse_count) = set_buffers(op.fine), set_buffers(op.coarse)
    width, key, words = op.key_width, key_type(op.key_width), buffer_type(i32())
    cells = "(cells ceildiv 4) * 4"
    require(op, "bytes of coordinates", "rows * 16", target.buffer_limit_bytes)
    require(op, "bytes of the coarse coordinates", "coarse_rows * 16", target.buffer_limit_bytes)
    if width == 32:
        require(op, "bytes of the coarse grid, with 32-bit keys", f"({cells}) * 4", target.buffer_limit_bytes)
    grid = alloc("coarse_grid", i32(), cells)
    fill = gpu_kernel(module, f"fill_coarse_k{width}_b{lanes}", [words, key], lanes, cross_lookup.fill(lanes))
    scatter = gpu_kernel(
        module,
        f"scatter_coarse_k{width}_b{lanes}",
        [words, words, words, *box_types(width)],
        lanes,
        cross_lookup.scatter(lanes),
    )
    spans, rows = f"cells ceildiv {cross_lookup.fill_span(lanes)}", f"coarse_rows ceildiv {lanes}"
    launch(fill, [grid, symbol("cells", key)], group="map", grid=[spans], block=lanes)
    launch(scatter, [coarse, coarse_count, grid, *box_symbols(width)], group="map", grid=[rows], block=lanes)

    return _carried(op, [fine, fine_count, coarse, coarse_count, grid], 0)


def rewrite_by_keys(op: CrossMapOp, module: ir.Module, target: GpuTarget, lanes: int, items: int) -> list[ir.Value]:
    """The coarse set as sorted records (radix_sort.py)."""
    (fine, fine_count), (coarse, coarse_count) = set_buffers(op.fine), set_buffers(op.coarse)
    width, key, words = op.key_width, key_type(op.key_width), buffer_type(i32())
    sort, keys = Sort(width, items, target.wave), buffer_type(key)
    of_coarse = "coarse_rows"
    limits = {
        "coordinates": "rows * 16",
        "the coarse coordinates": "coarse_rows * 16",
        "sorted keys": f"({sort.records(of_coarse)}) * {width // 8}",
        "the sort's state": f"({sort.words(of_coarse)}) * 4",
    }
    for what, size in limits.items():
        require(op, f"bytes of {what}", size, target.buffer_limit_bytes)
    if width == 32:
        require(op, "cells of the box, with 32-bit keys", "cells", NARROW_KEYS)
    records = alloc("coarse_records", key, sort.records(of_coarse))
    state = alloc("coarse_state", i32(), sort.words(of_coarse))
    name = f"k{width}_i{items}"
    clear = gpu_kernel(module, f"clear_keys_{name}_b{lanes}", [words, i32(), key], lanes, sort.clear(lanes))
    make = gpu_kernel(
        module,
        f"coarse_records_{name}",
        [words, keys, words, i32(), key, *box_types(width)],
        SORT_LANES,
        sort.make_records(z_delta.key_of((0, 0, 0))),
        workgroup=sort.make_workgroup(),
    )
    digit = gpu_kernel(
        module,
        f"sort_digit_{name}",
        [keys, words, i32()],
        SORT_LANES,
        sort.digit_pass(),
        workgroup=sort.pass_workgroup(),
    )
    rows, cells, box = symbol(of_coarse, i32()), symbol("cells", key), box_symbols(width)
    launch(clear, [state, rows, cells], group="map", grid=[sort.clear_grid(lanes, of_coarse)], block=lanes)
    tiles = [sort.tiles(of_coarse)]
    launch(make, [coarse, records, state, rows, cells, *box], group="map", grid=tiles, block=SORT_LANES)
    for number in range(sort.passes):
        reached = [sort.grid(number, rows=of_coarse)]
        launch(digit, [records, state, rows], group="map", grid=reached, block=SORT_LANES)
    return _carried(op, [fine, fine_count, coarse, coarse_count, records, state], items)


def rewrite_ascending(op: CrossMapOp, target: GpuTarget) -> list[ir.Value]:
    """The coarse set as it is."""
    sets = [*set_buffers(op.fine), *set_buffers(op.coarse)]
    require(op, "bytes of coordinates", "rows * 16", target.buffer_limit_bytes)
    require(op, "bytes of the coarse coordinates", "coarse_rows * 16", target.buffer_limit_bytes)
    if op.key_width == 32:
        require(op, "cells of the box, with 32-bit keys", "cells", NARROW_KEYS)
    return _carried(op, sets, 0)


def _carried(op: CrossMapOp, buffers: list[ir.Value], items: int) -> list[ir.Value]:
    """The map as its buffers; items: of the sort, 0 where there is none."""
    noted = {name: op.operation.attributes[name] for name in AXES}
    number = ir.IntegerType.get_signless(64)
    noted["key_width"], noted["items"] = ir.IntegerAttr.get(number, op.key_width), ir.IntegerAttr.get(number, items)
    return [cast_to_stage(buffers, op.operation.results[0].type, **noted)]


@dataclasses.dataclass(frozen=True)
class ConvertCrossMapToGpu(Pass):
    """See the module."""

    target: str = "gfx950"
    name: ClassVar[str] = "convert-cross-map-to-gpu"
    needs: ClassVar[str] = "stages"
    gives: ClassVar[str] = "gpu"

    def run(self, module: ir.Module) -> None:
        target = gpu_target(self, module, self.target)
        found = ops_named(module, CrossMapOp.OPERATION_NAME)
        if len(found) > 1:
            note = "supported: one in a function, whose box the plan's is"
            self.fail(found[1], "a second map between two sets", note)

        def rewrite(op: CrossMapOp) -> list[ir.Value]:
            name = COARSE_GRID if op.schedule is None else op.schedule[0]
            if name == COARSE_KEYS:
                lanes, items = lanes_of(self, op, name, target), parameters(self, op, name, "items")["items"]
                return rewrite_by_keys(op, module, target, lanes, items)
            if name == COARSE_ASCENDING:
                return rewrite_ascending(op, target)
            return rewrite_cross_map(op, module, target, lanes_of(self, op, COARSE_GRID, target))

        replace_each(module, CrossMapOp.OPERATION_NAME, rewrite)
