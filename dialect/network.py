"""Ops of level `spconv` around convolutions: parameters, pointwise work on rows, and batch norm as numbers."""

from __future__ import annotations

from collections.abc import Iterable

from spconv_compiler.bindings import ir, register_operation
from spconv_compiler.dialect import rules
from spconv_compiler.dialect.fields import EpilogueField, Operand, OptionalOperand
from spconv_compiler.dialect.op import SpconvDialect, SpconvOp, single_result
from spconv_compiler.dialect.types import epilogue_attr
from spconv_compiler.epilogue import Epilogue


@register_operation(SpconvDialect)
class ParameterOp(SpconvOp):
    """A tensor of the network's state, such as a weight, by its name.

    Args:
        name: as in the state dict; what is there has as many elements as the result, in the same order.

    Return:
        a tensor of static shape, converted to the result's element type.
    """

    OPERATION_NAME = "spconv.parameter"

    @property
    def parameter(self) -> str:
        return str(ir.StringAttr(self.attribute("name")).value)

    def verify(self) -> Iterable[str]:
        result = ir.RankedTensorType(self.operation.results[0].type)
        if not result.has_static_shape or str(result.element_type) not in rules.FEATURE_TYPES:
            yield f"the result is {result}; accepted: a static shape of {', '.join(rules.FEATURE_TYPES)}"


def parameter(name: str, type_: ir.Type) -> ir.Value:
    """Builds a `spconv.parameter`."""
    return single_result(ParameterOp.create([type_], [], {"name": ir.StringAttr.get(name)}))


@register_operation(SpconvDialect)
class PointwiseOp(SpconvOp):
    """out = activation(input + residual), element by element.

    Behind a convolution whose result is f32 this is the convolution's own end: no rounding happens in between.

    Args:
        input: tensor<?xCxT>.
        residual: optional tensor<?xCxR>, of the same rows.
        epilogue: `#spconv.epilogue<activation>`.

    Return:
        tensor<?xCxT'>: computed in f32 and rounded once to T'.
    """

    OPERATION_NAME = "spconv.pointwise"

    input = Operand(0)
    residual = OptionalOperand(1)
    epilogue = EpilogueField()

    def verify(self) -> Iterable[str]:
        yield from rules.epilogue_rules(self)
        result = self.operation.results[0]
        yield from _same_channels("input", self.input, result)
        yield from rules.residual_rules(self.residual, result)


def pointwise(
    value: ir.Value, result_type: ir.Type, *, residual: ir.Value | None = None, epilogue: Epilogue | str = "none"
) -> ir.Value:
    """Builds a `spconv.pointwise`."""
    operands = [value] + ([] if residual is None else [residual])
    return single_result(PointwiseOp.create([result_type], operands, {"epilogue": epilogue_attr(epilogue)}))


@register_operation(SpconvDialect)
class ConcatOp(SpconvOp):
    """The channels of two tensors side by side.

    Args:
        first: tensor<?xCxT>, second: tensor<?xDxT>, of the same rows.

    Return:
        tensor<?x(C + D)xT>.
    """

    OPERATION_NAME = "spconv.concat"

    @property
    def parts(self) -> tuple[ir.Value, ir.Value]:
        return self.operation.operands[0], self.operation.operands[1]

    def verify(self) -> Iterable[str]:
        result, parts = self.operation.results[0], self.parts
        shapes = [
            *rules.row_tensor_rules("first", parts[0]),
            *rules.row_tensor_rules("second", parts[1]),
            *rules.row_tensor_rules("result", result),
        ]
        yield from shapes
        if shapes:
            return
        if rules.channels(result) != sum(map(rules.channels, parts)):
            yield f"the result is {result.type}; accepted: the channels of {parts[0].type} and {parts[1].type}"
        if {rules.element(part) for part in parts} != {rules.element(result)}:
            yield f"{parts[0].type} and {parts[1].type} become {result.type}; accepted: one element type"


def concat(first: ir.Value, second: ir.Value) -> ir.Value:
    """Builds a `spconv.concat`."""
    count = rules.channels(first) + rules.channels(second)
    result = ir.RankedTensorType.get([ir.ShapedType.get_dynamic_size(), count], rules.element(first))
    return single_result(ConcatOp.create([result], [first, second]))


