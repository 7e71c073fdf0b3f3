"""ruff and mypy on the whole repository, as part of the one test command."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest


def run(*command: str, cwd: pathlib.Path) -> None:
    """Runs a checker of this environment; its complaints are the failure."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command)}\n{done.stdout}{done.stderr}", pytrace=False)


def test_ruff(repo: pathlib.Path) -> None:
    run("ruff", "check", "--no-cache", ".", cwd=repo)


def test_mypy(repo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Strict, on the packages as they are installed: mypy does not follow the import path of a checkout."""
    package = tmp_path / "spconv_compiler"
    package.mkdir()
    for item in (repo / "spconv_compiler").iterdir():
        (package / item.name).symlink_to(item)
    for name in ("passes", "dialect"):
        (package / name).symlink_to(repo / name)
    config = ("--config-file", str(repo / "pyproject.toml"), "--cache-dir", str(tmp_path / "cache"))
    run("mypy", *config, "spconv_compiler", cwd=tmp_path)
