"""The pairs of schedule `sorted_tiles`: rows in blocks of like masks, for gemms that own their output rows.

Before:
    %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"sorted_tiles", {block_rows = 256, items = 4}>}
After:
    "spconv.launch"(%table, %keys, %state, rows)      {kernel = @kernels::@row_keys…}
    "spconv.launch"(%keys, %records, %state, rows)    {kernel = @kernels::@mask_records…}
    "spconv.launch"(%records, %state, rows)           {kernel = @kernels::@sort_digit…}, for each digit
    "spconv.launch"(%table, %records, …, rows)        {kernel = @kernels::@arrange…}

A map that this compaction alone reads is made by rows, as passes/gpu/row_table.py says (`wanted_by`): it has keys and
records already, and what is left are the digits and `arrange`.

The pairs are carried as the buffers row_order, sorted_table, steps, step_count (row_masks.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import CompactOp, CrossCompactOp, MapOp
from spconv_compiler.dialect.plan import alloc, launch, symbol
from spconv_compiler.dialect.types import buffer_type
from spconv_compiler.passes.gpu import row_masks
from spconv_compiler.passes.gpu.lanes import shared
from spconv_compiler.passes.gpu.limits import require
from spconv_compiler.passes.gpu.radix_sort import LANES, Sort
from spconv_compiler.passes.gpu.row_table import MOST_TAPS, RowTable, row_words
from spconv_compiler.passes.kernel_builder import i32
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage, gpu_kernel
from spconv_compiler.targets import GpuTarget

_KEY_LANES = 256
# Noted on the cast of a map that is made by rows.
BY_ROWS = "by_rows"


def blocks(rows: str = "rows") -> str:
    """Blocks of rows, a text for plan.size_map."""
    return f"({rows} ceildiv {row_masks.BLOCK_ROWS})"


def table_size(taps: int, rows: str = "rows") -> str:
    """Elements of the sorted table, a text for plan.size_map."""
    return f"{blocks(rows)} * {row_masks.BLOCK_ROWS * taps}"


def wanted_by(op: MapOp, target: GpuTarget) -> RowTable | None:
    """How the map is made where one compaction reads it, with this schedule, and a lane can hold a row's neighbours."""
    users = [use.owner for use in op.operation.results[0].uses]
    if len(users) != 1 or users[0].operation.name != CompactOp.OPERATION_NAME or op.taps > MOST_TAPS:
        return None
    schedule = users[0].schedule
    if schedule is None or schedule[0] != "sorted_tiles" or "items" not in schedule[1]:
        return None
    return RowTable(tuple(op.kernel_size), row_masks.sort_of(schedule[1]["items"], target))


def alloc_rows(op: MapOp, made: RowTable, target: GpuTarget) -> list[ir.Value]:
    """The table by rows, and records and state of the sort of their masks."""
    size, sort = f"rows * {made.words}", made.sort
    require(op, "bytes of coordinates", "rows * 16", target.buffer_limit_bytes)
    require(op, "bytes of the kernel map", f"({size}) * 4", target.buffer_limit_bytes)
    return [alloc("table", i32(), size), *_alloc_sort(op, sort, "rows", target)]


def _alloc_sort(op: ir.OpView, sort: Sort, writes: str, target: GpuTarget) -> list[ir.Value]:
    require(op, "bytes of the sort's state", f"({sort.words(writes)}) * 4", target.buffer_limit_bytes)
    records = alloc("mask_records", i32(), sort.records(writes))
    return [records, alloc("mask_state", i32(), sort.words(writes))]


def rewrite_sorted(
    op: CompactOp | CrossCompactOp,
    table: ir.Value,
    kernel_size: Sequence[int],
    module: ir.Module,
    target: GpuTarget,
    items: int,
    *,
    reads: str = "rows",
    writes: str = "rows",
) -> list[ir.Value]:
    """The sort of the masks and what the gemm reads of it.

    Args:
        table: i32 [tiles of 16 output rows][taps][16], input rows or −1.
        reads, writes: the plan's symbols for the rows of inputs and of outputs.
    """
    words, name = buffer_type(i32()), "x".join(map(str, kernel_size))
    sort = row_masks.sort_of(items, target)
    records, state = _alloc_sort(op, sort, writes, target)
    keys, rows = alloc("mask_keys", i32(), writes), symbol(writes, i32())
    make_keys = gpu_kernel(
        module,
        f"row_keys_{name}_i{items}",
        [words, words, words, i32()],
        _KEY_LANES,
        row_masks.row_keys(kernel_size, sort, _KEY_LANES),
    )
    make = gpu_kernel(
        module,
        f"mask_records_i{items}",
        [words, words, words, i32()],
        LANES,
        row_masks.make_records(sort),
        workgroup=sort.make_workgroup(),
    )
    both = f"{sort.clear_grid(_KEY_LANES, writes)} + {writes} ceildiv {_KEY_LANES}"
    launch(make_keys, [table, keys, state, rows], group="pairs", grid=[both], block=_KEY_LANES)
    launch(make, [keys, records, state, rows], group="pairs", grid=[sort.tiles(writes)], block=LANES)
    return _sort_and_arrange(op, [table, records, state], sort, module, target, 0, reads, writes)


def rewrite_rows(op: CompactOp, module: ir.Module, target: GpuTarget, items: int) -> list[ir.Value]:
    """The same for a map that is made by rows."""
    sort, words = row_masks.sort_of(items, target), row_words(op.taps)
    return _sort_and_arrange(op, buffers_of(op.map), sort, module, target, words, "rows", "rows")


def _sort_and_arrange(
    op: CompactOp | CrossCompactOp,
    made: Sequence[ir.Value],
    sort: Sort,
    module: ir.Module,
    target: GpuTarget,
    words_of_row: int,
    reads: str,
    writes: str,
) -> list[ir.Value]:
    """made: the table, and records and state of the sort; words_of_row: 0 where the table comes by tiles."""
    table, records, state = made
    taps, words, each, rows = op.taps, buffer_type(i32()), blocks(writes), symbol(writes, i32())
    require(op, "bytes of the sorted kernel map", f"{table_size(taps, writes)} * 4", target.buffer_limit_bytes)
    order = alloc("row_order", i32(), f"{each} * {row_masks.BLOCK_ROWS}")
    sorted_table = alloc("sorted_table", i32(), table_size(taps, writes))
    steps, step_count = alloc("steps", i32(), f"{each} * {taps}"), alloc("step_count", i32(), each)
    digit = gpu_kernel(
        module,
        f"sort_digit_{sort.name}",
        [words, words, i32()],
        LANES,
        sort.digit_pass(),
        workgroup=sort.pass_workgroup(),
    )
    arrange = gpu_kernel(
        module,
        f"arrange_t{taps}_i{sort.items}" + ("_rows" if words_of_row else ""),
        [words] * 7 + [i32()],
        row_masks.BLOCK_ROWS,
        row_masks.arrange(taps, sort, words_of_row),
        workgroup=[shared(size) for size in row_masks.shared_words(taps, target.wave)],
    )
    for _ in range(sort.passes):
        launch(digit, [records, state, rows], group="pairs", grid=[sort.tiles(writes)], block=LANES)
    results = [order, sorted_table, steps, step_count]
    launch(
        arrange, [table, records, state, *results, rows], group="pairs", grid=[each], block=row_masks.BLOCK_ROWS
    )
    noted = {"rows": ir.StringAttr.get(writes), "in_rows": ir.StringAttr.get(reads)}
    return [cast_to_stage(results, op.operation.results[0].type, **noted)]
