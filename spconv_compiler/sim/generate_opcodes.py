"""Writes opcodes.py: the opcode number of every row, read from what the assembler makes of it.

`python -m spconv_compiler.sim.generate_opcodes > spconv_compiler/sim/opcodes.py`; a test compares the two.
"""

from __future__ import annotations

import random
import sys
import textwrap

from spconv_compiler.sim.assembler import assemble
from spconv_compiler.sim.encoding import find_formats
from spconv_compiler.sim.isa import ROWS
from spconv_compiler.sim.sample import sample

_HEADER = '''"""Opcode numbers by format, then number. Generated: see generate_opcodes.py; do not edit."""

from __future__ import annotations

_LISTS = {
'''
_FOOTER = """}


def _read(text: str) -> dict[int, str]:
    words = text.split()
    return {int(number): name for number, name in zip(words[::2], words[1::2], strict=True)}


OPCODES: dict[str, dict[int, str]] = {format_: _read(text) for format_, text in _LISTS.items()}
"""


def generate() -> str:
    """The text of opcodes.py."""
    wanted = [(row, format_) for row in ROWS.values() for format_ in row.formats if format_ != "SCALE"]
    found: dict[str, dict[int, str]] = {}
    lines = [sample(row, format_, random.Random(0)) for row, format_ in wanted]
    for (row, format_), code in zip(wanted, assemble(lines), strict=True):
        word = int.from_bytes(code[:8], "little")
        encoding = next((found for found in find_formats(word & 0xFFFFFFFF) if found.name == format_), None)
        if encoding is None:
            raise ValueError(f"{row.name} is not encoded as {format_}: {code[:8].hex(' ')}")
        # The segments of FLAT use the same numbers for different opcodes.
        numbers = found.setdefault(f"{format_} {row.kind}" if format_ == "FLAT" else format_, {})
        other = numbers.setdefault(encoding.read(word, "op"), row.name)
        if other != row.name:
            raise ValueError(f"{row.name} and {other} have one number")
    parts = []
    for format_ in sorted(found):
        entries = " ".join(f"{number} {name}" for number, name in sorted(found[format_].items()))
        wrapped = "".join(f"        {line}\n" for line in textwrap.wrap(entries, 110))
        parts.append(f'    "{format_}": """\n{wrapped}    """,\n')
    return _HEADER + "".join(parts) + _FOOTER


if __name__ == "__main__":
    sys.stdout.write(generate())
