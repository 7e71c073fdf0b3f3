"""`spconv-opt`: usage, unreadable input, and what --verify-diagnostics finds wrong (lit_tests/tools has the rest)."""

from __future__ import annotations

import io
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

from spconv_compiler.errors import CompileError, PassError
from spconv_compiler.tools import opt
from spconv_compiler.tools.split_input import split_input
from spconv_compiler.tools.verify_diagnostics import Diagnostic, expectations, from_error, mismatches

GOOD = "func.func @f() {\n  return\n}\n"
BAD = """\
func.func @f(%map: !spconv.map<27>) {
  %0 = "spconv.compact"(%map) : (!spconv.map<27>) -> !spconv.pairs<9>
  return
}
"""


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "good.mlir"
    path.write_text(GOOD)
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "nonsense"], "unknown passes: nonsense; accepted: check-level, "),
        (["-p", "check-level{depth=3}"], "pass check-level has no option 'depth=3'; accepted: level=…"),
        (["-p", "check-level{level=gpu"], "brackets do not match in 'check-level{level=gpu'"),
        (["--to-level", "asm"], "unknown level 'asm'; accepted: spconv, stages, gpu, rocdl, nvvm, loops, cpu"),
        (["--from-level", "asm", "--to-level", "gpu"], "unknown level 'asm'"),
        (["--to-level", "loops", "--target", "gfx950"], "no way from level spconv to loops on gfx950; its levels: "),
        (["--from-level", "gpu", "--to-level", "spconv", "--target", "gfx950"], "no way from level gpu to spconv"),
        (["--to-level", "gpu", "--target", "gfx1"], "unknown target 'gfx1'; accepted: auto, cpu, gfx950,"),
        (["--target", "gfx950"], "--target needs --to-level"),
        (["--schedule", "pairs_m16"], "--schedule needs --to-level"),
        (["--from-level", "gpu"], "--from-level needs --to-level"),
        (["-p", "cse", "--to-level", "gpu"], "-p and --to-level exclude each other"),
        (
            ["-p", "cse", "--print-after", "gemm"],
            "--print-after gemm: no such pass runs; accepted: all, cse",
        ),
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
        (["-p"], "argument -p/--passes: expected one argument"),
    ],
)
def test_wrong_usage(
    arguments: list[str], message: str, file: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opt.main([str(file), *arguments]) == 2
    output = capsys.readouterr()
    assert f"spconv-opt: error: {message}" in output.err and output.out == ""


def test_bad_value_of_a_variable(
    file: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPCONV_TARGET", "gfx1")
    assert opt.main([str(file), "--to-level", "stages"]) == 2
    assert "unknown target 'gfx1'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x7fELF\x02\x01\xff\xfe\x00\x80", "is not MLIR text: byte 6 is not UTF-8"),
        (b"\x00\x01\x02", "error: "),
        (b"ML\xefR\x00bytecode", "is not MLIR text: byte 2 is not UTF-8"),
        (b"func.func @f(", ":1:13: error: "),
        ("func.func @f() { return } é".encode(), ":1:27: error: unexpected character"),
    ],
)
def test_input_that_is_no_mlir(
    content: bytes, message: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.mlir"
    path.write_bytes(content)
    assert opt.main([str(path)]) == 1
    output = capsys.readouterr()
    assert message in output.err and "Traceback" not in output.err and output.out == ""


def test_files_that_cannot_be_read_or_written(
    file: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing.mlir"
    assert opt.main([str(missing)]) == 1
    assert f"spconv-opt: error: cannot read {missing}: No such file or directory" in capsys.readouterr().err
    assert opt.main([str(tmp_path)]) == 1
    assert f"spconv-opt: error: cannot read {tmp_path}: Is a directory" in capsys.readouterr().err
    output = tmp_path / "no" / "out.mlir"
    assert opt.main([str(file), "-o", str(output)]) == 1
    assert f"spconv-opt: error: cannot write {output}: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "\n\n", "// only a comment"])
def test_empty_input_is_an_empty_module(text: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.mlir"
    path.write_text(text)
    assert opt.main([str(path), "-p", "check-level", "--split-input-file"]) == 0
    assert capsys.readouterr().out.split() == ["module", "{", "}"]


def test_windows_line_ends(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "crlf.mlir"
    path.write_bytes(f"{GOOD}// -----\n{BAD}".replace("\n", "\r\n").encode())
    assert opt.main([str(path), "--split-input-file"]) == 1
    assert f"{path}:6:8: error: 'spconv.compact' the map is" in capsys.readouterr().err


def test_stdin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(GOOD.encode())))
    assert opt.main([]) == 0
    assert "func.func @f" in capsys.readouterr().out


def test_output_is_written_only_when_every_case_is_good(tmp_path: pathlib.Path) -> None:
    path, output = tmp_path / "in.mlir", tmp_path / "out.mlir"
    path.write_text(f"{GOOD}// -----\n{BAD}")
    assert opt.main([str(path), "--split-input-file", "-o", str(output)]) == 1
    assert not output.exists()
    path.write_text(f"{GOOD}// -----\n{GOOD}")
    assert opt.main([str(path), "--split-input-file", "-o", str(output)]) == 0
    assert output.read_text().count("func.func @f") == 2 and "// -----" in output.read_text()


def test_a_closed_pipe_is_no_traceback(file: pathlib.Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "spconv_compiler.tools.opt", str(file)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_split_keeps_line_numbers() -> None:
    assert split_input("a\n// -----\nb\n  // -----  \nc") == ["a\n", "\n\nb\n", "\n\n\n\nc\n"]
    assert split_input("") == ["\n"]
    assert split_input("a // -----\n// ------\n//-----") == ["a // -----\n// ------\n//-----\n"]


def verify(text: str, *arguments: str, tmp_path: pathlib.Path) -> int:
    path = tmp_path / "in.mlir"
    path.write_text(textwrap.dedent(text))
    return opt.main([str(path), "--split-input-file", "--verify-diagnostics", *arguments])


def test_verify_diagnostics_agrees(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = BAD.replace("pairs<9>\n", "pairs<9> // expected-error {{but the pairs are}}\n")
    assert verify(good, tmp_path=tmp_path) == 0
    # An error of the request itself has no place in the input.
    unknown = "// expected-error @unknown {{unknown level}}\n"
    assert verify(unknown, "-p", "check-level{level=x}", tmp_path=tmp_path) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        (BAD, ["unexpected: line 2: error: 'spconv.compact' the map is"]),
        (f"// expected-error {{{{x}}}}\n{GOOD}", ['line 1: expected on line 1: error: "x"']),
        # The right message in the wrong place, of the wrong kind, and not contained.
        (f"// expected-error {{{{the pairs are}}}}\n{BAD}", ["line 1: expected on line 1", "unexpected: line 3"]),
        (
            f"\n// expected-warning @+2 {{{{the pairs are}}}}\n{BAD}",
            ["line 2: expected on line 4: warning", "unexpected: line 4"],
        ),
        (f"// expected-error @+2 {{{{pairs<8>}}}}\n{BAD}", ["line 1: expected on line 3: error", "unexpected: line 3"]),
        # Twice expected, once seen.
        (
            f"// expected-error @+3 {{{{pairs}}}}\n// expected-error @+2 {{{{pairs}}}}\n{BAD}",
            ["line 2: expected on line 4"],
        ),
        ("// expected-error {{unfinished}\n", ["line 1: not an expectation: // expected-error {{unfinished}"]),
        ("// expected-error-re {{a {{(}} b}}\n", ["line 1: not a regular expression"]),
        ("// expected-eror {{x}}\n", ["line 1: not an expectation"]),
        ("// expected-error @bellow {{x}}\n", ["line 1: not an expectation"]),
        (f"{GOOD}// -----\n{BAD}", ["unexpected: line 6"]),
    ],
)
def test_verify_diagnostics_disagrees(
    text: str, complaints: list[str], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(text, tmp_path=tmp_path) == 1
    output = capsys.readouterr()
    lines = output.err.splitlines()
    assert len(lines) == len(complaints) and output.out == ""
    for line, complaint in zip(lines, complaints, strict=True):
        assert line.startswith(f"{tmp_path / 'in.mlir'}: ") and complaint in line


def test_notes_have_to_be_expected() -> None:
    error = PassError("no", location="-:3:5", notes=("try that",))
    assert [str(found) for found in from_error(error)] == ["line 3: error: no", "line 3: note: try that"]
    text = "\n// expected-error @below {{no}}\n"
    assert mismatches(text, from_error(error)) == ["unexpected: line 3: note: try that"]
    assert mismatches(f"{text}\n// expected-note @above {{{{try}}}}", from_error(error)) == []
    current = Diagnostic("note", 'see current operation: "x"', "-", 3, 5)
    assert mismatches(text, [from_error(error)[0], current]) == []


def test_places_of_errors() -> None:
    assert from_error(CompileError("no"))[0].line == 0
    assert from_error(CompileError("no", location="unknown"))[0].line == 0
    assert from_error(CompileError("no", location='callsite("f"("a b.py":7:2) at "g.py":1:1)'))[0] == Diagnostic(
        "error", "no", "a b.py", 7, 2
    )


def test_a_place_in_another_file_is_no_line_of_the_input() -> None:
    elsewhere = from_error(CompileError("no", location='"net.py":2:1'))
    assert mismatches("// expected-error @below {{no}}\n", elsewhere)[1] == "unexpected: no line: error: no"
    assert mismatches("// expected-error @unknown {{no}}\n", elsewhere) == []


def test_above_and_below_skip_other_comments() -> None:
    text = "x\n// expected-note @above {{a}}\n// expected-error @above {{b}}\n// expected-error @below {{c}}\ny\n"
    found, complaints = expectations(text)
    assert [expectation.line for expectation in found] == [1, 1, 5] and complaints == []


def test_regular_expressions() -> None:
    (expectation,), _ = expectations("// expected-error-re {{f({{[0-9]+}}) is {{a|b}}}}\n")
    assert expectation.matches(Diagnostic("error", "see f(12) is b", "-", 1, 1))
    assert not expectation.matches(Diagnostic("error", "see f(x) is b", "-", 1, 1))
    assert not expectation.matches(Diagnostic("error", "f(12) is c", "-", 1, 1))
