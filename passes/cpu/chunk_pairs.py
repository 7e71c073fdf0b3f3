"""The pairs of a map on the CPU, ordered by (chunk of output rows, tap, output row).

Output rows are taken in the order of their keys. For one line of taps along x the wanted keys ascend with them,
so the search is a merge join, in the manner of Spira's z-delta search (arXiv 2511.20834): a pointer into the
sorted keys that only moves forward, by as many places as a vector comparison counts. A chunk starts with a
binary search per line. Nothing branches on what is found: a pair is written always and counted when it is one.
"""

from __future__ import annotations

import dataclasses
import math

from spconv_compiler.bindings import ir, llvm
from spconv_compiler.passes.cpu.functions import Functions, call_intrinsic
from spconv_compiler.passes.cpu.memory import CACHE_LINE, atomic_add, stack_array
from spconv_compiler.passes.cpu.parallel import parallel_for, worth_workers
from spconv_compiler.passes.cpu.sorted_keys import PAIRS, key_type
from spconv_compiler.passes.kernel_builder import (
    V,
    const,
    for_,
    gep,
    i32,
    i64,
    if_,
    load,
    store,
    vec,
    while_,
)

# A worker for this many searches, some half a millisecond.
_GRAIN = 1 << 16
# Pointers and counts of the lines that are searched side by side stay in registers up to this many.
_LIVE_VALUES = 16

ROW_BITS = 32
ROW_MASK = (1 << ROW_BITS) - 1


def pair_row(pair: V) -> V:
    """The input row of a pair, i64."""
    return pair & ROW_MASK


def pair_place(pair: V) -> V:
    """The output row of a pair, counted from the start of its chunk, i64."""
    return pair >> ROW_BITS


