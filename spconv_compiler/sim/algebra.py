"""The primitives that opcode meanings are written in, beyond Python's operators.

Operands are carriers of one lane or wave per element: uint32, int32, uint64, int64, float32, or bool for a lane mask.
The functions below work on numpy arrays. Another carrier, such as the SSA values of the native engine, brings its own
versions: a primitive hands the call to `operand.carry(name, operands)` where an operand has that. Functions without
@primitive are made of primitives and operators alone. Constants in meanings are numpy scalars. Integers wrap.
"""

from __future__ import annotations

import fractions
import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

# An ndarray of one of the types above; spelled out, numpy's types would need a cast at every operator.
Array: TypeAlias = Any


def primitive(function: Callable[..., Array]) -> Callable[..., Array]:
    """Makes a function on numpy arrays a primitive that other carriers bring themselves."""
    name = function.__name__

    @functools.wraps(function)
    def call(*operands: Array) -> Array:
        for operand in operands:
            carry = getattr(operand, "carry", None)
            if carry is not None:
                return carry(name, operands)
        return function(*operands)

    return call


@primitive
def zext(a: Array) -> Array:
    """32 bits, or a bool, to 64, with zeros."""
    return a.astype(np.uint64)


@primitive
def sext(a: Array) -> Array:
    """32 bits to 64, with the sign."""
    return a.astype(np.int32).astype(np.int64)


@primitive
def low(a: Array) -> Array:
    """The low 32 bits of 64."""
    return a.astype(np.uint32)


@primitive
def high(a: Array) -> Array:
    """The high 32 bits of 64."""
    return (a.astype(np.uint64) >> np.uint64(32)).astype(np.uint32)


def join(lo: Array, hi: Array) -> Array:
    """64 bits from two halves."""
    return zext(lo) | zext(hi) << np.uint64(32)


@primitive
def select(condition: Array, a: Array, b: Array) -> Array:
    """a where the condition holds, else b."""
    return np.where(condition, a, b)


@primitive
def as_i32(a: Array) -> Array:
    """The same 32 bits, signed."""
    return a.astype(np.uint32).view(np.int32)


@primitive
def as_u32(a: Array) -> Array:
    """The low 32 bits, unsigned; a bool becomes 0 or 1."""
    return a.astype(np.uint32)


@primitive
def as_i64(a: Array) -> Array:
    """The same 64 bits, signed."""
    return a.view(np.int64)


@primitive
def minimum(a: Array, b: Array) -> Array:
    """The smaller integer."""
    return np.minimum(a, b)


@primitive
def maximum(a: Array, b: Array) -> Array:
    """The larger integer."""
    return np.maximum(a, b)


@primitive
def absolute(a: Array) -> Array:
    """Of int32; the smallest number stays."""
    return np.abs(a)


@primitive
def is_nan(a: Array) -> Array:
    """Whether a float is no number."""
    return np.isnan(a)


def mask_bits(count: Array) -> Array:
    """The lowest `count` bits set; 32-bit, count below 33."""
    return low((np.uint64(1) << zext(count)) - np.uint64(1))


@primitive
def popcount(a: Array) -> Array:
    """Number of set bits, as uint32; of 32- or 64-bit words."""
    words = np.ascontiguousarray(a)[..., None].view(np.uint8)
    return _BYTE_ONES[words].sum(axis=-1, dtype=np.uint32)


@primitive
def lowest_bit(a: Array) -> Array:
    """Index of the lowest set bit of 32- or 64-bit words, all ones if there is none."""
    ones = popcount((a & (~a + a.dtype.type(1))) - a.dtype.type(1))
    return np.where(a == 0, np.uint32(0xFFFFFFFF), ones)


@primitive
def leading_zeros(a: Array) -> Array:
    """Zeros above the highest set bit of 32-bit words, all ones if there is none."""
    spread = a.copy()
    for shift in (1, 2, 4, 8, 16):
        spread |= spread >> np.uint32(shift)
    return np.where(a == 0, np.uint32(0xFFFFFFFF), np.uint32(32) - popcount(spread))


@primitive
def reverse_bits(a: Array) -> Array:
    """32-bit words, bit 0 as bit 31 and so on."""
    words = np.ascontiguousarray(a.astype(">u4"))[..., None].view(np.uint8)
    return np.ascontiguousarray(_BYTE_REVERSED[words]).view("<u4")[..., 0]


