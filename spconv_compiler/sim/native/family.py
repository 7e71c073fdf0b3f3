"""How the handlers of one kind of row are made and how an instruction is put into a record.

Each module of handlers (scalar, vector, accessors, local, matrix) has a tuple `FAMILIES`. A shape is a short text
that, with the opcode, decides the code of a handler: which operands are scalar, which address form is used. What
differs from instruction to instruction without a change of code (register numbers, offsets) goes into the fields of
the record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

from spconv_compiler.sim.instruction import Instruction, Operand
from spconv_compiler.sim.native.emit import Module
from spconv_compiler.sim.rows import Row


class Places(Protocol):
    """Where the operands of a kernel lie in the context of a wave; program.py implements it."""

    def vector(self, operand: Operand) -> int:
        """Offset of the first register of a "v" or "a" operand; LaunchFault when it is not allocated."""

    def scalar(self, operand: Operand, type_: str) -> int:
        """Offset of a scalar register, or of a constant as the type reads it: two words for types of 64 bits."""

    def constant(self, value: int, dwords: int = 1) -> int:
        """Offset of a constant: one word, or two, the low one first."""

    def distance(self, instruction: Instruction, address: int) -> int:
        """Bytes from the record of an instruction to the record of the one at a code address."""

    def source(self, operand: Operand, type_: str) -> int:
        """Offset of either kind: vector for "v" and "a", else scalar."""


@dataclasses.dataclass(frozen=True)
class Family:
    """Handlers of some kinds of rows.

    Attributes:
        kinds: of Row.kind.
        shapes: all shapes of a row that are built in advance.
        shape: the shape of an instruction. It need not be among `shapes(row)`: then it is built when first met.
        fields: numbers for the record's fields 0, 1, … (int32, at most 11).
        emit: writes the handler of a row and a shape under a name into a module.
    """

    kinds: tuple[str, ...]
    shapes: Callable[[Row], Sequence[str]]
    shape: Callable[[Instruction], str]
    fields: Callable[[Instruction, Places], Sequence[int]]
    emit: Callable[[Module, Row, str, str], None]


def handler_name(row: Row, shape: str) -> str:
    """Name of the function: the opcode, its shape, and the modifiers that its meaning contains."""
    return f"{row.name}__{shape}" + (f"__{row.variant}" if row.variant else "")


def side(operand: Operand) -> str:
    """ "V" for vector and accumulation registers, "S" for scalar registers and constants."""
    return "V" if operand.kind in "va" else "S"
