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


def exchanged(first: V, second: V, near: V, distance: int, wave: int) -> tuple[V, V]:
    """What near lanes held of both panels, then what the others did: of the first panel in near lanes, else the second.

    Args:
        first, second: vectors that a lane holds of two panels.
        near: i1, false in the lane that is `distance` further, a power of two, where it is true.
    """
    sent = near.select(second, first)
    lanes = sent.type.shape[0]
    got = concatenate([flipped(sent.lane(lane), distance, wave) for lane in range(lanes)])
    return near.select(first, got), near.select(got, second)
