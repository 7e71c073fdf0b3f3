"""Phases and bank conflicts of LDS instructions on gfx950.

A wave's access takes several phases, each with some of the lanes; in a phase every bank serves one word a cycle. Lanes
that read the same word share it; atomics do not. Phases and banks of ds_read_b64, _b96, _b128 and ds_write_b64 are
those that HipKittens' phase solver found on MI355X; the others are assumed: 32 lanes a phase for one word, and for
writes of 12 and 16 bytes as many lanes as fill the 32 banks that a write of 8 bytes has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def _runs(lanes: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(range(first, first + lanes)) for first in range(0, 64, lanes))


_WIDE_READ = tuple(
    tuple(half + lane for lane in lanes)
    for half in (0, 32)
    for lanes in (
        (*range(0, 4), *range(12, 16), *range(20, 28)),
        (*range(4, 12), *range(16, 20), *range(28, 32)),
    )
)
# (reads, bytes of a lane) -> (banks, lanes of each phase)
PHASES: dict[tuple[bool, int], tuple[int, tuple[tuple[int, ...], ...]]] = {
    (True, 4): (64, _runs(32)),
    (True, 8): (64, _runs(32)),
    (True, 12): (32, _runs(8)),
    (True, 16): (64, _WIDE_READ),
    (False, 4): (64, _runs(32)),
    (False, 8): (32, _runs(16)),
    (False, 12): (32, _runs(8)),
    (False, 16): (32, _runs(8)),
}


def phase_cycles(kind: str, size: int, addresses: Any, lanes: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """(phases without conflicts, cycles that the phases take) of each wave.

    Args:
        kind: "load", "store" or "atomic". size: bytes of a lane.
        addresses: byte addresses in LDS, [n, 64]; lanes: which are on, [n, 64].
    """
    banks, groups = PHASES[kind == "load", max(4, size)]
    # Word of every lane, and the words behind it.
    words = (np.asarray(addresses).astype(np.int64) // 4)[:, :, None] + np.arange(max(1, size // 4))
    phases, cycles = np.zeros(len(words), np.int64), np.zeros(len(words), np.int64)
    for group in groups:
        chosen = list(group)
        on = lanes[:, chosen]
        cycles += _busiest_bank(words[:, chosen], on, banks, shared=kind != "atomic")
        phases += on.any(axis=1)
    return phases, cycles


def _busiest_bank(words: Ints, on: npt.NDArray[np.bool_], banks: int, shared: bool) -> Ints:
    """Words that the busiest bank serves, for each wave; words [n, lanes, words], on [n, lanes]."""
    count = len(words)
    flat = np.where(on[:, :, None], words, -1).reshape(count, -1)
    flat.sort(axis=1)
    counted = flat >= 0
    if shared:
        counted[:, 1:] &= flat[:, 1:] != flat[:, :-1]
    place = np.arange(count)[:, None] * banks + flat % banks
    served = np.bincount(place[counted], minlength=count * banks)
    return np.asarray(served.reshape(count, banks).max(axis=1), np.int64)
