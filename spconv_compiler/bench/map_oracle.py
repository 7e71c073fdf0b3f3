"""What a map has to hold, by numpy alone, and what different builders' maps hold, in one form to compare."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.bench.frames import Frame
from spconv_compiler.driver import KernelMap
from spconv_compiler.geometry import ConvGeometry
from spconv_compiler.schedules.chunk_stationary import CHUNK_ROWS
from spconv_compiler.sparse_map import SparseMap

Ints = npt.NDArray[np.int64]
# A pair's output row within its chunk is above its input row (passes/cpu/chunk_pairs.py).
_PLACE_SHIFT, _ROW_MASK = 32, (1 << 32) - 1


@dataclasses.dataclass(frozen=True, eq=False)
class Triples:
    """The pairs of a map: int64 [P, 3] of (tap, input row, output row), and the coordinates of output rows."""

    pairs: Ints
    out_coords: npt.NDArray[np.int32]


def wanted(frame: Frame, geometry: ConvGeometry, *, submanifold: bool) -> Triples:
    """The map of a frame: from the reference's table, or by trying every tap on every voxel."""
    if submanifold:
        row, column = np.nonzero(frame.table >= 0)
        return Triples(np.stack([column, frame.table[row, column], row], axis=1).astype(np.int64), frame.coords)
    shape = geometry.output_shape((frame.spatial_shape[0], frame.spatial_shape[1], frame.spatial_shape[2]))
    places = frame.coords[:, 1:].astype(np.int64) + geometry.padding
    found: list[Ints] = []
    numbers: list[Ints] = []
    for tap, index in enumerate(np.ndindex(geometry.kernel_size)):
        moved = places - np.array(index) * geometry.dilation
        out = moved // geometry.stride
        met = ((moved % geometry.stride == 0) & (out >= 0) & (out < shape)).all(axis=1)
        rows = np.flatnonzero(met)
        found.append(np.stack([np.full(len(rows), tap), rows], axis=1))
        cells = frame.coords[rows, 0].astype(np.int64)
        for axis, size in enumerate(shape):
            cells = cells * size + out[rows, axis]
        numbers.append(cells)
    cells, out_rows = np.unique(np.concatenate(numbers), return_inverse=True)
    volume = shape[0] * shape[1] * shape[2]
    columns = [cells // volume, *np.unravel_index(cells % volume, shape)]
    pairs = np.concatenate([np.concatenate(found), out_rows.reshape(-1, 1)], axis=1)
    return Triples(pairs.astype(np.int64), np.stack(columns, axis=1).astype(np.int32))


def same(found: Triples, oracle: Triples) -> bool:
    """Whether two maps have the same outputs in some order, and between them the same pairs."""
    if found.pairs.shape != oracle.pairs.shape or found.out_coords.shape != oracle.out_coords.shape:
        return False
    orders = [np.lexsort(one.out_coords.T[::-1]) for one in (found, oracle)]
    if not np.array_equal(found.out_coords[orders[0]], oracle.out_coords[orders[1]]):
        return False
    left, right = (_ordered(one, order) for one, order in zip((found, oracle), orders, strict=True))
    return np.array_equal(left, right)


def _ordered(map_: Triples, order: npt.NDArray[np.intp]) -> Ints:
    """Pairs in one order, with outputs numbered as their coordinates ascend."""
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    pairs = map_.pairs.copy()
    if len(pairs) and (pairs[:, 2].min() < 0 or pairs[:, 2].max() >= len(rank)):
        return pairs[:0]
    pairs[:, 2] = rank[pairs[:, 2]]
    return pairs[np.lexsort(pairs.T[::-1])]


def sparse_map_triples(made: tuple[SparseMap, Any]) -> Triples:
    """Of (a map, coordinates of its outputs)."""
    return Triples(np.stack(made[0].pairs(), axis=1).astype(np.int64), np.asarray(made[1]))


def kernel_map_triples(made: tuple[KernelMap, Any]) -> Triples:
    """Of (a map on the CPU, its coordinates)."""
    map_, coords = made
    first = map_.buffers["chunk_first"].array()
    starts = map_.buffers["tap_first"].array().reshape(len(first), -1).astype(np.int64)
    sizes = np.diff(starts, axis=1)
    chunk, tap = np.divmod(np.repeat(np.arange(sizes.size), sizes.ravel()), sizes.shape[1])
    # Chunks stand in the list in the order in which workers finished them.
    before = np.repeat(np.cumsum(starts[:, -1]) - starts[:, -1], starts[:, -1])
    places = np.arange(len(before)) - before + np.repeat(first.astype(np.int64), starts[:, -1])
    words = map_.buffers["pairs"].array()[places].astype(np.int64)
    out_rows = map_.buffers["origin"].array()[chunk * CHUNK_ROWS + (words >> _PLACE_SHIFT)]
    pairs = np.stack([tap, words & _ROW_MASK, out_rows], axis=1).astype(np.int64)
    return Triples(pairs, np.asarray(coords))


def peer_triples(made: tuple[Any, Any, Any], *, submanifold: bool) -> Triples:
    """Of what SpconvMaps.build returns."""
    out_coords, pairs, counts = (np.asarray(one) for one in made)
    if submanifold:
        # It counts the taps before the centre; those after it mirror them, and through the centre all rows read.
        counts, half = counts.copy(), len(counts) // 2
        counts[half], counts[half + 1 :] = len(out_coords), counts[:half][::-1]
    parts = [
        np.stack([np.full(count, tap), pairs[0, tap, :count], pairs[1, tap, :count]], axis=1)
        for tap, count in enumerate(counts.tolist())
    ]
    return Triples(np.concatenate(parts).astype(np.int64), out_coords.astype(np.int32))
