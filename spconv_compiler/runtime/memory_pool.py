"""Host memory that kernels have used, kept for the next ones.

The system gives a process zeroed pages, and asking for a page costs as much as computing what goes into it: building a
map of a hundred thousand voxels took a third longer. Blocks are kept in classes of size, and no more than _MOST_KEPT
bytes of them; what is large and finds no room there is kept so that the system may take it (large_blocks.py). There are
eight classes to the octave, and two among large blocks: what nobody writes to takes no memory, and the maps of a
network, one after another, find room in each other's. Small blocks are left to the allocator.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.runtime.large_blocks import LEAST, LargeBlocks

Block = npt.NDArray[np.uint8]

_LEAST, _MOST, _MOST_KEPT = 1 << 16, 1 << 25, 1 << 25


def _alone() -> int:
    """What getrefcount says of an object that only a local variable holds: Python versions differ."""
    block = np.empty(0, np.uint8)
    return sys.getrefcount(block)


_OWN_REFERENCES = _alone()

_kept: dict[int, list[Block]] = {}
_bytes = 0
_large = LargeBlocks()
# Re-entrant: a collection inside a locked section may give a block back in the same thread.
_lock = threading.RLock()


def _reset_lock() -> None:
    global _lock, _bytes
    _lock = threading.RLock()
    # The thread that held the old one may have been between counting a block and taking or keeping it.
    _bytes = sum(size * len(blocks) for size, blocks in _kept.items())
    _large.recount()


if hasattr(os, "register_at_fork"):
    # A thread that held the lock does not exist in the child.
    os.register_at_fork(after_in_child=_reset_lock)


def take(nbytes: int) -> Block:
    """A block of at least `nbytes` bytes, contents undefined: a kept one up to half as large again, or a new one.

    Raises:
        MemoryError, ValueError: there is not as much memory, or address space.
    """
    global _bytes
    if nbytes < _LEAST:
        return np.empty(nbytes, np.uint8)
    size = _rounded(nbytes)
    with _lock:
        found = size
        while found <= size * 3 // 2 and found <= _MOST:
            blocks = _kept.get(found)
            if blocks:
                _bytes -= found
                return blocks.pop()
            found = _rounded(found + 1)
        large: Block | None = _large.take(size) if size >= LEAST else None
    if large is not None:
        return large
    return np.empty(size, np.uint8)


def give(holder: list[Any]) -> None:
    """Keeps the block in a list of one for another `take`, unless something but the list still holds it.

    An array that shares its memory does. (The block is no argument: whether a frame's arguments are held by its caller
    too depends on who evaluates frames; torch.compile does so for all that runs in a compiled call.)
    """
    global _bytes
    block = holder.pop()
    size = block.nbytes
    if size < _LEAST or size != _rounded(size) or sys.getrefcount(block) > _OWN_REFERENCES:
        return
    with _lock:
        if size <= _MOST and _bytes + size <= _MOST_KEPT:
            # Counted first: a collection in the next line may give other blocks back, which must see this one.
            _bytes += size
            _kept.setdefault(size, []).append(block)
        elif size >= LEAST:
            _large.give(block)


def clear() -> None:
    """Gives all kept blocks back to the system."""
    global _bytes
    with _lock:
        _bytes = 0
        _kept.clear()
        _large.clear()


def _rounded(nbytes: int) -> int:
    """The size of the class that `nbytes` is in: a multiple of an eighth of the octave, of half of it if large."""
    if nbytes < _LEAST or nbytes > _MOST:
        return nbytes
    step = 1 << (nbytes - 1).bit_length() - (4 if nbytes < LEAST else 2)
    return -(-nbytes // step) * step
