"""One builder per op of an exported graph: (importer, node) → the value at level spconv.

To add an op, add a function under its torch name. Ops on rows come first, then those with coordinates.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import NormScaleOp, NormShiftOp
from spconv_compiler.dialect.conv import subm_conv3d
from spconv_compiler.dialect.network import affine, concat, numbers, pointwise
from spconv_compiler.dialect.sparse import output_coords, sparse_conv3d, sparse_pool3d, union_coords
from spconv_compiler.epilogue import Epilogue, epilogue_of
from spconv_compiler.network.lines import refuse
from spconv_compiler.pytorch import ops

if TYPE_CHECKING:
    from spconv_compiler.network.importer import Importer

Builder = Callable[["Importer", Any], ir.Value]
_aten: Any = torch.ops.aten

POINTWISE: dict[Any, Builder] = {}
"""Ops whose result has the rows of their tensor arguments."""
SPARSE: dict[Any, Builder] = {}
"""Ops that take coordinates."""
MAKE_COORDS = (ops.output_coords, ops.union_coords)
"""Those whose results are coordinates."""


class Left(Exception):
    """What a builder raises, before it has built anything, for an op that is left to torch; says why."""


def _register(table: dict[Any, Builder], *targets: Any) -> Callable[[Builder], Builder]:
    def add(builder: Builder) -> Builder:
        table.update(dict.fromkeys(targets, builder))
        return builder

    return add


def arguments(node: Any) -> dict[str, Any]:
    """The arguments of a call by name, with the schema's defaults."""
    schema = node.target._schema.arguments
    given = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    given |= {argument.name: value for argument, value in zip(schema, node.args, strict=False)}
    return given | dict(node.kwargs)


def _activated(importer: Importer, node: Any, epilogue: Epilogue) -> ir.Value:
    return pointwise(importer.rows(node, arguments(node)["self"]), importer.row_type(node), epilogue=epilogue)


@_register(POINTWISE, _aten.relu.default, _aten.relu_.default)
def _relu(importer: Importer, node: Any) -> ir.Value:
    return _activated(importer, node, Epilogue("relu"))


@_register(POINTWISE, _aten.leaky_relu.default, _aten.leaky_relu_.default)
def _leaky_relu(importer: Importer, node: Any) -> ir.Value:
    return _activated(importer, node, epilogue_of("leaky_relu", arguments(node)["negative_slope"]))


@_register(POINTWISE, _aten.gelu.default)
def _gelu(importer: Importer, node: Any) -> ir.Value:
    if arguments(node)["approximate"] != "none":
        raise refuse(node, f"approximate is {arguments(node)['approximate']!r}", "'none', the exact GELU")
    return _activated(importer, node, Epilogue("gelu"))


@_register(POINTWISE, _aten.silu.default, _aten.silu_.default)
def _silu(importer: Importer, node: Any) -> ir.Value:
    return _activated(importer, node, Epilogue("silu"))


@_register(POINTWISE, _aten.dropout.default, _aten.feature_dropout.default)
def _dropout(importer: Importer, node: Any) -> ir.Value:
    if arguments(node)["train"]:
        raise refuse(node, "dropout in training", "model.eval()")
    return importer.rows(node, arguments(node)["input"])


@_register(POINTWISE, _aten.contiguous.default, _aten.clone.default, _aten.detach.default, _aten.alias.default)
def _same(importer: Importer, node: Any) -> ir.Value:
    return importer.rows(node, arguments(node)["self"])


@_register(POINTWISE, _aten.to.dtype, _aten._to_copy.default)
def _convert(importer: Importer, node: Any) -> ir.Value:
    return pointwise(importer.rows(node, arguments(node)["self"]), importer.row_type(node))


def _scaled(importer: Importer, node: Any, rows: Any, scale: Any = 1, shift: Any = 0, *, factor: float = 1) -> ir.Value:
    """rows · scale + factor · shift, by channel; what is known and is no rows is a number, or a vector [C]."""
    result = importer.row_type(node)
    vectors = importer.per_channel(node, "scale", scale), importer.per_channel(node, "shift", shift, factor)
    value = importer.rows(node, rows)
    return affine(value if value.type == result else pointwise(value, result), *vectors)


