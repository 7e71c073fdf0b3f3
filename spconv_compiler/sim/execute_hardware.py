"""Executes what reads the hardware around a wave: s_getreg, s_setreg, clocks, traps, and s_load with a register."""

from __future__ import annotations

import numpy as np

from spconv_compiler.sim import execute_scalar
from spconv_compiler.sim.algebra import Array
from spconv_compiler.sim.execute_memory import descriptor
from spconv_compiler.sim.execute_vector import Run
from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.machine import WHOLE, Active

# MODE as the launch sets it: nearest even, denormals kept, DX10_CLAMP, IEEE (interpreter.check_launch).
MODE = 0x3F0
_MODE_NUMBER, _DIES = 1, 8


def is_mode(number: int) -> bool:
    """Whether the operand names MODE."""
    return part(number)[0] == _MODE_NUMBER


def part(number: int) -> tuple[int, int, int]:
    """(hardware register, lowest bit, mask) of the operand of s_getreg and s_setreg."""
    return number & 63, number >> 6 & 31, (1 << (number >> 11) + 1) - 1


def get_register(instruction: Instruction) -> Run:
    """s_getreg_b32: MODE, or the die of the workgroup; workgroups go to the dies in turn."""
    target, source = instruction.operands
    register, low, mask = part(source.number)

    def run(active: Active) -> None:
        groups = active.batch.groups[active.waves]
        value = np.full(active.count, MODE) if register == _MODE_NUMBER else groups % _DIES
        bits = (value >> low & mask).astype(np.uint32)
        active.set_scalar(target.number, bits, np.full(active.count, WHOLE))

    return run


def set_register(instruction: Instruction) -> Run:
    """s_setreg: accepted as long as it changes nothing; other modes of arithmetic are not simulated."""
    target, source = instruction.operands
    register, low, mask = part(target.number)

    def run(active: Active) -> None:
        value, known = execute_scalar.read(source, "u32", active)
        wanted = MODE >> low & mask
        bad = (known & np.uint32(mask) != mask) | (value & np.uint32(mask) != wanted) | (register != _MODE_NUMBER)
        if bad.any():
            active.fail(bad, "MODE changes: not supported")

    return run


def clock(instruction: Instruction) -> Run:
    """s_memtime, s_memrealtime: numbers that rise, and say nothing of the time on hardware."""
    target = instruction.operands[0]

    def run(active: Active) -> None:
        batch = active.batch
        batch.ticks += 1
        value = np.full(active.count, batch.ticks, np.uint64)
        active.set_scalar_pair(target.number, value, ~np.zeros_like(value))

    return run


def trap(instruction: Instruction) -> Run:
    """s_trap: the kernel gives up."""
    number = instruction.operands[0].number

    def run(active: Active) -> None:
        active.fail(np.ones(active.count, np.bool_), f"the kernel traps (s_trap {number})")

    return run


def load(instruction: Instruction) -> Run:
    """s_load with an offset register, and s_buffer_load: words beyond the end of the buffer read 0."""
    target, base, offset = instruction.operands
    access = instruction.row.access
    assert access is not None
    fixed = np.uint64(instruction.modifiers.get("offset", 0) & 0xFFFFFFFFFFFFFFFF)
    buffer = base.dwords == 4

    def run(active: Active) -> None:
        moved, known = _offset(active)
        if (known != WHOLE).any():
            active.fail(known != WHOLE, "the offset is undefined")
        moved = moved + fixed
        if buffer:
            address, size = descriptor(active, base.number)
            place, count = moved & ~np.uint64(3), np.maximum(size, moved) - moved
        else:
            address, defined = active.scalar_pair(base.number)
            if (~defined).any():
                active.fail(~defined != 0, "the address is undefined")
            place, count = moved, moved
        batch = active.batch

        def report(wave: int, reason: str) -> Exception:
            return batch.fault(int(active.waves[wave]), None, reason)

        _observe(active, address + place, access.size)
        if not buffer:
            segments = batch.segments[active.waves]
            words, states = batch.memory.load_scalar(address + place, access.size, segments, report)
            for index in range(access.dwords):
                known = np.where(states[:, index], WHOLE, np.uint32(0))
                active.set_scalar(target.number + index, words[:, index], known)
            return
        for index in range(access.dwords):
            inside = np.flatnonzero(count >= np.uint64(4 * index + 4))
            data, ready = np.zeros(active.count, np.uint32), np.ones(active.count, np.bool_)
            if len(inside):
                where = (address + place)[inside] + np.uint64(4 * index)
                segments = batch.segments[active.waves[inside]]
                words, states = batch.memory.load_scalar(where, 4, segments, report)
                data[inside], ready[inside] = words[:, 0], states[:, 0]
            active.set_scalar(target.number + index, data, np.where(ready, WHOLE, np.uint32(0)))

    def _offset(active: Active) -> tuple[Array, Array]:
        if offset.kind == "offset":
            number = np.uint64(offset.number & 0xFFFFFFFFFFFFFFFF)
            return np.full(active.count, number), np.full(active.count, WHOLE)
        values, known = active.scalar(offset.number)
        return values.astype(np.uint64), known

    return run


def _observe(active: Active, addresses: Array, size: int) -> None:
    if active.batch.observer is not None:
        lanes = np.arange(64) == np.zeros((active.count, 1))
        active.observe(lanes, np.where(lanes, addresses[:, None], np.uint64(0)), size)