@dataclasses.dataclass(frozen=True)
class ChunkPairs:
    """Body of the pairs kernel.

    Arguments: keys and origin as SortedKeys left them; pairs i64 [capacity]: input row | place << 32; first pair
    of every chunk i64 [chunks]; where its taps start after that i32 [chunks, taps + 1]; status; scratch i64
    [threads, scratch_words]; rows, extent_y, extent_x, capacity, threads. Returns the pairs needed when there
    are more than `capacity`; then `pairs` holds some of them only.
    """

    functions: Functions
    name: str
    key_width: int
    kernel_size: tuple[int, int, int]
    dilation: tuple[int, int, int]
    chunk_rows: int

    @property
    def taps(self) -> int:
        return math.prod(self.kernel_size)

    @property
    def stride(self) -> int:
        """Words from one tap's pairs in scratch to the next's: no power of two, which would share cache sets."""
        return self.chunk_rows + CACHE_LINE // 8

    @property
    def scratch_words(self) -> int:
        """A worker's scratch: pairs [taps, stride] and counts [taps], i64."""
        return self.taps * (self.stride + 1)

    @property
    def key(self) -> ir.Type:
        return key_type(self.key_width)

    @property
    def lanes(self) -> int:
        """Keys compared at once."""
        return self.functions.target.lanes * 32 // self.key_width

    def __call__(
        self,
        keys: V,
        origin: V,
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
        total = stack_array(1, i64())
        store(const(0, i64()), total)
        shared = [keys, origin, pairs, chunk_first, tap_first, scratch, total, rows, extent_y, extent_x, capacity]
        chunks = (rows + (self.chunk_rows - 1)) // self.chunk_rows
        kz, ky, _ = self.kernel_size
        workers = worth_workers(threads, rows * (kz * ky), _GRAIN)
        parallel_for(self.functions, self.name, chunks, workers, shared, self._chunk)
        needed = load(total, i64())
        store(needed, status, PAIRS)
        return (needed > capacity).select(needed, const(0, i64()))

    def _chunk(
        self,
        chunk: V,
        worker: V,
        keys: V,
        origin: V,
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
        found = gep(scratch, worker * self.scratch_words, i64())
        counts = gep(found, self.taps * self.stride, i64())
        start = chunk * self.chunk_rows
        size = (rows - start).min(self.chunk_rows)
        self._search(keys, rows, start, size, (extent_y * extent_x, extent_x), found, counts)

        taps = const(self.taps, i64())
        starts = gep(tap_first, chunk * (self.taps + 1), i32())
        with for_(0, taps, 1, [const(0, i64())], unroll=False) as tap:
            store(tap.args[0].to(i32()), starts, tap.iv)
            tap.yields(tap.args[0] + load(counts, i64(), tap.iv))
        (count,) = tap.results
        store(count.to(i32()), starts, self.taps)
        first = atomic_add(total, count)
        store(first, chunk_first, chunk)
        with if_(first + count <= capacity), for_(0, taps, 1, unroll=False) as tap:
            source = gep(found, tap.iv * self.stride, i64())
            target = gep(pairs, first + load(starts, i32(), tap.iv).to(i64()), i64())
            with for_(0, load(counts, i64(), tap.iv), unroll=False) as loop:
                pair = load(source, i64(), loop.iv)
                row = load(origin, i32(), pair_row(pair)).to(i64())
                store(pair_place(pair) << ROW_BITS | row, target, loop.iv)

    def _search(
        self, keys: V, rows: V, start: V, size: V, strides: tuple[V, V], found: V, counts: V
    ) -> None:
        """Finds the chunk's pairs, as places in the sorted keys, into found [taps, stride] and counts."""
        kz, ky, kx = self.kernel_size
        # Several lines side by side: their searches do not wait for each other.
        group = ky if ky * (kx + 1) <= _LIVE_VALUES else 1
        mine = gep(keys, start, self.key)
        with for_(0, const(kz * ky // group, i64()), 1, unroll=False) as outer:
            lines = [outer.iv * group + line for line in range(group)]
            offsets = [self._line_offset(line, strides).to(self.key) for line in lines]
            first_key = load(mine, self.key)
            places = [self._lower_bound(keys, rows, first_key + offset) for offset in offsets]
            target = gep(found, lines[0] * (kx * self.stride), i64())
            init = places + [const(0, i64())] * (group * kx)
            with for_(0, size, 1, init, unroll=False) as loop:
                key, tag = load(mine, self.key, loop.iv), loop.iv << ROW_BITS
                moved, written = [], []
                for line, offset in enumerate(offsets):
                    before = loop.args[group + line * kx : group + (line + 1) * kx]
                    into = gep(target, line * kx * self.stride, i64())
                    place, after = self._search_line(keys, loop.args[line], key + offset, tag, into, before)
                    moved.append(place)
                    written.extend(after)
                loop.yields(*moved, *written)
            for index, count in enumerate(loop.results[group:]):
                store(count, counts, lines[0] * kx + index)

    def _line_offset(self, line: V, strides: tuple[V, V]) -> V:
        """What the first tap of a line adds to a key."""
        _, ky, kx = self.kernel_size
        dz, dy, dx = self.dilation
        stride_z, stride_y = strides
        z = (line // ky - self.kernel_size[0] // 2) * dz
        y = (line % ky - ky // 2) * dy
        return z * stride_z + y * stride_y - kx // 2 * dx

    def _search_line(
        self, keys: V, place: V, wanted: V, tag: V, target: V, counts: list[V]
    ) -> tuple[V, list[V]]:
        """The taps of one line for one row: (place of the first wanted key or a larger one, new counts)."""
        kx, dx = self.kernel_size[2], self.dilation[2]
        place = self._advance(keys, place, wanted)
        here, after = place, []
        for tap in range(kx):
            hit = load(keys, self.key, here).eq(wanted + tap * dx).to(i64())
            store(here | tag, gep(target, tap * self.stride, i64()), counts[tap])
            after.append(counts[tap] + hit)
            if tap + 1 < kx:
                here = here + hit if dx == 1 else self._advance(keys, here, wanted + (tap + 1) * dx)
        return place, after

    def _advance(self, keys: V, place: V, wanted: V) -> V:
        """The first place from `place` on whose key is not below `wanted`."""
        below = self._count_below(keys, place, wanted)

        def step(place: V, below: V) -> list[V]:
            return [place + self.lanes, self._count_below(keys, place + self.lanes, wanted)]

        place, below = while_(
            [place, below], lambda place, below: (below.eq(self.lanes), [place, below]), step
        )
        return place + below

    def _count_below(self, keys: V, place: V, wanted: V) -> V:
        """How many of the `lanes` keys from `place` on are below `wanted`; they ascend."""
        ascending = load(keys, vec(self.lanes, self.key), place)
        flags = ascending < wanted.broadcast(self.lanes)
        mask = V(llvm.BitcastOp(ir.IntegerType.get_signless(self.lanes), flags.value).result)
        return call_intrinsic("llvm.ctpop", [mask.to(i32())], i32()).to(i64())

    def _lower_bound(self, keys: V, rows: V, wanted: V) -> V:
        """The first place of all whose key is not below `wanted`, by binary search."""

        def halve(low: V, high: V) -> list[V]:
            middle = (low + high) >> 1
            below = load(keys, self.key, middle) < wanted
            return [below.select(middle + 1, low), below.select(high, middle)]

        return while_([const(0, i64()), rows], lambda low, high: (low < high, [low, high]), halve)[0]
