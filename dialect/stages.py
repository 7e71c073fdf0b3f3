"""Ops of level `stages`: map, compact, pack_weight, fill, gemm, apply_epilogue."""

from __future__ import annotations

import math
from collections.abc import Iterable

from spconv_compiler.bindings import ir, register_operation
from spconv_compiler.dialect import rules
from spconv_compiler.dialect.fields import EpilogueField, Operand, OptionalOperand
from spconv_compiler.dialect.op import SpconvDialect, SpconvOp, axis_rules, single_result
from spconv_compiler.dialect.types import (
    element_type,
    int_parameter,
    map_type,
    packed_type,
    pairs_type,
    schedule_of,
)


class StageOp(SpconvOp):
    """An op that a schedule belongs to."""

    @property
    def schedule(self) -> tuple[str, dict[str, int]] | None:
        """(name, parameters), or None before choose-schedule."""
        attribute = self.attribute("schedule")
        return None if attribute is None else schedule_of(attribute)

    def verify(self) -> Iterable[str]:
        yield from rules.schedule_rules(self)


@register_operation(SpconvDialect)
class MapOp(StageOp):
    """The kernel map of a submanifold convolution.

    Args:
        coords: `!spconv.coords<key_width>`.
        kernel_size, dilation: array<i64: z, y, x>.

    Return:
        `!spconv.map<kz·ky·kx>`. Equal maps are merged by cse.
    """

    OPERATION_NAME = "spconv.map"

    coords = Operand(0)

    @property
    def key_width(self) -> int:
        return int_parameter(self.coords.type)

    @property
    def kernel_size(self) -> list[int]:
        return self.int_array("kernel_size")

    @property
    def dilation(self) -> list[int]:
        return self.int_array("dilation")

    @property
    def taps(self) -> int:
        return int_parameter(self.operation.results[0].type)

    def verify(self) -> Iterable[str]:
        yield from super().verify()
        yield from rules.coords_rules(self.coords)
        yield from axis_rules(self, "dilation", odd=False)
        bad_kernel = list(axis_rules(self, "kernel_size", odd=True))
        yield from bad_kernel
        if not bad_kernel and math.prod(self.kernel_size) != self.taps:
            yield f"kernel {self.kernel_size} has {math.prod(self.kernel_size)} taps but the map has {self.taps}"


def build_map(coords: ir.Value, kernel_size: list[int], dilation: list[int]) -> ir.Value:
    """Builds a `spconv.map`."""
    attributes = {
        "kernel_size": ir.DenseI64ArrayAttr.get(kernel_size),
        "dilation": ir.DenseI64ArrayAttr.get(dilation),
    }
    return single_result(MapOp.create([map_type(math.prod(kernel_size))], [coords], attributes))


@register_operation(SpconvDialect)
class CompactOp(StageOp):
    """The present pairs of a map, in the order and padding that its schedule says.

    Args:
        map: `!spconv.map<taps>`.

    Return:
        `!spconv.pairs<taps>`.
    """

    OPERATION_NAME = "spconv.compact"

    map = Operand(0)

    @property
    def taps(self) -> int:
        return int_parameter(self.map.type)

    def verify(self) -> Iterable[str]:
        yield from super().verify()
        if int_parameter(self.operation.results[0].type) != self.taps:
            yield f"the map is {self.map.type} but the pairs are {self.operation.results[0].type}"


def compact(map_: ir.Value) -> ir.Value:
    """Builds a `spconv.compact`."""
    return single_result(CompactOp.create([pairs_type(int_parameter(map_.type))], [map_]))


@register_operation(SpconvDialect)
class PackWeightOp(StageOp):
    """Weights laid out as a gemm schedule reads them, padding filled with zeros.

    Args:
        weight: tensor<C_out x kz x ky x kx x C_in x T>.

    Return:
        `!spconv.packed<T>`.
    """

    OPERATION_NAME = "spconv.pack_weight"

    weight = Operand(0)

    @property
    def c_out(self) -> int:
        return int(ir.RankedTensorType(self.weight.type).shape[0])

    @property
    def c_in(self) -> int:
        return int(ir.RankedTensorType(self.weight.type).shape[4])

    @property
    def taps(self) -> int:
        return math.prod(ir.RankedTensorType(self.weight.type).shape[1:4])

    def verify(self) -> Iterable[str]:
        yield from super().verify()
        bad_weight = list(rules.weight_rules(self.weight, odd_kernel=False))
        yield from bad_weight
        packed = element_type(self.operation.results[0].type)
        if not bad_weight and packed != rules.element(self.weight):
            yield f"the weight is {rules.element(self.weight)} but is packed as {packed}"


