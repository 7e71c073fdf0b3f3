"""Which outputs a voxel reaches along each axis, by counting instead of branching.

Along an axis, fine place f reaches the coarse places (f + padding − i·dilation) / stride that are whole, for taps i;
with dilation 1 these are the ones from the quotient down, while what remains, and a stride more for each, is a tap.
Coarse place c reaches the fine places c·stride − padding + i·dilation, for all taps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from spconv_compiler.bindings import arith, ir
from spconv_compiler.passes.kernel_builder import V, const, for_, i1, i64
from spconv_compiler.passes.reach import Reach

# More than any sum of a coordinate, a padding and the reach of a kernel, which are below 2^31 each.
_FAR = 1 << 34
# Candidates along an axis beyond which there is a loop.
_UNROLLED = 8


@dataclasses.dataclass(frozen=True)
class Candidates:
    """Outputs along single axes.

    Attributes:
        reach: the geometry.
        low: least coordinates of the box of inputs' keys, (z, y, x), i64: places of inputs count from there. Keys of
            coarse inputs are those of the fine voxels that they meet through their first taps.
        out_low: least coordinates of the box of outputs.
    """

    reach: Reach
    low: Sequence[V]
    out_low: Sequence[V]

    def prepare(self, axis: int, place: V) -> tuple[V, V]:
        """What the candidates of an input at `place` are found from."""
        _, stride, padding, dilation = self.reach.on(axis)
        value = place + self.low[axis]
        if self.reach.transposed:
            return value - self.out_low[axis], const(0, i64())
        value = value + padding
        if dilation != 1:
            return value, const(0, i64())
        quotient = floor_divided(value, stride)
        return quotient - self.out_low[axis], value - quotient * stride

    def each(self, axis: int, prepared: Sequence[V], take: Callable[[V, V], None]) -> None:
        """Calls take(place of an output, whether it is reached); places may be outside of the box of outputs."""
        kernel, stride, _, dilation = self.reach.on(axis)
        counted = self.reach.transposed or dilation != 1
        count = kernel if counted else -(-kernel // stride)
        if count <= _UNROLLED:
            for number in range(count):
                take(*self._candidate(axis, prepared, const(number, i64())))
        else:
            with for_(0, const(count, i64()), 1, unroll=False) as loop:
                take(*self._candidate(axis, prepared, loop.iv))

    def run(self, axis: int, prepared: Sequence[V], extent: V) -> tuple[V, V] | None:
        """(a place p, bits): bit i says that the output at p + i is reached and in [0, extent).

        None where outputs do not follow each other, or are more than a few.
        """
        count, dilation = self.most_in_run(axis), self.reach.on(axis)[3]
        if dilation != 1 or count > _UNROLLED:
            return None
        found = [self._candidate(axis, prepared, const(number, i64())) for number in range(count)]
        if not self.reach.transposed:
            found.reverse()
        bits = const(0, i64())
        for bit, (place, reached) in enumerate(found):
            bits = bits | (reached & place.ult(extent)).to(i64()) << bit
        return found[0][0], bits

    def most_in_run(self, axis: int) -> int:
        """Bits of a run at most."""
        kernel, stride, _, _ = self.reach.on(axis)
        return kernel if self.reach.transposed else -(-kernel // stride)

    def _candidate(self, axis: int, prepared: Sequence[V], number: V) -> tuple[V, V]:
        kernel, stride, _, dilation = self.reach.on(axis)
        value, rest = prepared
        if self.reach.transposed:
            return value + number * dilation, const(1, i1())
        if dilation == 1:
            return value - number, rest + number * stride < kernel
        shifted = value - number * dilation
        quotient = floor_divided(shifted, stride)
        return quotient - self.out_low[axis], (quotient * stride).eq(shifted)

    def source(self, axis: int, place: V, tap: V) -> V:
        """The place of the input that output `place` reads through `tap`."""
        _, stride, padding, dilation = self.reach.on(axis)
        value = place + self.out_low[axis]
        if self.reach.transposed:
            # Keys of coarse inputs are scaled already.
            return value - tap * dilation - self.low[axis]
        return value * stride - padding + tap * dilation - self.low[axis]

    def sources(self, axis: int, place: V, size: V, extent: V) -> tuple[V, V]:
        """[begin, end) of the inputs that outputs [place, place + size) can read, within the inputs' box."""
        kernel = self.reach.on(axis)[0]
        nearest, farthest = (const(tap, i64()) for tap in (0, kernel - 1))
        if self.reach.transposed:
            nearest, farthest = farthest, nearest
        begin = self.source(axis, place, nearest).max(0)
        end = (self.source(axis, place + size - 1, farthest) + 1).min(extent)
        return begin, end


def quotient_by(divisor: V) -> Callable[[V], V]:
    """A function that gives value // divisor for i64 values from 0 to 2^50, faster than a division.

    A half more than the value lies at least half a divisor's share from the next whole quotient: far more than is
    rounded off.
    """
    double = ir.F64Type.get()

    def as_double(value: V) -> V:
        return V(arith.sitofp(double, value.value))

    inverse = V(arith.divf(const(1.0, double).value, as_double(divisor).value))

    def quotient(value: V) -> V:
        scaled = (as_double(value) + 0.5) * inverse
        return V(arith.fptosi(i64(), scaled.value))

    return quotient


def floor_divided(value: V, divisor: int) -> V:
    """value / divisor rounded down, for |value| below _FAR: quotients of kernels are unsigned."""
    if divisor & (divisor - 1) == 0:
        return V(arith.shrsi(value.value, const(divisor.bit_length() - 1, value.type).value))
    turns = -(-_FAR // divisor)
    return (value + turns * divisor) // divisor - turns
