"""README.md: its snippets run in the order in which they stand, and its command lines are accepted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from spconv_compiler.tools import bench, opt, run
from spconv_compiler.tools import compile as compile_tool

PARSE: dict[str, Callable[[list[str]], Any]] = {
    "spconv-run": run._parse,
    "spconv-bench": lambda words: bench._parser().parse_args(words),
    "spconv-compile": lambda words: compile_tool._parser().parse_args(words),
    "spconv-opt": lambda words: opt._parser().parse_args(words),
}


def blocks(repo: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (repo / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def test_snippets(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    for block in blocks(repo, "python"):
        exec(compile(block, "README.md", "exec"), names)
    assert "v_mfma_f32_16x16x32_bf16" in capsys.readouterr().out
    coords, features, weight = names["coords"], names["features"], names["weight"]
    # Rows 0 and 1 are neighbours along x, rows 1 and 2 along z, rows 0 and 2 along both.
    taps = {(0, 1): (1, 1, 2), (1, 2): (2, 1, 1), (0, 2): (2, 1, 2)}
    expected = features @ weight[:, 1, 1, 1].T
    for (row, other), (z, y, x) in taps.items():
        expected[row] += features[other] @ weight[:, z, y, x].T
        expected[other] += features[row] @ weight[:, 2 - z, 2 - y, 2 - x].T
    # `out` is the simulator's here: the snippet that asks for it stands last.
    torch.testing.assert_close(names["out"], expected, rtol=1e-5, atol=1e-4)
    assert names["up"].shape == (3, 32) and names["pooled"].shape[1] == 32
    with torch.no_grad():
        torch.testing.assert_close(names["net"](features, coords), names["model"](features, coords))


def test_command_lines(repo: Path) -> None:
    seen = set()
    for line in "\n".join(blocks(repo, "sh")).splitlines():
        for command in line.split("&&"):
            words = shlex.split(command.partition(">")[0], comments=True)
            while words and re.fullmatch(r"[A-Z_]+=\S+", words[0]):
                words = words[1:]
            if words and words[0].startswith("spconv-"):
                PARSE[words[0]](words[1:])
                seen.add(words[0])
    assert seen == set(PARSE)
