"""A neighbour table by rows, made by kernels in which a lane finds all neighbours of one row.

The table is i32 [rows][row_words(taps)], what is behind a row's taps is undefined. In the order of masks (row_masks.py)
rows are read from anywhere, so what belongs together lies together: a row is read as few runs of 16 bytes. Since the
lane knows the row's mask, it writes the record that the sort begins with, and counts its digits.

A row goes through local memory, so that the table is written in whole sectors where rows follow one another.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from spconv_compiler.bindings import ir
from spconv_compiler.passes.gpu import row_masks
from spconv_compiler.passes.gpu.dense_grid import NONE
from spconv_compiler.passes.gpu.lanes import barrier, concatenate, get, plus, put, shared, store, thread, times
from spconv_compiler.passes.gpu.local import get_run, put_run, shared_runs
from spconv_compiler.passes.gpu.radix_sort import DIGITS, LANES, Sort
from spconv_compiler.passes.kernel_builder import V, const, i32, if_, vec

# A lane holds all neighbours of its row.
MOST_TAPS = 32
# Words of 16 bytes.
RUN = 4


def row_words(taps: int) -> int:
    """Words of a row: whole runs of 16 bytes."""
    return -(-taps // RUN) * RUN


@dataclasses.dataclass(frozen=True)
class RowTable:
    """What the end of such a kernel depends on; a workgroup has LANES lanes. sort: that of the masks."""

    kernel_size: tuple[int, ...]
    sort: Sort

    @property
    def taps(self) -> int:
        return math.prod(self.kernel_size)

    @property
    def words(self) -> int:
        return row_words(self.taps)

    @property
    def _pitch(self) -> int:
        """Words between rows in local memory: an odd number of runs, which keeps lanes in different banks."""
        return self.words + RUN * (self.words // RUN % 2 == 0)

    def memory(self) -> list[ir.Type]:
        """The workgroup memory that `begin` and `finish` take."""
        return [shared_runs(LANES * self._pitch, i32()), shared(LANES), shared(self.sort.passes * DIGITS)]

    def clear_state(self, at: V, state: V, rows: V) -> None:
        """Zeros in four words of the sort's state, from `at` on."""
        words = self.sort.used_words(rows, const(row_masks.limit(self.sort), i32()))
        with if_(at.ult(words)):
            store(const(0, vec(RUN, i32())), state, at)

    def begin(self, memory: Sequence[V]) -> None:
        """Before `finish`, in all lanes."""
        self.sort.clear_counts(memory[2])
        barrier()

    def finish(
        self, found: Sequence[V], row: V, known: V, table: V, records: V, state: V, memory: Sequence[V]
    ) -> None:
        """Writes `found`, the neighbours of `row`, where it is `known`, and its record; in all lanes."""
        rows, numbers, counts = memory
        line = times(thread(), self._pitch)
        filled = [*found, *[const(NONE, i32())] * (self.words - self.taps)]
        for first in range(0, self.words, RUN):
            put_run(concatenate(list(filled[first : first + RUN])), rows, plus(line, first))
        put(known.select(row, NONE), numbers, thread())
        with if_(known):
            key = row_masks.key_of(self._mask(found), self.sort)
            self.sort.record(key, row, records, counts, const(row_masks.limit(self.sort), i32()))
        barrier()
        runs = self.words // RUN
        for turn in range(runs):
            item = plus(thread(), turn * LANES)
            of, run = item // runs, item % runs
            target = get(numbers, of)
            with if_(target >= 0):
                value = get_run(rows, plus(times(of, self._pitch), times(run, RUN)))
                store(value, table, plus(times(target, self.words), times(run, RUN)))
        self.sort.add_counts(state, counts)
        with if_(known & row.eq(0)):
            self.sort.out_of_order(state)

    def _mask(self, found: Sequence[V]) -> V:
        mask = const(0, i32())
        for word, neighbour in zip(row_masks.key_bits(self.kernel_size), found, strict=True):
            mask = mask | (neighbour >= 0).select(const(word, i32()), 0)
        return mask
