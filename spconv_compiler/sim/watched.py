"""Counts and models every launch of a machine, whichever engine it has.

The machine runs the launch; before that, a sample of its workgroups runs on the numpy engine, which tells of every
address, and memory is put back as it was.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from spconv_compiler.arrays import bytes_at
from spconv_compiler.sim import chip
from spconv_compiler.sim.access_counter import AccessCounter
from spconv_compiler.sim.cache_model import replay
from spconv_compiler.sim.counters import LaunchCounters, count_launch
from spconv_compiler.sim.interpreter import Counts, Machine, Program
from spconv_compiler.sim.memory import Allocation, Memory
from spconv_compiler.sim.timing import Band, model_launch

# Workgroups of a launch that are looked at, at most: the numpy engine runs them.
MOST_WATCHED = 1024


@dataclasses.dataclass(frozen=True)
class WatchedLaunch:
    """Counters and modelled time of one launch.

    Attributes:
        moved_bytes: between the L2 caches and memory (cache_model.Traffic).
        by_address: how often each instruction ran.
    """

    counters: LaunchCounters
    band: Band
    moved_bytes: int
    by_address: Mapping[int, int] = dataclasses.field(default_factory=dict, repr=False)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        found = {"counters": self.counters.to_json(), "modelled": self.band.to_json()}
        return {**found, "moved_bytes": self.moved_bytes}


class Watcher:
    """Runs samples of launches beside a machine, in its memory, and leaves that as it was.

    Args:
        machine: interpreter.Machine, or one with its interface.
        every: step between the workgroups looked at; larger where that would be more than MOST_WATCHED.
    """

    def __init__(self, machine: Any, every: int) -> None:
        self.every = every
        self._watching = Machine(machine.kernels, machine.budget)
        self._watching.memory = machine.memory

    def program(self, name: str) -> Program:
        """As Machine.program."""
        return self._watching.program(name)

    def watch(
        self, name: str, grid: Sequence[int], block: int, arguments: Sequence[int | Allocation]
    ) -> tuple[AccessCounter, range]:
        """(accesses of the workgroups looked at, those workgroups)"""
        groups = int(np.prod(grid))
        sample = range(0, groups, self._every(groups))
        counter = AccessCounter(sample.step, trace=True)
        self._watching.observer = counter
        with _restored(self._watching.memory, arguments):
            self._watching.launch(name, grid, block, arguments, sample)
        return counter, sample

    def _every(self, groups: int) -> int:
        """The step between workgroups; a multiple of the XCDs, so that one XCD's are among them."""
        least = -(-groups // MOST_WATCHED)
        return max(self.every, -(-least // chip.CHIPLETS) * chip.CHIPLETS if least > 1 else 1)


class WatchedMachine:
    """A machine (interpreter.Machine or one with its interface) that keeps counters of every launch.

    Attributes:
        launches: in order.
        useful_macs: multiply-accumulates that the problem asks for, by name of the kernel.
    """

    def __init__(self, machine: Any, every: int = chip.CHIPLETS, useful_macs: dict[str, int] | None = None) -> None:
        self.machine = machine
        self.memory: Memory = machine.memory
        self.launches: list[WatchedLaunch] = []
        self.useful_macs = useful_macs or {}
        self._watcher = Watcher(machine, every)

    def launch(
        self,
        name: str,
        grid: Sequence[int],
        block: int,
        arguments: Sequence[int | Allocation],
        order: Sequence[int] | None = None,
    ) -> Counts:
        """Runs and counts a launch: see interpreter.Machine.launch."""
        groups = int(np.prod(grid))
        counter, sample = self._watcher.watch(name, grid, block, arguments)
        counts: Counts = self.machine.launch(name, grid, block, arguments, order)
        program = self._watcher.program(name)
        counters = count_launch(
            program.kernel,
            program.instructions,
            counts.by_address,
            groups=groups,
            block=block,
            accesses=counter,
            useful_macs=self.useful_macs.get(name),
        )
        kinds = {address: one.kind for address, one in counter.by_address.items()}
        traffic = replay(counter.trace(), kinds, max(1, counters.occupancy.groups_per_unit))
        replayed = sum(group % chip.CHIPLETS == 0 for group in sample)
        touched = sum(argument.size for argument in arguments if isinstance(argument, Allocation))
        scale = groups / max(1, replayed)
        band = model_launch(program.instructions, counts.by_address, counters, traffic, scale, touched)
        moved = round(128 * scale * traffic.memory_lines)
        self.launches.append(WatchedLaunch(counters, band, moved, counts.by_address))
        return counts


@contextlib.contextmanager
def _restored(memory: Memory, arguments: Sequence[int | Allocation]) -> Iterator[None]:
    """Puts the buffers that may be written, and their cells, back at the end."""
    places = []
    for argument in arguments:
        if isinstance(argument, Allocation) and argument.writable and argument.size:
            whole = -(-argument.size // 4) * 4
            places += [bytes_at(argument.address + offset, whole) for offset in (0, memory.distance)]
    kept = [place.copy() for place in places]
    try:
        yield
    finally:
        for place, bytes_ in zip(places, kept, strict=True):
            place[:] = bytes_
