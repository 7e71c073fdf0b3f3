"""The pairs between two coordinate sets, ordered by (chunk of output rows, tap, output row), in either direction.

Compacts the table of cross_table.py, whose entries say which fine voxel a coarse one meets. Where outputs are coarse,
a chunk's pairs stand in the table at the chunk's places, so a worker searches what it compacts, a few chunks at a time,
and no table is in memory. Where they are fine, the chunk's pairs are the entries that name a place of the chunk; a
binary search among the coarse keys says where those can be.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

from spconv_compiler.passes.cpu.chunk_pairs import (
    PERMUTATIONS,
    append,
    compaction_permutations,
    entry_reader,
    write_pairs,
)
from spconv_compiler.passes.cpu.cross_table import CrossGeometry, CrossTable
from spconv_compiler.passes.cpu.functions import Functions
from spconv_compiler.passes.cpu.half_table import TABLE_PADDING, lower_bound
from spconv_compiler.passes.cpu.memory import stack_array
from spconv_compiler.passes.cpu.parallel import parallel_for, worth_workers
from spconv_compiler.passes.cpu.sorted_keys import DUPLICATES, PAIRS
from spconv_compiler.passes.cpu.vectors import LANES, numbered
from spconv_compiler.passes.kernel_builder import V, const, for_, gep, i32, i64, if_else, load, store

# A worker for this many taps of coarse voxels, some 0.2 ms, and what a search of one entry is worth in taps.
_GRAIN, _SEARCH = 1 << 18, 4
# Rows that are searched together before they are compacted: every search begins with a slow step.
_SEARCHED_ROWS = 1 << 10


@dataclasses.dataclass(frozen=True)
class CrossPairs:
    """Body of the pairs kernel.

    Arguments: coarse keys and fine keys as SortedKeys left them, origin of the inputs; if transposed, table as
    CrossTable left it; pairs i64 [capacity]: input row | place << 32; first pair of every chunk i64 [chunks]; where its
    taps start after that i32 [chunks, taps + 1]; status of the fine and of the coarse set; scratch i32 [threads,
    scratch_words]; coarse_rows, rows, extent_y, extent_x, capacity, threads. Returns the pairs needed when there are
    more than `capacity`; then `pairs` holds some of them only. Where a voxel stands in several rows nothing is written,
    and no pair counted.

    transposed: inputs are coarse and outputs fine.
    """

    functions: Functions
    name: str
    geometry: CrossGeometry
    chunk_rows: int
    transposed: bool

    @property
    def list_words(self) -> int:
        """A chunk's pairs at most, and what the last vector writes beyond them."""
        return self.geometry.taps * self.chunk_rows + LANES

    @property
    def scratch_words(self) -> int:
        """A worker's scratch: input and output places of a chunk's pairs, and some rows' table, i32."""
        return 2 * self.list_words + (0 if self.transposed else self.geometry.table_rows * self.columns + LANES)

    @property
    def chunks_at_once(self) -> int:
        """Chunks that a worker takes together."""
        return 1 if self.transposed else max(1, _SEARCHED_ROWS // self.chunk_rows)

    @property
    def columns(self) -> int:
        """Entries of one run in the table of these chunks."""
        return self.chunks_at_once * self.chunk_rows + TABLE_PADDING

    def __call__(self, *arguments: V) -> V:
        coarse_keys, keys, origin, *tables, pairs, chunk_first, tap_first, status, coarse_status = arguments[:-7]
        scratch, coarse_rows, rows, extent_y, extent_x, capacity, threads = arguments[-7:]
        self.functions.constant(PERMUTATIONS, compaction_permutations())
        total = stack_array(1, i64())
        store(const(0, i64()), total)
        outputs = rows if self.transposed else coarse_rows
        chunks = (outputs + (self.chunk_rows - 1)) // self.chunk_rows
        repeated = load(status, i64(), DUPLICATES) + load(coarse_status, i64(), DUPLICATES)
        chunks = repeated.eq(0).select(chunks, const(0, i64()))
        searched = 0 if self.transposed else _SEARCH * self.geometry.table_rows
        workers = worth_workers(threads, coarse_rows * (self.geometry.taps + searched), _GRAIN)
        shared = [coarse_keys, keys, origin, pairs, chunk_first, tap_first, scratch, total]
        numbers = [coarse_rows, rows, extent_y, extent_x, capacity]
        items = (chunks + (self.chunks_at_once - 1)) // self.chunks_at_once
        body = self._chunk_of_fine if self.transposed else self._some_chunks
        parallel_for(self.functions, self.name, items, workers, [*tables, *shared, *numbers], body)
        needed = load(total, i64())
        store(needed, status, PAIRS)
        return (needed > capacity).select(needed, const(0, i64()))

    def _chunk_of_fine(self, chunk: V, worker: V, table: V, *shared: V) -> None:
        """Writes the pairs of a chunk of fine voxels."""
        coarse_keys, keys, *_, coarse_rows, rows, extent_y, extent_x, _ = shared
        sets = coarse_keys, coarse_rows, keys, (extent_y, extent_x)
        self._write(chunk, worker, rows, shared, functools.partial(self._to_fine, table, sets))

    def _some_chunks(self, item: V, worker: V, *shared: V) -> None:
        """Searches what some chunks of coarse voxels meet, and writes their pairs."""
        coarse_keys, keys, *_, scratch, _, coarse_rows, rows, extent_y, extent_x, _ = shared
        first = item * (self.chunks_at_once * self.chunk_rows)
        end = (first + self.chunks_at_once * self.chunk_rows).min(coarse_rows)
        table = gep(scratch, worker * self.scratch_words + 2 * self.list_words, i32())
        columns = const(self.columns, i64())
        search = CrossTable(self.functions, self.name, self.geometry).search
        # What stands at place `first` of the set stands at place 0 of the table.
        here = gep(table, const(0, i64()) - first, i32())
        search((coarse_keys, first, end), (keys, rows), (here, columns), extent_y, extent_x)
        chunk = item * self.chunks_at_once
        chunks = (end + (self.chunk_rows - 1)) // self.chunk_rows
        with for_(chunk, chunks, 1, unroll=False) as loop:
            self._write(loop.iv, worker, coarse_rows, shared, functools.partial(self._to_coarse, here, columns))

    def _write(self, chunk: V, worker: V, outputs: V, shared: Sequence[V], find: Callable[..., V]) -> None:
        """Writes a chunk's pairs, which find(first row, rows, where to, where taps start) gives the number of."""
        _, _, origin, pairs, chunk_first, tap_first, scratch, total, *_, capacity = shared
        inputs = gep(scratch, worker * self.scratch_words, i32())
        found = inputs, gep(inputs, self.list_words, i32())
        start = chunk * self.chunk_rows
        size = (outputs - start).min(self.chunk_rows)
        starts = gep(tap_first, chunk * (self.geometry.taps + 1), i32())
        count = find(start, size, found, starts)
        store(count.to(i32()), starts, self.geometry.taps)
        write_pairs(found, count, origin, chunk, (total, chunk_first, pairs, capacity))

    def _to_coarse(self, table: V, columns: V, start: V, size: V, found: tuple[V, V], starts: V) -> V:
        """Finds the pairs of a chunk of coarse voxels: the entries say what they read."""
        with for_(0, const(self.geometry.taps, i64()), 1, [const(0, i64())], unroll=False) as tap:
            store(tap.args[0].to(i32()), starts, tap.iv)
            read = entry_reader(self.geometry, table, columns, tap.iv)
            with for_(0, size, LANES, tap.args, unroll=False) as loop:
                inputs, present = read(start + loop.iv)
                loop.yields(append(found, loop.args[0], present, size - loop.iv, inputs, numbered(loop.iv)))
            tap.yields(*loop.results)
        return tap.results[0]

    def _to_fine(
        self, table: V, sets: tuple[V, V, V, tuple[V, V]], start: V, size: V, found: tuple[V, V], starts: V
    ) -> V:
        """Finds the pairs of a chunk of fine voxels: the entries that name one of them, by the coarse voxel."""
        geometry, zero = self.geometry, const(0, i64())
        with for_(0, const(geometry.taps, i64()), 1, [zero, zero, zero], unroll=False) as tap:
            count, low, high = tap.args
            store(count.to(i32()), starts, tap.iv)
            search = functools.partial(self._readers, sets, tap.iv, start, size)
            low, high = if_else((tap.iv % geometry.run).eq(0), search, functools.partial(list, (low, high)))
            read = entry_reader(geometry, table, sets[1], tap.iv)
            chunk_start, chunk_size = (value.to(i32()).broadcast(LANES) for value in (start, size))
            with for_(low, high, LANES, [count], unroll=False) as loop:
                places, present = read(loop.iv)
                outputs = places - chunk_start
                present = present & outputs.ult(chunk_size)
                loop.yields(append(found, loop.args[0], present, high - loop.iv, numbered(loop.iv), outputs))
            tap.yields(*loop.results, low, high)
        return tap.results[0]

    def _readers(self, sets: tuple[V, V, V, tuple[V, V]], tap: V, start: V, size: V) -> list[V]:
        """[low, high): all coarse places whose entry for the run that begins with `tap` can name a row of the chunk."""
        geometry = self.geometry
        coarse_keys, coarse_rows, keys, extents = sets
        offset = geometry.offset(tap, *extents)
        first, last = (load(keys, geometry.key, place).to(i64()) for place in (start, start + size - 1))
        return [
            lower_bound(coarse_keys, geometry.key, coarse_rows, wanted.to(geometry.key))
            for wanted in (first - offset - (geometry.run - 1), last - offset + 1)
        ]
