"""Room for temporary files, asked for before native code writes them: where LLVM finds none, it ends the process."""

from __future__ import annotations

import shutil
import tempfile

from spconv_compiler.errors import ToolchainError

LEAST = 1 << 22
"""Bytes; the objects of all kernels of one operation and what they are linked to take some hundred thousand."""


def require_room() -> None:
    """Checks the folder for temporary files.

    Raises:
        ToolchainError: it has less than LEAST bytes free, or there is no such folder that can be written to.
    """
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
