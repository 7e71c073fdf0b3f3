"""The pairs of schedule `sorted_tiles`: rows in blocks of like masks, for gemms that own their output rows.

Before:
    %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"sorted_tiles", {block_rows = 256, items = 4}>}
After:
    "spconv.launch"(%table, %keys, %state, rows)      {kernel = @kernels::@row_keys…}
    "spconv.launch"(%keys, %records, %state, rows)    {kernel = @kernels::@mask_records…}
    "spconv.launch"(%records, %state, rows)           {kernel = @kernels::@sort_digit…}, for each digit
    "spconv.launch"(%table, %records, …, rows)        {kernel = @kernels::@arrange…}

The pairs are carried as the buffers row_order, sorted_table, steps, step_count (row_masks.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import CompactOp, CrossCompactOp
from spconv_compiler.dialect.plan import alloc, launch, symbol
from spconv_compiler.dialect.types import buffer_type
from spconv_compiler.passes.gpu import row_masks
from spconv_compiler.passes.gpu.lanes import shared
from spconv_compiler.passes.gpu.limits import require
from spconv_compiler.passes.gpu.radix_sort import DIGIT_BITS, LANES, Sort
from spconv_compiler.passes.kernel_builder import i32
from spconv_compiler.passes.kernel_module import cast_to_stage, gpu_kernel
from spconv_compiler.targets import GpuTarget

_KEY_LANES = 256


def blocks(rows: str = "rows") -> str:
    """Blocks of rows, a text for plan.size_map."""
    return f"({rows} ceildiv {row_masks.BLOCK_ROWS})"


def table_size(taps: int, rows: str = "rows") -> str:
    """Elements of the sorted table, a text for plan.size_map."""
    return f"{blocks(rows)} * {row_masks.BLOCK_ROWS * taps}"


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
    taps, words = op.taps, buffer_type(i32())
    sort, name = Sort(32, items, target.wave), "x".join(map(str, kernel_size))
    require(op, "bytes of the sorted kernel map", f"{table_size(taps, writes)} * 4", target.buffer_limit_bytes)
    require(op, "bytes of the sort's state", f"({sort.words(writes)}) * 4", target.buffer_limit_bytes)

    records = alloc("mask_records", i32(), sort.records(writes))
    state = alloc("mask_state", i32(), sort.words(writes))
    each = blocks(writes)
    keys, order = alloc("mask_keys", i32(), writes), alloc("row_order", i32(), f"{each} * {row_masks.BLOCK_ROWS}")
    sorted_table = alloc("sorted_table", i32(), table_size(taps, writes))
    steps, step_count = alloc("steps", i32(), f"{each} * {taps}"), alloc("step_count", i32(), each)
    rows = symbol(writes, i32())

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
    digit = gpu_kernel(
        module,
        f"sort_digit_k32_i{items}",
        [words, words, i32()],
        LANES,
        sort.digit_pass(),
        workgroup=sort.pass_workgroup(),
    )
    arrange = gpu_kernel(
        module,
        f"arrange_t{taps}_i{items}",
        [words] * 7 + [i32()],
        row_masks.BLOCK_ROWS,
        row_masks.arrange(taps, sort),
        workgroup=[shared(size) for size in row_masks.shared_words(taps, target.wave)],
    )
    both = f"{sort.clear_grid(_KEY_LANES, writes)} + {writes} ceildiv {_KEY_LANES}"
    tiles = sort.tiles(writes)
    launch(make_keys, [table, keys, state, rows], group="pairs", grid=[both], block=_KEY_LANES)
    launch(make, [keys, records, state, rows], group="pairs", grid=[tiles], block=LANES)
    for _ in range(-(-row_masks.KEY_BITS // DIGIT_BITS)):
        launch(digit, [records, state, rows], group="pairs", grid=[tiles], block=LANES)
    results = [order, sorted_table, steps, step_count]
    launch(
        arrange, [table, records, state, *results, rows], group="pairs", grid=[each], block=row_masks.BLOCK_ROWS
    )
    noted = {"rows": ir.StringAttr.get(writes), "in_rows": ir.StringAttr.get(reads)}
    return [cast_to_stage(results, op.operation.results[0].type, **noted)]