@primitive
def bf16_bits(a: Array) -> Array:
    """float32 rounded to nearest even in bfloat16, its 16 bits as uint32; a NaN stays one, made quiet."""
    bits = np.ascontiguousarray(a).view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint64(16)
    return np.where(np.isnan(a), (bits >> np.uint32(16)) | np.uint32(0x40), rounded.astype(np.uint32))


@primitive
def f16_bits(a: Array) -> Array:
    """float32 rounded to nearest even in float16, its 16 bits as uint32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return a.astype(np.float16).view(np.uint16).astype(np.uint32)


@primitive
def from_f16(bits: Array) -> Array:
    """The float32 value of the float16 in the low 16 bits."""
    with np.errstate(invalid="ignore"):
        return np.ascontiguousarray(bits.astype(np.uint16)).view(np.float16).astype(np.float32)


@primitive
def from_bf16(bits: Array) -> Array:
    """The float32 value of the bfloat16 in the low 16 bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


_BYTE_ONES = np.array([bin(byte).count("1") for byte in range(256)], np.uint8)
_BYTE_REVERSED = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], np.uint8)


# Floats: float32 and float64. Every result is rounded once, to nearest even, and denormals are kept.


@primitive
def as_f32(a: Array) -> Array:
    """The float with these 32 bits."""
    return np.ascontiguousarray(a.astype(np.uint32)).view(np.float32)


@primitive
def as_f64(a: Array) -> Array:
    """The float with these 64 bits."""
    return np.ascontiguousarray(a.astype(np.uint64)).view(np.float64)


@primitive
def bits_of(a: Array) -> Array:
    """The bits of a float32 or int32 as uint32, of a float64 or int64 as uint64; of unsigned numbers as they are."""
    return np.ascontiguousarray(a).view(np.uint64 if a.dtype.itemsize == 8 else np.uint32)


@primitive
def to_f64(a: Array) -> Array:
    """The value of a float32, int32 or uint32, which is exact; of an int64 or uint64 rounded."""
    return a.astype(np.float64)


@primitive
def to_f32(a: Array) -> Array:
    """The value of a float64, int32 or uint32, rounded."""
    with np.errstate(over="ignore", invalid="ignore"):
        return a.astype(np.float32)


@primitive
def to_i32(a: Array) -> Array:
    """A float without its fraction; the nearest int32 where there is none, 0 for a NaN."""
    whole = np.nan_to_num(a.astype(np.float64), nan=0.0)
    return np.clip(np.trunc(whole), -(2.0**31), 2.0**31 - 1).astype(np.int64).astype(np.int32)


@primitive
def to_u32(a: Array) -> Array:
    """A float without its fraction; the nearest uint32 where there is none, 0 for a NaN."""
    whole = np.nan_to_num(a.astype(np.float64), nan=0.0)
    return np.clip(np.trunc(whole), 0.0, 2.0**32 - 1).astype(np.int64).astype(np.uint32)


@primitive
def round_even(a: Array) -> Array:
    """The nearest whole number, the even one of two."""
    return np.rint(a)


@primitive
def floor(a: Array) -> Array:
    """The largest whole number that is not above."""
    return np.floor(a)


@primitive
def truncate(a: Array) -> Array:
    """The float without its fraction."""
    return np.trunc(a)


@primitive
def sqrt(a: Array) -> Array:
    """The square root; a NaN of a negative number."""
    with np.errstate(invalid="ignore"):
        return np.sqrt(a)


@primitive
def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c with one rounding; all float32, or all float64."""
    a, b, c = np.broadcast_arrays(a, b, c)
    if a.dtype == np.float64:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.array([_fma64(*each) for each in zip(a.flat, b.flat, c.flat, strict=True)]).reshape(a.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
        total = product + addend
        # Rounding to odd first makes the second rounding, to float32, the right one (Boldo and Melquiond, 2008).
        part = total - product
        error = (product - (total - part)) + (addend - part)
        bits = total.view(np.int64)
        inexact = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
        toward = np.where((error > 0) == (total > 0), 1, -1)
        return np.where(inexact, bits + toward, bits).view(np.float64).astype(np.float32)


def _fma64(a: np.float64, b: np.float64, c: np.float64) -> float:
    if not (np.isfinite(a) and np.isfinite(b)):
        return float(a * b + c)
    if not np.isfinite(c):
        return float(c)
    exact = fractions.Fraction(float(a)) * fractions.Fraction(float(b)) + fractions.Fraction(float(c))
    if exact == 0:
        return float(a * b + c) if a * b == 0 else 0.0
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf
