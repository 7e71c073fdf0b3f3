"""The pairs of a map on the CPU, ordered by (chunk of output rows, tap, output row).

Compacts the table of neighbours (half_table.py). A chunk's pairs of a tap before the centre stand in the tap's own
row of the table, at the chunk's places; those of a tap after it in the row of the mirrored tap, wherever it names
a place of the chunk. Eight entries are compacted at a time: the bits of a comparison choose a permutation that
brings the present ones to the front.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from spconv_compiler.bindings import llvm
from spconv_compiler.passes.cpu.functions import Functions, address_of, call_intrinsic
from spconv_compiler.passes.cpu.half_table import Geometry, lower_bound
from spconv_compiler.passes.cpu.memory import atomic_add, bytes_after, i8, stack_array
from spconv_compiler.passes.cpu.parallel import parallel_for, worth_workers
from spconv_compiler.passes.cpu.sorted_keys import DUPLICATES, PAIRS
from spconv_compiler.passes.cpu.vectors import LANES, numbered
from spconv_compiler.passes.kernel_builder import (
    V,
    const,
    for_,
    gep,
    i32,
    i64,
    if_,
    if_else,
    load,
    store,
    vec,
)

# A worker for this many table entries, some 0.2 ms.
GRAIN = 1 << 18
PERMUTATIONS = "compaction_permutations"

ROW_BITS = 32
ROW_MASK = (1 << ROW_BITS) - 1


def pair_row(pair: V) -> V:
    """The input row of a pair, i64."""
    return pair & ROW_MASK


def pair_place(pair: V) -> V:
    """The output row of a pair, counted from the start of its chunk, i64."""
    return pair >> ROW_BITS


def compaction_permutations() -> bytes:
    """For every set of eight lanes their numbers in front, in order, and zeros behind: a byte a lane."""
    chosen = [[lane for lane in range(LANES) if mask >> lane & 1] for mask in range(1 << LANES)]
    return b"".join(bytes(lanes).ljust(LANES, b"\0") for lanes in chosen)


@dataclasses.dataclass(frozen=True)
class ChunkPairs:
    """Body of the pairs kernel.

    Arguments: keys and origin as SortedKeys left them; table as HalfTable did; pairs i64 [capacity]: input row |
    place << 32; first pair of every chunk i64 [chunks]; where its taps start after that i32 [chunks, taps + 1];
    status; scratch i32 [threads, scratch_words]; rows, extent_y, extent_x, capacity, threads. Returns the pairs
    needed when there are more than `capacity`; then `pairs` holds some of them only. Where a voxel stands in
    several rows there is no mirror image: nothing is written, and no pair counted.
    """

    functions: Functions
    name: str
    geometry: Geometry
    chunk_rows: int

    @property
    def list_words(self) -> int:
        """A chunk's pairs at most, and what the last vector writes beyond them."""
        return self.geometry.taps * self.chunk_rows + LANES

    @property
    def scratch_words(self) -> int:
        """A worker's scratch: input and output places of a chunk's pairs, i32."""
        return 2 * self.list_words

    def __call__(
        self,
        keys: V,
        origin: V,
        table: V,
        pairs: V,
        chunk_first: V,
        tap_first: V,
        status: V,
        scratch: V,
        rows: V,
        extent_y: V,
        extent_x: V,
        capacity: V,
        threads: V,
    ) -> V:
        self.functions.constant(PERMUTATIONS, compaction_permutations())
        total = stack_array(1, i64())
        store(const(0, i64()), total)
        shared = [keys, origin, table, pairs, chunk_first, tap_first, scratch, total, rows, extent_y, extent_x]
        chunks = (rows + (self.chunk_rows - 1)) // self.chunk_rows
        chunks = load(status, i64(), DUPLICATES).eq(0).select(chunks, const(0, i64()))
        workers = worth_workers(threads, rows * self.geometry.taps, GRAIN)
        parallel_for(self.functions, self.name, chunks, workers, [*shared, capacity], self._chunk)
        needed = load(total, i64())
        store(needed, status, PAIRS)
        return (needed > capacity).select(needed, const(0, i64()))

    def _chunk(
        self,
        chunk: V,
        worker: V,
        keys: V,
        origin: V,
        table: V,
        pairs: V,
        chunk_first: V,
        tap_first: V,
        scratch: V,
        total: V,
        rows: V,
        extent_y: V,
        extent_x: V,
        capacity: V,
    ) -> None:
        inputs = gep(scratch, worker * self.scratch_words, i32())
        found = inputs, gep(inputs, self.list_words, i32())
        start = chunk * self.chunk_rows
        size = (rows - start).min(self.chunk_rows)
        starts = gep(tap_first, chunk * (self.geometry.taps + 1), i32())
        count = self._before_centre(table, rows, start, size, found, starts)
        count = self._centre(start, size, found, starts, count)
        count = self._after_centre(keys, table, rows, (extent_y, extent_x), start, size, found, starts, count)
        store(count.to(i32()), starts, self.geometry.taps)
        write_pairs(found, count, origin, chunk, (total, chunk_first, pairs, capacity))

    def _before_centre(
        self, table: V, rows: V, start: V, size: V, found: tuple[V, V], starts: V
    ) -> V:
        """Appends the pairs of the taps in the table: the entries say what rows `start` and on read."""
        with for_(0, const(self.geometry.centre, i64()), 1, [const(0, i64())], unroll=False) as tap:
            store(tap.args[0].to(i32()), starts, tap.iv)
            read = entry_reader(self.geometry, table, rows, tap.iv)
            with for_(0, size, LANES, tap.args, unroll=False) as loop:
                inputs, present = read(start + loop.iv)
                loop.yields(append(found, loop.args[0], present, size - loop.iv, inputs, numbered(loop.iv)))
            tap.yields(*loop.results)
        return tap.results[0]

    def _centre(self, start: V, size: V, found: tuple[V, V], starts: V, count: V) -> V:
        """Appends what the centre reads: every row itself."""
        store(count.to(i32()), starts, self.geometry.centre)
        with for_(0, size, LANES, unroll=False) as loop:
            store(numbered(start + loop.iv), found[0], count + loop.iv)
            store(numbered(loop.iv), found[1], count + loop.iv)
        return count + size

    def _after_centre(
        self,
        keys: V,
        table: V,
        rows: V,
        extents: tuple[V, V],
        start: V,
        size: V,
        found: tuple[V, V],
        starts: V,
        count: V,
    ) -> V:
        """Appends the pairs of the mirrored taps: entries that name a row of the chunk, read by that row."""
        geometry = self.geometry
        zero = const(0, i64())
        with for_(geometry.centre + 1, const(geometry.taps, i64()), 1, [count, zero, zero], unroll=False) as tap:
            count, low, high = tap.args
            store(count.to(i32()), starts, tap.iv)
            mirrored = const(geometry.taps - 1, i64()) - tap.iv
            new_run = (mirrored % geometry.run).eq(geometry.run - 1) | tap.iv.eq(geometry.centre + 1)

            search = functools.partial(self._readers, keys, rows, mirrored, extents, start, size)
            low, high = if_else(new_run, search, functools.partial(list, (low, high)))
            read = entry_reader(self.geometry, table, rows, mirrored)
            chunk_start, chunk_size = (value.to(i32()).broadcast(LANES) for value in (start, size))
            with for_(low, high, LANES, [count], unroll=False) as loop:
                places, present = read(loop.iv)
                outputs = places - chunk_start
                present = present & outputs.ult(chunk_size)
                left = high - loop.iv
                loop.yields(append(found, loop.args[0], present, left, numbered(loop.iv), outputs))
            tap.yields(*loop.results, low, high)
        return tap.results[0]

    def _readers(
        self, keys: V, rows: V, tap: V, extents: tuple[V, V], start: V, size: V
    ) -> list[V]:
        """[low, high): all places whose entry for the run of `tap` can name a row of the chunk."""
        geometry = self.geometry
        offset = geometry.offset(tap // geometry.run * geometry.run, *extents)
        first, last = (load(keys, geometry.key, place).to(i64()) for place in (start, start + size - 1))
        return [
            lower_bound(keys, geometry.key, rows, wanted.to(geometry.key))
            for wanted in (first - offset - (geometry.run - 1), last - offset + 1)
        ]


def entry_reader(geometry: Geometry, table: V, columns: V, tap: V) -> Callable[[V], tuple[V, V]]:
    """A function that gives, for eight of the table's columns, the places that `tap` reads, and where there are any."""
    run = geometry.run
    entries = gep(table, tap // run * columns, i32())
    bit = (tap % run).to(i32())
    earlier = ((const(1, i32()) << bit) - 1).broadcast(LANES)
    to_sign = (const(31, i32()) - bit).broadcast(LANES)

    def read(place: V) -> tuple[V, V]:
        entry = load(entries, vec(LANES, i32()), place)
        before = entry & earlier
        places = entry >> run
        for lower in range(run - 1):
            places = places + ((before >> lower) & 1)
        return places, (entry << to_sign) < 0

    return read


def write_pairs(found: tuple[V, V], count: V, origin: V, chunk: V, target: tuple[V, V, V, V]) -> None:
    """Moves a chunk's `count` pairs to the list, if it has room, with input rows in the place of sorted places.

    target: the number of all pairs so far, where each chunk's start goes, the list, and its capacity.
    """
    total, chunk_first, pairs, capacity = target
    first = atomic_add(total, count)
    store(first, chunk_first, chunk)
    with if_(first + count <= capacity), for_(0, count, 1, unroll=False) as loop:
        place = load(found[0], i32(), loop.iv).to(i64())
        row = load(origin, i32(), place).to(i64())
        store(load(found[1], i32(), loop.iv).to(i64()) << ROW_BITS | row, pairs, first + loop.iv)


def append(found: tuple[V, V], count: V, present: V, left: V, inputs: V, outputs: V) -> V:
    """Puts the present ones of the first `left` lanes behind `count` pairs; gives the new count."""
    bits = V(llvm.BitcastOp(i8(), present.value).result).to(i64())
    bits = bits & ((const(1, i64()) << left.min(LANES)) - 1)
    permutation = load(bytes_after(address_of(PERMUTATIONS), bits * LANES), vec(LANES, i8())).to(vec(LANES, i32()))
    for target, values in zip(found, (inputs, outputs), strict=True):
        packed = call_intrinsic("llvm.x86.avx2.permd", [values, permutation], values.type)
        store(packed, target, count)
    return count + call_intrinsic("llvm.ctpop", [bits], i64())
