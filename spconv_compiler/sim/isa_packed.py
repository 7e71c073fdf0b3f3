"""Packed vector opcodes (VOP3P): the meaning is that of one half; halves and signs are chosen by modifiers.py."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from spconv_compiler.sim import algebra as al
from spconv_compiler.sim import floats as fl
from spconv_compiler.sim.floats import I32, SINGLE, U32
from spconv_compiler.sim.isa_half import add_i16, add_u16, signed, sub_i16, sub_u16, unsigned
from spconv_compiler.sim.rows import Row, row


def _floats() -> list[Row]:
    two: dict[str, Callable[..., Any]] = {
        "add": fl.half(operator.add),
        "mul": fl.half(operator.mul),
        "min": fl.half(SINGLE.minimum),
        "max": fl.half(SINGLE.maximum),
    }
    rows = [row(f"v_pk_{name}_f16", "valu", "VOP3P", "pkf <- pkf pkf", f, packed="16") for name, f in two.items()]
    three = "pkf <- pkf pkf pkf"
    rows += [
        row("v_pk_fma_f16", "valu", "VOP3P", three, fl.half_fma, packed="16"),
        row("v_pk_minimum3_f16", "valu", "VOP3P", three, fl.half(_ordered(SINGLE.minimum)), packed="16"),
        row("v_pk_maximum3_f16", "valu", "VOP3P", three, fl.half(_ordered(SINGLE.maximum)), packed="16"),
        row("v_pk_fma_f32", "valu", "VOP3P", "p32 <- p32 p32 p32", al.fma, packed="32"),
        row("v_pk_mul_f32", "valu", "VOP3P", "p32 <- p32 p32", operator.mul, packed="32"),
        row("v_pk_add_f32", "valu", "VOP3P", "p32 <- p32 p32", operator.add, packed="32"),
        row("v_pk_mov_b32", "valu", "VOP3P", "p32 <- p32 p32", lambda a, b: (a, b), packed="move"),
        row("v_fma_mix_f32", "valu", "VOP3P", "f32 <- mix mix mix", al.fma, packed="mix"),
        row("v_fma_mixlo_f16", "valu", "VOP3P", "h16 <- mix mix mix", al.fma, packed="mix", keeps=True),
        row("v_fma_mixhi_f16", "valu", "VOP3P", "h16 <- mix mix mix", al.fma, packed="mix high"),
        row("v_dot2_f32_f16", "valu", "VOP3P", "f32 <- pkf pkf f32", _dot(al.from_f16)),
        row("v_dot2_f32_bf16", "valu", "VOP3P", "f32 <- pkf pkf f32", _dot(al.from_bf16)),
    ]
    return rows


def _ordered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of three, where a NaN wins."""

    def meaning(a: al.Array, b: al.Array, c: al.Array) -> al.Array:
        result = function(function(a, b), c)
        for each in (c, b, a):
            result = al.select(al.is_nan(each), SINGLE.quieted(each), result)
        return result

    return meaning


def _dot(convert: Callable[..., Any]) -> Callable[..., Any]:
    """c plus two products, rounded once. The order of the hardware is not documented."""

    def meaning(a: al.Array, b: al.Array, c: al.Array) -> al.Array:
        parts = [(convert(each & U32(0xFFFF)), convert(each >> U32(16))) for each in (a, b)]
        low, high = (al.to_f64(left) * al.to_f64(right) for left, right in zip(*parts, strict=True))
        return al.to_f32(low + high + al.to_f64(c))

    return meaning


def _integers() -> list[Row]:
    shift = U32(15)
    two: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {
        "mul_lo_u16": (unsigned(operator.mul), None),
        "add_i16": (signed(operator.add), add_i16),
        "sub_i16": (signed(operator.sub), sub_i16),
        "add_u16": (unsigned(operator.add), add_u16),
        "sub_u16": (unsigned(operator.sub), sub_u16),
        "lshlrev_b16": (unsigned(lambda a, b: b << (a & shift)), None),
        "lshrrev_b16": (unsigned(lambda a, b: b >> (a & shift)), None),
        "ashrrev_i16": (signed(lambda a, b: b >> (a & I32(15))), None),
        "max_i16": (signed(al.maximum), None),
        "min_i16": (signed(al.minimum), None),
        "max_u16": (unsigned(al.maximum), None),
        "min_u16": (unsigned(al.minimum), None),
    }
    rows = [
        row(f"v_pk_{name}", "valu", "VOP3P", "pki <- pki pki", meaning, packed="16", saturated=saturated)
        for name, (meaning, saturated) in two.items()
    ]
    product = lambda a, b, c: a * b + c  # noqa: E731
    rows += [
        row("v_pk_mad_i16", "valu", "VOP3P", "pki <- pki pki pki", signed(product), packed="16"),
        row("v_pk_mad_u16", "valu", "VOP3P", "pki <- pki pki pki", unsigned(product), packed="16"),
    ]
    return rows


ROWS = [*_floats(), *_integers()]
