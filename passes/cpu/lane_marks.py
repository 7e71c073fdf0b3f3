"""Marks the outputs of eight inputs at a time: what output_keys.py does for one, in the lanes of vectors.

For 32-bit keys, where strides along y and x are powers of two and outputs along x are a run (candidates.py). Only the
bytes of bits are touched one after another; what they become is found side by side, and without a branch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from spconv_compiler.bindings import arith
from spconv_compiler.passes.cpu.marks import Marks
from spconv_compiler.passes.cpu.vectors import LANES, everywhere, numbered, quotients_by
from spconv_compiler.passes.kernel_builder import V, const, for_, i32, i64, load, vec
from spconv_compiler.passes.reach import Reach

# Outputs of an input along an axis at most: each is code.
_MOST = 4
# Kernels and strides at most: an input's box begins no farther from what the first outputs read, and the planes that
# are marked have fewer than 2^25 lines and places along each, so that nothing leaves 32 bits.
_LONGEST = 1 << 24


@dataclasses.dataclass(frozen=True)
class LaneMarks:
    """Marks in one plane; see `serves`.

    Attributes:
        reach: the geometry.
        low: least coordinates of the box of inputs' keys, (z, y, x), i64; out_low: those of the box of outputs.
    """

    reach: Reach
    low: Sequence[V]
    out_low: Sequence[V]

    @staticmethod
    def serves(reach: Reach, key_width: int) -> bool:
        """Whether there is such code for a geometry."""
        axes = [reach.on(axis) for axis in (1, 2)]
        alone = all(dilation == 1 and stride & (stride - 1) == 0 for _, stride, _, dilation in axes)
        few = all(-(-kernel // stride) <= _MOST and max(kernel, stride) < _LONGEST for kernel, stride, *_ in axes)
        return key_width == 32 and not reach.transposed and alone and few

    def _shift(self, axis: int) -> V:
        """What is added to a place before it is divided by the stride, to give the place of an output."""
        _, stride, padding, _ = self.reach.on(axis)
        return self.low[axis] + padding - self.out_low[axis] * stride

    def mark(self, keys: V, marks: Marks, span: tuple[V, V], plane: tuple[V, V], slab: tuple[V, V, V]) -> None:
        """As OutputKeys._mark_range."""
        (plane_key, extent_x), (first_line, size, out_x) = plane, slab
        (begin, end), eight = span, vec(LANES, i32())
        shift_y, shift_x = (self._shift(axis) for axis in (1, 2))
        line_of = quotients_by(extent_x)
        with for_(begin, end, LANES, unroll=False) as loop:
            place = load(keys, eight, loop.iv) - everywhere(plane_key)
            line = line_of(place)
            there = numbered(const(0, i64())) < everywhere((end - loop.iv).min(LANES))
            x, rest_x = self._divided(2, place - line * everywhere(extent_x) + everywhere(shift_x))
            y, rest_y = self._divided(1, line + everywhere(shift_y))
            most = self._most(2)
            bits = const(0, eight)
            for number in range(most):
                reached = (x - number).ult(everywhere(out_x)) & self._reached(2, rest_x, number)
                bits = bits | reached.to(eight) << most - 1 - number
            for number in range(self._most(1)):
                on_slab = y - everywhere(first_line + number)
                reached = there & on_slab.ult(everywhere(size)) & self._reached(1, rest_y, number)
                start = on_slab * everywhere(out_x) + x - (most - 1)
                marks.mark_eight(start, reached.select(bits, const(0, eight)), most)

    def _most(self, axis: int) -> int:
        kernel, stride, *_ = self.reach.on(axis)
        return -(-kernel // stride)

    def _divided(self, axis: int, value: V) -> tuple[V, V]:
        stride = self.reach.on(axis)[1]
        down = const(stride.bit_length() - 1, value.type)
        return V(arith.shrsi(value.value, down.value)), value & (stride - 1)

    def _reached(self, axis: int, rest: V, number: int) -> V:
        kernel, stride, *_ = self.reach.on(axis)
        return rest + number * stride < kernel
