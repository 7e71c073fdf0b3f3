"""The gemm of schedule `pairs_m16`: gather 16 rows, multiply by a slice of the weights, add into the output.

After FlyDSL pull request 942. A workgroup is one wave. It takes every `waves`-th tile of 16 pairs of one tap;
their number is read from memory, so the grid only has to be large enough to fill the chip. Features are operand
A, gathered row by row with 16-byte loads straight into the matrix instruction's layout; weights are operand B,
read in panels. Each lane then holds 4 pairs × 1 channel per instruction, and 16 lanes 64 consecutive bytes of an
output row, which is the run that one f32 atomic of the wave touches. No LDS.
"""

from __future__ import annotations

import dataclasses

from spconv_compiler.dialect.tile import tile_mma
from spconv_compiler.passes.gpu.channels import Channels
from spconv_compiler.passes.gpu.lanes import atomic, block, concatenate, load, plus, thread, times
from spconv_compiler.passes.gpu.mma_panels import Panels
from spconv_compiler.passes.kernel_builder import V, const, f32, for_, i32, if_, vec


@dataclasses.dataclass(frozen=True)
class PairsM16Kernel:
    """What the body depends on.

    Attributes:
        panels: the weights. shape: (m, n, k) of the matrix instruction; m is the number of pairs of a tile.
        wave: lanes. k_unroll: steps whose loads are issued together. waves: workgroups along x.
    """

    panels: Panels
    shape: tuple[int, int, int]
    wave: int
    k_unroll: int
    waves: int

    @property
    def per_slice(self) -> int:
        """Panels that one wave multiplies with."""
        return self.panels.slice_columns // self.panels.columns

    @property
    def slices(self) -> int:
        """The grid's second axis."""
        return self.panels.n_tiles // self.per_slice

    def __call__(
        self,
        features: V,
        weights: V,
        in_rows: V,
        out_rows: V,
        tile_tap: V,
        tap_tile: V,
        out: V,
        rows: V,
    ) -> None:
        m, lane, groups = self.shape[0], thread(), self.wave // self.shape[0]
        part, first = block("y"), block()
        reach = (groups - 1) * self.panels.run
        elements = times(rows, self.panels.c_in)
        gather = Channels.of(features, elements, self.panels.c_in, self.panels.run, reach)
        tiles = load(tap_tile, const(self.panels.taps, i32()))
        with for_(first, tiles, self.waves, unroll=False) as each:
            pair = times(each.iv, m)
            row = load(in_rows, plus(lane % m, pair))
            targets = load(out_rows, plus(times(lane // m, m // groups), pair), m // groups)
            channel = times(lane // m, self.panels.run)
            start = plus(times(row, self.panels.c_in), channel)
            panel = times(plus(times(load(tile_tap, each.iv), self.slices), part), self.per_slice)
            sums = self._multiply(gather, start, channel, weights, times(panel, self.panels.panel), lane)
            self._add(sums, targets, out, lane, part)

    def _multiply(self, gather: Channels, start: V, channel: V, weights: V, panel: V, lane: V) -> list[V]:
        """The sums of one tile: for each panel vector<4xf32>, over all of K."""
        tile_k, run = self.panels.tile_k, self.panels.run
        steps, own = self.panels.c_in // tile_k, times(lane, run)

        def step(k: int, *base: V) -> tuple[V, list[V]]:
            """Operands of the step at channel k, or k beyond `base`: features, and one run of every panel."""
            scaled = [times(part, self.panels.columns) for part in base]
            columns = [
                load(weights, plus(own, panel, *scaled, k * self.panels.columns + n * self.panels.panel), run)
                for n in range(self.per_slice)
            ]
            if k + tile_k > self.panels.c_in:
                return gather.edge(start, channel, k), columns
            return gather.full(plus(start, *base), k), columns

        sums = [const(0, vec(self.shape[0] * self.shape[1] // self.wave, f32()))] * self.per_slice
        rounds = steps // self.k_unroll
        if rounds > 1:
            span = self.k_unroll * tile_k
            with for_(0, const(rounds * span, i32()), span, sums, unroll=False) as turn:
                operands = [step(u * tile_k, turn.iv) for u in range(self.k_unroll)]
                turn.yields(*self._mma(operands, turn.args))
            sums = turn.results
        first = rounds * self.k_unroll if rounds > 1 else 0
        rest = range(first * tile_k, self.panels.c_in, tile_k)
        return self._mma([step(k) for k in rest], sums)

    def _mma(self, operands: list[tuple[V, list[V]]], sums: list[V]) -> list[V]:
        """sums + Σ a·b; a run longer than the instruction's operand takes several instructions."""
        held = self.shape[0] * self.shape[2] // self.wave
        for a, columns in operands:
            for at in range(0, self.panels.run, held):
                sums = [
                    V(tile_mma(self.shape, _part(a, at, held).value, _part(b, at, held).value, c))
                    for b, c in zip(columns, sums, strict=True)
                ]
        return sums

    def _add(self, sums: list[V], targets: V, out: V, lane: V, part: V) -> None:
        """out[targets[v]][column] += sums[n][v]; padding (target −1) and columns beyond C_out are branched around."""
        n = self.shape[1]
        column = plus(lane % n, times(part, self.panels.slice_columns))
        last = (self.slices - 1) * self.panels.slice_columns
        for pair in range(targets_of(sums)):
            target = targets.lane(pair)
            with if_(target >= 0):
                start = plus(times(target, self.panels.c_out), column)
                for number, value in enumerate(sums):
                    at = number * n
                    if last + at + n <= self.panels.c_out:
                        atomic("fadd", value.lane(pair), out, plus(start, at))
                        continue
                    with if_(plus(column, at) < self.panels.c_out):
                        atomic("fadd", value.lane(pair), out, plus(start, at))


def targets_of(sums: list[V]) -> int:
    """Output rows that a lane holds."""
    return int(sums[0].type.shape[0])


def _part(operand: V, at: int, lanes: int) -> V:
    """Elements [at, at + lanes) of a vector."""
    if operand.type.shape[0] == lanes:
        return operand
    return concatenate([operand.lane(number) for number in range(at, at + lanes)])
