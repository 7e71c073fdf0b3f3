"""Watches the memory instructions of a launch: bytes, cache lines, LDS phases; on request also a trace for caches.

An `AccessCounter` is what `Machine.observer` takes. To save time it can look at every n-th workgroup only.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.lds_banks import phase_cycles

_NOTHING = np.uint64(0xFFFFFFFFFFFFFFFF)


@dataclasses.dataclass
class Accesses:
    """What one instruction of the program did, over all waves looked at.

    Attributes:
        kind: "load", "store", "atomic"; space: "vmem", "smem" or "lds".
        instructions: waves' accesses with a lane on (two for the forms with two LDS addresses).
        lanes: active lanes; bytes: that these lanes asked for.
        lines_64, lines_128: different lines of each wave instruction, added up.
        phases, cycles: of LDS (lds_banks.py).
    """

    kind: str
    space: str
    instructions: int = 0
    lanes: int = 0
    bytes: int = 0
    lines_64: int = 0
    lines_128: int = 0
    phases: int = 0
    cycles: int = 0

    def add(self, other: Accesses) -> None:
        """Adds the numbers of another one."""
        for field in dataclasses.fields(self)[2:]:
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def scaled(self, factor: float) -> Accesses:
        """All numbers times a factor, rounded."""
        numbers = (round(factor * value) for value in dataclasses.astuple(self)[2:])
        return Accesses(self.kind, self.space, *numbers)


@dataclasses.dataclass
class Trace:
    """Vector memory instructions in the order in which they ran.

    Attributes:
        groups, waves, codes: of each instruction: workgroup, wave, address of the instruction.
        starts: where its lines begin; lines: numbers of 128-byte lines, each once per instruction.
    """

    groups: npt.NDArray[np.int64]
    waves: npt.NDArray[np.int64]
    codes: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    lines: npt.NDArray[np.uint64]


class AccessCounter:
    """Counts accesses of workgroups 0, every, 2·every, …; `trace`: keeps their lines too.

    Attributes:
        by_address: accesses by the address of the instruction.
        ran: how often each ran in the workgroups looked at, lanes on or not.
    """

    def __init__(self, every: int = 1, trace: bool = False) -> None:
        if every < 1:
            raise ValueError(f"every {every}-th workgroup; accepted: 1 and up")
        self.every, self._trace = every, trace
        self.by_address: dict[int, Accesses] = {}
        self.ran: dict[int, float] = {}
        self._parts: list[tuple[Any, Any, Any, Any, Any]] = []

    def __call__(
        self,
        instruction: Instruction,
        groups: npt.NDArray[np.int64],
        waves: npt.NDArray[np.int64],
        lanes: npt.NDArray[np.bool_],
        addresses: Any,
        size: int,
    ) -> None:
        """One instruction of some waves: lanes bool [n, 64], addresses uint64 [n, 64], size: bytes of a lane."""
        access = instruction.row.access
        assert access is not None
        mine = np.asarray(groups) % self.every == 0
        # Forms with two LDS addresses come twice.
        self.ran[instruction.address] = self.ran.get(instruction.address, 0) + int(mine.sum()) / access.count
        chosen = lanes.any(axis=1) & mine
        if not chosen.any():
            return
        lanes, addresses = lanes[chosen], np.asarray(addresses, np.uint64)[chosen]
        space = {"lds": "lds", "smem": "smem"}.get(instruction.row.kind, "vmem")
        counted = self.by_address.setdefault(instruction.address, Accesses(access.kind, space))
        counted.instructions += len(lanes)
        counted.lanes += int(lanes.sum())
        counted.bytes += size * int(lanes.sum())
        if space == "lds":
            phases, cycles = phase_cycles(access.kind, size, addresses, lanes)
            counted.phases += int(phases.sum())
            counted.cycles += int(cycles.sum())
            return
        counted.lines_64 += int(unique_lines(addresses, lanes, size, 64)[1].sum())
        lines, first = unique_lines(addresses, lanes, size, 128)
        counted.lines_128 += int(first.sum())
        if self._trace and space == "vmem":
            self._keep(instruction, np.asarray(groups)[chosen], np.asarray(waves)[chosen], lines, first)

    def _keep(self, instruction: Instruction, groups: Any, waves: Any, lines: Any, first: Any) -> None:
        codes = np.full(len(groups), instruction.address, np.int64)
        self._parts.append((groups, waves, codes, first.sum(axis=1), lines[first]))

    def trace(self) -> Trace:
        """What was kept.

        Raises:
            ValueError: nothing was asked to be kept.
        """
        if not self._trace:
            raise ValueError("the counter was made without a trace")
        nothing = np.zeros(0, np.int64)
        parts = [(nothing, nothing, nothing, nothing, nothing.astype(np.uint64)), *self._parts]
        groups, waves, codes, counts, lines = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Trace(groups, waves, codes, np.concatenate([[0], np.cumsum(counts)]), lines)


def unique_lines(addresses: Any, lanes: npt.NDArray[np.bool_], size: int, line: int) -> tuple[Any, Any]:
    """(line numbers, whether each is the first of its number in its row), [n, 128]: first and last byte of lanes."""
    step = np.uint64(line)
    ends = np.concatenate([addresses // step, (addresses + np.uint64(size - 1)) // step], axis=1)
    ends = np.where(np.concatenate([lanes, lanes], axis=1), ends, _NOTHING)
    ends.sort(axis=1)
    first = ends != _NOTHING
    first[:, 1:] &= ends[:, 1:] != ends[:, :-1]
    return ends, first
