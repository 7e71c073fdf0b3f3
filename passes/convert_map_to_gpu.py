"""Lowers spconv.map to kernels that build the neighbour table on a dense grid.

Before:
    %map = "spconv.map"(%coords) {dilation, kernel_size, schedule = #spconv.schedule<"dense_grid", {block}>}
After:
    %grid  = "spconv.alloc"() {name = "grid", size = (cells ceildiv 4) * 4}
    %table = "spconv.alloc"() {name = "table", size = (rows ceildiv 16) * 432}
    "spconv.launch"(%grid, cells)                     {kernel = @kernels::@fill_grid…}
    "spconv.launch"(%coords, %grid, rows, box)        {kernel = @kernels::@scatter_rows…}
    "spconv.launch"(%coords, %grid, %table, rows, box) {kernel = @kernels::@lookup…}

Needs level stages with schedules, gives level gpu for this op. Fails on an op without a schedule, with one that is
not for a GPU, or with a block that the target does not take. passes/gpu/dense_grid.py has the bodies and the table's
layout.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import MapOp
from spconv_compiler.dialect.plan import alloc, launch, symbol
from spconv_compiler.dialect.types import buffer_type
from spconv_compiler.passes.base import Pass, replace_each
from spconv_compiler.passes.gpu import dense_grid
from spconv_compiler.passes.gpu.box import box_symbols, box_types, key_type
from spconv_compiler.passes.gpu.limits import require
from spconv_compiler.passes.gpu.scheduled import gpu_target, parameters
from spconv_compiler.passes.kernel_builder import i32
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage, gpu_kernel
from spconv_compiler.targets import GpuTarget


def rewrite_map(op: MapOp, module: ir.Module, target: GpuTarget, lanes: int) -> list[ir.Value]:
    (coords,) = buffers_of(op.coords)
    width, key = op.key_width, key_type(op.key_width)
    tile = dense_grid.TILE_ROWS
    cells, table_size = "(cells ceildiv 4) * 4", f"(rows ceildiv {tile}) * {tile * op.taps}"
    grid, table = alloc("grid", i32(), cells), alloc("table", i32(), table_size)
    require(op, "bytes of coordinates", "rows * 16", target.buffer_limit_bytes)
    require(op, "bytes of the kernel map", f"({table_size}) * 4", target.buffer_limit_bytes)
    if width == 32:
        require(op, "bytes of the dense grid, with 32-bit keys", f"({cells}) * 4", target.buffer_limit_bytes)

    halo = [size // 2 * step for size, step in zip(op.kernel_size, op.dilation, strict=True)]
    words = buffer_type(i32())
    fill = gpu_kernel(module, f"fill_grid_k{width}_b{lanes}", [words, key], lanes, dense_grid.fill_grid(width, lanes))
    scatter = gpu_kernel(
        module,
        f"scatter_rows_k{width}_h{_name(halo)}_b{lanes}",
        [words, words, i32(), *box_types(width)],
        lanes,
        dense_grid.scatter_rows(halo, lanes),
    )
    lookup = gpu_kernel(
        module,
        f"lookup_k{width}_{_name(op.kernel_size)}_d{_name(op.dilation)}_b{lanes}",
        [words, words, words, i32(), *box_types(width)],
        lanes,
        dense_grid.lookup(op.kernel_size, op.dilation, lanes),
    )
    rows, box = symbol("rows", i32()), box_symbols(width)
    by_rows = f"rows ceildiv {lanes}"
    spans = f"cells ceildiv {dense_grid.fill_span(lanes)}"
    launch(fill, [grid, symbol("cells", key)], group="pairs", grid=[spans], block=lanes)
    launch(scatter, [coords, grid, rows, *box], group="pairs", grid=[by_rows], block=lanes)
    axes = [by_rows, str(dense_grid.batches(op.kernel_size))]
    launch(lookup, [coords, grid, table, rows, *box], group="pairs", grid=axes, block=lanes)
    return [cast_to_stage([table], op.operation.results[0].type)]


def _name(sizes: list[int]) -> str:
    return "x".join(map(str, sizes))


@dataclasses.dataclass(frozen=True)
class ConvertMapToGpu(Pass):
    """See the module."""

    target: str = "gfx950"
    name: ClassVar[str] = "convert-map-to-gpu"
    needs: ClassVar[str] = "stages"
    gives: ClassVar[str] = "gpu"

    def run(self, module: ir.Module) -> None:
        target = gpu_target(self, module, self.target)

        def rewrite(op: MapOp) -> list[ir.Value]:
            lanes = parameters(self, op, "dense_grid", "block")["block"]
            if lanes % target.wave or lanes > target.max_workgroup:
                limits = f"{target.name} takes whole waves of {target.wave}, at most {target.max_workgroup} lanes"
                self.fail(op, f"a block of {lanes} lanes", limits)
            return rewrite_map(op, module, target, lanes)

        replace_each(module, MapOp.OPERATION_NAME, rewrite)
