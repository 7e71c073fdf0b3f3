"""Device memory of the simulator: launches in the arena (arena.py) and the accesses of their waves.

Bounds, initialised bytes and races are all found in the cell of each word; the rules: cells.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.sim import cells as rules
from spconv_compiler.sim.arena import PAGE, Allocation, Arena, Words
from spconv_compiler.sim.cells import INPUT, READY, STATE_BITS
from spconv_compiler.sim.errors import LaunchFault
from spconv_compiler.sim.fences import Fences

__all__ = ["Addresses", "Allocation", "Ints", "Memory", "Report", "Words", "turns"]

Addresses = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
# Called with the index of the first bad lane and the reason.
Report = Callable[[int, str], Exception]


class Memory(Arena):
    """The arena, and who owns which number in the launch that runs.

    Attributes:
        groups: uint32, the workgroup of each segment. width: segments of a workgroup between two barriers.
        next_segment: the first number not given out yet in this launch. fences: the order between workgroups.
    """

    def __init__(self) -> None:
        super().__init__()
        self.groups = np.zeros(rules.MANY + 1, np.uint32)
        self.width, self.next_segment = 1, 1
        self.fences = Fences(rules.MANY + 1)

    # Launches.

    def begin_launch(self, waves: int, *, checks: bool = True) -> None:
        """Forgets who touched what; `waves` is the number of waves of a workgroup.

        checks: whether this launch looks at it, and notes it for launches that come.
        """
        self.width, self.next_segment = (1 if waves == 1 else waves + 1), 1
        self.fences.begin_launch()
        for item in self._live if checks else ():
            if item.writable:
                first = (item.address - self.base) // 4
                part = self._cells[first : first + -(-item.size // 4)]
                np.bitwise_and(part, np.uint32(STATE_BITS), out=part)

    def begin_epoch(self, groups: Ints) -> Ints:
        """The segments of the first waves of workgroups that start, or that passed a barrier.

        Raises:
            LaunchFault: no numbers are left in this launch.
        """
        start = self.next_segment
        first = start + self.width * np.arange(len(groups))
        self.next_segment += self.width * len(groups)
        if self.next_segment > rules.MANY:
            raise LaunchFault(f"more than {rules.MANY - 1} segments (wave, workgroup, barrier) in one launch")
        self.groups[start : self.next_segment] = np.repeat(groups, self.width)
        return first

    # Accesses: addresses [n] of the active lanes, `size` bytes each (1, 2 or a multiple of 4), segments [n].

    def _places(self, addresses: Addresses, size: int, report: Report, alignment: int = 4) -> Ints:
        """Byte offsets in the arena, checked for alignment and bounds of the arena."""
        misaligned = addresses % np.uint64(min(size, alignment)) != 0
        if misaligned.any():
            lane = int(misaligned.argmax())
            raise report(lane, f"misaligned: {size} bytes at {self.describe(int(addresses[lane]))}")
        outside = addresses - np.uint64(self.base) >= self.size - PAGE
        if outside.any():
            lane = int(outside.argmax())
            raise report(lane, f"out of bounds: {self.describe(int(addresses[lane]))}")
        return (addresses - np.uint64(self.base)).astype(np.int64)

    def _check(self, places: Ints, size: int, initialised: bool, report: Report) -> tuple[Ints, Words]:
        """(words, their cells), both [n, words]: every byte must be allocated, and initialised if asked for."""
        words = (places // 4)[:, None] + np.arange(max(1, size // 4))
        cells = self._cells[words]
        bytes_ = min(size, 4)
        shift = (places % 4).astype(np.uint32)[:, None]
        states = cells & STATE_BITS
        allocated = states >> shift + np.uint32(bytes_) != 0
        mask = np.uint32((1 << bytes_) - 1)
        fine = allocated & (states >> shift & mask == mask) if initialised else allocated
        if not fine.all():
            lane, part = np.argwhere(~fine)[0]
            reason = "nobody wrote" if allocated[lane, part] else "out of bounds"
            raise report(int(lane), f"{reason}: {self.describe(self.base + int(places[lane]) + int(part) * bytes_)}")
        return words, cells

    def _own(
        self,
        words: Ints,
        access: int,
        segments: Ints,
        report: Report,
        *,
        scalar: bool = False,
        fetch: bool = False,
    ) -> None:
        """Notes the accesses in the cells; one that is not in order with an earlier one is an error."""
        cells, lanes = self._cells[words], np.arange(len(words))
        while len(words):
            fences = None if scalar else self.fences
            found = rules.entries(cells, access, segments, self.groups, self.width, fences, fetch=fetch)
            race = found >= rules.RACE
            if scalar:
                race = race | (found & rules.KIND_MASK != rules.READ) & (cells & ~np.uint32(STATE_BITS) != INPUT)
            if race.any():
                lane, part = np.argwhere(race)[0]
                text = self._race(int(cells[lane, part]), access, int(segments[lane]), int(found[lane, part]))
                raise report(int(lanes[lane]), f"race: {text}: {self.describe(self.base + 4 * int(words[lane, part]))}")
            after = rules.apply(cells, found, segments, self.width)
            changed = after != cells
            self._cells[words[changed]] = after[changed]
            # Of two workgroups in one word, the other one comes again and finds the cell of the first.
            again = changed.any(axis=1)
            words, segments, lanes = words[again], segments[again], lanes[again]
            cells = self._cells[words]

    def _race(self, cell: int, access: int, segment: int, found: int) -> str:
        last, kind = cell >> rules.SEGMENT_SHIFT, cell >> rules.KIND_SHIFT & rules.KIND_MASK
        if found < rules.RACE:
            changes = rules.UPDATE if kind == rules.MIXED else kind
            return f"a scalar load of what this launch {rules.VERBS[changes - 1]}"
        verb, mine = rules.VERBS[found - rules.RACE], rules.VERBS[access - 1]
        if last == rules.MANY or self.groups[last] != self.groups[segment]:
            return f"another workgroup {verb} what this one {mine} in this launch"
        return f"another wave {verb} what this one {mine} without a barrier between"

    def load(self, addresses: Addresses, size: int, segments: Ints, report: Report, *, atomic: bool = False) -> Words:
        """uint32 [n, max(1, size / 4)]; bytes and halves are zero-extended. atomic: a load of device scope."""
        places = self._places(addresses, size, report)
        words, _ = self._check(places, size, True, report)
        self._own(words, rules.UPDATE if atomic else rules.READ, segments, report, fetch=atomic)
        if size >= 4:
            return np.asarray(self._words[words])
        raw = self._words.view(np.uint8 if size == 1 else np.uint16)[places // size]
        return np.asarray(raw.astype(np.uint32)[:, None])

    def load_scalar(
        self, addresses: Addresses, size: int, segments: Ints, report: Report
    ) -> tuple[Words, npt.NDArray[np.bool_]]:
        """(uint32 [n, size / 4], whether each word is initialised).

        The compiler widens scalar loads of arguments over the padding after them, so that reading a word which
        nobody wrote is no error yet; using it is. The scalar cache does not see what this launch writes.
        """
        places = self._places(addresses, size, report)
        words, cells = self._check(places, size, False, report)
        self._own(words, rules.READ, segments, report, scalar=True)
        return self._words[words], cells & STATE_BITS == READY

    def store(
        self,
        addresses: Addresses,
        size: int,
        data: Words,
        defined: npt.NDArray[np.bool_],
        segments: Ints,
        report: Report,
        *,
        atomic: bool = False,
    ) -> None:
        """Stores data [n, words]; words that are not defined become uninitialised. atomic: of device scope."""
        places = self._places(addresses, size, report)
        words, cells = self._check(places, size, False, report)
        self._require_writable(addresses, cells, report)
        self._own(words, rules.UPDATE if atomic else rules.WRITE, segments, report)
        if size >= 4:
            self._words[words] = data
            mask = np.broadcast_to(np.uint32(15), words.shape)
            differs = self._words[words] != data
        else:
            kind = np.uint8 if size == 1 else np.uint16
            values, index = data.astype(kind), (places // size)[:, None]
            self._words.view(kind)[index] = values
            mask = np.uint32((1 << size) - 1) << (places % 4).astype(np.uint32)[:, None]
            differs = self._words.view(kind)[index] != values
        if differs.any():
            lane = int(np.argwhere(differs)[0][0])
            raise report(lane, f"two lanes write different values: {self.describe(int(addresses[lane]))}")
        if size >= 4:
            self._cells[words] |= mask
        else:
            np.bitwise_or.at(self._cells, words, mask)
        if not defined.all():
            np.bitwise_and.at(self._cells, words, np.where(defined, ~np.uint32(0), ~mask))

    def _require_writable(self, addresses: Addresses, cells: Words, report: Report) -> None:
        inputs = (cells & ~np.uint32(STATE_BITS) == INPUT).any(axis=1)
        if inputs.any():
            lane = int(inputs.argmax())
            raise report(lane, f"a write to an input: {self.describe(int(addresses[lane]))}")

    def update(
        self,
        addresses: Addresses,
        function: Callable[[Any, Any], Any],
        kind: npt.DTypeLike,
        data: npt.NDArray[Any],
        segments: Ints,
        report: Report,
        *,
        returning: bool = True,
    ) -> Words:
        """Atomic read-modify-write, lane after lane: the new value is function(old value, data).

        Args:
            function: of arrays of `kind`, of 4 or 8 bytes an element; a ufunc is faster where nothing is returned.
            data: uint32 [n] or [n, words of an element].

        Returns:
            uint32, like data: the old values, each as its lane found it.
        """
        type_ = np.dtype(kind)
        given = np.ascontiguousarray(data).reshape(len(addresses), type_.itemsize // 4)
        places = self._places(addresses, type_.itemsize, report, type_.itemsize)
        words, cells = self._check(places, type_.itemsize, True, report)
        self._require_writable(addresses, cells, report)
        self._own(words, rules.UPDATE, segments, report)
        typed, values = self._words.view(type_), given.view(type_)[:, 0]
        index = places // type_.itemsize
        old = typed[index]
        with np.errstate(over="ignore", invalid="ignore"):
            if not returning and isinstance(function, np.ufunc):
                function.at(typed, index, values)
            else:
                for turn in turns(index):
                    old[turn] = typed[index[turn]]
                    typed[index[turn]] = function(old[turn], values[turn])
        return old[:, None].view(np.uint32).reshape(data.shape)


def turns(places: Ints) -> list[Ints]:
    """Lanes in rounds: the nth round holds the nth lane of every place."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    turn = np.arange(len(places)) - np.repeat(starts, np.diff(starts, append=len(places)))
    by_turn = np.argsort(turn, kind="stable")
    return [order[part] for part in np.split(by_turn, np.cumsum(np.bincount(turn))[:-1])]
