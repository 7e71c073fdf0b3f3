"""What a caller may do around subm_conv3d that once crashed, hung or gave garbage."""

from __future__ import annotations

import copy
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable

import pytest
import torch
import torch.autograd.forward_ad

import spconv_compiler as sc
from spconv_compiler.arrays import as_array
from spconv_compiler.compiler import conv_options
from spconv_compiler.driver import ConvKernel, load_conv
from spconv_compiler.errors import InputError, PassError
from spconv_compiler.options import MAX_CHANNELS
from spconv_compiler.tools import compile as compile_tool

COORDS = torch.zeros(1, 4, dtype=torch.int32)


def test_tracing_is_refused() -> None:
    """A trace held the allocation of the result only, and returned whatever memory held."""
    weight = torch.randn(4, 1, 1, 1, 3)
    with pytest.raises(InputError, match=r"torch\.jit\.trace"):
        torch.jit.trace(lambda features: sc.subm_conv3d(COORDS, features, weight), (torch.randn(1, 3),))


def test_activation_in_place_after_a_parameter() -> None:
    weight = torch.nn.Parameter(torch.randn(4, 1, 1, 1, 3))
    features = torch.randn(1, 3)
    plain = sc.subm_conv3d(COORDS, features, weight.detach())
    out = sc.subm_conv3d(COORDS, features, weight).relu_()
    assert torch.equal(out.detach(), plain.relu())
    with pytest.raises(sc.SpconvError, match="no backward pass"):
        out.sum().backward()


@pytest.mark.parametrize("target", ["x86-64-v3", "gfx950"])
def test_the_widest_channels_compile(target: str) -> None:
    """Wider ones are refused: LLVM aborts on some, and compiles others for minutes."""
    assert sc.compile_conv(1, MAX_CHANNELS, 1, target=target).object
    assert sc.compile_conv(1, 1, MAX_CHANNELS, target=target).object


def test_a_dump_folder_that_cannot_be_made_is_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SPCONV_DUMP_DIR", str(tmp_path / "file"))
    with pytest.raises(InputError, match="SPCONV_DUMP_DIR"):
        sc.compile_conv(1, 3, 3, target="x86-64-v3")


@pytest.mark.parametrize("dumping", [False, True])
def test_a_failing_pass_is_reported_with_its_dumps(
    dumping: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spconv_compiler.passes.convert_weight_to_loops import ConvertWeightToLoops

    def refuse(self: ConvertWeightToLoops, module: object) -> None:
        raise PassError("refused for the test")

    monkeypatch.setattr(ConvertWeightToLoops, "run", refuse)
    monkeypatch.setenv("SPCONV_CACHE", "off")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    if dumping:
        monkeypatch.setenv("SPCONV_DUMP_DIR", str(tmp_path / "dumps"))
    with pytest.raises(PassError, match="refused for the test") as caught:
        sc.compile_conv(1, 6, 7, target="x86-64-v3")
    folder = pathlib.Path(caught.value.notes[-1].removeprefix("dumps and replay.sh: "))
    assert (folder / "replay.sh").is_file() and list(folder.glob("*FAILED-convert-weight-to-loops*"))


def test_absurd_thread_counts_are_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    from spconv_compiler.driver import MAX_THREADS, thread_count
    from spconv_compiler.passes.cpu.parallel import MAX_WORKERS

    monkeypatch.setenv("SPCONV_NUM_THREADS", "1000000")
    monkeypatch.setattr("spconv_compiler.driver.torch_module", lambda: None)
    assert thread_count() == MAX_THREADS == MAX_WORKERS


def test_the_log_level_is_heard(repo: pathlib.Path) -> None:
    def levels(value: str) -> subprocess.CompletedProcess[str]:
        program = "import logging, spconv_compiler.compiler; print(logging.getLogger('spconv_compiler').level)"
        environment = {**os.environ, "SPCONV_LOG": value}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=environment, cwd=repo, capture_output=True, text=True)

    assert levels("debug").stdout == "10\n"
    loud = levels("loud")
    assert loud.returncode != 0 and "SPCONV_LOG='loud' is not accepted" in loud.stderr


def test_forward_mode_is_refused() -> None:
    """The tangent was dropped without a word."""
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.randn(1, 3), torch.randn(1, 3))
        with pytest.raises(sc.SpconvError, match="tangent"):
            sc.subm_conv3d(COORDS, dual, torch.randn(4, 1, 1, 1, 3))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda kernel: pickle.loads(pickle.dumps(kernel))])
def test_a_kernel_is_copied_by_loading_it_again(copied: Callable[[ConvKernel], ConvKernel]) -> None:
    kernel = load_conv(conv_options(1, 3, 4, target="cpu"))
    again = copied(kernel)
    assert again is not kernel and again.options == kernel.options
    array = as_array(torch.arange(100.0), "array")
    assert again.checksum(array) == kernel.checksum(array)


@pytest.mark.parametrize(
    "command", [["cache", "list"], ["run", "--list-nets"], ["compile", "--print-pipeline"], ["opt", "--list-levels"]]
)
def test_a_full_disk_is_reported(command: list[str], repo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    if not pathlib.Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    environment = {**os.environ, "SPCONV_CACHE_DIR": str(tmp_path)}
    with open("/dev/full", "w") as full:
        found = subprocess.run(
            [sys.executable, "-m", f"spconv_compiler.tools.{command[0]}", *command[1:]],
            env=environment,
            cwd=repo,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (found.returncode, found.stderr) == (1, f"spconv-{command[0]}: error: No space left on device\n")


def test_a_pass_that_never_runs_is_not_printed_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPCONV_PRINT_AFTER", "convert-nothing")
    with pytest.raises(InputError, match="SPCONV_PRINT_AFTER convert-nothing: no such pass runs; accepted: all, "):
        sc.compile_conv(1, 3, 5, target="cpu")


def test_numbers_beside_a_file_are_refused(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "conv.mlir"
    file.write_text("module {}")
    assert compile_tool.main([str(file), "--c-in", "4"]) == 2
    assert "a file, or numbers" in capsys.readouterr().err


def test_the_place_of_an_error_is_in_the_file(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "conv.mlir"
    file.write_text("module {\n  %0 = arith.constant 1 : i32\n}")
    assert compile_tool.main([str(file), "--emit", "stages"]) == 1
    assert f"{file}:2:8: arith.constant is not allowed" in capsys.readouterr().err


def test_an_unknown_schedule_leaves_no_dumps(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert compile_tool.main(["--c-in", "4", "--c-out", "4", "--schedule", "fastest"]) == 2
    assert list(tmp_path.iterdir()) == []
