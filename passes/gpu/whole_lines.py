"""Sums exchanged between the lanes of a wave, so that a store fills more of each line that it touches.

A matrix instruction leaves a lane consecutive channels of one of 16 rows: a store of one panel writes a quarter or
half of a line of every row. Of two neighbouring panels the first eight rows together, then the last eight, are twice as
much of half as many lines: so lanes of the first eight columns give away their piece of the second panel, the others
theirs of the first.
"""

from __future__ import annotations

from spconv_compiler.passes.gpu.dense_grid import TILE_ROWS
from spconv_compiler.passes.gpu.lanes import concatenate, flipped
from spconv_compiler.passes.kernel_builder import V

HALF = TILE_ROWS // 2


def exchanged(first: V, second: V, column: V, wave: int) -> tuple[V, V]:
    """The pieces of rows `column % 8` and of rows `8 + column % 8`: of the first panel in lanes of columns below 8.

    Args:
        first, second: vectors that a lane holds of row `column` in two panels.
    """
    near = column < HALF
    sent = near.select(second, first)
    lanes = sent.type.shape[0]
    got = concatenate([flipped(sent.lane(lane), HALF, wave) for lane in range(lanes)])
    return near.select(first, got), near.select(got, second)
