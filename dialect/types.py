"""Python views of the dialect's types and attributes, whose shapes are in types.irdl.mlir."""

from __future__ import annotations

from typing import Any

from spconv_compiler.bindings import ir
from spconv_compiler.epilogue import Epilogue
from spconv_compiler.errors import InputError

POOL_MODES = ("max", "avg")
KEY_WIDTHS = (32, 64)
# The one activation with a parameter.
_WITH_SLOPE = "leaky_relu"


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


def epilogue_attr(epilogue: Epilogue | str) -> ir.Attribute:
    """`#spconv.epilogue<…>` of an epilogue, or of an activation without a parameter."""
    given = Epilogue(epilogue) if isinstance(epilogue, str) else epilogue
    name = ir.StringAttr.get(given.activation)
    if given.activation != _WITH_SLOPE:
        return ir.DynamicAttr.get("spconv.epilogue", [name])
    slope = ir.FloatAttr.get(ir.F32Type.get(), given.negative_slope)
    return ir.DynamicAttr.get("spconv.epilogue", [ir.DictAttr.get({"activation": name, "negative_slope": slope})])


def epilogue_of(attribute: ir.Attribute) -> Epilogue:
    """What a `#spconv.epilogue` says.

    Raises:
        InputError: it says nothing that is known.
    """
    parameter = ir.DynamicAttr(attribute).params[0].maybe_downcast()
    if isinstance(parameter, ir.StringAttr):
        name = str(parameter.value)
        if name != _WITH_SLOPE:
            return Epilogue(name)
        raise InputError(f"{name} has no negative_slope")
    values = {item.name: item.attr for item in ir.DictAttr(parameter)}
    kinds = {name: type(value) for name, value in values.items()}
    if kinds != {"activation": ir.StringAttr, "negative_slope": ir.FloatAttr}:
        raise InputError("these are not an activation and its negative_slope")
    if values["activation"].value != _WITH_SLOPE or str(values["negative_slope"].type) != "f32":
        raise InputError(f"a negative_slope is an f32 of {_WITH_SLOPE}")
    return Epilogue(_WITH_SLOPE, float(values["negative_slope"].value))


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
