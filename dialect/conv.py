"""Ops of level `spconv`: convolutions on tensors, with coordinate sets as SSA values."""

from __future__ import annotations

from collections.abc import Iterable

from spconv_compiler.bindings import ir, register_operation
from spconv_compiler.dialect import rules
from spconv_compiler.dialect.fields import EpilogueField, Operand, OptionalOperand
from spconv_compiler.dialect.op import SpconvDialect, SpconvOp, axis_rules, single_result
from spconv_compiler.dialect.types import epilogue_attr
from spconv_compiler.epilogue import Epilogue


@register_operation(SpconvDialect)
class SubmConv3dOp(SpconvOp):
    """Submanifold convolution: out[i] = act(bias + Σ_tap W[tap]·in[j]), coord[j] = coord[i] + dilation·(tap − K//2).

    Args:
        coords: `!spconv.coords<key_width>`.
        features: tensor<?xC_inxT>, row r belongs to row r of coords.
        weight: tensor<C_out x kz x ky x kx x C_in x T>, kz, ky, kx odd.
        bias: optional tensor<C_outxf32>.
        dilation: array<i64: z, y, x>.
        epilogue: `#spconv.epilogue<activation>`; a residual is added by a spconv.pointwise behind an f32 result.

    Return:
        tensor<?xC_outxT'>; the sum is taken in f32 and rounded once to T'.
    """

    OPERATION_NAME = "spconv.subm_conv3d"

    coords = Operand(0)
    features = Operand(1)
    weight = Operand(2)
    bias = OptionalOperand(3)

    @property
    def kernel_size(self) -> list[int]:
        """(kz, ky, kx)."""
        return list(ir.RankedTensorType(self.weight.type).shape[1:4])

    @property
    def dilation(self) -> list[int]:
        return self.int_array("dilation")

    epilogue = EpilogueField()

    def verify(self) -> Iterable[str]:
        yield from rules.coords_rules(self.coords)
        yield from axis_rules(self, "dilation", odd=False)
        yield from rules.epilogue_rules(self)
        yield from rules.conv_rules(self.features, self.weight, self.bias, self.operation.results[0], odd_kernel=True)


def subm_conv3d(
    coords: ir.Value,
    features: ir.Value,
    weight: ir.Value,
    result_type: ir.Type,
    *,
    bias: ir.Value | None = None,
    dilation: tuple[int, int, int] = (1, 1, 1),
    epilogue: Epilogue | str = "none",
) -> ir.Value:
    """Builds a `spconv.subm_conv3d`."""
    operands = [coords, features, weight] + ([] if bias is None else [bias])
    attributes = {"dilation": ir.DenseI64ArrayAttr.get(list(dilation)), "epilogue": epilogue_attr(epilogue)}
    return single_result(SubmConv3dOp.create([result_type], operands, attributes))
