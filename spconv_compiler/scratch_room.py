"""Room for temporary files, asked for before native code writes them: where LLVM finds none, it ends the process."""

from __future__ import annotations

import contextlib
import shutil
import tempfile

from spconv_compiler.errors import ToolchainError

LEAST = 1 << 22
"""Bytes; the objects of all kernels of one operation and what they are linked to take some hundred thousand."""


def require_room() -> None:
    """Checks the folder for temporary files, and how long this process's files may be.

    Raises:
        ToolchainError: it has less than LEAST bytes free, files may not be that long, or there is no such folder that
            can be written to.
    """
    longest = _longest_file()
    if longest is not None and longest < LEAST:
        raise ToolchainError(
            f"files of this process may have {longest:,} bytes (RLIMIT_FSIZE); accepted: at least {LEAST:,}; raise the "
            "limit: ulimit -f"
        )
    try:
        folder = tempfile.gettempdir()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise ToolchainError(f"no folder for temporary files: {error}; set TMPDIR to one") from error
    if free < LEAST:
        raise ToolchainError(
            f"the folder for temporary files, {folder}, has {free:,} bytes free; accepted: at least {LEAST:,}; set "
            "TMPDIR to another one"
        )


def _longest_file() -> int | None:
    """RLIMIT_FSIZE in bytes; None where there is no limit, or no such thing."""
    with contextlib.suppress(ImportError):
        import resource

        soft = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        return None if soft == resource.RLIM_INFINITY else soft
    return None
