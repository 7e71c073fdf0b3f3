"""The gemm of schedule `chunk_tiles`: products in tile registers (tile_block.py).

Tiles are read with a constant stride, so the input rows of a batch are copied side by side first, with zeros behind
their channels. Products are stored beside each other and added from there to the sums of their rows. A batch that is
no multiple of the block is multiplied with rows that an earlier batch has left behind, and those products are added
nowhere: a row of a product depends on one input row, so a NaN reaches its own neighbours only.
"""

from __future__ import annotations

import dataclasses

from spconv_compiler.passes.cpu.chunk_gemm import ChunkGemm, place_of, row_of
from spconv_compiler.passes.cpu.memory import bytes_after, load_first, rounded
from spconv_compiler.passes.cpu.tile_block import TileBlock
from spconv_compiler.passes.kernel_builder import V, const, f32, for_, gep, i64, if_, load, store, vec

# Rows of a batch stay in a first-level cache beside a panel's weights while the panels go by.
_BATCH_BYTES = 16 * 1024
_VECTOR_BYTES = 64
# Vectors copied between two loop ends.
_COPIED_AT_ONCE = 8


@dataclasses.dataclass(frozen=True)
class TileGemm(ChunkGemm):
    """Body of the gemm kernel; see ChunkGemm."""

    micro: TileBlock

    @property
    def batch(self) -> int:
        fitting = _BATCH_BYTES // self.micro.row_bytes
        return rounded(max(2 * self.micro.rows, min(fitting, self.chunk_rows)), self.micro.rows)

    def _parts(self) -> dict[str, int]:
        return {
            **super()._parts(),
            "gathered": self.batch * self.micro.row_bytes,
            "products": self.micro.rows * self.panels.tile_n * 4,
        }

    def _begin(self) -> None:
        self.micro.begin(self.functions, f"{self.name}_tiles")

    def _end(self) -> None:
        self.micro.end()

    def _multiply(
        self, weights: V, features: V, batch: tuple[V, V], size: V, part: dict[str, V], later: tuple[V, V]
    ) -> None:
        panels, rows = self.panels, self.micro.rows
        pairs, count = batch
        self._gather(features, pairs, count, part["gathered"])
        with for_(0, const(panels.panels, i64()), 1, unroll=False) as panel:
            weight = gep(weights, panel.iv * panels.panel_elements, self._packed)
            sums = self._panel_of(part["sums"], panel.iv, size)
            self.micro.load_panel(weight)
            with for_(0, (count + (rows - 1)) // rows, 1, unroll=False) as block:
                first = block.iv * rows
                inputs = bytes_after(part["gathered"], first * self.micro.row_bytes)
                self._products(inputs, weight, part["products"], count - first)
                self._add(part["products"], gep(pairs, first, i64()), (count - first).min(rows), sums)

    def _products(self, inputs: V, weight: V, products: V, count: V) -> None:
        """The products of a block that has `count` pairs left; of half a block if that is all."""
        if self.micro.tall == 1:
            self.micro(inputs, weight, products, tall=1)
            return
        few = count <= self.micro.rows // 2
        for condition, tall in ((few, 1), (few ^ 1, self.micro.tall)):
            with if_(condition):
                self.micro(inputs, weight, products, tall=tall)

    def _add(self, products: V, pairs: V, count: V, sums: V) -> None:
        """Adds the first `count` rows of products to the sums of the pairs' rows."""
        tile_n, lanes = self.panels.tile_n, self.micro.lanes
        with for_(0, count, 1, unroll=False) as row:
            target = gep(sums, place_of(pairs, row.iv) * tile_n, f32())
            source = gep(products, row.iv * tile_n, f32())
            for column in range(0, tile_n, lanes):
                total, product = (load(address, vec(lanes, f32()), column) for address in (target, source))
                store(total + product, target, column)

    def _gather(self, features: V, pairs: V, count: V, target: V) -> None:
        """Copies a batch's rows, and zeros behind each up to a whole tile."""
        with for_(0, count, 1, unroll=False) as loop:
            source = gep(features, row_of(pairs, loop.iv) * self.panels.c_in, self.element)
            self._copy(source, bytes_after(target, loop.iv * self.micro.row_bytes))

    def _copy(self, source: V, target: V) -> None:
        used = rounded(self.panels.padded_c_in * 2, min(_VECTOR_BYTES, self.micro.row_bytes))
        step = _COPIED_AT_ONCE * _VECTOR_BYTES
        looped = self.panels.c_in * 2 // step * step if self.panels.c_in * 2 > step else 0
        if looped:
            with for_(0, const(looped, i64()), step, unroll=False) as k:
                self._copy_vectors(bytes_after(source, k.iv), bytes_after(target, k.iv), range(0, step, _VECTOR_BYTES))
        self._copy_vectors(source, target, range(looped, used, min(_VECTOR_BYTES, self.micro.row_bytes)))

    def _copy_vectors(self, source: V, target: V, places: range) -> None:
        """Copies vectors at `places`, in bytes; places.step is the size of one."""
        lanes = places.step // 2
        for place in places:
            count = min(lanes, self.panels.c_in - place // 2)
            store(load_first(bytes_after(source, place), count, lanes), bytes_after(target, place))
