"""Local memory (LDS) of a batch of workgroups, with the race rules between barriers.

Every word knows the wave that wrote it last and the last reader, each with its epoch: the number of barriers that
the wave had passed. Two waves that touch one word in the same epoch, one of them writing, are a race.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.sim.memory import Addresses, Report, Words

_NOBODY, _MANY = -1, -2
_FILL = 0xFFA5FFA5
Ints = npt.NDArray[np.int64]


class LocalMemory:
    """`size` bytes for each of `groups` workgroups."""

    def __init__(self, groups: int, size: int) -> None:
        self.size = size
        words = -(-size // 4)
        self._words = np.full((groups, words), _FILL, np.uint32)
        self._ready = np.zeros((groups, 4 * words), np.bool_)
        self._writer, self._reader = (np.full((groups, words), _NOBODY, np.int32) for _ in range(2))
        self._written_in, self._read_in = (np.full((groups, words), -1, np.int32) for _ in range(2))

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

    def _conflict(
        self, owner: Any, epoch: Any, groups: Ints, words: Ints, waves: Ints, epochs: Ints, text: str, report: Report
    ) -> None:
        last, when = owner[groups[:, None], words], epoch[groups[:, None], words]
        wrong = (last != _NOBODY) & (when == epochs[:, None]) & (last != waves[:, None])
        if wrong.any():
            lane, part = np.argwhere(wrong)[0]
            where = f"byte {4 * int(words[lane, part])} of local memory"
            raise report(int(lane), f"race: another wave {text} without a barrier between: {where}")

    def load(self, addresses: Addresses, size: int, groups: Ints, waves: Ints, epochs: Ints, report: Report) -> Words:
        """uint32 [n, max(1, size / 4)] from byte addresses [n]; waves: number of the wave in its workgroup."""
        places = self._places(addresses, size, report)
        ready = self._ready[groups[:, None], places[:, None] + np.arange(size)]
        if not ready.all():
            lane, part = np.argwhere(~ready)[0]
            raise report(int(lane), f"nobody wrote: byte {int(places[lane]) + int(part)} of local memory")
        words = (places // 4)[:, None] + np.arange(max(1, size // 4))
        self._conflict(
            self._writer, self._written_in, groups, words, waves, epochs, "writes what this one reads", report
        )
        at = (groups[:, None], words)
        shared = (self._read_in[at] == epochs[:, None]) & (self._reader[at] != waves[:, None])
        self._reader[at] = np.where(shared & (self._reader[at] != _NOBODY), _MANY, waves[:, None])
        self._read_in[at] = epochs[:, None]
        others = self._reader[at] != waves[:, None]
        self._reader[groups[:, None].repeat(words.shape[1], 1)[others], words[others]] = _MANY
        if size >= 4:
            return np.asarray(self._words[at])
        raw = self._words.view(np.uint8 if size == 1 else np.uint16)
        return np.asarray(raw[groups, places // size].astype(np.uint32)[:, None])

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
        words = (places // 4)[:, None] + np.arange(max(1, size // 4))
        at = (groups[:, None], words)
        self._conflict(self._reader, self._read_in, groups, words, waves, epochs, "reads what this one writes", report)
        text = "writes what this one writes"
        self._conflict(self._writer, self._written_in, groups, words, waves, epochs, text, report)
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
        self._ready[groups[:, None], places[:, None] + np.arange(size)] = np.repeat(defined, min(size, 4), axis=1)
        self._writer[at], self._written_in[at] = waves[:, None], epochs[:, None]
        self._conflict(self._writer, self._written_in, groups, words, waves, epochs, text, report)
