"""Loading a run of channels of a row, zero-padded, by the widest loads that its alignment allows.

A run is what one lane holds of a matrix instruction's operand: 16 bytes. Where the number of channels is not a
multiple of a run, rows do not start at multiples of 16 bytes, so the run is loaded in smaller pieces; channels
beyond the last are zeros and are never read, since what follows in memory may be NaN.
"""

from __future__ import annotations

import dataclasses
import math

from spconv_compiler.bindings import ir
from spconv_compiler.dialect.types import element_type
from spconv_compiler.passes.gpu.lanes import bounded, concatenate, load, plus
from spconv_compiler.passes.kernel_builder import V, const, scalar, vec


@dataclasses.dataclass(frozen=True)
class Channels:
    """Rows of `count` channels in a buffer, read in runs of `run` channels.

    Attributes:
        buffer: as passed to the kernel; guarded: the same with its size, for reads that may be switched off.
        elements: i32, the buffer's size: the index of a read that is switched off.
        reach: the largest channel at which a lane's run may start in step 0.
    """

    buffer: V
    guarded: V
    elements: V
    count: int
    run: int
    reach: int

    @staticmethod
    def of(buffer: V, elements: V, count: int, run: int, reach: int) -> Channels:
        return Channels(buffer, bounded(buffer, elements), elements, count, run, reach)

    @property
    def piece(self) -> int:
        """Channels of one load."""
        return math.gcd(self.count, self.run)

    def full(self, start: V, offset: V | int) -> V:
        """vector<run x T> from element start + offset on, all of it inside the row."""
        pieces = [load(self.buffer, plus(start, offset, at), self.piece) for at in range(0, self.run, self.piece)]
        return concatenate(pieces)

    def edge(self, start: V, channel: V, offset: int, limit: V | None = None) -> V:
        """vector<run x T> from element start + offset on; channel + offset is the channel it starts at.

        Channels at or beyond `count`, or beyond `limit` (i32, at most count) if given, are zero.
        """
        return concatenate([self._piece(start, channel, offset + at, limit) for at in range(0, self.run, self.piece)])

    def _piece(self, start: V, channel: V, offset: int, limit: V | None) -> V:
        if offset >= self.count:
            return self._zeros()
        if limit is None and self.reach + offset < self.count:
            return load(self.buffer, plus(start, offset), self.piece)
        inside = plus(channel, offset) < (self.count if limit is None else limit)
        return load(self.guarded, inside.select(plus(start, offset), self.elements), self.piece)

    def _zeros(self) -> V:
        element = element_type(self.buffer.type)
        return const(0, element if self.piece == 1 else vec(self.piece, element))


def _bits(element: ir.Type) -> int:
    return int(str(scalar(element)).lstrip("bfi"))
