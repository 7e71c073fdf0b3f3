"""The octree that RENO codes: voxels at every depth, and which children each of them has.

Follows You et al., "RENO: Real-Time Neural Compression for 3D LiDAR Point Clouds" (CVPR 2025).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spconv_compiler.errors import InputError

POS_Q = (512, 256, 128, 64, 32, 16, 8, 4)
"""The depths of the published results: edges of a voxel in millimetres."""

# Metres of one step of the raw lattice, and what is added so that a scan around the sensor has positive coordinates.
_LATTICE, _OFFSET = np.float32(0.001), np.float32(131072)
# The first level with fewer voxels than this is sent as it is.
_COARSEST = 64
# Bits of an axis in a packed key.
_AXIS_BITS = 21


@dataclass(frozen=True, eq=False)
class Level:
    """The voxels of one depth, ascending in (z, y, x).

    Attributes:
        coords: int32 [N, 4], (batch, z, y, x), batch 0.
        codes: uint8 [N]; bit (x&1) + 2(y&1) + 4(z&1) says that this child exists. None at the finest level.
        parents: int64 [N], rows of the next coarser level; empty at the coarsest.
        children: uint8 [N], each voxel's own bit number in its parent's code; empty at the coarsest.
    """

    coords: npt.NDArray[np.int32]
    codes: npt.NDArray[np.uint8] | None
    parents: npt.NDArray[np.int64]
    children: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return int(self.coords.shape[0])


def quantize(xyz: npt.NDArray[np.float32], step: int) -> npt.NDArray[np.int64]:
    """Cells that hold a point: int64 [N, 3] (z, y, x), distinct.

    Args:
        xyz: [P, 3] metres, finite.
        step: edge of a cell in millimetres, RENO's posQ. The arithmetic is float32, as in the published results.

    Raises:
        InputError: step is below 1, no points, or a point too far away for 20 bits an axis.
    """
    if step < 1:
        raise InputError(f"pos_q is {step}; accepted: a whole number of at least 1")
    if xyz.shape[0] == 0:
        raise InputError("the cloud has no point; accepted: at least one")
    cells = np.round((xyz.astype(np.float32) / _LATTICE + _OFFSET) / np.float32(step))
    farthest = np.abs(cells).max()
    if not farthest < 1 << (_AXIS_BITS - 1):
        raise InputError(f"a coordinate is {farthest:.4g} at pos_q {step}; accepted: below 2^{_AXIS_BITS - 1}")
    return _unpack(np.unique(_pack(cells.astype(np.int64)[:, ::-1])))


def pyramid(cells: npt.NDArray[np.int64]) -> list[Level]:
    """Levels from the coarsest, the first with fewer than 64 voxels, to the finest.

    Args:
        cells: int64 [N, 3] (z, y, x), distinct, at least one; see `quantize`.
    """
    levels: list[Level] = []
    codes: npt.NDArray[np.uint8] | None = None
    cells = _unpack(np.sort(_pack(cells)))
    while True:
        bits = ((cells & 1) @ np.array([4, 2, 1])).astype(np.uint8)
        above, parents = np.unique(_pack(cells >> 1), return_inverse=True)
        if levels and len(cells) < _COARSEST:
            levels.append(Level(_coords(cells), codes, np.zeros(0, np.int64), np.zeros(0, np.uint8)))
            return levels[::-1]
        levels.append(Level(_coords(cells), codes, parents.astype(np.int64), bits))
        codes = np.zeros(len(above), np.uint8)
        # Every child has a bit of its own: the sum of the bits is their union.
        np.add.at(codes, parents, np.left_shift(1, bits).astype(np.uint8))
        cells = _unpack(above)


def _coords(cells: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    coords = np.zeros((len(cells), 4), np.int32)
    coords[:, 1:] = cells
    return coords


def _pack(cells: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Keys that ascend in (z, y, x)."""
    shifted = cells + (1 << (_AXIS_BITS - 1))
    packed: npt.NDArray[np.int64] = (shifted[:, 0] << 2 * _AXIS_BITS) | (shifted[:, 1] << _AXIS_BITS) | shifted[:, 2]
    return packed


def _unpack(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    axes = [keys >> 2 * _AXIS_BITS, keys >> _AXIS_BITS, keys]
    return np.stack([axis & ((1 << _AXIS_BITS) - 1) for axis in axes], axis=1) - (1 << (_AXIS_BITS - 1))
