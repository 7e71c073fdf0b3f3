"""Executes vector arithmetic, lane reads and MFMA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spconv_compiler.sim import algebra as al
from spconv_compiler.sim import matrix
from spconv_compiler.sim.algebra import Array
from spconv_compiler.sim.execute_scalar import as_lanes
from spconv_compiler.sim.instruction import Instruction, Operand
from spconv_compiler.sim.lane_moves import lane_sources, written_lanes
from spconv_compiler.sim.machine import ALL, LANES, WHOLE, Active, pack, unpack
from spconv_compiler.sim.rows import DWORDS, LaneMove

Run = Callable[[Active], None]
Registers = Callable[[Operand], int]
_VIEWS = {"i32": np.int32, "i64": np.int64, "f32": np.float32, "f64": np.float64}


def reader(operand: Operand, type_: str, register: Registers) -> Callable[[Active], tuple[Array, Array]]:
    """A function to (values that broadcast to [n, lane], defined lanes uint64 [n] or one for all)."""
    wide = DWORDS.get(type_, 1) == 2
    view = _VIEWS.get(type_)
    if type_ == "mask":
        return lambda active: _lane_mask(active, operand.number)
    if operand.kind in "va":
        first = register(operand)

        def from_vector(active: Active) -> tuple[Array, Array]:
            values, known = active.vector(first)
            if wide:
                upper, upper_known = active.vector(first + 1)
                values, known = al.join(values, upper), known & upper_known
            return (values.view(view) if view else values), known

        return from_vector
    if operand.kind == "s":

        def from_scalar(active: Active) -> tuple[Array, Array]:
            values, known = active.scalar_pair(operand.number) if wide else active.scalar(operand.number)
            return (values.view(view) if view else values)[:, None], as_lanes(known)

        return from_scalar
    number = operand.bits64() if wide else operand.constant()
    raw = np.full((1, 1), number, np.uint64 if wide else np.uint32)
    constant = raw.view(view) if view else raw
    return lambda active: (constant, ALL)


def _lane_mask(active: Active, number: int) -> tuple[Array, Array]:
    bits, known = active.scalar_pair(number)
    return unpack(bits), known


def arithmetic(instruction: Instruction, register: Registers) -> Run:
    """Any row of kind "valu": all sources are read before anything is written."""
    row, operands = instruction.row, instruction.operands
    if row.lanes is not None:
        return _moved(instruction, row.lanes, register)
    count = len(row.results)
    given = [operands[0], *operands[count:]] if row.tied else operands[count:]
    readers = [reader(operand, t, register) for operand, t in zip(given, row.sources, strict=True)]
    meaning = row.meaning
    assert meaning is not None
    writers = [_writer(operand, t, register) for operand, t in zip(operands[:count], row.results, strict=True)]
    lower = [_lower(operand, register) for operand in operands[count:]] if row.upward else []

    def run(active: Active) -> None:
        pairs = [read(active) for read in readers]
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            found = meaning(*[values for values, _ in pairs])
        relevant = [bits for _, bits in pairs[1 if row.keeps and row.tied else 0 :]]
        known = np.broadcast_to(_all_known(relevant), active.count)
        low_known = known
        if row.upward and (known != ALL).any():
            low_known = np.broadcast_to(_all_known([read(active) for read in lower]), active.count)
        for write, values in zip(writers, found if count > 1 else (found,), strict=True):
            write(active, values, known, low_known)

    return run


def _moved(instruction: Instruction, move: LaneMove, register: Registers) -> Run:
    """DPP: the first encoded source comes from other lanes, and only some lanes are written."""
    row, operands = instruction.row, instruction.operands
    given = [operands[0], *operands[1:]] if row.tied else list(operands[1:])
    readers = [reader(operand, t, register) for operand, t in zip(given, row.sources, strict=True)]
    meaning, target, place = row.meaning, register(operands[0]), int(row.tied)
    assert meaning is not None
    source, exists = lane_sources(move.control)
    on = written_lanes(move)

    def run(active: Active) -> None:
        pairs = [read(active) for read in readers]
        values, known = pairs[place]
        there = exists & active.lanes[:, source]
        # What is read from no lane is a defined 0.
        moved = np.where(there, np.broadcast_to(values, active.lanes.shape)[:, source], values.dtype.type(0))
        ready = unpack(np.broadcast_to(known, active.count))[:, source] | ~there
        pairs[place] = moved, pack(ready)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            found = meaning(*[values for values, _ in pairs])
        known = np.broadcast_to(_all_known([bits for _, bits in pairs]), active.count)
        chosen = active.lanes & on & (there | move.zero)
        active.set_lanes(target, found.view(np.uint32), known, pack(chosen))

    return run


def _lower(operand: Operand, register: Registers) -> Callable[[Active], Array]:
    """A function to the lanes in which the lower 32 bits of a source are defined."""
    if operand.kind in "va":
        first = register(operand)
        return lambda active: active.vector(first)[1]
    if operand.kind == "s":
        return lambda active: as_lanes(active.scalar(operand.number)[1])
    return lambda active: ALL


def _all_known(parts: list[Any]) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = total & part
    return total


def _writer(operand: Operand, type_: str, register: Registers) -> Callable[[Active, Array, Array, Array], None]:
    """A function of (active, values, defined lanes, defined lanes of the lower half)."""
    if type_ == "mask":
        return lambda active, values, known, _: write_mask(active, operand.number, values, known)
    first = register(operand)
    if DWORDS[type_] == 2:

        def wide(active: Active, values: Array, known: Array, low_known: Array) -> None:
            bits = al.bits_of(values)
            active.set_vector(first, al.low(bits), low_known)
            active.set_vector(first + 1, al.high(bits), known)

        return wide
    return lambda active, values, known, _: active.set_vector(first, values.view(np.uint32), known)


def write_mask(active: Active, number: int, values: Array, known: Array) -> None:
    """A lane mask of bool [n, lane]: inactive lanes are 0, and defined."""
    bits = pack(np.broadcast_to(values, (active.count, LANES)) & active.lanes)
    active.set_scalar_pair(number, bits, known | ~active.exec)


def lane_read(instruction: Instruction, register: Registers) -> Run:
    """v_readfirstlane, v_readlane and v_mbcnt."""
    name = instruction.row.name
    if name.startswith("v_mbcnt"):
        return _count_below(instruction, register)
    target, source = instruction.operands[0], register(instruction.operands[1])
    chosen = instruction.operands[2] if name == "v_readlane_b32" else None

    def run(active: Active) -> None:
        values, known = active.vector(source)
        if chosen is None:
            # Without an active lane, lane 0 is read.
            lane = active.lanes.argmax(axis=1)
        elif chosen.kind == "s":
            number, bits = active.scalar(chosen.number)
            if (bits != WHOLE).any():
                active.fail(bits != WHOLE, "the number of the lane is undefined")
            lane = (number & np.uint32(63)).astype(np.int64)
        else:
            lane = np.full(active.count, chosen.constant() & 63)
        ready = known >> lane.astype(np.uint64) & np.uint64(1) != 0
        active.set_scalar(target.number, values[np.arange(active.count), lane], np.where(ready, WHOLE, np.uint32(0)))

    return run


def _count_below(instruction: Instruction, register: Registers) -> Run:
    """v_mbcnt_lo, _hi: set bits of one half of a mask below this lane, added to the second source."""
    target, *sources = instruction.operands
    first, second = (reader(operand, "u32", register) for operand in sources)
    lanes = np.arange(LANES) - (32 if "_hi_" in instruction.row.name else 0)
    below = al.mask_bits(np.clip(lanes, 0, 32))[None, :]

    def run(active: Active) -> None:
        (mask, mask_known), (base, base_known) = first(active), second(active)
        counted = al.popcount(np.broadcast_to(mask & below, (active.count, LANES)))
        known = np.broadcast_to(mask_known & base_known, active.count)
        active.set_vector(register(target), counted + base, known)

    return run


def multiply(instruction: Instruction, register: Registers) -> Run:
    """MFMA: EXEC is ignored."""
    shape = instruction.row.matrix
    assert shape is not None
    target, *sources, addend = instruction.operands[:4]
    scales = [reader(operand, "u32", register) for operand in instruction.operands[4:]]
    shifts = [np.uint32(8 * instruction.modifiers.get(name, 0)) for name in ("scale_a", "scale_b")]
    first = register(target)
    blocks = [slice(register(operand), register(operand) + operand.dwords) for operand in sources]

    def run(active: Active) -> None:
        batch = active.batch
        a, b = (batch.vector[block][:, active.at] for block in blocks)
        a_known, b_known = (batch.vector_defined[block][:, active.at] for block in blocks)
        if addend.kind == "inline":
            c = np.full((target.dwords, active.count, LANES), addend.constant(), np.uint32)
            c_known = np.full((target.dwords, active.count), ALL)
        else:
            block = slice(register(addend), register(addend) + addend.dwords)
            c, c_known = batch.vector[block][:, active.at], batch.vector_defined[block][:, active.at]
        used = None
        if scales:
            found = [read(active) for read in scales]
            wide = [np.broadcast_to(values, (active.count, LANES)) for values, _ in found]
            used = (wide[0] >> shifts[0] & np.uint32(0xFF), wide[1] >> shifts[1] & np.uint32(0xFF))
            a_known, b_known = a_known & found[0][1], b_known & found[1][1]
        result = matrix.multiply(shape, a, b, c, used)
        known = matrix.defined(shape, a_known, b_known, c_known)
        for index in range(target.dwords):
            active.set_vector(first + index, result[index], known[index], ignore_exec=True)

    return run
