"""The gemm of schedule `chunk_stationary`: products in the vector registers (micro_kernel.py).

A batch's input rows are read in place, or converted to f32 first. A batch that is no multiple of the tile ends with
pairs whose product goes to a row that nobody reads: the last input row once more, or what was converted before. So a
NaN reaches its own neighbours only.
"""

from __future__ import annotations

import dataclasses

from spconv_compiler.passes.cpu.chunk_gemm import ChunkGemm, place_of, row_of
from spconv_compiler.passes.cpu.chunk_pairs import ROW_BITS, ROW_MASK
from spconv_compiler.passes.cpu.memory import rounded
from spconv_compiler.passes.cpu.micro_kernel import MicroKernel
from spconv_compiler.passes.cpu.rounding import widen
from spconv_compiler.passes.kernel_builder import V, bits, const, f32, for_, gep, i64, if_, load, store, vec

# Gathered rows of a batch stay in half of a second-level cache while the panels go by.
_BATCH_BYTES = 96 * 1024
_LEAST_BLOCKS = 8
# Keeps converted rows of power-of-two length out of the same cache set.
_ROW_PADDING = 4
# Registers converted between two loop ends: a row of 64 channels has none.
_CONVERTED_AT_ONCE = 8


@dataclasses.dataclass(frozen=True)
class RegisterGemm(ChunkGemm):
    """Body of the gemm kernel; see ChunkGemm."""

    micro: MicroKernel

    @property
    def half(self) -> MicroKernel:
        """For a batch's last pairs, where they are no more than half a block."""
        return dataclasses.replace(self.micro, rows=max(self.micro.rows // 2, 1))

    @property
    def reads_in_place(self) -> bool:
        """The micro-kernel reads features where they are; otherwise they are converted first."""
        return self.panels.pair_k == 2 or bits(self.element) == 32

    @property
    def converted_floats(self) -> int:
        """f32 elements from one converted row to the next."""
        return self.panels.c_in + _ROW_PADDING

    @property
    def batch(self) -> int:
        """Pairs gathered at once."""
        least = _LEAST_BLOCKS * self.micro.rows
        fitting = _BATCH_BYTES // (self.panels.c_in * 4)
        return rounded(max(least, min(fitting, self.chunk_rows)), self.micro.rows)

    def _parts(self) -> dict[str, int]:
        return {
            **super()._parts(),
            "last": self.micro.rows * 8,
            "converted": 0 if self.reads_in_place else self.batch * self.converted_floats * 4,
        }

    def _multiply(
        self, weights: V, features: V, batch: tuple[V, V], size: V, part: dict[str, V], later: tuple[V, V]
    ) -> None:
        panels, rows = self.panels, self.micro.rows
        pairs, count = batch
        self._gather(features, pairs, count, size, part)
        whole = count // rows
        with for_(0, const(panels.panels, i64()), 1, unroll=False) as panel:
            weight = gep(weights, panel.iv * panels.panel_elements, self._packed)
            sums = self._panel_of(part["sums"], panel.iv, size)
            with for_(0, (count + (rows - 1)) // rows, 1, unroll=False) as block:
                first = block.iv * rows
                self._prefetch(features, later, first, panel.iv)
                here = (block.iv < whole).select(gep(pairs, first, i64()), part["last"])
                few = count - first <= self.half.rows
                for condition, micro in ((few, self.half), (few ^ 1, self.micro)):
                    with if_(condition):
                        targets = [gep(sums, place_of(here, row) * panels.tile_n, f32()) for row in range(micro.rows)]
                        micro(self._inputs(features, here, part, first)[: micro.rows], weight, targets)

    def _gather(self, features: V, pairs: V, count: V, size: V, part: dict[str, V]) -> None:
        """Converts a batch's rows where that is needed, and makes a whole block of its last pairs."""
        if not self.reads_in_place:
            with for_(0, count, 1, unroll=False) as loop:
                row = gep(features, row_of(pairs, loop.iv) * self.panels.c_in, self.element)
                self._convert(row, gep(part["converted"], loop.iv * self.converted_floats, f32()))
        rest = count % self.micro.rows
        last = load(pairs, i64(), count - 1)
        unread = last & ROW_MASK | size << ROW_BITS
        with for_(0, rest, 1, unroll=False) as loop:
            store(load(pairs, i64(), count - rest + loop.iv), part["last"], loop.iv)
        with for_(rest, const(self.micro.rows, i64()), 1, unroll=False) as loop:
            store(unread, part["last"], loop.iv)

    def _convert(self, source: V, target: V) -> None:
        """Writes one row as f32."""
        c_in, lanes = self.panels.c_in, self.micro.lanes
        step = lanes * _CONVERTED_AT_ONCE
        looped = c_in // step * step if c_in > step else 0
        if looped:
            with for_(0, const(looped, i64()), step, unroll=False) as k:
                self._convert_vectors(gep(source, k.iv, self.element), gep(target, k.iv, f32()), range(0, step, lanes))
        whole = c_in // lanes * lanes
        self._convert_vectors(source, target, range(looped, whole, lanes))
        for channel in range(whole, c_in):
            store(widen(load(source, self.element, channel)), target, channel)

    def _convert_vectors(self, source: V, target: V, channels: range) -> None:
        for channel in channels:
            store(widen(load(source, vec(self.micro.lanes, self.element), channel)), target, channel)

    def _inputs(self, features: V, pairs: V, part: dict[str, V], first: V) -> list[V]:
        """The addresses of a block's input rows."""
        if self.reads_in_place:
            rows = [row_of(pairs, row) for row in range(self.micro.rows)]
            return [gep(features, row * self.panels.c_in, self.element) for row in rows]
        here = gep(part["converted"], first * self.converted_floats, f32())
        return [gep(here, row * self.converted_floats, f32()) for row in range(self.micro.rows)]
