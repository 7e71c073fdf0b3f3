"""What is under way besides registers: loads straight to LDS, and the scratch memory of lanes.

A load to LDS may land at any time from its issue to the wait that covers it. Its bytes are therefore written at issue
as bytes that nobody wrote; the wait makes them defined. So an early read is found as one of what nobody wrote, and a
write in between as one whose order with the load nothing decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from spconv_compiler.sim.algebra import Array
from spconv_compiler.sim.local import LocalMemory
from spconv_compiler.sim.memory import Report

# vmcnt counts to 63: the next instruction waits by itself.
CAPACITY = 63


@dataclasses.dataclass
class Who:
    """Lanes [n]: place of the wave in the batch, workgroup, number of the wave, its epoch, number of the lane."""

    waves: Array
    slots: Array
    numbers: Array
    epochs: Array
    lanes: Array

    def chosen(self, index: Array) -> Who:
        """Some of the lanes."""
        return Who(*(getattr(self, field.name)[index] for field in dataclasses.fields(self)))


@dataclasses.dataclass
class Flight:
    """A load to LDS: who, how many vector memory instructions each wave had issued with it, where, bytes of a lane."""

    who: Who
    order: Array
    places: Array
    size: int


class Transfers:
    """Loads to LDS of a batch of `count` waves."""

    def __init__(self, count: int) -> None:
        self.issued = np.zeros(count, np.int64)
        self.flights: list[Flight] = []

    def start(self, local: LocalMemory, who: Who, places: Array, data: Array, report: Report) -> None:
        """A load [n, words] whose instruction has been counted already: bytes of LDS become unwritten."""
        self.flights.append(Flight(who, self.issued[who.waves], places, 4 * data.shape[1]))
        issue(local, who, places, data, report)

    def land(
        self, local: LocalMemory, waves: Array, epochs: Array, count: int, report: Callable[[Who], Report]
    ) -> None:
        """The wait of some waves for at most `count` younger instructions: older loads are there now.

        report: from lanes to a Report.
        """
        rest = []
        for flight in self.flights:
            young = self.issued[flight.who.waves] - flight.order < min(count, CAPACITY)
            done = np.isin(flight.who.waves, waves) & ~young
            if done.any():
                who = flight.who.chosen(done)
                # The order with other waves counts from here on.
                who.epochs = epochs[who.waves]
                arrive(local, who, flight.places[done], flight.size, report(who))
            if not done.all():
                left = ~done
                rest.append(Flight(flight.who.chosen(left), flight.order[left], flight.places[left], flight.size))
        self.flights = rest


def issue(local: LocalMemory, who: Who, places: Array, data: Array, report: Report) -> None:
    """Writes the words of lanes, as ones that nobody wrote."""
    ready = np.zeros((len(places), 1), np.bool_)
    for word in range(data.shape[1]):
        where = places + np.uint64(4 * word)
        local.store(where, 4, data[:, word : word + 1], ready, who.slots, who.numbers, who.epochs, report)


def arrive(local: LocalMemory, who: Who, places: Array, size: int, report: Report) -> None:
    """The words of lanes, `size` bytes each, are there."""
    for byte in range(0, size, 4):
        local.land(places + np.uint64(byte), who.slots, who.numbers, who.epochs, report)


class PrivateMemory:
    """Scratch memory: `size` bytes for every lane of `count` waves."""

    def __init__(self, count: int, size: int) -> None:
        self.size = size
        self._bytes = np.full((count, 64, size), 0xA5, np.uint8)
        self._ready = np.zeros((count, 64, size), np.bool_)

    def load(self, waves: Array, lanes: Array, places: Array, size: int) -> tuple[Array, Array]:
        """(uint32 [n, words], whether all bytes were written [n]); less than a word is extended with zeros."""
        at = (waves[:, None], lanes[:, None], places[:, None] + np.arange(size))
        raw = np.zeros((len(places), -(-size // 4) * 4), np.uint8)
        raw[:, :size] = self._bytes[at]
        return raw.view(np.uint32), self._ready[at].all(axis=1)

    def store(self, waves: Array, lanes: Array, places: Array, size: int, data: Array, known: Array) -> None:
        """Stores uint32 [n, words]; words that are not defined count as never written."""
        at = (waves[:, None], lanes[:, None], places[:, None] + np.arange(size))
        self._bytes[at] = np.ascontiguousarray(data).view(np.uint8)[:, :size]
        self._ready[at] = np.repeat(known, 4, axis=1)[:, :size]
