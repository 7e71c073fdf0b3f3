"""Operands and attributes of an op as fields of its class: `features = Operand(1)` reads operand number 1."""

from __future__ import annotations

from spconv_compiler.bindings import ir
from spconv_compiler.dialect.types import epilogue_of
from spconv_compiler.epilogue import Epilogue


class Operand:
    """An operand that every op of the class has, by its number."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __get__(self, op: ir.OpView, owner: type | None = None) -> ir.Value:
        return op.operation.operands[self.index]


class OptionalOperand:
    """The last operand of an op, by its number; None where the op ends before it."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __get__(self, op: ir.OpView, owner: type | None = None) -> ir.Value | None:
        operands = op.operation.operands
        return operands[self.index] if len(operands) == self.index + 1 else None


class EpilogueField:
    """The attribute `epilogue` of an op: `#spconv.epilogue<activation>`."""

    def __get__(self, op: ir.OpView, owner: type | None = None) -> Epilogue:
        return epilogue_of(op.operation.attributes["epilogue"])
