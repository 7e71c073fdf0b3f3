"""Where the levels and maps of one run lie (level_options.py), and the kernels that build them, loaded on a GPU."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from spconv_compiler import level_options as lo
from spconv_compiler.compiler import compile_options
from spconv_compiler.coordinates import Box
from spconv_compiler.errors import InputError
from spconv_compiler.geometry import ConvGeometry
from spconv_compiler.level_options import LevelOptions
from spconv_compiler.runtime.gpu_plan import GpuPlan
from spconv_compiler.targets import GpuTarget, get_target

# Buffers of the plan that outlive the build: coordinates and numbers of levels, and what gemms read of maps.
LEVEL_ROWS, LEVEL_COUNTS = "level_rows", "level_counts"
MAP_BUFFERS = ("row_order", "sorted_table", "steps", "step_count")
_WORD_BYTES, _ROW_WORDS = 4, 4
# Rows of a block, which has one list of steps (passes/gpu/row_masks.py).
_BLOCK_ROWS = 256
_MOST_CELLS = 2**31
# The scan that ranks marks packs a count and two bits into a word (passes/gpu/device_scan.py).
_MOST_MARKS = 2**30 - 1


@dataclasses.dataclass(frozen=True)
class Span:
    """A part of a buffer, in bytes."""

    first: int
    nbytes: int


@dataclasses.dataclass(frozen=True)
class Layout:
    """One run.

    Attributes:
        options: levels and maps. rooms: rows that every level has room for; that of level 0 is what it has.
        boxes: around all that a level may hold.
        places: i32, what kernels read. symbols: the plan's numbers.
    """

    options: LevelOptions
    rooms: tuple[int, ...]
    boxes: tuple[Box, ...]
    places: npt.NDArray[np.int32] = dataclasses.field(repr=False)
    symbols: dict[str, int]

    def rows_of_level(self, level: int) -> Span:
        """The coordinates i32 [room, 4] of a made level in level_rows."""
        row_bytes = _WORD_BYTES * _ROW_WORDS
        first = sum(self.rooms[1:level])
        return Span(first * row_bytes, self.rooms[level] * row_bytes)

    def of_map(self, number: int) -> dict[str, Span]:
        """The parts of MAP_BUFFERS that belong to a map."""
        first, rows = self._map_row(number), self.rooms[self.options.maps[number].writes]
        item, most = self.options.maps[number], self.options.most_taps
        taps, blocks = math.prod(item.geometry.kernel_size), -(-rows // _BLOCK_ROWS)
        before = first // _BLOCK_ROWS
        words = {
            "row_order": (first, blocks * _BLOCK_ROWS),
            "sorted_table": (first * most, blocks * _BLOCK_ROWS * taps),
            "steps": (before * most, blocks * taps),
            "step_count": (before, blocks),
        }
        return {name: Span(start * _WORD_BYTES, count * _WORD_BYTES) for name, (start, count) in words.items()}

    def _map_row(self, number: int) -> int:
        return sum(map(_unit_rows, (self.rooms[item.writes] for item in self.options.maps[:number])))


def lay_out(options: LevelOptions, boxes: Sequence[Box], rooms: Sequence[int]) -> Layout:
    """The places of a run.

    Args:
        boxes: around all that each level may hold. rooms: rows of each level; level 0 has exactly so many.

    Raises:
        InputError: a box has 2^31 cells or more over all batches, or a level may have 2^30 voxels or more.
    """
    levels = []
    most: list[int] = []
    marks = tiles_before = rows_before = 0
    for number, (box, room) in enumerate(zip(boxes, rooms, strict=True)):
        extent = _extent(box)
        cells = (box.high[0] + 1) * math.prod(extent)
        if cells >= _MOST_CELLS:
            raise InputError(f"level {number} has a box of {cells} cells; accepted here: below {_MOST_CELLS}")
        tiles = max(1, -(-cells // (lo.TILE_WORDS * lo.WORD_CELLS)))
        state = -(-(tiles + 1) // 4) * 4
        made = options.levels[number - 1] if number else None
        most.append(min(cells, room if made is None else most[made.parent] * _outputs_of_one(made.geometry)))
        if most[-1] > _MOST_MARKS:
            raise InputError(f"level {number} may have {most[-1]} voxels; accepted here: at most {_MOST_MARKS}")
        origin = (0, 0, 0) if made is None else _origin(made.geometry, boxes[made.parent], box)
        first_row = rows_before if number else 0
        line = [*box.low[1:], *extent, box.high[0] + 1, room, marks, marks + state, tiles_before, tiles, first_row]
        levels.append([*line, *origin])
        marks, tiles_before = marks + state + tiles * lo.TILE_MARKS, tiles_before + tiles
        rows_before += room if number else 0
    maps, row = [], 0
    for number, item in enumerate(options.maps):
        fine, coarse = (item.writes, item.reads) if item.geometry.transposed else (item.reads, item.writes)
        room = rooms[item.writes]
        line = [row, room, row + number * lo.SORT_WORDS, *_origin(item.geometry, boxes[fine], boxes[coarse])]
        maps.append(line + [0] * (lo.MAP_WORDS - len(line)))
        row += _unit_rows(room)
    places = np.array([word for line in (*levels, *maps) for word in line], np.int32)
    symbols = {"rows": rooms[0], "cells": marks, "coarse_rows": row, "threads": 1}
    return Layout(options, tuple(rooms), tuple(boxes), places, symbols)


def _extent(box: Box) -> list[int]:
    return [high - low + 1 for low, high in zip(box.low[1:], box.high[1:], strict=True)]


def _origin(geometry: ConvGeometry, fine: Box, coarse: Box) -> list[int]:
    """Per axis, how far the low corner of the fine box lies above what coarse place 0 meets through the first tap."""
    axes = zip(fine.low[1:], geometry.padding, coarse.low[1:], geometry.stride, strict=True)
    return [low + padding - corner * stride for low, padding, corner, stride in axes]


def _outputs_of_one(geometry: ConvGeometry) -> int:
    """Outputs of one voxel at most, of a geometry without gaps."""
    return math.prod(-(-size // stride) for size, stride in zip(geometry.kernel_size, geometry.stride, strict=True))


def _unit_rows(room: int) -> int:
    return -(-room // lo.ROW_UNIT) * lo.ROW_UNIT


@functools.lru_cache(maxsize=64)
def load_levels(options: LevelOptions, index: int | None = None) -> GpuPlan:
    """The plan that builds levels and maps, compiled (or found) and loaded on GPU `index`, or for host arrays (None).

    Its group "map" takes coords (int32 [N, 4]) and places, and keeps LEVEL_ROWS, LEVEL_COUNTS (i32 [levels][2], of
    made levels: the rows that are there, and that would be with room for all) and MAP_BUFFERS.

    Raises:
        CompileError, LaunchError, ToolchainError: see compile_conv and driver.load_conv.
    """
    from spconv_compiler.driver_gpu import open_device

    target = get_target(options.target)
    assert isinstance(target, GpuTarget)
    artifact = compile_options(options)
    keep = (LEVEL_ROWS, LEVEL_COUNTS, *MAP_BUFFERS)
    return GpuPlan(artifact.plan, open_device(target)(index or 0), artifact.object, keep=keep)
