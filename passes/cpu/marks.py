"""A set of places as bits, to be filled in any order and read in ascending order, where most of it is empty.

A flag, one byte, for every block of bits says whether there may be any: empty space is passed over 2048 bits at a time,
and what is read is cleared on the way, so that the next set finds everything empty. Neither filling nor reading
branches on what is there, which nobody could guess: mispredicted branches took half of the time.
"""

from __future__ import annotations

import dataclasses
import functools

from spconv_compiler.bindings import ir
from spconv_compiler.passes.cpu.candidates import floor_divided
from spconv_compiler.passes.cpu.chunk_pairs import PERMUTATIONS
from spconv_compiler.passes.cpu.functions import address_of, call_intrinsic
from spconv_compiler.passes.cpu.memory import bytes_after, i8
from spconv_compiler.passes.cpu.vectors import LANES
from spconv_compiler.passes.kernel_builder import V, const, for_, gep, i1, i32, i64, if_, load, store, vec, while_

# Bits of a word; words of a block; flags that are looked at together, and what brings their lowest bits together.
_WORD, _BLOCK_WORDS, _FLAGS = 64, 4, 8
_GATHER = 0x0102040810204080
_BLOCK_BITS = _BLOCK_WORDS * _WORD
# Places of a set.
MOST_CELLS = 1 << 20
# A worker's scratch, i64: whether it is clear; where keys go that are none; bits and flags, with room before the first
# and behind the last; lists of blocks and of words, i32.
_CLEAR, _NOWHERE, _BITS, _ROOM = 0, 1, 8, 8
_FLAGS_AT = _BITS + MOST_CELLS // _WORD + _ROOM
_BLOCKS_AT = _FLAGS_AT + MOST_CELLS // _BLOCK_BITS // 8 + _ROOM
_WORDS_AT = _BLOCKS_AT + MOST_CELLS // _BLOCK_BITS // 2 + _ROOM
MARKS_WORDS = _WORDS_AT + MOST_CELLS // _WORD // 2 + _ROOM


