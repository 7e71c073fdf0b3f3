"""MFMA: D = A · B + C on the fragments that 64 lanes hold.

Layout (AMD's matrix core documentation for CDNA3 and CDNA4): lane l holds row l mod M of A (column l mod N of B),
elements k = (l / M) · n + j for j below n, the elements that a lane has. D: column l mod N; rows 4 · (l / 16) + v in
16x16, 8 · (v / 4) + 4 · (l / 32) + v mod 4 in 32x32, in register v.
Products and sums are formed in float64 and rounded once: the hardware's order is not documented. Sums of integers
wrap. A scale belongs to the 32 elements of its lane.
"""

from __future__ import annotations

import functools

import numpy as np

from spconv_compiler.sim import algebra as al
from spconv_compiler.sim import floats as fl
from spconv_compiler.sim.algebra import Array
from spconv_compiler.sim.rows import MatrixShape

LANES = 64
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@functools.cache
def result_places(shape: MatrixShape) -> tuple[Array, Array]:
    """(rows, columns), both [registers, lane], of the elements of C and D."""
    register, lane = np.meshgrid(np.arange(shape.m * shape.n // LANES), np.arange(LANES), indexing="ij")
    if shape.m == 16:
        return 4 * (lane // 16) + register, lane % 16
    return 8 * (register // 4) + 4 * (lane // 32) + register % 4, lane % 32


def _small_values(exponent_bits: int, mantissa_bits: int, bias: int) -> Array:
    """float64 of every bit pattern of a format without infinities and NaNs."""
    codes = np.arange(1 << 1 + exponent_bits + mantissa_bits)
    mantissa, exponent = codes & (1 << mantissa_bits) - 1, codes >> mantissa_bits & (1 << exponent_bits) - 1
    lead = np.where(exponent > 0, 1 << mantissa_bits, 0)
    values = (lead + mantissa) * 2.0 ** (np.maximum(exponent, 1) - bias - mantissa_bits)
    return np.where(codes >> exponent_bits + mantissa_bits, -values, values)


_SMALL = {
    "fp8": (8, fl.from_fp8(np.arange(256, dtype=np.uint32)).astype(np.float64)),
    "bf8": (8, fl.from_bf8(np.arange(256, dtype=np.uint32)).astype(np.float64)),
    "i8": (8, np.arange(256).astype(np.int8).astype(np.float64)),
    "fp6": (6, _small_values(2, 3, 1)),
    "bf6": (6, _small_values(3, 2, 3)),
    "fp4": (4, _small_values(2, 1, 1)),
}


def elements(kind: str, registers: Array) -> Array:
    """float64 [elements of a lane, waves, lane] from registers uint32 [registers, waves, lane]."""
    if kind == "f32":
        return registers.view(np.float32).astype(np.float64)
    if kind in ("bf16", "f16"):
        unpack = al.from_bf16 if kind == "bf16" else al.from_f16
        halves = [unpack(registers & np.uint32(0xFFFF)), unpack(registers >> np.uint32(16))]
        return np.stack(halves, axis=1).reshape(2 * len(registers), *registers.shape[1:]).astype(np.float64)
    width, values = _SMALL[kind]
    raw = np.ascontiguousarray(np.moveaxis(registers, 0, -1)).view(np.uint8)
    bits = np.unpackbits(raw, axis=-1, bitorder="little").reshape(*raw.shape[:-1], -1, width)
    codes = bits @ (1 << np.arange(width))
    return np.moveaxis(values[codes], -1, 0)


def fragment(shape: MatrixShape, registers: Array, kind: str = "") -> Array:
    """float64 [waves, m, k] of A, or of B transposed, from registers uint32 [registers, waves, lane]."""
    values = elements(kind or shape.element, registers)
    count, waves, _ = values.shape
    blocks = LANES // shape.m
    by_lane = values.transpose(1, 2, 0).reshape(waves, blocks, shape.m, count)
    return by_lane.transpose(0, 2, 1, 3).reshape(waves, shape.m, shape.k)


def scaled(shape: MatrixShape, part: Array, scale: Array) -> Array:
    """A or B [waves, m, k] times its scales, e8m0 uint32 [waves, lane]: lane l scales what it holds, 32 elements."""
    powers = np.where(scale == 255, np.nan, 2.0 ** (scale.astype(np.float64) - 127))
    by_block = powers.reshape(len(part), LANES // shape.m, shape.m).transpose(0, 2, 1)
    return part * np.repeat(by_block, shape.k * shape.m // LANES, axis=2)


def multiply(shape: MatrixShape, a: Array, b: Array, c: Array, scales: tuple[Array, Array] | None = None) -> Array:
    """uint32 [registers, waves, lane] of D; a, b, c: uint32 alike; scales: of A and B, uint32 [waves, lane]."""
    rows, columns = result_places(shape)
    with np.errstate(over="ignore", invalid="ignore"):
        left, right = fragment(shape, a), fragment(shape, b, shape.other)
        if scales is not None:
            left, right = scaled(shape, left, scales[0]), scaled(shape, right, scales[1])
        product = (left @ right.transpose(0, 2, 1))[:, rows, columns].transpose(1, 0, 2)
        if shape.result == "i32":
            return (product.astype(np.int64) + c.view(np.int32)).astype(np.uint32)
        return (product + c.view(np.float32).astype(np.float64)).astype(np.float32).view(np.uint32)


def defined(shape: MatrixShape, a: Array, b: Array, c: Array) -> Array:
    """uint64 [registers, waves]: lanes of D that are defined, from those of A, B and C.

    An element needs its row of A, its column of B and its element of C.
    """
    if (a == _ALL).all() and (b == _ALL).all():
        return c
    rows, columns = result_places(shape)
    whole = [_whole_rows(shape, operand) for operand in (a, b)]
    ready = whole[0][:, rows] & whole[1][:, columns]
    packed = np.packbits(ready, axis=-1, bitorder="little").view(np.uint64)[..., 0]
    return packed.transpose(1, 0) & c


def _whole_rows(shape: MatrixShape, operand: Array) -> Array:
    """bool [waves, m]: rows of A (columns of B) of which every element is defined."""
    lanes = np.bitwise_and.reduce(operand, axis=0)
    bits = np.unpackbits(lanes[:, None].view(np.uint8), axis=1, bitorder="little").astype(np.bool_)
    return bits.reshape(len(lanes), LANES // shape.m, shape.m).all(axis=1)
