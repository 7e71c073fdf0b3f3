"""Lowers spconv.cross_compact: to pairs for a gemm, or to a table of outputs for a pool.

Before:
    %pairs = "spconv.cross_compact"(%map) {transposed = false, schedule = #spconv.schedule<"tap_tile_row", {tile_m}>}
After:
    %in = "spconv.alloc"() {name = "in_rows", …}   (and out_rows, tile_tap, tap_tile, and scratch)
    "spconv.launch"(%fine, %fine_count, %grid, %table, %chunk, box) {kernel = @kernels::@cross_lookup…}
    "spconv.launch"(%fine_count, %chunk, %tap_count)                {kernel = @kernels::@scan_chunks…}
    "spconv.launch"(%fine_count, %table, …, %in, %out, …)           {kernel = @kernels::@write_cross_pairs…}

With schedule "output_table" there are three launches, and the pairs are carried as the table and the number of outputs:
    "spconv.launch"(%table, coarse_rows)                         {kernel = @kernels::@fill_table…}
    "spconv.launch"(%fine, %fine_count, %grid, %table, box)      {kernel = @kernels::@output_lookup…}
    "spconv.launch"(%coarse, %coarse_count, %grid, %table, box)  {kernel = @kernels::@share_rows…}

the last of them only where coarse rows may repeat.

With schedule "sorted_tiles" the table of the outputs is sorted as passes/gpu/sorted_tiles.py says. That of a transposed
op, whose outputs are the fine rows, takes one launch:
    "spconv.launch"(%fine, %fine_count, %grid, %table, rows, box) {kernel = @kernels::@input_lookup…}

passes/gpu/cross_lookup.py and cross_pairs.py have the bodies. Needs level stages with schedules and the map lowered,
gives level gpu for this op. Fails on an op without a schedule, with one that is not for a GPU, with tiles that one
workgroup cannot pad, and on a table of the outputs of a transposed op.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import CrossCompactOp
from spconv_compiler.dialect.geometry import AXES
from spconv_compiler.dialect.plan import alloc, launch, symbol
from spconv_compiler.dialect.types import buffer_type
from spconv_compiler.passes.base import Pass, replace_each
from spconv_compiler.passes.gpu import cross_lookup, cross_pairs
from spconv_compiler.passes.gpu.cross_index import CrossIndex
from spconv_compiler.passes.gpu.dense_grid import TILE_ROWS
from spconv_compiler.passes.gpu.lanes import shared
from spconv_compiler.passes.gpu.limits import require
from spconv_compiler.passes.gpu.radix_sort import Sort
from spconv_compiler.passes.gpu.row_masks import BLOCK_ROWS
from spconv_compiler.passes.gpu.scheduled import gpu_target, parameters
from spconv_compiler.passes.gpu.sorted_tiles import rewrite_sorted
from spconv_compiler.passes.kernel_builder import i32
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage, gpu_kernel
from spconv_compiler.passes.reach import Reach
from spconv_compiler.targets import GpuTarget

# Rows of a workgroup, each a lane.
_LANES = 256
OUTPUT_TABLE = "output_table"


def _geometry(op: CrossCompactOp, target: GpuTarget) -> tuple[Reach, CrossIndex]:
    """The geometry and the index of the coarse set, of which the cast of the lowered map notes what it is."""
    _, _, coarse, coarse_count, *index = buffers_of(op.map)
    noted = op.map.owner.operation.attributes
    reach = Reach.of(*(list(ir.DenseI64ArrayAttr(noted[name])) for name in AXES), transposed=False)
    width, items = (int(ir.IntegerAttr(noted[name]).value) for name in ("key_width", "items"))
    if not index:
        return reach, CrossIndex.ascending(coarse, coarse_count, width)
    if not items:
        return reach, CrossIndex.grid(index[0], width)
    return reach, CrossIndex.keys(index[0], index[1], Sort(width, items, target.wave))


def rewrite_pairs(op: CrossCompactOp, module: ir.Module, target: GpuTarget, tile_m: int) -> list[ir.Value]:
    reach, index = _geometry(op, target)
    fine, fine_count, *_ = buffers_of(op.map)
    taps, wave, words, scan_lanes = op.taps, target.wave, buffer_type(i32()), target.max_workgroup
    tiles = cross_pairs.gemm_tiles(taps, reach.coarse_of_fine, tile_m)
    require(op, "bytes of a column of the pair list", f"({tiles}) * {4 * tile_m}", target.buffer_limit_bytes)
    table, chunk = _fine_table(op, target), alloc("chunk", i32(), f"(rows ceildiv {_LANES}) * {taps}")
    tap_count, tap_tile = alloc("tap_count", i32(), str(taps)), alloc("tap_tile", i32(), str(taps + 1))
    in_rows, out_rows = (alloc(name, i32(), f"({tiles}) * {tile_m}") for name in ("in_rows", "out_rows"))
    tile_tap = alloc("tile_tap", i32(), tiles)

    look_up = gpu_kernel(
        module,
        f"cross_lookup_{index.name}_{reach.name}_b{_LANES}",
        [words, words, index.buffer_type, words, words, *index.types],
        _LANES,
        cross_lookup.look_up(reach, _LANES, wave, index.find),
        workgroup=[shared(cross_lookup.batch_size(reach.kernel_size) * (_LANES // wave))],
    )
    scan = gpu_kernel(
        module,
        f"scan_chunks_b{scan_lanes}",
        [words] * 3,
        scan_lanes,
        cross_pairs.scan_chunks(_LANES, scan_lanes, wave),
        workgroup=[shared(scan_lanes // wave)],
    )
    write = gpu_kernel(
        module,
        f"write_cross_pairs_t{taps}_m{tile_m}" + ("_transposed" if op.transposed else ""),
        [words] * 8,
        _LANES,
        cross_pairs.write_pairs(taps, tile_m, _LANES, wave, transposed=op.transposed),
        workgroup=[shared(_LANES // wave)],
    )
    by_rows = [f"rows ceildiv {_LANES}", str(cross_lookup.batches(reach.kernel_size))]
    # A workgroup for every tap even where there are no rows: the lists are then empty, not undefined.
    by_tap = [f"rows floordiv {_LANES} + 1", str(taps)]
    found = [fine, fine_count, index.buffer, table, chunk, *index.arguments]
    launch(look_up, found, group="pairs", grid=by_rows, block=_LANES)
    launch(scan, [fine_count, chunk, tap_count], group="pairs", grid=[str(taps)], block=scan_lanes)
    lists = [in_rows, out_rows, tile_tap, tap_tile]
    launch(write, [fine_count, table, chunk, tap_count, *lists], group="pairs", grid=by_tap, block=_LANES)

    reads, writes = ("coarse_rows", "rows") if op.transposed else ("rows", "coarse_rows")
    noted = {"rows": writes, "in_rows": reads, "tiles": tiles}
    attributes = {name: ir.StringAttr.get(text) for name, text in noted.items()}
    return [cast_to_stage(lists, op.operation.results[0].type, **attributes)]


def _fine_table(op: CrossCompactOp, target: GpuTarget) -> ir.Value:
    """Memory for the coarse rows that each fine row meets."""
    size = f"(rows ceildiv {TILE_ROWS}) * {TILE_ROWS * op.taps}"
    require(op, "bytes of the kernel map", f"({size}) * 4", target.buffer_limit_bytes)
    return alloc("table", i32(), size)


def rewrite_table(op: CrossCompactOp, module: ir.Module, target: GpuTarget) -> list[ir.Value]:
    reach, index = _geometry(op, target)
    fine, fine_count, coarse, coarse_count, *_ = buffers_of(op.map)
    taps, words = op.taps, buffer_type(i32())
    size = f"(coarse_rows ceildiv {TILE_ROWS}) * {TILE_ROWS * taps}"
    require(op, "bytes of the table of outputs", f"({size}) * 4", target.buffer_limit_bytes)
    table = alloc("output_table", i32(), size)
    fill = gpu_kernel(
        module, f"fill_table_t{taps}_b{_LANES}", [words, i32()], _LANES, cross_lookup.fill_table(taps, _LANES)
    )
    look_up = gpu_kernel(
        module,
        f"output_lookup_{index.name}_{reach.name}_b{_LANES}",
        [words, words, index.buffer_type, words, *index.types],
        _LANES,
        cross_lookup.look_up_outputs(reach, _LANES, index.find),
    )
    spans = [f"({size}) ceildiv {4 * _LANES}"]
    launch(fill, [table, symbol("coarse_rows", i32())], group="pairs", grid=spans, block=_LANES)
    by_rows = [f"rows ceildiv {_LANES}", str(cross_lookup.batches(reach.kernel_size))]
    found = [fine, fine_count, index.buffer, table, *index.arguments]
    launch(look_up, found, group="pairs", grid=by_rows, block=_LANES)
    if not index.distinct:
        share = gpu_kernel(
            module,
            f"share_rows_{index.name}_t{taps}_b{_LANES}",
            [words, words, index.buffer_type, words, *index.types],
            _LANES,
            cross_lookup.share_rows(taps, _LANES, index.find),
        )
        repeated = [coarse, coarse_count, index.buffer, table, *index.arguments]
        launch(share, repeated, group="pairs", grid=[f"coarse_rows ceildiv {_LANES}"], block=_LANES)
    return [cast_to_stage([table, coarse_count], op.operation.results[0].type, rows=ir.StringAttr.get("coarse_rows"))]


def rewrite_sorted_tiles(
    op: CrossCompactOp, module: ir.Module, target: GpuTarget, items: int
) -> list[ir.Value]:
    """The table of the outputs, in the order of their masks."""
    reach, _ = _geometry(op, target)
    reads, writes = ("coarse_rows", "rows") if op.transposed else ("rows", "coarse_rows")
    make = _inputs_of_fine_rows if op.transposed else _inputs_of_coarse_rows
    table = make(op, module, target)
    return rewrite_sorted(op, table, reach.kernel_size, module, target, items, reads=reads, writes=writes)


def _inputs_of_coarse_rows(op: CrossCompactOp, module: ir.Module, target: GpuTarget) -> ir.Value:
    """The table of an op's outputs: the fine rows that each coarse row meets."""
    return buffers_of(rewrite_table(op, module, target)[0])[0]


