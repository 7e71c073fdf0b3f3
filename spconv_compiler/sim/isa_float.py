"""Vector arithmetic on float32 and float64. Meanings from the CDNA3 and CDNA4 ISA documents, VOP chapters."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from spconv_compiler.sim import algebra as al
from spconv_compiler.sim import floats as fl
from spconv_compiler.sim.floats import DOUBLE, F32, I32, SINGLE, U32, Kind
from spconv_compiler.sim.rows import Row, row

_VOP2, _VOP1, _VOPC = "VOP2 VOP3", "VOP1 VOP3", "VOPC VOP3"


def _mul_legacy(a: al.Array, b: al.Array) -> al.Array:
    """A product in which 0 times anything is 0."""
    return al.select((a == F32(0)) | (b == F32(0)), F32(0), a * b)


def _nested(outer: Callable[..., Any], inner: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b, c: outer(inner(a, b), c)


def _two_operands() -> list[Row]:
    return [
        row("v_add_f32", "valu", _VOP2, "f32 <- f32 f32", operator.add),
        row("v_sub_f32", "valu", _VOP2, "f32 <- f32 f32", operator.sub),
        row("v_subrev_f32", "valu", _VOP2, "f32 <- f32 f32", lambda a, b: b - a),
        row("v_mul_f32", "valu", _VOP2, "f32 <- f32 f32", operator.mul),
        row("v_mul_legacy_f32", "valu", "VOP3", "f32 <- f32 f32", _mul_legacy),
        row("v_min_f32", "valu", _VOP2, "f32 <- f32 f32", SINGLE.minimum),
        row("v_max_f32", "valu", _VOP2, "f32 <- f32 f32", SINGLE.maximum),
        row("v_fmac_f32", "valu", _VOP2, "f32 <- f32 f32 f32", lambda old, a, b: al.fma(a, b, old), tied=True),
        row("v_fmac_f64", "valu", _VOP2, "f64 <- f64 f64 f64", lambda old, a, b: al.fma(a, b, old), tied=True),
        row("v_fmamk_f32", "valu", "VOP2", "f32 <- f32 imm32 f32", lambda a, k, b: al.fma(a, al.as_f32(k), b)),
        row("v_fmaak_f32", "valu", "VOP2", "f32 <- f32 f32 imm32", lambda a, b, k: al.fma(a, b, al.as_f32(k))),
    ]


def _one_operand() -> list[Row]:
    single = {
        "v_exp_f32": fl.exp2,
        "v_log_f32": fl.log2,
        "v_rcp_f32": fl.reciprocal,
        "v_rcp_iflag_f32": fl.reciprocal,
        "v_rsq_f32": fl.inverse_root,
        "v_sqrt_f32": al.sqrt,
        "v_sin_f32": fl.sine,
        "v_cos_f32": fl.cosine,
    }
    rows = [row(name, "valu", _VOP1, "f32 <- f32", fl.single(function)) for name, function in single.items()]
    rows += [
        row("v_rcp_f64", "valu", _VOP1, "f64 <- f64", fl.reciprocal),
        row("v_rsq_f64", "valu", _VOP1, "f64 <- f64", fl.inverse_root),
        row("v_sqrt_f64", "valu", _VOP1, "f64 <- f64", al.sqrt),
    ]
    for kind, text in ((SINGLE, "f32"), (DOUBLE, "f64")):
        whole: dict[str, Callable[..., Any]] = {
            "trunc": al.truncate,
            "ceil": lambda a, kind=kind: kind.negative(al.floor(kind.negative(a))),
            "rndne": al.round_even,
            "floor": al.floor,
        }
        for name, function in whole.items():
            meaning = lambda a, kind=kind, function=function: kind.quieted(function(a))  # noqa: E731
            rows.append(row(f"v_{name}_{text}", "valu", _VOP1, f"{text} <- {text}", meaning))
        rows.append(row(f"v_fract_{text}", "valu", _VOP1, f"{text} <- {text}", kind.fraction))
        mantissa, exponent = (
            (fl.mantissa_f32, fl.exponent_f32) if kind is SINGLE else (fl.mantissa_f64, fl.exponent_f64)
        )
        rows.append(row(f"v_frexp_mant_{text}", "valu", _VOP1, f"{text} <- {text}", mantissa))
        rows.append(row(f"v_frexp_exp_i32_{text}", "valu", _VOP1, f"i32 <- {text}", exponent))
    return rows


def _three_operands() -> list[Row]:
    rows = [
        row("v_fma_f32", "valu", "VOP3", "f32 <- f32 f32 f32", al.fma),
        row("v_fma_f64", "valu", "VOP3", "f64 <- f64 f64 f64", al.fma),
        row("v_add_f64", "valu", "VOP3", "f64 <- f64 f64", operator.add),
        row("v_mul_f64", "valu", "VOP3", "f64 <- f64 f64", operator.mul),
        row("v_min_f64", "valu", "VOP3", "f64 <- f64 f64", DOUBLE.minimum),
        row("v_max_f64", "valu", "VOP3", "f64 <- f64 f64", DOUBLE.maximum),
        row("v_ldexp_f32", "valu", "VOP3", "f32 <- f32 i32", fl.scale_f32),
        row("v_ldexp_f64", "valu", "VOP3", "f64 <- f64 i32", fl.scale_f64),
        row("v_min3_f32", "valu", "VOP3", "f32 <- f32 f32 f32", _nested(SINGLE.minimum, SINGLE.minimum)),
        row("v_max3_f32", "valu", "VOP3", "f32 <- f32 f32 f32", _nested(SINGLE.maximum, SINGLE.maximum)),
        row("v_med3_f32", "valu", "VOP3", "f32 <- f32 f32 f32", SINGLE.median),
        row("v_minimum3_f32", "valu", "VOP3", "f32 <- f32 f32 f32", _nested(_minimum, _minimum)),
        row("v_maximum3_f32", "valu", "VOP3", "f32 <- f32 f32 f32", _nested(_maximum, _maximum)),
    ]
    for kind, text in ((SINGLE, "f32"), (DOUBLE, "f64")):
        three = f"{text} {text} {text}"
        rows += [
            row(f"v_div_scale_{text}", "valu", "VOP3", f"{text} mask <- {three}", _div_scale(kind)),
            row(f"v_div_fmas_{text}", "valu", "VOP3", f"{text} <- {three} mask", _div_fmas(kind)),
            row(f"v_div_fixup_{text}", "valu", "VOP3", f"{text} <- {three}", _div_fixup(kind)),
        ]
    return rows


def _minimum(a: al.Array, b: al.Array) -> al.Array:
    """IEEE 754-2019 minimum: a NaN wins."""
    return al.select(al.is_nan(a), SINGLE.quieted(a), al.select(al.is_nan(b), SINGLE.quieted(b), SINGLE.minimum(a, b)))


def _maximum(a: al.Array, b: al.Array) -> al.Array:
    return al.select(al.is_nan(a), SINGLE.quieted(a), al.select(al.is_nan(b), SINGLE.quieted(b), SINGLE.maximum(a, b)))


# Division: scale, refine with FMAs, undo the scaling, fix special cases.


def _scale(kind: Kind, a: al.Array, exponent: int) -> al.Array:
    return (fl.scale_f32 if kind is SINGLE else fl.scale_f64)(a, I32(exponent))


def _div_scale(kind: Kind) -> Callable[..., Any]:
    """(the scaled source, whether v_div_fmas must scale back) of source, denominator, numerator."""
    step, far, tiny = (64, 96, 23) if kind is SINGLE else (128, 768, 53)
    zero = kind.number(0)

    def is_denormal(a: al.Array) -> al.Array:
        return (kind.exponent(a) == I32(0)) & (a != zero)

    def meaning(a: al.Array, denominator: al.Array, numerator: al.Array) -> tuple[al.Array, al.Array]:
        up, down = _scale(kind, a, step), _scale(kind, a, -step)
        is_denominator = kind.bits(a) == kind.bits(denominator)
        is_numerator = kind.bits(a) == kind.bits(numerator)
        one = kind.wrap(kind.bits(denominator) & kind.word(0) | kind.word(kind.bias << kind.mantissa))
        tiny_inverse, tiny_quotient = is_denormal(one / denominator), is_denormal(numerator / denominator)
        spread = kind.exponent(numerator) - kind.exponent(denominator) >= I32(far)
        # From the last rule to the first one, so that earlier ones win.
        result = al.select(kind.exponent(numerator) <= I32(tiny), up, a)
        flag = al.select(tiny_quotient, U32(1), U32(0))
        result = al.select(tiny_quotient, al.select(is_numerator, up, a), result)
        result, flag = al.select(tiny_inverse, down, result), al.select(tiny_inverse, U32(0), flag)
        # The documents scale the denominator up here, which overflows; down is what makes quotients right.
        both = tiny_inverse & tiny_quotient
        result = al.select(both, al.select(is_denominator, down, a), result)
        flag = al.select(both, U32(1), flag)
        result = al.select(is_denormal(denominator), up, result)
        flag = al.select(is_denormal(denominator), U32(0), flag)
        result = al.select(spread, al.select(is_denominator, up, a), result)
        flag = al.select(spread, U32(1), flag)
        invalid = (denominator == zero) | (numerator == zero)
        result = al.select(invalid, kind.number(np.nan), result)
        return result, ~invalid & (flag != U32(0))

    return meaning


def _div_fmas(kind: Kind) -> Callable[..., Any]:
    """fma, scaled back where the flag says so; the direction shows in the quotient's exponent."""
    step = 64 if kind is SINGLE else 128

    def meaning(a: al.Array, b: al.Array, c: al.Array, flag: al.Array) -> al.Array:
        total = al.fma(a, b, c)
        large = kind.exponent(c) > I32(kind.bias)
        return al.select(flag, al.select(large, _scale(kind, total, step), _scale(kind, total, -step)), total)

    return meaning


