"""Lowers spconv.cross_map to functions that sort both coordinate sets as packed keys.

Before:
    %map = "spconv.cross_map"(%fine, %coarse) {kernel_size, stride, padding, dilation,
             schedule = #spconv.schedule<"sorted_keys", {}>}
After:
    %keys, %origin, %status = …                                 of the fine set, as convert-map-to-loops makes them
    %coarse_keys, %coarse_origin, %coarse_status = …
    "spconv.launch"(%fine, %keys, …)          {kernel = @kernels::@sort_keys_k32, group = "fine"}
    "spconv.launch"(%coarse, %coarse_keys, …) {kernel = @kernels::@sort_keys_k32_s2x2x2_p1x1x1, group = "coarse"}

The map is (keys, origin, status, coarse_keys, coarse_origin, coarse_status), all that a search needs: who reads the
map searches in its own order. The cast that stands for it keeps the op's geometry. Needs level stages with schedules,
gives level loops for this op. Fails on an op without a schedule or with one that is not for processors, and on a second
op in a function: the box of keys is one.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import CrossMapOp
from spconv_compiler.dialect.geometry import AXES
from spconv_compiler.dialect.plan import BOX, alloc, launch, symbol
from spconv_compiler.passes.base import Pass, replace_each
from spconv_compiler.passes.cpu.cross_table import CrossGeometry
from spconv_compiler.passes.cpu.functions import Functions, pointer
from spconv_compiler.passes.cpu.scheduled import functions_for, only_one, parameters
from spconv_compiler.passes.cpu.sorted_keys import KEY_PADDING, STATUS_WORDS, Packing, SortedKeys
from spconv_compiler.passes.gpu.limits import require
from spconv_compiler.passes.kernel_builder import i32, i64
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage


def sort_set(
    coords: ir.Value, functions: Functions, packing: Packing, prefix: str, group: str
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Launches the sort of one set and gives (keys, origin, status), whose names begin with `prefix`."""
    rows = f"{prefix}rows"
    keys, keys_spare = (alloc(prefix + name, packing.key, f"{rows} + {KEY_PADDING}") for name in ("keys", "keys_spare"))
    origin, origin_spare = (alloc(prefix + name, i32(), rows) for name in ("origin", "origin_spare"))
    status = alloc(f"{prefix}status", i64(), str(STATUS_WORDS))
    buffers = [coords, keys, origin, keys_spare, origin_spare, status]
    numbers = [symbol(name, i64()) for name in (rows, f"{prefix}order", "threads", *BOX, "batches")]
    name = f"sort_keys_{packing.name}"
    body = SortedKeys(functions, name, packing)
    kernel = functions.kernel(name, [pointer()] * len(buffers) + [i64()] * len(numbers), body)
    launch(kernel, [*buffers, *numbers], group=group)
    return keys, origin, status


def rewrite_cross_map(op: CrossMapOp, functions: Functions) -> list[ir.Value]:
    (fine,), (coarse,) = buffers_of(op.fine), buffers_of(op.coarse)
    fine_set = sort_set(fine, functions, Packing(op.key_width), "", "fine")
    coarse_set = sort_set(coarse, functions, Packing.of(op.key_width, op.stride, op.padding), "coarse_", "coarse")

    geometry = CrossGeometry.of(op.kernel_size, op.dilation, op.key_width)
    require(op, "voxels of one map", "rows", geometry.most_rows)
    noted = {name: op.operation.attributes[name] for name in AXES}
    noted["key_width"] = ir.IntegerAttr.get(i64(), op.key_width)
    return [cast_to_stage([*fine_set, *coarse_set], op.operation.results[0].type, **noted)]


@dataclasses.dataclass(frozen=True)
class ConvertCrossMapToLoops(Pass):
    """See the module."""

    target: str = "cpu"
    name: ClassVar[str] = "convert-cross-map-to-loops"
    needs: ClassVar[str] = "stages"
    gives: ClassVar[str] = "loops"

    def run(self, module: ir.Module) -> None:
        functions = functions_for(self, module, self.target)
        only_one(self, module, CrossMapOp.OPERATION_NAME)

        def rewrite(op: CrossMapOp) -> list[ir.Value]:
            parameters(self, op, "sorted_keys")
            return rewrite_cross_map(op, functions)

        replace_each(module, CrossMapOp.OPERATION_NAME, rewrite)
