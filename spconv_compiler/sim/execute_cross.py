"""Executes vector instructions that write other lanes or EXEC: v_writelane, swaps, v_cmpx."""

from __future__ import annotations

import numpy as np

from spconv_compiler.sim import execute_scalar
from spconv_compiler.sim.execute_vector import Registers, Run, reader
from spconv_compiler.sim.instruction import EXEC, Instruction
from spconv_compiler.sim.machine import ALL, LANES, WHOLE, Active, pack, unpack

# (lanes of the first register, lanes of the second one) that change places.
_ODD_ROWS, _EVEN_ROWS = (np.flatnonzero(np.arange(LANES) // 16 % 2 == odd) for odd in (1, 0))
_PLACES = {
    "v_swap_b32": (np.arange(LANES), np.arange(LANES)),
    "v_permlane16_swap_b32": (_ODD_ROWS, _EVEN_ROWS),
    "v_permlane32_swap_b32": (np.arange(32, 64), np.arange(32)),
}


def write_lane(instruction: Instruction, register: Registers) -> Run:
    """v_writelane: one lane gets a scalar, whatever EXEC is."""
    target, source, chosen = instruction.operands
    first = register(target)

    def run(active: Active) -> None:
        value, known = execute_scalar.read(source, "u32", active)
        number, bits = execute_scalar.read(chosen, "u32", active)
        if (bits != WHOLE).any():
            active.fail(bits != WHOLE, "the number of the lane is undefined")
        mask = np.uint64(1) << (number & np.uint32(63)).astype(np.uint64)
        active.set_lanes(first, value[:, None], execute_scalar.as_lanes(known), mask)

    return run


def swap(instruction: Instruction, register: Registers) -> Run:
    """Two registers exchange lanes. What the row swaps do with lanes that are off is not documented: an error."""
    name = instruction.row.name
    registers = [register(operand) for operand in instruction.operands]
    places = _PLACES[name]

    def run(active: Active) -> None:
        if name != "v_swap_b32" and not active.full:
            active.fail(active.exec != ALL, "lanes are off")
        old = [tuple(part.copy() for part in active.vector(number)) for number in registers]
        for side, number in enumerate(registers):
            values, flags, other = old[side][0].copy(), unpack(old[side][1]), unpack(old[1 - side][1])
            values[:, places[side]] = old[1 - side][0][:, places[1 - side]]
            flags[:, places[side]] = other[:, places[1 - side]]
            active.set_vector(number, values, pack(flags))

    return run


def compare_exec(instruction: Instruction, register: Registers) -> Run:
    """v_cmpx: the lane mask is also the new EXEC."""
    target, *operands = instruction.operands
    row, meaning = instruction.row, instruction.row.meaning
    readers = [reader(operand, type_, register) for operand, type_ in zip(operands, row.sources, strict=True)]
    assert meaning is not None

    def run(active: Active) -> None:
        pairs = [read(active) for read in readers]
        known = np.full(active.count, ALL)
        for _, bits in pairs:
            known = known & bits
        active.require_lanes(known, "a source")
        with np.errstate(invalid="ignore"):
            found = meaning(*[values for values, _ in pairs])
        mask = pack(np.broadcast_to(found, (active.count, LANES)) & active.lanes)
        active.set_scalar_pair(target.number, mask, np.full(active.count, ALL))
        active.set_scalar_pair(EXEC, mask, np.full(active.count, ALL))

    return run