def _div_fixup(kind: Kind) -> Callable[..., Any]:
    """The quotient, or what IEEE wants for zeros, infinities, NaNs, and results out of range."""
    under = I32(-150 if kind is SINGLE else -1075)
    zero, infinity, nan = kind.number(0), kind.number(np.inf), kind.number(np.nan)

    def meaning(quotient: al.Array, denominator: al.Array, numerator: al.Array) -> al.Array:
        flip = kind.is_negative(denominator) ^ kind.is_negative(numerator)

        def signed(value: Any) -> al.Array:
            return al.select(flip, -value, value)

        # A quotient that overflowed on the way has become a NaN.
        result = signed(al.select(al.is_nan(quotient), infinity, kind.absolute(quotient)))
        result = al.select(kind.exponent(numerator) - kind.exponent(denominator) < under, signed(zero), result)
        small = (kind.absolute(denominator) == infinity) | (numerator == zero)
        result = al.select(small, signed(zero), result)
        large = (denominator == zero) | (kind.absolute(numerator) == infinity)
        result = al.select(large, signed(infinity), result)
        result = al.select((denominator == zero) & (numerator == zero), nan, result)
        both = (kind.absolute(denominator) == infinity) & (kind.absolute(numerator) == infinity)
        result = al.select(both, nan, result)
        result = al.select(al.is_nan(denominator), kind.quieted(denominator), result)
        return al.select(al.is_nan(numerator), kind.quieted(numerator), result)

    return meaning


