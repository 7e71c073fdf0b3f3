"""Executes the memory instructions of isa_transfer.py: partial registers, returning and wide atomics, LDS transfers.

A load that goes straight to LDS writes the bytes at issue, but as bytes that nobody wrote: the wait that covers it
(transfers.py) makes them readable. So an early read is found as one of what nobody wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spconv_compiler.sim.algebra import Array
from spconv_compiler.sim.execute_memory import KINDS, Lanes, buffer_address, global_address
from spconv_compiler.sim.execute_order import land
from spconv_compiler.sim.execute_vector import Registers, Run, reader
from spconv_compiler.sim.instruction import M0, Instruction, Operand
from spconv_compiler.sim.lane_moves import swizzle_sources, transposed_sources
from spconv_compiler.sim.machine import ALL, WHOLE, Active, pack, unpack
from spconv_compiler.sim.rows import Access
from spconv_compiler.sim.transfers import CAPACITY, Who

_NONE = Operand("off", 0)
Address = Callable[[Active], "tuple[Array, Array | None]"]


def is_plain(instruction: Instruction) -> bool:
    """Whether execute_memory.py carries the instruction."""
    access = instruction.row.access
    assert access is not None
    returns = access.returns or access.kind == "atomic" and "sc0" in instruction.modifiers
    special = access.signed or access.half or access.lds or access.pair or access.tile or returns
    wide = access.size != 4 or not isinstance(access.update, np.ufunc) or instruction.row.kind == "lds"
    atomic = access.kind == "atomic" and wide
    return not special and not atomic and instruction.row.kind in ("buffer", "global", "lds")


def vector_memory(instruction: Instruction, register: Registers) -> Run:
    """Buffer, global and flat instructions of any form."""
    access = instruction.row.access
    assert access is not None
    if access.lds:
        return _to_local(instruction, register)
    address = _address(instruction, register)
    data, result = _registers(instruction, access, register)
    device = "sc1" in instruction.modifiers

    def run(active: Active) -> None:
        places, outside = address(active)
        chosen = active.lanes & ~outside if outside is not None else active.lanes
        active.observe(chosen, places, access.size)
        lanes = Lanes(active, chosen)
        segments, where = active.batch.segments[lanes.waves], places[lanes.rows, lanes.lanes]
        memory = active.batch.memory
        if result is not None and outside is not None and (active.lanes & outside).any():
            gone = active.lanes & outside
            _deliver(Lanes(active, gone), result, np.zeros((int(gone.sum()), access.dwords), np.uint32), gone, access)
        if not len(where):
            return
        if access.kind == "load":
            assert result is not None
            found = memory.load(where, access.size, segments, lanes.report, atomic=device)
            _deliver(lanes, result, found, chosen, access)
        elif access.kind == "store":
            values, known = lanes.data(data, access.dwords)
            memory.store(where, access.size, _outgoing(values, access), known, segments, lanes.report, atomic=device)
        else:
            function, values = _atomic(lanes, access, data, swapped=False)
            kind = KINDS[access.data]
            old = memory.update(where, function, kind, values, segments, lanes.report, returning=result is not None)
            if result is not None:
                lanes.write(result, old.reshape(len(where), -1), chosen)

    return run


def _registers(instruction: Instruction, access: Access, register: Registers) -> tuple[int, int | None]:
    """(first register of the data, first register of the result or None)."""
    operands = instruction.operands
    if access.kind == "load":
        first = register(operands[0])
        return first, first
    returns = access.kind == "atomic" and "sc0" in instruction.modifiers
    if instruction.row.kind == "buffer":
        first = register(operands[0])
        return first, first if returns else None
    if returns:
        return register(operands[2]), register(operands[0])
    return register(operands[1]), None


def _address(instruction: Instruction, register: Registers) -> Address:
    """The addresses; operands are put where the functions of execute_memory.py expect them."""
    row, operands = instruction.row, instruction.operands
    access = row.access
    assert access is not None
    if row.kind == "buffer":
        given = (_NONE, *operands) if access.lds else operands
        return buffer_address(_with(instruction, given), register)
    if access.kind == "atomic" and "sc0" in instruction.modifiers:
        operands = operands[1:]
    if row.kind == "flat":
        operands = (*operands, _NONE)
    if access.lds:
        operands = (_NONE, *operands)
    return global_address(_with(instruction, operands), register)


def _with(instruction: Instruction, operands: tuple[Operand, ...]) -> Instruction:
    return Instruction(
        instruction.address, instruction.size, instruction.row, instruction.format, operands, instruction.modifiers
    )


def _deliver(lanes: Lanes, register: int, data: Array, chosen: Array, access: Access) -> None:
    """Loaded data into registers: extended with the sign, or into one half."""
    if access.signed:
        shift = np.uint32(32 - 8 * access.size)
        data = ((data << shift).view(np.int32) >> np.int32(shift)).view(np.uint32)
    if not access.half:
        lanes.write(register, data, chosen)
        return
    old, known = lanes.data(register, 1)
    if access.half == "lo":
        merged = old & np.uint32(0xFFFF0000) | data & np.uint32(0xFFFF)
    else:
        merged = old & np.uint32(0xFFFF) | data << np.uint32(16)
    lanes.write(register, merged, chosen)
    if access.half == "hi" and not known.all():
        # The lower half stays what it was, undefined: the word must not pass for a defined one.
        lost = np.zeros_like(chosen)
        lost[lanes.rows, lanes.lanes] = ~known[:, 0]
        lanes.active.batch.vector_defined[register][lanes.active.at] &= ~pack(lost)


def _outgoing(values: Array, access: Access) -> Array:
    return values >> np.uint32(16) if access.half == "hi" else values


def _atomic(
    lanes: Lanes | _Joined, access: Access, data: int, *, swapped: bool
) -> tuple[Callable[[Any, Any], Any], Array]:
    """(function of old value and data, data) of an atomic; a compare and swap picks its two values by lane.

    `swapped`: the value to compare with stands first, as in LDS.
    """
    count = access.dwords * (2 if access.pair else 1)
    values, known = lanes.data(data, count)
    if not known.all():
        raise lanes.report(int((~known.all(axis=1)).argmax()), "the data of an atomic is undefined")
    if not access.pair:
        assert access.update is not None
        return access.update, values
    kind = np.dtype(KINDS[access.data])
    first, second = (np.ascontiguousarray(part).view(kind)[:, 0] for part in np.split(values, 2, axis=1))
    wanted, new = (first, second) if swapped else (second, first)
    numbers = np.arange(len(values), dtype=kind)

    def compare(old: Array, number: Array) -> Array:
        index = number.astype(np.int64)
        return np.where(old == wanted[index], new[index], old)

    return compare, numbers.view(np.uint32).reshape(len(values), -1)


def _to_local(instruction: Instruction, register: Registers) -> Run:
    """Loads to LDS: lane l writes at the base in M0, plus the instruction's offset, plus l times the size."""
    access = instruction.row.access
    assert access is not None
    address, offset = _address(instruction, register), instruction.modifiers.get("offset", 0)
    # Less than a dword takes a dword of LDS.
    step = max(4, access.size)

    def run(active: Active) -> None:
        batch = active.batch
        base, known = active.scalar(M0)
        if (known != WHOLE).any():
            active.fail(known != WHOLE, "m0 is undefined")
        places, outside = address(active)
        active.observe(active.lanes if outside is None else active.lanes & ~outside, places, access.size)
        lanes = Lanes(active, active.lanes)
        where = places[lanes.rows, lanes.lanes]
        beyond = np.zeros(len(where), np.bool_) if outside is None else outside[lanes.rows, lanes.lanes]
        data = np.zeros((len(where), step // 4), np.uint32)
        inside = np.flatnonzero(~beyond)
        if len(inside):
            segments = batch.segments[lanes.waves[inside]]
            found = batch.memory.load(
                where[inside],
                access.size,
                segments,
                lambda i, text: lanes.report(int(inside[i]), text),
                atomic="sc1" in instruction.modifiers,
            )
            if access.signed:
                shift = np.uint32(32 - 8 * access.size)
                found = ((found << shift).view(np.int32) >> np.int32(shift)).view(np.uint32)
            data[inside] = found
        start = base[lanes.rows].astype(np.int64) + offset
        target = (start + lanes.lanes * step).astype(np.uint64)
        if len(target):
            waves = lanes.waves
            who = Who(waves, batch.slots[waves], batch.waves[waves], batch.epochs[waves], lanes.lanes)
            batch.transfers.start(batch.local, who, target, data, lanes.report)
            land(active, CAPACITY)

    return run


def local_memory(instruction: Instruction, register: Registers) -> Run:
    """LDS instructions: partial registers, atomics, transposed reads."""
    access = instruction.row.access
    assert access is not None
    operands, offset = list(instruction.operands), np.uint64(instruction.modifiers.get("offset", 0))
    result = register(operands.pop(0)) if access.kind == "load" or access.returns else None
    where, *data = (register(operand) for operand in operands)
    if access.pair and data[1] != data[0] + access.dwords:
        gather: list[int] = data
    else:
        gather = data[:1]

    def run(active: Active) -> None:
        values, known = active.vector(where)
        active.require_lanes(known, "the address")
        if access.tile and not active.full:
            active.fail(active.exec != ALL, "lanes are off in a transposed read")
        lanes = Lanes(active, active.lanes)
        if not len(lanes.rows):
            return
        batch = active.batch
        active.observe(active.lanes, values + np.uint32(offset), access.size)
        who = (batch.slots[lanes.waves], batch.waves[lanes.waves], batch.epochs[lanes.waves])
        places = values[lanes.rows, lanes.lanes].astype(np.uint64) + offset
        if access.kind == "load":
            found = batch.local.load(places, access.size, *who, lanes.report)
            assert result is not None
            if access.tile:
                found = _transpose(found, access.tile)
            _deliver(lanes, result, found, active.lanes, access)
        elif access.kind == "store":
            words, ready = lanes.data(data[0], access.dwords)
            batch.local.store(places, access.size, _outgoing(words, access), ready, *who, lanes.report)
        else:
            function, given = _local_atomic(lanes, access, gather)
            old = batch.local.update(places, function, KINDS[access.data], given, *who, lanes.report)
            if result is not None:
                lanes.write(result, old, active.lanes)

    return run


def _local_atomic(lanes: Lanes, access: Access, registers: list[int]) -> tuple[Callable[[Any, Any], Any], Array]:
    if len(registers) == 1:
        return _atomic(lanes, access, registers[0], swapped=True)
    return _atomic(_Joined(lanes, registers, access.dwords), access, 0, swapped=True)


class _Joined:
    """Lanes whose data stands in two places: the two values of a compare and swap in LDS."""

    def __init__(self, lanes: Lanes, registers: list[int], dwords: int) -> None:
        self.report = lanes.report
        parts = [lanes.data(register, dwords) for register in registers]
        self._data = tuple(np.concatenate(pair, axis=1) for pair in zip(*parts, strict=True))

    def data(self, register: int, dwords: int) -> tuple[Array, Array]:
        """As Lanes.data; the place is known."""
        return self._data[0], self._data[1]


def _transpose(found: Array, bits: int) -> Array:
    """uint32 [64 n, dwords] in the order of lanes, each wave's elements in their new lanes."""
    lanes, elements = transposed_sources(bits)
    waves, dwords = len(found) // 64, found.shape[1]
    raw = np.unpackbits(np.ascontiguousarray(found).view(np.uint8), axis=1, bitorder="little")
    split = raw.reshape(waves, 64, dwords * 32 // bits, bits)
    moved = split[:, lanes, elements].reshape(waves * 64, dwords * 32)
    return np.packbits(moved, axis=1, bitorder="little").view(np.uint32)


def permute(instruction: Instruction, register: Registers) -> Run:
    """ds_permute_b32: every lane sends to the lane that it names. ds_swizzle_b32: a fixed pattern."""
    if instruction.row.name == "ds_swizzle_b32":
        return _swizzle(instruction, register)
    target, where, source = (register(operand) for operand in instruction.operands)
    offset = np.uint32(instruction.modifiers.get("offset", 0))

    def run(active: Active) -> None:
        places, known = active.vector(where)
        active.require_lanes(known, "the number of the lane")
        lane = ((places + offset) >> np.uint32(2) & np.uint32(63)).astype(np.int64)
        values, ready = active.vector(source)
        flags = unpack(ready)
        # Who gets nothing gets a defined 0; of several senders the highest lane wins.
        sent, fine = np.zeros_like(values), np.ones_like(flags)
        for sender in range(64):
            rows = np.flatnonzero(active.lanes[:, sender])
            sent[rows, lane[rows, sender]] = values[rows, sender]
            fine[rows, lane[rows, sender]] = flags[rows, sender]
        active.set_vector(target, sent, pack(fine))

    return run


def _swizzle(instruction: Instruction, register: Registers) -> Run:
    target, source = (register(operand) for operand in instruction.operands)
    lane = swizzle_sources(instruction.modifiers["swizzle"])

    def run(active: Active) -> None:
        values, ready = active.vector(source)
        on = active.lanes[:, lane]
        fetched = np.where(on, values[:, lane], np.uint32(0))
        # Lanes picked out of many waves lie in the other order, which cannot be packed.
        known = np.ascontiguousarray(unpack(ready)[:, lane] | ~on)
        active.set_vector(target, fetched, pack(known))

    return run


def scratch(instruction: Instruction, register: Registers) -> Run:
    """Scratch memory: every lane has its own bytes, from 0 up to the size in the kernel descriptor."""
    access = instruction.row.access
    assert access is not None
    loads = access.kind == "load"
    operands = list(instruction.operands)
    data = register(operands.pop(0 if loads else 1))
    lane_part, wave_part = operands
    offset = np.int64(instruction.modifiers.get("offset", 0))
    read_lane = None if lane_part.kind == "off" else reader(lane_part, "u32", register)
    read_wave = None if wave_part.kind == "off" else reader(wave_part, "u32", register)

    def run(active: Active) -> None:
        places = np.full((active.count, 64), offset, np.int64)
        for read in (read_lane, read_wave):
            if read is not None:
                values, known = read(active)
                active.require_lanes(np.broadcast_to(known, active.count), "the address")
                places = places + values.astype(np.int64)
        private = active.batch.private
        bad = active.lanes & ((places < 0) | (places + access.size > private.size))
        if bad.any():
            active.fail(bad, f"out of bounds: byte {places[bad][0]} of {private.size} bytes of scratch memory")
        misaligned = active.lanes & (places % min(access.size, 4) != 0)
        if misaligned.any():
            first = places[misaligned][0]
            active.fail(misaligned, f"misaligned: {access.size} bytes at byte {first} of scratch memory")
        lanes = Lanes(active, active.lanes)
        where = places[lanes.rows, lanes.lanes]
        if loads:
            found, ready = private.load(lanes.waves, lanes.lanes, where, access.size)
            if not ready.all():
                lane = int((~ready).argmax())
                raise lanes.report(lane, f"nobody wrote: {access.size} bytes at byte {where[lane]} of scratch memory")
            _deliver(lanes, data, found, active.lanes, access)
        else:
            values, known = lanes.data(data, access.dwords)
            private.store(lanes.waves, lanes.lanes, where, access.size, _outgoing(values, access), known)

    return run
