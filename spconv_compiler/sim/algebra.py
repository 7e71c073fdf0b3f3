"""The primitives that opcode meanings are written in, beyond Python's operators, on numpy arrays.

Operands are arrays of one lane or wave per element: uint32, int32, uint64, int64, float32, or bool for a lane mask.
Integer arithmetic wraps.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

# An ndarray of one of the types above; spelled out, numpy's types would need a cast at every operator.
Array: TypeAlias = Any


def zext(a: Array) -> Array:
    """32 bits to 64, with zeros."""
    return a.astype(np.uint64)


def sext(a: Array) -> Array:
    """32 bits to 64, with the sign."""
    return a.astype(np.int32).astype(np.int64)


def low(a: Array) -> Array:
    """The low 32 bits of 64."""
    return a.astype(np.uint32)


def high(a: Array) -> Array:
    """The high 32 bits of 64."""
    return (a.astype(np.uint64) >> np.uint64(32)).astype(np.uint32)


def join(lo: Array, hi: Array) -> Array:
    """64 bits from two halves."""
    return lo.astype(np.uint64) | hi.astype(np.uint64) << np.uint64(32)


def select(condition: Array, a: Array, b: Array) -> Array:
    """a where the condition holds, else b."""
    return np.where(condition, a, b)


def as_i32(a: Array) -> Array:
    """The same 32 bits, signed."""
    return a.astype(np.uint32).view(np.int32)


def as_u32(a: Array) -> Array:
    """The low 32 bits, unsigned; a bool becomes 0 or 1."""
    return a.astype(np.uint32)


def mask_bits(count: Array) -> Array:
    """The lowest `count` bits set; 32-bit, count below 33."""
    return ((np.uint64(1) << count.astype(np.uint64)) - np.uint64(1)).astype(np.uint32)


def popcount(a: Array) -> Array:
    """Number of set bits, as uint32; of 32- or 64-bit words."""
    words = np.ascontiguousarray(a)[..., None].view(np.uint8)
    return _BYTE_ONES[words].sum(axis=-1, dtype=np.uint32)


def lowest_bit(a: Array) -> Array:
    """Index of the lowest set bit of 32- or 64-bit words, all ones if there is none."""
    ones = popcount((a & (~a + a.dtype.type(1))) - a.dtype.type(1))
    return np.where(a == 0, np.uint32(0xFFFFFFFF), ones)


def leading_zeros(a: Array) -> Array:
    """Zeros above the highest set bit of 32-bit words, all ones if there is none."""
    spread = a.copy()
    for shift in (1, 2, 4, 8, 16):
        spread |= spread >> np.uint32(shift)
    return np.where(a == 0, np.uint32(0xFFFFFFFF), np.uint32(32) - popcount(spread))


def reverse_bits(a: Array) -> Array:
    """32-bit words, bit 0 as bit 31 and so on."""
    words = np.ascontiguousarray(a.astype(">u4"))[..., None].view(np.uint8)
    return np.ascontiguousarray(_BYTE_REVERSED[words]).view("<u4")[..., 0]


def bf16_bits(a: Array) -> Array:
    """float32 rounded to nearest even in bfloat16, its 16 bits as uint32; a NaN stays one, made quiet."""
    bits = np.ascontiguousarray(a).view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint64(16)
    return np.where(np.isnan(a), (bits >> np.uint32(16)) | np.uint32(0x40), rounded.astype(np.uint32))


def f16_bits(a: Array) -> Array:
    """float32 rounded to nearest even in float16, its 16 bits as uint32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return a.astype(np.float16).view(np.uint16).astype(np.uint32)


def from_f16(bits: Array) -> Array:
    """The float32 value of the float16 in the low 16 bits."""
    with np.errstate(invalid="ignore"):
        return np.ascontiguousarray(bits.astype(np.uint16)).view(np.float16).astype(np.float32)


def from_bf16(bits: Array) -> Array:
    """The float32 value of the bfloat16 in the low 16 bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


_BYTE_ONES = np.array([bin(byte).count("1") for byte in range(256)], np.uint8)
_BYTE_REVERSED = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], np.uint8)
