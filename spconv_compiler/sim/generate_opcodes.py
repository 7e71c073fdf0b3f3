"""Writes opcodes.py: the opcode number of every row, read from what the assembler makes of it.

`python -m spconv_compiler.sim.generate_opcodes > spconv_compiler/sim/opcodes.py`; a test compares the two.
"""

from __future__ import annotations

import random
import sys

from spconv_compiler.sim.assembler import assemble
from spconv_compiler.sim.encoding import find_format
from spconv_compiler.sim.isa import ROWS
from spconv_compiler.sim.sample import sample

_HEADER = '''"""Opcode numbers by format, then number. Generated: see generate_opcodes.py; do not edit."""

from __future__ import annotations

OPCODES: dict[str, dict[int, str]] = {
'''


def generate() -> str:
    """The text of opcodes.py."""
    wanted = [(row, format_) for row in ROWS.values() for format_ in row.formats]
    found: dict[str, dict[int, str]] = {}
    lines = [sample(row, format_, random.Random(0)) for row, format_ in wanted]
    for (row, format_), code in zip(wanted, assemble(lines), strict=True):
        word = int.from_bytes(code[:8], "little")
        encoding = find_format(word & 0xFFFFFFFF)
        if encoding is None or encoding.name != format_:
            raise ValueError(f"{row.name} is not encoded as {format_}: {code[:8].hex(' ')}")
        numbers = found.setdefault(format_, {})
        other = numbers.setdefault(encoding.read(word, "op"), row.name)
        if other != row.name:
            raise ValueError(f"{row.name} and {other} have one number")
    parts = []
    for format_ in sorted(found):
        entries = "".join(f'        {number}: "{name}",\n' for number, name in sorted(found[format_].items()))
        parts.append(f'    "{format_}": {{\n{entries}    }},\n')
    return _HEADER + "".join(parts) + "}\n"


if __name__ == "__main__":
    sys.stdout.write(generate())
