"""The launches of a gemm with schedule `pair_major`.

Before:
    %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {schedule = #spconv.schedule<"pair_major", {…}>}
After:
    %acc = "spconv.alloc"() {name = "sums", size = rows * C_out}
    "spconv.launch"(%acc, rows) {kernel = @kernels::@fill_rows…, group = "output"}
    "spconv.launch"(%features, %packed, %in_rows, …, %acc, rows) {kernel = @kernels::@gemm_pair_major…}
"""

from __future__ import annotations

from collections.abc import Mapping

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import FillOp, GemmOp
from spconv_compiler.dialect.plan import launch, symbol
from spconv_compiler.dialect.types import buffer_type, element_type
from spconv_compiler.passes.convert_rows_to_gpu import filled_rows
from spconv_compiler.passes.gpu.gemm_output_stationary import rows_around
from spconv_compiler.passes.gpu.limits import require
from spconv_compiler.passes.gpu.local import shared_runs
from spconv_compiler.passes.gpu.mma_panels import Panels
from spconv_compiler.passes.gpu.pair_major import PairMajorKernel
from spconv_compiler.passes.gpu.row_geometry import BUFFERS, Geometry
from spconv_compiler.passes.kernel_builder import bits, f32, i32
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage, gpu_kernel
from spconv_compiler.targets import GpuTarget, MmaShape

PARAMETERS = ("tile_m", "waves", "across", "fragments", *Panels.PARAMETERS, "stage_k", "per_chiplet")


def misfits(mma: MmaShape, target: GpuTarget, values: Mapping[str, int]) -> list[str]:
    """What is wrong with the parameters of a schedule for this matrix instruction."""
    held, _ = mma.lane_elements(target.wave)
    group, run = values["fragments"] * mma.m, values["chunk_k"] * (target.wave // mma.n)
    across = values["across"]
    rules = {
        f"mma_n is the instruction's {mma.n}": values["mma_n"] == mma.n,
        f"chunk_k is a multiple of the {held} that a lane holds": values["chunk_k"] % held == 0,
        f"tile_k is a multiple of {target.wave // mma.n} chunk_k": values["tile_k"] % run == 0,
        "stage_k is a multiple of tile_k": values["stage_k"] > 0 == values["stage_k"] % values["tile_k"],
        "tile_n is a multiple of across times mma_n": values["tile_n"] % (across * mma.n) == 0,
        f"tile_m is waves / across times {group}": values["tile_m"] * across == values["waves"] * group,
    }
    return [rule for rule, kept in rules.items() if not kept]


def rewrite_pair_major(
    op: GemmOp, fill: FillOp, mma: MmaShape, module: ir.Module, target: GpuTarget, values: Mapping[str, int], tiles: str
) -> list[ir.Value]:
    """The gemm of an op whose parameters fit. tiles: the most that its pairs can fill, a text for plan.size_map."""
    element = element_type(op.weight.type)
    panels = Panels.of(op.taps, op.c_in, op.c_out, values)
    counts = {name: values[name] for name in ("waves", "fragments", "across")}
    cut = {"own_k": values["stage_k"], "chiplets": target.chiplets}
    geometry = Geometry(panels, (mma.m, mma.n, mma.k), target.wave, **cut, **counts)
    # At least one workgroup of a chiplet for every slice.
    each = max(values["per_chiplet"] // geometry.slices, 1) * geometry.slices
    groups = each * target.chiplets
    read, written = rows_around(op)
    row_bytes = op.c_in * bits(element) // 8
    # The offset of a row that is not there lies behind all rows, and must not come back into them by wrapping.
    limit = target.buffer_limit_bytes - 2 * row_bytes
    require(op, f"bytes of features of {op.c_in} channels", f"{read} * {row_bytes}", limit)

    sums = filled_rows(fill, module, target, written)
    in_rows, out_rows, tile_tap, tap_tile = buffers_of(op.pairs)
    (features,), (packed,) = buffers_of(op.features), buffers_of(op.weight)
    moved, words = buffer_type(element), buffer_type(i32())
    name = f"gemm_pair_major_{element}_t{op.taps}_{op.c_in}x{op.c_out}_{panels.name}_s{geometry.stage_k}"
    kernel = gpu_kernel(
        module,
        f"{name}_w{geometry.high}x{geometry.across}x{geometry.fragments}_g{groups}",
        [moved, moved, words, words, words, words, buffer_type(f32()), i32()],
        geometry.lanes,
        PairMajorKernel(geometry, each),
        workgroup=[shared_runs(geometry.weight_elements * BUFFERS, element)],
    )
    arguments = [features, packed, in_rows, out_rows, tile_tap, tap_tile, sums, symbol(read, i32())]
    # Every workgroup is there, or none: which tiles it takes follows from their number, which the device knows.
    grid = [f"({tiles}) * {groups}, {groups}"]
    launch(kernel, arguments, group="output", grid=grid, block=geometry.lanes)
    return [cast_to_stage([sums], op.operation.results[0].type, rows=ir.StringAttr.get(written))]
