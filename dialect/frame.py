"""The op of levels `spconv` and `stages` that takes a frame's coordinates in: place_coords."""

from __future__ import annotations

from collections.abc import Iterable

from spconv_compiler.bindings import ir, register_operation
from spconv_compiler.dialect.fields import Operand, OptionalOperand
from spconv_compiler.dialect.op import SpconvDialect, SpconvOp


@register_operation(SpconvDialect)
class PlaceCoordsOp(SpconvOp):
    """Coordinates, checked against their box and copied to where there is room for more rows; of GPUs.

    Args:
        coords: `!spconv.coords<32>`, any order. Or, with `frame`, an address that coordinates are counted from.
        frame: optional, tensor<?xi32>: words that say where the coordinates begin, in words from `coords` on (two, the
            low one first), and how many rows they have.

    It has no result: where they go, their number and how many are out of range are buffers of the plan.
    """

    OPERATION_NAME = "spconv.place_coords"
    PURE = False

    coords = Operand(0)
    frame = OptionalOperand(1)

    def verify(self) -> Iterable[str]:
        return ()


def place_coords(coords: ir.Value, frame: ir.Value | None = None) -> None:
    """Builds a `spconv.place_coords`."""
    PlaceCoordsOp.create([], [coords] if frame is None else [coords, frame], {})
