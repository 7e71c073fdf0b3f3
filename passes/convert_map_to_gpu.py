"""Lowers spconv.map to kernels that build the neighbour table, on a dense grid or by search in sorted keys.

Before:
    %map = "spconv.map"(%coords) {dilation, kernel_size, schedule = #spconv.schedule<"dense_grid", {block}>}
After:
    %grid  = "spconv.alloc"() {name = "grid", size = (cells ceildiv 4) * 4}
    %table = "spconv.alloc"() {name = "table", size = (rows ceildiv 16) * 432}
    "spconv.launch"(%grid, cells)                     {kernel = @kernels::@fill_grid…}
    "spconv.launch"(%coords, %grid, rows, box)        {kernel = @kernels::@scatter_rows…}
    "spconv.launch"(%coords, %grid, %table, rows, box) {kernel = @kernels::@lookup…}
or, with schedule = #spconv.schedule<"z_delta", {block, items}>:
    "spconv.launch"(%state, rows, cells)                         {kernel = @kernels::@clear_sort…}
    "spconv.launch"(%coords, %records, %state, rows, cells, box) {kernel = @kernels::@make_records…}
    "spconv.launch"(%records, %state, rows)                      {kernel = @kernels::@sort_digit…}, for each digit
    "spconv.launch"(%records, %state, %table, rows, cells, box)  {kernel = @kernels::@search…}
    "spconv.launch"(%state, %lines, %table, rows)                {kernel = @kernels::@turn_over…}

A map that one compaction alone reads, which sorts rows by masks, is made by rows (passes/gpu/row_table.py), with the
records of that sort: the last launches are `look_up_rows` and `search_rows` then, and it is carried as table, records
and state.

Needs level stages with schedules, gives level gpu for this op. Fails on an op without a schedule, with one that is
not for a GPU, or with a block that the target does not take. passes/gpu/dense_grid.py has the bodies and the table's
layout, passes/gpu/z_delta.py and radix_sort.py those of the search.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import MapOp
from spconv_compiler.dialect.plan import alloc, launch, symbol
from spconv_compiler.dialect.types import buffer_type
from spconv_compiler.passes.base import Pass, replace_each
from spconv_compiler.passes.gpu import dense_grid, tap_tile_row, z_delta
from spconv_compiler.passes.gpu.box import box_symbols, box_types, key_type
from spconv_compiler.passes.gpu.lanes import block, plus, thread, times
from spconv_compiler.passes.gpu.limits import on_one_chiplet, require
from spconv_compiler.passes.gpu.radix_sort import LANES, Sort
from spconv_compiler.passes.gpu.row_table import RowTable
from spconv_compiler.passes.gpu.scheduled import gpu_target, parameters
from spconv_compiler.passes.gpu.sorted_tiles import BY_ROWS, alloc_rows, wanted_by
from spconv_compiler.passes.kernel_builder import V, i32
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage, gpu_kernel
from spconv_compiler.targets import GpuTarget


def _results(op: MapOp, target: GpuTarget) -> list[ir.Value]:
    """The table, the pairs of each tap, and the state of the compaction (tap_tile_row.py)."""
    tile = dense_grid.TILE_ROWS
    size = f"(rows ceildiv {tile}) * {tile * op.taps}"
    require(op, "bytes of coordinates", "rows * 16", target.buffer_limit_bytes)
    require(op, "bytes of the kernel map", f"({size}) * 4", target.buffer_limit_bytes)
    counts = tap_tile_row.count_words(op.taps), tap_tile_row.state_words(op.taps, target.chiplets)
    names = zip(("table", "tap_count", "pair_state"), (size, *map(str, counts)), strict=True)
    return [alloc(name, i32(), words) for name, words in names]


def rewrite_map(op: MapOp, module: ir.Module, target: GpuTarget, lanes: int) -> list[ir.Value]:
    """The table by dense_grid.py."""
    (coords,) = buffers_of(op.coords)
    width, key = op.key_width, key_type(op.key_width)
    cells = "(cells ceildiv 4) * 4"
    grid, made = alloc("grid", i32(), cells), wanted_by(op, target)
    if made is None:
        results, clear = _results(op, target), tap_tile_row.clear(op.taps, target.chiplets)
        state_words, what, zeroed = tap_tile_row.state_words(op.taps, target.chiplets), f"t{op.taps}", results[1:]
    else:
        results, clear = alloc_rows(op, made, target), made.clear_state
        state_words, what, zeroed = made.sort.words(), made.sort.name, results[2:]
    if width == 32:
        require(op, "bytes of the dense grid, with 32-bit keys", f"({cells}) * 4", target.buffer_limit_bytes)
    halo = [size // 2 * step for size, step in zip(op.kernel_size, op.dilation, strict=True)]
    words = buffer_type(i32())
    fill = gpu_kernel(
        module,
        f"fill_grid_k{width}_{what}_b{lanes}",
        [words, *[words] * len(zeroed), key, i32()],
        lanes,
        dense_grid.fill_and_clear(width, lanes, clear),
    )
    scatter = gpu_kernel(
        module,
        f"scatter_rows_k{width}_h{_name(halo)}_b{lanes}",
        [words, words, i32(), *box_types(width)],
        lanes,
        dense_grid.scatter_rows(halo, lanes),
    )
    rows, box = symbol("rows", i32()), box_symbols(width)
    by_rows = f"rows ceildiv {lanes}"
    spans = f"cells ceildiv {dense_grid.fill_span(lanes)} + ({state_words}) ceildiv {4 * lanes}"
    launch(fill, [grid, *zeroed, symbol("cells", key), rows], group="pairs", grid=[spans], block=lanes)
    launch(scatter, [coords, grid, rows, *box], group="pairs", grid=[by_rows], block=lanes)
    return _look_up(op, module, target, lanes, [coords, grid], results, made)


def _look_up(
    op: MapOp,
    module: ir.Module,
    target: GpuTarget,
    lanes: int,
    sources: list[ir.Value],
    results: list[ir.Value],
    made: RowTable | None,
) -> list[ir.Value]:
    """The table of the finished grid."""
    words, width = buffer_type(i32()), op.key_width
    box, rows = box_symbols(width), symbol("rows", i32())
    shape = f"k{width}_{_name(op.kernel_size)}_d{_name(op.dilation)}"
    if made is not None:
        look_up = gpu_kernel(
            module,
            f"look_up_rows_{shape}_{made.sort.name}",
            [words] * 5 + [i32(), *box_types(width)],
            LANES,
            dense_grid.look_up_rows(op.kernel_size, op.dilation, LANES, made),
            workgroup=made.memory(),
        )
        grid = [f"rows ceildiv {LANES}"]
        launch(look_up, [*sources, *results, rows, *box], group="pairs", grid=grid, block=LANES)
        return _carried(op, results, by_rows=True)
    lookup = gpu_kernel(
        module,
        f"lookup_{shape}_b{lanes}",
        [words, words, words, words, i32(), *box_types(width)],
        lanes,
        dense_grid.lookup(op.kernel_size, op.dilation, lanes, _count(target, lanes)),
        workgroup=[tap_tile_row.count_memory(op.taps // dense_grid.batches(op.kernel_size), lanes, target.wave)],
    )
    axes = [on_one_chiplet(f"rows ceildiv {lanes}", target), str(dense_grid.batches(op.kernel_size))]
    table, tap_count, _ = results
    launch(lookup, [*sources, table, tap_count, rows, *box], group="pairs", grid=axes, block=lanes)
    return _carried(op, results)


def _carried(op: MapOp, results: list[ir.Value], by_rows: bool = False) -> list[ir.Value]:
    noted = {"kernel_size": op.attribute("kernel_size"), **({BY_ROWS: ir.UnitAttr.get()} if by_rows else {})}
    return [cast_to_stage(results, op.operation.results[0].type, **noted)]


def rewrite_search(op: MapOp, module: ir.Module, target: GpuTarget, lanes: int, items: int) -> list[ir.Value]:
    """The table by z_delta.py."""
    (coords,) = buffers_of(op.coords)
    width, key = op.key_width, key_type(op.key_width)
    sort, made = Sort(width, items, target.wave), wanted_by(op, target)
    halo = [size // 2 * step for size, step in zip(op.kernel_size, op.dilation, strict=True)]
    require(op, "bytes of sorted keys", f"({sort.records()}) * {width // 8}", target.buffer_limit_bytes)
    require(op, "bytes of the sort's state", f"({sort.words()}) * 4", target.buffer_limit_bytes)
    if width == 32:
        require(op, "cells of the box, with 32-bit keys", "cells", 2**31 - 1)
    records, state = alloc("records", key, sort.records()), alloc("sort_state", i32(), sort.words())
    words, keys = buffer_type(i32()), buffer_type(key)
    if made is None:
        results, clear = _results(op, target), tap_tile_row.clear(op.taps, target.chiplets)
        state_words, what, zeroed = tap_tile_row.state_words(op.taps, target.chiplets), f"t{op.taps}", results[1:]
    else:
        results, clear = alloc_rows(op, made, target), made.clear_state
        state_words, what, zeroed = made.sort.words(), made.sort.name, results[2:]
    clear_all = gpu_kernel(
        module,
        f"clear_sort_{sort.name}_{what}_b{lanes}",
        [words, *[words] * len(zeroed), i32(), key],
        lanes,
        _clear_all(sort, clear, lanes),
    )
    make = gpu_kernel(
        module,
        f"make_records_k{width}_h{_name(halo)}_i{items}",
        [words, keys, words, i32(), key, *box_types(width)],
        LANES,
        sort.make_records(z_delta.key_of(halo)),
        workgroup=sort.make_workgroup(),
    )
    digit = gpu_kernel(
        module,
        f"sort_digit_{sort.name}",
        [keys, words, i32()],
        LANES,
        sort.digit_pass(),
        workgroup=sort.pass_workgroup(),
    )
    rows, cells, box = symbol("rows", i32()), symbol("cells", key), box_symbols(width)
    zeros = f"{sort.clear_grid(lanes)} + ({state_words}) ceildiv {4 * lanes}"
    launch(clear_all, [state, *zeroed, rows, cells], group="pairs", grid=[zeros], block=lanes)
    launch(make, [coords, records, state, rows, cells, *box], group="pairs", grid=[sort.tiles()], block=LANES)
    for number in range(sort.passes):
        launch(digit, [records, state, rows], group="pairs", grid=[sort.grid(number)], block=LANES)
    return _search(op, module, target, lanes, sort, [records, state], results, made)


def _search(
    op: MapOp,
    module: ir.Module,
    target: GpuTarget,
    lanes: int,
    sort: Sort,
    sorted_: list[ir.Value],
    results: list[ir.Value],
    made: RowTable | None,
) -> list[ir.Value]:
    """The table of the sorted keys."""
    width, words, keys = op.key_width, buffer_type(i32()), buffer_type(key_type(op.key_width))
    rows, cells, box = symbol("rows", i32()), symbol("cells", key_type(width)), box_symbols(width)
    shape, numbers = f"k{width}_{_name(op.kernel_size)}_d{_name(op.dilation)}", [i32(), key_type(width)]
    if made is not None:
        search = gpu_kernel(
            module,
            f"search_rows_{shape}_{made.sort.name}",
            [keys, *[words] * 4, *numbers, *box_types(width)],
            LANES,
            z_delta.search_rows(sort, op.kernel_size, op.dilation, LANES, made),
            workgroup=[*z_delta.search_memory(op.kernel_size), *made.memory()],
        )
        grid = [f"rows ceildiv {LANES}"]
        launch(search, [*sorted_, *results, rows, cells, *box], group="pairs", grid=grid, block=LANES)
        return _carried(op, results, by_rows=True)
    table, tap_count, _ = results
    size = f"(rows ceildiv {dense_grid.TILE_ROWS}) * {dense_grid.TILE_ROWS * z_delta.line_words(op.taps)}"
    require(op, "bytes of the kernel map by rows", f"({size}) * 4", target.buffer_limit_bytes)
    lines = alloc("lines", i32(), size)
    search = gpu_kernel(
        module,
        f"search_{shape}_b{lanes}",
        [keys, *[words] * 4, *numbers, *box_types(width)],
        lanes,
        z_delta.search(sort, op.kernel_size, op.dilation, lanes, _count(target, lanes)),
        workgroup=[tap_tile_row.count_memory(op.kernel_size[2], lanes, target.wave)],
    )
    turn = gpu_kernel(
        module,
        f"turn_over_t{op.taps}_i{sort.items}",
        [words, words, words, i32()],
        LANES,
        z_delta.turn_over(sort, op.taps, LANES),
        workgroup=z_delta.turn_memory(),
    )
    axes = [on_one_chiplet(f"rows ceildiv {lanes}", target), str(op.kernel_size[0] * op.kernel_size[1])]
    buffers = [*sorted_, table, lines, tap_count]
    launch(search, [*buffers, rows, cells, *box], group="pairs", grid=axes, block=lanes)
    axes = [on_one_chiplet(f"rows ceildiv {z_delta.TURNED_ROWS}", target), str(z_delta.line_words(op.taps) // 32)]
    launch(turn, [sorted_[1], lines, table, rows], group="pairs", grid=axes, block=LANES)
    return _carried(op, results)


def _count(target: GpuTarget, lanes: int) -> Callable[..., None]:
    return tap_tile_row.count_taps(target.wave, lanes // target.wave)


def _clear_all(sort: Sort, clear: Callable[..., None], lanes: int) -> Callable[..., None]:
    """Body(sort_state, *others, rows, cells): zeros, four words a lane of each."""

    def body(state: V, *rest: V) -> None:
        *others, rows, limit = rest
        sort.clear(lanes)(state, rows, limit)
        clear(times(plus(times(block(), lanes), thread()), 4), *others, rows)

    return body


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
            by_search = op.schedule is not None and op.schedule[0] == "z_delta"
            wanted = ("z_delta", "block", "items") if by_search else ("dense_grid", "block")
            values = parameters(self, op, *wanted)
            lanes = values["block"]
            if lanes % target.wave or lanes > target.max_workgroup:
                limits = f"{target.name} takes whole waves of {target.wave}, at most {target.max_workgroup} lanes"
                self.fail(op, f"a block of {lanes} lanes", limits)
            if by_search:
                return rewrite_search(op, module, target, lanes, values["items"])
            return rewrite_map(op, module, target, lanes)

        replace_each(module, MapOp.OPERATION_NAME, rewrite)
