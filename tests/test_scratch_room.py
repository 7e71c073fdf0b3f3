"""No room for temporary files: an error that names the folder, where LLVM would end the process."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import namedtuple
from pathlib import Path

import pytest

import spconv_compiler as sc
from spconv_compiler.scratch_room import LEAST, require_room

_Usage = namedtuple("_Usage", "total used free")


@pytest.mark.parametrize("target", ["cpu", "gfx950", "sm_90"])
def test_a_full_folder(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPCONV_CACHE", "off")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    free = LEAST - 1
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: _Usage(2 * LEAST, 2 * LEAST - free, free))
    with pytest.raises(sc.ToolchainError, match=rf"{tmp_path}, has {free:,} bytes free; accepted: at least .* TMPDIR"):
        sc.compile_conv(1, 2, 3, dtype="bf16", target=target)
    free = LEAST
    assert sc.compile_conv(1, 2, 3, dtype="bf16", target=target).object


def test_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", missing)
    with pytest.raises(sc.ToolchainError, match="no folder for temporary files: .*No usable temporary directory"):
        require_room()


_LIMITED = """
import resource, sys
import spconv_compiler as sc
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    sc.compile_conv(1, 2, 3, dtype="bf16", target=sys.argv[1])
except sc.ToolchainError as error:
    print(error)
"""


@pytest.mark.parametrize(("target", "limit"), [("cpu", 4096), ("gfx950", 4096), ("gfx950", 0)])
def test_files_that_may_not_be_long(target: str, limit: int, tmp_path: Path) -> None:
    """In a process of its own: without the check LLVM ends it, and the limit would be that of all tests."""
    command = [sys.executable, "-c", _LIMITED, target, str(limit)]
    # Nothing is there that an earlier compilation has left, neither kernels nor a linker's folder.
    environment = {**os.environ, "SPCONV_CACHE_DIR": str(tmp_path / "empty")}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    expected = rf"may have {limit:,} bytes \(RLIMIT_FSIZE\); accepted: at least {LEAST:,}"
    assert re.search(expected, ran.stdout), ran.stdout
