"""The register-blocked inner loop: `tile_m` gathered rows times one panel of weights, on top of the sums so far.

Every sum is one chain of fused multiply-adds over k, whatever block or chunk its row falls into: results do not
depend on the order of rows or the number of threads.
"""

from __future__ import annotations

import dataclasses

from spconv_compiler.bindings import ir
from spconv_compiler.passes.cpu.functions import call_intrinsic
from spconv_compiler.passes.cpu.memory import CACHE_LINE, bytes_after, i16
from spconv_compiler.passes.cpu.row_panels import RowPanels
from spconv_compiler.passes.kernel_builder import V, const, f32, fma, for_, i32, i64, load, store, vec


@dataclasses.dataclass(frozen=True)
class MicroKernel:
    """A tile of `rows` × `panels.tile_n` sums in registers of `lanes` f32.

    `unroll_k` is how many k steps an iteration takes.
    """

    panels: RowPanels
    rows: int
    lanes: int
    unroll_k: int

    @property
    def vectors(self) -> int:
        """Registers of one row of sums."""
        return self.panels.tile_n // self.lanes

    @property
    def step_bytes(self) -> int:
        """Bytes of a row that one k step reads: one f32, or two bf16."""
        return 4

    def __call__(self, inputs: list[V], panel: V, sums: list[V]) -> None:
        """Builds one tile.

        Args:
            inputs: addresses of `rows` input rows, f32 [c_in] or bf16 [c_in] by pair_k.
            panel: address of the weights.
            sums: addresses of `rows` rows of f32 [tile_n], read and written.
        """
        places = [(row, vector) for row in range(self.rows) for vector in range(self.vectors)]
        register = vec(self.lanes, f32())
        tile = [load(sums[row], register, vector * self.lanes) for row, vector in places]
        whole = self.panels.c_in // self.panels.pair_k
        looped = whole // self.unroll_k * self.unroll_k
        if looped > self.unroll_k:
            with for_(0, const(looped, i64()), self.unroll_k, tile, unroll=False) as loop:
                weights = self._weights(panel, loop.iv)
                here = [bytes_after(row, loop.iv * self.step_bytes) for row in inputs]
                tile = loop.args
                for step in range(self.unroll_k):
                    tile = self._step(tile, here, weights, step)
                loop.yields(*tile)
            tile = loop.results
        else:
            looped = 0
        for step in range(looped, self.panels.k_steps):
            tile = self._step(tile, inputs, panel, step, half=step == whole)
        for (row, vector), value in zip(places, tile, strict=True):
            store(value, sums[row], vector * self.lanes)

    def _weights(self, panel: V, step: V) -> V:
        width = self.panels.tile_n * self.step_bytes
        return bytes_after(panel, step * width)

    def _step(self, tile: list[V], inputs: list[V], panel: V, step: int, *, half: bool = False) -> list[V]:
        """One k step; `half`: the row ends after the first number of a pair."""
        pairs = self.panels.pair_k == 2
        element, count = (ir.BF16Type.get(), 2 * self.lanes) if pairs else (f32(), self.lanes)
        weights = [
            load(panel, vec(count, element), (step * self.vectors + vector) * count, align=CACHE_LINE // 2)
            for vector in range(self.vectors)
        ]
        result = list(tile)
        for row in range(self.rows):
            value = self._broadcast(inputs[row], step, half)
            for vector, weight in enumerate(weights):
                at = row * self.vectors + vector
                result[at] = self._multiply_add(value, weight, result[at])
        return result

    def _broadcast(self, row: V, step: int, half: bool) -> V:
        """k step `step` of a row in all lanes."""
        address = bytes_after(row, step * self.step_bytes)
        if self.panels.pair_k == 1:
            return load(address, f32()).broadcast(self.lanes)
        # Rows of an odd number of bf16 start at odd multiples of two bytes.
        pair = load(address, i16()).to(i32()) if half else load(address, i32(), align=2)
        return pair.broadcast(self.lanes).bitcast(vec(2 * self.lanes, ir.BF16Type.get()))

    def _multiply_add(self, a: V, b: V, c: V) -> V:
        if self.panels.pair_k == 1:
            return fma(a, b, c)
        # Lane j of a pair operand holds the numbers 2j and 2j + 1.
        return call_intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", [c, a, b], c.type)