def _total(importer: Importer, node: Any, first: Any, second: Any, factor: float) -> ir.Value:
    """first + factor · second, either of which may be known."""
    if importer.is_known(second):
        return _scaled(importer, node, first, shift=second, factor=factor)
    if importer.is_known(first):
        return _scaled(importer, node, second, scale=factor, shift=first)
    values = [importer.rows(node, value) for value in (first, second)]
    result = importer.row_type(node)
    for value in values:
        if ir.RankedTensorType(value.type).shape != ir.RankedTensorType(result).shape:
            raise refuse(node, f"{value.type} is broadcast to {result}", "operands of equal shape, or a bias [C]")
    if factor == 1:
        return pointwise(values[0], result, residual=values[1])
    if values[1].type != result:
        values[1] = pointwise(values[1], result)
    vectors = importer.per_channel(node, "scale", factor), importer.per_channel(node, "shift", 0)
    return pointwise(values[0], result, residual=affine(values[1], *vectors))


@_register(POINTWISE, _aten.add.Tensor, _aten.add_.Tensor, _aten.add.Scalar)
def _add(importer: Importer, node: Any) -> ir.Value:
    given = arguments(node)
    return _total(importer, node, given["self"], given["other"], given["alpha"])


@_register(POINTWISE, _aten.sub.Tensor, _aten.sub_.Tensor, _aten.sub.Scalar)
def _sub(importer: Importer, node: Any) -> ir.Value:
    given = arguments(node)
    return _total(importer, node, given["self"], given["other"], -given["alpha"])


@_register(POINTWISE, _aten.rsub.Scalar)
def _rsub(importer: Importer, node: Any) -> ir.Value:
    given = arguments(node)
    return _scaled(importer, node, given["self"], scale=-given["alpha"], shift=given["other"])


@_register(POINTWISE, _aten.mul.Tensor, _aten.mul_.Tensor, _aten.mul.Scalar)
def _mul(importer: Importer, node: Any) -> ir.Value:
    rows, scale = arguments(node)["self"], arguments(node)["other"]
    if importer.is_known(rows):
        rows, scale = scale, rows
    return _scaled(importer, node, rows, scale)


@_register(POINTWISE, _aten.div.Tensor, _aten.div_.Tensor, _aten.div.Scalar)
def _div(importer: Importer, node: Any) -> ir.Value:
    given = arguments(node)
    if not importer.is_known(given["other"]):
        raise Left(f"{given['other']} is computed when the model runs")
    divisor = given["other"]
    known = importer.constant(node, divisor) if isinstance(divisor, torch.fx.Node) else torch.tensor(float(divisor))
    return _scaled(importer, node, given["self"], scale=1 / known.double())


@_register(POINTWISE, _aten.neg.default)
def _neg(importer: Importer, node: Any) -> ir.Value:
    return _scaled(importer, node, arguments(node)["self"], scale=-1)


@_register(POINTWISE, _aten.cat.default)
def _cat(importer: Importer, node: Any) -> ir.Value:
    given = arguments(node)
    if given["dim"] not in (1, -1):
        raise refuse(node, f"dim is {given['dim']}", "1, the channels")
    total, *others = (importer.rows(node, value) for value in given["tensors"])
    for value in others:
        total = concat(total, value)
    return total


@_register(POINTWISE, _aten.batch_norm.default, _aten._native_batch_norm_legit_no_training.default)
def _batch_norm(importer: Importer, node: Any) -> ir.Value:
    given = arguments(node)
    mean, variance = given["running_mean"], given["running_var"]
    if given.get("training", False) or mean is None or variance is None:
        raise refuse(node, "batch norm over the statistics of the batch", "model.eval(), with running statistics")
    centre, spread = (importer.channel_vector(node, value) for value in (mean, variance))
    gamma, beta = (
        [] if given[name] is None else [importer.channel_vector(node, given[name])] for name in ("weight", "bias")
    )
    epsilon = ir.FloatAttr.get(ir.F64Type.get(), float(given["eps"]))
    scale = numbers(NormScaleOp, [spread, *gamma], epsilon=epsilon)
    return affine(importer.rows(node, given["input"]), scale, numbers(NormShiftOp, [scale, centre, *beta]))


@_register(POINTWISE, operator.getitem)
def _getitem(importer: Importer, node: Any) -> ir.Value:
    if node.args[1] != 0:
        raise refuse(node, f"result {node.args[1]} is used", "result 0")
    return importer.rows(node, node.args[0])


def _product(importer: Importer, node: Any, rows: Any, matrix: Any, bias: Any) -> ir.Value:
    """rows · matrix + bias, matrix [C_in, C_out]: a submanifold convolution of one tap."""
    weight = importer.constant(node, matrix).t()[:, None, None, None, :]
    return subm_conv3d(
        importer.coords_of(node),
        importer.rows(node, rows),
        importer.derived(f"{node.name}.weight", weight),
        importer.row_type(node),
        bias=None if bias is None else importer.channel_vector(node, bias),
    )


