"""Ops of level `spconv` between two coordinate sets: convolutions, pools, the set of their outputs, and the union."""

from __future__ import annotations

from collections.abc import Iterable

from spconv_compiler.bindings import ir, register_operation
from spconv_compiler.dialect import rules
from spconv_compiler.dialect.fields import EpilogueField, Operand, OptionalOperand
from spconv_compiler.dialect.geometry import GeometryOp, geometry_attributes, sets_rules
from spconv_compiler.dialect.op import SpconvDialect, SpconvOp, single_result
from spconv_compiler.dialect.types import POOL_MODES, epilogue_attr, int_parameter
from spconv_compiler.epilogue import Epilogue


@register_operation(SpconvDialect)
class OutputCoordsOp(GeometryOp):
    """Every voxel that a convolution of `coords` reaches, in ascending (batch, z, y, x); of levels spconv and stages.

    Args:
        coords: `!spconv.coords<key_width>`.
        kernel_size, stride, padding, dilation: array<i64: z, y, x>.
        transposed: false: coords are fine, the result is coarse; true: the other way round.

    Return:
        `!spconv.coords<key_width>`: what lies in the box of outputs that the run gives; outside of it there is
        nothing, as beyond the edge of a dense volume.
    """

    OPERATION_NAME = "spconv.output_coords"

    coords = Operand(0)

    @property
    def key_width(self) -> int:
        return int_parameter(self.coords.type)

    def verify(self) -> Iterable[str]:
        yield from super().verify()
        yield from sets_rules(self.coords, self.operation.results[0])


def output_coords(
    coords: ir.Value,
    kernel_size: Iterable[int],
    stride: Iterable[int],
    padding: Iterable[int],
    dilation: Iterable[int],
    *,
    transposed: bool,
) -> ir.Value:
    """Builds a `spconv.output_coords`."""
    attributes = geometry_attributes(stride, padding, dilation, kernel_size)
    attributes["transposed"] = ir.BoolAttr.get(transposed)
    return single_result(OutputCoordsOp.create([coords.type], [coords], attributes))


@register_operation(SpconvDialect)
class UnionCoordsOp(SpconvOp):
    """Every voxel that either of two coordinate sets has, in ascending (batch, z, y, x).

    Args:
        first, second: `!spconv.coords<key_width>`.

    Return:
        `!spconv.coords<key_width>`.
    """

    OPERATION_NAME = "spconv.union_coords"

    @property
    def parts(self) -> tuple[ir.Value, ir.Value]:
        return self.operation.operands[0], self.operation.operands[1]

    def verify(self) -> Iterable[str]:
        for value in (self.parts[1], self.operation.results[0]):
            yield from sets_rules(self.parts[0], value)


def union_coords(first: ir.Value, second: ir.Value) -> ir.Value:
    """Builds a `spconv.union_coords`."""
    return single_result(UnionCoordsOp.create([first.type], [first, second]))


@register_operation(SpconvDialect)
class SparseConv3dOp(GeometryOp):
    """Convolution from one coordinate set to another: out[o] = act(bias + Σ_tap W[tap]·in[x]), x meets o through tap.

    Args:
        coords: `!spconv.coords<key_width>` of features; out_coords: of the result. Any two sets: the result of
            `spconv.output_coords`, given coordinates, or those of an earlier op (inverse convolution).
        features: tensor<?xC_inxT>, row r belongs to row r of coords.
        weight: tensor<C_out x kz x ky x kx x C_in x T>.
        bias: optional tensor<C_outxf32>.
        stride, padding, dilation: array<i64: z, y, x>; which voxels meet is said in geometry.py.
        transposed: false: coords are fine, out_coords coarse; true: the other way round. Taps are not flipped.
        epilogue: `#spconv.epilogue<activation>`.

    Return:
        tensor<?xC_outxT'>, row r belongs to row r of out_coords; the sum is taken in f32 and rounded once to T'.
    """

    OPERATION_NAME = "spconv.sparse_conv3d"

    coords = Operand(0)
    out_coords = Operand(1)
    features = Operand(2)
    weight = Operand(3)
    bias = OptionalOperand(4)

    @property
    def kernel_size(self) -> list[int]:
        """(kz, ky, kx)."""
        return list(ir.RankedTensorType(self.weight.type).shape[1:4])

    epilogue = EpilogueField()

    def verify(self) -> Iterable[str]:
        yield from super().verify()
        yield from sets_rules(self.coords, self.out_coords)
        yield from rules.epilogue_rules(self)
        yield from rules.conv_rules(
            self.features, self.weight, self.bias, self.operation.results[0], odd_kernel=False
        )


def sparse_conv3d(
    coords: ir.Value,
    out_coords: ir.Value,
    features: ir.Value,
    weight: ir.Value,
    result_type: ir.Type,
    *,
    stride: Iterable[int],
    padding: Iterable[int],
    dilation: Iterable[int],
    transposed: bool,
    bias: ir.Value | None = None,
    epilogue: Epilogue | str = "none",
) -> ir.Value:
    """Builds a `spconv.sparse_conv3d`."""
    operands = [coords, out_coords, features, weight] + ([] if bias is None else [bias])
    attributes = geometry_attributes(stride, padding, dilation)
    attributes |= {"transposed": ir.BoolAttr.get(transposed), "epilogue": epilogue_attr(epilogue)}
    return single_result(SparseConv3dOp.create([result_type], operands, attributes))


@register_operation(SpconvDialect)
class SparsePool3dOp(GeometryOp):
    """Pooling from a fine coordinate set to a coarse one, over the voxels that are there.

    Args:
        coords: `!spconv.coords<key_width>` of features; out_coords: of the result.
        features: tensor<?xCxT>.
        kernel_size, stride, padding, dilation: array<i64: z, y, x>.
        mode: "max", or "avg": the sum divided by the number of voxels that meet the output.

    Return:
        tensor<?xCxT>; a row that no voxel meets is zero.
    """

    OPERATION_NAME = "spconv.sparse_pool3d"

    coords = Operand(0)
    out_coords = Operand(1)
    features = Operand(2)

    @property
    def mode(self) -> str:
        return str(ir.StringAttr(self.attribute("mode")).value)

    def verify(self) -> Iterable[str]:
        yield from super().verify()
        yield from sets_rules(self.coords, self.out_coords)
        yield from pool_rules(self.mode, self.features, self.operation.results[0])


def pool_rules(mode: str, features: ir.Value, result: ir.Value) -> Iterable[str]:
    """Rules of pools at every level: a mode that the dialect knows, and a result that is like the features."""
    if mode not in POOL_MODES:
        yield f"mode is {mode!r}; accepted: {POOL_MODES}"
    yield from rules.row_tensor_rules("features", features)
    if features.type != result.type:
        yield f"features are {features.type} but the result is {result.type}; a pool keeps channels and type"


def sparse_pool3d(
    coords: ir.Value,
    out_coords: ir.Value,
    features: ir.Value,
    *,
    kernel_size: Iterable[int],
    stride: Iterable[int],
    padding: Iterable[int],
    dilation: Iterable[int],
    mode: str,
) -> ir.Value:
    """Builds a `spconv.sparse_pool3d`."""
    attributes = geometry_attributes(stride, padding, dilation, kernel_size)
    attributes["mode"] = ir.StringAttr.get(mode)
    return single_result(SparsePool3dOp.create([features.type], [coords, out_coords, features], attributes))
