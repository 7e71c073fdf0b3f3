"""Lowers spconv.compact to three kernels: count and scan, scan of the totals, write.

Before:
    %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16}>}
After:
    %in = "spconv.alloc"() {name = "in_rows", …}   (and out_rows, tile_tap, tap_tile, and scratch)
    "spconv.launch"(%table, %prefix, %chunk, rows) {kernel = @kernels::@count_tiles…}
    "spconv.launch"(%chunk, %tap_count, %tap_tile, rows) {kernel = @kernels::@scan_totals…}
    "spconv.launch"(%table, …, %in, %out, %tile_tap, rows) {kernel = @kernels::@write_pairs…}

The pairs are carried as the buffers in_rows, out_rows, tile_tap, tap_tile (passes/gpu/tap_tile_row.py). Needs level
stages with schedules and the map lowered, gives level gpu for this op. Fails on an op without a schedule, with
one that is not for a GPU, or with tiles that one workgroup cannot pad.
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
from spconv_compiler.passes.gpu.dense_grid import TILE_ROWS
from spconv_compiler.passes.gpu.lanes import shared
from spconv_compiler.passes.gpu.limits import require
from spconv_compiler.passes.gpu.scheduled import gpu_target, parameters
from spconv_compiler.passes.kernel_builder import i32
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage, gpu_kernel
from spconv_compiler.targets import GpuTarget

_TILES = f"rows ceildiv {TILE_ROWS}"


def gemm_tiles(taps: int, tile_m: int) -> str:
    """The most gemm tiles there can be: every row paired through every tap. A text for plan.size_map."""
    return f"(rows ceildiv {tile_m}) * {taps}"


def rewrite_compact(op: CompactOp, module: ir.Module, target: GpuTarget, tile_m: int) -> list[ir.Value]:
    (table,) = buffers_of(op.map)
    taps, wave, words = op.taps, target.wave, buffer_type(i32())
    chunk_lanes, scan_lanes = tap_tile_row.CHUNK, target.max_workgroup
    chunks = f"({_TILES}) ceildiv {chunk_lanes}"
    pairs_size = f"({gemm_tiles(taps, tile_m)}) * {tile_m}"
    require(op, "bytes of a column of the pair list", f"({pairs_size}) * 4", target.buffer_limit_bytes)

    prefix, chunk = alloc("prefix", i32(), f"({_TILES}) * {taps}"), alloc("chunk", i32(), f"({chunks}) * {taps}")
    tap_count, tap_tile = alloc("tap_count", i32(), str(taps)), alloc("tap_tile", i32(), str(taps + 1))
    in_rows, out_rows = alloc("in_rows", i32(), pairs_size), alloc("out_rows", i32(), pairs_size)
    tile_tap, rows = alloc("tile_tap", i32(), gemm_tiles(taps, tile_m)), symbol("rows", i32())

    count = gpu_kernel(
        module,
        f"count_tiles_t{taps}",
        [words, words, words, i32()],
        chunk_lanes,
        tap_tile_row.count_tiles(taps, wave),
        workgroup=[shared(chunk_lanes // wave)],
    )
    scan = gpu_kernel(
        module,
        f"scan_totals_t{taps}_m{tile_m}",
        [words, words, words, i32()],
        scan_lanes,
        tap_tile_row.scan_totals(taps, tile_m, wave, scan_lanes // wave),
        workgroup=[shared(taps)],
    )
    write = gpu_kernel(
        module,
        f"write_pairs_t{taps}_m{tile_m}",
        [words] * 8 + [i32()],
        chunk_lanes,
        tap_tile_row.write_pairs(taps, tile_m, wave),
    )
    by_chunk, by_tap = [chunks, str(taps)], [f"({_TILES}) ceildiv {chunk_lanes // TILE_ROWS}", str(taps)]
    launch(count, [table, prefix, chunk, rows], group="pairs", grid=by_chunk, block=chunk_lanes)
    launch(scan, [chunk, tap_count, tap_tile, rows], group="pairs", grid=["1"], block=scan_lanes)
    scratch = [table, prefix, chunk, tap_count, tap_tile]
    launch(write, [*scratch, in_rows, out_rows, tile_tap, rows], group="pairs", grid=by_tap, block=chunk_lanes)
    return [cast_to_stage([in_rows, out_rows, tile_tap, tap_tile], op.operation.results[0].type)]


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
            tile_m = parameters(self, op, "tap_tile_row", "tile_m")["tile_m"]
            if tile_m > tap_tile_row.CHUNK:
                self.fail(op, f"gemm tiles of {tile_m} pairs", f"padding reaches {tap_tile_row.CHUNK} pairs at most")
            return rewrite_compact(op, module, target, tile_m)

        replace_each(module, CompactOp.OPERATION_NAME, rewrite)
