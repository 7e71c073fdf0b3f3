"""Device memory of the simulator: named allocations in one arena, with a state for every byte and owners for words.

Between allocations lie red zones, so that an access past an end finds bytes that nobody allocated. A fresh byte is
allocated but not initialised, and reading it is an error. Who wrote, updated and read each word in this launch is
kept, so that workgroups which touch one word without atomics are found; waves of one workgroup are not told apart.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

BASE = 0x7E00_0000_0000
_PAGE = 4096
_ALLOCATED, _INITIALISED = 1, 2
_FRESH = 0x01010101 * _ALLOCATED
_READY = 0x01010101 * (_ALLOCATED | _INITIALISED)
# A signalling-free NaN that no kernel writes; reads of it are caught by the states, so this shows in dumps only.
_FILL = 0xFFA5FFA5

Words = npt.NDArray[np.uint32]
Addresses = npt.NDArray[np.uint64]
# Called with the index of the first bad lane and the reason.
Report = Callable[[int, str], Exception]


@dataclasses.dataclass(frozen=True)
class Allocation:
    """`size` bytes at `address`."""

    name: str
    address: int
    size: int
    writable: bool = True


class Memory:
    """An arena that grows; addresses stay."""

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self._top = _PAGE
        self._words = np.full(0, _FILL, np.uint32)
        self._states = np.zeros(0, np.uint32)
        # Launch-wide numbers of workgroups; what is below the launch's first number is history.
        self._writer, self._updater, self._reader = (np.zeros(0, np.int32) for _ in range(3))
        self._first, self._many = 1, 1

    def allocate(self, name: str, size: int, writable: bool = True) -> Allocation:
        """`size` bytes, uninitialised, at a multiple of 4096."""
        allocation = Allocation(name, BASE + self._top, size, writable)
        self.allocations.append(allocation)
        start, self._top = self._top, self._top + -(-size // _PAGE) * _PAGE + _PAGE
        self._grow(self._top // 4)
        self._states.view(np.uint8)[start : start + size] = _ALLOCATED
        return allocation

    def _grow(self, words: int) -> None:
        if words <= len(self._words):
            return
        more = max(words, 2 * len(self._words)) - len(self._words)
        self._words = np.concatenate([self._words, np.full(more, _FILL, np.uint32)])
        self._states = np.concatenate([self._states, np.zeros(more, np.uint32)])
        empty = np.zeros(more, np.int32)
        self._writer, self._updater, self._reader = (
            np.concatenate([owners, empty]) for owners in (self._writer, self._updater, self._reader)
        )

    def write_array(self, allocation: Allocation, values: npt.NDArray[Any]) -> None:
        """Copies an array to the start of an allocation and marks it initialised."""
        raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        start = allocation.address - BASE
        if len(raw) > allocation.size:
            raise ValueError(f"{len(raw)} bytes do not fit into {allocation.name} of {allocation.size}")
        self._words.view(np.uint8)[start : start + len(raw)] = raw
        self._states.view(np.uint8)[start : start + len(raw)] |= _INITIALISED

    def read_bytes(self, allocation: Allocation) -> npt.NDArray[np.uint8]:
        """The contents of an allocation, initialised or not."""
        start = allocation.address - BASE
        return self._words.view(np.uint8)[start : start + allocation.size].copy()

    def initialised(self, allocation: Allocation) -> npt.NDArray[np.bool_]:
        """Whether each byte of an allocation was ever written."""
        start = allocation.address - BASE
        return np.asarray(self._states.view(np.uint8)[start : start + allocation.size] & _INITIALISED != 0)

    def begin_launch(self, groups: int) -> int:
        """Forgets who touched what; returns the number of the first workgroup."""
        self._first = self._many + 1
        self._many = self._first + groups
        if self._many >= 2**31:
            raise ValueError("more than 2^31 workgroups in one memory")
        return self._first

    def describe(self, address: int) -> str:
        """Where an address lies, in words."""
        index = bisect.bisect_right([item.address for item in self.allocations], address) - 1
        if index < 0:
            return f"address 0x{address:x}, below all allocations"
        nearest = self.allocations[index]
        offset = address - nearest.address
        if offset < nearest.size:
            return f"byte {offset} of {nearest.name} ({nearest.size} bytes)"
        return f"address 0x{address:x}, {offset - nearest.size} bytes past the end of {nearest.name}"

    # Accesses: addresses [n] of the active lanes, `size` bytes each (1, 2 or a multiple of 4), groups [n].

    def _places(self, addresses: Addresses, size: int, report: Report) -> npt.NDArray[np.int64]:
        """Byte offsets in the arena, checked for alignment and bounds of the arena."""
        misaligned = addresses % np.uint64(min(size, 4)) != 0
        if misaligned.any():
            lane = int(misaligned.argmax())
            raise report(lane, f"misaligned: {size} bytes at {self.describe(int(addresses[lane]))}")
        outside = (addresses < BASE) | (addresses > BASE + self._top - size)
        if outside.any():
            lane = int(outside.argmax())
            raise report(lane, f"out of bounds: {self.describe(int(addresses[lane]))}")
        return (addresses - np.uint64(BASE)).astype(np.int64)

    def _check(self, places: npt.NDArray[np.int64], size: int, wanted: int, report: Report) -> None:
        """Every byte must be allocated, and initialised too where `wanted` says so."""
        if size >= 4:
            found = self._states[(places // 4)[:, None] + np.arange(size // 4)] & np.uint32(wanted) == wanted
        else:
            mask = wanted & 0xFF
            found = self._states.view(np.uint8)[places[:, None] + np.arange(size)] & np.uint8(mask) == mask
        if not found.all():
            lane, part = np.argwhere(~found)[0]
            place = int(places[lane]) + int(part) * min(size, 4)
            states = self._states.view(np.uint8)[place : place + min(size, 4)]
            reason = "out of bounds" if (states & _ALLOCATED == 0).any() else "nobody wrote"
            raise report(int(lane), f"{reason}: {self.describe(BASE + place)}")

    def _require_order(
        self, words: npt.NDArray[np.int64], groups: npt.NDArray[np.int32], owners: str, text: str, report: Report
    ) -> None:
        """Words that another workgroup of this launch touched in a way that conflicts are an error."""
        last = getattr(self, f"_{owners}")[words]
        mine = groups if words.ndim == 1 else groups[:, None]
        wrong = (last >= self._first) & (last != mine)
        if wrong.any():
            where = np.argwhere(wrong)[0]
            lane, word = int(where[0]), int(words[tuple(where)])
            raise report(lane, f"race: {text} in this launch: {self.describe(BASE + 4 * word)}")

    def _own(self, owners: npt.NDArray[np.int32], words: npt.NDArray[np.int64], groups: npt.NDArray[np.int32]) -> None:
        """Notes who touched the words: one workgroup, or `_many`."""
        mine = np.broadcast_to(groups if words.ndim == 1 else groups[:, None], words.shape)
        last = owners[words]
        owners[words] = np.where((last >= self._first) & (last != mine), self._many, mine)
        shared = owners[words] != mine
        if shared.any():
            owners[words[shared]] = self._many

    def load(self, addresses: Addresses, size: int, groups: npt.NDArray[np.int32], report: Report) -> Words:
        """uint32 [n, max(1, size / 4)]; bytes and halves are zero-extended."""
        places = self._places(addresses, size, report)
        self._check(places, size, _READY, report)
        words = (places // 4)[:, None] + np.arange(max(1, size // 4))
        for owners in ("writer", "updater"):
            text = "another workgroup writes what this one reads"
            self._require_order(words, groups, owners, text, report)
        self._own(self._reader, words, groups)
        if size >= 4:
            return np.asarray(self._words[words])
        raw = self._words.view(np.uint8 if size == 1 else np.uint16)[places // size]
        return np.asarray(raw.astype(np.uint32)[:, None])

    def load_scalar(
        self, addresses: Addresses, size: int, groups: npt.NDArray[np.int32], report: Report
    ) -> tuple[Words, npt.NDArray[np.bool_]]:
        """(uint32 [n, size / 4], whether each word is initialised).

        The compiler widens scalar loads of arguments over the padding after them, so that reading a word which
        nobody wrote is no error yet; using it is.
        """
        places = self._places(addresses, size, report)
        self._check(places, size, _FRESH, report)
        words = (places // 4)[:, None] + np.arange(size // 4)
        for owners in ("writer", "updater"):
            self._require_order(words, groups, owners, "another workgroup writes what this one reads", report)
        self._own(self._reader, words, groups)
        return self._words[words], self._states[words] == _READY

    def store(
        self,
        addresses: Addresses,
        size: int,
        data: Words,
        defined: npt.NDArray[np.bool_],
        groups: npt.NDArray[np.int32],
        report: Report,
    ) -> None:
        """Stores data [n, words]; words that are not defined become uninitialised."""
        places = self._places(addresses, size, report)
        self._check(places, size, _FRESH, report)
        self._require_writable(addresses, report)
        words = (places // 4)[:, None] + np.arange(max(1, size // 4))
        for owners, verb in (("writer", "writes"), ("updater", "updates"), ("reader", "reads")):
            self._require_order(words, groups, owners, f"another workgroup {verb} what this one writes", report)
        if size >= 4:
            self._words[words] = data
            self._states[words] = np.where(defined, np.uint32(_READY), np.uint32(_FRESH))
            differs = self._words[words] != data
        else:
            kind = np.uint8 if size == 1 else np.uint16
            values, index = data.astype(kind), (places // size)[:, None]
            self._words.view(kind)[index] = values
            ready = np.where(defined, kind(_READY & np.iinfo(kind).max), kind(_FRESH & np.iinfo(kind).max))
            self._states.view(kind)[index] = ready
            differs = self._words.view(kind)[index] != values
        if differs.any():
            lane = int(np.argwhere(differs)[0][0])
            raise report(lane, f"two lanes write different values: {self.describe(int(addresses[lane]))}")
        self._writer[words] = groups[:, None]
        self._require_order(words, groups, "writer", "another workgroup writes what this one writes", report)

    def _require_writable(self, addresses: Addresses, report: Report) -> None:
        for allocation in self.allocations:
            if not allocation.writable:
                inside = (addresses >= allocation.address) & (addresses < allocation.address + allocation.size)
                if inside.any():
                    lane = int(inside.argmax())
                    raise report(lane, f"a write to an input: {self.describe(int(addresses[lane]))}")

    def update(
        self,
        addresses: Addresses,
        function: np.ufunc,
        kind: npt.DTypeLike,
        data: npt.NDArray[Any],
        groups: npt.NDArray[np.int32],
        report: Report,
    ) -> Words:
        """Atomic read-modify-write of one word a lane, lane after lane; returns the old values."""
        places = self._places(addresses, 4, report)
        self._check(places, 4, _READY, report)
        self._require_writable(addresses, report)
        words = places // 4
        for owners, verb in (("writer", "writes"), ("reader", "reads")):
            self._require_order(words, groups, owners, f"another workgroup {verb} what this one updates", report)
        self._own(self._updater, words, groups)
        typed = self._words.view(kind)
        old = self._words[words]
        with np.errstate(over="ignore", invalid="ignore"):
            function.at(typed, words, data.view(kind))
        return old
