"""Ops of level `stages` between two coordinate sets: cross_map, cross_compact, pool."""

from __future__ import annotations

import math
from collections.abc import Iterable

from spconv_compiler.bindings import ir, register_operation
from spconv_compiler.dialect.fields import Operand
from spconv_compiler.dialect.geometry import (
    GeometryOp,
    geometry_attributes,
    sets_rules,
    taps_rules,
    transposed_rules,
)
from spconv_compiler.dialect.op import SpconvDialect, single_result
from spconv_compiler.dialect.sparse import pool_rules
from spconv_compiler.dialect.stages import StageOp
from spconv_compiler.dialect.types import cross_map_type, int_parameter, pairs_type


@register_operation(SpconvDialect)
class CrossMapOp(GeometryOp):
    """Which fine voxel every coarse one meets through each tap (geometry.py).

    Args:
        fine, coarse: `!spconv.coords<key_width>`, any two sets.
        kernel_size, stride, padding, dilation: array<i64: z, y, x>.

    Return:
        `!spconv.cross_map<kz·ky·kx>`: one map for both directions. Equal maps are merged by cse.
    """

    OPERATION_NAME = "spconv.cross_map"

    fine = Operand(0)
    coarse = Operand(1)

    @property
    def key_width(self) -> int:
        return int_parameter(self.fine.type)

    @property
    def taps(self) -> int:
        return int_parameter(self.operation.results[0].type)

    def verify(self) -> Iterable[str]:
        yield from super().verify()
        yield from sets_rules(self.fine, self.coarse)
        yield from taps_rules(self, self.taps)


def cross_map(
    fine: ir.Value,
    coarse: ir.Value,
    kernel_size: list[int],
    stride: Iterable[int],
    padding: Iterable[int],
    dilation: Iterable[int],
) -> ir.Value:
    """Builds a `spconv.cross_map`."""
    attributes = geometry_attributes(stride, padding, dilation, kernel_size)
    return single_result(CrossMapOp.create([cross_map_type(math.prod(kernel_size))], [fine, coarse], attributes))


@register_operation(SpconvDialect)
class CrossCompactOp(StageOp):
    """The present pairs of a cross map, in the order and padding that its schedule says.

    Args:
        map: `!spconv.cross_map<taps>`.
        transposed: false: inputs are fine and outputs coarse; true: the other way round.

    Return:
        `!spconv.pairs<taps>`.
    """

    OPERATION_NAME = "spconv.cross_compact"

    map = Operand(0)

    @property
    def transposed(self) -> bool:
        return bool(ir.BoolAttr(self.operation.attributes["transposed"]).value)

    @property
    def taps(self) -> int:
        return int_parameter(self.map.type)

    def verify(self) -> Iterable[str]:
        yield from super().verify()
        yield from transposed_rules(self)
        if int_parameter(self.operation.results[0].type) != self.taps:
            yield f"the map is {self.map.type} but the pairs are {self.operation.results[0].type}"


def cross_compact(map_: ir.Value, *, transposed: bool) -> ir.Value:
    """Builds a `spconv.cross_compact`."""
    attributes = {"transposed": ir.BoolAttr.get(transposed)}
    return single_result(CrossCompactOp.create([pairs_type(int_parameter(map_.type))], [map_], attributes))


@register_operation(SpconvDialect)
class PoolOp(StageOp):
    """For every output row the greatest, or the mean, of the input rows that its pairs name.

    Args:
        pairs: `!spconv.pairs<taps>`.
        features: tensor<?xCxT>.
        mode: "max" or "avg".

    Return:
        tensor<?xCxT>; a row without pairs is zero.
    """

    OPERATION_NAME = "spconv.pool"

    pairs = Operand(0)
    features = Operand(1)

    @property
    def taps(self) -> int:
        return int_parameter(self.pairs.type)

    @property
    def mode(self) -> str:
        return str(ir.StringAttr(self.attribute("mode")).value)

    def verify(self) -> Iterable[str]:
        yield from super().verify()
        yield from pool_rules(self.mode, self.features, self.operation.results[0])


def pool(pairs: ir.Value, features: ir.Value, mode: str) -> ir.Value:
    """Builds a `spconv.pool`."""
    return single_result(PoolOp.create([features.type], [pairs, features], {"mode": ir.StringAttr.get(mode)}))
