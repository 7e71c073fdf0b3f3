"""The pairs between two coordinate sets, ordered by (chunk of output rows, tap, output row), in either direction.

Compacts the table of cross_table.py, whose entries say which fine voxel a coarse one meets. Where outputs are coarse,
a chunk's pairs stand in the table at the chunk's places. Where they are fine, the chunk's pairs are the entries that
name a place of the chunk; a binary search among the coarse keys says where those can be.
"""

from __future__ import annotations

import dataclasses
import functools

from spconv_compiler.passes.cpu.chunk_pairs import (
    LANES,
    PERMUTATIONS,
    append,
    compaction_permutations,
    entry_reader,
    numbered,
    write_pairs,
)
from spconv_compiler.passes.cpu.cross_table import CrossGeometry
from spconv_compiler.passes.cpu.functions import Functions
from spconv_compiler.passes.cpu.half_table import lower_bound
from spconv_compiler.passes.cpu.memory import stack_array
from spconv_compiler.passes.cpu.parallel import parallel_for, worth_workers
from spconv_compiler.passes.cpu.sorted_keys import DUPLICATES, PAIRS
from spconv_compiler.passes.kernel_builder import V, const, for_, gep, i32, i64, if_else, load, store

# A worker for this many table entries, some 0.1 ms.
_GRAIN = 1 << 17


@dataclasses.dataclass(frozen=True)
class CrossPairs:
    """Body of the pairs kernel.

    Arguments: coarse keys and fine keys as SortedKeys left them, origin of the inputs; table as CrossTable left it;
    pairs i64 [capacity]: input row | place << 32; first pair of every chunk i64 [chunks]; where its taps start after
    that i32 [chunks, taps + 1]; status of the fine and of the coarse set; scratch i32 [threads, scratch_words];
    coarse_rows, rows, extent_y, extent_x, capacity, threads. Returns the pairs needed when there are more than
    `capacity`; then `pairs` holds some of them only. Where a voxel stands in several rows nothing is written, and no
    pair counted.

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
        """A worker's scratch: input and output places of a chunk's pairs, i32."""
        return 2 * self.list_words

    def __call__(self, *arguments: V) -> V:
        coarse_keys, keys, origin, table, pairs, chunk_first, tap_first, status, coarse_status, *rest = arguments
        scratch, coarse_rows, rows, extent_y, extent_x, capacity, threads = rest
        self.functions.constant(PERMUTATIONS, compaction_permutations())
        total = stack_array(1, i64())
        store(const(0, i64()), total)
        outputs = rows if self.transposed else coarse_rows
        chunks = (outputs + (self.chunk_rows - 1)) // self.chunk_rows
        repeated = load(status, i64(), DUPLICATES) + load(coarse_status, i64(), DUPLICATES)
        chunks = repeated.eq(0).select(chunks, const(0, i64()))
        workers = worth_workers(threads, coarse_rows * self.geometry.taps, _GRAIN)
        shared = [coarse_keys, keys, origin, table, pairs, chunk_first, tap_first, scratch, total]
        numbers = [coarse_rows, rows, extent_y, extent_x, capacity]
        parallel_for(self.functions, self.name, chunks, workers, [*shared, *numbers], self._chunk)
        needed = load(total, i64())
        store(needed, status, PAIRS)
        return (needed > capacity).select(needed, const(0, i64()))

    def _chunk(self, chunk: V, worker: V, *shared: V) -> None:
        coarse_keys, keys, origin, table, pairs, chunk_first, tap_first, scratch, total, *numbers = shared
        coarse_rows, rows, extent_y, extent_x, capacity = numbers
        inputs = gep(scratch, worker * self.scratch_words, i32())
        found = inputs, gep(inputs, self.list_words, i32())
        start = chunk * self.chunk_rows
        size = ((rows if self.transposed else coarse_rows) - start).min(self.chunk_rows)
        starts = gep(tap_first, chunk * (self.geometry.taps + 1), i32())
        if self.transposed:
            sets = coarse_keys, coarse_rows, keys, (extent_y, extent_x)
            count = self._to_fine(table, sets, start, size, found, starts)
        else:
            count = self._to_coarse(table, coarse_rows, start, size, found, starts)
        store(count.to(i32()), starts, self.geometry.taps)
        write_pairs(found, count, origin, chunk, (total, chunk_first, pairs, capacity))

    def _to_coarse(self, table: V, coarse_rows: V, start: V, size: V, found: tuple[V, V], starts: V) -> V:
        """Finds the pairs of a chunk of coarse voxels: the entries say what they read."""
        with for_(0, const(self.geometry.taps, i64()), 1, [const(0, i64())], unroll=False) as tap:
            store(tap.args[0].to(i32()), starts, tap.iv)
            read = entry_reader(self.geometry, table, coarse_rows, tap.iv)
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
