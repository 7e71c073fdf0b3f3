"""The pool of schedule `chunk_pool`: a worker finishes one chunk of output rows before it takes the next.

The chunk's greatest values, or sums, stay in the worker's scratch as f32; its pairs are taken in their order, so the
result does not depend on the number of threads. A NaN among the inputs of a row makes the result NaN.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from spconv_compiler.bindings import arith, ir
from spconv_compiler.passes.cpu.chunk_pairs import pair_place, pair_row
from spconv_compiler.passes.cpu.functions import Functions
from spconv_compiler.passes.cpu.memory import bytes_after, rounded
from spconv_compiler.passes.cpu.parallel import parallel_for, worth_workers
from spconv_compiler.passes.cpu.rounding import narrow, widen
from spconv_compiler.passes.kernel_builder import V, const, f32, for_, gep, i32, i64, load, store, vec

# A worker for this many elements, a few pairs a row assumed.
_GRAIN = 1 << 18


@dataclasses.dataclass(frozen=True)
class ChunkPool:
    """Body of the pool kernel.

    Arguments: features [inputs, channels]; out [rows, channels]; pairs, chunk_first, tap_first as CrossPairs wrote
    them; origin of the outputs i32 [rows]; scratch [threads, scratch_bytes]; rows; threads.
    """

    functions: Functions
    name: str
    taps: int
    channels: int
    chunk_rows: int
    element: ir.Type
    mode: str

    @property
    def _values_bytes(self) -> int:
        return rounded(self.chunk_rows * self.channels * 4)

    @property
    def scratch_bytes(self) -> int:
        """A worker's scratch: values and the number of pairs of every row."""
        return self._values_bytes + rounded(self.chunk_rows * 4)

    def __call__(self, *arguments: V) -> None:
        *shared, threads = arguments
        rows = shared[-1]
        chunks = (rows + (self.chunk_rows - 1)) // self.chunk_rows
        workers = worth_workers(threads, rows * self.channels, _GRAIN)
        parallel_for(self.functions, self.name, chunks, workers, shared, self._chunk)

    def _chunk(self, chunk: V, worker: V, *shared: V) -> None:
        features, out, pairs, chunk_first, tap_first, origin, scratch, rows = shared
        values = bytes_after(scratch, worker * self.scratch_bytes)
        counts = bytes_after(values, self._values_bytes)
        start = chunk * self.chunk_rows
        size = (rows - start).min(self.chunk_rows)
        with for_(0, size * self.channels, unroll=False) as loop:
            store(const(-math.inf if self.mode == "max" else 0.0, f32()), values, loop.iv)
        with for_(0, size, unroll=False) as loop:
            store(const(0, i32()), counts, loop.iv)
        mine = gep(pairs, load(chunk_first, i64(), chunk), i64())
        count = load(tap_first, i32(), chunk * (self.taps + 1) + self.taps).to(i64())
        with for_(0, count, 1, unroll=False) as loop:
            pair = load(mine, i64(), loop.iv)
            place = pair_place(pair)
            store(load(counts, i32(), place) + 1, counts, place)
            source = gep(features, pair_row(pair) * self.channels, self.element)
            self._take(source, gep(values, place * self.channels, f32()))
        with for_(0, size, 1, unroll=False) as loop:
            row = load(origin, i32(), start + loop.iv).to(i64())
            target = gep(out, row * self.channels, self.element)
            self._finish(gep(values, loop.iv * self.channels, f32()), load(counts, i32(), loop.iv), target)

    def _over_row(self, step: Callable[[V | int, ir.Type], None]) -> None:
        """Calls `step` with a channel and the f32 type, vector or scalar, that is handled from there."""
        lanes = self.functions.target.lanes
        whole = self.channels // lanes * lanes
        if whole:
            with for_(0, const(whole, i64()), lanes, unroll=False) as loop:
                step(loop.iv, vec(lanes, f32()))
        for channel in range(whole, self.channels):
            step(channel, f32())

    def _take(self, source: V, values: V) -> None:
        """Adds one input row to the values of its output."""
        lanes = self.functions.target.lanes

        def step(channel: V | int, type_: ir.Type) -> None:
            given = vec(lanes, self.element) if isinstance(type_, ir.VectorType) else self.element
            new, old = widen(load(source, given, channel)), load(values, type_, channel)
            store(self._combine(old, new), values, channel)

        self._over_row(step)

    def _combine(self, old: V, new: V) -> V:
        if self.mode == "avg":
            return old + new
        # Comparisons with NaN are false: one that came is kept, one that comes is taken.
        return old.eq(old).select((old >= new).select(old, new), old)

    def _finish(self, values: V, count: V, target: V) -> None:
        """Writes one output row; a row without inputs is zero."""
        lanes = self.functions.target.lanes
        divisor = V(arith.sitofp(f32(), count.max(1).value))

        def step(channel: V | int, type_: ir.Type) -> None:
            value = load(values, type_, channel)
            number = divisor.broadcast(lanes) if isinstance(type_, ir.VectorType) else divisor
            if self.mode == "avg":
                value = V(arith.divf(value.value, number.value))
            store(narrow(count.eq(0).select(const(0.0, type_), value), self.element), target, channel)

        self._over_row(step)