@register_operation(SpconvDialect)
class AffineOp(SpconvOp):
    """out = input · scale + shift, channel by channel: a batch norm in evaluation.

    Args:
        input: tensor<?xCxT>.
        scale, shift: tensor<Cxf32>.

    Return:
        tensor<?xCxT'>: computed in f32 and rounded once to T'.
    """

    OPERATION_NAME = "spconv.affine"

    input = Operand(0)
    scale = Operand(1)
    shift = Operand(2)

    def verify(self) -> Iterable[str]:
        result = self.operation.results[0]
        shapes = list(_same_channels("input", self.input, result))
        yield from shapes
        if not shapes:
            for what, value in (("scale", self.scale), ("shift", self.shift)):
                yield from _vector_rules(what, value, rules.channels(result))


def affine(value: ir.Value, scale: ir.Value, shift: ir.Value) -> ir.Value:
    """Builds a `spconv.affine`."""
    return single_result(AffineOp.create([value.type], [value, scale, shift]))


class NumbersOp(SpconvOp):
    """An op on parameters alone: f32 vectors with an element per channel, all of one length."""

    def verify(self) -> Iterable[str]:
        result = ir.RankedTensorType(self.operation.results[0].type)
        length = result.get_dim_size(0) if result.rank else 0
        for number, value in enumerate([*self.operation.operands, self.operation.results[0]]):
            yield from _vector_rules(f"vector {number}", value, length)


@register_operation(SpconvDialect)
class NormScaleOp(NumbersOp):
    """What a batch norm multiplies with: gamma / sqrt(variance + epsilon).

    Args:
        variance: tensor<Cxf32>; gamma: optional tensor<Cxf32>, 1 if absent. epsilon: a float.

    Return:
        tensor<Cxf32>.
    """

    OPERATION_NAME = "spconv.norm_scale"

    @property
    def epsilon(self) -> float:
        return float(ir.FloatAttr(self.attribute("epsilon")).value)


@register_operation(SpconvDialect)
class NormShiftOp(NumbersOp):
    """What a batch norm adds: beta − mean · scale.

    Args:
        scale, mean: tensor<Cxf32>; beta: optional tensor<Cxf32>, 0 if absent.

    Return:
        tensor<Cxf32>.
    """

    OPERATION_NAME = "spconv.norm_shift"


@register_operation(SpconvDialect)
class ScaleBiasOp(NumbersOp):
    """The bias of a convolution that takes over the affine op behind it: bias · scale + shift.

    Args:
        scale, shift: tensor<Cxf32>; bias: optional tensor<Cxf32>, 0 if absent.

    Return:
        tensor<Cxf32>.
    """

    OPERATION_NAME = "spconv.scale_bias"


@register_operation(SpconvDialect)
class ScaleWeightOp(SpconvOp):
    """The weight of a convolution that takes over the affine op behind it.

    Args:
        weight: tensor<C_out x kz x ky x kx x C_in x T>; scale: tensor<C_outxf32>.

    Return:
        the weight's type: each output channel times its scale, in f32, rounded to T.
    """

    OPERATION_NAME = "spconv.scale_weight"

    def verify(self) -> Iterable[str]:
        weight, scale = self.operation.operands
        result = self.operation.results[0]
        bad = list(rules.weight_rules(weight, odd_kernel=False))
        yield from bad
        if bad:
            return
        if weight.type != result.type:
            yield f"the weight is {weight.type} but the result is {result.type}"
        yield from _vector_rules("scale", scale, ir.RankedTensorType(weight.type).get_dim_size(0))


def numbers(op_class: type[SpconvOp], operands: Iterable[ir.Value], **attributes: ir.Attribute) -> ir.Value:
    """Builds an op on parameters, whose result has the type of its first operand."""
    given = list(operands)
    return single_result(op_class.create([given[0].type], given, attributes))


def _same_channels(what: str, value: ir.Value, result: ir.Value) -> Iterable[str]:
    shapes = [*rules.row_tensor_rules(what, value), *rules.row_tensor_rules("result", result)]
    yield from shapes
    if not shapes and rules.channels(value) != rules.channels(result):
        yield f"{what} is {value.type} but the result is {result.type}"


def _vector_rules(what: str, value: ir.Value, length: int) -> Iterable[str]:
    if str(value.type) != f"tensor<{length}xf32>" or length < 1:
        yield f"{what} is {value.type}; accepted: tensor<{max(length, 1)}xf32>"
