"""What a launch did, as numbers that go to JSON: instructions, matrix work, memory, LDS, occupancy, spills.

Instruction counts are exact: they come from the counts by address that both engines keep. Cache lines and LDS phases
need addresses, and come from an `AccessCounter` that has watched the launch, or every n-th workgroup of it; those are
scaled up by the memory instructions of the whole launch over those that were watched, address by address.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from spconv_compiler.sim.access_counter import AccessCounter, Accesses
from spconv_compiler.sim.elf import Kernel
from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.occupancy import Occupancy, occupancy

_TRANSCENDENTAL = ("v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_")
_CLASSES = {
    **dict.fromkeys(("saveexec", "getreg", "setreg", "trap"), "salu"),
    **dict.fromkeys(("lane", "swap", "cmpx"), "valu"),
    **dict.fromkeys(("buffer", "global", "flat", "scratch"), "vmem"),
    "permute": "lds",
    "clock": "smem",
}
CLASSES = ("salu", "valu", "trans", "smem", "vmem", "lds", "mfma", "branch", "barrier", "wait", "nop", "cache", "end")
_SPILLS = ("v_writelane_b32", "v_readlane_b32", "v_accvgpr_write_b32", "v_accvgpr_read_b32")


@dataclasses.dataclass(frozen=True)
class Matrix:
    """MFMA work of a launch: instructions by opcode, passes of four cycles, multiply-accumulates.

    useful_macs: those that the problem asks for, where the caller knows; the rest is padding of tiles.
    """

    by_opcode: dict[str, int]
    passes: int
    executed_macs: int
    useful_macs: int | None


@dataclasses.dataclass(frozen=True)
class MemoryTotals:
    """Accesses of one kind in one space; coalescing: bytes asked for, of the 64-byte lines touched for them."""

    instructions: int
    lanes: int
    bytes: int
    lines_64: int
    lines_128: int
    coalescing: float | None


@dataclasses.dataclass(frozen=True)
class LdsTotals:
    """LDS accesses of one kind: phases they would take without conflicts, and cycles that they take."""

    instructions: int
    lanes: int
    bytes: int
    phases: int
    cycles: int


@dataclasses.dataclass(frozen=True)
class Spills:
    """Signs of registers that did not fit.

    scratch_bytes: of a lane. lane_moves, accumulation_moves: v_writelane/v_readlane and v_accvgpr_write/read that ran;
    kernels use these for other ends too, so they are hints.
    """

    scratch_bytes: int
    lane_moves: int
    accumulation_moves: int


@dataclasses.dataclass(frozen=True)
class Sample:
    """Workgroups whose addresses were looked at: every n-th; scale: memory instructions of all over those seen."""

    every: int
    scale: float


@dataclasses.dataclass(frozen=True)
class LaunchCounters:
    """Everything about one launch; `memory` and `lds` are empty when nobody watched addresses."""

    kernel: str
    groups: int
    waves: int
    block: int
    instructions: int
    by_class: dict[str, int]
    by_opcode: dict[str, int]
    matrix: Matrix
    memory: dict[str, MemoryTotals]
    atomic_segments: int | None
    lds: dict[str, LdsTotals]
    occupancy: Occupancy
    spills: Spills
    sample: Sample | None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return dataclasses.asdict(self)


def instruction_class(item: Instruction) -> str:
    """One of CLASSES; "cache": invalidations and write-backs."""
    if item.row.kind == "valu" and item.row.name.startswith(_TRANSCENDENTAL):
        return "trans"
    return _CLASSES.get(item.row.kind, item.row.kind)


def count_launch(
    kernel: Kernel,
    instructions: Sequence[Instruction],
    by_address: Mapping[int, int],
    *,
    groups: int,
    block: int,
    accesses: AccessCounter | None = None,
    useful_macs: int | None = None,
) -> LaunchCounters:
    """The counters of one launch.

    Args:
        instructions: the decoded kernel. by_address: how often each ran, in wave instructions.
        groups: workgroups launched, of `block` lanes.
        accesses: what has watched the launch.
        useful_macs: multiply-accumulates that the problem asks for.
    """
    ran = [(item, by_address.get(item.address, 0)) for item in instructions]
    classes: Counter[str] = Counter()
    opcodes: Counter[str] = Counter()
    for item, count in ran:
        if count:
            classes[instruction_class(item)] += count
            opcodes[item.row.name] += count
    watched = scaled_accesses(accesses, by_address) if accesses is not None else {}
    totals = _by_kind(watched)
    memory = {name: _memory(one) for name, one in totals.items() if one.space != "lds"}
    atomics = memory.get("vmem atomic")
    return LaunchCounters(
        kernel.name,
        groups,
        groups * -(-block // 64),
        block,
        sum(classes.values()),
        dict(sorted(classes.items())),
        dict(opcodes.most_common()),
        _matrix(ran, useful_macs),
        memory,
        None if accesses is None else atomics.lines_64 if atomics else 0,
        {one.kind: _local(one) for one in totals.values() if one.space == "lds"},
        occupancy(kernel, block),
        Spills(
            kernel.descriptor.scratch_bytes,
            sum(opcodes[name] for name in _SPILLS[:2]),
            sum(opcodes[name] for name in _SPILLS[2:]),
        ),
        None if accesses is None else Sample(accesses.every, _scale(accesses, ran)),
    )


def scaled_accesses(accesses: AccessCounter, by_address: Mapping[int, int]) -> dict[int, Accesses]:
    """Accesses by address of the instruction, scaled up from the workgroups looked at to all of them."""
    if accesses.every == 1:
        return dict(accesses.by_address)
    return {
        address: one.scaled(by_address.get(address, 0) / accesses.ran[address])
        for address, one in accesses.by_address.items()
    }


def _scale(accesses: AccessCounter, ran: Sequence[tuple[Instruction, int]]) -> float:
    seen = sum(accesses.ran.values())
    whole = sum(count for item, count in ran if item.address in accesses.ran)
    return whole / seen if seen else 1.0


def _by_kind(watched: Mapping[int, Accesses]) -> dict[str, Accesses]:
    totals: dict[str, Accesses] = {}
    for one in watched.values():
        total = totals.setdefault(f"{one.space} {one.kind}", Accesses(one.kind, one.space))
        total.add(one)
    return dict(sorted(totals.items()))


def _memory(one: Accesses) -> MemoryTotals:
    share = one.bytes / (64 * one.lines_64) if one.lines_64 else None
    return MemoryTotals(one.instructions, one.lanes, one.bytes, one.lines_64, one.lines_128, share)


def _local(one: Accesses) -> LdsTotals:
    return LdsTotals(one.instructions, one.lanes, one.bytes, one.phases, one.cycles)


def _matrix(ran: Sequence[tuple[Instruction, int]], useful: int | None) -> Matrix:
    opcodes: Counter[str] = Counter()
    passes = macs = 0
    for item, count in ran:
        shape = item.row.matrix
        if shape is not None and count:
            opcodes[item.row.name] += count
            passes += shape.passes * count
            macs += shape.m * shape.n * shape.k * count
    return Matrix(dict(opcodes), passes, macs, useful)
