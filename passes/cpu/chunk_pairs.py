"""The pairs of a map on the CPU, ordered by (chunk of output rows, tap, output row).

Output rows are taken in the order of their keys. For one line of taps along x the wanted keys ascend with them,
so the search is a merge join, in the manner of Spira's z-delta search (arXiv 2511.20834): a pointer into the
sorted keys that only moves forward, by as many places as a vector comparison counts. A chunk starts with a
binary search per line. Nothing in it branches on what is found: for each tap it notes a place in the keys per row,
and one bit that says whether the wanted key is there. The bits are counted, and only then are pairs written.
"""

from __future__ import annotations

import dataclasses
import math

from spconv_compiler.bindings import ir, llvm
from spconv_compiler.passes.cpu.functions import Functions, call_intrinsic
from spconv_compiler.passes.cpu.memory import CACHE_LINE, atomic_add, bytes_after, rounded, stack_array
from spconv_compiler.passes.cpu.parallel import parallel_for, worth_workers
from spconv_compiler.passes.cpu.sorted_keys import PAIRS, key_type
from spconv_compiler.passes.kernel_builder import (
    V,
    const,
    for_,
    gep,
    i1,
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
# Pointers and bits of the lines that are searched side by side stay in registers up to this many.
_LIVE_VALUES = 16
_WORD = 64
_TOP_BIT = -(1 << 63)

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
    def words(self) -> int:
        """Words of a tap's bits, one for 64 rows, the first row in the top bit."""
        return -(-self.chunk_rows // _WORD)

    @property
    def stride(self) -> int:
        """Elements from one tap's places to the next's: no power of two, which would share cache sets."""
        return rounded(self.chunk_rows, _WORD) + CACHE_LINE // 4

    @property
    def scratch_words(self) -> int:
        """A worker's scratch: bits i64 [taps, words] and places i32 [taps, stride], in i64."""
        return rounded(self.taps * self.words, CACHE_LINE // 8) + self.taps * self.stride // 2

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
        bits = gep(scratch, worker * self.scratch_words, i64())
        places = bytes_after(bits, rounded(self.taps * self.words * 8))
        start = chunk * self.chunk_rows
        size = (rows - start).min(self.chunk_rows)
        words = (size + (_WORD - 1)) // _WORD
        self._search(keys, rows, start, size, (extent_y * extent_x, extent_x), bits, places)
        starts = gep(tap_first, chunk * (self.taps + 1), i32())
        count = self._count(bits, words, starts)
        first = atomic_add(total, count)
        store(first, chunk_first, chunk)
        with if_(first + count <= capacity):
            self._write(bits, places, words, origin, gep(pairs, first, i64()))

    def _search(
        self, keys: V, rows: V, start: V, size: V, strides: tuple[V, V], bits: V, places: V
    ) -> None:
        """Fills the bits and places of `size` rows from `start` on."""
        kz, ky, kx = self.kernel_size
        # Several lines side by side: their searches do not wait for each other.
        group = ky if ky * (kx + 1) <= _LIVE_VALUES else 1
        taps = group * kx
        mine = gep(keys, start, self.key)
        with for_(0, const(kz * ky // group, i64()), 1, unroll=False) as outer:
            offsets = [self._line_offset(outer.iv * group + line, strides).to(self.key) for line in range(group)]
            first_key = load(mine, self.key)
            begin = [self._lower_bound(keys, rows, first_key + offset) for offset in offsets]
            these_bits = gep(bits, outer.iv * (taps * self.words), i64())
            these_places = gep(places, outer.iv * (taps * self.stride), i32())
            with for_(0, size, _WORD, begin, unroll=False) as word:
                end = (word.iv + _WORD).min(size)
                init = [*word.args, *[const(0, i64())] * taps]
                with for_(word.iv, end, 1, init, unroll=False) as loop:
                    key = load(mine, self.key, loop.iv)
                    found, flags = [], []
                    for line, offset in enumerate(offsets):
                        target = gep(these_places, loop.iv + line * kx * self.stride, i32())
                        place, hits = self._search_line(keys, loop.args[line], key + offset, target)
                        found.append(place)
                        flags.extend(hits)
                    shifted = [before + before + flag for before, flag in zip(loop.args[group:], flags, strict=True)]
                    loop.yields(*found, *shifted)
                missing = const(_WORD, i64()) - (end - word.iv)
                for tap, flag in enumerate(loop.results[group:]):
                    store(flag << missing, gep(these_bits, tap * self.words, i64()), word.iv // _WORD)
                word.yields(*loop.results[:group])

    def _line_offset(self, line: V, strides: tuple[V, V]) -> V:
        """What the first tap of a line adds to a key."""
        _, ky, kx = self.kernel_size
        dz, dy, dx = self.dilation
        stride_z, stride_y = strides
        z = (line // ky - self.kernel_size[0] // 2) * dz
        y = (line % ky - ky // 2) * dy
        return z * stride_z + y * stride_y - kx // 2 * dx

    def _search_line(self, keys: V, place: V, wanted: V, target: V) -> tuple[V, list[V]]:
        """The taps of one line for one row.

        Writes the place of every tap's key, or of a larger one, to target i32 [kx, stride].

        Returns:
            The first tap's place, and for each tap 1 where its key is there, else 0.
        """
        kx, dx = self.kernel_size[2], self.dilation[2]
        place = self._advance(keys, place, wanted)
        here, hits = place, []
        for tap in range(kx):
            hits.append(load(keys, self.key, here).eq(wanted + tap * dx).to(i64()))
            store(here.to(i32()), target, tap * self.stride)
            if tap + 1 < kx:
                here = here + hits[tap] if dx == 1 else self._advance(keys, here, wanted + (tap + 1) * dx)
        return place, hits

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

    def _count(self, bits: V, words: V, starts: V) -> V:
        """Writes where each tap's pairs start to starts [taps + 1], and gives their sum."""
        with for_(0, const(self.taps, i64()), 1, [const(0, i64())], unroll=False) as tap:
            store(tap.args[0].to(i32()), starts, tap.iv)
            these = gep(bits, tap.iv * self.words, i64())
            with for_(0, words, 1, [tap.args[0]], unroll=False) as word:
                here = call_intrinsic("llvm.ctpop", [load(these, i64(), word.iv)], i64())
                word.yields(word.args[0] + here)
            tap.yields(*word.results)
        (count,) = tap.results
        store(count.to(i32()), starts, self.taps)
        return count

    def _write(self, bits: V, places: V, words: V, origin: V, target: V) -> None:
        """Writes a pair for every bit, tap by tap."""
        with for_(0, const(self.taps, i64()), 1, [const(0, i64())], unroll=False) as tap:
            with for_(0, words, 1, tap.args, unroll=False) as word:
                first_row = word.iv * _WORD
                these = gep(places, tap.iv * self.stride + first_row, i32())

                def write_first(left: V, count: V, first_row: V = first_row, these: V = these) -> list[V]:
                    row = call_intrinsic("llvm.ctlz", [left, const(1, i1())], i64())
                    place = load(these, i32(), row).to(i64())
                    source = load(origin, i32(), place).to(i64())
                    store((first_row + row) << ROW_BITS | source, target, count)
                    return [left ^ (const(_TOP_BIT, i64()) >> row), count + 1]

                left = load(bits, i64(), tap.iv * self.words + word.iv)
                more = while_([left, word.args[0]], lambda left, count: (left.ne(0), [left, count]), write_first)
                word.yields(more[1])
            tap.yields(*word.results)