@dataclasses.dataclass(frozen=True)
class Marks:
    """A set of places in [0, MOST_CELLS), in a worker's scratch.

    Flags say where to look and bits what is there: a flag too many costs time only. The kernel has the constant
    PERMUTATIONS.
    """

    scratch: V

    @staticmethod
    def of(scratch: V, worker: V) -> Marks:
        """Those of a worker, in i64 [threads, MARKS_WORDS]."""
        return Marks(gep(scratch, worker * MARKS_WORDS, i64()))

    @property
    def bits(self) -> V:
        return gep(self.scratch, _BITS, i64())

    @property
    def flags(self) -> V:
        return gep(self.scratch, _FLAGS_AT, i64())

    def need_clearing(self) -> None:
        """Says that the scratch has just been allocated."""
        store(const(0, i64()), self.scratch, _CLEAR)

    def clear_once(self, cells: V) -> None:
        """Clears room for sets of `cells` places at most before the first of them; reading leaves it clear."""
        with if_(load(self.scratch, i64(), _CLEAR).eq(0)):
            flags = (cells + (_BLOCK_BITS * _FLAGS - 1)) // (_BLOCK_BITS * _FLAGS)
            self._clear(_BITS, flags * (_FLAGS * _BLOCK_WORDS))
            self._clear(_FLAGS_AT, flags)
            store(const(1, i64()), self.scratch, _CLEAR)

    def _clear(self, first: int, words: V) -> None:
        """Clears words of the scratch, and a vector of words on either side."""
        nothing = const(0, vec(_BLOCK_WORDS, i64()))
        with for_(-1, (words + (_BLOCK_WORDS - 1)) // _BLOCK_WORDS + 1, unroll=False) as loop:
            store(nothing, self.scratch, loop.iv * _BLOCK_WORDS + first)

    def mark(self, place: V, bits: V, reached: V, most: int = 1) -> None:
        """Sets the bits from `place` on, if they are reached; they are `most` at most, up to 8.

        The place may be before the first by a few, if the bits are not: there is room in front of them. What is not
        reached is shifted out instead of branched around, as nobody can guess it, and its place may be anywhere. Bytes
        are read and written, as a load of a word would wait for all stores to other bytes of it.
        """
        place = place.max(-most).min(MOST_CELLS)
        shift = (place & 7) + (reached.eq(0).to(i64()) << 5)
        bits, address = bits << shift, bytes_after(self.bits, floor_divided(place, 8))
        for byte in range(1 if most == 1 else 2):
            store(load(address, i8(), byte) | (bits >> 8 * byte).to(i8()), address, byte)
        for end in {0, most - 1}:
            store(const(1, i8()), self.flags, floor_divided(place + end, _BLOCK_BITS))

    def mark_eight(self, place: V, bits: V, most: int) -> None:
        """As `mark` for eight places and their bits, i32; without bits nothing is marked."""
        place = place.max(-most).min(MOST_CELLS)
        bits, bytes_at = bits << (place & 7), floor_divided(place, 8)
        flags = [floor_divided(place + end, _BLOCK_BITS) for end in sorted({0, most - 1})]
        for lane in range(LANES):
            address = bytes_after(self.bits, bytes_at.lane(lane))
            for byte in range(1 if most == 1 else 2):
                store(load(address, i8(), byte) | (bits.lane(lane) >> 8 * byte).to(i8()), address, byte)
            for flag in flags:
                store(const(1, i8()), self.flags, flag.lane(lane))

    def add(self, place: V) -> None:
        """As `mark`, for one place that is in the set's range."""
        address = bytes_after(self.bits, place >> 3)
        store(load(address, i8()) | (const(1, i64()) << (place & 7)).to(i8()), address)
        store(const(1, i8()), self.flags, place >> _BLOCK_BITS.bit_length() - 1)

    def find(self, cells: V) -> tuple[V, V]:
        """Lists the words of the first `cells` places that have bits, in order; gives how many words and how many bits.

        Flags are cleared.
        """
        zero = const(0, i64())
        found_blocks, found_words = (gep(self.scratch, place, i64()) for place in (_BLOCKS_AT, _WORDS_AT))
        at_once = _BLOCK_BITS * _FLAGS
        with for_(0, (cells + (at_once - 1)) // at_once, 1, [zero], unroll=False) as every:
            (found,) = every.args
            # Eight bytes that are 0 or 1 become the bits of the topmost byte.
            bits = (load(self.flags, i64(), every.iv) * _GATHER) >> 56
            first = (every.iv.to(i32()) * _FLAGS).broadcast(_FLAGS)
            places = load(bytes_after(address_of(PERMUTATIONS), bits * _FLAGS), vec(_FLAGS, i8())).to(first.type)
            store(first + places, found_blocks, found)
            store(zero, self.flags, every.iv)
            every.yields(found + call_intrinsic("llvm.ctpop", [bits], i64()))
        with for_(0, every.results[0], 1, [zero, zero], unroll=False) as loop:
            block = load(found_blocks, i32(), loop.iv) * _BLOCK_WORDS
            words, count = loop.args
            for word in range(_BLOCK_WORDS):
                store(block + word, found_words, words)
                bits = load(self.bits, i64(), (block + word).to(i64()))
                words = words + bits.ne(0).to(i64())
                count = count + call_intrinsic("llvm.ctpop", [bits], i64())
            loop.yields(words, count)
        return loop.results[0], loop.results[1]

    def take(self, words: V, first_key: V, keys: V, key: ir.Type) -> None:
        """Writes the keys of the bits that are set in the words that were found, in order, and clears them.

        Most words have one bit or two: the second is written without a branch, to nowhere if it is not there.
        """
        nowhere, found_words = (gep(self.scratch, place, i64()) for place in (_NOWHERE, _WORDS_AT))

        def write(bits: V, count: V, first: V) -> list[V]:
            bit = call_intrinsic("llvm.cttz", [bits, const(0, i1())], i64())
            there = bits.ne(0)
            store((first + bit).to(key), there.select(gep(keys, count, key), nowhere))
            return [bits & (bits - 1), count + there.to(i64())]

        with for_(0, words, 1, [const(0, i64())], unroll=False) as loop:
            word, (count,) = load(found_words, i32(), loop.iv).to(i64()), loop.args
            state = [load(self.bits, i64(), word), count]
            store(const(0, i64()), self.bits, word)
            write_next = functools.partial(write, first=first_key + word * _WORD)
            state = write_next(*write_next(*state))
            _, count = while_(state, lambda bits, count: (bits.ne(0), [bits, count]), write_next)
            loop.yields(count)
