"""Large blocks of host memory that nobody uses, kept so that the system may take their pages when it runs short.

A page that is given back and asked for again costs more than what a kernel does with it: it is cleared, page tables
change, and on a virtual machine the host may have taken it away in the meantime, upon which a map of ten million voxels
took between its time and three times that. Pages marked MADV_FREE stay where they are as long as memory is plenty;
under pressure, of the machine or of a control group, the system takes them before it swaps or kills.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

from spconv_compiler.arrays import address_of

# Below this a block is not worth two calls into the system. Huge pages are marked whole: to split one costs a copy.
LEAST = 1 << 22
_HUGE = 1 << 21
# A block serves a request of no less than a quarter of it: the system may still take the pages that are left over.
_SPARE = 4
# Part of the machine's memory that may lie in kept blocks, if the system has no other use for it.
_SHARE = 8


class LargeBlocks:
    """Blocks by age. For one thread at a time; a collection may call `give` within any method."""

    def __init__(self) -> None:
        self._blocks: dict[int, Any] = {}
        self.nbytes = 0
        self._most: int | None = None

    def take(self, nbytes: int) -> Any:
        """The smallest kept block of `nbytes` bytes to _SPARE times as many, contents undefined; or None."""
        best, size = None, nbytes * _SPARE + 1
        for block in tuple(self._blocks.values()):
            if nbytes <= block.nbytes < size:
                best, size = block, block.nbytes
        # A collection on the way may have pushed it out.
        if best is None or self._blocks.pop(id(best), None) is None:
            return None
        self.nbytes -= size
        return best

    def give(self, block: Any) -> None:
        """Keeps a block of at least LEAST bytes, unless the system cannot mark it; the oldest make room."""
        if self._most is None:
            self._most = _machine_bytes() // _SHARE
        if block.nbytes > self._most or not _mark_free(address_of(block), block.nbytes):
            return
        self.nbytes += block.nbytes
        self._blocks[id(block)] = block
        while self.nbytes > self._most and self._blocks:
            self.nbytes -= self._blocks.pop(next(iter(self._blocks))).nbytes

    def clear(self) -> None:
        """Gives all blocks back to the system."""
        self._blocks.clear()
        self.nbytes = 0

    def recount(self) -> None:
        """Sets the number of bytes right, after a fork in the middle of a method."""
        self.nbytes = sum(block.nbytes for block in self._blocks.values())


def _machine_bytes() -> int:
    """The machine's memory; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0


def _mark_free(address: int, nbytes: int) -> bool:
    """Tells the system that it may take the pages of a block, but for those at the ends."""
    advice = getattr(mmap, "MADV_FREE", None)
    first, end = -(-address // _HUGE) * _HUGE, (address + nbytes) // _HUGE * _HUGE
    if advice is None or first >= end:
        return False
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return bool(madvise(first, end - first, advice) == 0)
