"""Output-stationary gemm for warpgroups: a block finishes its output rows over all taps that any of them has.

Warpgroup 0 gathers: per step (one tap, `block_k` input channels) it copies input rows chunk by chunk, zeros where a row
has no neighbour, and one image of the weights in bulk. Each other warpgroup multiplies 64 rows, and passes over the
steps whose tap none of them has. Stages in shared memory pass between them through two barriers a stage. No atomics, no
zero fill, the epilogue is fused, and the order of every sum is fixed.

Rows come sorted so that rows with the same taps share a block (row_masks.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from spconv_compiler.dialect.tile import tile_address
from spconv_compiler.passes.gpu import warpgroup as wg
from spconv_compiler.passes.gpu.dense_grid import TILE_ROWS
from spconv_compiler.passes.gpu.lanes import barrier, block, concatenate, load, thread
from spconv_compiler.passes.gpu.row_masks import BLOCK_ROWS, FIRST_TILE_BIT, TAP_MASK
from spconv_compiler.passes.kernel_builder import V, const, for_, i32, i64, if_, if_else

GROUP_ROWS = 64
_ELEMENT_BYTES = 2
_BARRIER_BYTES = 8
# Neighbouring columns that a thread has.
_PAIR = 2

Finish = Callable[[V, V, V], None]


@dataclasses.dataclass(frozen=True)
class WgmmaRows:
    """What the body depends on.

    Attributes:
        taps, c_in, c_out: of the convolution; c_in is a multiple of block_k.
        element: "bf16" or "f16". columns: output channels of a block. block_k: input channels of a step (16, 32, 64).
        groups: warpgroups that multiply. stages: steps that are in shared memory at once.
        finish: called with the `others`; makes what is called with (row, first channel, f32 sums of two channels or
            one) for all sums.
    """

    taps: int
    c_in: int
    c_out: int
    element: str
    columns: int
    block_k: int
    groups: int
    stages: int
    finish: Callable[[list[V]], Finish]
    symbol: str = "dynamic_shared"

    @property
    def rows(self) -> int:
        """Output rows of a block."""
        return self.groups * GROUP_ROWS

    @property
    def lanes(self) -> int:
        """Lanes of a block."""
        return (1 + self.groups) * wg.WARPGROUP

    @property
    def slices(self) -> int:
        """Blocks along the output channels."""
        return -(-self.c_out // self.columns)

    @property
    def steps(self) -> int:
        """Steps of one tap."""
        return self.c_in // self.block_k

    @property
    def tile(self) -> wg.MatrixTile:
        return wg.MatrixTile(self.block_k * _ELEMENT_BYTES)

    @property
    def image_elements(self) -> int:
        """Elements of the weights of one step and slice."""
        return self.columns * self.block_k

    @property
    def a_bytes(self) -> int:
        return self.rows * self.tile.row_bytes

    @property
    def b_bytes(self) -> int:
        """Bytes between the images of two stages: tiles start at multiples of 1024."""
        return -(-self.columns * self.tile.row_bytes // 1024) * 1024

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.stages * (self.a_bytes + self.b_bytes + 2 * _BARRIER_BYTES)

    def __call__(
        self, features: V, weights: V, table: V, steps: V, counts: V, order: V, *rest: V
    ) -> None:
        """Body(features, weights, table, steps, counts, order, *others, rows).

        table i32 [tiles][taps][16], steps i32 [blocks of 256 rows][taps], counts i32 [blocks] and order i32
        [blocks · 256] are those of row_masks.py.
        """
        *others, rows = rest
        places = _Places(self, wg.shared_base(self.symbol))
        tile = _Tile(self, block(), rows, steps, counts)
        group, lane = thread() // wg.WARPGROUP, thread() % wg.WARPGROUP
        with if_(thread().eq(0)):
            for stage in range(self.stages):
                wg.init_barrier(places.full(const(stage, i32())), wg.WARPGROUP + 1)
                wg.init_barrier(places.empty(const(stage, i32())), self.groups)
            wg.publish_barriers()
        barrier()
        with if_(group.eq(0)):
            self._gather(places, features, weights, table, tile, lane)
        with if_(group.ne(0)):
            sums = self._multiply(places, tile, group - 1, lane)
            self._store(sums, order, self.finish(others), tile, group - 1, lane)

    def _gather(
        self,
        places: _Places,
        features: V,
        weights: V,
        table: V,
        tile: _Tile,
        lane: V,
    ) -> None:
        """Fills stages with the steps of a tile; row numbers are read one step ahead, steps two."""
        chunks = self.tile.chunks
        source = _Source(self, tile, table, lane // chunks)
        word, following = tile.word(const(0, i32())), tile.word(const(1, i32()))
        zero = const(0, i32())
        init = [zero, zero, word, following, *source.rows(word)]
        with for_(0, tile.count, 1, init, unroll=False) as each:
            stage, phase, word, following, *rows = each.args
            ahead = [tile.word(each.iv + 2), *source.rows(following)]
            present = tile.present(word)
            states = if_else(
                present.ne(0),
                lambda: self._fill(places, features, weights, tile, lane, word & TAP_MASK, present, rows, stage, phase),
                lambda: [stage, phase],
            )
            each.yields(*states, following, *ahead)

    def _fill(
        self,
        places: _Places,
        features: V,
        weights: V,
        tile: _Tile,
        lane: V,
        tap: V,
        present: V,
        rows: list[V],
        stage: V,
        phase: V,
    ) -> list[V]:
        """Fills stages with all steps of a tap; gives the stage and phase that follow."""
        chunks = self.tile.chunks
        span = wg.WARPGROUP // chunks
        turns, per_group = self.rows // span, GROUP_ROWS // span
        chunk, own = lane % chunks, lane // chunks
        # Rows `span` apart have the same swizzle: span is a multiple of the 8 rows after which it repeats.
        offset = self.tile.place(own, chunk)
        sizes = [(row >= 0).select(const(wg.CHUNK, i32()), 0) for row in rows]
        starts = [row.max(0).to(i64()) * self.c_in + (chunk * 8).to(i64()) for row in rows]
        image = (tap * self.slices + tile.slice) * self.steps
        target_of = [turn * span * self.tile.row_bytes for turn in range(turns)]
        with for_(0, const(self.steps, i32()), 1, [stage, phase], unroll=False) as step:
            stage, phase = step.args
            wg.wait_barrier(places.empty(stage), phase ^ 1)
            full = places.full(stage)
            with if_(lane.eq(0)):
                wg.arrive_expecting(full, self.image_elements * _ELEMENT_BYTES)
                source = (image + step.iv).to(i64()) * self.image_elements
                address = V(tile_address(weights.value, source.value))
                wg.copy_bulk(places.b(stage), address, self.image_elements * _ELEMENT_BYTES, full)
            target, channel = places.a(stage) + offset, (step.iv * self.block_k).to(i64())
            for group in range(self.groups):
                with if_(tile.has(present, group)):
                    for turn in range(group * per_group, (group + 1) * per_group):
                        source = V(tile_address(features.value, (starts[turn] + channel).value))
                        wg.copy_chunk(target + target_of[turn], source, sizes[turn])
            wg.arrive_after_copies(full)
            step.yields(*self._next(stage, phase))
        return step.results

    def _multiply(self, places: _Places, tile: _Tile, group: V, lane: V) -> V:
        """The sums of a tile."""
        none = const(0, i32())
        # Of the multiplications of one step it is not known whether they are done: its stage is given back later.
        init = [tile.word(none), wg.accumulators(self.columns), *[none] * 4]
        with for_(0, tile.count, 1, init, unroll=False) as each:
            word, *state = each.args
            following, present = tile.word(each.iv + 1), tile.present(word)
            states = if_else(
                tile.has(present, group),
                lambda: self._tap(places, state, group, lane),
                lambda: if_else(present.ne(0), lambda: self._pass_over(places, state, lane), lambda: state),
            )
            each.yields(following, *states)
        wg.wait_multiplications(0)
        return each.results[1]

    def _tap(self, places: _Places, state: list[V], group: V, lane: V) -> list[V]:
        """All steps of a tap; the multiplications of one step run while the next step is waited for."""
        with for_(0, const(self.steps, i32()), 1, state, unroll=False) as step:
            sums, stage, phase, before, pending = step.args
            wg.wait_barrier(places.full(stage), phase)
            wg.see_copies()
            a = self.tile.descriptor(places.a(stage) + group * (GROUP_ROWS * self.tile.row_bytes))
            b = self.tile.descriptor(places.b(stage))
            wg.start_multiplying()
            for k in range(self.block_k // 16):
                sums = wg.multiply(sums, a + 2 * k, b + 2 * k, self.columns, self.element)
            wg.commit_multiplications()
            wg.wait_multiplications(1)
            with if_(lane.eq(0) & pending.ne(0)):
                wg.arrive(places.empty(before))
            following, turned = self._next(stage, phase)
            step.yields(sums, following, turned, stage, const(1, i32()))
        return step.results

    def _pass_over(self, places: _Places, state: list[V], lane: V) -> list[V]:
        """Lets the stages of a tap go: none of the group's rows has it."""
        sums, stage, phase, before, pending = state
        with if_(pending.ne(0)):
            wg.wait_multiplications(0)
            with if_(lane.eq(0)):
                wg.arrive(places.empty(before))
        with for_(0, const(self.steps, i32()), 1, [stage, phase], unroll=False) as step:
            stage, phase = step.args
            wg.wait_barrier(places.full(stage), phase)
            with if_(lane.eq(0)):
                wg.arrive(places.empty(stage))
            step.yields(*self._next(stage, phase))
        return [sums, *step.results, before, const(0, i32())]

    def _next(self, stage: V, phase: V) -> tuple[V, V]:
        last = stage.eq(self.stages - 1)
        return last.select(const(0, i32()), stage + 1), last.select(phase ^ 1, phase)

    def _store(self, sums: V, order: V, write: Finish, tile: _Tile, group: V, lane: V) -> None:
        """Thread t of a warpgroup has rows 16·(t div 32) + (t mod 32) div 4 and 8 more, columns 8·j + 2·(t mod 4)."""
        row = group * GROUP_ROWS + (lane // 32) * 16 + (lane % 32) // 4
        first = tile.slice * self.columns + (lane % 4) * _PAIR
        for half in range(2):
            target = load(order, tile.first_row + row + 8 * half)
            with if_(target >= 0):
                for number in range(self.columns // 8):
                    values = [wg.accumulator(sums, 4 * number + _PAIR * half + one) for one in range(_PAIR)]
                    self._write(write, target, first + 8 * number, values)

    def _write(self, write: Finish, row: V, channel: V, values: list[V]) -> None:
        """Channels beyond the last are left out; where rows have an odd number of them, pairs are not aligned."""
        if self.c_out % _PAIR:
            for one, value in enumerate(values):
                with if_(channel + one < self.c_out):
                    write(row, channel + one, value)
        elif self.c_out % self.columns:
            with if_(channel < self.c_out):
                write(row, channel, concatenate(values))
        else:
            write(row, channel, concatenate(values))


class _Source:
    """The input rows that one thread copies from for a step: rows `span` apart."""

    def __init__(self, kernel: WgmmaRows, tile: _Tile, table: V, own: V) -> None:
        span = wg.WARPGROUP // kernel.tile.chunks
        self._places = [turn * span * kernel.taps for turn in range(kernel.rows // span)]
        self._table, self._taps, self._own = table, kernel.taps, own % TILE_ROWS
        self._first = tile.first_row // TILE_ROWS + own // TILE_ROWS

    def rows(self, word: V) -> list[V]:
        """i32 each: an input row, or −1."""
        line = (self._first * self._taps + (word & TAP_MASK)) * TILE_ROWS + self._own
        return [load(self._table, line + place) for place in self._places]


class _Tile:
    """The rows and the slice of output channels of a workgroup, and the steps of its rows' block of 256.

    Blocks with many taps are the last of them, and come first: what begins late should be short.
    """

    def __init__(self, kernel: WgmmaRows, number: V, rows: V, steps: V, counts: V) -> None:
        parts = BLOCK_ROWS // kernel.rows
        total = (rows + (BLOCK_ROWS - 1)) // BLOCK_ROWS * parts
        place = total - 1 - number // kernel.slices
        self.slice = number % kernel.slices
        self.first_row = place * kernel.rows
        block_ = place // parts
        self._bits, self._first = kernel.rows // TILE_ROWS, FIRST_TILE_BIT + place % parts * (kernel.rows // TILE_ROWS)
        self._steps, self._at, self._last = steps, block_ * kernel.taps, kernel.taps - 1
        self.count = load(counts, block_)

    def word(self, number: V) -> V:
        """i32: one of the block's steps, or beyond the last any."""
        return load(self._steps, self._at + number.min(self._last))

    def present(self, word: V) -> V:
        """i32: a bit for each 16 of the workgroup's rows that have the tap of a step."""
        return (word >> self._first) & ((1 << self._bits) - 1)

    def has(self, present: V, group: V | int) -> V:
        """i1: whether a group of 64 rows has the tap."""
        return ((present >> group * (GROUP_ROWS // TILE_ROWS)) & ((1 << GROUP_ROWS // TILE_ROWS) - 1)).ne(0)


class _Places:
    """Where stages and barriers lie in shared memory, as i32 addresses."""

    def __init__(self, kernel: WgmmaRows, base: V) -> None:
        self._kernel, self._base = kernel, base

    def a(self, stage: V) -> V:
        return self._base + stage * self._kernel.a_bytes

    def b(self, stage: V) -> V:
        return self._base + self._kernel.stages * self._kernel.a_bytes + stage * self._kernel.b_bytes

    def full(self, stage: V) -> V:
        kernel = self._kernel
        return self._base + kernel.stages * (kernel.a_bytes + kernel.b_bytes) + stage * _BARRIER_BYTES

    def empty(self, stage: V) -> V:
        return self.full(stage) + self._kernel.stages * _BARRIER_BYTES
