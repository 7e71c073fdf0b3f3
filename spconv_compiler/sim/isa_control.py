"""More scalar opcodes: bit fields, conditional moves, EXEC updates, hardware registers, clocks and caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spconv_compiler.sim import algebra as al
from spconv_compiler.sim.floats import I32, U32, U64
from spconv_compiler.sim.rows import Access, Row, row

_ONES64 = U64(0xFFFFFFFFFFFFFFFF)


def _nonzero(function: Callable[..., Any]) -> Callable[..., Any]:
    def meaning(*sources: al.Array) -> tuple[al.Array, al.Array]:
        result = function(*sources)
        return result, result != 0

    return meaning


def _bits64(width: al.Array) -> al.Array:
    """The lowest `width` bits of 64; width: uint32 up to 64."""
    below = (U64(1) << al.zext(width & U32(63))) - U64(1)
    return al.select(width > U32(63), _ONES64, below)


def _width(b: al.Array, most: int) -> al.Array:
    return al.minimum(b >> U32(16) & U32(0x7F), U32(most))


def _field_i32(a: al.Array, b: al.Array) -> al.Array:
    width = _width(b, 32)
    low = (al.bits_of(a) >> (b & U32(31))) & al.mask_bits(width)
    spare = U32(32) - width
    moved = al.as_i32(low << (spare & U32(31))) >> al.as_i32(spare & U32(31))
    return al.select(width == U32(0), I32(0), moved)


def _field_u64(a: al.Array, b: al.Array) -> al.Array:
    return a >> al.zext(b & U32(63)) & _bits64(_width(b, 64))


def _field_i64(a: al.Array, b: al.Array) -> al.Array:
    width = _width(b, 64)
    spare = al.zext(U32(64) - width & U32(63))
    moved = al.as_i64(_field_u64(al.bits_of(a), b) << spare) >> al.as_i64(spare)
    return al.select(width == U32(0), np.int64(0), moved)


def _abs_difference(a: al.Array, b: al.Array) -> al.Array:
    return al.select(a > b, a - b, b - a)


def _leading_zeros64(a: al.Array) -> al.Array:
    high, low = al.leading_zeros(al.high(a)), al.leading_zeros(al.low(a))
    below = al.select(al.low(a) == U32(0), low, low + U32(32))
    return al.select(al.high(a) == U32(0), below, high)


def _sign_bits32(a: al.Array) -> al.Array:
    return al.leading_zeros(al.bits_of(al.select(a < I32(0), ~a, a)))


def _sign_bits64(a: al.Array) -> al.Array:
    return _leading_zeros64(al.bits_of(al.select(a < np.int64(0), ~a, a)))


def _reverse64(a: al.Array) -> al.Array:
    return al.join(al.reverse_bits(al.high(a)), al.reverse_bits(al.low(a)))


def _replicate(a: al.Array) -> al.Array:
    """Every bit twice."""
    wide = al.zext(a)
    for shift, mask in ((16, 0x0000FFFF0000FFFF), (8, 0x00FF00FF00FF00FF), (4, 0x0F0F0F0F0F0F0F0F),
                        (2, 0x3333333333333333), (1, 0x5555555555555555)):  # fmt: skip
        wide = (wide | wide << U64(shift)) & U64(mask)
    return wide | wide << U64(1)


def _quads(a: al.Array) -> al.Array:
    """A bit for each four bits: whether one of them is set; uint64, below 16 bits of result."""
    some = a | a >> U64(1)
    some = (some | some >> U64(2)) & U64(0x1111111111111111)
    for shift, mask in ((3, 0x0303030303030303), (6, 0x000F000F000F000F), (12, 0x000000FF000000FF), (24, 0xFFFF)):
        some = (some | some >> U64(shift)) & U64(mask)
    return some


def _whole_quads(a: al.Array) -> al.Array:
    some = a | a >> U64(1)
    some = (some | some >> U64(2)) & U64(0x1111111111111111)
    return some * U64(15)


def _pack(low: int, high: int) -> Callable[..., Any]:
    """A half of each source: 0 the low one, 1 the high one."""

    def meaning(a: al.Array, b: al.Array) -> al.Array:
        first = a >> U32(16) if low else a & U32(0xFFFF)
        return first | (b & U32(0xFFFF0000) if high else b << U32(16))

    return meaning


def _arithmetic() -> list[Row]:
    return [
        row("s_bfe_i32", "salu", "SOP2", "i32 scc <- i32 u32", _nonzero(_field_i32)),
        row("s_bfe_u64", "salu", "SOP2", "u64 scc <- u64 u32", _nonzero(_field_u64)),
        row("s_bfe_i64", "salu", "SOP2", "i64 scc <- i64 u32", _nonzero(_field_i64)),
        row("s_bfm_b32", "salu", "SOP2", "u32 <- u32 u32", lambda a, b: al.mask_bits(a & U32(31)) << (b & U32(31))),
        row(
            "s_bfm_b64",
            "salu",
            "SOP2",
            "u64 <- u32 u32",
            lambda a, b: _bits64(a & U32(63)) << al.zext(b & U32(63)),
        ),
        row(
            "s_ashr_i64",
            "salu",
            "SOP2",
            "i64 scc <- i64 u32",
            _nonzero(lambda a, b: a >> al.as_i64(al.zext(b & U32(63)))),
        ),
        row("s_absdiff_i32", "salu", "SOP2", "i32 scc <- i32 i32", _nonzero(_abs_difference)),
        row("s_pack_lh_b32_b16", "salu", "SOP2", "u32 <- u32 u32", _pack(0, 1)),
        row("s_pack_hh_b32_b16", "salu", "SOP2", "u32 <- u32 u32", _pack(1, 1)),
        row("s_cmov_b32", "salu", "SOP1", "u32 <- u32 u32 scc", lambda old, a, scc: al.select(scc, a, old), tied=True),
        row("s_cmov_b64", "salu", "SOP1", "u64 <- u64 u64 scc", lambda old, a, scc: al.select(scc, a, old), tied=True),
        row("s_cmovk_i32", "salu", "SOPK", "i32 <- i32 k16 scc", lambda old, k, scc: al.select(scc, k, old), tied=True),
        row("s_brev_b64", "salu", "SOP1", "u64 <- u64", _reverse64),
        row("s_bcnt0_i32_b32", "salu", "SOP1", "u32 scc <- u32", _nonzero(lambda a: al.popcount(~a))),
        row("s_bcnt0_i32_b64", "salu", "SOP1", "u32 scc <- u64", _nonzero(lambda a: al.popcount(~a))),
        row("s_ff0_i32_b32", "salu", "SOP1", "u32 <- u32", lambda a: al.lowest_bit(~a)),
        row("s_ff0_i32_b64", "salu", "SOP1", "u32 <- u64", lambda a: al.lowest_bit(~a)),
        row("s_flbit_i32_b64", "salu", "SOP1", "u32 <- u64", _leading_zeros64),
        row("s_flbit_i32", "salu", "SOP1", "u32 <- i32", _sign_bits32),
        row("s_flbit_i32_i64", "salu", "SOP1", "u32 <- i64", _sign_bits64),
        row("s_sext_i32_i8", "salu", "SOP1", "i32 <- i32", lambda a: a << I32(24) >> I32(24)),
        row(
            "s_bitset0_b64",
            "salu",
            "SOP1",
            "u64 <- u64 u32",
            lambda old, n: old & ~(U64(1) << al.zext(n & U32(63))),
            tied=True,
        ),
        row(
            "s_bitset1_b64",
            "salu",
            "SOP1",
            "u64 <- u64 u32",
            lambda old, n: old | U64(1) << al.zext(n & U32(63)),
            tied=True,
        ),
        row("s_bitreplicate_b64_b32", "salu", "SOP1", "u64 <- u32", _replicate),
        row("s_wqm_b64", "salu", "SOP1", "u64 scc <- u64", _nonzero(_whole_quads)),
        row("s_quadmask_b64", "salu", "SOP1", "u64 scc <- u64", _nonzero(_quads)),
        *(
            row(
                f"s_bitcmp{value}_b64",
                "salu",
                "SOPC",
                "scc <- u64 u32",
                lambda a, b, value=value: (a >> al.zext(b & U32(63)) & U64(1)) == U64(value),
            )
            for value in (0, 1)
        ),
    ]


_SAVE: dict[str, Callable[..., Any]] = {
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
    "andn1": lambda a, b: ~a & b,
    "orn1": lambda a, b: ~a | b,
}


def _exec_updates() -> list[Row]:
    rows = [row(f"s_{name}_saveexec_b64", "saveexec", "SOP1", "u64 scc <- u64", f) for name, f in _SAVE.items()]
    return rows


def _hardware() -> list[Row]:
    quiet = ("s_wakeup", "s_icache_inv", "s_ttracedata")
    return [
        row("s_getreg_b32", "getreg", "SOPK", "u32 <- hwreg"),
        row("s_setreg_b32", "setreg", "SOPK", "<- hwreg u32"),
        row("s_setreg_imm32_b32", "setreg", "SOPK", "<- hwreg imm32"),
        row("s_trap", "trap", "SOPP", "<- k16"),
        *(row(name, "nop", "SOPP") for name in quiet),
        row("s_memtime", "clock", "SMEM", "u64 <-"),
        row("s_memrealtime", "clock", "SMEM", "u64 <-"),
        row("s_dcache_inv", "cache", "SMEM"),
        row("s_dcache_wb", "cache", "SMEM"),
        row("s_dcache_inv_vol", "cache", "SMEM"),
        row("buffer_wbl2", "cache", "MUBUF"),
        row("buffer_inv", "cache", "MUBUF"),
    ]


def _loads() -> list[Row]:
    types = {1: "u32", 2: "u64", 4: "u128", 8: "u256", 16: "u512"}
    rows = []
    for dwords, kind in types.items():
        suffix = "dword" if dwords == 1 else f"dwordx{dwords}"
        access = Access("load", 4 * dwords)
        rows.append(row(f"s_buffer_load_{suffix}", "smem", "SMEM", f"{kind} <- u128", access=access))
    return rows


ROWS = [*_arithmetic(), *_exec_updates(), *_hardware(), *_loads()]
