"""Rules shared by the verifiers: features, outputs, weights, bias, schedules."""

from __future__ import annotations

from collections.abc import Iterable

from spconv_compiler.bindings import ir
from spconv_compiler.dialect.op import SpconvOp
from spconv_compiler.dialect.types import KEY_WIDTHS, epilogue_of, int_parameter
from spconv_compiler.epilogue import ACTIVATIONS
from spconv_compiler.errors import InputError

# Tiles, chunks and unroll factors beyond this are mistakes, and would be unrolled into endless code.
MAX_PARAMETER = 2**16
FEATURE_TYPES = ("bf16", "f16", "f32")
_ACTIVATIONS = ", ".join(
    f'{{activation = "{name}", negative_slope = 0.01 : f32}}' if name == "leaky_relu" else f'"{name}"'
    for name in ACTIVATIONS
)


def row_tensor_rules(what: str, value: ir.Value) -> Iterable[str]:
    """Features and outputs are tensor<?xCxT> with C ≥ 1 and a float T."""
    tensor = ir.RankedTensorType(value.type) if isinstance(value.type, ir.RankedTensorType) else None
    if tensor is None or tensor.rank != 2 or not tensor.is_dynamic_dim(0) or tensor.is_dynamic_dim(1):
        yield f"{what} is {value.type}; accepted: tensor<?xCxT>, rows dynamic and channels static"
    elif tensor.get_dim_size(1) < 1 or str(tensor.element_type) not in FEATURE_TYPES:
        yield f"{what} is {value.type}; accepted: at least one channel of {', '.join(FEATURE_TYPES)}"


def channels(value: ir.Value) -> int:
    """C of tensor<?xCxT>."""
    return int(ir.RankedTensorType(value.type).get_dim_size(1))


def element(value: ir.Value) -> ir.Type:
    """T of a tensor value."""
    return ir.RankedTensorType(value.type).element_type


def weight_rules(value: ir.Value, *, odd_kernel: bool) -> Iterable[str]:
    """Weights are tensor<C_out x kz x ky x kx x C_in x T>; a submanifold kernel is odd along every axis."""
    tensor = ir.RankedTensorType(value.type) if isinstance(value.type, ir.RankedTensorType) else None
    if tensor is None or tensor.rank != 5 or not tensor.has_static_shape:
        yield f"weight is {value.type}; accepted: tensor<C_out x kz x ky x kx x C_in x T>, all static"
    elif str(tensor.element_type) not in FEATURE_TYPES or min(tensor.shape) < 1:
        yield f"weight is {value.type}; accepted: no empty axis, elements of {', '.join(FEATURE_TYPES)}"
    elif odd_kernel and any(size % 2 == 0 for size in tensor.shape[1:4]):
        yield f"kernel is {list(tensor.shape[1:4])}; a submanifold kernel is odd along every axis"


def conv_rules(
    features: ir.Value, weight: ir.Value, bias: ir.Value | None, result: ir.Value, *, odd_kernel: bool
) -> Iterable[str]:
    """Features, weight, bias and result of a convolution fit together."""
    shapes = [
        *row_tensor_rules("features", features),
        *weight_rules(weight, odd_kernel=odd_kernel),
        *row_tensor_rules("result", result),
    ]
    yield from shapes
    if shapes:
        return
    c_out, *_, c_in = ir.RankedTensorType(weight.type).shape
    if channels(features) != c_in:
        yield f"features have {channels(features)} channels but the weight takes {c_in}"
    if channels(result) != c_out:
        yield f"the result has {channels(result)} channels but the weight gives {c_out}"
    if element(weight) != element(features):
        yield f"features are {element(features)} but the weight is {element(weight)}"
    if bias is not None:
        yield from bias_rules(bias, c_out)


def bias_rules(value: ir.Value, c_out: int) -> Iterable[str]:
    """A bias is tensor<C_out x f32>."""
    if str(value.type) != f"tensor<{c_out}xf32>":
        yield f"bias is {value.type}; accepted: tensor<{c_out}xf32>"


def coords_rules(value: ir.Value) -> Iterable[str]:
    """The key width of a coordinate set is 32 or 64."""
    if int_parameter(value.type) not in KEY_WIDTHS:
        yield f"coords have type {value.type}; accepted key widths: {KEY_WIDTHS}"


def epilogue_rules(op: SpconvOp) -> Iterable[str]:
    """The activation is one that the dialect knows, with the parameter that it takes."""
    try:
        epilogue_of(op.attribute("epilogue"))
    except InputError:
        yield f"epilogue is {op.attribute('epilogue')}; accepted activations: {_ACTIVATIONS}"


def residual_rules(residual: ir.Value | None, result: ir.Value) -> Iterable[str]:
    """A residual has the rows and channels of the result."""
    if residual is None:
        return
    shapes = list(row_tensor_rules("residual", residual))
    yield from shapes
    if not shapes and channels(residual) != channels(result):
        yield f"the residual is {residual.type} but the result is {result.type}"


def schedule_rules(op: SpconvOp) -> Iterable[str]:
    """`schedule`, where present, is a #spconv.schedule whose parameters are integers."""
    attribute = op.attribute("schedule")
    if attribute is None:
        return
    if not str(attribute).startswith("#spconv.schedule<"):
        yield f'schedule is {attribute}; accepted: #spconv.schedule<"name", {{parameter = n : i64}}>'
        return
    for item in ir.DictAttr(ir.DynamicAttr(attribute).params[1]):
        if not isinstance(item.attr, ir.IntegerAttr):
            yield f"schedule parameter {item.name} is {item.attr}; accepted: an integer"
        elif not 1 <= item.attr.value <= MAX_PARAMETER:
            yield f"schedule parameter {item.name} is {item.attr.value}; accepted: 1 to {MAX_PARAMETER}"
