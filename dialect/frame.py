"""The op of levels `spconv` and `stages` that takes a frame's coordinates in: place_coords."""

from __future__ import annotations

from collections.abc import Iterable

from spconv_compiler.bindings import ir, register_operation
from spconv_compiler.dialect.fields import Operand
from spconv_compiler.dialect.op import SpconvDialect, SpconvOp


@register_operation(SpconvDialect)
class PlaceCoordsOp(SpconvOp):
    """Coordinates, checked against their box and copied to where there is room for more rows; of GPUs.

    Args:
        coords: `!spconv.coords<32>`, any order.

    It has no result: where they go, their number and how many are out of range are buffers of the plan.
    """

    OPERATION_NAME = "spconv.place_coords"
    PURE = False

    coords = Operand(0)

    def verify(self) -> Iterable[str]:
        return ()


def place_coords(coords: ir.Value) -> None:
    """Builds a `spconv.place_coords`."""
    PlaceCoordsOp.create([], [coords], {})
