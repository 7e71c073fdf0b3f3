"""MFMA: D = A · B + C on the fragments that 64 lanes hold.

Layout (AMD's matrix core documentation for CDNA3 and CDNA4): lane l holds row l mod M of A (column l mod N of B),
elements k = (l / M) · n + j for j below n, the elements that a lane has. D: column l mod N; rows 4 · (l / 16) + v in
16x16, 8 · (v / 4) + 4 · (l / 32) + v mod 4 in 32x32, in register v.
Products and sums are formed in float64 and rounded once: the hardware's order is not documented.
"""

from __future__ import annotations

import functools

import numpy as np

from spconv_compiler.sim import algebra as al
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


def fragment(shape: MatrixShape, registers: Array) -> Array:
    """float64 [waves, m, k] of A, or of B transposed, from registers uint32 [registers, waves, lane]."""
    if shape.element == "f32":
        values = registers.view(np.float32)
    else:
        unpack = al.from_bf16 if shape.element == "bf16" else al.from_f16
        halves = [unpack(registers & np.uint32(0xFFFF)), unpack(registers >> np.uint32(16))]
        values = np.stack(halves, axis=1).reshape(2 * len(registers), *registers.shape[1:])
    count, waves, _ = values.shape
    blocks = LANES // shape.m
    by_lane = values.transpose(1, 2, 0).reshape(waves, blocks, shape.m, count)
    return by_lane.transpose(0, 2, 1, 3).reshape(waves, shape.m, shape.k).astype(np.float64)


def multiply(shape: MatrixShape, a: Array, b: Array, c: Array) -> Array:
    """float32 [registers, waves, lane] of D; a, b: uint32 [registers, waves, lane]; c: float32 like D."""
    rows, columns = result_places(shape)
    with np.errstate(over="ignore", invalid="ignore"):
        product = fragment(shape, a) @ fragment(shape, b).transpose(0, 2, 1)
        total = product[:, rows, columns].transpose(1, 0, 2) + c.astype(np.float64)
        return total.astype(np.float32)


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
