"""Caches of gfx950, replayed over a trace of memory instructions: a vector L1 per compute unit, an L2 per XCD.

Model: workgroup g runs on XCD g mod 8 (workgroups go round-robin over the XCDs) and takes the next free place there;
the resident waves take turns, one memory instruction each. Caches are fully associative and replace the line that was
unused for longest. Loads look in L1, then L2; stores and atomics go to L2, where they take a line. Caches start
empty. One XCD stands for all: the trace need hold workgroups of one XCD only (every eighth of the launch). What L2
does not hold comes from the memory side (MALL, behind it HBM), which is not simulated.

A store takes its line without fetching it: L2 keeps which bytes were written, and writes those back. Loads and atomics
fetch, also a line that only stores have touched, since which bytes of it they filled is not followed. Sources:

* gem5's protocol of that cache, by AMD (src/mem/ruby/protocol/GPU_VIPER-TCC.sm): of a write-back cache, `transition(I,
  WrVicBlkBack, W)` takes a block with a mask of dirty bytes and asks memory for nothing; a load of a block in W writes
  it back and fetches it; an atomic on a block that is not there goes to memory for it.
* AMD's profile of a copy on MI200 (ROCm Compute Profiler, "CLI analysis", vcopy of 1,048,576 doubles): 416.52 GB/s read
  from the fabric in 20.16 us are 8.40 MB, the 8.39 MB that are copied; with lines fetched for stores it were 16.8 MB.
* Copies on MI350X move 5.6 TB/s (rocm-systems PR 8480); with a fetch for every store it were 8.4, of 8 that HBM has.
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
        fetched: lines that L2 read from memory, for loads and atomics.
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
    fetched: int = 0
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
        return self.fetched + self.written_back


# What a cache knows of a line: its contents are there; it was changed. One that only stores touched is not whole.
_WHOLE, _CHANGED = 1, 2
_MEANS = {"load": _WHOLE, "store": _CHANGED, "atomic": _WHOLE | _CHANGED}


class _Cache:
    """Least recently used first."""

    def __init__(self, lines: int) -> None:
        self.lines, self.held, self.lost = lines, dict[int, int](), 0

    def touch(self, line: int, means: int) -> int:
        """Uses a line; what was known of it, 0 if it was not there."""
        before = self.held.pop(line, 0)
        self.held[line] = before | means
        if len(self.held) > self.lines:
            oldest = next(iter(self.held))
            self.lost += bool(self.held.pop(oldest) & _CHANGED)
        return before

    @property
    def changed(self) -> int:
        """Changed lines that it gave up or holds."""
        return self.lost + sum(bool(means & _CHANGED) for means in self.held.values())


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
    traffic.written_back = l2.changed
    return traffic


def _take(step: _Step, l1: _Cache, l2: _Cache, traffic: Traffic) -> None:
    means = _MEANS[step.kind]
    if step.kind != "load":
        for line in step.lines:
            before = l2.touch(line, means)
            traffic.written_hits += before != 0
            traffic.fetched += bool(means & _WHOLE & ~before)
        if step.kind == "store":
            traffic.writes += len(step.lines)
        else:
            traffic.atomics += len(step.lines)
        return
    farthest, held = 0, traffic.l1_hits
    for line in step.lines:
        if l1.touch(line, means):
            traffic.l1_hits += 1
        elif l2.touch(line, means) & _WHOLE:
            traffic.l2_hits += 1
            farthest = max(farthest, 1)
        else:
            traffic.fetched += 1
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
