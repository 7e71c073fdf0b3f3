"""The neighbours of every row on one side: where the rows are that the taps before the centre read.

The other side is the mirror image: row j reads row i through the last tap but t exactly when i reads j through
tap t. So half of the taps are searched, and compaction reads the table both ways.

Taps whose keys follow each other share an entry of the table, u32: place << run | bits. Bit t says whether the
t-th of `run` taps has a neighbour, and `place` is where the first one is; those of the next taps stand behind it.

Rows are taken in the order of their keys. For one run of taps the wanted keys ascend with them, so the search is a
merge join, in the manner of Spira's z-delta search (arXiv 2511.20834): a pointer into the sorted keys that only
moves forward, by as many places as a vector comparison counts. It starts with a binary search, and does not branch
on what is found.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from spconv_compiler.bindings import ir, llvm, vector
from spconv_compiler.passes.cpu.functions import Functions, call_intrinsic
from spconv_compiler.passes.cpu.parallel import parallel_for, worth_workers
from spconv_compiler.passes.cpu.sorted_keys import key_type
from spconv_compiler.passes.kernel_builder import V, const, for_, gep, i32, i64, load, store, vec, while_

# Rows that a worker takes at once, and how many searches a worker is worth, some 0.1 ms.
SPAN = 2048
GRAIN = 1 << 15
# Clocks of one search (Zen 3): from one row's place to the next's, and where several do not wait for each other.
_LATENCY, _THROUGHPUT = 18, 11
# Runs are searched side by side; more taps than this at once would be much code for little.
_MOST_TAPS = 15

# Bits of an entry that say which taps of a run are there; the others tell 2^25 voxels apart.
_LONGEST_RUN = 7

# A distance that is no tap's.
_FAR = 31

# Columns behind the last, so that compaction may look at whole vectors.
TABLE_PADDING = 16


@dataclasses.dataclass(frozen=True)
class Geometry:
    """What a map is searched for: kernel size and dilation (z, y, x), and bits of a key."""

    kernel_size: tuple[int, int, int]
    dilation: tuple[int, int, int]
    key_width: int

    @staticmethod
    def of(kernel_size: Iterable[int], dilation: Iterable[int], key_width: int) -> Geometry:
        """From three numbers each."""
        (kz, ky, kx), (dz, dy, dx) = kernel_size, dilation
        return Geometry((kz, ky, kx), (dz, dy, dx), key_width)

    @property
    def taps(self) -> int:
        kz, ky, kx = self.kernel_size
        return kz * ky * kx

    @property
    def centre(self) -> int:
        return self.taps // 2

    @property
    def run(self) -> int:
        """Taps that share an entry: a line along x, or one tap where x is dilated or the line is long."""
        return self.kernel_size[2] if self.dilation[2] == 1 and self.kernel_size[2] <= _LONGEST_RUN else 1

    @property
    def table_rows(self) -> int:
        """Entries of one voxel: all runs up to the centre's, that one for its first half."""
        return -(-self.centre // self.run)

    @property
    def most_rows(self) -> int:
        """How many voxels the entries can tell apart."""
        return (1 << (32 - self.run)) - 1

    @property
    def key(self) -> ir.Type:
        return key_type(self.key_width)

    @property
    def name(self) -> str:
        kernel, steps = ("x".join(map(str, sizes)) for sizes in (self.kernel_size, self.dilation))
        return f"k{self.key_width}_{kernel}_d{steps}"

    def offset(self, tap: V, extent_y: V, extent_x: V) -> V:
        """What a tap adds to a key, i64."""
        z, y, x = tap // (self.kernel_size[1] * self.kernel_size[2]), tap // self.kernel_size[2], tap
        z, y, x = (
            (index % size - size // 2) * step
            for index, size, step in zip((z, y, x), self.kernel_size, self.dilation, strict=True)
        )
        return (z * extent_y + y) * extent_x + x


def lower_bound(keys: V, key: ir.Type, rows: V, wanted: V) -> V:
    """The first place whose key is not below `wanted`, or `rows`, by binary search."""

    def halve(low: V, high: V) -> list[V]:
        middle = (low + high) >> 1
        below = load(keys, key, middle) < wanted
        return [below.select(middle + 1, low), below.select(high, middle)]

    return while_([const(0, i64()), rows], lambda low, high: (low < high, [low, high]), halve)[0]


@dataclasses.dataclass(frozen=True)
class HalfTable:
    """Body of the search kernel.

    Arguments: keys as SortedKeys left them; table i32 [table_rows, rows]; rows, extent_y, extent_x, threads.
    """

    functions: Functions
    name: str
    geometry: Geometry

    @property
    def lanes(self) -> int:
        """Keys compared at once."""
        return self.functions.target.lanes * 32 // self.geometry.key_width

    def __call__(self, keys: V, table: V, rows: V, extent_y: V, extent_x: V, threads: V) -> None:
        shared = [keys, table, rows, extent_y, extent_x]
        workers = worth_workers(threads, rows * self.geometry.table_rows, GRAIN)
        parallel_for(self.functions, self.name, (rows + (SPAN - 1)) // SPAN, workers, shared, self._span)

    def _span(self, span: V, worker: V, keys: V, table: V, rows: V, extent_y: V, extent_x: V) -> None:
        start = span * SPAN
        end = (start + SPAN).min(rows)
        self.search((keys, start, end), (keys, rows), (table, rows), extent_y, extent_x)

    def search(
        self, queries: tuple[V, V, V], among: tuple[V, V], table: tuple[V, V], extent_y: V, extent_x: V
    ) -> None:
        """Writes the entries of `queries` (ascending keys, first place, end) `among` the keys of a set (keys, rows).

        table: where place 0 would have its first entry, and by how many entries a run's lie behind those of the one
        before.
        """
        geometry = self.geometry
        (asking, start, end), (keys, rows), (entries, columns) = queries, among, table
        group = runs_at_once(geometry)
        with for_(0, const(-(-geometry.table_rows // group), i64()), 1, unroll=False) as outer:
            # Where the runs do not divide evenly, the last is searched again.
            runs = [(outer.iv * group + run).min(geometry.table_rows - 1) for run in range(group)]
            offsets = [geometry.offset(run * geometry.run, extent_y, extent_x).to(geometry.key) for run in runs]
            targets = [gep(entries, run * columns, i32()) for run in runs]
            first_key = load(asking, geometry.key, start)
            begin = [lower_bound(keys, geometry.key, rows, first_key + offset) for offset in offsets]
            with for_(start, end, 1, begin, unroll=False) as loop:
                key = load(asking, geometry.key, loop.iv)
                places = []
                for before, offset, target in zip(loop.args, offsets, targets, strict=True):
                    place = self._advance(keys, before, key + offset)
                    store(self._entry(keys, place, key + offset), target, loop.iv)
                    places.append(place)
                loop.yields(*places)

    def _entry(self, keys: V, place: V, wanted: V) -> V:
        """The entry of a run whose first wanted key is not before `place`, and at it if it is there at all."""
        run, key = self.geometry.run, self.geometry.key
        # The wanted keys that are there are the next ones of all, each at its distance from the first.
        lanes = 1 << (run - 1).bit_length()
        distance = load(keys, vec(lanes, key), place) - wanted.broadcast(lanes)
        bits = const(1, vec(lanes, i32())) << distance.min(_FAR).to(vec(lanes, i32()))
        seen = V(vector.ReductionOp(i32(), ir.Attribute.parse("#vector.kind<or>"), bits.value).result)
        return place.to(i32()) << run | seen & ((1 << run) - 1)

    def _advance(self, keys: V, place: V, wanted: V) -> V:
        """The first place from `place` on whose key is not below `wanted`."""

        def step(place: V, below: V) -> list[V]:
            return [place + self.lanes, self._count_below(keys, place + self.lanes, wanted)]

        place, below = while_(
            [place, self._count_below(keys, place, wanted)],
            lambda place, below: (below.eq(self.lanes), [place, below]),
            step,
        )
        return place + below

    def _count_below(self, keys: V, place: V, wanted: V) -> V:
        """How many of the `lanes` keys from `place` on are below `wanted`; they ascend."""
        ascending = load(keys, vec(self.lanes, self.geometry.key), place)
        flags = ascending < wanted.broadcast(self.lanes)
        mask = V(llvm.BitcastOp(ir.IntegerType.get_signless(self.lanes), flags.value).result)
        return call_intrinsic("llvm.ctpop", [mask.to(i32())], i32()).to(i64())


def runs_at_once(geometry: Geometry) -> int:
    """How many runs to search side by side."""
    most = max(1, min(geometry.table_rows, _MOST_TAPS // geometry.run))
    return min(
        range(1, most + 1),
        key=lambda group: -(-geometry.table_rows // group) * max(_LATENCY, _THROUGHPUT * group),
    )
