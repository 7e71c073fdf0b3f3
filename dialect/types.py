"""Python views of the dialect's types and attributes, whose shapes are in types.irdl.mlir."""

from __future__ import annotations

from typing import Any

from spconv_compiler.bindings import ir

ACTIVATIONS = ("none", "relu")
POOL_MODES = ("max", "avg")
KEY_WIDTHS = (32, 64)


def _i64(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def coords_type(key_width: int) -> ir.Type:
    """`!spconv.coords<key_width>`: int32 rows (batch, z, y, x) whose packed form has `key_width` bits."""
    return ir.DynamicType.get("spconv.coords", [_i64(key_width)])


def map_type(taps: int) -> ir.Type:
    """`!spconv.map<taps>`."""
    return ir.DynamicType.get("spconv.map", [_i64(taps)])


def cross_map_type(taps: int) -> ir.Type:
    """`!spconv.cross_map<taps>`."""
    return ir.DynamicType.get("spconv.cross_map", [_i64(taps)])


def pairs_type(taps: int) -> ir.Type:
    """`!spconv.pairs<taps>`."""
    return ir.DynamicType.get("spconv.pairs", [_i64(taps)])


def packed_type(element: ir.Type) -> ir.Type:
    """`!spconv.packed<element>`."""
    return ir.DynamicType.get("spconv.packed", [ir.TypeAttr.get(element)])


def buffer_type(element: ir.Type) -> ir.Type:
    """`!spconv.buffer<element>`."""
    return ir.DynamicType.get("spconv.buffer", [ir.TypeAttr.get(element)])


def type_name(type_: ir.Type) -> str:
    """The dialect type's name without parameters, such as `spconv.buffer`, or "" for other types."""
    text = str(type_)
    return text[1:].split("<")[0] if text.startswith("!spconv.") else ""


def is_buffer(type_: ir.Type) -> bool:
    return type_name(type_) == "spconv.buffer"


def int_parameter(type_: ir.Type) -> int:
    """The one integer parameter of coords (key width), map, cross_map or pairs (taps)."""
    return int(ir.IntegerAttr(ir.DynamicType(type_).params[0]).value)


def element_type(type_: ir.Type) -> ir.Type:
    """The element type of a buffer or of packed weights."""
    return ir.TypeAttr(ir.DynamicType(type_).params[0]).value


def schedule_attr(name: str, parameters: dict[str, int]) -> ir.Attribute:
    """`#spconv.schedule<name, {parameter = n : i64, …}>`."""
    values = ir.DictAttr.get({key: _i64(value) for key, value in parameters.items()})
    return ir.DynamicAttr.get("spconv.schedule", [ir.StringAttr.get(name), values])


def schedule_of(attribute: ir.Attribute) -> tuple[str, dict[str, int]]:
    """Name and parameters of a `#spconv.schedule`."""
    name, values = ir.DynamicAttr(attribute).params
    return ir.StringAttr(name).value, {
        item.name: int(ir.IntegerAttr(item.attr).value) for item in ir.DictAttr(values)
    }


def epilogue_attr(activation: str) -> ir.Attribute:
    """`#spconv.epilogue<activation>`."""
    return ir.DynamicAttr.get("spconv.epilogue", [ir.StringAttr.get(activation)])


def activation_of(attribute: ir.Attribute) -> str:
    """The activation of a `#spconv.epilogue`."""
    return str(ir.StringAttr(ir.DynamicAttr(attribute).params[0]).value)


def element_named(name: str) -> ir.Type:
    """The MLIR type of a dtype name: f32, bf16, f16, i32, i64."""
    makers: dict[str, Any] = {
        "f32": ir.F32Type.get,
        "bf16": ir.BF16Type.get,
        "f16": ir.F16Type.get,
        "i32": lambda: ir.IntegerType.get_signless(32),
        "i64": lambda: ir.IntegerType.get_signless(64),
    }
    return makers[name]()
