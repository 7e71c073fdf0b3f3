"""Lowers spconv.place_coords to one kernel.

Before:
    "spconv.place_coords"(%coords)
After:
    %placed  = "spconv.alloc"() {name = "placed", size = coarse_rows * 4}
    %count   = "spconv.alloc"() {name = "placed_count", size = 2}
    %outside = "spconv.alloc"() {name = "outside", size = 1}
    "spconv.launch"(%coords, %placed, %count, %outside, rows, coarse_rows, extents) {kernel = @kernels::@place_rows…}

`rows` are those of the frame, `coarse_rows` those that there is room for; extents and batches are those of the box that
begins at 0. passes/gpu/frame_rows.py has the body. A run gives all buffers: `outside` is added to. With a second
operand, %frame, the kernel is @place_rows_by_words…, which takes that buffer behind %coords, and no `rows`.

Gives level gpu for this op. Fails on a second one in a function: the plan's numbers are those of one.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import PlaceCoordsOp
from spconv_compiler.dialect.plan import alloc, launch, symbol
from spconv_compiler.dialect.types import buffer_type
from spconv_compiler.passes.base import Pass, ops_named, replace_each
from spconv_compiler.passes.gpu.frame_rows import frame_memory, place_rows, place_rows_by_words, types
from spconv_compiler.passes.gpu.limits import require
from spconv_compiler.passes.gpu.scheduled import gpu_target
from spconv_compiler.passes.kernel_builder import i32
from spconv_compiler.passes.kernel_module import buffers_of, gpu_kernel
from spconv_compiler.targets import GpuTarget

_LANES = 256
# Rows of a lane where every workgroup has to fetch from the host's memory where they are.
_ITEMS = 4
_NUMBERS = ("rows", "coarse_rows", "extent_z", "extent_y", "extent_x", "batches")


def rewrite_place_coords(op: PlaceCoordsOp, module: ir.Module, target: GpuTarget) -> list[ir.Value]:
    by_words = op.frame is not None
    given = [*buffers_of(op.coords), *(buffers_of(op.frame) if by_words else [])]
    require(op, "bytes of coordinates", "coarse_rows * 16", target.buffer_limit_bytes)
    sizes = {"placed": "coarse_rows * 4", "placed_count": "2", "outside": "1"}
    buffers = [*given, *(alloc(name, i32(), size) for name, size in sizes.items())]
    numbers = [symbol(name, i32()) for name in _NUMBERS if not by_words or name != "rows"]
    items = _ITEMS if by_words else 1
    body = place_rows_by_words(_LANES, target.wave, items) if by_words else place_rows(_LANES, target.wave)
    name = f"place_rows_by_words_b{_LANES}" if by_words else f"place_rows_b{_LANES}"
    memory = [frame_memory()] if by_words else []
    kernel = gpu_kernel(module, name, types(buffer_type(i32()), by_words), _LANES, body, workgroup=memory)
    grid = [f"coarse_rows ceildiv {_LANES * items}"]
    launch(kernel, [*buffers, *numbers], group="coords", grid=grid, block=_LANES)
    return []


@dataclasses.dataclass(frozen=True)
class ConvertFrameToGpu(Pass):
    """See the module."""

    target: str = "gfx950"
    name: ClassVar[str] = "convert-frame-to-gpu"
    needs: ClassVar[str] = "stages"
    gives: ClassVar[str] = "gpu"

    def run(self, module: ir.Module) -> None:
        target = gpu_target(self, module, self.target)
        found = ops_named(module, PlaceCoordsOp.OPERATION_NAME)
        if len(found) > 1:
            self.fail(found[1], "a second op that places a frame", "supported: one in a function")
        replace_each(module, PlaceCoordsOp.OPERATION_NAME, lambda op: rewrite_place_coords(op, module, target))
