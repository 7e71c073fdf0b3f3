"""What a measurement depends on besides the code measured: processor, memory, versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import spconv_compiler
from spconv_compiler.targets import get_target
from spconv_compiler.toolchain import host_cpu_features

_PACKAGES = ("flydsl", "torch", "numpy", "spconv", "cumm")


def machine(threads: int) -> dict[str, object]:
    """Processor, x86-64 level that kernels are built for, cores, threads used, memory, systems."""
    return {
        "cpu": _field(Path("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine(),
        "level": get_target("cpu").name,
        "features": sorted(host_cpu_features()),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": threads,
        "memory_mb": int((_field(Path("/proc/meminfo"), "MemTotal") or "0").split()[0]) // 1024,
        "system": platform.platform(),
    }


def versions() -> dict[str, str | None]:
    """Versions of Python, this package (and its commit in a checkout) and what it is compared with."""
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "spconv_compiler": spconv_compiler.__version__,
        "commit": _commit(Path(spconv_compiler.__file__).parent),
    }
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def _field(file: Path, name: str) -> str | None:
    """The value of the first `name : value` line."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), None)


def _commit(folder: Path) -> str | None:
    """The commit checked out, with "+" if files differ from it; None where git or a checkout is missing."""
    try:
        # Asks git only in a checkout: an installed package may lie inside somebody else's repository.
        if not (folder.parent / ".git").exists():
            return None
        commit, changes = (
            subprocess.run(["git", "-C", str(folder), *command], capture_output=True, text=True, check=True).stdout
            for command in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.strip() + ("+" if changes.strip() else "")
