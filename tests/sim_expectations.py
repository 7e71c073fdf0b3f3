"""Expectations for float, half, integer and packed vector opcodes, from the ISA documents, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from sim_oracles import (
    BF16,
    F16,
    F32,
    F64,
    FORMATS,
    M32,
    Format,
    bf8,
    classes,
    clip,
    divided,
    exact,
    fp8,
    half_of,
    larger,
    middle,
    nearest,
    s16,
    s24,
    s32,
    s64,
    smaller,
    to_integer,
)
from sim_step import FLOAT_COMPARES, INTEGER_COMPARES


def of(format_: Format, function: Callable[..., Any]) -> Callable[..., int]:
    """A function of doubles whose result is rounded to a format; exact enough where stated by the tests."""
    return lambda *bits: format_.bits(float(function(*[format_.value(b) for b in bits])))


def flushed(value: float) -> float:
    return math.copysign(0.0, value) if abs(value) < 2.0**-126 else value


def guarded(function: Callable[[float], float]) -> Callable[[float], float]:
    def run(value: float) -> float:
        try:
            return math.nan if math.isnan(value) else function(value)
        except (ValueError, OverflowError, ZeroDivisionError):
            return math.nan

    return run


def turn(function: Callable[[float], float], beyond: float) -> Callable[[float], float]:
    def run(value: float) -> float:
        if math.isinf(value):
            return math.nan
        if abs(value) > 256:
            return beyond
        found = function(2 * math.pi * (value - round(value)))
        return found if 4 * value % 1 else float(round(found))

    return run


TRANSCENDENTAL: dict[str, Callable[[float], float]] = {
    "exp": lambda x: 0.0 if x < -1000 else math.inf if x > 1000 else 2.0**x,
    "log": lambda x: -math.inf if x == 0 else math.inf if x == math.inf else math.log2(x),
    "rcp": lambda x: divided(1.0, x),
    "rcp_iflag": lambda x: divided(1.0, x),
    "rsq": lambda x: divided(1.0, math.copysign(math.sqrt(x), x)),
    "sqrt": lambda x: math.copysign(math.sqrt(x), x),
    "sin": turn(math.sin, 0.0),
    "cos": turn(math.cos, 1.0),
}
WHOLE: dict[str, Callable[[float], float]] = {
    "trunc": lambda x: x if not math.isfinite(x) else math.copysign(float(math.trunc(x)), x),
    "ceil": lambda x: x if not math.isfinite(x) else math.copysign(float(math.ceil(x)), x),
    "floor": lambda x: x if not math.isfinite(x) else math.copysign(float(math.floor(x)), x),
    "rndne": lambda x: x if not math.isfinite(x) else math.copysign(float(round(x)), x),
    "frexp_mant": lambda x: x if not math.isfinite(x) else math.frexp(x)[0],
}


def fraction(format_: Format) -> Callable[[int], int]:
    def run(bits: int) -> int:
        x = format_.value(bits)
        if not math.isfinite(x):
            return format_.bits(math.nan)
        found = format_.bits(Fraction(x) - math.floor(x))
        return min(found, format_.bits(1.0) - 1)

    return run


def scaled(format_: Format, signed: Callable[[int], int]) -> Callable[[int, int], int]:
    def run(bits: int, exponent: int) -> int:
        x = format_.value(bits)
        if not math.isfinite(x) or x == 0:
            return format_.bits(x)
        return format_.bits(Fraction(x) * Fraction(2) ** clip(signed(exponent), -5000, 5000))

    return run


def exponent_of(format_: Format) -> Callable[[int], int]:
    mask = 0xFFFF if format_ is F16 else M32
    return lambda bits: math.frexp(format_.value(bits))[1] & mask if math.isfinite(format_.value(bits)) else 0


def floats(text: str) -> dict[str, Callable[..., Any]]:
    """Rows that are alike for f16, f32 and f64."""
    f = FORMATS[text]
    rows: dict[str, Callable[..., Any]] = {
        f"v_add_{text}": exact(f, lambda a, b: a + b),
        f"v_sub_{text}": exact(f, lambda a, b: a - b),
        f"v_subrev_{text}": exact(f, lambda a, b: b - a),
        f"v_mul_{text}": exact(f, lambda a, b: a * b),
        f"v_fma_{text}": exact(f, lambda a, b, c: a * b + c),
        f"v_fmac_{text}": exact(f, lambda old, a, b: a * b + old),
        f"v_min_{text}": smaller(f),
        f"v_max_{text}": larger(f),
        f"v_min3_{text}": lambda a, b, c: smaller(f)(smaller(f)(a, b), c),
        f"v_max3_{text}": lambda a, b, c: larger(f)(larger(f)(a, b), c),
        f"v_med3_{text}": middle(f),
        f"v_fract_{text}": fraction(f),
        f"v_ldexp_{text}": scaled(f, s16 if text == "f16" else s32),
        f"v_frexp_exp_{'i16' if text == 'f16' else 'i32'}_{text}": exponent_of(f),
        f"v_cmp_class_{text}": lambda a, b: int(bool(classes(f, a) & b)),
    }
    for name, function in TRANSCENDENTAL.items():
        clean = (lambda x, g=function: flushed(guarded(g)(flushed(x)))) if text == "f32" else guarded(function)
        rows[f"v_{name}_{text}"] = of(f, clean)
    for name, function in WHOLE.items():
        rows[f"v_{name}_{text}"] = of(f, function)
    for name, relation in FLOAT_COMPARES.items():
        rows[f"v_cmp_{name}_{text}"] = lambda a, b, r=relation: int(r(f.value(a), f.value(b)))
    return rows


def winning_nan(format_: Format, function: Callable[[int, int], int]) -> Callable[[int, int, int], int]:
    def run(*bits: int) -> int:
        if any(math.isnan(format_.value(b)) for b in bits):
            return format_.bits(math.nan)
        return function(function(bits[0], bits[1]), bits[2])

    return run


def halves(function: Callable[..., int]) -> Callable[..., int]:
    def run(*words: int) -> int:
        parts = [function(*[half_of(word, upper) for word in words]) & 0xFFFF for upper in (0, 1)]
        return parts[0] | parts[1] << 16

    return run


def toward_zero(bits: int) -> int:
    near = F16.bits(F32.value(bits))
    value = F32.value(bits)
    return near - 1 if not math.isnan(value) and abs(F16.value(near)) > abs(value) else near


def dot(width: int, signed: bool) -> Callable[[int, int, int], int]:
    def run(a: int, b: int, c: int) -> int:
        def part(word: int, place: int) -> int:
            value = word >> place & (1 << width) - 1
            return value - (1 << width) if signed and value >> width - 1 else value

        return c + sum(part(a, place) * part(b, place) for place in range(0, 32, width))

    return run


def dot_float(format_: Format) -> Callable[[int, int, int], int]:
    def run(a: int, b: int, c: int) -> int:
        pairs = [(format_.value(half_of(a, upper)), format_.value(half_of(b, upper))) for upper in (0, 1)]
        addend = F32.value(c)
        if not all(map(math.isfinite, [*pairs[0], *pairs[1], addend])):
            return F32.bits(pairs[0][0] * pairs[0][1] + pairs[1][0] * pairs[1][1] + addend)
        total = sum((Fraction(x) * Fraction(y) for x, y in pairs), Fraction(addend))
        return F32.bits(total)

    return run


def bytes_of(word: int) -> list[int]:
    return [word >> 8 * place & 255 for place in range(4)]


def from_bytes(values: list[int]) -> int:
    return sum(value << 8 * place for place, value in enumerate(values))


def pair_of(low: int, high: int) -> int:
    return low & 0xFFFF | (high & 0xFFFF) << 16


def normalised(scale: int, low: int, high: int) -> Callable[[int, int], int]:
    """round(x * scale) to nearest even of the float32 product."""

    def one(bits: int) -> int:
        product = (
            F32.value(F32.bits(Fraction(F32.value(bits)) * scale))
            if math.isfinite(F32.value(bits))
            else F32.value(bits)
        )
        whole = product if not math.isfinite(product) else float(round(product))
        return to_integer(whole, low, high)

    return lambda a, b: pair_of(one(a), one(b))


def mad_i64(a: int, b: int, c: int) -> tuple[int, int]:
    total = s32(a) * s32(b) + s64(c)
    return total, int(not -(2**63) <= total < 2**63)


EXPECT: dict[str, Callable[..., Any]] = {
    **floats("f16"),
    **floats("f32"),
    **floats("f64"),
    "v_mul_legacy_f32": lambda a, b: (
        0 if 0 in (a & 0x7FFFFFFF, b & 0x7FFFFFFF) else exact(F32, lambda x, y: x * y)(a, b)
    ),
    "v_minimum3_f32": winning_nan(F32, smaller(F32)),
    "v_maximum3_f32": winning_nan(F32, larger(F32)),
    # Halves that are integers.
    "v_add_u16": lambda a, b: (a + b) & 0xFFFF,
    "v_sub_u16": lambda a, b: (a - b) & 0xFFFF,
    "v_subrev_u16": lambda a, b: (b - a) & 0xFFFF,
    "v_mul_lo_u16": lambda a, b: (a * b) & 0xFFFF,
    "v_lshlrev_b16": lambda a, b: (b << a % 16) & 0xFFFF,
    "v_lshrrev_b16": lambda a, b: b % 65536 >> a % 16,
    "v_ashrrev_i16": lambda a, b: s16(b) >> a % 16 & 0xFFFF,
    "v_max_u16": lambda a, b: max(a % 65536, b % 65536),
    "v_min_u16": lambda a, b: min(a % 65536, b % 65536),
    "v_max_i16": lambda a, b: max(s16(a), s16(b)) & 0xFFFF,
    "v_min_i16": lambda a, b: min(s16(a), s16(b)) & 0xFFFF,
    "v_cvt_f16_u16": lambda a: F16.bits(Fraction(a % 65536)),
    "v_cvt_f16_i16": lambda a: F16.bits(Fraction(s16(a))),
    "v_cvt_u16_f16": lambda a: to_integer(F16.value(a), 0, 65535),
    "v_cvt_i16_f16": lambda a: to_integer(F16.value(a), -32768, 32767) & 0xFFFF,
    "v_mad_u16": lambda a, b, c: (a * b + c) & 0xFFFF,
    "v_mad_i16": lambda a, b, c: (a * b + c) & 0xFFFF,
    "v_mad_u32_u16": lambda a, b, c: a % 65536 * (b % 65536) + c,
    "v_mad_i32_i16": lambda a, b, c: s16(a) * s16(b) + c,
    "v_pack_b32_f16": pair_of,
    "v_add_i16": lambda a, b: (a + b) & 0xFFFF,
    "v_sub_i16": lambda a, b: (a - b) & 0xFFFF,
    **{
        f"v_min3_{k}": lambda a, b, c, g=g: min(map(g, (a, b, c))) & 0xFFFF
        for k, g in (("i16", s16), ("u16", lambda x: x & 0xFFFF))
    },
    **{
        f"v_max3_{k}": lambda a, b, c, g=g: max(map(g, (a, b, c))) & 0xFFFF
        for k, g in (("i16", s16), ("u16", lambda x: x & 0xFFFF))
    },
    **{
        f"v_med3_{k}": lambda a, b, c, g=g: sorted(map(g, (a, b, c)))[1] & 0xFFFF
        for k, g in (("i16", s16), ("u16", lambda x: x & 0xFFFF))
    },
    **{f"v_cmp_{n}_i16": lambda a, b, r=r: int(r(s16(a), s16(b))) for n, r in INTEGER_COMPARES.items()},
    **{f"v_cmp_{n}_u16": lambda a, b, r=r: int(r(a % 65536, b % 65536)) for n, r in INTEGER_COMPARES.items()},
    # Integers.
    "v_mul_i32_i24": lambda a, b: s24(a) * s24(b),
    "v_mul_hi_i32_i24": lambda a, b: s24(a) * s24(b) >> 32,
    "v_mul_hi_u32_u24": lambda a, b: a % 2**24 * (b % 2**24) >> 32,
    "v_xnor_b32": lambda a, b: ~(a ^ b),
    "v_ffbh_i32": lambda a: M32 if s32(a) in (0, -1) else 32 - (s32(a) if s32(a) > 0 else ~s32(a)).bit_length(),
    "v_mad_i32_i24": lambda a, b, c: s24(a) * s24(b) + c,
    "v_bfe_i32": lambda a, b, c: (
        0 if c % 32 == 0 else ((a >> b % 32 & (1 << c % 32) - 1) ^ 1 << c % 32 - 1) - (1 << c % 32 - 1)
    ),
    "v_lerp_u8": lambda a, b, c: from_bytes(
        [(x + y + (z & 1)) >> 1 for x, y, z in zip(*map(bytes_of, (a, b, c)), strict=True)]
    ),
    "v_alignbyte_b32": lambda a, b, c: (a << 32 | b) >> 8 * (c % 4),
    "v_min3_i32": lambda a, b, c: min(map(s32, (a, b, c))),
    "v_max3_i32": lambda a, b, c: max(map(s32, (a, b, c))),
    "v_min3_u32": lambda a, b, c: min(a, b, c),
    "v_max3_u32": lambda a, b, c: max(a, b, c),
    "v_sad_u8": lambda a, b, c: c + sum(abs(x - y) for x, y in zip(bytes_of(a), bytes_of(b), strict=True)),
    "v_sad_hi_u8": lambda a, b, c: c + (sum(abs(x - y) for x, y in zip(bytes_of(a), bytes_of(b), strict=True)) << 16),
    "v_sad_u16": lambda a, b, c: c + sum(abs(half_of(a, h) - half_of(b, h)) for h in (0, 1)),
    "v_sad_u32": lambda a, b, c: c + abs(a - b),
    "v_mad_i64_i32": mad_i64,
    "v_bfm_b32": lambda a, b: (1 << a % 32) - 1 << b % 32,
    "v_add_i32": lambda a, b: a + b,
    "v_sub_i32": lambda a, b: a - b,
    "v_ashr_pk_i8_i32": lambda a, b, c: sum(
        (clip(s32(x) >> c % 32, -128, 127) & 255) << 8 * i for i, x in enumerate((a, b))
    ),
    "v_ashr_pk_u8_i32": lambda a, b, c: sum(clip(s32(x) >> c % 32, 0, 255) << 8 * i for i, x in enumerate((a, b))),
    # Conversions.
    "v_cvt_i32_f64": lambda a: to_integer(F64.value(a), -(2**31), 2**31 - 1),
    "v_cvt_u32_f64": lambda a: to_integer(F64.value(a), 0, M32),
    "v_cvt_f64_i32": lambda a: F64.bits(Fraction(s32(a))),
    "v_cvt_f64_u32": lambda a: F64.bits(Fraction(a)),
    "v_cvt_f32_i32": lambda a: F32.bits(Fraction(s32(a))),
    "v_cvt_f32_u32": lambda a: F32.bits(Fraction(a)),
    "v_cvt_u32_f32": lambda a: to_integer(F32.value(a), 0, M32),
    "v_cvt_i32_f32": lambda a: to_integer(F32.value(a), -(2**31), 2**31 - 1),
    "v_cvt_rpi_i32_f32": lambda a: to_integer(WHOLE["floor"](F32.value(a) + 0.5), -(2**31), 2**31 - 1),
    "v_cvt_flr_i32_f32": lambda a: to_integer(WHOLE["floor"](F32.value(a)), -(2**31), 2**31 - 1),
    "v_cvt_f32_f64": lambda a: F32.bits(F64.value(a)),
    "v_cvt_f64_f32": lambda a: F64.bits(F32.value(a)),
    "v_cvt_f32_bf16": lambda a: F32.bits(BF16.value(a)),
    "v_cvt_f32_fp8": lambda a: F32.bits(fp8(a & 255)),
    "v_cvt_f32_bf8": lambda a: F32.bits(bf8(a)),
    "v_cvt_pk_f32_fp8": lambda a: F32.bits(fp8(a & 255)) | F32.bits(fp8(a >> 8 & 255)) << 32,
    "v_cvt_pk_f32_bf8": lambda a: F32.bits(bf8(a)) | F32.bits(bf8(a >> 8)) << 32,
    **{f"v_cvt_f32_ubyte{n}": lambda a, n=n: F32.bits(Fraction(bytes_of(a)[n])) for n in range(4)},
    "v_cvt_pk_u8_f32": lambda a, b, c: from_bytes(
        [to_integer(WHOLE["rndne"](F32.value(a)), 0, 255) if i == b % 4 else x for i, x in enumerate(bytes_of(c))]
    ),
    "v_cvt_pknorm_i16_f32": normalised(32767, -32768, 32767),
    "v_cvt_pknorm_u16_f32": normalised(65535, 0, 65535),
    "v_cvt_pkrtz_f16_f32": lambda a, b: pair_of(toward_zero(a), toward_zero(b)),
    "v_cvt_pk_u16_u32": lambda a, b: pair_of(min(a, 65535), min(b, 65535)),
    "v_cvt_pk_i16_i32": lambda a, b: pair_of(clip(s32(a), -32768, 32767), clip(s32(b), -32768, 32767)),
    "v_cvt_pk_fp8_f32": lambda a, b: (
        nearest(fp8, F32.value(a), 448.0, 0x7F) | nearest(fp8, F32.value(b), 448.0, 0x7F) << 8
    ),
    "v_cvt_pk_bf8_f32": lambda a, b: (
        nearest(bf8, F32.value(a), 57344.0, 0x7C) | nearest(bf8, F32.value(b), 57344.0, 0x7C) << 8
    ),
    # Packed halves, with all modifiers at rest.
    **{f"v_pk_{n}_f16": halves(floats("f16")[f"v_{n}_f16"]) for n in ("add", "mul", "min", "max", "fma")},
    "v_pk_minimum3_f16": halves(winning_nan(F16, smaller(F16))),
    "v_pk_maximum3_f16": halves(winning_nan(F16, larger(F16))),
    "v_pk_mad_i16": halves(lambda a, b, c: a * b + c),
    "v_pk_mad_u16": halves(lambda a, b, c: a * b + c),
    "v_pk_mul_lo_u16": halves(lambda a, b: a * b),
    "v_pk_add_i16": halves(lambda a, b: a + b),
    "v_pk_add_u16": halves(lambda a, b: a + b),
    "v_pk_sub_i16": halves(lambda a, b: a - b),
    "v_pk_sub_u16": halves(lambda a, b: a - b),
    "v_pk_lshlrev_b16": halves(lambda a, b: b << a % 16),
    "v_pk_lshrrev_b16": halves(lambda a, b: b >> a % 16),
    "v_pk_ashrrev_i16": halves(lambda a, b: s16(b) >> a % 16),
    "v_pk_max_i16": halves(lambda a, b: max(s16(a), s16(b))),
    "v_pk_min_i16": halves(lambda a, b: min(s16(a), s16(b))),
    "v_pk_max_u16": halves(max),
    "v_pk_min_u16": halves(min),
    **{
        f"v_pk_{n}_f32": lambda *w, n=n: (
            floats("f32")[f"v_{n}_f32"](*[x & M32 for x in w])
            | floats("f32")[f"v_{n}_f32"](*[x >> 32 for x in w]) << 32
        )
        for n in ("fma", "mul", "add")
    },
    # op_sel_hi at rest: both results are low halves of their sources; v_pk_mov takes the second from the second.
    "v_pk_mov_b32": lambda a, b: a & M32 | (b & M32) << 32,
    "v_fma_mix_f32": floats("f32")["v_fma_f32"],
    "v_dot2_f32_f16": dot_float(F16),
    "v_dot2_f32_bf16": dot_float(BF16),
    "v_dot2_i32_i16": dot(16, True),
    "v_dot2_u32_u16": dot(16, False),
    "v_dot4_i32_i8": dot(8, True),
    "v_dot4_u32_u8": dot(8, False),
    "v_dot8_i32_i4": dot(4, True),
    "v_dot8_u32_u4": dot(4, False),
    "v_accvgpr_read_b32": lambda a: a,
    "v_accvgpr_write_b32": lambda a: a,
    "v_accvgpr_mov_b32": lambda a: a,
}
