"""What spconv-run says of files that it cannot read: in the words of its command line, and no advice of numpy's."""

from __future__ import annotations

import argparse
import importlib
import os
from pathlib import Path

import numpy as np
import pytest

from spconv_compiler.tools.console import guarded
from spconv_compiler.tools.run import main


def said(file: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert main([str(file), *more]) == 1
    return capsys.readouterr().err.removeprefix(f"spconv-run: error: {file}: ").strip()


def test_arrays_of_objects_and_broken_archives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects = np.array([{}, 1], dtype=object)
    np.save(tmp_path / "objects.npy", objects)
    np.savez(tmp_path / "objects.npz", points=objects)
    reason = "its array holds Python objects; accepted: arrays of numbers"
    for kind in ("npy", "npz"):
        assert said(tmp_path / f"objects.{kind}", capsys) == f"not a readable .{kind} file: {reason}"
    np.savez(tmp_path / "whole.npz", points=np.zeros((100, 3)))
    whole = (tmp_path / "whole.npz").read_bytes()
    for name, content in (("text", b"hello world"), ("cut", whole[: len(whole) // 2])):
        file = tmp_path / f"{name}.npz"
        file.write_bytes(content)
        assert said(file, capsys) == "not a readable .npz file: no zip archive, or not all of one"
    (tmp_path / "array.npz").write_bytes((tmp_path / "objects.npy").read_bytes())
    assert said(tmp_path / "array.npz", capsys).startswith("is a single .npy array")


def test_arguments_are_called_what_they_are_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "key=1.bin"
    file.write_bytes(bytes(40))
    words = said(file, capsys)
    assert "the size would fit --columns 5, --raw-dtype float32" in words
    assert words.endswith("or any raw file with --columns and --raw-dtype given")
    assert said(file, capsys, "--key", "pc") == "--key pc selects an array of an .npz file; this is a raw file"
    np.save(tmp_path / "a.npy", np.zeros((3, 3)))
    words = said(tmp_path / "a.npy", capsys, "--columns", "4")
    assert words == "--columns and --raw-dtype describe raw files; .npy carries its own shape and dtype"


def test_a_folder_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert guarded("spconv-run", lambda: len(os.getcwd())) == 1
    assert capsys.readouterr().err == "spconv-run: error: the current folder: No such file or directory\n"
    monkeypatch.chdir(tmp_path)

    def fails() -> int:
        raise OSError(28, "No space left on device")

    assert guarded("spconv-run", fails) == 1
    assert capsys.readouterr().err == "spconv-run: error: No space left on device\n"


@pytest.mark.parametrize("tool", ["bench", "cache", "compile", "opt", "run"])
def test_an_interrupt_before_the_work(
    tool: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fell into the reading of the command line, and printed a traceback."""

    def interrupt(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", interrupt)
    assert importlib.import_module(f"spconv_compiler.tools.{tool}").main(["--help"]) == 130
    assert capsys.readouterr().err == f"spconv-{tool}: interrupted\n"
