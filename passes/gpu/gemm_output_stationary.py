"""The launches of a gemm with schedule `output_stationary`, `output_stationary_tall` or `split_taps`.

Before:
    %out = "spconv.gemm"(%pairs, %features, %packed, %fill, %residual) {schedule = <"output_stationary", …>}
After:
    %res = "spconv.alloc"() {name = "out", size = rows * C_out}
    "spconv.launch"(%features, %packed, %table, %steps, %counts, %order, %bias, %residual, %res, in_rows, rows)

Split over taps, the gemm writes `splits` sums of every row instead, and a second launch adds them up. Either way the
last launch has the bias, the residual, the activation and the rounding in it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import FillOp, GemmOp
from spconv_compiler.dialect.plan import alloc, launch, symbol
from spconv_compiler.dialect.rules import element
from spconv_compiler.dialect.types import element_type
from spconv_compiler.passes.base import defining_op
from spconv_compiler.passes.gpu import part_sums, rows
from spconv_compiler.passes.gpu.epilogue import finish
from spconv_compiler.passes.gpu.lanes import load, plus, store, times
from spconv_compiler.passes.gpu.limits import require
from spconv_compiler.passes.gpu.mma_panels import Panels
from spconv_compiler.passes.gpu.output_stationary import Finish, OutputStationaryKernel
from spconv_compiler.passes.gpu.output_stationary_tall import TallGeometry, TallKernel
from spconv_compiler.passes.gpu.row_geometry import BUFFERS, Geometry
from spconv_compiler.passes.gpu.row_masks import BLOCK_ROWS
from spconv_compiler.passes.kernel_builder import V, bits, f32, i32, if_
from spconv_compiler.passes.kernel_module import buffers_of, cast_to_stage, gpu_kernel, noted, rows_of
from spconv_compiler.schedules.deal import LINE_PANELS
from spconv_compiler.targets import GpuTarget, MmaShape

TALL = "output_stationary_tall"
PARAMETERS = ("block_rows", "waves", "across", "fragments", "least", *Panels.PARAMETERS, "stage_k", "splits")
# Of both forms: tiles of a wave, and panels of the widest slice.
TALL_PARAMETERS = ("waves", "fragments", "widest", "most_fragments", "most_panels", "least", *Panels.PARAMETERS)
# Tiles of a tall share: a word names those of it that have a tap.
TALL_TILES = 32
# A power of two, as are most numbers of stages: all items in the body of the loop then are of one step.
TALL_BUFFERS = 4
_LANES = 256
_WORD_BITS = 32


def misfits(mma: MmaShape, target: GpuTarget, values: Mapping[str, int]) -> list[str]:
    """What is wrong with the parameters of a schedule for this matrix instruction."""
    held, _ = mma.lane_elements(target.wave)
    group, run = values["fragments"] * mma.m, values["chunk_k"] * (target.wave // mma.n)
    across, rows = values["across"], values["block_rows"]
    rules = {
        f"mma_n is the instruction's {mma.n}": values["mma_n"] == mma.n,
        "tile_n is a multiple of mma_n": values["tile_n"] % values["mma_n"] == 0,
        f"chunk_k is a multiple of the {held} that a lane holds": values["chunk_k"] % held == 0,
        f"tile_k is a multiple of {target.wave // mma.n} chunk_k": values["tile_k"] % run == 0,
        "stage_k is a multiple of tile_k": values["stage_k"] > 0 == values["stage_k"] % values["tile_k"],
        "tile_n is a multiple of across times mma_n": values["tile_n"] % (across * values["mma_n"]) == 0,
        f"block_rows is waves / across times {group}": rows * across == values["waves"] * group,
        f"block_rows is at most {BLOCK_ROWS}": rows <= BLOCK_ROWS,
        f"least tiles of {mma.m} fit into block_rows": 0 < values["least"] * mma.m <= rows,
    }
    return [rule for rule, kept in rules.items() if not kept]


def tall_misfits(mma: MmaShape, target: GpuTarget, values: Mapping[str, int]) -> list[str]:
    """The same for `output_stationary_tall`."""
    held, _ = mma.lane_elements(target.wave)
    run, waves = values["chunk_k"] * (target.wave // mma.n), values["waves"]
    few, many = values["fragments"], values["most_fragments"]
    rules = {
        f"mma_n and tile_n are the instruction's {mma.n}": values["mma_n"] == values["tile_n"] == mma.n,
        f"chunk_k is a multiple of the {held} that a lane holds": values["chunk_k"] % held == 0,
        f"tile_k is a multiple of {target.wave // mma.n} chunk_k": values["tile_k"] % run == 0,
        f"waves times most_fragments is at most {TALL_TILES}": waves * many <= TALL_TILES,
        "most_fragments is as large as fragments": 0 < few <= many,
        f"least tiles fit into the {waves * few} of a share": 0 < values["least"] <= waves * few,
        "slices have whole lines of panels": values["widest"] % LINE_PANELS == values["most_panels"] % LINE_PANELS == 0,
        "most_panels is as large as widest": 0 < values["widest"] <= values["most_panels"],
    }
    return [rule for rule, kept in rules.items() if not kept]


def geometry_of(op: GemmOp, mma: MmaShape, target: GpuTarget, values: Mapping[str, int]) -> Geometry:
    """How the parameters of its schedule cut the work of a gemm."""
    panels, shape = Panels.of(op.taps, op.c_in, op.c_out, values), (mma.m, mma.n, mma.k)
    chip = {"chiplets": target.chiplets, "units": target.compute_units}
    counts = {name: values[name] for name in ("waves", "fragments", "least")}
    if values_name(op) == TALL:
        stages = -(-op.c_in // values["tile_k"])
        loop = {"buffers": TALL_BUFFERS, "together": math.gcd(TALL_BUFFERS, stages), "own_panels": values["widest"]}
        few = TallGeometry(panels, shape, target.wave, many=None, **loop, **counts, **chip)
        fragments, widest = values["most_fragments"], values["most_panels"]
        if (fragments, widest) == (few.fragments, few.own_panels):
            return few
        # More sums leave registers for features of one item that is on its way, and for half of an item's weights.
        many = dataclasses.replace(few, fragments=fragments, own_panels=widest, ahead=1, portions=2)
        return dataclasses.replace(few, many=many)
    cuts = {name: values[name] for name in ("across", "splits")}
    stages = -(-op.c_in // values["stage_k"])
    # As many items in the body of the loop as have most stages of one step among them. Where rows end within a load,
    # what that takes leaves no registers for it.
    whole = op.c_in % values["tile_k"] == 0
    buffers = max(BUFFERS, BUFFERS + whole, key=lambda count: math.gcd(count, stages))
    loop = {"buffers": buffers, "together": math.gcd(buffers, stages) if whole else 1, "own_k": values["stage_k"]}
    return Geometry(panels, shape, target.wave, **loop, **cuts, **counts, **chip)


def rewrite_output_stationary(
    op: GemmOp, mma: MmaShape, module: ir.Module, target: GpuTarget, values: Mapping[str, int]
) -> list[ir.Value]:
    """The gemm of an op whose parameters fit and whose init is a fill."""
    moved = element_type(op.weight.type)
    geometry = geometry_of(op, mma, target, values)
    panels = geometry.panels
    # The offset of a row that is not there lies behind all rows, and must not come back into them by wrapping.
    in_bytes = panels.c_in * bits(moved) // 8
    limit = target.buffer_limit_bytes - 2 * in_bytes
    reads, writes = rows_around(op)
    require(op, f"bytes of features of {op.c_in} channels", f"{reads} * {in_bytes}", limit)
    order, table, steps, step_count = buffers_of(op.pairs)
    (features,), (packed,) = buffers_of(op.features), buffers_of(op.weight)
    ends = Ends(op, module, target, geometry.splits)
    inputs = [features, packed, table, steps, step_count, order]
    name = f"gemm_{values_name(op)}_{moved}_t{op.taps}_{op.c_in}x{op.c_out}_{panels.name}"
    name += f"_s{geometry.own_k}" * bool(geometry.own_k)
    body: TallKernel | OutputStationaryKernel
    if isinstance(geometry, TallGeometry):
        body = TallKernel(geometry, ends.finish)
    else:
        body = OutputStationaryKernel(geometry, ends.finish)
    kernel = gpu_kernel(
        module,
        f"{name}_w{geometry.name}_l{geometry.least}_{ends.name}",
        [buffer.type for buffer in (*inputs, *ends.buffers)] + [i32()] * 2,
        geometry.lanes,
        body,
        workgroup=geometry.workgroup(moved),
    )
    arguments = [*inputs, *ends.buffers, symbol(reads, i32()), symbol(writes, i32())]
    grid = [geometry.groups(writes)]
    launch(kernel, arguments, group="output", grid=grid, block=geometry.lanes)
    return ends.result()


def values_name(op: GemmOp) -> str:
    """The name of the gemm's schedule."""
    return "" if op.schedule is None else op.schedule[0]


