"""A stable radix sort of (key, row) records, least digit first, one launch for each digit of eight bits.

After Adinets and Merrill, "Onesweep: A Faster Least Significant Digit Radix Sort for GPUs" (2022): the digits of all
passes are counted while the keys are made; a pass ranks a tile's keys in local memory and learns from the tiles before
it where its digits go, by look-back (device_scan.py).

Records lie in two halves of one buffer and go from one to the other. How many passes run is a matter of the greatest
key: digits that it does not reach are not launched. Keys that are found in order while they are made stay where they
are: passes then return at once, and nobody but the device knows. `final_half` says where the result is.

State, i32, zero before make_records: whether keys are out of order; the ticket of all passes; counts [pass][digit];
words of look-back [pass][tile][digit]. A pass finds its number from its ticket, so that one kernel serves all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from spconv_compiler.bindings import ir
from spconv_compiler.passes.gpu.box import key_type
from spconv_compiler.passes.gpu.device_scan import look_back, take_tile, zero_words
from spconv_compiler.passes.gpu.lanes import (
    atomic,
    ballot,
    barrier,
    block,
    concatenate,
    fetch_put,
    first_bit,
    from_lane,
    get,
    load,
    plus,
    popcount,
    put,
    scan_workgroup,
    shared,
    shuffle,
    store,
    thread,
    times,
    wave_barrier,
)
from spconv_compiler.passes.kernel_builder import V, const, i32, i64, if_, if_else

DIGIT_BITS = 8
DIGITS = 1 << DIGIT_BITS
# A lane for each digit.
LANES = DIGITS
_UNSORTED, _TICKET, _COUNTS = 0, 1, 16
# More tiles than there can be: coordinates of 2^28 rows fill the 32-bit offsets of a buffer.
_MANY = 1 << 28


@dataclasses.dataclass(frozen=True)
class Sort:
    """Bodies and sizes of a sort.

    Attributes:
        key_width: 32 or 64 bits; keys are unsigned. items: records that a lane takes. wave: lanes of a wave.
        digits: digits that keys have at most; 0: as many as fit into their width.
    """

    key_width: int
    items: int
    wave: int
    digits: int = 0

    @property
    def tile(self) -> int:
        """Records of a workgroup."""
        return LANES * self.items

    @property
    def passes(self) -> int:
        """Passes that keys may need."""
        return self.digits or self.key_width // DIGIT_BITS

    @property
    def name(self) -> str:
        """What kernels of a sort are called after: one name, one layout of the state."""
        return f"k{self.key_width}_i{self.items}" + (f"_d{self.digits}" if self.digits else "")

    def tiles(self, rows: str = "rows") -> str:
        """Workgroups of every kernel; a text for plan.size_map."""
        return f"{rows} ceildiv {self.tile}"

    def words(self, rows: str = "rows") -> str:
        """Size of the state."""
        return f"({self.tiles(rows)}) * {self.passes * DIGITS} + {_COUNTS + self.passes * DIGITS}"

    def records(self, rows: str = "rows") -> str:
        """Size of the records, in elements of the key's type."""
        return f"({rows}) * 4"

    def grid(self, number: int, limit: str = "cells", rows: str = "rows") -> str:
        """Workgroups of pass `number` for keys up to `limit`: none if it does not reach that digit."""
        reached = f", (({limit}) floordiv {DIGITS**number}) * {_MANY}" if number else ""
        return f"{self.tiles(rows)}{reached}"

    def clear_grid(self, lanes: int, rows: str = "rows") -> str:
        """Workgroups of `clear`."""
        return f"({self.words(rows)}) ceildiv {4 * lanes}"

    def make_workgroup(self) -> list[ir.Type]:
        """The workgroup memory of make_records."""
        return [shared(self.passes * DIGITS)]

    def pass_workgroup(self) -> list[ir.Type]:
        """The workgroup memory of digit_pass."""
        return [shared(LANES // self.wave * DIGITS), shared(LANES // self.wave), shared(1)]

    def clear(self, lanes: int) -> Callable[..., None]:
        """Body(state, rows, limit): zeros, as far as keys up to `limit` use the state; 4 words a lane."""

        def body(state: V, rows: V, limit: V) -> None:
            zero_words(lanes)(state, self.used_words(rows, limit))

        return body

    def used_words(self, rows: V, limit: V) -> V:
        """Words of the state, from its begin, that a sort of keys up to `limit` uses."""
        tiles = plus(rows, self.tile - 1) // self.tile
        return plus(times(times(tiles, self._turns(limit)), DIGITS), _COUNTS + self.passes * DIGITS)

    def make_records(self, key_of: Callable[..., V]) -> Callable[..., None]:
        """Body(source, records, state, rows, limit, *others, shared): records of all rows, and what passes must know.

        key_of(source, row, limit, *others): the key of a row, at most `limit`, which is of the key's type.
        """

        def body(source: V, records: V, state: V, rows: V, limit: V, *rest: V) -> None:
            *others, counts = rest
            self.clear_counts(counts)
            barrier()
            disorder = const(0, i32())
            first = plus(times(block(), self.tile), thread())
            for item in range(self.items):
                row = plus(first, item * LANES)
                with_key = if_else(
                    row.ult(rows),
                    lambda row=row: self._made(source, records, row, limit, counts, key_of, others),  # type: ignore[misc]
                    lambda: [const(0, i32())],
                )
                disorder = disorder | with_key[0]
            wrong = ballot(disorder.ne(0)).ne(0)
            with if_(wrong & (thread() % self.wave).eq(0)):
                atomic("add", const(1, i32()), state, const(_UNSORTED, i32()))
            barrier()
            self.add_counts(state, counts)

        return body

    def add_counts(self, state: V, counts: V) -> None:
        """Adds the digits that a workgroup has counted, `make_workgroup`, to those of all; behind a barrier."""
        for number in range(self.passes):
            place = plus(thread(), number * DIGITS)
            count = get(counts, place)
            with if_(count.ne(0)):
                atomic("add", count, state, plus(place, _COUNTS))

    def clear_counts(self, counts: V) -> None:
        """Zeros in what a workgroup counts digits in; a barrier is to follow."""
        for number in range(self.passes):
            put(const(0, i32()), counts, plus(thread(), number * DIGITS))

    def record(self, key: V, row: V, records: V, counts: V, limit: V) -> None:
        """Writes one record and counts its digits."""
        store(concatenate([key, row.to(key.type)]), records, times(row, 2))
        for number in range(self.passes):
            with if_(reaches(limit, number)):
                digit = ((key >> DIGIT_BITS * number) & (DIGITS - 1)).to(i32())
                fetch_put(const(1, i32()), counts, plus(digit, number * DIGITS))

    def out_of_order(self, state: V) -> None:
        """Says that keys are to be sorted, whatever they are."""
        store(const(1, i32()), state, const(_UNSORTED, i32()))

    def _made(
        self, source: V, records: V, row: V, limit: V, counts: V, key_of: Callable[..., V], others: list[V]
    ) -> list[V]:
        """Writes one record and counts its digits; 1 where the key is below the one before it."""
        key = key_of(source, row, limit, *others)
        before = key_of(source, row.eq(0).select(row, row - 1), limit, *others)
        self.record(key, row, records, counts, limit)
        return [key.ult(before).select(const(1, i32()), 0)]

    def digit_pass(self) -> Callable[..., None]:
        """Body(records, state, rows, shared…): the next pass."""

        def body(records: V, state: V, rows: V, counters: V, totals: V, ticket: V) -> None:
            with if_(self.unsorted(state)):
                self._pass(records, state, rows, counters, totals, ticket)

        return body

    def _pass(self, records: V, state: V, rows: V, counters: V, totals: V, ticket: V) -> None:
        lane, wave, waves = thread() % self.wave, thread() // self.wave, LANES // self.wave
        for other in range(waves):
            put(const(0, i32()), counters, plus(thread(), other * DIGITS))
        number = take_tile(state, const(_TICKET, i32()), ticket, self.wave)
        tiles = plus(rows, self.tile - 1) // self.tile
        turn = number // tiles
        tile, source = number - turn * tiles, times(turn & 1, rows)
        first = plus(times(tile, self.tile), times(wave, self.wave * self.items), lane)
        mine = [plus(first, item * self.wave) for item in range(self.items)]
        loaded = [load(records, times(plus(source, at.min(rows - 1)), 2), 2) for at in mine]
        count = load(state, plus(times(turn, DIGITS), thread(), _COUNTS))
        shift = times(turn, DIGIT_BITS).to(key_type(self.key_width))
        digits = [((record.lane(0) >> shift) & (DIGITS - 1)).to(i32()) for record in loaded]
        ranks = [
            self._rank(at < rows, digit, counters, times(wave, DIGITS), lane)
            for at, digit in zip(mine, digits, strict=True)
        ]
        barrier()
        # From here to the barrier a lane stands for a digit.
        place = [plus(thread(), other * DIGITS) for other in range(waves)]
        of_waves = [get(counters, where) for where in place]
        total = of_waves[0]
        for value in of_waves[1:]:
            total = total + value
        start = scan_workgroup(count, totals, self.wave, waves) - count
        words = plus(times(turn, tiles), 0)
        start = start + look_back(
            state,
            tile,
            total,
            lambda other: plus(times(plus(words, other), DIGITS), thread(), _COUNTS + self.passes * DIGITS),
        )
        for value, where in zip(of_waves, place, strict=True):
            put(start, counters, where)
            start = start + value
        barrier()
        for at, digit, rank, record in zip(mine, digits, ranks, loaded, strict=True):
            with if_(at < rows):
                to = get(counters, plus(times(wave, DIGITS), digit)) + rank
                store(record, records, times(rows - source + to, 2))

    def _rank(self, valid: V, digit: V, counters: V, first: V, lane: V) -> V:
        """How many records of this wave with this digit come before this lane's; counts the whole wave's."""
        same = ballot(valid)
        for bit in range(DIGIT_BITS):
            is_set = ((digit >> bit) & 1).ne(0)
            with_bit = ballot(is_set)
            same = same & is_set.select(with_bit, with_bit ^ -1)
        before = popcount(same & ((const(1, i64()) << lane.to(i64())) - 1)).to(i32())
        count = popcount(same).to(i32())

        def add() -> list[V]:
            # No atomic: a wave's counters are its own, and each digit has one such lane.
            earlier = get(counters, plus(first, digit))
            put(earlier + count, counters, plus(first, digit))
            return [earlier]

        (earlier,) = if_else(valid & before.eq(0), add, lambda: [const(0, i32())])
        # The next record with this digit may be counted by another lane.
        wave_barrier()
        return shuffle(earlier, first_bit(same).to(i32()), self.wave) + before

    def final_half(self, state: V, limit: V, rows: V) -> V:
        """Where the sorted records begin, as a number of records: 0 or `rows`."""
        return self.unsorted(state).select(times(self._turns(limit) & 1, rows), 0)

    def unsorted(self, state: V) -> V:
        """i1: whether make_records has found keys out of order."""
        return from_lane(load(state, const(_UNSORTED, i32())), 0, self.wave).ne(0)

    def _turns(self, limit: V) -> V:
        """Passes that keys up to `limit` take."""
        turns = const(1, i32())
        for number in range(1, self.passes):
            turns = turns + reaches(limit, number).select(const(1, i32()), 0)
        return turns


def reaches(limit: V, number: int) -> V:
    """i1: keys up to `limit` have a digit `number`; digit 0 is always there."""
    return (limit >> DIGIT_BITS * number).ne(0) if number else const(1, ir.IntegerType.get_signless(1))
