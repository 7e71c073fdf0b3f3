"""Least-significant-digit radix sort of keys with what belongs to them (Knuth, The Art of Computer Programming 3,
5.2.5, algorithm R): stable, so equal keys keep their order. Digits beyond the largest key are skipped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from spconv_compiler.bindings import ir
from spconv_compiler.passes.cpu.functions import call_intrinsic
from spconv_compiler.passes.cpu.memory import stack_array
from spconv_compiler.passes.kernel_builder import V, const, for_, i1, i32, i64, if_, load, store

_DIGIT_BITS = 11
# Places are counted in i32.
MOST_ROWS = (1 << 31) - 1


@dataclasses.dataclass(frozen=True)
class RadixSort:
    """Sorts columns by the first of them; to be made in a kernel's entry block, for its histogram.

    Attributes:
        key: element type of the keys, which are not negative; every further column is i32.
        columns: keys and what belongs to them.
        spare: room for as much again.
        histogram: see `make`.
    """

    key: ir.Type
    columns: Sequence[V]
    spare: Sequence[V]
    histogram: V

    @staticmethod
    def make(key: ir.Type, columns: Sequence[V], spare: Sequence[V]) -> RadixSort:
        """With a histogram on the stack of the running function."""
        return RadixSort(key, columns, spare, stack_array(1 << _DIGIT_BITS, i32()))

    @property
    def types(self) -> list[ir.Type]:
        """The element type of each column."""
        return [self.key, *[i32()] * (len(self.columns) - 1)]

    def __call__(self, rows: V, cells: V) -> None:
        """Sorts `rows` rows, digit by digit, from `columns` to `spare` and back; the result is in `columns`.

        Args:
            cells: more than the largest key.
        """
        leading_zeros = call_intrinsic("llvm.ctlz", [cells - 1, const(0, i1())], i64())
        width = const(64, i64()) - leading_zeros
        digits = ((width + (_DIGIT_BITS - 1)) // _DIGIT_BITS).max(1)
        digit_bits = (width + digits - 1) // digits
        with for_(0, digits, 1, unroll=False) as loop:
            odd = (loop.iv & 1).ne(0)
            sides = list(zip(self.columns, self.spare, strict=True))
            source = [odd.select(theirs, ours) for ours, theirs in sides]
            target = [odd.select(ours, theirs) for ours, theirs in sides]
            self._pass(source, target, loop.iv * digit_bits, digit_bits, rows)
        with if_((digits & 1).ne(0)), for_(0, rows, unroll=False) as loop:
            for ours, theirs, type_ in zip(self.columns, self.spare, self.types, strict=True):
                store(load(theirs, type_, loop.iv), ours, loop.iv)

    def _pass(self, source: list[V], target: list[V], shift: V, digit_bits: V, rows: V) -> None:
        """Moves all columns in the order of one digit."""
        values = const(1, i64()) << digit_bits
        histogram = self.histogram

        def key_and_digit(place: V) -> tuple[V, V]:
            key = load(source[0], self.key, place)
            return key, (key.to(i64()) >> shift) & (values - 1)

        with for_(0, values, unroll=False) as loop:
            store(const(0, i32()), histogram, loop.iv)
        with for_(0, rows, unroll=False) as loop:
            _, digit = key_and_digit(loop.iv)
            store(load(histogram, i32(), digit) + 1, histogram, digit)
        with for_(0, values, 1, [const(0, i32())], unroll=False) as loop:
            (below,) = loop.args
            count = load(histogram, i32(), loop.iv)
            store(below, histogram, loop.iv)
            loop.yields(below + count)
        with for_(0, rows, unroll=False) as loop:
            key, digit = key_and_digit(loop.iv)
            place = load(histogram, i32(), digit)
            store(place + 1, histogram, digit)
            store(key, target[0], place.to(i64()))
            for type_, ours, theirs in zip(self.types[1:], source[1:], target[1:], strict=True):
                store(load(ours, type_, loop.iv), theirs, place.to(i64()))
