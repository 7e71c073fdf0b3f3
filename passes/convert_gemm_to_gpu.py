"""Lowers spconv.gemm to a kernel of its schedule, and the rows it adds into to a fill.

Before:
    %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {schedule = #spconv.schedule<"pairs_m16", {…}>}
After:
    %acc = "spconv.alloc"() {name = "sums", size = rows * C_out}
    "spconv.launch"(%acc, rows) {kernel = @kernels::@fill_rows…, group = "output"}
    "spconv.launch"(%features, %packed, %in_rows, …, %acc, rows) {kernel = @kernels::@gemm_pairs_m16…}

Needs level stages with schedules and with map, pairs and weights lowered; gives level gpu for this op. Fails on an
op without a schedule, with one that is not for a GPU or whose parameters do not fit the matrix instruction, on pairs
or weights laid out for other parameters, on an epilogue (fuse-epilogue puts none here), and on an init that is not a
spconv.fill.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import AllocOp, FillOp, GemmOp
from spconv_compiler.dialect.plan import launch, size_map, symbol
from spconv_compiler.dialect.types import buffer_type, element_type
from spconv_compiler.passes.base import Pass, defining_op, replace_each
from spconv_compiler.passes.convert_compact_to_gpu import gemm_tiles
from spconv_compiler.passes.convert_rows_to_gpu import filled_rows, lower_epilogue_of
from spconv_compiler.passes.gpu import gemm_output_stationary, gemm_pair_major, gemm_small_channels, gemm_wgmma_rows
from spconv_compiler.passes.gpu.gemm_output_stationary import rewrite_output_stationary
from spconv_compiler.passes.gpu.limits import require
from spconv_compiler.passes.gpu.mma_panels import Panels
from spconv_compiler.passes.gpu.pairs_m16 import PairsM16Kernel
from spconv_compiler.passes.gpu.scheduled import gpu_target, parameters
from spconv_compiler.passes.gpu.sorted_tiles import table_size
from spconv_compiler.passes.kernel_builder import bits, f32, i32
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage, gpu_kernel, noted, rows_of
from spconv_compiler.targets import GpuTarget, MmaShape

PARAMETERS = ("tile_m", *Panels.PARAMETERS, "k_unroll", "waves")
# Schedules whose workgroups finish whole output rows.
ROW_OWNERS = ("output_stationary", "output_stationary_tall", "split_taps", "small_channels")


def misfits(mma: MmaShape, target: GpuTarget, values: Mapping[str, int]) -> list[str]:
    """What is wrong with the parameters of a schedule for this matrix instruction."""
    held, _ = mma.lane_elements(target.wave)
    rules = {
        f"tile_m is the instruction's {mma.m}": values["tile_m"] == mma.m,
        f"mma_n is the instruction's {mma.n}": values["mma_n"] == mma.n,
        "tile_n is a multiple of mma_n": values["tile_n"] % values["mma_n"] == 0,
        f"chunk_k is a multiple of the {held} that a lane holds": values["chunk_k"] % held == 0,
        f"tile_k is {target.wave // mma.m} chunk_k": values["tile_k"] == values["chunk_k"] * (target.wave // mma.m),
    }
    return [rule for rule, kept in rules.items() if not kept]


def rewrite_gemm(
    op: GemmOp, fill: FillOp, mma: MmaShape, module: ir.Module, target: GpuTarget, values: dict[str, int]
) -> list[ir.Value]:
    element = element_type(op.weight.type)
    panels = Panels.of(op.taps, op.c_in, op.c_out, values)
    kernel = PairsM16Kernel(
        panels, (mma.m, mma.n, mma.k), target.wave, k_unroll=values["k_unroll"], waves=values["waves"]
    )
    row_bytes = op.c_in * bits(element) // 8
    # Between two coordinate sets the inputs have another number of rows than the outputs.
    read, written = noted(op.pairs, "in_rows", "rows"), rows_of(op.pairs)
    require(op, f"bytes of features of {op.c_in} channels", f"{read} * {row_bytes}", target.buffer_limit_bytes)

    sums = filled_rows(fill, module, target, written)
    in_rows, out_rows, tile_tap, tap_tile = buffers_of(op.pairs)
    (features,), (packed,) = buffers_of(op.features), buffers_of(op.weight)
    moved, words = buffer_type(element), buffer_type(i32())
    symbol_ = gpu_kernel(
        module,
        f"gemm_pairs_m16_{element}_t{op.taps}_{op.c_in}x{op.c_out}_{panels.name}_u{kernel.k_unroll}_w{kernel.waves}",
        [moved, moved, words, words, words, words, buffer_type(f32()), i32()],
        target.wave,
        kernel,
    )
    arguments = [features, packed, in_rows, out_rows, tile_tap, tap_tile, sums, symbol(read, i32())]
    grid = [f"{tiles_of(op, values['tile_m'])}, {kernel.waves}", str(kernel.slices)]
    launch(symbol_, arguments, group="output", grid=grid, block=target.wave)
    return [cast_to_stage([sums], op.operation.results[0].type, rows=ir.StringAttr.get(written))]


def tiles_of(op: GemmOp, tile_m: int) -> str:
    """The most tiles that the pairs of a gemm can fill, a text for plan.size_map."""
    return noted(op.pairs, "tiles", gemm_tiles(op.taps, tile_m))


@dataclasses.dataclass(frozen=True)
class ConvertGemmToGpu(Pass):
    """See the module."""

    target: str = "gfx950"
    name: ClassVar[str] = "convert-gemm-to-gpu"
    needs: ClassVar[str] = "stages"
    gives: ClassVar[str] = "gpu"

    def run(self, module: ir.Module) -> None:
        target = gpu_target(self, module, self.target)

        def rewrite(op: GemmOp) -> list[ir.Value]:
            # Of a layer before this one, in the same function: its own gemm is lowered by now.
            lower_epilogue_of(op.features, module, target)
            if op.schedule is not None and op.schedule[0] == "wgmma_rows":
                return self._wgmma_rows(op, module, target)
            if op.schedule is not None and op.schedule[0] in ROW_OWNERS:
                return self._row_owner(op, module, target, op.schedule[0])
            large = op.schedule is not None and op.schedule[0] == "pair_major"
            needed = gemm_pair_major.PARAMETERS if large else PARAMETERS
            values = parameters(self, op, "pair_major" if large else "pairs_m16", *needed)
            mma = target.mma_for(str(element_type(op.weight.type)))
            # Every dtype that the dialect has is one of the target's.
            assert mma is not None
            for rule in (gemm_pair_major.misfits if large else misfits)(mma, target, values):
                self.fail(op, f"the parameters of the schedule do not fit: {values}", rule)
            if op.activation != "none":
                self.fail(op, f'epilogue "{op.activation}" in a schedule that does not own its output rows')
            fill = defining_op(op.init)
            if not isinstance(fill, FillOp):
                self.fail(op, "init is not the result of spconv.fill", "a gemm adds into rows of its own")
            self._expect_size(op, buffers_of(op.weight)[0], str(Panels.of(op.taps, op.c_in, op.c_out, values).elements))
            self._expect_size(op, buffers_of(op.pairs)[2], tiles_of(op, values["tile_m"]))
            if large:
                tiles = tiles_of(op, values["tile_m"])
                return gemm_pair_major.rewrite_pair_major(op, fill, mma, module, target, values, tiles)
            return rewrite_gemm(op, fill, mma, module, target, values)

        replace_each(module, GemmOp.OPERATION_NAME, rewrite)

    def _row_owner(self, op: GemmOp, module: ir.Module, target: GpuTarget, name: str) -> list[ir.Value]:
        body = gemm_small_channels if name == "small_channels" else gemm_output_stationary
        tall = name == gemm_output_stationary.TALL
        needed = gemm_output_stationary.TALL_PARAMETERS if tall else body.PARAMETERS
        misfits = gemm_output_stationary.tall_misfits if tall else body.misfits
        values = parameters(self, op, name, *needed)
        mma = target.mma_for(str(element_type(op.weight.type)))
        assert mma is not None
        for rule in misfits(mma, target, values):
            self.fail(op, f"the parameters of the schedule do not fit: {values}", rule)
        if not isinstance(defining_op(op.init), FillOp):
            self.fail(op, "init is not the result of spconv.fill", "a gemm adds into rows of its own")
        shape = (op.taps, op.c_in, op.c_out, values)
        small = name == "small_channels"
        panels = gemm_small_channels.tap_panels(*shape).panels if small else Panels.of(*shape)
        self._expect_size(op, buffers_of(op.weight)[0], str(panels.elements))
        self._expect_size(op, buffers_of(op.pairs)[1], table_size(op.taps, rows_of(op.pairs)))
        rewrite = gemm_small_channels.rewrite_small_channels if small else rewrite_output_stationary
        return rewrite(op, mma, module, target, values)

    def _wgmma_rows(self, op: GemmOp, module: ir.Module, target: GpuTarget) -> list[ir.Value]:
        values = parameters(self, op, "wgmma_rows", *gemm_wgmma_rows.PARAMETERS)
        for rule in gemm_wgmma_rows.misfits(op, values, target):
            self.fail(op, f"the parameters of the schedule do not fit: {values}", rule)
        fill = defining_op(op.init)
        if not isinstance(fill, FillOp):
            self.fail(op, "init is not the result of spconv.fill", "a gemm adds into rows of its own")
        self._expect_size(op, buffers_of(op.weight)[0], str(gemm_wgmma_rows.images_of(op, values).elements))
        self._expect_size(op, buffers_of(op.pairs)[1], table_size(op.taps, rows_of(op.pairs)))
        return gemm_wgmma_rows.rewrite_wgmma_rows(op, fill, module, target, values)

    def _expect_size(self, op: GemmOp, buffer: ir.Value, size: str) -> None:
        """Checks that weights or pairs were laid out for the gemm's own parameters: their sizes tell."""
        made = defining_op(buffer)
        if isinstance(made, AllocOp) and made.attribute("size") != size_map(size):
            name = ir.StringAttr(made.attribute("name")).value
            self.fail(op, f"{name} was laid out for another schedule", f"expected {size} elements")
