"""Caches of gfx950, replayed over a trace of memory instructions: a vector L1 per compute unit, an L2 per XCD.

Model: workgroup g runs on XCD g mod 8 (workgroups go round-robin over the XCDs) and takes the next free place there;
the resident waves take turns, one memory instruction each. Caches are fully associative and replace the line that was
unused for longest. Loads look in L1, then L2; stores and atomics go to L2, where they take a line. Caches start
empty. One XCD stands for all: the trace need hold workgroups of one XCD only (every eighth of the launch). What L2
does not hold comes from the memory side (MALL, behind it HBM), which is not simulated.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping

import numpy as np

from spconv_compiler.sim import chip
from spconv_compiler.sim.access_counter import Trace

LEVELS = ("l1", "l2", "memory")


@dataclasses.dataclass
class Traffic:
    """Lines of 128 bytes that one XCD's share of a launch moves.

    Attributes:
        loads: lines asked for by loads; l1_hits, l2_hits: where they were found; the rest came from memory.
        writes: lines that stores touch, atomics: lines that atomics touch; written_hits: those of both that L2 held.
        written_back: changed lines that L2 gave up, and those left at the end.
        levels: for the address of each load: how many of its instructions had all lines in L1, in L2 or nearer, and
            at least one in memory.
        asked: for the address of each load: lines that L1 did not hold.
        compute_units: those that ran anything.
    """

    loads: int = 0
    l1_hits: int = 0
    l2_hits: int = 0
    writes: int = 0
    atomics: int = 0
    written_hits: int = 0
    written_back: int = 0
    levels: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    asked: dict[int, int] = dataclasses.field(default_factory=dict)
    compute_units: int = 0

    @property
    def l2_requests(self) -> int:
        """Lines that L2 is asked for."""
        return self.loads - self.l1_hits + self.writes + self.atomics

    @property
    def memory_lines(self) -> int:
        """Lines that move between L2 and the memory side."""
        fetched = self.loads - self.l1_hits - self.l2_hits + self.writes + self.atomics - self.written_hits
        return fetched + self.written_back

    @property
    def moved_lines(self) -> int:
        """Of those, lines whose contents have to move: a store that fills part of a line reads none of it.

        Of stores and atomics together it is known how many found their line: atomics count as having found theirs.
        """
        fetched = self.loads - self.l1_hits - self.l2_hits + max(0, self.atomics - self.written_hits)
        return fetched + self.written_back


class _Cache:
    """Least recently used first; a line is known as changed or not."""

    def __init__(self, lines: int) -> None:
        self.lines, self.held, self.lost = lines, dict[int, bool](), 0

    def touch(self, line: int, change: bool = False) -> bool:
        """Uses a line, fetching it if need be; whether it was there."""
        before = self.held.pop(line, None)
        self.held[line] = change or bool(before)
        if len(self.held) > self.lines:
            oldest = next(iter(self.held))
            self.lost += self.held.pop(oldest)
        return before is not None


@dataclasses.dataclass(frozen=True)
class _Step:
    kind: str
    code: int
    lines: list[int]


def replay(trace: Trace, kinds: Mapping[int, str], groups_per_unit: int, xcd: int = 0) -> Traffic:
    """Runs the workgroups of one XCD through its caches.

    Args:
        trace: with all workgroups whose number is `xcd` modulo 8; others are left out.
        kinds: "load", "store" or "atomic" of each instruction, by address.
        groups_per_unit: workgroups that a compute unit holds.
    """
    units = chip.COMPUTE_UNITS // chip.CHIPLETS
    traffic, l2 = Traffic(), _Cache(chip.L2_LINES)
    caches = [_Cache(chip.L1_LINES) for _ in range(units)]
    # One place after another on all units in turn, as workgroups are handed out.
    places: deque[tuple[int, Iterator[_Step]]] = deque()
    pending = deque(_by_group(trace, kinds, xcd))
    for place in range(units * groups_per_unit):
        if pending:
            places.append((place % units, pending.popleft()))
    traffic.compute_units = min(units, len(places))
    while places:
        unit, steps = places.popleft()
        step = next(steps, None)
        if step is not None:
            _take(step, caches[unit], l2, traffic)
            places.append((unit, steps))
        elif pending:
            places.append((unit, pending.popleft()))
    traffic.written_back = l2.lost + sum(l2.held.values())
    return traffic


def _take(step: _Step, l1: _Cache, l2: _Cache, traffic: Traffic) -> None:
    if step.kind != "load":
        for line in step.lines:
            traffic.written_hits += l2.touch(line, change=True)
        if step.kind == "store":
            traffic.writes += len(step.lines)
        else:
            traffic.atomics += len(step.lines)
        return
    farthest, held = 0, traffic.l1_hits
    for line in step.lines:
        if l1.touch(line):
            traffic.l1_hits += 1
        elif l2.touch(line):
            traffic.l2_hits += 1
            farthest = max(farthest, 1)
        else:
            farthest = 2
    traffic.loads += len(step.lines)
    asked = len(step.lines) - (traffic.l1_hits - held)
    traffic.asked[step.code] = traffic.asked.get(step.code, 0) + asked
    traffic.levels.setdefault(step.code, [0, 0, 0])[farthest] += 1


def _by_group(trace: Trace, kinds: Mapping[int, str], xcd: int) -> list[Iterator[_Step]]:
    """The steps of each workgroup of an XCD, in the order of their numbers; waves of a workgroup in program order."""
    mine = np.flatnonzero(trace.groups % chip.CHIPLETS == xcd)
    order = mine[np.argsort(trace.groups[mine], kind="stable")]
    bounds = np.flatnonzero(np.diff(trace.groups[order], prepend=-1, append=-1))

    def steps(first: int, last: int) -> Iterator[_Step]:
        for index in order[first:last]:
            code = int(trace.codes[index])
            lines = trace.lines[trace.starts[index] : trace.starts[index + 1]]
            yield _Step(kinds[code], code, lines.tolist())

    return [steps(int(first), int(last)) for first, last in zip(bounds, bounds[1:], strict=False)]
