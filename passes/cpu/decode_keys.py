"""Coordinates from the keys that output_keys.py made, and with them the set of outputs as the sort would leave it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from spconv_compiler.passes.cpu.functions import Functions
from spconv_compiler.passes.cpu.output_keys import SLABS
from spconv_compiler.passes.cpu.parallel import parallel_for, worth_workers
from spconv_compiler.passes.cpu.sorted_keys import KEY_PADDING, STATUS_WORDS, Packing, key_type, largest_key
from spconv_compiler.passes.cpu.vectors import LANES, everywhere, numbered, quotients_by, rows_of
from spconv_compiler.passes.kernel_builder import V, const, for_, gep, i32, i64, if_else, load, store, vec

# Outputs that a worker is worth, some 0.2 ms.
_GRAIN = 1 << 16


@dataclasses.dataclass(frozen=True)
class DecodeKeys:
    """Body of the kernel.

    Arguments: out keys and slabs as OutputKeys left them, and its status; out i32 [outputs, 4]; keys of the set of
    outputs, packed by `packing` [outputs + KEY_PADDING]; their rows, which are in order, i32 [outputs]; their status;
    outputs; min_z, …, extent_z, …: the box of those keys; out_min_z, …, out_extent_z, …: that of the out keys; threads.
    """

    functions: Functions
    name: str
    packing: Packing

    def __call__(
        self, out_keys: V, slabs: V, status: V, out: V, keys: V, origin: V, set_status: V, outputs: V, *numbers: V
    ) -> None:
        *box, threads = numbers
        for place in range(KEY_PADDING):
            store(const(largest_key(self.packing.key_width), self.packing.key), keys, outputs + place)
        for word in range(STATUS_WORDS):
            store(const(0, i64()), set_status, word)
        shared = [out_keys, slabs, out, keys, origin, *box]
        workers = worth_workers(threads, outputs, _GRAIN)
        parallel_for(self.functions, self.name, load(status, i64(), SLABS), workers, shared, self._slab)

    def _slab(self, slab: V, worker: V, out_keys: V, slabs: V, out: V, keys: V, origin: V, *box: V) -> None:
        box, low, extents = box[:6], box[6:9], box[9:12]
        first, row = (load(slabs, i64(), slab * 2 + word) for word in range(2))
        count, zero = load(slabs, i64(), slab * 2 + 3) - row, const(0, i64())
        done = zero
        if self.packing.key_width == 32:
            done = count // LANES * LANES
            self._vectors(gep(out_keys, first, i32()), done, row, (out, keys, origin), box, low, extents)
        init = [const(-(1 << 62), i64()), zero, zero, zero, zero]
        with for_(done, count, 1, init, unroll=False) as loop:
            key = load(out_keys, key_type(self.packing.key_width), first + loop.iv).to(i64())
            line_key = loop.args[0]

            # Most keys are on the line of the one before, and divisions are slow.
            same = (key - line_key).ult(extents[2])
            divide = functools.partial(self._line_of, key, low, extents, box)
            line_key, batch, z, y, packed = if_else(same, functools.partial(list, loop.args), divide)
            x = key - line_key + low[2]
            place = row + loop.iv
            for column, value in enumerate((batch, z, y, x)):
                store(value.to(i32()), out, place * 4 + column)
            store((packed + x * self.packing.stride[2]).to(self.packing.key), keys, place)
            store(place.to(i32()), origin, place)
            loop.yields(line_key, batch, z, y, packed)

    def _vectors(
        self, given: V, count: V, row: V, made: tuple[V, V, V], box: Sequence[V], low: Sequence[V], extents: Sequence[V]
    ) -> None:
        """Makes `count` rows of `made` (coordinates, keys, their rows) from `row` on, out of as many 32-bit keys."""
        out, keys, origin = made
        sizes = zip(extents, low, strict=True)
        axes = [(quotients_by(extent), everywhere(extent), everywhere(least)) for extent, least in sizes]
        factors, nothing = self.packing.factors(box)
        with for_(0, count, LANES, unroll=False) as loop:
            left = load(given, vec(LANES, i32()), loop.iv)
            columns: list[V] = []
            for quotient, size, least in reversed(axes):
                whole = quotient(left)
                columns.insert(0, left - whole * size + least)
                left = whole
            columns.insert(0, left)
            place, packed = row + loop.iv, everywhere(nothing)
            for column, factor in zip(columns, factors, strict=True):
                packed = packed + column * everywhere(factor)
            store(packed, keys, place)
            store(numbered(place), origin, place)
            for number, pair in enumerate(rows_of(columns)):
                store(pair, out, (place + 2 * number) * 4)

    def _line_of(self, key: V, low: tuple[V, ...], extents: tuple[V, ...], box: tuple[V, ...]) -> list[V]:
        """(key of the first voxel of a key's line, batch, z, y, what the set's keys pack of the line)."""
        extent_z, extent_y, extent_x = extents
        number = key // extent_x
        plane = number // extent_y
        batch, z, y = plane // extent_z, plane % extent_z + low[0], number % extent_y + low[1]
        return [number * extent_x, batch, z, y, self.packing.line(batch, z, y, box)]
