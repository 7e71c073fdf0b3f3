"""Splits an element index into what a buffer instruction adds by itself: a lane's part, a wave's part, a constant."""

from __future__ import annotations

import dataclasses

from spconv_compiler.bindings import ir
from spconv_compiler.passes.base import defining_op
from spconv_compiler.passes.gpu.lanes import plus, times
from spconv_compiler.passes.gpu.uniform import Uniform
from spconv_compiler.passes.kernel_builder import V, const, i32

# An instruction holds 12 bits of offset.
_IMMEDIATE = 4096


@dataclasses.dataclass
class Split:
    """index = Σ lanes + Σ waves + number. Only sums that are promised not to wrap (nuw) are taken apart."""

    lanes: list[V]
    waves: list[V]
    number: int

    @staticmethod
    def of(index: ir.Value, uniform: Uniform) -> Split:
        split = Split([], [], 0)
        split._take(index, uniform)
        return split

    def _take(self, value: ir.Value, uniform: Uniform) -> None:
        op = defining_op(value)
        if op is not None and _is_exact_sum(op):
            for operand in op.operation.operands:
                self._take(operand, uniform)
        elif op is not None and op.operation.name == "arith.constant" and _number(op) >= 0:
            self.number += _number(op)
        elif value in uniform:
            self.waves.append(V(value))
        else:
            self.lanes.append(V(value))

    def offsets(self, size: int) -> tuple[V, V]:
        """(vector offset, scalar offset) in bytes for elements of `size` bytes.

        Constants beyond an instruction's own 12 bits go to the scalar side, where they cost no vector operation.
        """
        number = self.number * size
        near = number % _IMMEDIATE
        vector, scalar = _sum(self.lanes, size), _sum(self.waves, size)
        return plus(vector, near), plus(scalar, number - near)


def _is_exact_sum(op: ir.OpView) -> bool:
    name, attributes = op.operation.name, op.operation.attributes
    return name == "arith.addi" and "nuw" in str(attributes["overflowFlags"])


def _number(op: ir.OpView) -> int:
    return int(ir.IntegerAttr(op.operation.attributes["value"]).value)


def _sum(terms: list[V], size: int) -> V:
    if not terms:
        return const(0, i32())
    return times(plus(terms[0], *terms[1:]), size)
