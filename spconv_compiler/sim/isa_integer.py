"""More vector integer opcodes, and conversions between formats. From the ISA documents, VOP chapters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spconv_compiler.sim import algebra as al
from spconv_compiler.sim import floats as fl
from spconv_compiler.sim.floats import DOUBLE, F32, F64, I32, SINGLE, U32, U64
from spconv_compiler.sim.isa_half import low16, saturated_i16, saturated_u16
from spconv_compiler.sim.rows import Row, row

_VOP2, _VOP1, _VOPC = "VOP2 VOP3", "VOP1 VOP3", "VOPC VOP3"
_BYTE = U32(0xFF)


def signed24(a: al.Array) -> al.Array:
    """int32 from the low 24 bits."""
    return al.as_i32(a << U32(8)) >> I32(8)


def byte(a: al.Array, number: int) -> al.Array:
    """One byte of uint32."""
    return a >> U32(8 * number) & _BYTE


def _low24(a: al.Array) -> al.Array:
    return a & U32(0xFFFFFF)


def _high_product(a: al.Array, b: al.Array) -> al.Array:
    return al.high(al.sext(a) * al.sext(b))


def _mad_i64(a: al.Array, b: al.Array, c: al.Array) -> tuple[al.Array, al.Array]:
    product = al.sext(a) * al.sext(b)
    total = product + al.as_i64(c)
    return total, ((product ^ total) & (al.as_i64(c) ^ total)) < np.int64(0)


def _signed_field(a: al.Array, offset: al.Array, width: al.Array) -> al.Array:
    bits = width & U32(31)
    low = (al.bits_of(a) >> (offset & U32(31))) & al.mask_bits(bits)
    shift = al.as_i32(U32(32) - bits)
    wide = al.as_i32(low << al.as_u32(shift & I32(31)))
    return al.select(bits == U32(0), I32(0), wide >> (shift & I32(31)))


def _add_clamp_u32(a: al.Array, b: al.Array) -> al.Array:
    total = a + b
    return al.select(total < a, U32(0xFFFFFFFF), total)


def _sub_clamp_u32(a: al.Array, b: al.Array) -> al.Array:
    return al.select(a < b, U32(0), a - b)


def _clamp_i32(overflow: al.Array, sign: al.Array, value: al.Array) -> al.Array:
    return al.select(overflow, al.select(sign < I32(0), I32(-0x80000000), I32(0x7FFFFFFF)), value)


def _add_clamp_i32(a: al.Array, b: al.Array) -> al.Array:
    total = a + b
    return _clamp_i32(((a ^ total) & (b ^ total)) < I32(0), a, total)


def _sub_clamp_i32(a: al.Array, b: al.Array) -> al.Array:
    rest = a - b
    return _clamp_i32(((a ^ b) & (a ^ rest)) < I32(0), a, rest)


def _sad(width: int, a: al.Array, b: al.Array, c: al.Array) -> al.Array:
    """c plus the absolute differences of the parts of a and b."""
    mask = U32((1 << width) - 1)
    total = c
    for place in range(0, 32, width):
        left, right = a >> U32(place) & mask, b >> U32(place) & mask
        total = total + al.select(left > right, left - right, right - left)
    return total


def _dot(width: int, signed: bool, a: al.Array, b: al.Array, c: al.Array) -> al.Array:
    """c plus the products of the parts of a and b; wraps."""
    total = c
    for place in range(0, 32, width):
        left, right = (_part(each, place, width, signed) for each in (a, b))
        total = total + al.as_u32(left * right)
    return total


def _part(a: al.Array, place: int, width: int, signed: bool) -> al.Array:
    up = al.as_i32(a << U32(32 - width - place))
    return up >> I32(32 - width) if signed else al.as_i32(a >> U32(place) & U32((1 << width) - 1))


def _bitop3(a: al.Array, b: al.Array, c: al.Array, table: al.Array) -> al.Array:
    """Bit by bit, entry 4a + 2b + c of the truth table."""
    result = a & U32(0)
    for entry in range(8):
        term = (a if entry & 4 else ~a) & (b if entry & 2 else ~b) & (c if entry & 1 else ~c)
        chosen = table >> U32(entry) & U32(1) != U32(0)
        result = result | al.select(chosen, term, U32(0))
    return result


def _lerp(a: al.Array, b: al.Array, c: al.Array) -> al.Array:
    """Bytes: (a + b + the lowest bit of c) / 2."""
    result = a & U32(0)
    for place in range(4):
        result = result | ((byte(a, place) + byte(b, place) + (byte(c, place) & U32(1))) >> U32(1)) << U32(8 * place)
    return result


def _sat_byte(a: al.Array, low: int, high: int) -> al.Array:
    return al.as_u32(fl.limited(a, low, high)) & _BYTE


def _ashr_pk(low: int, high: int) -> Callable[..., Any]:
    """Two shifted numbers as saturated bytes in the low half."""

    def meaning(a: al.Array, b: al.Array, c: al.Array) -> al.Array:
        shift = al.as_i32(c & U32(31))
        return _sat_byte(a >> shift, low, high) | _sat_byte(b >> shift, low, high) << U32(8)

    return meaning


def _integers() -> list[Row]:
    three = "u32 <- u32 u32 u32"
    return [
        row("v_mul_i32_i24", "valu", _VOP2, "i32 <- u32 u32", lambda a, b: signed24(a) * signed24(b)),
        row("v_mul_hi_i32_i24", "valu", _VOP2, "u32 <- u32 u32", lambda a, b: _high_product(signed24(a), signed24(b))),
        row(
            "v_mul_hi_u32_u24",
            "valu",
            _VOP2,
            "u32 <- u32 u32",
            lambda a, b: al.high(al.zext(_low24(a)) * al.zext(_low24(b))),
        ),
        row("v_xnor_b32", "valu", _VOP2, "u32 <- u32 u32", lambda a, b: ~(a ^ b)),
        row("v_ffbh_i32", "valu", _VOP1, "u32 <- i32", _sign_bits),
        row("v_mad_i32_i24", "valu", "VOP3", "i32 <- u32 u32 i32", lambda a, b, c: signed24(a) * signed24(b) + c),
        row("v_bfe_i32", "valu", "VOP3", "i32 <- i32 u32 u32", _signed_field),
        row("v_lerp_u8", "valu", "VOP3", three, _lerp),
        row(
            "v_alignbyte_b32",
            "valu",
            "VOP3",
            three,
            lambda a, b, c: al.low(al.join(b, a) >> (al.zext(c & U32(3)) * U64(8))),
        ),
        *_extrema("i32"),
        *_extrema("u32"),
        row("v_sad_u8", "valu", "VOP3", three, lambda a, b, c: _sad(8, a, b, c)),
        row("v_sad_hi_u8", "valu", "VOP3", three, lambda a, b, c: (_sad(8, a, b, c & U32(0)) << U32(16)) + c),
        row("v_sad_u16", "valu", "VOP3", three, lambda a, b, c: _sad(16, a, b, c)),
        row("v_sad_u32", "valu", "VOP3", three, lambda a, b, c: _sad(32, a, b, c)),
        row("v_mad_i64_i32", "valu", "VOP3", "i64 mask <- i32 i32 u64", _mad_i64, upward=True),
        row("v_bfm_b32", "valu", "VOP3", "u32 <- u32 u32", lambda a, b: al.mask_bits(a & U32(31)) << (b & U32(31))),
        row("v_add_i32", "valu", "VOP3", "i32 <- i32 i32", lambda a, b: a + b, saturated=_add_clamp_i32),
        row("v_sub_i32", "valu", "VOP3", "i32 <- i32 i32", lambda a, b: a - b, saturated=_sub_clamp_i32),
        row("v_bitop3_b32", "valu", "VOP3", "u32 <- u32 u32 u32 imm32", _bitop3),
        row("v_bitop3_b16", "valu", "VOP3", "u16 <- u32 u32 u32 imm32", lambda *s: low16(_bitop3(*s)), op_sel=True),
        row("v_ashr_pk_i8_i32", "valu", "VOP3", "u16 <- i32 i32 u32", _ashr_pk(-128, 127)),
        row("v_ashr_pk_u8_i32", "valu", "VOP3", "u16 <- i32 i32 u32", _ashr_pk(0, 255)),
    ]


def _sign_bits(a: al.Array) -> al.Array:
    """Bits below the top that equal the sign, plus one; all ones if all do."""
    return al.leading_zeros(al.bits_of(al.select(a < I32(0), ~a, a)))


def _extrema(kind: str) -> list[Row]:
    signature = f"{kind} <- {kind} {kind} {kind}"
    rows = [
        row(f"v_min3_{kind}", "valu", "VOP3", signature, lambda a, b, c: al.minimum(al.minimum(a, b), c)),
        row(f"v_max3_{kind}", "valu", "VOP3", signature, lambda a, b, c: al.maximum(al.maximum(a, b), c)),
    ]
    return rows


def _pack(low: al.Array, high: al.Array) -> al.Array:
    return low16(low) | high << U32(16)


def _normalised(scale: float, convert: Callable[..., Any]) -> Callable[..., Any]:
    """A float32 between -1 and 1 as a 16-bit fraction."""
    return lambda a: convert(al.to_i32(al.round_even(a * F32(scale))))


def _toward_zero_f16(a: al.Array) -> al.Array:
    """float32 to float16 without rounding up: infinities only from infinities."""
    near = al.f16_bits(a)
    over = SINGLE.absolute(al.from_f16(near)) > SINGLE.absolute(a)
    return al.select(over, near - U32(1), near)


def _conversions() -> list[Row]:
    one: dict[str, tuple[str, Callable[..., Any]]] = {
        "v_cvt_i32_f64": ("i32 <- f64", al.to_i32),
        "v_cvt_u32_f64": ("u32 <- f64", al.to_u32),
        "v_cvt_f64_i32": ("f64 <- i32", al.to_f64),
        "v_cvt_f64_u32": ("f64 <- u32", al.to_f64),
        "v_cvt_f32_i32": ("f32 <- i32", al.to_f32),
        "v_cvt_f32_u32": ("f32 <- u32", al.to_f32),
        "v_cvt_u32_f32": ("u32 <- f32", al.to_u32),
        "v_cvt_i32_f32": ("i32 <- f32", al.to_i32),
        "v_cvt_rpi_i32_f32": ("i32 <- f32", lambda a: al.to_i32(al.floor(al.to_f64(a) + F64(0.5)))),
        "v_cvt_flr_i32_f32": ("i32 <- f32", lambda a: al.to_i32(al.floor(a))),
        "v_cvt_f32_f64": ("f32 <- f64", lambda a: SINGLE.quieted(al.to_f32(a))),
        "v_cvt_f64_f32": ("f64 <- f32", lambda a: DOUBLE.quieted(al.to_f64(a))),
        "v_cvt_f32_bf16": ("f32 <- u16", al.from_bf16),
        "v_cvt_f32_fp8": ("f32 <- u32", fl.from_fp8),
        "v_cvt_f32_bf8": ("f32 <- u32", fl.from_bf8),
        "v_cvt_pk_f32_fp8": ("u64 <- u32", _two(fl.from_fp8)),
        "v_cvt_pk_f32_bf8": ("u64 <- u32", _two(fl.from_bf8)),
    }
    rows = [row(name, "valu", _VOP1, signature, meaning) for name, (signature, meaning) in one.items()]
    for number in range(4):
        meaning = lambda a, number=number: al.to_f32(byte(a, number))  # noqa: E731
        rows.append(row(f"v_cvt_f32_ubyte{number}", "valu", _VOP1, "f32 <- u32", meaning))
    i16, u16 = _normalised(32767.0, saturated_i16), _normalised(65535.0, saturated_u16)
    rows += [
        row("v_cvt_pk_u8_f32", "valu", "VOP3", "u32 <- f32 u32 u32", _insert_byte),
        row("v_cvt_pknorm_i16_f32", "valu", "VOP3", "u32 <- f32 f32", lambda a, b: _pack(i16(a), i16(b))),
        row("v_cvt_pknorm_u16_f32", "valu", "VOP3", "u32 <- f32 f32", lambda a, b: _pack(u16(a), u16(b))),
        row(
            "v_cvt_pkrtz_f16_f32",
            "valu",
            "VOP3",
            "u32 <- f32 f32",
            lambda a, b: _pack(_toward_zero_f16(a), _toward_zero_f16(b)),
        ),
        row("v_cvt_pk_u16_u32", "valu", "VOP3", "u32 <- u32 u32", lambda a, b: _pack(_clip_u16(a), _clip_u16(b))),
        row(
            "v_cvt_pk_i16_i32", "valu", "VOP3", "u32 <- i32 i32", lambda a, b: _pack(saturated_i16(a), saturated_i16(b))
        ),
        row("v_cvt_pk_fp8_f32", "valu", "VOP3", "h16 <- f32 f32", _bytes(fl.fp8_bits), op_sel=True, keeps=True),
        row("v_cvt_pk_bf8_f32", "valu", "VOP3", "h16 <- f32 f32", _bytes(fl.bf8_bits), op_sel=True, keeps=True),
    ]
    return rows


def _two(convert: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a: al.join(al.bits_of(convert(a & _BYTE)), al.bits_of(convert(byte(a, 1))))


def _bytes(bits: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: bits(a) | bits(b) << U32(8)


def _clip_u16(a: al.Array) -> al.Array:
    return al.minimum(a, U32(0xFFFF))


def _insert_byte(a: al.Array, place: al.Array, c: al.Array) -> al.Array:
    value = al.as_u32(fl.limited(al.to_i32(al.round_even(a)), 0, 255))
    shift = (place & U32(3)) * U32(8)
    return c & ~(_BYTE << shift) | value << shift


def _dots() -> list[Row]:
    """Dot products on packed integers: separate rows of the VOP3P format."""
    rows = []
    for name, width, signed in (
        ("v_dot2_i32_i16", 16, True),
        ("v_dot2_u32_u16", 16, False),
        ("v_dot4_i32_i8", 8, True),
        ("v_dot4_u32_u8", 8, False),
        ("v_dot8_i32_i4", 4, True),
        ("v_dot8_u32_u4", 4, False),
    ):
        meaning = lambda a, b, c, width=width, signed=signed: _dot(width, signed, a, b, c)  # noqa: E731
        rows.append(row(name, "valu", "VOP3P", "u32 <- pki pki u32", meaning))
    return rows


ROWS = [*_integers(), *_conversions(), *_dots()]
