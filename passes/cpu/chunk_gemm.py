"""What the gemms of processors share: a worker finishes one chunk of output rows before it takes the next.

The chunk's sums stay in the worker's scratch, panel by panel. For each tap its pairs are taken a batch at a time and
multiplied by all panels of the tap's weights: register_gemm.py and tile_gemm.py say how. Rows are written once,
through the epilogue, to where they were before sorting.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

from spconv_compiler.bindings import ir
from spconv_compiler.epilogue import Epilogue
from spconv_compiler.passes.cpu.chunk_pairs import ROW_BITS
from spconv_compiler.passes.cpu.functions import Functions
from spconv_compiler.passes.cpu.memory import (
    CACHE_LINE,
    bytes_after,
    prefetch,
    rounded,
)
from spconv_compiler.passes.cpu.parallel import parallel_for, worth_workers
from spconv_compiler.passes.cpu.row_panels import RowPanels
from spconv_compiler.passes.cpu.rows import finish
from spconv_compiler.passes.kernel_builder import (
    V,
    bits,
    const,
    f32,
    for_,
    gep,
    i32,
    i64,
    if_,
    load,
    store,
    vec,
)

# A worker for this many multiply-adds, a few pairs a row assumed: some half a millisecond.
_GRAIN = 1 << 22
# Cache lines asked for at once; more would only push each other out, and every one is an instruction.
_MOST_PREFETCHES = 16


class Block(Protocol):
    """What multiplies `rows` pairs by a panel of weights; its sums are handled in vectors of `lanes` f32."""

    @property
    def panels(self) -> RowPanels: ...

    @property
    def rows(self) -> int: ...

    @property
    def lanes(self) -> int: ...


@dataclasses.dataclass(frozen=True)
class ChunkGemm:
    """Body of the gemm kernel.

    Arguments: features [rows, c_in]; packed weights; bias f32 [c_out] if `bias`; residual [rows, c_out] if it has a
    type; out [rows, c_out]; pairs, chunk_first, tap_first as ChunkPairs wrote them; origin i32 [rows]; scratch
    [threads, scratch_bytes], aligned to a cache line; rows; threads. out may be the memory of residual.
    """

    functions: Functions
    name: str
    micro: Block
    chunk_rows: int
    element: ir.Type
    out_element: ir.Type
    epilogue: Epilogue
    bias: bool
    residual: ir.Type | None

    @property
    def panels(self) -> RowPanels:
        return self.micro.panels

    @property
    def batch(self) -> int:
        """Pairs multiplied by all panels before the next ones are."""
        raise NotImplementedError

    def _multiply(
        self, weights: V, features: V, batch: tuple[V, V], size: V, part: dict[str, V], later: tuple[V, V]
    ) -> None:
        """Adds the products of a batch (pairs, count) into the sums of `size` rows; prefetches for the later one."""
        raise NotImplementedError

    def _begin(self) -> None:
        """Builds what a worker does before a chunk."""

    def _end(self) -> None:
        """Builds what a worker does after a chunk."""

    def _panel_of(self, sums: V, panel: V | int, size: V) -> V:
        """The sums of one panel of `size` rows: as close to each other as they can be, for small calls' sake."""
        row_bytes = self.panels.tile_n * 4
        return bytes_after(sums, (size + 1) * row_bytes * panel)

    def _parts(self) -> dict[str, int]:
        """The scratch of a worker: bytes of each part."""
        return {
            # Each panel has the chunk's rows and the one that nobody reads.
            "sums": self.panels.panels * (self.chunk_rows + 1) * self.panels.tile_n * 4,
            "bias": self.panels.panels * self.panels.tile_n * 4,
        }

    @property
    def scratch_bytes(self) -> int:
        return sum(rounded(size) for size in self._parts().values())

    def __call__(self, features: V, packed: V, *rest: V) -> None:
        bias, rest = (rest[:1], rest[1:]) if self.bias else ((), rest)
        residual, rest = (rest[:1], rest[1:]) if self.residual is not None else ((), rest)
        out, pairs, chunk_first, tap_first, origin, scratch, rows, threads = rest
        panels = self.panels
        shared = [features, packed, out, pairs, chunk_first, tap_first, origin, scratch, rows, *residual, *bias]
        chunks = (rows + (self.chunk_rows - 1)) // self.chunk_rows
        workers = worth_workers(threads, rows * (panels.c_in * panels.c_out * min(panels.taps, 6)), _GRAIN)
        parallel_for(self.functions, self.name, chunks, workers.min(chunks.max(1)), shared, self._chunk)

    def _chunk(
        self,
        chunk: V,
        worker: V,
        features: V,
        packed: V,
        out: V,
        pairs: V,
        chunk_first: V,
        tap_first: V,
        origin: V,
        scratch: V,
        rows: V,
        *more: V,
    ) -> None:
        residual, bias = more[: self.residual is not None], more[self.residual is not None :]
        part = self._scratch(scratch, worker)
        self._begin()
        start = chunk * self.chunk_rows
        size = (rows - start).min(self.chunk_rows)
        self._start_rows(part, size, *bias)
        mine = gep(pairs, load(chunk_first, i64(), chunk), i64())
        taps = gep(tap_first, chunk * (self.panels.taps + 1), i32())
        count = load(taps, i32(), self.panels.taps).to(i64())
        with for_(0, const(self.panels.taps, i64()), 1, unroll=False) as tap:
            first, end = (load(taps, i32(), tap.iv + after).to(i64()) for after in (0, 1))
            weights = gep(packed, tap.iv * (self.panels.panels * self.panels.panel_elements), self._packed)
            with for_(first, end, self.batch, unroll=False) as batch:
                here = gep(mine, batch.iv, i64())
                size_here = (end - batch.iv).min(self.batch)
                # The pairs after this batch are the next one's, of this tap or the next.
                later = gep(here, size_here, i64()), count - batch.iv - size_here
                self._multiply(weights, features, (here, size_here), size, part, later)
        self._end()
        self._finish_rows(part, size, gep(origin, start, i32()), out, *residual)

    @property
    def _packed(self) -> ir.Type:
        return self.panels.packed_element(self.element)

    def _scratch(self, scratch: V, worker: V) -> dict[str, V]:
        """The addresses of a worker's parts."""
        here = bytes_after(scratch, worker * self.scratch_bytes)
        parts = {}
        for name, size in self._parts().items():
            parts[name] = here
            here = bytes_after(here, rounded(size))
        return parts

    def _start_rows(self, part: dict[str, V], size: V, *bias: V) -> None:
        """Sets the sums of `size` rows to the bias, or to zero."""
        panels, lanes = self.panels, self.micro.lanes
        with for_(0, const(panels.panels * panels.tile_n, i64()), unroll=False) as loop:
            store(const(0.0, f32()), part["bias"], loop.iv)
        for given in bias:
            with for_(0, const(panels.c_out, i64()), unroll=False) as loop:
                store(load(given, f32(), loop.iv), part["bias"], loop.iv)
        with for_(0, const(panels.panels, i64()), 1, unroll=False) as panel:
            source = gep(part["bias"], panel.iv * panels.tile_n, f32())
            registers = [load(source, vec(lanes, f32()), vector * lanes) for vector in range(panels.tile_n // lanes)]
            target = self._panel_of(part["sums"], panel.iv, size)
            with for_(0, size, 1, unroll=False) as row:
                for vector, register in enumerate(registers):
                    store(register, gep(target, row.iv * panels.tile_n, f32()), vector * lanes)

    def _prefetch(self, features: V, later: tuple[V, V], first: V, panel: V) -> None:
        """Asks for this panel's share of the rows that the same block of the next batch will read."""
        pairs, count = later
        row_bytes = self.panels.c_in * bits(self.element) // 8
        lines = -(-row_bytes // CACHE_LINE)
        share = min(-(-lines // self.panels.panels), _MOST_PREFETCHES)
        with if_(first + self.micro.rows <= count):
            here, base = gep(pairs, first, i64()), bytes_after(features, panel * (share * CACHE_LINE))
            for row in range(self.micro.rows):
                address = bytes_after(base, row_of(here, row) * row_bytes)
                for line in range(share):
                    prefetch(bytes_after(address, line * CACHE_LINE))

    def _finish_rows(self, part: dict[str, V], size: V, origin: V, out: V, *residual: V) -> None:
        """Writes `size` rows through the epilogue to where they were before sorting."""
        panels = self.panels
        whole, rest = divmod(panels.c_out, panels.tile_n)
        with for_(0, size, 1, unroll=False) as row:
            place = load(origin, i32(), row.iv).to(i64()) * panels.c_out
            target = gep(out, place, self.out_element)
            added = [gep(rows, place, self.residual) for rows in residual]
            sums = gep(part["sums"], row.iv * panels.tile_n, f32())
            if whole:
                with for_(0, const(whole, i64()), 1, unroll=False) as panel:
                    there = gep(target, panel.iv * panels.tile_n, self.out_element)
                    more = [gep(rows, panel.iv * panels.tile_n, self.residual) for rows in added]
                    self._finish(self._panel_of(sums, panel.iv, size), there, panels.tile_n, *more)
            if rest:
                there = gep(target, whole * panels.tile_n, self.out_element)
                more = [gep(rows, whole * panels.tile_n, self.residual) for rows in added]
                self._finish(self._panel_of(sums, whole, size), there, rest, *more)

    def _finish(self, source: V, target: V, columns: int, *residual: V) -> None:
        lanes = self.micro.lanes
        whole = columns // lanes * lanes
        for column in [*range(0, whole, lanes), *range(whole, columns)]:
            count = lanes if column < whole else 1
            value, *more = (
                load(address, vec(count, type_) if count > 1 else type_, column)
                for address, type_ in [(source, f32()), *((rows, self.residual) for rows in residual)]
            )
            store(finish(value, more[0] if more else None, self.epilogue, self.out_element), target, column)


def row_of(pairs: V, index: V | int) -> V:
    """The input row of a pair, i64: its lower half, read alone because that takes fewer instructions."""
    return load(gep(pairs, index, i64()), i32()).to(i64())


def place_of(pairs: V, index: V | int) -> V:
    """The output row of a pair, counted from the start of its chunk, i64: the upper half."""
    return load(gep(pairs, index, i64()), i32(), ROW_BITS // 32).to(i64())
