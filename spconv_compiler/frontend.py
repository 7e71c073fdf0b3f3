"""Builds level-spconv modules for the runtime JIT."""

from __future__ import annotations

from spconv_compiler.bindings import func, ir
from spconv_compiler.dialect.conv import subm_conv3d
from spconv_compiler.dialect.types import coords_type, element_named
from spconv_compiler.options import CompileOptions


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