# Compares.

RELATIONS: dict[str, Callable[..., Any]] = {
    "lt": operator.lt,
    "eq": operator.eq,
    "le": operator.le,
    "gt": operator.gt,
    "lg": lambda a, b: (a < b) | (a > b),
    "ge": operator.ge,
    "o": lambda a, b: ~(al.is_nan(a) | al.is_nan(b)),
    "u": lambda a, b: al.is_nan(a) | al.is_nan(b),
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b),
    "neq": operator.ne,
    "nlt": lambda a, b: ~(a < b),
}


def _compares() -> list[Row]:
    rows = []
    for name, function in RELATIONS.items():
        rows.append(row(f"v_cmp_{name}_f64", "valu", _VOPC, "mask <- f64 f64", function))
        of_half = lambda a, b, function=function: function(al.from_f16(a), al.from_f16(b))  # noqa: E731
        rows.append(row(f"v_cmp_{name}_f16", "valu", _VOPC, "mask <- f16 f16", of_half))
    rows.append(row("v_cmp_class_f32", "valu", _VOPC, "mask <- f32 u32", SINGLE.in_class))
    rows.append(row("v_cmp_class_f64", "valu", _VOPC, "mask <- f64 u32", DOUBLE.in_class))
    rows.append(row("v_cmp_class_f16", "valu", _VOPC, "mask <- f16 u32", _half_class))
    return rows


def _half_class(a: al.Array, classes: al.Array) -> al.Array:
    """A float16 has the class of the float32 with the same fields: denormals must not become normal numbers."""
    magnitude = a & U32(0x7FFF)
    special = al.select(magnitude >= U32(0x7C00), U32(0x7F800000), U32(0))
    normal = al.select((magnitude >= U32(0x400)) & (magnitude < U32(0x7C00)), U32(0x3F800000), U32(0))
    fraction = (a & U32(0x3FF)) << U32(13)
    return SINGLE.in_class(al.as_f32((a & U32(0x8000)) << U32(16) | special | normal | fraction), classes)


ROWS = [*_two_operands(), *_one_operand(), *_three_operands(), *_compares()]
