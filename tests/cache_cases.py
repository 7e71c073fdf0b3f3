"""What the tests of the kernel cache put into it, and how they look at what is on disk."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from spconv_compiler import cache_disk
from spconv_compiler.cache import DiskCache

REPOSITORY = Path(__file__).resolve().parent.parent
FILES = {"kernel.so": bytes(range(256)) * 8, "kernel.s": b"s_endpgm\n", "meta.json": b"{}", "empty": b""}
PARTS = {"kernel_size": (3, 3, 3), "c_in": 16, "name": "é"}
BOUND = 2**24


def key_of(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


KEY = key_of(0)


def folder_of(disk: DiskCache, key: str = KEY) -> Path:
    return disk.root / "v1" / key[:2] / key


def keys(disk: DiskCache) -> list[str]:
    return [entry.key for entry in disk.entries()]


def leftovers(disk: DiskCache) -> list[str]:
    return [path.name for path in (disk.root / "v1" / "staging").iterdir()]


def files_only(key: str, files: cache_disk.Files) -> dict[str, bytes]:
    return dict(files)


def run_script(script: str, *arguments: object) -> str:
    """What a program of this Python prints; nothing goes wrong in it."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout
