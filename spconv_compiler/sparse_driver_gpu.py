"""Ops between two coordinate sets on a GPU, real or simulated. The counterpart of sparse_driver.SparseKernel."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.arrays import ITEM_BYTES, Array, address_of, as_array
from spconv_compiler.compiler import compile_options
from spconv_compiler.coordinates import Box
from spconv_compiler.driver_gpu import TAP_COUNTS, GpuKernel, check_place
from spconv_compiler.errors import InputError
from spconv_compiler.geometry import ConvGeometry, cells_of, output_symbols, reach_of
from spconv_compiler.runtime.calls import HostCall, TensorCall, read
from spconv_compiler.runtime.device import Buffer, Device
from spconv_compiler.schedules.mappers import (
    COARSE_ASCENDING,
    COARSE_GRID,
    COARSE_KEYS,
    MARKED_CELLS,
    NARROW_KEYS,
    SORTED_CANDIDATES,
    choose_coarse_by,
    choose_outputs_by,
    key_bytes,
)
from spconv_compiler.sparse_driver import MapPairs, Outputs
from spconv_compiler.sparse_options import SparseOptions
from spconv_compiler.targets import GpuTarget

# Where the rows of outputs are sorted instead (passes/gpu/sorted_tiles.py): their table and their order.
_SORTED_TABLE, _ROW_ORDER, _TILE_ROWS = "sorted_table", "row_order", 16
# Words of a count: rows that are there, rows that would be there with room for all (passes/gpu/output_cells.py).
_COUNT_WORDS, _KEPT, _ALL = 2, 0, 1
# The scan that counts outputs packs a count and two bits into a word (passes/gpu/device_scan.py).
_MOST_OUTPUTS = 2**30 - 1
_AUTO = "auto"
# Buffers that grow with the volume and not with the voxels take no more than this: 64 GiB of a GPU's memory, 2 GiB of a
# host's that simulates one.
_MOST_BYTES = {False: 1 << 36, True: 1 << 31}


class GpuSparseKernel(GpuKernel):
    """One op between two coordinate sets, ready to run on one GPU. See `sparse_driver.load_sparse`.

    As driver_gpu.GpuConvKernel it takes arrays in host memory; what `on` gives for a device takes torch tensors there.

    Repeated coordinates are not noticed: the lowest row is the neighbour, and every row has an output of its own. Only
    schedules over pairs meet every one of repeated fine rows, and no repeated coarse row but the lowest.
    """

    def __init__(
        self,
        options: SparseOptions,
        target: GpuTarget,
        open_device: Callable[[int], Device],
        index: int | None = None,
        family: dict[int | None, GpuSparseKernel] | None = None,
    ) -> None:
        super().__init__(compile_options(options), target, open_device, index)
        self.options = options
        self._family = {} if family is None else family
        self._family[index] = self

    def on(self, index: int | None) -> GpuSparseKernel:
        """This kernel for tensors on GPU `index`, or for host arrays (None).

        Raises:
            InputError: the target's arrays lie in host memory, or on another vendor's GPU.
            LaunchError: see driver.load_conv.
        """
        if index == self._index:
            return self
        check_place(self._target, index)
        found = self._family.get(index)
        return found or GpuSparseKernel(self.options, self._target, self._open_device, index, self._family)

    def signature(self, group: str) -> tuple[Any, ...]:
        """The place and the kernels of a group. Names say all that code depends on: equal ones, equal results."""
        kernels = (launch.kernel for launch in self.artifact.plan.launches if launch.group == group)
        return (self._target.name, self._index, *kernels)

    def output_numbers(self, box: Box, out_box: Box) -> tuple[dict[str, int], int]:
        """(the plan's symbols, bits of a key) for outputs in `out_box` of inputs in `box`.

        Raises:
            InputError: the box has 2^63 cells or more.
        """
        symbols = output_symbols(out_box)
        narrow = symbols["cells"] < 2**31 - 2**16 and narrow_outputs(self.options.geometry, box, out_box)
        return symbols, 32 if narrow else 64

    def outputs_by(self, symbols: Mapping[str, int], rows: int, width: int) -> str:
        """How outputs of so many inputs are made, with the numbers of output_numbers: a mapper of SparseOptions.

        Raises:
            InputError: the box has too many cells for marks, and the inputs have too many candidates for a sort.
        """
        cells, each = symbols["cells"], math.prod(reach_of(self.options.geometry).candidates)
        most = _MOST_BYTES[self._target.simulated]
        by_marks, by_sort = cells // 8 <= most, key_bytes(rows * each, width) <= self._target.buffer_limit_bytes
        if by_marks and by_sort:
            return _or_auto(choose_outputs_by(cells, rows, each))
        if not by_marks and not by_sort:
            raise InputError(
                f"{rows} coords have {rows * each} candidates for outputs, in a box of {cells} cells; accepted by "
                f"target {self._target.name}: at most {self._target.buffer_limit_bytes // key_bytes(1, width)} "
                f"candidates, or {8 * most} cells"
            )
        return _AUTO if by_marks else SORTED_CANDIDATES

    def map_numbers(self, fine: Box, coarse: Box) -> tuple[dict[str, int], int]:
        """(the plan's symbols, bits of a key) of a map between sets in two boxes, by a grid.

        Raises:
            InputError: a grid of the coarse box takes too much memory.
        """
        symbols, width = self.key_numbers(fine, coarse)
        self._check_bytes(4 * symbols["cells"], "a grid of the coarse coordinates")
        return symbols, width if symbols["cells"] <= self._target.narrow_cells else 64

    def index_of(self, fine: Box, coarse: Box, *, ascending: bool) -> tuple[dict[str, int], int, str]:
        """(symbols, bits of a key, mapper) where the number of rows is not known: a grid if there is memory for it.

        Raises:
            InputError: see key_numbers.
        """
        symbols, width = self.key_numbers(fine, coarse)
        if self._has_grid(symbols):
            return *self.map_numbers(fine, coarse), _AUTO
        return symbols, width, COARSE_ASCENDING if ascending else COARSE_KEYS

    def _has_grid(self, symbols: Mapping[str, int]) -> bool:
        return 4 * symbols["cells"] <= _MOST_BYTES[self._target.simulated]

    def mapper(self, symbols: Mapping[str, int], rows: int, coarse_rows: int, *, ascending: bool) -> str:
        """How a map in the box of `symbols` finds coarse voxels: a mapper of SparseOptions.

        Args:
            rows, coarse_rows: of the fine and the coarse set. ascending: whether the coarse set is one that was made.
        """
        by_search = COARSE_ASCENDING if ascending else COARSE_KEYS
        if not self._has_grid(symbols):
            return by_search
        geometry = dataclasses.replace(self.options.geometry, transposed=False)
        candidates = math.prod(reach_of(geometry).candidates)
        return _or_auto(choose_coarse_by(symbols["cells"], rows, coarse_rows, candidates, by_search))

    def key_numbers(self, fine: Box, coarse: Box) -> tuple[dict[str, int], int]:
        """As map_numbers, by search in keys: of boxes of any size.

        Raises:
            InputError: the coarse box has 2^63 cells or more.
        """
        symbols = {"batches": coarse.high[0] + 1}
        for axis, name in enumerate("zyx", 1):
            symbols[f"min_{name}"] = coarse.low[axis]
            symbols[f"extent_{name}"] = coarse.high[axis] - coarse.low[axis] + 1
        cells = cells_of(symbols, "extent_", "the coarse coordinates")
        narrow = cells <= NARROW_KEYS and narrow_lookups(self.options.geometry, fine, coarse)
        return {**symbols, "cells": cells}, 32 if narrow else 64

    def _check_bytes(self, nbytes: int, what: str) -> None:
        most = _MOST_BYTES[self._target.simulated]
        if nbytes > most:
            raise InputError(
                f"{what} takes {nbytes} bytes; accepted by target {self._target.name}: at most {most} (a smaller "
                "spatial_shape or kernel, fewer batches, or target='cpu')"
            )

    def outputs(self, coords: Array, symbols: Mapping[str, int], capacity: int | None) -> Outputs:
        """The coordinates that "outputs" makes of coords int32 [N, 4], in ascending order.

        Without capacity there is room for all, and their number is read back. With it nothing is read: there are
        `capacity` rows, those behind the last output in batch −1.

        Raises:
            InputError: there may be 2^30 outputs or more, or they take too much memory.
            LaunchError, SimulatorError: the device refuses or fails.
        """
        geometry = self.options.geometry
        inputs, outputs = ("coarse_rows", "rows") if geometry.transposed else ("rows", "coarse_rows")
        most = min(coords.shape[0] * reach_of(geometry).most, symbols["cells"])
        if most > _MOST_OUTPUTS:
            raise InputError(f"the coords may have {most} outputs; accepted by GPUs: at most {_MOST_OUTPUTS}")
        room = most if capacity is None else capacity
        self._check_bytes(16 * room, f"room for {room} outputs")
        numbers = {**symbols, inputs: coords.shape[0], outputs: room, "threads": 1}
        self.artifact.plan.check(numbers)
        with self._call(True) as call:
            made = None if coords.device is None else coords.source.new_empty((room, 4))
            if made is None:
                rows = call.allocate("out", 16 * room)
            else:
                rows = call.place("out", as_array(made, "out", on_gpu=True))
            count = call.allocate("out_count", 4 * _COUNT_WORDS)
            given = {"coords": call.place("coords", coords), "coords_count": self._count(call, coords)}
            self._plan.run("coords", numbers, {**given, "out": rows, "out_count": count}, call)
            found = int(read(call, count, np.int32)[_KEPT]) if capacity is None else room
            if made is not None:
                return Outputs(made if found == room else made.narrow(0, 0, found).clone(), count)
            host = np.empty((found, 4), np.int32)
            if found:
                call.device.copy_out(host.ctypes.data, rows, call.stream, 16 * found)
            return Outputs(host, count)

    def _count(self, call: HostCall | TensorCall, coords: Array) -> Buffer:
        """The number of rows as a word on the device."""
        if coords.device is not None:
            words: Any = coords.source.new_full((_COUNT_WORDS,), coords.shape[0])
            return call.place("count", as_array(words, "count", on_gpu=True))
        host = np.full(_COUNT_WORDS, coords.shape[0], np.int32)
        return call.place("count", Array(host, "i32", host.shape, address_of(host)))

    def relate(
        self,
        coords: Array,
        out_coords: Array,
        symbols: Mapping[str, int],
        *,
        in_count: Any = None,
        out_count: Any = None,
    ) -> dict[str, Buffer]:
        """Puts the coarse set into a grid; both sets stay on the device with it. coords, out_coords: int32 [N, 4].

        Args:
            in_count, out_count: what `outputs` said of a set, if its number stays on the device.
        """
        self.artifact.plan.check({**symbols, "threads": 1})
        with self._call(True) as call:
            given = {
                "coords": call.place("coords", coords),
                "coords_count": self._count(call, coords) if in_count is None else in_count,
                "out_coords": call.place("out_coords", out_coords),
                "out_coords_count": self._count(call, out_coords) if out_count is None else out_count,
            }
            kept = self._plan.run("map", {**symbols, "threads": 1}, given, call)
        # An inverse exchanges the two sets, and the map is the same.
        return {**kept, **{self._neutral(name): buffer for name, buffer in given.items()}}

    def _neutral(self, name: str) -> str:
        side, suffix = ("out_coords", name[10:]) if name.startswith("out_coords") else ("coords", name[6:])
        return ("fine" if (side == "coords") != self.options.geometry.transposed else "coarse") + suffix

    def pairs(self, related: Mapping[str, Buffer], symbols: Mapping[str, int]) -> MapPairs:
        """The pairs as this kernel's op reads them, from what `relate` returned; their number is read when asked for.

        Raises:
            LaunchError, SimulatorError: the device refuses or fails.
        """
        names = ("coords", "coords_count", "out_coords", "out_coords_count")
        given = {**related, **{name: related[self._neutral(name)] for name in names}}
        with self._call(True) as call:
            kept = self._plan.run("pairs", {**symbols, "threads": 1}, call.use(given), call)
        counts = kept.pop(TAP_COUNTS, None)
        # A pool has no list of pairs, and reads the number of outputs.
        kept["out_coords_count"] = given["out_coords_count"]
        if _SORTED_TABLE in kept:
            return MapPairs(kept, lambda: int(np.count_nonzero(self._read(kept[_SORTED_TABLE]) >= 0)))
        return MapPairs(kept, lambda: 0 if counts is None else int(self._read(counts).sum(dtype=np.int64)))

    def _read(self, buffer: Buffer, count: int | None = None) -> npt.NDArray[np.int32]:
        with self._call(True) as call:
            found: npt.NDArray[np.int32] = read(call, buffer, np.int32, count)
            return found

    def total(self, out_count: Buffer) -> int:
        """How many outputs there are, from what `outputs` said of their number; waits for it."""
        return int(self._read(out_count)[_ALL])

    def triples(self, pairs: MapPairs) -> tuple[npt.NDArray[np.int32], ...]:
        """(tap, input row, output row) of every pair, in any order."""
        lists = pairs.buffers
        if _SORTED_TABLE in lists:
            return self._sorted_triples(lists)
        tiles = int(self._read(lists["tap_tile"])[-1])
        size = lists["in_rows"].nbytes // lists["tile_tap"].nbytes
        tap = np.repeat(self._read(lists["tile_tap"], tiles), size)
        in_rows, out_rows = (self._read(lists[name], tiles * size) for name in ("in_rows", "out_rows"))
        there = out_rows >= 0
        return tap[there], in_rows[there], out_rows[there]

    def _sorted_triples(self, lists: Mapping[str, Buffer]) -> tuple[npt.NDArray[np.int32], ...]:
        """As `triples`, of a table whose rows are sorted (passes/gpu/row_masks.py)."""
        taps = math.prod(self.options.geometry.kernel_size)
        table = self._read(lists[_SORTED_TABLE]).reshape(-1, taps, _TILE_ROWS)
        order = self._read(lists[_ROW_ORDER]).reshape(-1, 1, _TILE_ROWS)
        tile, tap, lane = np.nonzero(table >= 0)
        return tap.astype(np.int32), table[tile, tap, lane], order[tile, 0, lane]

    def pack(self, weight: Array) -> dict[str, Buffer]:
        """Packed weights from the native layout."""
        with self._call(True) as call:
            return self._plan.run("weights", {"threads": 1}, {"weight": call.place("weight", weight)}, call)

    def run(
        self,
        pairs: Mapping[str, Buffer],
        symbols: Mapping[str, int],
        features: Array,
        out: int,
        packed: Mapping[str, Buffer] | None = None,
        bias: Array | None = None,
        residual: Array | None = None,
    ) -> None:
        """Runs the op on features [N, C_in] into the memory at address `out`, [M, C_out] of out_dtype."""
        rows = symbols["rows" if self.options.geometry.transposed else "coarse_rows"]
        nbytes = rows * self.options.c_out * ITEM_BYTES[self.options.out_dtype]
        arrays = {"features": features, "bias": bias, "residual": residual}
        with self._call(False) as call:
            given = {**call.use(pairs), **call.use(packed or {})}
            given |= {name: call.place(name, array) for name, array in arrays.items() if array is not None}
            given["out"] = call.output("out", out, nbytes)
            self._plan.run("output", {**symbols, "threads": 1}, given, call)
            call.deliver(given["out"], out)


def _or_auto(mapper: str) -> str:
    """A mapper as SparseOptions has it: that of "auto" has no kernels of its own."""
    return _AUTO if mapper in (COARSE_GRID, MARKED_CELLS) else mapper


def narrow_outputs(geometry: ConvGeometry, box: Box, out_box: Box) -> bool:
    """Whether kernels with 32-bit keys tell the outputs in `out_box` from all others that `box` reaches."""
    if not geometry.transposed:
        return narrow_lookups(geometry, box, out_box)
    for axis in range(3):
        stride, padding, reach = geometry.stride[axis], geometry.padding[axis], geometry.reach[axis]
        least = box.low[axis + 1] * stride - padding - out_box.low[axis + 1]
        most = box.high[axis + 1] * stride - padding + reach - out_box.low[axis + 1]
        if least < -(2**31) or most >= 2**31:
            return False
    return True


def narrow_lookups(geometry: ConvGeometry, fine: Box, coarse: Box) -> bool:
    """Whether kernels with 32-bit keys tell the coarse voxels in `coarse` from all that fine ones in `fine` could meet.

    They compute distances modulo 2^32 (passes/gpu/cross_axes.py): what is outside of the box must not wrap into it.
    """
    for axis in range(3):
        stride, padding, reach = geometry.stride[axis], geometry.padding[axis], geometry.reach[axis]
        origin = coarse.low[axis + 1] * stride - padding
        extent = coarse.high[axis + 1] - coarse.low[axis + 1] + 1
        distances = fine.low[axis + 1] - origin - reach, fine.high[axis + 1] - origin
        if distances[0] < -(2**31) or distances[1] >= 2**31 or (extent + 1) * stride + reach > 2**31:
            return False
    return True
