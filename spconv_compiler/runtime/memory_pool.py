"""Host memory that kernels have used, kept for the next ones.

The system gives a process zeroed pages, and asking for a page costs as much as computing what goes into it: building a
map of a hundred thousand voxels took a third longer. Blocks are kept in classes of size, eight to the octave, and no
more than _MOST_KEPT bytes of them; what is large and finds no room there is kept so that the system may take it
(large_blocks.py). Small blocks are left to the allocator.
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
# References to a block that nobody else sees: of the caller's variable, and of the argument of getrefcount.
_OWN_REFERENCES = 3

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
    """A block of at least `nbytes` bytes, contents undefined.

    Raises:
        MemoryError, ValueError: there is not as much memory, or address space.
    """
    global _bytes
    if nbytes < _LEAST:
        return np.empty(nbytes, np.uint8)
    size = _rounded(nbytes)
    with _lock:
        blocks = _kept.get(size)
        if blocks:
            _bytes -= size
            return blocks.pop()
        large: Block | None = _large.take(size) if size >= LEAST else None
    if large is not None:
        return large
    return np.empty(size, np.uint8)


def give(block: Any) -> None:
    """Keeps a block for another `take`, unless an array still shares its memory. The caller must forget it."""
    global _bytes
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
    """The size of the class that `nbytes` is in: a multiple of an eighth of the octave."""
    if nbytes < _LEAST or nbytes > _MOST:
        return nbytes
    step = 1 << (nbytes - 1).bit_length() - 4
    return -(-nbytes // step) * step
