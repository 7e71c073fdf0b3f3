"""The assembly of a kernel, line by line, as messages and reports show it."""

from __future__ import annotations

from collections.abc import Sequence

from spconv_compiler.sim.errors import Fault
from spconv_compiler.sim.instruction import Instruction

_AROUND = 3


def line_of(instructions: Sequence[Instruction], address: int) -> int | None:
    """The line, from 1, of the instruction at an address; None where there is none."""
    return next((number for number, item in enumerate(instructions, 1) if item.address == address), None)


def around(kernel: str, instructions: Sequence[Instruction], address: int) -> str:
    """The line of an instruction with the lines before and after it; "" where no instruction is at the address."""
    line = line_of(instructions, address)
    if line is None:
        return ""
    first, last = max(1, line - _AROUND), min(len(instructions), line + _AROUND)
    shown = [
        f"  {'>' if number == line else ' '}{number:6}  0x{item.address:x}  {item}"
        for number, item in enumerate(instructions[first - 1 : last], first)
    ]
    return "\n".join([f"  line {line} of kernel {kernel}: {instructions[line - 1]}", *shown])


def placed(fault: Fault, kernel: str, instructions: Sequence[Instruction], address: int) -> Fault:
    """The fault with the lines around the instruction at an address."""
    shown = around(kernel, instructions, address)
    return Fault(f"{fault}\n{shown}") if shown else fault
