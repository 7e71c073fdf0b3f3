"""Which lane each lane reads from: DPP controls, patterns of ds_swizzle, transposed LDS reads.

From the CDNA3 ISA document (DPP, DS_SWIZZLE_B32); the transposed reads from FlyDSL's copy atoms for gfx950.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from spconv_compiler.sim.rows import LaneMove

Lanes = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_LANE = np.arange(64)
_ROW, _IN_ROW = _LANE // 16, _LANE % 16


@functools.cache
def lane_sources(control: int) -> tuple[Lanes, Flags]:
    """(the lane that each lane reads, whether there is one) of a DPP control; any lane stands for none."""
    everywhere = np.ones(64, np.bool_)
    if control < 0x100:
        quad = np.array([control >> 2 * place & 3 for place in range(4)])
        return _LANE // 4 * 4 + quad[_LANE % 4], everywhere
    kind, count = control & 0x1F0, control & 15
    if kind == 0x100:
        return _within_row(_IN_ROW + count)
    if kind == 0x110:
        return _within_row(_IN_ROW - count)
    if kind == 0x120:
        return 16 * _ROW + (_IN_ROW - count) % 16, everywhere
    if kind == 0x150:
        return 16 * _ROW + count, everywhere
    match control:
        case 0x130:
            return np.minimum(_LANE + 1, 63), _LANE < 63
        case 0x134:
            return (_LANE + 1) % 64, everywhere
        case 0x138:
            return np.maximum(_LANE - 1, 0), _LANE > 0
        case 0x13C:
            return (_LANE - 1) % 64, everywhere
        case 0x140:
            return 16 * _ROW + 15 - _IN_ROW, everywhere
        case 0x141:
            return _LANE // 8 * 8 + 7 - _LANE % 8, everywhere
        case 0x142:
            # The last lane of a row goes to the next row.
            return np.maximum(16 * _ROW - 1, 0), _ROW > 0
        case 0x143:
            return np.full(64, 31), _LANE >= 32
    raise ValueError(f"DPP control 0x{control:x}")


def _within_row(place: Lanes) -> tuple[Lanes, Flags]:
    return 16 * _ROW + np.clip(place, 0, 15), (place >= 0) & (place < 16)


@functools.cache
def _written(rows: int, banks: int) -> Flags:
    return np.asarray((rows >> _ROW & 1 != 0) & (banks >> _IN_ROW // 4 & 1 != 0))


def written_lanes(move: LaneMove) -> Flags:
    """Lanes that row and bank masks leave on."""
    return _written(move.rows, move.banks)


@functools.cache
def swizzle_sources(pattern: int) -> Lanes:
    """The lane that each lane reads in ds_swizzle_b32: within four lanes, or within 32 by and, or, xor."""
    if pattern & 0x8000:
        quad = np.array([pattern >> 2 * place & 3 for place in range(4)])
        return np.asarray(_LANE // 4 * 4 + quad[_LANE % 4])
    keep, set_, flip = pattern & 31, pattern >> 5 & 31, pattern >> 10 & 31
    return np.asarray(_LANE // 32 * 32 + ((_LANE % 32 & keep | set_) ^ flip))


@functools.cache
def transposed_sources(bits: int) -> tuple[Lanes, Lanes]:
    """(lane, element), [64, n]: where each of the n elements of `bits` bits comes from in a transposed LDS read.

    A block of 16 lanes reads a tile: as many elements a lane as a row of the tile has in its share. For 16 bits, lane l
    gets as element n what lane l / 4 + 4 n of its block read as element l mod 4.
    """
    count = {16: 4, 8: 8, 4: 16, 6: 16}[bits]
    lane, element = np.meshgrid(_LANE, np.arange(count), indexing="ij")
    share = 16 // count
    return lane // 16 * 16 + (lane % 16 // count + share * element) % 16, lane % count
