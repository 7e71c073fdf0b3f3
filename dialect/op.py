"""The base of every op class: accessors by name, a verifier hook, and whether the op is pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from spconv_compiler.bindings import ir, register_dialect
from spconv_compiler.errors import VerifyError

# Coordinates are int32: a larger kernel or dilation reaches no neighbour.
MAX_STEP = 2**31 - 1


@register_dialect
class SpconvDialect(ir.Dialect):  # type: ignore[misc]
    """Sparse 3D convolution from whole ops to tiles."""

    DIALECT_NAMESPACE = "spconv"


class SpconvOp(ir.OpView):  # type: ignore[misc]
    """One op of the dialect. Subclasses set OPERATION_NAME and describe operands and results in their docstring.

    `verify` adds the rules that IRDL text cannot say: it yields messages, each saying what was found and what
    is accepted. `PURE` ops have no effect beyond their results, so upstream cse merges equal ones.
    """

    PURE: ClassVar[bool] = True
    _ODS_REGIONS = (0, True)

    @classmethod
    def create(
        cls, results: Iterable[ir.Type], operands: Iterable[ir.Value], attributes: dict[str, Any] | None = None
    ) -> ir.Operation:
        """Builds the op at the current insertion point and location."""
        return ir.Operation.create(
            cls.OPERATION_NAME,
            results=list(results),
            operands=[getattr(value, "value", value) for value in operands],
            attributes={name: value for name, value in (attributes or {}).items() if value is not None},
        )

    def verify(self) -> Iterable[str]:
        return ()

    def attribute(self, name: str) -> Any:
        """The attribute's value, or None."""
        return self.operation.attributes[name] if name in self.operation.attributes else None

    def int_array(self, name: str) -> list[int]:
        return list(ir.DenseI64ArrayAttr(self.operation.attributes[name]))


class SpconvVerifier(ir.DynamicOpTrait):  # type: ignore[misc]
    """Calls `verify` of the op's class and turns its messages into located diagnostics."""

    # MLIR checks region invariants last: by then IRDL has checked the operands, results and attributes that
    # `verify` takes for granted.
    @staticmethod
    def verify_region_invariants(op: ir.OpView) -> bool:
        messages = list(op.verify()) if isinstance(op, SpconvOp) else []
        for message in messages:
            op.location.emit_error(f"'{op.operation.name}' {message}")
        return not messages


class NoEffects(ir.MemoryEffectsOpInterface):  # type: ignore[misc]
    """Says that an op neither reads nor writes memory."""

    @staticmethod
    def get_effects(op: ir.OpView, effects: ir.MemoryEffectInstancesList) -> None:
        return None


def axis_rules(op: SpconvOp, name: str, *, odd: bool, least: int = 1) -> Iterable[str]:
    """Rules of a three-axis attribute: array<i64: z, y, x>, each ≥ `least` and, for submanifold kernels, odd."""
    attribute = op.attribute(name)
    if not isinstance(attribute, ir.DenseI64ArrayAttr) or len(attribute) != 3:
        yield f"{name} is {attribute}; accepted: array<i64: z, y, x>"
    elif min(attribute) < least:
        yield f"{name} is {list(attribute)}; accepted: three numbers of at least {least}"
    elif max(attribute) > MAX_STEP:
        yield f"{name} is {list(attribute)}; accepted: at most {MAX_STEP} along an axis"
    elif odd and any(size % 2 == 0 for size in attribute):
        yield f"{name} is {list(attribute)}; a submanifold kernel is odd along every axis"


def single_result(operation: ir.Operation) -> ir.Value:
    """The only result of an op."""
    if len(operation.results) != 1:
        raise VerifyError(f"{operation.name} has {len(operation.results)} results, not one")
    return operation.results[0]
