"""Large memory of others, such as a result of torch's allocator, in huge pages.

What a kernel writes first costs a page fault a page: 54 MB in pages of 4 KB took 67 ms on a virtual machine, where the
convolution that writes them takes 150, and 7 ms in huge pages. numpy asks for these itself, torch does not.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable

# As numpy: below it there is little to win.
LEAST = 1 << 22
_HUGE = 1 << 21


def prefer_huge_pages(address: int, nbytes: int) -> None:
    """Asks the system to back the whole huge pages in [address, address + nbytes) as such; it may refuse."""
    if nbytes < LEAST:
        return
    first, end = -(-address // _HUGE) * _HUGE, (address + nbytes) // _HUGE * _HUGE
    advise = _advise()
    if advise is not None and first < end:
        advise(first, end - first)


@functools.cache
def _advise() -> Callable[[int, int], int] | None:
    """madvise(address, bytes, MADV_HUGEPAGE), or None where there is no such thing."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None:
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return lambda address, nbytes: int(madvise(address, nbytes, advice))
