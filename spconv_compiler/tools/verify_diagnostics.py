"""Diagnostics of one run as data, and their comparison with `expected-error` comments.

A comment says which diagnostic its line, or a line near it, must give:

    // expected-error {{text that the message contains}}           this line
    // expected-note @above {{…}}   // expected-note @below {{…}}   the nearest line without such a comment
    // expected-warning @+2 {{…}}   // expected-remark @-1 {{…}}    so many lines further or back
    // expected-error @unknown {{…}}                                a diagnostic without a place in the input
    // expected-error-re {{rows are {{[0-9]+}}}}                    {{…}} inside is a regular expression

One comment a line, up to its end. Every diagnostic must be expected and every expectation met, except the
"see current operation" notes that MLIR adds to its own errors.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from spconv_compiler.bindings import ir
from spconv_compiler.errors import CompileError

KINDS = ("error", "warning", "remark", "note")
# What MLIR calls the source of a module that was parsed from a string.
SOURCE = "-"
_DESIGNATOR = re.compile(
    r"expected-(?P<kind>error|warning|remark|note)(?P<regex>-re)?\s*"
    r"(?:@(?P<where>[+-]\d+|above|below|unknown))?\s*\{\{(?P<text>.*)\}\}\s*$"
)
_LOOKS_LIKE_ONE = re.compile(r"//.*\bexpected-\w+")
_PLACE = re.compile(r'"(?P<file>(?:[^"\\]|\\.)*)":(?P<line>\d+):(?P<column>\d+)')
_CURRENT_OPERATION = "see current operation"


@dataclasses.dataclass(frozen=True)
class Diagnostic:
    """One message at one place; line and column count from 1 and are 0 where the place is unknown.

    `file` is the name in the location: SOURCE for the parsed text itself, "" for an unknown place.
    """

    kind: str
    message: str
    file: str = ""
    line: int = 0
    column: int = 0

    @property
    def line_of_input(self) -> int:
        """The line in the parsed text, or 0 when the place is elsewhere."""
        return self.line if self.file == SOURCE else 0

    def __str__(self) -> str:
        place = f"line {self.line_of_input}" if self.line_of_input else "no line"
        return f"{place}: {self.kind}: {self.message}"


@dataclasses.dataclass(frozen=True)
class Expectation:
    """One `expected-…` comment: the line of the diagnostic (0: unknown) and a pattern its message contains."""

    kind: str
    line: int
    text: str
    pattern: re.Pattern[str]
    written_on: int

    def matches(self, found: Diagnostic) -> bool:
        same_place = found.kind == self.kind and found.line_of_input == self.line
        return same_place and self.pattern.search(found.message) is not None


def from_mlir(item: ir.DiagnosticInfo | ir.Diagnostic) -> Iterator[Diagnostic]:
    """An MLIR diagnostic and its notes."""
    kind = str(item.severity).rpartition(".")[2].lower()
    yield _placed(kind, item.message, str(item.location))
    for note in item.notes:
        yield from from_mlir(note)


def from_error(error: CompileError | ir.MLIRError) -> list[Diagnostic]:
    """What `error` says: the MLIR diagnostics where MLIR found the fault, else the error and its notes."""
    source = error if isinstance(error, ir.MLIRError) else error.__cause__
    if isinstance(source, ir.MLIRError) and source.error_diagnostics:
        return [found for item in source.error_diagnostics for found in from_mlir(item)]
    if isinstance(error, CompileError):
        location = error.location or ""
        notes = [_placed("note", note, location) for note in error.notes]
        return [_placed("error", error.message, location), *notes]
    return [Diagnostic("error", str(error))]


def _placed(kind: str, message: str, location: str) -> Diagnostic:
    """The first file position in the text of an MLIR location; `file:line:column` without quotes also counts."""
    match = _PLACE.search(location) or re.match(r"(?P<file>.*):(?P<line>\d+):(?P<column>\d+)$", location)
    if match is None:
        return Diagnostic(kind, message)
    return Diagnostic(kind, message, match["file"], int(match["line"]), int(match["column"]))


def expectations(text: str) -> tuple[list[Expectation], list[str]]:
    """The expectations in `text`, and a complaint for every comment that looks like one but is not."""
    lines = text.split("\n")
    matches = [_DESIGNATOR.search(line) for line in lines]
    found, complaints = [], []
    for number, (line, match) in enumerate(zip(lines, matches, strict=True), start=1):
        if match is not None:
            target = _target(number, match["where"] or "+0", [other is not None for other in matches])
            try:
                pattern = _pattern(match["text"], regex=bool(match["regex"]))
            except re.error as error:
                complaints.append(f"line {number}: not a regular expression: {error}")
                continue
            found.append(Expectation(match["kind"], target, match["text"], pattern, number))
        elif _LOOKS_LIKE_ONE.search(line):
            complaints.append(f"line {number}: not an expectation: {line.strip()}")
    return found, complaints


def _target(number: int, where: str, is_designator: list[bool]) -> int:
    if where == "unknown":
        return 0
    if where not in ("above", "below"):
        return number + int(where)
    step = -1 if where == "above" else 1
    target = number + step
    while 1 <= target <= len(is_designator) and is_designator[target - 1]:
        target += step
    return target


def _pattern(text: str, *, regex: bool) -> re.Pattern[str]:
    if not regex:
        return re.compile(re.escape(text))
    parts = re.split(r"\{\{(.*?)\}\}(?!\})", text)
    return re.compile("".join(f"(?:{part})" if index % 2 else re.escape(part) for index, part in enumerate(parts)))


def mismatches(text: str, found: list[Diagnostic]) -> list[str]:
    """Every way in which the diagnostics of a run differ from the comments in its input; empty: they agree."""
    expected, complaints = expectations(text)
    left = list(found)
    for expectation in expected:
        hit = next((item for item in left if expectation.matches(item)), None)
        if hit is not None:
            left.remove(hit)
            continue
        place = f"line {expectation.line}" if expectation.line else "no line"
        what = f'{expectation.kind}: "{expectation.text}"'
        complaints.append(f"line {expectation.written_on}: expected on {place}: {what}")
    unexpected = [item for item in left if not item.message.startswith(_CURRENT_OPERATION)]
    return complaints + [f"unexpected: {item}" for item in unexpected]
