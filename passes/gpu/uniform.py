"""Which values are the same in all active lanes of a wave.

A small, conservative analysis of structured kernels: constants, kernel arguments, workgroup numbers, pure arithmetic
on uniform values, loop variables with uniform bounds, and what the caller adds (loads it knows to be uniform).
"""

from __future__ import annotations

from spconv_compiler.bindings import ir
from spconv_compiler.passes.base import defining_op

_ALWAYS = ("arith.constant", "gpu.block_id", "gpu.block_dim", "gpu.grid_dim")
_PURE = ("arith.", "math.")


class Uniform:
    """Answers `value in uniform`, remembering answers; `add` declares values uniform."""

    def __init__(self) -> None:
        self._known: dict[ir.Value, bool] = {}

    def add(self, value: ir.Value) -> None:
        self._known[value] = True

    def __contains__(self, value: ir.Value) -> bool:
        if value not in self._known:
            self._known[value] = self._of_argument(value) if isinstance(value.owner, ir.Block) else self._of_op(value)
        return self._known[value]

    def _of_argument(self, value: ir.Value) -> bool:
        parent = value.owner.owner
        if parent.operation.name == "gpu.func":
            return True
        if parent.operation.name == "scf.for" and ir.BlockArgument(value).arg_number == 0:
            return all(bound in self for bound in list(parent.operation.operands)[:3])
        return False

    def _of_op(self, value: ir.Value) -> bool:
        op = defining_op(value)
        assert op is not None
        name = op.operation.name
        return name in _ALWAYS or (name.startswith(_PURE) and all(operand in self for operand in op.operation.operands))
