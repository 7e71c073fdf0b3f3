"""The arguments of all calls of a network as one table, filled a column at a time.

A row is a call of `run_calls` (runtime/calls_list.py). What stays is written once, when the network is loaded; what a
run changes has index arrays, so that a run costs a handful of array operations and not one step of Python per argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from spconv_compiler.network.memory import ALIGNMENT, Slots
from spconv_compiler.network.plan import NetworkPlan
from spconv_compiler.runtime.calls_list import CALL_WORDS

Words = npt.NDArray[np.int64]
Places = tuple[Words, Words]


class CallTable:
    """See the module.

    Args:
        kernels: for every step the names of its kernel's arguments, and the addresses of those that stay.

    Attributes:
        base: int64 [steps, CALL_WORDS] with what stays.
    """

    def __init__(self, plan: NetworkPlan, kernels: Sequence[tuple[Sequence[str], Mapping[str, int]]]) -> None:
        self._names = [names for names, _ in kernels]
        self.base = np.zeros((len(kernels), CALL_WORDS), np.int64)
        values: list[tuple[int, int, int]] = []
        rows: list[tuple[int, int, int]] = []
        for place, (step, (names, fixed)) in enumerate(zip(plan.steps, kernels, strict=True)):
            known = {**dict(step.reads), "out": step.out}
            for word, name in enumerate(names, start=1):
                if name in fixed:
                    self.base[place, word] = fixed[name]
                elif name in known:
                    values.append((place, word, known[name]))
                elif name == "rows" and step.map is None:
                    rows.append((place, word, plan.values[step.out].level))
        self._values, self._rows = _columns(values), _columns(rows)
        everywhere = range(len(kernels))
        self._threads = self._where(everywhere, lambda name: name == "threads")
        self._scratch = self._where(everywhere, lambda name: name.endswith("scratch"))

    def fill(self, table: Words, addresses: Words, rows: Words, scratch: int, threads: int) -> None:
        """Writes all but the pairs: addresses of values, rows of levels, the scratch that all calls share."""
        place, word, value = self._values
        table[place, word] = addresses[value]
        place, word, level = self._rows
        table[place, word] = rows[level]
        table[self._threads] = threads
        table[self._scratch] = scratch

    def words(self, values: Sequence[int]) -> list[int]:
        """The words of the flattened table that hold an address of any of some values."""
        place, word, value = self._values
        at = np.flatnonzero(np.isin(value, values))
        return [int(item) for item in place[at] * CALL_WORDS + word[at]]

    def places(self, steps: Sequence[int]) -> dict[str, list[int]]:
        """The words of the flattened table where each argument of some steps stands, by name."""
        found: dict[str, list[int]] = {}
        for step in steps:
            for word, name in enumerate(self._names[step], 1):
                if name != "threads":
                    found.setdefault(name, []).append(step * CALL_WORDS + word)
        return found

    def _where(self, steps: Sequence[int], wanted: Callable[[str], bool]) -> Places:
        found = [(step, word) for step in steps for word, name in enumerate(self._names[step], 1) if wanted(name)]
        place, word = (np.array([pair[axis] for pair in found], np.int64) for axis in (0, 1))
        return place, word


class Layout:
    """Offsets of values in the arena, for the rows of every level.

    Attributes:
        shared: for a result, the values that lie in its tensor before it does.
    """

    def __init__(self, plan: NetworkPlan, slots: Slots) -> None:
        self._levels = np.array([value.level for value in plan.values], np.int64)
        self._row_bytes = np.array([value.row_bytes for value in plan.values], np.int64)
        held = [values for slot, values in enumerate(slots.members) if slot not in slots.tensors]
        self._members = np.array([value for values in held for value in values], np.int64)
        lengths = [len(values) for values in held]
        self.shared = {result: slots.members[slot] for slot, result in slots.tensors.items()}
        self._starts = np.cumsum([0, *lengths[:-1]]) if lengths else np.zeros(0, np.int64)
        self._slots = np.repeat(np.arange(len(lengths)), lengths)
        self._last: tuple[bytes, tuple[Words, int]] | None = None

    def __call__(self, rows: Words) -> tuple[Words, int]:
        """(the offset of every value that has a slot, and 0 for the others; bytes of all slots); not to be changed."""
        last, key = self._last, rows.tobytes()
        if last is None or last[0] != key:
            self._last = last = key, self._compute(rows)
        return last[1]

    def _compute(self, rows: Words) -> tuple[Words, int]:
        offsets = np.zeros(len(self._levels), np.int64)
        if not len(self._members):
            return offsets, 0
        sizes = rows[self._levels] * self._row_bytes
        largest = np.maximum.reduceat(sizes[self._members], self._starts)
        ends = np.cumsum(-(-largest // ALIGNMENT) * ALIGNMENT)
        offsets[self._members] = np.concatenate([[0], ends[:-1]])[self._slots]
        return offsets, int(ends[-1])


def _columns(triples: Sequence[tuple[int, int, int]]) -> tuple[Words, Words, Words]:
    place, word, value = (np.array([triple[axis] for triple in triples], np.int64) for axis in range(3))
    return place, word, value
