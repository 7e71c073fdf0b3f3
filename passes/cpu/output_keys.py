"""The coordinates that a convolution makes, as packed keys in ascending order, each once.

A fine voxel f meets the coarse voxels c with c·stride = f + padding − i·dilation for some tap i, a coarse voxel c the
fine voxels c·stride − padding + i·dilation. Axes do not depend on each other, so the candidates of a voxel are the
product of three short ranges. Those outside of the box of outputs are left out.

Where the box is no more than 256 cells a candidate and 2^33 in all, candidates are marked in a bit for every cell and
read off in order: clearing and reading a word of bits costs a small part of what sorting a key does. Elsewhere they
are listed, sorted, and kept once each. Either way the result ascends in (batch, z, y, x) and depends neither on the
order of the inputs nor on a hash.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator

from spconv_compiler.bindings import ir
from spconv_compiler.passes.cpu.functions import call_intrinsic
from spconv_compiler.passes.cpu.radix_sort import RadixSort
from spconv_compiler.passes.cpu.sorted_keys import key_type
from spconv_compiler.passes.kernel_builder import (
    V,
    const,
    for_,
    i1,
    i32,
    i64,
    if_,
    if_else,
    load,
    store,
    vec,
    while_,
)

# What the kernel leaves in its status buffer.
OUTPUTS = 0
# Bits of a word of marks, words that are cleared at once, and words that marks may take for every candidate.
_WORD, _WORDS_AT_ONCE, _WORDS_PER_KEY = 64, 4, 4
# Marks take a gibibyte at most.
_MOST_WORDS = 1 << 27
# More than any sum of a coordinate, a padding and the reach of a kernel, which are below 2^31 each.
_FAR = 1 << 34


@dataclasses.dataclass(frozen=True)
class Reach:
    """Which outputs an input reaches: kernel size, stride, padding, dilation (z, y, x), and the direction."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool

    @staticmethod
    def of(*axes: Iterable[int], transposed: bool) -> Reach:
        """From kernel size, stride, padding and dilation."""
        kernel_size, stride, padding, dilation = (tuple(map(int, values)) for values in axes)
        return Reach(kernel_size, stride, padding, dilation, transposed)

    def on(self, axis: int) -> tuple[int, int, int, int]:
        """(kernel size, stride, padding, dilation) along an axis."""
        return self.kernel_size[axis], self.stride[axis], self.padding[axis], self.dilation[axis]

    @property
    def most(self) -> int:
        """Outputs of one input at most: per axis the taps that are alike modulo the stride."""
        if self.transposed:
            return math.prod(self.kernel_size)
        axes = map(self.on, range(3))
        return math.prod(-(-kernel * math.gcd(stride, dilation) // stride) for kernel, stride, _, dilation in axes)

    @property
    def name(self) -> str:
        axes = ("x".join(map(str, values)) for values in (self.kernel_size, self.stride, self.padding, self.dilation))
        kernel, stride, padding, dilation = axes
        return f"{kernel}_s{stride}_p{padding}_d{dilation}{'_transposed' if self.transposed else ''}"


@dataclasses.dataclass(frozen=True)
class OutputKeys:
    """Body of the kernel that makes the keys of all outputs.

    Arguments: coords i32 [inputs, 4]; keys [inputs · reach.most]; scratch i64 [capacity], of scratch_words(inputs) at
    least; status i64, whose word OUTPUTS becomes the number of outputs; inputs; capacity; out_min_z, out_min_y,
    out_min_x; out_extent_z, …; batches. Returns the scratch needed when marks need more than there is.
    """

    reach: Reach
    key_width: int

    @property
    def key(self) -> ir.Type:
        return key_type(self.key_width)

    def scratch_words(self, inputs: str) -> str:
        """The size of the scratch at first: room for all keys again."""
        return f"{inputs} * {-(-self.reach.most * self.key_width // _WORD)}"

    def __call__(self, coords: V, keys: V, scratch: V, status: V, inputs: V, capacity: V, *box: V) -> V:
        sort = RadixSort.make(self.key, (keys,), (scratch,))
        cells = box[6] * box[3] * box[4] * box[5]
        words = (cells + (_WORD - 1)) // _WORD
        marked = words <= (inputs * (self.reach.most * _WORDS_PER_KEY)).min(_MOST_WORDS)
        needed = marked.select(words + _WORDS_AT_ONCE, const(0, i64()))
        fits = needed <= capacity
        store(const(0, i64()), status, OUTPUTS)
        with if_(marked & fits):
            self._clear(scratch, words)
            self._visit(coords, inputs, box, functools.partial(self._mark, scratch))
            store(self._read_marks(scratch, words, keys), status, OUTPUTS)
        with if_(marked.eq(0)):
            self._visit(coords, inputs, box, functools.partial(self._append, keys, status))
            count = load(status, i64(), OUTPUTS)
            sort(count, cells, self._descends(keys, count))
            store(self._unique(keys, count), status, OUTPUTS)
        return fits.select(const(0, i64()), needed)

    def _visit(self, coords: V, inputs: V, box: tuple[V, ...], take: Callable[[V], None]) -> None:
        """Calls `take` with every candidate's key, i64."""
        row_type = vec(4, i32())
        with for_(0, inputs, 1, unroll=False) as loop:
            row = load(coords, row_type, loop.iv * 4)
            batch, *place = [row.lane(axis).to(i64(), signed=True) for axis in range(4)]
            before = load(coords, row_type, (loop.iv - 1).max(0) * 4)
            same = [before.lane(axis).eq(row.lane(axis)) for axis in range(3)]
            follows = (loop.iv > 0) & same[0] & same[1] & same[2] & (before.lane(3) <= row.lane(3))
            covered = follows, before.lane(3).to(i64(), signed=True)
            self._candidates(batch, place, covered, box[:3], box[3:6], take)

    def _candidates(
        self,
        line: V,
        place: list[V],
        covered: tuple[V, V],
        low: tuple[V, ...],
        extent: tuple[V, ...],
        take: Callable[[V], None],
    ) -> None:
        """Takes the outputs of one voxel; `line` is what is packed of it so far."""
        axis = 3 - len(place)
        with self._outputs(axis, place[0], covered, low[axis], extent[axis]) as output:
            key = line * extent[axis] + output
            if axis < 2:
                self._candidates(key, place[1:], covered, low, extent, take)
            else:
                take(key)

    @contextlib.contextmanager
    def _outputs(self, axis: int, place: V, covered: tuple[V, V], low: V, extent: V) -> Iterator[V]:
        """Runs over the outputs of `place` along an axis, counted from `low`, that are below `extent`.

        covered: whether the voxel before is on the same line and not behind this one, and its x. Its outputs have
        been taken; most voxels of a sorted set are next to each other.
        """
        kernel, stride, padding, dilation = self.reach.on(axis)
        if self.reach.transposed:
            with for_(0, const(kernel, i64()), 1, unroll=False) as loop:
                output = place * stride - padding + loop.iv * dilation - low
                with if_(output.ult(extent)):
                    yield output
            return
        last = place + padding
        # Coarse voxels from the one that meets `place` through its last tap to the one that does through its first.
        begin = (_floor(last - (kernel - 1) * dilation + (stride - 1), stride) - low).max(0)
        end = (_floor(last, stride) - low + 1).min(extent)
        if axis == 2 and dilation == 1:
            follows, x_before = covered
            end_before = _floor(x_before + padding, stride) - low + 1
            begin = follows.select(begin.max(end_before), begin)
        with for_(begin, end, 1, unroll=False) as loop:
            if dilation == 1:
                yield loop.iv
            else:
                distance = last - (loop.iv + low) * stride
                with if_((distance % dilation).eq(0)):
                    yield loop.iv

    def _append(self, keys: V, status: V, key: V) -> None:
        count = load(status, i64(), OUTPUTS)
        store(key.to(self.key), keys, count)
        store(count + 1, status, OUTPUTS)

    def _clear(self, marks: V, words: V) -> None:
        nothing = const(0, vec(_WORDS_AT_ONCE, i64()))
        with for_(0, words, _WORDS_AT_ONCE, unroll=False) as loop:
            store(nothing, marks, loop.iv)

    def _mark(self, marks: V, key: V) -> None:
        word = key // _WORD
        store(load(marks, i64(), word) | const(1, i64()) << key % _WORD, marks, word)

    def _read_marks(self, marks: V, words: V, keys: V) -> V:
        """Writes the numbers of the bits that are set, in order; gives how many there are."""
        with for_(0, words, 1, [const(0, i64())], unroll=False) as loop:
            first = loop.iv * _WORD

            def write(bits: V, count: V, first: V = first) -> list[V]:
                bit = call_intrinsic("llvm.cttz", [bits, const(1, i1())], i64())
                store((first + bit).to(self.key), keys, count)
                return [bits & (bits - 1), count + 1]

            bits = load(marks, i64(), loop.iv)
            _, count = while_([bits, *loop.args], lambda bits, count: (bits.ne(0), [bits, count]), write)
            loop.yields(count)
        return loop.results[0]

    def _descends(self, keys: V, count: V) -> V:
        """i1: some key is below the one before it."""
        with for_(1, count, 1, [const(0, i64())], unroll=False) as loop:
            below = load(keys, self.key, loop.iv) < load(keys, self.key, loop.iv - 1)
            loop.yields(loop.args[0] | below.to(i64()))
        return loop.results[0].ne(0)

    def _unique(self, keys: V, count: V) -> V:
        """Moves the first of equal keys to the front, in order; gives how many there are."""
        with for_(0, count, 1, [const(0, i64()), const(-1, self.key)], unroll=False) as loop:
            kept, before = loop.args
            key = load(keys, self.key, loop.iv)
            store(key, keys, kept)
            loop.yields(kept + key.ne(before).to(i64()), key)
        return loop.results[0]


@dataclasses.dataclass(frozen=True)
class DecodeKeys:
    """Body of the kernel that turns keys into coordinates.

    Arguments: keys, ascending; out i32 [outputs, 4]; outputs; out_min_z, out_min_y, out_min_x; out_extent_z, ….
    """

    key_width: int

    def __call__(self, keys: V, out: V, outputs: V, *box: V) -> None:
        low, extents = box[:3], box[3:6]
        key_of_line, zero = const(-(1 << 62), i64()), const(0, i64())
        with for_(0, outputs, 1, [key_of_line, zero, zero, zero], unroll=False) as loop:
            key = load(keys, key_type(self.key_width), loop.iv).to(i64())
            line_key = loop.args[0]

            # Most keys are on the line of the one before, and divisions are slow.
            same = (key - line_key).ult(extents[2])
            divide = functools.partial(_line_of, key, extents)
            line_key, batch, z, y = if_else(same, functools.partial(list, loop.args), divide)
            place = [batch, z + low[0], y + low[1], key - line_key + low[2]]
            for column, value in enumerate(place):
                store(value.to(i32()), out, loop.iv * 4 + column)
            loop.yields(line_key, batch, z, y)


def _line_of(key: V, extents: tuple[V, ...]) -> list[V]:
    """(key of the first voxel of its line, batch, z, y), the last two counted from the box."""
    extent_z, extent_y, extent_x = extents
    number = key // extent_x
    plane = number // extent_y
    return [number * extent_x, plane // extent_z, plane % extent_z, number % extent_y]


def _floor(value: V, divisor: int) -> V:
    """value / divisor rounded down, for |value| below _FAR: quotients of kernels are unsigned."""
    if divisor == 1:
        return value
    turns = -(-_FAR // divisor)
    return (value + turns * divisor) // divisor - turns
