"""Scalar opcodes: arithmetic, control, scalar loads. Meanings from the CDNA3 and CDNA4 ISA documents, SOP chapters."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from spconv_compiler.sim import algebra as al
from spconv_compiler.sim.rows import Access, Row, row


def _nonzero(function: Callable[..., Any]) -> Callable[..., Any]:
    """The result, and whether it is not zero (SCC)."""

    def meaning(*sources: al.Array) -> tuple[al.Array, al.Array]:
        result = function(*sources)
        return result, result != 0

    return meaning


def _add_i32(a: al.Array, b: al.Array) -> tuple[al.Array, al.Array]:
    total = a + b
    return total, ((a ^ total) & (b ^ total)) < 0


def _sub_i32(a: al.Array, b: al.Array) -> tuple[al.Array, al.Array]:
    rest = a - b
    return rest, ((a ^ b) & (a ^ rest)) < 0


def _add_u32(a: al.Array, b: al.Array, carry: al.Array | None = None) -> tuple[al.Array, al.Array]:
    total = al.zext(a) + al.zext(b)
    if carry is not None:
        total = total + al.zext(carry)
    return al.low(total), al.high(total) != 0


def _sub_u32(a: al.Array, b: al.Array, borrow: al.Array | None = None) -> tuple[al.Array, al.Array]:
    rest = al.zext(a) - al.zext(b)
    if borrow is not None:
        rest = rest - al.zext(borrow)
    return al.low(rest), al.high(rest) != 0


def _shift_add(bits: int) -> Callable[..., Any]:
    def meaning(a: al.Array, b: al.Array) -> tuple[al.Array, al.Array]:
        total = (al.zext(a) << np.uint64(bits)) + al.zext(b)
        return al.low(total), al.high(total) != 0

    return meaning


def _extremum(smaller: Callable[..., Any]) -> Callable[..., Any]:
    def meaning(a: al.Array, b: al.Array) -> tuple[al.Array, al.Array]:
        return al.select(smaller(a, b), a, b), smaller(a, b)

    return meaning


def _field(a: al.Array, b: al.Array) -> al.Array:
    """Bits [b & 31, … + (b >> 16 & 127)) of a."""
    width = al.minimum((b >> np.uint32(16)) & np.uint32(0x7F), np.uint32(32))
    return (a >> (b & np.uint32(31))) & al.mask_bits(width)


def _with_low_half(compare: Callable[..., Any]) -> Callable[..., Any]:
    """The unsigned forms extend the 16 bits with zeros."""
    return lambda a, k: compare(a, al.as_u32(k) & np.uint32(0xFFFF))


def _set_bit(old: al.Array, number: al.Array) -> al.Array:
    return old | np.uint32(1) << (number & np.uint32(31))


def _clear_bit(old: al.Array, number: al.Array) -> al.Array:
    return old & ~(np.uint32(1) << (number & np.uint32(31)))


_LOGIC: dict[str, Callable[..., Any]] = {
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}
_COMPARE: dict[str, Callable[..., Any]] = {
    "eq": operator.eq,
    "lg": operator.ne,
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}


def _arithmetic() -> list[Row]:
    rows = [
        row("s_add_u32", "salu", "SOP2", "u32 scc <- u32 u32", _add_u32),
        row("s_addc_u32", "salu", "SOP2", "u32 scc <- u32 u32 scc", _add_u32),
        row("s_sub_u32", "salu", "SOP2", "u32 scc <- u32 u32", _sub_u32),
        row("s_subb_u32", "salu", "SOP2", "u32 scc <- u32 u32 scc", _sub_u32),
        row("s_add_i32", "salu", "SOP2", "i32 scc <- i32 i32", _add_i32),
        row("s_sub_i32", "salu", "SOP2", "i32 scc <- i32 i32", _sub_i32),
        row("s_min_i32", "salu", "SOP2", "i32 scc <- i32 i32", _extremum(operator.lt)),
        row("s_min_u32", "salu", "SOP2", "u32 scc <- u32 u32", _extremum(operator.lt)),
        row("s_max_i32", "salu", "SOP2", "i32 scc <- i32 i32", _extremum(operator.gt)),
        row("s_max_u32", "salu", "SOP2", "u32 scc <- u32 u32", _extremum(operator.gt)),
        row("s_mul_i32", "salu", "SOP2", "i32 <- i32 i32", operator.mul),
        row("s_mul_hi_u32", "salu", "SOP2", "u32 <- u32 u32", lambda a, b: al.high(al.zext(a) * al.zext(b))),
        row("s_mul_hi_i32", "salu", "SOP2", "u32 <- i32 i32", lambda a, b: al.high(al.sext(a) * al.sext(b))),
        row("s_lshl_b32", "salu", "SOP2", "u32 scc <- u32 u32", _nonzero(lambda a, b: a << (b & np.uint32(31)))),
        row("s_lshr_b32", "salu", "SOP2", "u32 scc <- u32 u32", _nonzero(lambda a, b: a >> (b & np.uint32(31)))),
        row("s_ashr_i32", "salu", "SOP2", "i32 scc <- i32 i32", _nonzero(lambda a, b: a >> (b & np.int32(31)))),
        row("s_lshl_b64", "salu", "SOP2", "u64 scc <- u64 u32", _nonzero(lambda a, b: a << al.zext(b & np.uint32(63)))),
        row("s_lshr_b64", "salu", "SOP2", "u64 scc <- u64 u32", _nonzero(lambda a, b: a >> al.zext(b & np.uint32(63)))),
        row("s_bfe_u32", "salu", "SOP2", "u32 scc <- u32 u32", _nonzero(_field)),
        row("s_cselect_b32", "salu", "SOP2", "u32 <- u32 u32 scc", lambda a, b, scc: al.select(scc, a, b)),
        row("s_cselect_b64", "salu", "SOP2", "u64 <- u64 u64 scc", lambda a, b, scc: al.select(scc, a, b)),
        row(
            "s_pack_ll_b32_b16",
            "salu",
            "SOP2",
            "u32 <- u32 u32",
            lambda a, b: (a & np.uint32(0xFFFF)) | b << np.uint32(16),
        ),
        row("s_movk_i32", "salu", "SOPK", "i32 <- k16", lambda k: k),
        row("s_mov_b32", "salu", "SOP1", "u32 <- u32", lambda a: a),
        row("s_mov_b64", "salu", "SOP1", "u64 <- u64", lambda a: a),
        row("s_not_b32", "salu", "SOP1", "u32 scc <- u32", _nonzero(operator.invert)),
        row("s_not_b64", "salu", "SOP1", "u64 scc <- u64", _nonzero(operator.invert)),
        row("s_brev_b32", "salu", "SOP1", "u32 <- u32", al.reverse_bits),
        row("s_bcnt1_i32_b32", "salu", "SOP1", "u32 scc <- u32", _nonzero(al.popcount)),
        row("s_bcnt1_i32_b64", "salu", "SOP1", "u32 scc <- u64", _nonzero(al.popcount)),
        row("s_ff1_i32_b32", "salu", "SOP1", "u32 <- u32", al.lowest_bit),
        row("s_ff1_i32_b64", "salu", "SOP1", "u32 <- u64", al.lowest_bit),
        row("s_flbit_i32_b32", "salu", "SOP1", "u32 <- u32", al.leading_zeros),
        row("s_sext_i32_i16", "salu", "SOP1", "i32 <- i32", lambda a: a << np.int32(16) >> np.int32(16)),
        row("s_abs_i32", "salu", "SOP1", "i32 scc <- i32", _nonzero(al.absolute)),
    ]
    for bits in (1, 2, 3, 4):
        rows.append(row(f"s_lshl{bits}_add_u32", "salu", "SOP2", "u32 scc <- u32 u32", _shift_add(bits)))
    for name, function in _LOGIC.items():
        for width in (32, 64):
            signature = f"u{width} scc <- u{width} u{width}"
            rows.append(row(f"s_{name}_b{width}", "salu", "SOP2", signature, _nonzero(function)))
    return rows


def _read_modify_write() -> list[Row]:
    """Rows that read their destination, and those that update EXEC and keep its old value."""
    rows = [
        row("s_addk_i32", "salu", "SOPK", "i32 scc <- i32 k16", _add_i32, tied=True),
        row("s_mulk_i32", "salu", "SOPK", "i32 <- i32 k16", operator.mul, tied=True),
        row("s_bitset1_b32", "salu", "SOP1", "u32 <- u32 u32", _set_bit, tied=True),
        row("s_bitset0_b32", "salu", "SOP1", "u32 <- u32 u32", _clear_bit, tied=True),
    ]
    for name in ("and", "or", "xor", "andn2"):
        rows.append(row(f"s_{name}_saveexec_b64", "saveexec", "SOP1", "u64 scc <- u64", _LOGIC[name]))
    return rows


def _compares() -> list[Row]:
    rows = []
    for name, function in _COMPARE.items():
        for kind in ("i32", "u32"):
            rows.append(row(f"s_cmp_{name}_{kind}", "salu", "SOPC", f"scc <- {kind} {kind}", function))
        rows.append(row(f"s_cmpk_{name}_i32", "salu", "SOPK", "scc <- i32 k16", function))
        rows.append(row(f"s_cmpk_{name}_u32", "salu", "SOPK", "scc <- u32 k16", _with_low_half(function)))
    for name in ("eq", "lg"):
        rows.append(row(f"s_cmp_{name}_u64", "salu", "SOPC", "scc <- u64 u64", _COMPARE[name]))
    for value in (0, 1):
        rows.append(
            row(
                f"s_bitcmp{value}_b32",
                "salu",
                "SOPC",
                "scc <- u32 u32",
                lambda a, b, value=value: (a >> (b & np.uint32(31)) & np.uint32(1)) == value,
            )
        )
    return rows


def _control() -> list[Row]:
    conditions = ("scc0", "scc1", "vccz", "vccnz", "execz", "execnz")
    return [
        row("s_branch", "branch", "SOPP", "<- target"),
        *(row(f"s_cbranch_{condition}", "branch", "SOPP", "<- target") for condition in conditions),
        row("s_endpgm", "end", "SOPP"),
        row("s_barrier", "barrier", "SOPP"),
        row("s_waitcnt", "wait", "SOPP", "<- wait"),
        row("s_nop", "nop", "SOPP", "<- k16"),
        row("s_sleep", "nop", "SOPP", "<- k16"),
        row("s_setprio", "nop", "SOPP", "<- k16"),
    ]


def _loads() -> list[Row]:
    types = {1: "u32", 2: "u64", 4: "u128", 8: "u256", 16: "u512"}
    rows = []
    for dwords, kind in types.items():
        suffix = "dword" if dwords == 1 else f"dwordx{dwords}"
        rows.append(row(f"s_load_{suffix}", "smem", "SMEM", f"{kind} <- u64", access=Access("load", 4 * dwords)))
    return rows


ROWS = [*_arithmetic(), *_read_modify_write(), *_compares(), *_control(), *_loads()]
