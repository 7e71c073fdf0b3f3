"""Order between workgroups: what a workgroup wrote and released, others may read once they have acquired it.

A release is `buffer_wbl2 sc1` and the wait that covers it; an acquire is `buffer_inv sc1` behind a load of device scope
(sc1) or an atomic of the same wave. Releases are numbered. A wave notes at each such load the last number, since it may
have read what tells of that release, and its acquire makes the note count for its workgroup. That the load did read
such a word is not asked: of two workgroups in which it did not, a race may go unseen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class Fences:
    """Releases and acquires of the launch that runs.

    Attributes:
        clock: releases so far.
        released: uint32 by segment: the number of the release behind its accesses; 0 while there is none.
        previous: uint32 by the first segment of a block of waves: the first segment of their block before the barrier.
        acquired: uint32 by workgroup: the last release that it may know of.
    """

    def __init__(self, segments: int) -> None:
        self._segments = segments
        self._forget()

    def _forget(self) -> None:
        # Fresh zeros cost nothing until they are touched.
        self.clock = 0
        self.released, self.previous, self.acquired = (np.zeros(self._segments, np.uint32) for _ in range(3))
        self._used = False

    def begin_launch(self) -> None:
        """Nothing is released."""
        if self.clock or self._used:
            self._forget()

    def follow(self, blocks: Ints, before: Ints) -> None:
        """Blocks of segments behind a barrier, by their first segments, and those before it (0: none)."""
        self.previous[blocks] = before
        self._used = True

    def release(self, segment: int, first: int, width: int) -> None:
        """A wave releases what it wrote, and what its workgroup wrote before the last barrier.

        first: of the segments of its block; width: segments of a block.
        """
        self.clock += 1
        self.released[segment] = self.clock
        block = int(self.previous[first]) if width > 1 else 0
        while block and not self.released[block + width - 1]:
            part = self.released[block : block + width]
            part[part == 0] = self.clock
            block = int(self.previous[block])

    def acquire(self, groups: Ints, noted: Ints) -> None:
        """Workgroups know of the releases that their waves have noted."""
        np.maximum.at(self.acquired, groups, noted.astype(np.uint32))

    def known(self, last: Ints, groups: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Whether accesses of segments are released, and known to the workgroups that come now."""
        time = self.released[last]
        return np.asarray((time != 0) & (time <= self.acquired[groups]))