def _inputs_of_fine_rows(op: CrossCompactOp, module: ir.Module, target: GpuTarget) -> ir.Value:
    """The table of a transposed op's outputs: the coarse rows that each fine row meets."""
    reach, index = _geometry(op, target)
    fine, fine_count, *_ = buffers_of(op.map)
    table, words = _fine_table(op, target), buffer_type(i32())
    look_up = gpu_kernel(
        module,
        f"input_lookup_{index.name}_{reach.name}_b{_LANES}",
        [words, words, index.buffer_type, words, i32(), *index.types],
        _LANES,
        cross_lookup.look_up_inputs(reach, _LANES, index.find),
    )
    found = [fine, fine_count, index.buffer, table, symbol("rows", i32()), *index.arguments]
    by_rows = [f"rows ceildiv {_LANES}", str(cross_lookup.batches(reach.kernel_size))]
    launch(look_up, found, group="pairs", grid=by_rows, block=_LANES)
    return table


@dataclasses.dataclass(frozen=True)
class ConvertCrossCompactToGpu(Pass):
    """See the module."""

    target: str = "gfx950"
    name: ClassVar[str] = "convert-cross-compact-to-gpu"
    needs: ClassVar[str] = "stages"
    gives: ClassVar[str] = "gpu"

    def run(self, module: ir.Module) -> None:
        target = gpu_target(self, module, self.target)

        def rewrite(op: CrossCompactOp) -> list[ir.Value]:
            if op.schedule is not None and op.schedule[0] == OUTPUT_TABLE:
                if op.transposed:
                    self.fail(op, "a table of the outputs of a transposed op", "supported: outputs are coarse")
                return rewrite_table(op, module, target)
            if op.schedule is not None and op.schedule[0] == "sorted_tiles":
                values = parameters(self, op, "sorted_tiles", "block_rows", "items")
                if values["block_rows"] != BLOCK_ROWS:
                    self.fail(op, f"blocks of {values['block_rows']} rows", f"accepted here: {BLOCK_ROWS}")
                return rewrite_sorted_tiles(op, module, target, values["items"])
            tile_m = parameters(self, op, "tap_tile_row", "tile_m")["tile_m"]
            if tile_m > _LANES:
                self.fail(op, f"gemm tiles of {tile_m} pairs", f"padding reaches {_LANES} pairs at most")
            return rewrite_pairs(op, module, target, tile_m)

        replace_each(module, CrossCompactOp.OPERATION_NAME, rewrite)
