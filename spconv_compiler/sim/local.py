"""Local memory (LDS) of a batch of workgroups, with the race rules between barriers.

Beside every word lies a cell of 32 bits: an initialised bit for each byte, the wave that wrote the word last and the
last reader, each with its epoch, the number of barriers that the wave had passed. Two waves that touch one word in
the same epoch, one of them writing, are a race. Atomics of different waves are none among each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.sim.memory import Addresses, Report, Words, turns

Ints = npt.NDArray[np.int64]

# A cell: bits 0-3 initialised; then two tags, of the last writer and the last reader: six bits of wave and eight of
# epoch. Epochs count from 1 to EPOCHS and then start again: 0 is none. A wave that wrote with an atomic adds ATOMIC to
# its number; the last of several readers, or of several waves with atomics, adds SEVERAL.
INITIALISED = 15
WRITER_SHIFT, READER_SHIFT, WAVE_BITS, TAG = 4, 18, 6, (1 << 14) - 1
EPOCHS = 255
ATOMIC, SEVERAL = 16, 32
_FILL = 0xFFA5FFA5


def tags(waves: Any, epochs: Any) -> Any:
    """Wave and epoch as they stand in a cell."""
    return waves | epochs % EPOCHS + 1 << WAVE_BITS


class LocalMemory:
    """`size` bytes for each of `groups` workgroups; words and cells, uint32 [groups, words], may be given."""

    def __init__(self, groups: int, size: int, words: Words | None = None, cells: Words | None = None) -> None:
        self.size = size
        shape = (groups, -(-size // 4))
        self._words = np.full(shape, _FILL, np.uint32) if words is None else words
        self._cells = np.zeros(shape, np.uint32) if cells is None else cells

    def renew(self, groups: Ints) -> None:
        """Forgets who touched what: when the epochs start again."""
        self._cells[groups] &= np.uint32(INITIALISED)

    def _places(self, addresses: Addresses, size: int, report: Report) -> Ints:
        places = addresses.astype(np.int64)
        outside = (places < 0) | (places + size > self.size)
        if outside.any():
            lane = int(outside.argmax())
            raise report(lane, f"out of bounds: byte {places[lane]} of {self.size} bytes of local memory")
        alignment = {12: 16}.get(size, size)
        misaligned = places % alignment != 0
        if misaligned.any():
            lane = int(misaligned.argmax())
            raise report(lane, f"misaligned: {size} bytes at byte {places[lane]} of local memory")
        return places

    def _cells_of(self, places: Ints, size: int, groups: Ints) -> tuple[tuple[Ints, Ints], Words]:
        """(index of the words, their cells), [n, words]."""
        at = (groups[:, None], (places // 4)[:, None] + np.arange(max(1, size // 4)))
        return at, self._cells[at]

    def _require_ready(self, cells: Words, places: Ints, size: int, report: Report) -> None:
        shift = (places % 4)[:, None].astype(np.uint32)
        mask = np.uint32((1 << min(size, 4)) - 1)
        missing = ~(cells >> shift) & mask
        if missing.any():
            lane, part = np.argwhere(missing)[0]
            first = int(missing[lane, part]) & -int(missing[lane, part])
            byte = int(places[lane]) + 4 * int(part) + first.bit_length() - 1
            raise report(int(lane), f"nobody wrote: byte {byte} of local memory")

    def _conflict(self, last: npt.NDArray[Any], mine: Words, words: Ints, text: str, report: Report) -> None:
        """Tags of the same epoch and another wave are a race."""
        wrong = (last >> WAVE_BITS == mine >> WAVE_BITS) & (last & ~np.uint32(ATOMIC) != mine)
        self._race(wrong, words, text, report)

    def _race(self, wrong: npt.NDArray[np.bool_], words: Ints, text: str, report: Report) -> None:
        if wrong.any():
            lane, part = np.argwhere(wrong)[0]
            where = f"byte {4 * int(words[lane, part])} of local memory"
            raise report(int(lane), f"race: another wave {text} without a barrier between: {where}")

    def load(self, addresses: Addresses, size: int, groups: Ints, waves: Ints, epochs: Ints, report: Report) -> Words:
        """uint32 [n, max(1, size / 4)] from byte addresses [n]; waves: number of the wave in its workgroup."""
        places = self._places(addresses, size, report)
        at, cells = self._cells_of(places, size, groups)
        self._require_ready(cells, places, size, report)
        mine = tags(waves, epochs).astype(np.uint32)[:, None]
        self._conflict(cells >> WRITER_SHIFT & TAG, mine, at[1], "writes what this one reads", report)
        self._read(at, mine)
        if size >= 4:
            return np.asarray(self._words[at])
        raw = self._words.view(np.uint8 if size == 1 else np.uint16)
        return np.asarray(raw[groups, places // size].astype(np.uint32)[:, None])

    def _read(self, at: tuple[Ints, Ints], mine: Words) -> None:
        """Notes readers."""
        # The second pass sees what lanes of other waves in the same call noted.
        for _ in range(2):
            cells = self._cells[at]
            last = cells >> READER_SHIFT
            other = (last >> WAVE_BITS == mine >> WAVE_BITS) & (last != mine)
            reader = np.where(other, mine | SEVERAL, mine)
            self._cells[at] = cells & ((1 << READER_SHIFT) - 1) | reader << READER_SHIFT

    def _set_writer(self, at: tuple[Ints, Ints], writer: Words) -> None:
        self._cells[at] = self._cells[at] & ~np.uint32(TAG << WRITER_SHIFT) | writer << WRITER_SHIFT

    def _update_writer(self, at: tuple[Ints, Ints], mine: Words, report: Report) -> None:
        """Checks atomics against plain accesses of other waves, and notes them."""
        self._conflict(self._cells[at] >> READER_SHIFT, mine, at[1], "reads what this one updates", report)
        for _ in range(2):
            last = self._cells[at] >> WRITER_SHIFT & TAG
            now = last >> WAVE_BITS == mine >> WAVE_BITS
            plain = now & (last & (ATOMIC | SEVERAL) == 0)
            self._race(plain & (last != mine), at[1], "writes what this one updates", report)
            atomic = np.where(now & (last != mine | ATOMIC), mine | SEVERAL, mine | ATOMIC)
            self._set_writer(at, np.where(plain, mine, atomic))

    def store(
        self,
        addresses: Addresses,
        size: int,
        data: Words,
        defined: npt.NDArray[np.bool_],
        groups: Ints,
        waves: Ints,
        epochs: Ints,
        report: Report,
    ) -> None:
        """Stores data [n, words]; words that are not defined count as never written."""
        places = self._places(addresses, size, report)
        at, cells = self._cells_of(places, size, groups)
        mine = tags(waves, epochs).astype(np.uint32)[:, None]
        self._conflict(cells >> READER_SHIFT, mine, at[1], "reads what this one writes", report)
        self._conflict(cells >> WRITER_SHIFT & TAG, mine, at[1], "writes what this one writes", report)
        if size >= 4:
            self._words[at] = data
            same = self._words[at] == data
        else:
            kind = np.uint8 if size == 1 else np.uint16
            values, place = data.astype(kind), (groups, places // size)
            self._words.view(kind)[place] = values[:, 0]
            same = (self._words.view(kind)[place] == values[:, 0])[:, None]
        if not same.all():
            lane = int(np.argwhere(~same)[0][0])
            raise report(lane, f"two lanes write different values: byte {int(places[lane])} of local memory")
        bits = np.uint32((1 << min(size, 4)) - 1) << (places % 4)[:, None].astype(np.uint32)
        np.bitwise_or.at(self._cells, at, np.broadcast_to(bits, defined.shape))
        np.bitwise_and.at(self._cells, at, np.where(defined, ~np.uint32(0), ~bits))
        self._set_writer(at, mine)
        self._conflict(self._cells[at] >> WRITER_SHIFT & TAG, mine, at[1], "writes what this one writes", report)

    def land(self, addresses: Addresses, groups: Ints, waves: Ints, epochs: Ints, report: Report) -> None:
        """Words that a load has written as unwritten ones become defined; nobody may have written them meanwhile."""
        at, cells = self._cells_of(addresses.astype(np.int64), 4, groups)
        written = cells & INITIALISED != 0
        if written.any():
            lane = int(np.argwhere(written)[0][0])
            raise report(lane, f"written after the load was issued: byte {addresses[lane]} of local memory")
        mine = tags(waves, epochs).astype(np.uint32)[:, None]
        self._conflict(cells >> READER_SHIFT, mine, at[1], "reads what this one writes", report)
        self._conflict(cells >> WRITER_SHIFT & TAG, mine, at[1], "writes what this one writes", report)
        self._cells[at] |= np.uint32(INITIALISED)
        self._set_writer(at, mine)

    def update(
        self,
        addresses: Addresses,
        function: Callable[[Any, Any], Any],
        kind: npt.DTypeLike,
        data: Words,
        groups: Ints,
        waves: Ints,
        epochs: Ints,
        report: Report,
    ) -> Words:
        """Atomic read-modify-write, lane after lane: the new value is function(old value, data).

        Args:
            function: of arrays of `kind`, of 4 or 8 bytes an element. data: uint32 [n, words of an element].

        Returns:
            uint32 [n, words]: the old values, each as its lane found it.
        """
        type_ = np.dtype(kind)
        given = np.ascontiguousarray(data).reshape(len(addresses), type_.itemsize // 4)
        places = self._places(addresses, type_.itemsize, report)
        at, cells = self._cells_of(places, type_.itemsize, groups)
        self._require_ready(cells, places, type_.itemsize, report)
        self._update_writer(at, tags(waves, epochs).astype(np.uint32)[:, None], report)
        width = self._words.shape[1]
        padded = self._words if width * 4 % type_.itemsize == 0 else np.pad(self._words, ((0, 0), (0, 1)))
        typed = padded.view(type_)
        index, values = places // type_.itemsize, given.view(type_)[:, 0]
        old = typed[groups, index]
        with np.errstate(over="ignore", invalid="ignore"):
            for turn in turns(groups * typed.shape[1] + index):
                spot = (groups[turn], index[turn])
                old[turn] = typed[spot]
                typed[spot] = function(old[turn], values[turn])
        if padded is not self._words:
            self._words[:] = padded[:, :width]
        return np.ascontiguousarray(old)[:, None].view(np.uint32).reshape(len(places), -1)