def rows_around(op: GemmOp) -> tuple[str, str]:
    """The plan's symbols for the rows that a gemm reads and writes: of one coordinate set, or of two."""
    return noted(op.pairs, "in_rows", "rows"), rows_of(op.pairs)


class Ends:
    """What comes after the sums of a gemm that owns its rows: in its own kernel where that can be.

    It cannot where there are several sums of a row, nor where two rows share a word: with 16-bit results and an odd
    number of channels two waves would write halves of it. Then the gemm writes its f32 sums, and another kernel ends
    them.

    Attributes:
        name: distinct for distinct ends. buffers: what the gemm's kernel takes beside its operands.
    """

    def __init__(self, op: GemmOp, module: ir.Module, target: GpuTarget, parts: int = 1) -> None:
        self.op, self.module, self.target, self.parts = op, module, target, parts
        self.out_type, count, limit = element(op.operation.results[0]), op.c_out, target.buffer_limit_bytes
        fill = defining_op(op.init)
        assert isinstance(fill, FillOp)
        self.biases = [] if fill.bias is None else buffers_of(fill.bias)
        self.residuals = [] if op.residual is None else buffers_of(op.residual)
        self.rows = rows_around(op)[1]
        size = f"{self.rows} * {count}"
        require(op, f"bytes of {self.out_type} rows of {count} channels", f"{size} * {bits(self.out_type) // 8}", limit)
        self.out = alloc("out", self.out_type, size)
        self.end = f"{op.epilogue.name}_{self.out_type}" + "_bias" * bool(self.biases)
        self.end += "".join(f"_plus_{element_type(buffer.type)}" for buffer in self.residuals)
        self.apart = parts > 1 or (bits(self.out_type) < _WORD_BITS and count % 2 == 1)
        if self.apart:
            require(op, f"bytes of {parts} f32 sums of {count} channels", f"{size} * {parts * 4}", limit)
            self.name, self.buffers = f"s{parts}", [alloc("part_sums", f32(), f"{size} * {parts}")]
        else:
            self.name, self.buffers = self.end, [*self.biases, *self.residuals, self.out]

    def finish(self, geometry: HasPanels, others: Sequence[V], rows: V, part: V) -> Finish:
        """What the gemm's kernel does with its sums; others: `buffers` as its arguments."""
        channels, out = self.op.c_out, others[-1]

        def to_parts(row: V, channel: V, total: V) -> None:
            store(total, out, plus(times(plus(times(part, rows), row), channels), channel))

        def to_rows(row: V, channel: V, total: V) -> None:
            lanes = ir.VectorType(total.type).shape[0] if isinstance(total.type, ir.VectorType) else 1
            at = plus(times(row, channels), channel)
            if self.biases:
                total = total + load(others[0], channel, lanes)
            added = load(others[-2], at, lanes) if self.residuals else None
            store(finish(total, added, self.op.epilogue, self.out_type), out, at)

        return within(channels, geometry, to_parts if self.apart else to_rows)

    def result(self) -> list[ir.Value]:
        """The result of the gemm, once its kernel is launched."""
        if self.apart:
            count = self.op.c_out
            body = part_sums.add_parts(
                count, self.parts, self.op.epilogue, self.out_type, _LANES,
                bias=bool(self.biases), residual=bool(self.residuals),
            )  # fmt: skip
            arguments = [*self.buffers, *self.biases, *self.residuals, self.out]
            types = [buffer.type for buffer in arguments] + [i32()]
            adder = gpu_kernel(self.module, f"add_parts_{self.parts}x{count}_{self.end}", types, _LANES, body)
            grid = [f"({self.rows} * {count}) ceildiv {rows.span(count, _LANES)}"]
            launch(adder, [*arguments, symbol(self.rows, i32())], group="output", grid=grid, block=_LANES)
        type_ = self.op.operation.results[0].type
        return [cast_to_stage([self.out], type_, rows=ir.StringAttr.get(self.rows))]


class HasPanels(Protocol):
    """The geometry of a kernel, as far as the ends of rows need to know it."""

    @property
    def panels(self) -> Panels: ...


def within(channels: int, geometry: HasPanels, write: Finish) -> Finish:
    """`write` for the channels that there are: at once where rows allow the lane's run of them, else one by one."""
    padded = geometry.panels.n_tiles * geometry.panels.columns

    def checked(row: V, channel: V, total: V) -> None:
        lanes = int(total.type.shape[0])
        if padded == channels:
            write(row, channel, total)
        elif channels % lanes == 0:
            with if_(channel < channels):
                write(row, channel, total)
        else:
            for lane in range(lanes):
                with if_(plus(channel, lane) < channels):
                    write(row, plus(channel, lane), total.lane(lane))

    return checked
