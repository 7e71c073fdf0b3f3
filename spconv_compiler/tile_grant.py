"""Tile registers belong to a process that has asked Linux for them: their state makes every signal frame larger.

The grant is the process's, with all its threads and forks; a program that is executed starts without. Nothing is asked
for before a target has tiles, and asking again is harmless.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import sys

# arch_prctl by machine, and its arguments ARCH_REQ_XCOMP_PERM and XFEATURE_XTILEDATA.
_ARCH_PRCTL = {"x86_64": 158}
_REQUEST, _TILE_DATA = 0x1023, 18


@functools.cache
def tile_refusal() -> str | None:
    """Asks for the tile registers; gives why this process cannot have them, or None where it has them.

    Refused are systems that do not know the request, filters of system calls, and processes one of whose threads has
    an alternate signal stack too small for the state.
    """
    system_call = _ARCH_PRCTL.get(platform.machine())
    if not sys.platform.startswith("linux") or system_call is None:
        return f"{sys.platform} on {platform.machine()} has no request for them"
    failed = _request(system_call)
    if failed == 0:
        return None
    return f"arch_prctl(ARCH_REQ_XCOMP_PERM) fails with {errno.errorcode.get(failed, failed)}: {os.strerror(failed)}"


def _request(system_call: int) -> int:
    """The number of the error, or 0."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    result = call(*(ctypes.c_long(number) for number in (system_call, _REQUEST, _TILE_DATA)))
    return 0 if result == 0 else ctypes.get_errno()
