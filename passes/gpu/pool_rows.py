"""Pools on a GPU: a lane finishes a run of channels of one output row, and the lanes of a wave stand side by side.

Every output row reads its inputs from the table of cross_lookup.look_up_outputs, in the order of taps. No atomics: the
result is the same in every run.
"""

from __future__ import annotations

import dataclasses
import functools
import math

from spconv_compiler.bindings import arith, ir
from spconv_compiler.passes.gpu.dense_grid import NONE, TILE_ROWS
from spconv_compiler.passes.gpu.lanes import block, load, plus, store, thread, times
from spconv_compiler.passes.kernel_builder import V, bits, const, f32, for_, i32, if_, if_else, vec

_LOAD_BITS = 128
# Rows of a group of taps are looked up together, before the first of them is read.
_GROUP = 9


@dataclasses.dataclass(frozen=True)
class PoolRows:
    """Body(features, table, out_count, out, capacity): rows beyond the count of outputs become zero.

    Attributes:
        taps, channels: numbers. element: of features and out. mode: "max" or "avg". lanes: of a workgroup.
    """

    taps: int
    channels: int
    element: ir.Type
    mode: str
    lanes: int

    @property
    def run(self) -> int:
        """Channels that one lane has."""
        return math.gcd(self.channels, _LOAD_BITS // bits(self.element))

    @property
    def runs(self) -> int:
        """Lanes of a row."""
        return self.channels // self.run

    def __call__(self, features: V, table: V, out_count: V, out: V, capacity: V) -> None:
        number = plus(times(block(), self.lanes), thread())
        row, channel = number // self.runs, times(number % self.runs, self.run)
        with if_(row < capacity):
            value = if_else(
                row < load(out_count, const(0, i32())),
                lambda: [self._pooled(features, table, row, channel)],
                lambda: [const(0, self._like(f32()))],
            )[0]
            store(value.to(self._like(self.element)), out, plus(times(row, self.channels), channel))

    def _like(self, element: ir.Type) -> ir.Type:
        return element if self.run == 1 else vec(self.run, element)

    def _pooled(self, features: V, table: V, row: V, channel: V) -> V:
        first = plus(times(row // TILE_ROWS, self.taps * TILE_ROWS), row % TILE_ROWS)
        start = const(-math.inf if self.mode == "max" else 0.0, self._like(f32()))
        carried = [start, const(0, i32())]
        whole = self.taps // _GROUP * _GROUP
        take = functools.partial(self._take, features, table, channel)
        if whole:
            with for_(first, plus(first, whole * TILE_ROWS), _GROUP * TILE_ROWS, carried, unroll=False) as loop:
                loop.yields(*take(loop.iv, _GROUP, *loop.args))
            carried = loop.results
        value, count = take(plus(first, whole * TILE_ROWS), self.taps - whole, *carried)
        if self.mode == "avg":
            divisor = V(arith.sitofp(f32(), count.max(1).value))
            number = divisor if self.run == 1 else divisor.broadcast(self.run)
            return V(arith.divf(value.value, number.value))
        return count.eq(0).select(const(0.0, value.type), value)

    def _take(self, features: V, table: V, channel: V, first: V, taps: int, value: V, count: V) -> list[V]:
        """What `taps` taps add to the value of a run, and to the number of voxels."""
        rows = [load(table, plus(first, tap * TILE_ROWS)) for tap in range(taps)]
        for row in rows:
            there = row.ne(NONE)

            def read(row: V = row, value: V = value) -> list[V]:
                given = load(features, plus(times(row, self.channels), channel), self.run)
                return [self._combine(value, given.to(self._like(f32())))]

            (value,) = if_else(there, read, lambda value=value: [value])  # type: ignore[misc]
            count = count + there.to(i32())
        return [value, count]

    def _combine(self, old: V, new: V) -> V:
        if self.mode == "avg":
            return old + new
        # Comparisons with NaN are false: one that came is kept, one that comes is taken.
        return V(arith.select(old.eq(old).value, (old >= new).select(old, new).value, old.value))


