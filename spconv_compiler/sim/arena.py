"""The reserved range of addresses of the simulator: allocations in it, and what the host does with them.

Device addresses are addresses of this process, so that native code reaches them; the cell of the word at address a
lies at a + `distance`. Pages that nobody touched cost nothing and read as zero, which in a cell means "no memory
here" (cells.py). Allocations start at a page and a page of nothing lies between them; addresses are not used again,
so that use after free is found too.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import dataclasses
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.sim.cells import INPUT, READY, WHOLE_WORD
from spconv_compiler.sim.errors import Fault, LaunchFault

PAGE = 4096
_RESERVED = 1 << 42
# Not a multiple of a page, so that a word and its cell do not compete for the same places of the caches.
_SKEW = 0x5A5A40
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
_MADV_HUGEPAGE = getattr(mmap, "MADV_HUGEPAGE", 14)
_LAST_FREED = 4096

Words = npt.NDArray[np.uint32]


@dataclasses.dataclass(frozen=True)
class Allocation:
    """`size` bytes at `address`."""

    name: str
    address: int
    size: int
    writable: bool = True


def _reserve() -> tuple[mmap.mmap, int]:
    """A range of addresses for data and cells, and the size of the data in it: less where the system limits it."""
    size = _RESERVED
    while True:
        try:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
            reserved = mmap.mmap(-1, 2 * size + _SKEW // PAGE * PAGE + 4 * PAGE, flags=flags)
        except (OSError, OverflowError):
            size //= 2
            if size < 1 << 30:
                raise LaunchFault("this system does not let the simulator reserve 2 GB of addresses") from None
            continue
        # Rows are gathered from anywhere: large pages save most misses of the address translation.
        with contextlib.suppress(OSError):
            reserved.madvise(_MADV_HUGEPAGE)
        return reserved, size


class Arena:
    """Named allocations, each word with a cell; copies from and to the host.

    Attributes:
        base, size: the addresses of the arena. distance: from a word to its cell.
    """

    def __init__(self) -> None:
        self._map, self.size = _reserve()
        self.distance = self.size + _SKEW
        self._words = np.frombuffer(self._map, np.uint32, self.size // 4)
        self._cells = np.frombuffer(self._map, np.uint32, self.size // 4, self.distance)
        self.base = self._words.ctypes.data
        self._live: list[Allocation] = []
        self._freed: collections.deque[Allocation] = collections.deque(maxlen=_LAST_FREED)
        self._top = PAGE
        self._assumed: set[int] = set()

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        """What is allocated now, by address."""
        return tuple(self._live)

    def allocate(self, name: str, size: int, writable: bool = True) -> Allocation:
        """`size` bytes, uninitialised, at a multiple of 4096.

        Raises:
            LaunchFault: more addresses are used up than the arena has.
        """
        pages = -(-size // PAGE) + 1
        if size < 0 or self._top + pages * PAGE > self.size - PAGE:
            raise LaunchFault(f"{name}: {size} bytes; {self.size - self._top} bytes of addresses are left")
        allocation = Allocation(name, self.base + self._top, size, writable)
        self._live.append(allocation)
        cells = self._cells[self._top // 4 :]
        owner = 0 if writable else INPUT
        cells[: size // 4] = WHOLE_WORD | owner
        if size % 4:
            cells[size // 4] = 1 << size % 4 | owner
        self._top += pages * PAGE
        return allocation

    def free(self, allocation: Allocation) -> None:
        """Gives the memory back; later accesses are out of bounds.

        Raises:
            LaunchFault: it is not allocated.
        """
        if allocation not in self._live:
            raise LaunchFault(f"{allocation.name} at 0x{allocation.address:x} is not allocated")
        self._live.remove(allocation)
        self._freed.append(allocation)
        first, length = allocation.address - self.base, -(-allocation.size // PAGE) * PAGE
        if length:
            # Whole pages: what lies around the cells belongs to the empty pages between allocations.
            self._map.madvise(mmap.MADV_DONTNEED, first, length)
            start = (first + self.distance) // PAGE * PAGE
            self._map.madvise(mmap.MADV_DONTNEED, start, length + PAGE)

    def find(self, address: int) -> Allocation | None:
        """The allocation that holds an address."""
        index = bisect.bisect_right(self._live, address, key=lambda item: item.address) - 1
        if index >= 0 and address - self._live[index].address < self._live[index].size:
            return self._live[index]
        return None

    def describe(self, address: int) -> str:
        """Where an address lies, in words."""
        inside = self.find(address)
        if inside is not None:
            place = f"byte {address - inside.address} of {inside.name} ({inside.size} bytes)"
            return f"{place}, address 0x{address:x}"
        for item in self._freed:
            if 0 <= address - item.address < item.size:
                place = f"byte {address - item.address} of a freed allocation, {item.name} ({item.size} bytes)"
                return f"{place}, address 0x{address:x}"
        index = bisect.bisect_right(self._live, address, key=lambda item: item.address) - 1
        if index < 0:
            return f"address 0x{address:x}, below all allocations"
        nearest = self._live[index]
        past = address - nearest.address - nearest.size
        return f"address 0x{address:x}, {past} bytes past the end of {nearest.name}"

    # The host's side.

    def write_array(self, allocation: Allocation, values: npt.NDArray[Any]) -> None:
        """Copies an array to the start of an allocation and marks it initialised."""
        raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        if len(raw) > allocation.size:
            raise ValueError(f"{len(raw)} bytes do not fit into {allocation.name} of {allocation.size}")
        self.copy_in(allocation.address, raw)

    def read_bytes(self, allocation: Allocation) -> npt.NDArray[np.uint8]:
        """The contents of an allocation, initialised or not."""
        start = allocation.address - self.base
        return self._words.view(np.uint8)[start : start + allocation.size].copy()

    def initialised(self, allocation: Allocation) -> npt.NDArray[np.bool_]:
        """Whether each byte of an allocation was ever written."""
        return self._initialised(allocation.address, allocation.size)

    def copy_in(self, address: int, values: npt.NDArray[np.uint8]) -> None:
        """Copies bytes of the host to any place of an allocation and marks them initialised.

        Raises:
            Fault: a byte lies outside.
        """
        start = self._host_range(address, len(values), "copy to the device")
        self._words.view(np.uint8)[start : start + len(values)] = values
        self._mark(start, len(values))

    def fill(self, address: int, value: int, size: int) -> None:
        """Sets `size` bytes to one value and marks them initialised; raises a Fault like copy_in."""
        start = self._host_range(address, size, "fill")
        self._words.view(np.uint8)[start : start + size] = value
        self._mark(start, size)

    def copy_out(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        """Bytes for the host.

        Raises:
            Fault: a byte lies outside, or nobody wrote it.
        """
        start = self._host_range(address, size, "copy to the host")
        ready = self._initialised(address, size)
        if not ready.all():
            where = self.describe(address + int((~ready).argmax()))
            raise Fault(f"copy to the host of {size} bytes: nobody wrote: {where}")
        return self._words.view(np.uint8)[start : start + size].copy()

    def _host_range(self, address: int, size: int, what: str) -> int:
        inside = self.find(address)
        if size and (inside is None or address + size > inside.address + inside.size):
            end = address if inside is None else inside.address + inside.size
            raise Fault(f"{what} of {size} bytes: out of bounds: {self.describe(end)}")
        return address - self.base

    def _mark(self, start: int, size: int) -> None:
        """Marks bytes of one allocation initialised."""
        end = start + size
        first, last = -(-start // 4), end // 4
        if first < last:
            self._cells[first:last] |= READY
        for low, high in ((start, min(4 * first, end)), (max(4 * last, start), end)):
            if low < high:
                self._cells[low // 4] |= (1 << high - low) - 1 << low % 4

    def _initialised(self, address: int, size: int) -> npt.NDArray[np.bool_]:
        start = address - self.base
        states = (self._cells[start // 4 : -(-(start + size) // 4)] & 15).astype(np.uint8)
        if (states == 15).all():
            return np.ones(size, np.bool_)
        ready = (states[:, None] >> np.arange(4, dtype=np.uint8) & 1).astype(np.bool_).reshape(-1)
        return ready[start % 4 : start % 4 + size]

    def set_spare_cells(self, cells: Words) -> None:
        """Sets the cells of words that lie behind the end of the arena, which no allocation can hold."""
        np.frombuffer(self._map, np.uint32, len(cells), self.distance + self.size)[:] = cells

    def assume_initialised(self, allocation: Allocation) -> None:
        """Marks every byte as initialised: after a launch without checks, which does not note what it writes."""
        if allocation.address not in self._assumed:
            # What is initialised stays so, and addresses are not used again.
            self._assumed.add(allocation.address)
            self._mark(allocation.address - self.base, allocation.size)