@_register(POINTWISE, _aten.linear.default)
def _linear(importer: Importer, node: Any) -> ir.Value:
    given = arguments(node)
    weight = importer.constant(node, given["weight"]).t()
    return _product(importer, node, given["input"], weight, given["bias"])


@_register(POINTWISE, _aten.mm.default, _aten.matmul.default)
def _mm(importer: Importer, node: Any) -> ir.Value:
    rows, matrix = node.args
    return _product(importer, node, rows, matrix, None)


@_register(POINTWISE, _aten.addmm.default)
def _addmm(importer: Importer, node: Any) -> ir.Value:
    given = arguments(node)
    if given["alpha"] != 1 or given["beta"] != 1:
        raise refuse(node, f"alpha is {given['alpha']}, beta {given['beta']}", "1 each")
    return _product(importer, node, given["mat1"], given["mat2"], given["self"])


@_register(SPARSE, ops.subm_conv3d)
def _subm_conv3d(importer: Importer, node: Any) -> ir.Value:
    given = arguments(node)
    importer.limit(node, given["coords"], given["spatial_shape"], given["batch_size"])
    bias = given["bias"]
    return subm_conv3d(
        importer.coords(node, given["coords"]),
        importer.rows(node, given["features"]),
        importer.parameter(node, given["weight"]),
        importer.row_type(node),
        bias=None if bias is None else importer.channel_vector(node, bias),
        dilation=importer.numbers(node, given["dilation"]),
        epilogue=given["activation"],
    )


@_register(SPARSE, ops.output_coords)
def _output_coords(importer: Importer, node: Any) -> ir.Value:
    given = arguments(node)
    importer.limit(node, given["coords"], given["spatial_shape"], given["batch_size"])
    axes = [importer.numbers(node, given[name]) for name in ("kernel_size", "stride", "padding", "dilation")]
    made = output_coords(importer.coords(node, given["coords"]), *axes, transposed=bool(given["transposed"]))
    return importer.with_limits(node, made, given["coords"], importer.numbers(node, given["output_padding"]))


@_register(SPARSE, ops.union_coords)
def _union_coords(importer: Importer, node: Any) -> ir.Value:
    given = arguments(node)
    limits = given["spatial_shape"], given["batch_size"]
    for name in ("first", "second"):
        importer.limit(node, given[name], *limits)
    made = union_coords(*(importer.coords(node, given[name]) for name in ("first", "second")))
    return importer.with_limits(node, made, given["first"])


@_register(SPARSE, ops.sparse_conv3d)
def _sparse_conv3d(importer: Importer, node: Any) -> ir.Value:
    given = arguments(node)
    bias = given["bias"]
    return sparse_conv3d(
        importer.coords(node, given["coords"]),
        importer.coords(node, given["out_coords"]),
        importer.rows(node, given["features"]),
        importer.parameter(node, given["weight"]),
        importer.row_type(node),
        stride=importer.numbers(node, given["stride"]),
        padding=importer.numbers(node, given["padding"]),
        dilation=importer.numbers(node, given["dilation"]),
        transposed=bool(given["transposed"]),
        bias=None if bias is None else importer.channel_vector(node, bias),
        epilogue=given["activation"],
    )


@_register(SPARSE, ops.sparse_pool3d)
def _sparse_pool3d(importer: Importer, node: Any) -> ir.Value:
    given = arguments(node)
    pooled = sparse_pool3d(
        importer.coords(node, given["coords"]),
        importer.coords(node, given["out_coords"]),
        importer.rows(node, given["features"]),
        kernel_size=importer.numbers(node, given["kernel_size"]),
        stride=importer.numbers(node, given["stride"]),
        padding=importer.numbers(node, given["padding"]),
        dilation=importer.numbers(node, given["dilation"]),
        mode="avg" if given["mode"] == "avg" else "max",
    )
    return pointwise(pooled, pooled.type, epilogue="relu") if given["mode"] == "max_or_zero" else pooled


def supported() -> str:
    """The names of all ops, for messages."""
    names = {str(getattr(target, "_schema", target)).split("(")[0].split("::")[-1] for target in (*POINTWISE, *SPARSE)}
    # Of an op and its variants, in place or with other arguments, one is enough.
    plain = {name.split(".")[0].removesuffix("_").removeprefix("_") for name in names if "built-in" not in name}
    return ", ".join(sorted(plain - {"native_batch_norm_legit_no_training", "to_copy"}))
