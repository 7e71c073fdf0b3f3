"""Builds level-spconv modules for the runtime JIT."""

from __future__ import annotations

from collections.abc import Callable

from spconv_compiler.bindings import func, ir
from spconv_compiler.dialect.conv import subm_conv3d
from spconv_compiler.dialect.sparse import output_coords, sparse_conv3d, sparse_pool3d
from spconv_compiler.dialect.types import coords_type, element_named
from spconv_compiler.options import CompileOptions
from spconv_compiler.sparse_options import SparseOptions


def module_of(options: CompileOptions | SparseOptions) -> ir.Module:
    """The module of level spconv that `options` describe; in the current context."""
    return conv_module(options) if isinstance(options, CompileOptions) else sparse_module(options)


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
        if options.operation != "conv":
            return _function("conv", arguments, features, lambda values: _pool(options, values))
        kernel = options.geometry.kernel_size
        arguments["weight"] = ir.RankedTensorType.get([options.c_out, *kernel, options.c_in], element)
        if options.bias:
            arguments["bias"] = ir.RankedTensorType.get([options.c_out], ir.F32Type.get())
        result = ir.RankedTensorType.get([dynamic, options.c_out], out_element)
        return _function("conv", arguments, result, lambda values: _convolution(options, values, result))


def _function(
    name: str, arguments: dict[str, ir.Type], result: ir.Type, body: Callable[[list[ir.Value]], ir.Value]
) -> ir.Module:
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        function = func.FuncOp(name, (list(arguments.values()), [result]))
        names = [ir.DictAttr.get({"spconv.name": ir.StringAttr.get(argument)}) for argument in arguments]
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(names)
        block = function.add_entry_block()
    with ir.InsertionPoint(block):
        func.ReturnOp([body(list(block.arguments))])
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
    geometry, (coords, out_coords, features, weight, *bias) = options.geometry, values
    return sparse_conv3d(
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
        activation=options.activation,
    )


def conv_module(options: CompileOptions) -> ir.Module:
    """A module with one function @conv(coords, features, weight[, bias]) that convolves; in the current context."""
    dynamic = ir.ShapedType.get_dynamic_size()
    element, out_element = element_named(options.dtype), element_named(options.out_dtype)
    arguments = [
        coords_type(options.key_width),
        ir.RankedTensorType.get([dynamic, options.c_in], element),
        ir.RankedTensorType.get([options.c_out, *options.kernel_size, options.c_in], element),
    ]
    if options.bias:
        arguments.append(ir.RankedTensorType.get([options.c_out], ir.F32Type.get()))
    result = ir.RankedTensorType.get([dynamic, options.c_out], out_element)
    with ir.Location.name(options.name):
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("conv", (arguments, [result]))
            block = function.add_entry_block()
        with ir.InsertionPoint(block):
            coords, features, weight, *bias = block.arguments
            value = subm_conv3d(
                coords,
                features,
                weight,
                result,
                bias=bias[0] if bias else None,
                dilation=options.dilation,
                activation=options.activation,
            )
            func.ReturnOp([value])
    return module
