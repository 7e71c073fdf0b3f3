"""The gemm of schedule `small_channels`: with few input channels, one matrix instruction takes several taps.

All taps of a row are one long row of K: taps · padded channels, in runs of 16 bytes, of which every lane group of an
instruction takes another one. A wave has `fragments` tiles of 16 sorted rows and a slice of output channels; for a
number of steps at once it loads the neighbours of its rows, gathers their runs and multiplies. There is so little to
multiply that absent taps are not skipped: their runs are zeros, and touch no memory. Weights are read from caches, and
are operand A: a lane then holds consecutive channels of one row, which is written once, with the epilogue applied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from spconv_compiler.dialect.tile import tile_mma
from spconv_compiler.dialect.types import element_type
from spconv_compiler.passes.gpu.channels import Channels
from spconv_compiler.passes.gpu.dense_grid import NONE, TILE_ROWS
from spconv_compiler.passes.gpu.item_pipeline import part
from spconv_compiler.passes.gpu.lanes import block, bounded, concatenate, load, plus, store, thread, times
from spconv_compiler.passes.gpu.mma_panels import Panels
from spconv_compiler.passes.gpu.output_stationary import Finish
from spconv_compiler.passes.kernel_builder import V, const, f32, for_, i32, if_, vec

# Loads that a lane sends for at once. A run of loads must not write a register that an earlier one reads, and the code
# generator only looks back so far.
_LOADS = 16


@dataclasses.dataclass(frozen=True)
class TapPanels:
    """Weights whose K is all taps: [n tile][run][16][run's channels], run r being part r % parts of tap r // parts.

    Attributes:
        taps, c_in, c_out: of the convolution. slice_columns, columns: output channels of a slice, of an instruction.
        run: channels of 16 bytes. groups: runs of one instruction.
    """

    taps: int
    c_in: int
    c_out: int
    slice_columns: int
    columns: int
    run: int
    groups: int

    @property
    def parts(self) -> int:
        """Runs of a tap."""
        return -(-self.c_in // self.run)

    @property
    def piece(self) -> int:
        """Channels that one load takes: a power of two that a row's length is a multiple of."""
        piece = self.run
        while self.c_in % piece:
            piece //= 2
        return piece

    @property
    def steps(self) -> int:
        return -(-self.taps * self.parts // self.groups)

    @property
    def panels(self) -> Panels:
        """The same as the weights of one tap with as many channels."""
        tile_k = self.groups * self.run
        return Panels(1, self.steps * tile_k, self.c_out, self.slice_columns, self.columns, tile_k, self.run)

    @property
    def name(self) -> str:
        return f"n{self.slice_columns}x{self.columns}_r{self.groups}x{self.run}"


def pack_weight(panels: TapPanels, lanes: int) -> Callable[..., None]:
    """Body(weight [C_out, taps, C_in], packed): a lane per run."""
    flat = panels.panels
    runs = flat.elements // flat.run

    def body(weight: V, packed: V) -> None:
        number = plus(times(block(), lanes), thread())
        size = const(panels.c_out * panels.taps * panels.c_in, i32())
        rows = Channels.of(weight, size, panels.c_in, panels.run, panels.parts * panels.run)
        with if_(number < runs):
            column, rest = number % panels.columns, number // panels.columns
            k, tile = rest % flat.k_runs, rest // flat.k_runs
            tap, channel = k // panels.parts, times(k % panels.parts, panels.run)
            out = plus(times(tile, panels.columns), column)
            start = plus(times(plus(times(out, panels.taps), tap), panels.c_in), channel)
            known = (out < panels.c_out) & (tap < panels.taps)
            limit = known.select(const(panels.c_in, i32()), 0)
            store(rows.edge(start, channel, 0, limit), packed, times(number, panels.run))

    return body


@dataclasses.dataclass(frozen=True)
class SmallGeometry:
    """How the work is cut: shape (m, n, k) of the matrix instruction, waves of a workgroup, tiles of a wave."""

    taps: TapPanels
    shape: tuple[int, int, int]
    wave: int
    waves: int
    fragments: int

    @property
    def panels(self) -> Panels:
        return self.taps.panels

    @property
    def lanes(self) -> int:
        return self.wave * self.waves

    @property
    def rows(self) -> int:
        """Rows of a workgroup."""
        return self.waves * self.fragments * TILE_ROWS

    @property
    def per_slice(self) -> int:
        return self.panels.slice_columns // self.panels.columns

    @property
    def slices(self) -> int:
        """The grid's second axis."""
        return self.panels.n_tiles // self.per_slice


class SmallChannelsKernel:
    """Body(features, weights, table, order, *others, in_rows, rows): table and order are row_masks.py's."""

    def __init__(self, geometry: SmallGeometry, finish: Callable[[SmallGeometry, Sequence[V], V, V], Finish]) -> None:
        self.geometry, self.finish = geometry, finish

    def __call__(self, features: V, weights: V, table: V, order: V, *rest: V) -> None:
        g = self.geometry
        *others, in_rows, rows = rest
        number, slice_ = block(), block("y")
        lane = thread() % g.wave
        column, group = lane % g.shape[1], lane // g.shape[1]
        tile = times(plus(times(number, g.waves), thread() // g.wave), g.fragments)
        elements = times(in_rows, g.taps.c_in)
        gather = bounded(features, elements)

        def steps(first: V, count: int, sums: list[V]) -> list[V]:
            """Items of steps first to first + count: neighbours, then runs, then products."""
            found, operands = [], []
            for step in range(count):
                run = plus(times(plus(first, step), g.taps.groups), group)
                found.append((run, self._neighbours(table, tile, run, column)))
            for step, (run, neighbours) in enumerate(found):
                part_of = run % g.taps.parts
                values = [self._run(gather, elements, row, times(part_of, g.taps.run)) for row in neighbours]
                operands.append((self._weights(weights, plus(first, step), slice_, lane), values))
            return self._multiply(operands, sums)

        held = g.shape[0] * g.shape[1] // g.wave
        sums = [const(0, vec(held, f32()))] * (g.per_slice * g.fragments)
        # Rows whose length is no multiple of a run are loaded in pieces.
        pieces = -(-min(g.taps.c_in, g.taps.run) // g.taps.piece)
        together = max(1, _LOADS // (g.fragments * (1 + pieces) + g.per_slice))
        rounds, left = divmod(g.taps.steps, together)
        if rounds:
            with for_(0, const(rounds * together, i32()), together, sums, unroll=False) as turn:
                turn.yields(*steps(turn.iv, together, turn.args))
            sums = turn.results
        if left:
            sums = steps(const(rounds * together, i32()), left, sums)
        self._write(sums, order, tile, column, group, slice_, self.finish(g, others, rows, const(0, i32())))

    def _neighbours(self, table: V, tile: V, run: V, column: V) -> list[V]:
        """The input rows of the lane's rows through the tap of a run; −1 for taps beyond the last."""
        g = self.geometry
        tap = run // g.taps.parts
        known = tap.min(g.taps.taps - 1)
        first = plus(times(plus(times(tile, g.taps.taps), known), TILE_ROWS), column)
        rows = [load(table, plus(first, f * g.taps.taps * TILE_ROWS)) for f in range(g.fragments)]
        return [(tap < g.taps.taps).select(row, NONE) for row in rows]

    def _run(self, gather: V, elements: V, row: V, channel: V) -> V:
        """vector<run x T> of a row from `channel` on; zeros for an absent row and beyond the last channel."""
        taps, element = self.geometry.taps, element_type(gather.type)
        piece = taps.piece
        start, pieces = plus(times(row, taps.c_in), channel), []
        for at in range(0, taps.run, piece):
            if at >= taps.c_in:
                pieces.append(const(0, element if piece == 1 else vec(piece, element)))
                continue
            inside = row >= 0 if taps.c_in % taps.run == 0 else (row >= 0) & (plus(channel, at) < taps.c_in)
            pieces.append(load(gather, inside.select(plus(start, at), elements), piece))
        return concatenate(pieces)

    def _weights(self, weights: V, step: V, slice_: V, lane: V) -> list[V]:
        g = self.geometry
        at = plus(times(slice_, g.per_slice * g.panels.panel), times(step, g.wave * g.taps.run))
        own = times(lane, g.taps.run)
        return [load(weights, plus(own, at, n * g.panels.panel), g.taps.run) for n in range(g.per_slice)]

    def _multiply(self, operands: list[tuple[list[V], list[V]]], sums: list[V]) -> list[V]:
        g, sums = self.geometry, list(sums)
        held = g.shape[0] * g.shape[2] // g.wave
        for columns, values in operands:
            for fragment, value in enumerate(values):
                for number, column in enumerate(columns):
                    place = fragment * g.per_slice + number
                    for first in range(0, g.taps.run, held):
                        a, b = part(column, first, held), part(value, first, held)
                        sums[place] = V(tile_mma(g.shape, a.value, b.value, sums[place]))
        return sums

    def _write(self, sums: list[V], order: V, tile: V, column: V, group: V, slice_: V, finish: Finish) -> None:
        g = self.geometry
        held = g.shape[0] * g.shape[1] // g.wave
        channel = plus(times(slice_, g.panels.slice_columns), times(group, held))
        for fragment in range(g.fragments):
            row = load(order, plus(times(plus(tile, fragment), TILE_ROWS), column))
            with if_(row >= 0):
                for number in range(g.per_slice):
                    value = sums[fragment * g.per_slice + number]
                    finish(row, plus(channel, number * g.panels.columns), value)
