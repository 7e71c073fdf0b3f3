"""Splits a test file into the cases between `// -----` lines."""

from __future__ import annotations

import re

SEPARATOR = "// -----"
_SEPARATOR_LINE = re.compile(rf"^\s*{re.escape(SEPARATOR)}\s*$")


def split_input(text: str) -> list[str]:
    """The cases of `text`, each padded with empty lines so that its line numbers are those of the whole file."""
    cases: list[list[str]] = [[]]
    for number, line in enumerate(text.split("\n"), start=1):
        if _SEPARATOR_LINE.match(line):
            cases.append([""] * number)
        else:
            cases[-1].append(line)
    return ["\n".join([*case, ""]) for case in cases]
