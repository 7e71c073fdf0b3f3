"""The coordinates that a convolution makes, in ascending order, by a sort: where output_cells.py has too many cells.

Every input has so many candidates, the same for all, whose keys are sorted (radix_sort.py); a candidate that is no
output has a key behind all of them. Equal keys then lie side by side: a scan over all workgroups counts those that
differ from the one before, and writes them as rows. What is there costs by voxels, and nothing by cells.

The result is that of output_cells.py, rows behind the last output in batch −1 included, and so is out_count.

state: the sort's. scan i32, zero before: the ticket of `unique`, then a word for each of its tiles.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from spconv_compiler.passes.gpu.cross_axes import candidates, output_at
from spconv_compiler.passes.gpu.device_scan import sum_before, take_tile, zero_words
from spconv_compiler.passes.gpu.lanes import block, load, plus, store, thread, times
from spconv_compiler.passes.gpu.output_cells import write_cell, write_no_cell
from spconv_compiler.passes.gpu.radix_sort import Sort
from spconv_compiler.passes.kernel_builder import V, const, i32, if_, if_else
from spconv_compiler.passes.reach import Reach

# Sorted keys that a lane of `unique` looks at.
_ITEMS = 4


@dataclasses.dataclass(frozen=True)
class SortedOutputs:
    """Bodies and sizes.

    Attributes:
        reach: which outputs an input has. sort: of the candidates' keys. lanes: of a workgroup of `clear` and `unique`.
    """

    reach: Reach
    sort: Sort
    lanes: int

    @property
    def each(self) -> int:
        """Candidates of an input."""
        return math.prod(candidates(self.reach, axis) for axis in range(3))

    def total(self, inputs: str) -> str:
        """All candidates; this and what follows are texts for plan.size_map, `inputs` a symbol."""
        return f"({inputs} * {self.each})"

    def tiles(self, inputs: str) -> str:
        """Workgroups of `unique`."""
        return f"{self.total(inputs)} ceildiv {self.lanes * _ITEMS}"

    def scan_words(self, inputs: str) -> str:
        """Size of `scan`, in whole groups of 4."""
        return f"({self.tiles(inputs)} + 4) floordiv 4 * 4"

    def clear_grid(self, inputs: str, outputs: str) -> str:
        """Workgroups of `clear`: enough for the state, the scan and the rows, each alone."""
        return f"{self.sort.clear_grid(self.lanes, self.total(inputs))} + {outputs} ceildiv {self.lanes}"

    def clear(self) -> Callable[..., None]:
        """Body(state, scan, out, rows, cells, capacity): no counts, and all rows of out in batch −1."""

        def body(state: V, scan: V, out: V, rows: V, cells: V, capacity: V) -> None:
            total = times(rows, self.each)
            self.sort.clear(self.lanes)(state, total, cells)
            tile = self.lanes * _ITEMS
            zero_words(self.lanes)(scan, plus(plus(total, tile - 1) // tile, 1))
            row = plus(times(block(), self.lanes), thread())
            with if_(row.ult(capacity)):
                write_no_cell(out, row)

        return body

    def make_records(self) -> Callable[..., None]:
        """Body(coords, coords_count, records, state, rows, cells, *out_box, shared): candidates' keys, to be sorted."""
        make = self.sort.make_records(self._key)

        def body(coords: V, count: V, records: V, state: V, rows: V, cells: V, *rest: V) -> None:
            *box, counts = rest
            make(coords, records, state, times(rows, self.each), cells, count, *box, counts)

        return body

    def _key(self, coords: V, number: V, limit: V, count: V, *box: V) -> V:
        """The key of candidate `number`, or `limit`."""
        low, extent, batches = box[:3], box[3:6], box[6]
        row, rest = number // self.each, number % self.each

        def of_row() -> list[V]:
            columns = load(coords, times(row, 4), 4)
            batch, *place = [columns.lane(column).to(limit.type, signed=True) for column in range(4)]
            inside, key, left = batch.ult(batches), batch, rest
            for axis in range(3):
                inner = math.prod(candidates(self.reach, other) for other in range(axis + 1, 3))
                number, left = (left // inner).to(limit.type), left % inner
                there, output = output_at(self.reach, axis, place[axis], number, low[axis], extent[axis])
                inside, key = inside & there, key * extent[axis] + output
            return [inside.select(key, limit)]

        return if_else(row < load(count, const(0, i32())), of_row, lambda: [limit])[0]

    def digit_pass(self) -> Callable[..., None]:
        """Body(records, state, rows, shared…): the next pass."""
        sort = self.sort.digit_pass()

        def body(records: V, state: V, rows: V, *shared_: V) -> None:
            sort(records, state, times(rows, self.each), *shared_)

        return body

    def unique(self) -> Callable[..., None]:
        """Body(records, state, scan, out, out_count, rows, cells, capacity, *out_box, *scan_shared): each key once."""
        lanes, wave = self.lanes, self.sort.wave

        def body(
            records: V, state: V, scan: V, out: V, out_count: V, rows: V, cells: V, capacity: V, *more: V
        ) -> None:
            box, (totals, ticket, sum_) = more[:-3], more[-3:]
            zero, total = const(0, i32()), times(rows, self.each)
            half = self.sort.final_half(state, cells, total)
            tile = take_tile(scan, zero, ticket, wave)
            first = plus(times(tile, lanes * _ITEMS), times(thread(), _ITEMS))
            keys, is_new = self._new_keys(records, half, first, total, cells)
            own = zero
            for new in is_new:
                own = own + new.select(const(1, i32()), 0)
            row = sum_before(scan, tile, own, totals, sum_, lanes, wave)
            tiles = plus(total, lanes * _ITEMS - 1) // (lanes * _ITEMS)
            with if_(tile.eq(tiles - 1) & thread().eq(lanes - 1)):
                store((row + own).min(capacity), out_count, zero)
                store(row + own, out_count, const(1, i32()))
            for key, new in zip(keys, is_new, strict=True):
                with if_(new & row.ult(capacity)):
                    write_cell(out, row, key, box)
                row = row + new.select(const(1, i32()), 0)

        return body

    def _new_keys(self, records: V, half: V, first: V, total: V, cells: V) -> tuple[list[V], list[V]]:
        """The sorted keys from place `first` on, and which of them are outputs that the key before is not."""

        def key_at(place: V) -> V:
            return load(records, times(plus(half, place.min(total - 1)), 2))

        places = [plus(first, item) for item in range(_ITEMS)]
        keys = [key_at(place) for place in places]
        before = [key_at(first.eq(0).select(first, first - 1)), *keys[:-1]]
        is_new = [
            (place < total) & key.ult(cells) & (place.eq(0) | key.ne(earlier))
            for place, key, earlier in zip(places, keys, before, strict=True)
        ]
        return keys, is_new


def key_buffer_bytes(outputs: SortedOutputs, inputs: str) -> dict[str, str]:
    """Bytes of the buffers that grow with candidates, by what they are; texts for plan.size_map."""
    sort, total = outputs.sort, outputs.total(inputs)
    return {
        "candidates' keys": f"({sort.records(total)}) * {sort.key_width // 8}",
        "the sort's state": f"({sort.words(total)}) * 4",
    }
