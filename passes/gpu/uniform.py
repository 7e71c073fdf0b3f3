"""Which values are the same in all active lanes of a wave.

A small, conservative analysis of structured kernels: constants, kernel arguments, workgroup numbers, pure arithmetic
on uniform values, loop variables with uniform bounds, values that a loop carries where the first one and the next one
are uniform, and what the caller knows of (loads).
"""

from __future__ import annotations

from collections.abc import Callable

from spconv_compiler.bindings import ir
from spconv_compiler.passes.base import defining_op

_ALWAYS = ("arith.constant", "gpu.block_id", "gpu.block_dim", "gpu.grid_dim", "gpu.subgroup_broadcast")
_PURE = ("arith.", "math.")


class Uniform:
    """Answers `value in uniform`, remembering answers; `add` declares values uniform.

    loads: whether an op is a read that gives all lanes the same where its index is the same.
    """

    def __init__(self, loads: Callable[[ir.OpView], bool] = lambda op: False) -> None:
        self._known: dict[ir.Value, bool] = {}
        self._loads = loads

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
        bounds = list(parent.operation.operands)[:3]
        if parent.operation.name != "scf.for" or not all(bound in self for bound in bounds):
            return False
        number = ir.BlockArgument(value).arg_number
        return number == 0 or self._is_carried(value, number)

    def _is_carried(self, value: ir.Value, number: int) -> bool:
        """Of a value that a loop carries: uniform at first, and uniform in every turn if it was in the one before."""
        loop = value.owner.owner.operation
        following = list(value.owner.operations)[-1].operation.operands[number - 1]
        before = dict(self._known)
        self._known[value] = True
        if loop.operands[2 + number] in self and following in self:
            return True
        # What was concluded from the assumption does not hold.
        self._known = before
        return False

    def _of_op(self, value: ir.Value) -> bool:
        op = defining_op(value)
        assert op is not None
        name = op.operation.name
        if name in _ALWAYS:
            return True
        known = name.startswith(_PURE) or self._loads(op)
        return known and all(operand in self for operand in op.operation.operands)
