"""Lowers spconv.level_maps to nine kernels, or eight, however many levels and maps there are.

Before:
    "spconv.level_maps"(%coords, %places) {levels = […], maps = […]}
After:
    "spconv.launch"(%marks, %perm, %level_rows, %state, %places, …) {kernel = @kernels::@clear_levels…}
    "spconv.launch"(%coords, %marks, %places, rows)                          {kernel = @kernels::@mark_levels…}
    "spconv.launch"(%marks, %level_rows, %counts, %places)                   {kernel = @kernels::@rank_levels…}
    "spconv.launch"(%coords, %marks, %perm, %places, rows)                   {kernel = @kernels::@rows_of_ranks…}
    "spconv.launch"(%coords, …, %table, %records, %state)                    {kernel = @kernels::@look_up_maps…}
    "spconv.launch"(%records, %state, %places)                               {kernel = @kernels::@sort_maps…}, a digit
    "spconv.launch"(%table, %records, …, %step_count)                        {kernel = @kernels::@arrange_maps…}

The plan's `rows` are those of level 0, `cells` the words of marks, and `coarse_rows` those of all maps, each in whole
units (level_options.py, which also says what places hold). passes/gpu/level_marks.py and level_lookup.py have the
bodies. The results are buffers of the plan: level_rows, level_counts, row_order, sorted_table, steps and step_count,
of all maps one after another.

Gives level gpu for this op. Fails on a second one in a function: the plan's numbers are those of one.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import LevelMapsOp
from spconv_compiler.dialect.plan import alloc, launch, symbol
from spconv_compiler.level_options import LANES, ROW_UNIT, TILE_MARKS, LevelOptions
from spconv_compiler.passes.base import Pass, ops_named, replace_each
from spconv_compiler.passes.gpu import level_lookup, level_marks
from spconv_compiler.passes.gpu.device_scan import scan_shared
from spconv_compiler.passes.gpu.limits import require
from spconv_compiler.passes.gpu.row_masks import BLOCK_ROWS
from spconv_compiler.passes.gpu.scheduled import gpu_target
from spconv_compiler.passes.kernel_builder import i32
from spconv_compiler.passes.kernel_module import buffers_of, gpu_kernel
from spconv_compiler.targets import GpuTarget


def rewrite_level_maps(op: LevelMapsOp, module: ir.Module, target: GpuTarget) -> list[ir.Value]:
    options, wave = op.options(target.name), target.wave
    (coords,), (places,) = buffers_of(op.coords), buffers_of(op.places)
    levels, taps, sort = len(options.levels) + 1, options.most_taps, level_lookup.sort_of(target)
    state_words = f"coarse_rows + {level_lookup.sort_words(len(options.maps))}"
    limits = {
        "coordinates": "rows * 16",
        "the marks of all levels": "cells * 4",
        "the tables of all maps": f"coarse_rows * {4 * level_lookup.table_words(options)}",
    }
    for what, size in limits.items():
        require(op, f"bytes of {what}", size, target.buffer_limit_bytes)
    sizes = {
        "marks": "cells",
        # A word more than rows: what finds no voxel reads the first in vain.
        "perm": "(rows floordiv 4 + 1) * 4",
        "level_rows": "coarse_rows * 4",
        "sort_state": state_words,
        "level_counts": str(2 * levels),
        "table": f"coarse_rows * {level_lookup.table_words(options)}",
        "records": "coarse_rows * 4",
        "row_order": "coarse_rows",
        "sorted_table": f"coarse_rows * {taps}",
        "steps": f"(coarse_rows ceildiv {BLOCK_ROWS}) * {taps}",
        "step_count": f"coarse_rows ceildiv {BLOCK_ROWS}",
    }
    made = {name: alloc(name, i32(), size) for name, size in sizes.items()}
    marks, perm, level_rows, state, counts, table, records, *results = made.values()
    rows = symbol("rows", i32())
    name = _name(options)

    def run(
        kernel: str, body: Callable[..., None], arguments: list[ir.Value], grid: str, memory: list[ir.Type]
    ) -> None:
        types = [value.type for value in arguments]
        found = gpu_kernel(module, f"{kernel}_{name}", types, LANES, body, workgroup=memory)
        launch(found, arguments, group="map", grid=[grid], block=LANES)

    span = level_marks.FILL_WORDS
    filled = ("cells", "rows + 1", "coarse_rows * 4", state_words)
    run(
        "clear_levels",
        level_marks.clear(levels, level_lookup.sort_words(len(options.maps)), wave),
        [marks, perm, level_rows, state, places, rows, symbol("cells", i32()), symbol("coarse_rows", i32())],
        " + ".join(f"({size}) ceildiv {span}" for size in filled),
        [],
    )
    by_rows = f"rows ceildiv {LANES}"
    run("mark_levels", level_marks.mark(options, wave), [coords, marks, places, rows], by_rows, [])
    tiles = f"cells ceildiv {TILE_MARKS}"
    ranked, memory = [marks, level_rows, counts, places], scan_shared(LANES, wave)
    run("rank_levels", level_marks.rank(levels, wave), ranked, tiles, memory)
    run("rows_of_ranks", level_marks.rows_of_ranks(wave), [coords, marks, perm, places, rows], by_rows, [])
    read = [coords, level_rows, marks, perm, places]
    blocks = f"coarse_rows ceildiv {LANES}"
    found = [*read, table, records, state]
    run("look_up_maps", level_lookup.look_up(options, sort), found, blocks, sort.make_workgroup())
    for _ in range(sort.passes):
        body, units = level_lookup.digit_pass(options, sort), f"coarse_rows ceildiv {ROW_UNIT}"
        run("sort_maps", body, [records, state, places], units, sort.pass_workgroup())
    arguments = [table, records, state, places, *results]
    memory = level_lookup.arrange_shared(options, wave)
    run("arrange_maps", level_lookup.arrange(options, sort), arguments, blocks, memory)
    return []


def _name(options: LevelOptions) -> str:
    """Distinct for distinct levels and maps."""
    digest = hashlib.blake2b(repr((options.levels, options.maps)).encode(), digest_size=6).hexdigest()
    return f"{len(options.levels) + 1}_{len(options.maps)}_{digest}"


@dataclasses.dataclass(frozen=True)
class ConvertLevelMapsToGpu(Pass):
    """See the module."""

    target: str = "gfx950"
    name: ClassVar[str] = "convert-level-maps-to-gpu"
    needs: ClassVar[str] = "stages"
    gives: ClassVar[str] = "gpu"

    def run(self, module: ir.Module) -> None:
        target = gpu_target(self, module, self.target)
        found = ops_named(module, LevelMapsOp.OPERATION_NAME)
        if len(found) > 1:
            self.fail(found[1], "a second op that builds levels", "supported: one in a function")
        replace_each(module, LevelMapsOp.OPERATION_NAME, lambda op: rewrite_level_maps(op, module, target))
