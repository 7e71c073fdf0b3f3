"""Rejects lit tests that check nothing: filecheck passes silently over a directive that it does not recognise."""

from __future__ import annotations

import pathlib
import re

import pytest

LIT_TESTS = pathlib.Path(__file__).resolve().parent.parent / "lit_tests"
FILES = sorted(path for path in LIT_TESTS.rglob("*.mlir") if "Output" not in path.parts)

_SUFFIX = r"(?:-(?:DAG|COUNT-[1-9]\d*|NOT|EMPTY|NEXT|SAME|LABEL))?(?:\{LITERAL\})?:"
# What lit and filecheck read besides check directives, and "COM:" for commented-out ones.
_KEYWORDS = {"RUN", "REQUIRES", "UNSUPPORTED", "XFAIL", "COM"}


def lint(text: str) -> list[str]:
    """Every way in which the directives of a lit file do not do what they seem to do."""
    lines = text.splitlines()
    runs = _runs(lines)
    if not runs:
        return ["there is no RUN line"]
    used = {prefix for run in runs for prefix in _prefixes(run)}
    complaints = []
    if not used and not any("--verify-diagnostics" in run or re.search(r"\bnot\b", run) for run in runs):
        complaints.append("no RUN line checks anything")
    verifies = any("--verify-diagnostics" in run for run in runs)
    if verifies != bool(re.search(r"//.*expected-(error|warning|remark|note)", text)):
        complaints.append("expected-… comments and --verify-diagnostics need each other")
    for number, line in enumerate(lines, start=1):
        if "RUN:" not in line:
            complaints.extend(f"line {number}: {what}: {line.strip()}" for what in _lint_line(line, used))
    for prefix in sorted(used):
        if not any(re.match(rf"\s*//\s*{prefix}{_SUFFIX}", line) for line in lines):
            complaints.append(f"prefix {prefix} is in a RUN line but has no directive")
    return complaints


def _runs(lines: list[str]) -> list[str]:
    """The RUN lines, continued ones joined."""
    runs: list[str] = []
    continued = False
    for line in lines:
        match = re.search(r"RUN:(.*)", line)
        if match is None:
            continue
        part = match[1].strip()
        if continued:
            runs[-1] = runs[-1].removesuffix("\\") + part
        else:
            runs.append(part)
        continued = part.endswith("\\")
    return runs


def _prefixes(run: str) -> set[str]:
    found: set[str] = set()
    for command in run.split("|"):
        if "%filecheck" in command:
            given = re.findall(r"--?check-prefix(?:es)?[= ](\S+)", command)
            found.update(",".join(given).split(",") if given else ["CHECK"])
    return found


def _lint_line(line: str, used: set[str]) -> list[str]:
    """The faults of one line, with the prefixes that the RUN lines use."""
    comment = re.match(r"\s*//\s*(.*)", line)
    text = comment[1] if comment else ""
    word = re.match(r"[A-Za-z][A-Za-z0-9_]*", text)
    if word is not None:
        rest = text[word.end() :]
        directive = re.match(_SUFFIX, rest)
        if word[0] in used:
            if not directive:
                return ["looks like a directive but is not one"]
            if re.search(rf"(RUN|COM).*({'|'.join(sorted(used))})", line):
                return ["filecheck takes this directive for a comment, because of RUN or COM before the prefix"]
            return []
        if word[0].upper() in used and re.match(r"[-\w]*\s*:", rest):
            return ["looks like a directive but is not one"]
        if directive and word[0].isupper() and word[0] not in _KEYWORDS:
            return [f"no RUN line uses the prefix {word[0]}"]
    if used and re.search(rf"(?:^|[^a-zA-Z_-])(?:{'|'.join(sorted(used))}){_SUFFIX}", line):
        return ["a directive in the middle of a line"]
    return []


GOOD = """\
// RUN: %opt %s | %filecheck %s
// RUN: %opt %s \\
// RUN:   | %filecheck %s --check-prefixes=CHECK,GPU
// REQUIRES: lld

// Checks that nothing happens: a note about CHECK lines is no directive.
// CHECK-LABEL: @f
  // CHECK-SAME: x
  // CHECK-COUNT-2: y
  // CHECK-NOT{LITERAL}: [[z]]
  // GPU-DAG: w
"""


def test_good_files_pass() -> None:
    assert lint(GOOD) == []
    assert lint("// RUN: %opt %s --verify-diagnostics\n// expected-error {{x}}\n") == []
    assert lint("// RUN: not %opt %s\n") == []


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("// CHECK-NEXT foo", "looks like a directive"),
        ("// CHECK-NXT: foo", "looks like a directive"),
        ("// CHECK-NEXT : foo", "looks like a directive"),
        ("// CHECK- NEXT: foo", "looks like a directive"),
        ("// CHECK foo", "looks like a directive"),
        ("// CHECK_NEXT: foo", "no RUN line uses the prefix CHECK_NEXT"),
        ("// CHECK-COUNT: foo", "looks like a directive"),
        ("// CHECK-COUNT-0: foo", "looks like a directive"),
        ("// CHECK-NEXT-NOT: foo", "looks like a directive"),
        ("// Check: foo", "looks like a directive"),
        ("// check-next: foo", "looks like a directive"),
        ("// CHEK: foo", "no RUN line uses the prefix CHEK"),
        ("// CPU-NEXT: foo", "no RUN line uses the prefix CPU"),
        ("// as above, CHECK-NOT: foo", "in the middle of a line"),
        ("return // CHECK: foo", "in the middle of a line"),
        ("// GPU: RUN x CHECK y", "takes this directive for a comment"),
        ("// expected-error {{x}}", "need each other"),
    ],
)
def test_malformed_lines_are_rejected(line: str, complaint: str) -> None:
    found = lint(GOOD + line + "\n")
    assert len(found) == 1 and complaint in found[0]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("// CHECK: x\n", "there is no RUN line"),
        ("// RUN: %opt %s\n", "no RUN line checks anything"),
        ("// RUN: %opt %s | %filecheck %s\n", "prefix CHECK is in a RUN line but has no directive"),
        ("// RUN: %opt %s | %filecheck %s --check-prefix GPU\n// GPU-NXT: x\n", "looks like a directive"),
        ("// RUN: %opt %s --verify-diagnostics\n", "need each other"),
    ],
)
def test_malformed_files_are_rejected(text: str, complaint: str) -> None:
    assert any(complaint in found for found in lint(text))


def test_every_prefix_of_a_run_line_needs_a_directive() -> None:
    run = "// RUN: %opt %s | %filecheck %s --check-prefixes=CHECK,GPU\n"
    assert lint(run + "// CHECK: x\n") == ["prefix GPU is in a RUN line but has no directive"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(LIT_TESTS).as_posix())
def test_lit_file(path: pathlib.Path) -> None:
    assert lint(path.read_text(encoding="utf-8")) == []
