"""Vector arithmetic on 16-bit operands. gfx9 writes zeros above most results; "h16" ones keep what is there."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from spconv_compiler.sim import algebra as al
from spconv_compiler.sim import floats as fl
from spconv_compiler.sim.floats import I32, SINGLE, U32
from spconv_compiler.sim.rows import Row, row

_VOP2, _VOP1, _VOPC = "VOP2 VOP3", "VOP1 VOP3", "VOPC VOP3"
LOW = U32(0xFFFF)


def low16(a: al.Array) -> al.Array:
    """The low 16 bits, with zeros above."""
    return a & LOW


def signed16(a: al.Array) -> al.Array:
    """int32 from the low 16 bits."""
    return al.as_i32(a << U32(16)) >> I32(16)


def unsigned(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of uint32 as one of 16-bit numbers."""
    return lambda *sources: low16(function(*[low16(source) for source in sources]))


def signed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of int32 as one of 16-bit numbers."""
    return lambda *sources: low16(al.as_u32(function(*[signed16(source) for source in sources])))


def saturated_u16(a: al.Array) -> al.Array:
    """int32 to uint16."""
    return al.as_u32(fl.limited(a, 0, 0xFFFF))


def saturated_i16(a: al.Array) -> al.Array:
    """int32 to int16, its bits."""
    return low16(al.as_u32(fl.limited(a, -0x8000, 0x7FFF)))


def add_u16(a: al.Array, b: al.Array) -> al.Array:
    """Saturated sum."""
    return saturated_u16(al.as_i32(low16(a) + low16(b)))


def sub_u16(a: al.Array, b: al.Array) -> al.Array:
    """Saturated difference."""
    return saturated_u16(al.as_i32(low16(a) - low16(b)))


def add_i16(a: al.Array, b: al.Array) -> al.Array:
    """Saturated sum."""
    return saturated_i16(signed16(a) + signed16(b))


def sub_i16(a: al.Array, b: al.Array) -> al.Array:
    """Saturated difference."""
    return saturated_i16(signed16(a) - signed16(b))


def _fma(a: al.Array, b: al.Array, c: al.Array) -> al.Array:
    return fl.half_fma(a, b, c)


def _ldexp(a: al.Array, exponent: al.Array) -> al.Array:
    power = fl.power_of_two(fl.limited(signed16(exponent), -500, 500))
    return fl.f16_of_f64(al.to_f64(al.from_f16(a)) * power)


def _two_operands() -> list[Row]:
    floats: dict[str, Callable[..., Any]] = {
        "add": operator.add,
        "sub": operator.sub,
        "subrev": lambda a, b: b - a,
        "mul": operator.mul,
        "max": SINGLE.maximum,
        "min": SINGLE.minimum,
    }
    rows = [row(f"v_{name}_f16", "valu", _VOP2, "f16 <- f16 f16", fl.half(f)) for name, f in floats.items()]
    rows += [
        row("v_add_u16", "valu", _VOP2, "u16 <- u16 u16", unsigned(operator.add), saturated=add_u16),
        row("v_sub_u16", "valu", _VOP2, "u16 <- u16 u16", unsigned(operator.sub), saturated=sub_u16),
        row("v_subrev_u16", "valu", _VOP2, "u16 <- u16 u16", unsigned(lambda a, b: b - a)),
        row("v_mul_lo_u16", "valu", _VOP2, "u16 <- u16 u16", unsigned(operator.mul)),
        row("v_lshlrev_b16", "valu", _VOP2, "u16 <- u16 u16", unsigned(lambda a, b: b << (a & U32(15)))),
        row("v_lshrrev_b16", "valu", _VOP2, "u16 <- u16 u16", unsigned(lambda a, b: b >> (a & U32(15)))),
        row("v_ashrrev_i16", "valu", _VOP2, "i16 <- u16 i16", signed(lambda a, b: b >> (a & I32(15)))),
        row("v_max_u16", "valu", _VOP2, "u16 <- u16 u16", unsigned(al.maximum)),
        row("v_min_u16", "valu", _VOP2, "u16 <- u16 u16", unsigned(al.minimum)),
        row("v_max_i16", "valu", _VOP2, "i16 <- i16 i16", signed(al.maximum)),
        row("v_min_i16", "valu", _VOP2, "i16 <- i16 i16", signed(al.minimum)),
        row("v_ldexp_f16", "valu", _VOP2, "f16 <- f16 i16", _ldexp),
    ]
    return rows


def _one_operand() -> list[Row]:
    wide = {
        "rcp": fl.reciprocal, "sqrt": al.sqrt, "rsq": fl.inverse_root, "log": fl.log2, "exp": fl.exp2,
        "sin": fl.sine, "cos": fl.cosine,
    }  # fmt: skip
    whole: dict[str, Callable[..., Any]] = {
        "floor": al.floor,
        "ceil": lambda a: SINGLE.negative(al.floor(SINGLE.negative(a))),
        "trunc": al.truncate,
        "rndne": al.round_even,
        "frexp_mant": fl.mantissa_f32,
    }
    rows = [row(f"v_{name}_f16", "valu", _VOP1, "f16 <- f16", fl.narrow(f)) for name, f in wide.items()]
    rows += [row(f"v_{name}_f16", "valu", _VOP1, "f16 <- f16", fl.half(f)) for name, f in whole.items()]
    rows += [
        row("v_fract_f16", "valu", _VOP1, "f16 <- f16", _fraction),
        row(
            "v_frexp_exp_i16_f16",
            "valu",
            _VOP1,
            "i16 <- f16",
            lambda a: low16(al.as_u32(fl.exponent_f32(al.from_f16(a)))),
        ),
        row("v_cvt_f16_u16", "valu", _VOP1, "f16 <- u16", lambda a: al.f16_bits(al.to_f32(low16(a)))),
        row("v_cvt_f16_i16", "valu", _VOP1, "f16 <- i16", lambda a: al.f16_bits(al.to_f32(signed16(a)))),
        row("v_cvt_u16_f16", "valu", _VOP1, "u16 <- f16", lambda a: saturated_u16(al.to_i32(al.from_f16(a)))),
        row("v_cvt_i16_f16", "valu", _VOP1, "i16 <- f16", lambda a: saturated_i16(al.to_i32(al.from_f16(a)))),
    ]
    return rows


def _fraction(a: al.Array) -> al.Array:
    found = fl.half(lambda x: x - al.floor(x))(a)
    return al.select(found == U32(0x3C00), U32(0x3BFF), found)


def _pack(a: al.Array, b: al.Array) -> al.Array:
    return low16(a) | low16(b) << U32(16)


def _three_operands() -> list[Row]:
    more = {"op_sel": True}
    return [
        row("v_fma_f16", "valu", "VOP3", "f16 <- f16 f16 f16", _fma, **more),
        row("v_mad_u16", "valu", "VOP3", "u16 <- u16 u16 u16", unsigned(lambda a, b, c: a * b + c), **more),
        row("v_mad_i16", "valu", "VOP3", "i16 <- i16 i16 i16", signed(lambda a, b, c: a * b + c), **more),
        row("v_mad_u32_u16", "valu", "VOP3", "u32 <- u16 u16 u32", lambda a, b, c: low16(a) * low16(b) + c, **more),
        row(
            "v_mad_i32_i16", "valu", "VOP3", "i32 <- i16 i16 i32", lambda a, b, c: signed16(a) * signed16(b) + c, **more
        ),
        row("v_pack_b32_f16", "valu", "VOP3", "u32 <- f16 f16", _pack, **more),
        row("v_add_i16", "valu", "VOP3", "h16 <- i16 i16", signed(operator.add), saturated=add_i16, keeps=True, **more),
        row("v_sub_i16", "valu", "VOP3", "h16 <- i16 i16", signed(operator.sub), saturated=sub_i16, keeps=True, **more),
        row("v_min3_f16", "valu", "VOP3", "h16 <- f16 f16 f16", _three(SINGLE.minimum), keeps=True, **more),
        row("v_max3_f16", "valu", "VOP3", "h16 <- f16 f16 f16", _three(SINGLE.maximum), keeps=True, **more),
        row("v_med3_f16", "valu", "VOP3", "h16 <- f16 f16 f16", fl.half(SINGLE.median), keeps=True, **more),
        *_extrema("i16", signed, more),
        *_extrema("u16", unsigned, more),
    ]


def _three(function: Callable[..., Any]) -> Callable[..., Any]:
    return fl.half(lambda a, b, c: function(function(a, b), c))


def _extrema(kind: str, wrap: Callable[..., Any], more: dict[str, Any]) -> list[Row]:
    functions: dict[str, Callable[..., Any]] = {
        "min3": lambda a, b, c: al.minimum(al.minimum(a, b), c),
        "max3": lambda a, b, c: al.maximum(al.maximum(a, b), c),
        "med3": lambda a, b, c: al.maximum(al.minimum(a, b), al.minimum(al.maximum(a, b), c)),
    }
    signature = f"h16 <- {kind} {kind} {kind}"
    return [
        row(f"v_{name}_{kind}", "valu", "VOP3", signature, wrap(function), keeps=True, **more)
        for name, function in functions.items()
    ]


_RELATIONS: dict[str, Callable[..., Any]] = {
    "lt": operator.lt,
    "eq": operator.eq,
    "le": operator.le,
    "gt": operator.gt,
    "ne": operator.ne,
    "ge": operator.ge,
}


def _compares() -> list[Row]:
    rows = []
    for name, function in _RELATIONS.items():
        for kind, convert in (("i16", signed16), ("u16", low16)):
            meaning = lambda a, b, f=function, c=convert: f(c(a), c(b))  # noqa: E731
            rows.append(row(f"v_cmp_{name}_{kind}", "valu", _VOPC, f"mask <- {kind} {kind}", meaning))
    return rows


ROWS = [*_two_operands(), *_one_operand(), *_three_operands(), *_compares()]
