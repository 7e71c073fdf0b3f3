"""Lowers spconv.compact to one kernel that ranks and writes the pairs.

Before:
    %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16}>}
After:
    %in = "spconv.alloc"() {name = "in_rows", …}   (and out_rows, tile_tap, tap_tile)
    "spconv.launch"(%table, %tap_count, %state, …, rows) {kernel = @kernels::@compact_pairs…}

The pairs are carried as the buffers in_rows, out_rows, tile_tap, tap_tile (passes/gpu/tap_tile_row.py). The map has
counted the pairs of each tap and cleared the state of the look-back, once: a second compaction of one map clears a
state of its own. Needs level stages with schedules and the map lowered, gives level gpu for this op. Fails on an op
without a schedule, with one that is not for a GPU, or with tiles that one workgroup cannot pad.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import CompactOp
from spconv_compiler.dialect.plan import alloc, launch, symbol
from spconv_compiler.dialect.types import buffer_type
from spconv_compiler.passes.base import Pass, replace_each
from spconv_compiler.passes.gpu import tap_tile_row
from spconv_compiler.passes.gpu.limits import require
from spconv_compiler.passes.gpu.row_masks import BLOCK_ROWS
from spconv_compiler.passes.gpu.scheduled import gpu_target, parameters
from spconv_compiler.passes.gpu.sorted_tiles import BY_ROWS, rewrite_rows, rewrite_sorted
from spconv_compiler.passes.kernel_builder import i32
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage, gpu_kernel
from spconv_compiler.targets import GpuTarget

# Noted on the cast of a map whose state a compaction has used up.
_USED = "state_used"


def gemm_tiles(taps: int, tile_m: int) -> str:
    """The most gemm tiles there can be: every row paired through every tap. A text for plan.size_map."""
    return f"(rows ceildiv {tile_m}) * {taps}"


def rewrite_compact(op: CompactOp, module: ir.Module, target: GpuTarget, tile_m: int) -> list[ir.Value]:
    table, tap_count, _ = buffers_of(op.map)
    taps, words = op.taps, buffer_type(i32())
    pairs_size = f"({gemm_tiles(taps, tile_m)}) * {tile_m}"
    require(op, "bytes of a column of the pair list", f"({pairs_size}) * 4", target.buffer_limit_bytes)
    tap_tile = alloc("tap_tile", i32(), str(taps + 1))
    in_rows, out_rows = alloc("in_rows", i32(), pairs_size), alloc("out_rows", i32(), pairs_size)
    tile_tap, rows = alloc("tile_tap", i32(), gemm_tiles(taps, tile_m)), symbol("rows", i32())
    kernel = gpu_kernel(
        module,
        f"compact_pairs_t{taps}_m{tile_m}",
        [words] * 7 + [i32()],
        tap_tile_row.LANES,
        tap_tile_row.compact(taps, tile_m, target.wave, target.chiplets),
        workgroup=tap_tile_row.compact_memory(target.wave),
    )
    buffers = [table, tap_count, _state(op, module, target), tap_tile, in_rows, out_rows, tile_tap]
    grid = [f"({tap_tile_row.chunks(target.chiplets)}) * {taps}"]
    launch(kernel, [*buffers, rows], group="pairs", grid=grid, block=tap_tile_row.LANES)
    return [cast_to_stage([in_rows, out_rows, tile_tap, tap_tile], op.operation.results[0].type)]


def _state(op: CompactOp, module: ir.Module, target: GpuTarget) -> ir.Value:
    """Cleared state: the map's, or if that is used up, one of this compaction's own."""
    noted = op.map.owner.operation.attributes
    if _USED not in noted:
        noted[_USED] = ir.UnitAttr.get()
        return buffers_of(op.map)[2]
    lanes, words = tap_tile_row.LANES, tap_tile_row.state_words(op.taps, target.chiplets)
    state = alloc("pair_state", i32(), words)
    types = [buffer_type(i32()), i32()]
    body = tap_tile_row.clear_state(op.taps, lanes, target.chiplets)
    kernel = gpu_kernel(module, f"clear_pairs_t{op.taps}", types, lanes, body)
    grid = [f"({words}) ceildiv {4 * lanes}"]
    launch(kernel, [state, symbol("rows", i32())], group="pairs", grid=grid, block=lanes)
    return state


@dataclasses.dataclass(frozen=True)
class ConvertCompactToGpu(Pass):
    """See the module."""

    target: str = "gfx950"
    name: ClassVar[str] = "convert-compact-to-gpu"
    needs: ClassVar[str] = "stages"
    gives: ClassVar[str] = "gpu"

    def run(self, module: ir.Module) -> None:
        target = gpu_target(self, module, self.target)

        def rewrite(op: CompactOp) -> list[ir.Value]:
            if op.schedule is not None and op.schedule[0] == "sorted_tiles":
                values = parameters(self, op, "sorted_tiles", "block_rows", "items")
                if values["block_rows"] != BLOCK_ROWS:
                    self.fail(op, f"blocks of {values['block_rows']} rows", f"accepted here: {BLOCK_ROWS}")
                if BY_ROWS in op.map.owner.operation.attributes:
                    return rewrite_rows(op, module, target, values["items"])
                kernel_size = list(ir.DenseI64ArrayAttr(op.map.owner.operation.attributes["kernel_size"]))
                return rewrite_sorted(op, buffers_of(op.map)[0], kernel_size, module, target, values["items"])
            tile_m = parameters(self, op, "tap_tile_row", "tile_m")["tile_m"]
            if tile_m > tap_tile_row.LANES:
                self.fail(op, f"gemm tiles of {tile_m} pairs", f"padding reaches {tap_tile_row.LANES} pairs at most")
            return rewrite_compact(op, module, target, tile_m)

        replace_each(module, CompactOp.OPERATION_NAME, rewrite)
