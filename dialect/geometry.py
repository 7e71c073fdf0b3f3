"""What ops between two coordinate sets share: the geometry that relates a fine grid with a coarse one.

Through tap i, coarse voxel c meets fine voxel c·stride − padding + i·dilation, taps in (z, y, x) order. A
convolution reads fine voxels and writes coarse ones; transposed, it reads coarse ones and writes fine ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import rules
from spconv_compiler.dialect.op import SpconvOp, axis_rules
from spconv_compiler.dialect.stages import StageOp

AXES = ("kernel_size", "stride", "padding", "dilation")


# The base class of those ops of level stages too: the bindings allow an op class one base only.
class GeometryOp(StageOp):
    """An op with `stride`, `padding`, `dilation`, array<i64: z, y, x> each, and with or without `kernel_size`."""

    @property
    def kernel_size(self) -> list[int]:
        return self.int_array("kernel_size")

    @property
    def stride(self) -> list[int]:
        return self.int_array("stride")

    @property
    def padding(self) -> list[int]:
        return self.int_array("padding")

    @property
    def dilation(self) -> list[int]:
        return self.int_array("dilation")

    @property
    def transposed(self) -> bool:
        return bool(ir.BoolAttr(self.operation.attributes["transposed"]).value)

    def verify(self) -> Iterable[str]:
        yield from super().verify()
        if self.attribute("kernel_size") is not None:
            yield from axis_rules(self, "kernel_size", odd=False)
        yield from axis_rules(self, "stride", odd=False)
        yield from axis_rules(self, "padding", odd=False, least=0)
        yield from axis_rules(self, "dilation", odd=False)
        if self.attribute("transposed") is not None:
            yield from transposed_rules(self)


def geometry_attributes(
    stride: Iterable[int], padding: Iterable[int], dilation: Iterable[int], kernel_size: Iterable[int] | None = None
) -> dict[str, ir.Attribute]:
    """The attributes of a GeometryOp but `transposed`."""
    axes = {"stride": stride, "padding": padding, "dilation": dilation}
    if kernel_size is not None:
        axes["kernel_size"] = kernel_size
    return {name: ir.DenseI64ArrayAttr.get(list(values)) for name, values in axes.items()}


def transposed_rules(op: SpconvOp) -> Iterable[str]:
    """`transposed` is a truth value."""
    if not isinstance(op.attribute("transposed"), ir.BoolAttr):
        yield f"transposed is {op.attribute('transposed')}; accepted: true, false"


def sets_rules(first: ir.Value, second: ir.Value) -> Iterable[str]:
    """Two coordinate sets whose keys are compared have keys of one width."""
    bad_widths = [*rules.coords_rules(first)]
    if second.type != first.type:
        bad_widths += rules.coords_rules(second)
    yield from bad_widths
    if not bad_widths and first.type != second.type:
        yield f"the coordinate sets are {first.type} and {second.type}; accepted: keys of one width"


def taps_rules(op: GeometryOp, taps: int) -> Iterable[str]:
    """A kernel size has as many taps as the map."""
    if not list(axis_rules(op, "kernel_size", odd=False)) and math.prod(op.kernel_size) != taps:
        yield f"kernel {op.kernel_size} has {math.prod(op.kernel_size)} taps but the map has {taps}"
