"""Runs the lit tests: every file is one test here, and lit runs the chosen ones together, two at a time."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

LIT_TESTS = pathlib.Path(__file__).resolve().parent.parent / "lit_tests"
PATHS = sorted(path for path in LIT_TESTS.rglob("*.mlir") if "Output" not in path.parts)
FILES = [path.relative_to(LIT_TESTS).as_posix() for path in PATHS]
LIT = (sys.executable, "-c", "from lit.main import main; main()", "-j2", "--quiet")


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What lit says of each file that this session has chosen: file → {code, output, elapsed}."""
    chosen = [item.callspec.params["file"] for item in request.session.items if item.name.startswith("test_lit[")]
    report = tmp_path_factory.mktemp("lit") / "results.json"
    command = [*LIT, "--output", str(report), *(str(LIT_TESTS / file) for file in chosen)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if not report.exists():
        pytest.fail(f"lit did not run (exit code {run.returncode}):\n{run.stdout}{run.stderr}")
    tests = json.loads(report.read_text(encoding="utf-8"))["tests"]
    return {test["name"].partition(" :: ")[2]: test for test in tests}


@pytest.mark.parametrize("file", FILES)
def test_lit(file: str, results: dict[str, dict[str, Any]]) -> None:
    assert file in results, f"lit did not find {file}"
    code, output = results[file]["code"], results[file]["output"]
    if code == "UNSUPPORTED":
        pytest.skip(output.strip())
    if code != "PASS":
        pytest.fail(f"{code}: {file}\n{output}", pytrace=False)


def test_every_folder_has_tests() -> None:
    for folder in ("dialect", "isa", "levels", "passes", "targets", "tools"):
        assert any(file.startswith(f"{folder}/") for file in FILES), folder
