"""Builds the level-spconv module of one op, as the drivers compile it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from spconv_compiler.bindings import func, ir
from spconv_compiler.dialect.conv import subm_conv3d
from spconv_compiler.dialect.frame import place_coords
from spconv_compiler.dialect.levels import level_maps
from spconv_compiler.dialect.network import affine, concat, pointwise
from spconv_compiler.dialect.sparse import output_coords, sparse_conv3d, sparse_pool3d
from spconv_compiler.dialect.types import coords_type, element_named
from spconv_compiler.frame_options import FrameOptions
from spconv_compiler.level_options import AnyOptions, LevelOptions
from spconv_compiler.options import CompileOptions
from spconv_compiler.sparse_options import ON_ROWS, SparseOptions


def module_of(options: AnyOptions) -> ir.Module:
    """The module of level spconv that `options` describe; in the current context."""
    if isinstance(options, LevelOptions):
        return levels_module(options)
    if isinstance(options, FrameOptions):
        return frame_module(options)
    return conv_module(options) if isinstance(options, CompileOptions) else sparse_module(options)


def levels_module(options: LevelOptions) -> ir.Module:
    """@levels(coords, places), which makes buffers and returns nothing; in the current context."""
    words = ir.RankedTensorType.get([ir.ShapedType.get_dynamic_size()], ir.IntegerType.get_signless(32))

    def body(values: list[ir.Value]) -> None:
        coords, places = values
        level_maps(coords, places, options)

    with ir.Location.name(options.name):
        return _function("levels", {"coords": coords_type(32), "places": words}, None, body)


def frame_module(options: FrameOptions) -> ir.Module:
    """@frame(coords[, frame]), which makes buffers and returns nothing; in the current context."""
    arguments = {"coords": coords_type(32)}
    if options.by_words:
        dynamic = ir.ShapedType.get_dynamic_size()
        arguments["frame"] = ir.RankedTensorType.get([dynamic], ir.IntegerType.get_signless(32))
    with ir.Location.name(options.name):
        return _function("frame", arguments, None, lambda values: place_coords(*values))


def sparse_module(options: SparseOptions) -> ir.Module:
    """A module with one function, whose arguments have names, in the current context.

    "outputs": @outputs(coords) → coordinates. Convolutions and pools: @conv(coords, out_coords, features[, weight[,
    bias]]) → rows of out_coords.
    """
    dynamic, coords = ir.ShapedType.get_dynamic_size(), coords_type(options.key_width)
    with ir.Location.name(options.name):
        if options.operation == "outputs":
            return _function("outputs", {"coords": coords}, coords, lambda values: _outputs(options, values))
        element, out_element = element_named(options.dtype), element_named(options.out_dtype)
        features = ir.RankedTensorType.get([dynamic, options.c_in], element)
        arguments = {"coords": coords, "out_coords": coords, "features": features}
        if options.operation in ON_ROWS:
            return _rows_module(options, features)
        if options.operation != "conv":
            return _function("conv", arguments, features, lambda values: _pool(options, values))
        kernel = options.geometry.kernel_size
        arguments["weight"] = ir.RankedTensorType.get([options.c_out, *kernel, options.c_in], element)
        if options.bias:
            arguments["bias"] = ir.RankedTensorType.get([options.c_out], ir.F32Type.get())
        result = ir.RankedTensorType.get([dynamic, options.c_out], out_element)
        if options.residual:
            arguments["residual"] = result
        return _function("conv", arguments, result, lambda values: _convolution(options, values, result))


def _rows_module(options: SparseOptions, features: ir.Type) -> ir.Module:
    """@rows(features[, residual]), @rows(features, scale, shift) or @rows(features, second), without coordinates."""
    dynamic, element = ir.ShapedType.get_dynamic_size(), element_named(options.dtype)
    result = ir.RankedTensorType.get([dynamic, options.c_out], element_named(options.out_dtype))
    if options.operation == "concat":
        second = ir.RankedTensorType.get([dynamic, options.c_out - options.c_in], element)
        return _function("rows", {"features": features, "second": second}, result, lambda values: concat(*values))
    if options.operation == "affine":
        vector = ir.RankedTensorType.get([options.c_out], ir.F32Type.get())
        arguments = {"features": features, "scale": vector, "shift": vector}
        return _function("rows", arguments, result, lambda values: affine(*values))
    arguments = {"features": features} | ({"residual": result} if options.residual else {})

    def end(values: list[ir.Value]) -> ir.Value:
        value, *residual = values
        return pointwise(value, result, residual=residual[0] if residual else None, epilogue=options.epilogue)

    return _function("rows", arguments, result, end)


def _function(
    name: str,
    arguments: dict[str, ir.Type],
    result: ir.Type | None,
    body: Callable[[list[ir.Value]], ir.Value | None],
) -> ir.Module:
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        function = func.FuncOp(name, (list(arguments.values()), [] if result is None else [result]))
        names = [ir.DictAttr.get({"spconv.name": ir.StringAttr.get(argument)}) for argument in arguments]
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(names)
        block = function.add_entry_block()
    with ir.InsertionPoint(block):
        made = body(list(block.arguments))
        func.ReturnOp([] if made is None else [made])
    return module


def _outputs(options: SparseOptions, values: list[ir.Value]) -> ir.Value:
    geometry = options.geometry
    axes = (geometry.kernel_size, geometry.stride, geometry.padding, geometry.dilation)
    return output_coords(values[0], *axes, transposed=geometry.transposed)


def _pool(options: SparseOptions, values: list[ir.Value]) -> ir.Value:
    geometry = options.geometry
    return sparse_pool3d(
        *values,
        kernel_size=geometry.kernel_size,
        stride=geometry.stride,
        padding=geometry.padding,
        dilation=geometry.dilation,
        mode=options.operation.removesuffix("_pool"),
    )


def _convolution(options: SparseOptions, values: list[ir.Value], result: ir.Type) -> ir.Value:
    values, result, end, with_residual = _end(options, values, result)
    geometry, (coords, out_coords, features, weight, *bias) = options.geometry, values
    total = sparse_conv3d(
        coords,
        out_coords,
        features,
        weight,
        result,
        stride=geometry.stride,
        padding=geometry.padding,
        dilation=geometry.dilation,
        transposed=geometry.transposed,
        bias=bias[0] if bias else None,
        **end,
    )
    return with_residual(total)


def _end(
    options: CompileOptions | SparseOptions, values: list[ir.Value], result: ir.Type
) -> tuple[list[ir.Value], ir.Type, dict[str, Any], Callable[[ir.Value], ir.Value]]:
    """How a convolution ends: its operands, type and epilogue, and what has to follow it.

    A residual is the last of `values`; it is added to the f32 sum by an op of its own.
    """
    if not options.residual:
        return values, result, {"epilogue": options.epilogue}, lambda total: total
    *operands, residual = values
    exact = ir.RankedTensorType.get(ir.RankedTensorType(result).shape, ir.F32Type.get())
    add = functools.partial(pointwise, result_type=result, residual=residual, epilogue=options.epilogue)
    return operands, exact, {}, add


def conv_module(options: CompileOptions) -> ir.Module:
    """A module with one function, whose arguments have names, that convolves; in the current context.

    @conv(coords, features, weight[, bias][, residual]) → rows of coords.
    """
    dynamic = ir.ShapedType.get_dynamic_size()
    element, out_element = element_named(options.dtype), element_named(options.out_dtype)
    result = ir.RankedTensorType.get([dynamic, options.c_out], out_element)
    arguments = {
        "coords": coords_type(options.key_width),
        "features": ir.RankedTensorType.get([dynamic, options.c_in], element),
        "weight": ir.RankedTensorType.get([options.c_out, *options.kernel_size, options.c_in], element),
    }
    if options.bias:
        arguments["bias"] = ir.RankedTensorType.get([options.c_out], ir.F32Type.get())
    if options.residual:
        arguments["residual"] = result
    with ir.Location.name(options.name):
        return _function("conv", arguments, result, lambda values: _submanifold(options, values, result))


def _submanifold(options: CompileOptions, values: list[ir.Value], result: ir.Type) -> ir.Value:
    values, result, end, with_residual = _end(options, values, result)
    coords, features, weight, *bias = values
    total = subm_conv3d(
        coords, features, weight, result, bias=bias[0] if bias else None, dilation=options.dilation, **end
    )
    return with_residual(total)
