"""Lowers spconv.cross_map to two kernels that put the coarse set into a dense grid.

Before:
    %map = "spconv.cross_map"(%fine, %coarse) {kernel_size, stride, padding, dilation,
             schedule = #spconv.schedule<"coarse_grid", {block = 256}>}
After:
    %grid = "spconv.alloc"() {name = "coarse_grid", size = (cells ceildiv 4) * 4}
    "spconv.launch"(%grid, cells)                        {kernel = @kernels::@fill_coarse…, group = "map"}
    "spconv.launch"(%coarse, %coarse_count, %grid, box)  {kernel = @kernels::@scatter_coarse…, group = "map"}

The map is carried as the fine coordinates, both sets' numbers of rows, and the grid, in which both directions look up
(passes/gpu/cross_lookup.py). The plan's box and cells are those of the coarse set, without halo. Needs level stages
with schedules, gives level gpu for this op. Fails on an op without a schedule, with one that is not for a GPU, with a
block that the target does not take, and on a second map in a function: the box is one.
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
from spconv_compiler.passes.gpu import cross_lookup
from spconv_compiler.passes.gpu.box import box_symbols, box_types, key_type
from spconv_compiler.passes.gpu.device_counts import set_buffers
from spconv_compiler.passes.gpu.limits import require
from spconv_compiler.passes.gpu.scheduled import gpu_target, lanes_of
from spconv_compiler.passes.kernel_builder import i32
from spconv_compiler.passes.kernel_module import cast_to_stage, gpu_kernel
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

    noted = {name: op.operation.attributes[name] for name in AXES}
    noted["key_width"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), width)
    return [cast_to_stage([fine, fine_count, coarse_count, grid], op.operation.results[0].type, **noted)]


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
            return rewrite_cross_map(op, module, target, lanes_of(self, op, "coarse_grid", target))

        replace_each(module, CrossMapOp.OPERATION_NAME, rewrite)