def pack_weight(weight: ir.Value) -> ir.Value:
    """Builds a `spconv.pack_weight`."""
    return single_result(PackWeightOp.create([packed_type(rules.element(weight))], [weight]))


@register_operation(SpconvDialect)
class FillOp(StageOp):
    """One row per voxel, every row the bias, or zeros without one.

    Args:
        coords: `!spconv.coords<key_width>`; gives the number of rows.
        bias: optional tensor<C_outxf32>.

    Return:
        tensor<?xC_outxf32>.
    """

    OPERATION_NAME = "spconv.fill"

    coords = Operand(0)
    bias = OptionalOperand(1)

    @property
    def c_out(self) -> int:
        return rules.channels(self.operation.results[0])

    def verify(self) -> Iterable[str]:
        yield from super().verify()
        yield from rules.coords_rules(self.coords)
        bad_rows = list(rules.row_tensor_rules("result", self.operation.results[0]))
        yield from bad_rows
        if bad_rows:
            return
        if str(rules.element(self.operation.results[0])) != "f32":
            yield f"the result is {self.operation.results[0].type}; accepted: f32, the type of every sum"
        if self.bias is not None:
            yield from rules.bias_rules(self.bias, self.c_out)


def fill(coords: ir.Value, c_out: int, bias: ir.Value | None = None) -> ir.Value:
    """Builds a `spconv.fill`."""
    result = ir.RankedTensorType.get([ir.ShapedType.get_dynamic_size(), c_out], ir.F32Type.get())
    return single_result(FillOp.create([result], [coords] + ([] if bias is None else [bias])))


@register_operation(SpconvDialect)
class GemmOp(StageOp):
    """For every pair (tap, j, i): row i of the result gains features[j] · W[tap], summed in f32 on top of init.

    Args:
        pairs: `!spconv.pairs<taps>`.
        features: tensor<?xC_inxT>.
        weight: `!spconv.packed<T>`.
        init: tensor<?xC_outxf32>, the value every row starts from.
        residual: optional tensor<?xC_outxR>, added in f32 to the complete row, before the activation.
        epilogue: `#spconv.epilogue<activation>`, applied once the row is complete; only a schedule that owns
            its output rows can apply one other than "none", or add a residual (fuse-epilogue).

    Return:
        tensor<?xC_outxT'>; T' is f32 unless an epilogue was fused.
    """

    OPERATION_NAME = "spconv.gemm"

    pairs = Operand(0)
    features = Operand(1)
    weight = Operand(2)
    init = Operand(3)
    residual = OptionalOperand(4)

    @property
    def taps(self) -> int:
        return int_parameter(self.pairs.type)

    @property
    def c_in(self) -> int:
        return rules.channels(self.features)

    @property
    def c_out(self) -> int:
        return rules.channels(self.init)

    epilogue = EpilogueField()

    @property
    def activation(self) -> str:
        return self.epilogue.activation

    def verify(self) -> Iterable[str]:
        yield from super().verify()
        yield from rules.epilogue_rules(self)
        result = self.operation.results[0]
        shapes = [
            *rules.row_tensor_rules("features", self.features),
            *rules.row_tensor_rules("init", self.init),
            *rules.row_tensor_rules("result", result),
        ]
        yield from shapes
        if shapes:
            return
        if str(rules.element(self.init)) != "f32":
            yield f"init is {self.init.type}; accepted: f32, the type of every sum"
        if rules.channels(result) != self.c_out:
            yield f"init is {self.init.type} but the result is {result.type}"
        if element_type(self.weight.type) != rules.element(self.features):
            yield f"features are {rules.element(self.features)} but the weight is {self.weight.type}"
        yield from rules.residual_rules(self.residual, result)


@register_operation(SpconvDialect)
class ApplyEpilogueOp(StageOp):
    """The epilogue as a step of its own, where the gemm's schedule does not own its output rows.

    Args:
        input: tensor<?xC_outxT>, as a rule the f32 sum of a gemm.
        residual: optional tensor<?xC_outxR>.
        epilogue: `#spconv.epilogue<activation>`.

    Return:
        tensor<?xC_outxT'>: residual added and activation applied in f32, then rounded once to T'.
    """

    OPERATION_NAME = "spconv.apply_epilogue"

    input = Operand(0)
    residual = OptionalOperand(1)
    epilogue = EpilogueField()

    def verify(self) -> Iterable[str]:
        yield from super().verify()
        yield from rules.epilogue_rules(self)
        result = self.operation.results[0]
        shapes = [*rules.row_tensor_rules("input", self.input), *rules.row_tensor_rules("result", result)]
        yield from shapes
        if shapes:
            return
        if rules.channels(self.input) != rules.channels(result):
            yield f"input is {self.input.type} but the result is {result.type}"
        yield from rules.residual_rules(self.residual, result)
