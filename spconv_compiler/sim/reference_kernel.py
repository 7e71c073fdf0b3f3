"""The reference gemm (FlyDSL pull request 942, our schedule pairs_m16) as its author launched it, counted and modelled.

A workgroup takes one tile of 16 pairs and one slice of output channels; ours let a workgroup take several tiles in
turn, so here the number of waves is set so high that none does. Width of a slice (the author's CT times 16) and
unrolling of K are parameters. Workgroups of one XCD, every eighth, are run and stand for all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.sim import chip
from spconv_compiler.sim.access_counter import AccessCounter
from spconv_compiler.sim.cache_model import Traffic, replay
from spconv_compiler.sim.counters import LaunchCounters, count_launch
from spconv_compiler.sim.elf import CodeObject, Kernel
from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.interpreter import Machine
from spconv_compiler.sim.memory import Allocation
from spconv_compiler.sim.timing import Band, model_launch

TILE = 16
_TAPS = 27
_MANY_WAVES = 2**20
Rows = npt.NDArray[np.int32]
Observer = Callable[[Instruction, Any, Any, Any, Any, int], None]


@dataclasses.dataclass(frozen=True)
class PairList:
    """Pairs in tiles of 16, ordered by tap: rows to read, rows to add to (−1: padding), tap of each tile."""

    in_rows: Rows
    out_rows: Rows
    tile_tap: Rows
    pairs: int

    @property
    def tiles(self) -> int:
        return len(self.tile_tap)


@dataclasses.dataclass(frozen=True)
class GemmRun:
    """One modelled gemm launch; by_address and counters are those of the whole launch."""

    instructions: list[Instruction]
    by_address: dict[int, int]
    counters: LaunchCounters
    traffic: Traffic
    touched_bytes: int
    band: Band


def compacted(table: Rows) -> PairList:
    """The pairs of a neighbour table [N, taps], each tap's filled up to whole tiles."""
    return _join([_padded(np.flatnonzero(column >= 0), column) for column in table.T])


def uncompacted(table: Rows) -> PairList:
    """Every row through every tap, present or not: what a gemm on the table itself multiplies."""
    rows = np.arange(len(table))
    return _join([_padded(rows, column) for column in table.T])


def _padded(rows: Any, column: Rows) -> tuple[Rows, Rows]:
    fill = -len(rows) % TILE
    found = column[rows]
    in_rows = np.concatenate([np.maximum(found, 0), np.zeros(fill, np.int64)])
    out_rows = np.concatenate([np.where(found >= 0, rows, -1), np.full(fill, -1)])
    return in_rows.astype(np.int32), out_rows.astype(np.int32)


def _join(columns: list[tuple[Rows, Rows]]) -> PairList:
    taps = np.repeat(np.arange(len(columns)), [len(rows) // TILE for rows, _ in columns]).astype(np.int32)
    in_rows, out_rows = (np.concatenate(part) for part in zip(*columns, strict=True))
    return PairList(in_rows, out_rows, taps, int((out_rows >= 0).sum()))


def compile_reference(channels: int, columns: int, k_unroll: int) -> Kernel:
    """The gemm kernel for C → C channels, slices of `columns` output channels."""
    from spconv_compiler.bindings import ir
    from spconv_compiler.codegen_gpu import emit_gpu
    from spconv_compiler.compiler import conv_options
    from spconv_compiler.context import make_context
    from spconv_compiler.frontend import conv_module
    from spconv_compiler.linker import toolkit_dir
    from spconv_compiler.passes.choose_schedule import ChooseSchedule
    from spconv_compiler.pipeline import stages_for
    from spconv_compiler.runner import Runner
    from spconv_compiler.schedules import Choice, Chosen
    from spconv_compiler.targets.gfx950 import GFX950

    class FixedSchedule(ChooseSchedule):
        """Takes the parameters asked for instead of the schedule's own."""

        def _choose(self, gemm: Any, target: Any) -> Chosen:
            chosen = super()._choose(gemm, target)
            panels = {"tile_n": columns}
            weights = Choice(chosen.weights.name, {**chosen.weights.parameters, **panels})
            waves = {"k_unroll": k_unroll, "waves": _MANY_WAVES}
            return dataclasses.replace(
                chosen, weights=weights, gemm=Choice(chosen.gemm.name, {**chosen.gemm.parameters, **panels, **waves})
            )

    options = conv_options(3, channels, channels, dtype="bf16", out_dtype="f32", target="gfx950")
    stages = [
        dataclasses.replace(
            stage,
            passes=tuple(
                FixedSchedule(target=item.target, schedule="pairs_m16") if isinstance(item, ChooseSchedule) else item
                for item in stage.passes
            ),
        )
        for stage in stages_for(GFX950)
    ]
    with make_context(), ir.Location.unknown():
        module = conv_module(options)
        Runner(verify=False).run_stages(module, stages)
        kernels = CodeObject(emit_gpu(module, GFX950, toolkit_dir()).object).kernels
    return next(kernel for name, kernel in kernels.items() if name.startswith("gemm_pairs_m16"))


def run_gemm(
    kernel: Kernel,
    pairs: PairList,
    rows: int,
    channels: int,
    columns: int,
    watch: Callable[[AccessCounter, Allocation], Observer] = lambda counter, packed: counter,
) -> GemmRun:
    """Runs one XCD's workgroups of a gemm and models the whole launch.

    Args:
        watch: makes the observer from the counter and the packed weights' allocation; it may change addresses.
    """
    machine = Machine({kernel.name: kernel})
    memory = machine.memory

    def place(name: str, values: npt.NDArray[Any]) -> Allocation:
        buffer = memory.allocate(name, values.nbytes)
        memory.write_array(buffer, values)
        return buffer

    # What is multiplied makes no difference to what is counted.
    first = np.searchsorted(pairs.tile_tap, np.arange(_TAPS + 1)).astype(np.int32)
    packed = place("packed", np.zeros(_TAPS * channels * channels, np.uint16))
    buffers = [
        place("features", np.zeros(rows * channels, np.uint16)),
        packed,
        place("in_rows", pairs.in_rows),
        place("out_rows", pairs.out_rows),
        place("tile_tap", pairs.tile_tap),
        place("tap_tile", first),
        place("out", np.zeros(rows * channels, np.float32)),
    ]
    grid = [pairs.tiles, channels // columns]
    groups = grid[0] * grid[1]
    counter = AccessCounter(chip.CHIPLETS, trace=True)
    machine.observer = watch(counter, packed)
    order = range(0, groups, chip.CHIPLETS)
    counts = machine.launch(kernel.name, grid, chip.LANES, [*buffers, rows], order)
    by_address = {address: round(count * groups / len(order)) for address, count in counts.by_address.items()}
    program = machine.program(kernel.name)
    counters = count_launch(
        kernel,
        program.instructions,
        by_address,
        groups=groups,
        block=chip.LANES,
        accesses=counter,
        useful_macs=pairs.pairs * channels * channels,
    )
    kinds = {address: one.kind for address, one in counter.by_address.items()}
    traffic = replay(counter.trace(), kinds, counters.occupancy.groups_per_unit)
    touched = sum(buffer.size for buffer in buffers)
    scale = groups / len(order)
    band = model_launch(program.instructions, by_address, counters, traffic, scale, touched)
    return GemmRun(list(program.instructions), by_address, counters, traffic, touched, band)
