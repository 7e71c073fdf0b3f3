"""Vector opcodes: one lane at a time. Meanings from the CDNA3 and CDNA4 ISA documents, VOP chapters."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from spconv_compiler.sim import algebra as al
from spconv_compiler.sim.rows import MatrixShape, Row, row

_U31, _U63, _LOW24 = np.uint32(31), np.uint64(63), np.uint32(0xFFFFFF)


def _carry_add(a: al.Array, b: al.Array, carry: al.Array | None = None) -> tuple[al.Array, al.Array]:
    total = a + b
    if carry is None:
        return total, total < a
    whole = total + al.as_u32(carry)
    return whole, (total < a) | (whole < total)


def _borrow_sub(a: al.Array, b: al.Array, borrow: al.Array | None = None) -> tuple[al.Array, al.Array]:
    rest = a - b
    if borrow is None:
        return rest, a < b
    whole = rest - al.as_u32(borrow)
    return whole, (a < b) | (rest < whole)


def _swapped(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b, *more: function(b, a, *more)


def _mad_u64(a: al.Array, b: al.Array, c: al.Array) -> tuple[al.Array, al.Array]:
    total = al.zext(a) * al.zext(b) + c
    return total, total < c


def _perm(a: al.Array, b: al.Array, selector: al.Array) -> al.Array:
    """Bytes 0–3 are b, 4–7 are a; selectors 8–11 spread a sign, 12 is 0x00, above it 0xff."""
    both, result = al.join(b, a), None
    for place in range(4):
        choice = (selector >> np.uint32(8 * place)) & np.uint32(0xFF)
        byte = both >> (al.zext(choice & np.uint32(7)) * np.uint64(8))
        sign = both >> (al.zext(choice & np.uint32(3)) * np.uint64(16) + np.uint64(15)) & np.uint64(1)
        value = al.select(choice < 8, al.low(byte & np.uint64(0xFF)), al.low(sign * np.uint64(0xFF)))
        value = al.select(choice == 12, np.uint32(0), al.select(choice > 12, np.uint32(0xFF), value))
        value = value << np.uint32(8 * place)
        result = value if result is None else result | value
    return result


def _field(a: al.Array, offset: al.Array, width: al.Array) -> al.Array:
    return (a >> (offset & _U31)) & ((np.uint32(1) << (width & _U31)) - np.uint32(1))


def _lshl_add_u64(a: al.Array, shift: al.Array, b: al.Array) -> al.Array:
    return (a << al.zext(shift & np.uint32(7))) + b


def _med3(a: al.Array, b: al.Array, c: al.Array) -> al.Array:
    return al.maximum(al.minimum(a, b), al.minimum(al.maximum(a, b), c))


def _pack(bits: Callable[[al.Array], al.Array]) -> Callable[..., Any]:
    return lambda a, b: bits(a) | bits(b) << np.uint32(16)


def _saturated_add(a: al.Array, b: al.Array) -> al.Array:
    total = a + b
    return al.select(total < a, np.uint32(0xFFFFFFFF), total)


def _saturated_sub(a: al.Array, b: al.Array) -> al.Array:
    return al.select(a < b, np.uint32(0), a - b)


def _two_operands() -> list[Row]:
    both = "VOP2 VOP3"
    return [
        row("v_add_u32", "valu", both, "u32 <- u32 u32", operator.add, saturated=_saturated_add),
        row("v_sub_u32", "valu", both, "u32 <- u32 u32", operator.sub, saturated=_saturated_sub),
        row("v_subrev_u32", "valu", both, "u32 <- u32 u32", _swapped(operator.sub)),
        row("v_add_co_u32", "valu", both, "u32 mask <- u32 u32", _carry_add),
        row("v_sub_co_u32", "valu", both, "u32 mask <- u32 u32", _borrow_sub),
        row("v_subrev_co_u32", "valu", both, "u32 mask <- u32 u32", _swapped(_borrow_sub)),
        row("v_addc_co_u32", "valu", both, "u32 mask <- u32 u32 mask", _carry_add),
        row("v_subb_co_u32", "valu", both, "u32 mask <- u32 u32 mask", _borrow_sub),
        row("v_subbrev_co_u32", "valu", both, "u32 mask <- u32 u32 mask", _swapped(_borrow_sub)),
        row("v_cndmask_b32", "valu", both, "u32 <- u32 u32 mask", lambda a, b, mask: al.select(mask, b, a)),
        row("v_and_b32", "valu", both, "u32 <- u32 u32", operator.and_),
        row("v_or_b32", "valu", both, "u32 <- u32 u32", operator.or_),
        row("v_xor_b32", "valu", both, "u32 <- u32 u32", operator.xor),
        row("v_lshlrev_b32", "valu", both, "u32 <- u32 u32", lambda a, b: b << (a & _U31)),
        row("v_lshrrev_b32", "valu", both, "u32 <- u32 u32", lambda a, b: b >> (a & _U31)),
        row("v_ashrrev_i32", "valu", both, "i32 <- u32 i32", lambda a, b: b >> al.as_i32(a & _U31)),
        row("v_min_i32", "valu", both, "i32 <- i32 i32", al.minimum),
        row("v_max_i32", "valu", both, "i32 <- i32 i32", al.maximum),
        row("v_min_u32", "valu", both, "u32 <- u32 u32", al.minimum),
        row("v_max_u32", "valu", both, "u32 <- u32 u32", al.maximum),
        row("v_mul_u32_u24", "valu", both, "u32 <- u32 u32", lambda a, b: (a & _LOW24) * (b & _LOW24)),
    ]


def _one_operand() -> list[Row]:
    both = "VOP1 VOP3"
    return [
        row("v_mov_b32", "valu", both, "u32 <- u32", lambda a: a),
        row("v_mov_b64", "valu", both, "u64 <- u64", lambda a: a, upward=True),
        row("v_not_b32", "valu", both, "u32 <- u32", operator.invert),
        row("v_bfrev_b32", "valu", both, "u32 <- u32", al.reverse_bits),
        row("v_ffbh_u32", "valu", both, "u32 <- u32", al.leading_zeros),
        row("v_ffbl_b32", "valu", both, "u32 <- u32", al.lowest_bit),
        row("v_cvt_f32_f16", "valu", both, "f32 <- f16", al.from_f16),
        row("v_cvt_f16_f32", "valu", both, "f16 <- f32", al.f16_bits),
    ]


def _three_operands() -> list[Row]:
    return [
        row("v_add3_u32", "valu", "VOP3", "u32 <- u32 u32 u32", lambda a, b, c: a + b + c),
        row("v_lshl_add_u32", "valu", "VOP3", "u32 <- u32 u32 u32", lambda a, b, c: (a << (b & _U31)) + c),
        row("v_add_lshl_u32", "valu", "VOP3", "u32 <- u32 u32 u32", lambda a, b, c: (a + b) << (c & _U31)),
        row("v_lshl_or_b32", "valu", "VOP3", "u32 <- u32 u32 u32", lambda a, b, c: (a << (b & _U31)) | c),
        row("v_and_or_b32", "valu", "VOP3", "u32 <- u32 u32 u32", lambda a, b, c: (a & b) | c),
        row("v_or3_b32", "valu", "VOP3", "u32 <- u32 u32 u32", lambda a, b, c: a | b | c),
        row("v_xad_u32", "valu", "VOP3", "u32 <- u32 u32 u32", lambda a, b, c: (a ^ b) + c),
        row("v_bfi_b32", "valu", "VOP3", "u32 <- u32 u32 u32", lambda a, b, c: (a & b) | (~a & c)),
        row("v_bfe_u32", "valu", "VOP3", "u32 <- u32 u32 u32", _field),
        row("v_perm_b32", "valu", "VOP3", "u32 <- u32 u32 u32", _perm),
        row(
            "v_alignbit_b32",
            "valu",
            "VOP3",
            "u32 <- u32 u32 u32",
            lambda a, b, c: al.low(al.join(b, a) >> al.zext(c & _U31)),
        ),
        row("v_med3_i32", "valu", "VOP3", "i32 <- i32 i32 i32", _med3),
        row("v_med3_u32", "valu", "VOP3", "u32 <- u32 u32 u32", _med3),
        row("v_mad_u32_u24", "valu", "VOP3", "u32 <- u32 u32 u32", lambda a, b, c: (a & _LOW24) * (b & _LOW24) + c),
        row("v_mad_u64_u32", "valu", "VOP3", "u64 mask <- u32 u32 u64", _mad_u64, upward=True),
        row("v_lshl_add_u64", "valu", "VOP3", "u64 <- u64 u32 u64", _lshl_add_u64, upward=True),
        row("v_mul_lo_u32", "valu", "VOP3", "u32 <- u32 u32", operator.mul),
        row("v_mul_hi_u32", "valu", "VOP3", "u32 <- u32 u32", lambda a, b: al.high(al.zext(a) * al.zext(b))),
        row("v_mul_hi_i32", "valu", "VOP3", "u32 <- i32 i32", lambda a, b: al.high(al.sext(a) * al.sext(b))),
        row("v_lshlrev_b64", "valu", "VOP3", "u64 <- u32 u64", lambda a, b: b << (al.zext(a) & _U63), upward=True),
        row("v_lshrrev_b64", "valu", "VOP3", "u64 <- u32 u64", lambda a, b: b >> (al.zext(a) & _U63)),
        row("v_ashrrev_i64", "valu", "VOP3", "i64 <- u32 i64", lambda a, b: b >> al.as_i64(al.zext(a) & _U63)),
        row("v_bcnt_u32_b32", "valu", "VOP3", "u32 <- u32 u32", lambda a, b: al.popcount(a) + b),
        row("v_cvt_pk_bf16_f32", "valu", "VOP3", "u32 <- f32 f32", _pack(al.bf16_bits)),
        row("v_cvt_pk_f16_f32", "valu", "VOP3", "u32 <- f32 f32", _pack(al.f16_bits)),
    ]


_INTEGERS: dict[str, Callable[..., Any]] = {
    "lt": operator.lt,
    "eq": operator.eq,
    "le": operator.le,
    "gt": operator.gt,
    "ne": operator.ne,
    "ge": operator.ge,
}
_FLOATS: dict[str, Callable[..., Any]] = {
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
    for kind in ("i32", "u32", "i64", "u64"):
        for name, function in _INTEGERS.items():
            rows.append(row(f"v_cmp_{name}_{kind}", "valu", "VOPC VOP3", f"mask <- {kind} {kind}", function))
    for name, function in _FLOATS.items():
        rows.append(row(f"v_cmp_{name}_f32", "valu", "VOPC VOP3", "mask <- f32 f32", function))
    return rows


def _lanes() -> list[Row]:
    return [
        row("v_readfirstlane_b32", "lane", "VOP1", "scalar <- v32"),
        row("v_readlane_b32", "lane", "VOP3", "scalar <- v32 lane"),
        row("v_mbcnt_lo_u32_b32", "lane", "VOP3", "u32 <- u32 u32"),
        row("v_mbcnt_hi_u32_b32", "lane", "VOP3", "u32 <- u32 u32"),
    ]


def _matrices() -> list[Row]:
    shapes = {
        "v_mfma_f32_16x16x32_bf16": MatrixShape(16, 16, 32, "bf16", 4),
        "v_mfma_f32_16x16x32_f16": MatrixShape(16, 16, 32, "f16", 4),
        "v_mfma_f32_16x16x4_f32": MatrixShape(16, 16, 4, "f32", 8),
        "v_mfma_f32_32x32x16_bf16": MatrixShape(32, 32, 16, "bf16", 8),
        "v_mfma_f32_32x32x16_f16": MatrixShape(32, 32, 16, "f16", 8),
        "v_mfma_f32_32x32x2_f32": MatrixShape(32, 32, 2, "f32", 16),
    }
    registers = {1: "u32", 4: "u128", 16: "u512"}
    rows = []
    for name, shape in shapes.items():
        operand = registers[shape.m * shape.k // 64 * (4 if shape.element == "f32" else 2) // 4]
        total = registers[shape.m * shape.n // 64]
        rows.append(row(name, "mfma", "MAI", f"{total} <- {operand} {operand} {total}", matrix=shape))
    return rows


ROWS = [*_two_operands(), *_one_operand(), *_three_operands(), *_compares(), *_lanes(), *_matrices()]
