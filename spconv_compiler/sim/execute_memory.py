"""Executes vector memory instructions: buffer, global, LDS, and lane permutes through the LDS hardware."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spconv_compiler.sim.algebra import Array
from spconv_compiler.sim.execute_vector import Registers, Run, reader
from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.machine import Active, pack, unpack
from spconv_compiler.sim.memory import Report
from spconv_compiler.sim.rows import Access

# Word 3 of a raw buffer descriptor on gfx950: what the compiler writes, and the only one whose meaning is known here.
RAW_BUFFER = 0x27000
KINDS = {
    "u32": np.uint32,
    "i32": np.int32,
    "f32": np.float32,
    "u64": np.uint64,
    "i64": np.int64,
    "f64": np.float64,
}
_LOW48 = np.uint64(0xFFFFFFFFFFFF)


class Lanes:
    """The active lanes of the active waves in one row: index into registers, and who they are."""

    def __init__(self, active: Active, chosen: Array) -> None:
        self.active = active
        self.rows, self.lanes = np.nonzero(chosen)
        self.waves = active.waves[self.rows]

    def report(self, index: int, reason: str) -> Exception:
        return self.active.batch.fault(int(self.waves[index]), int(self.lanes[index]), reason)

    def data(self, register: int, dwords: int) -> tuple[Array, Array]:
        """(uint32 [lanes, dwords], defined bool alike) of registers."""
        batch = self.active.batch
        values = np.stack([batch.vector[register + i][self.waves, self.lanes] for i in range(dwords)], axis=1)
        shift = self.lanes.astype(np.uint64)
        bits = [batch.vector_defined[register + i][self.waves] >> shift & np.uint64(1) for i in range(dwords)]
        return values, np.stack(bits, axis=1) != 0

    def write(self, register: int, data: Array, chosen: Array) -> None:
        """Writes uint32 [lanes, dwords] to registers and marks the lanes defined."""
        batch, at = self.active.batch, self.active.at
        mask = pack(chosen)
        for index in range(data.shape[1]):
            batch.vector[register + index][self.waves, self.lanes] = data[:, index]
            batch.vector_defined[register + index][at] |= mask


def vector_memory(instruction: Instruction, register: Registers) -> Run:
    """Buffer and global loads, stores and atomics."""
    access = instruction.row.access
    assert access is not None
    loads, device = access.kind == "load", bool(instruction.modifiers.get("sc1"))
    if instruction.row.kind == "buffer":
        address, data = buffer_address(instruction, register), register(instruction.operands[0])
    else:
        address, data = global_address(instruction, register), register(instruction.operands[0 if loads else 1])

    def run(active: Active) -> None:
        places, outside = address(active)
        chosen = active.lanes & ~outside if outside is not None else active.lanes
        active.observe(chosen, places, access.size)
        lanes = Lanes(active, chosen)
        who = active.batch.segments[lanes.waves]
        memory, where = active.batch.memory, places[lanes.rows, lanes.lanes]
        if loads:
            if outside is not None and (active.lanes & outside).any():
                gone = active.lanes & outside
                zeros = Lanes(active, gone)
                zeros.write(data, np.zeros((len(zeros.rows), access.dwords), np.uint32), gone)
            if len(where):
                lanes.write(data, memory.load(where, access.size, who, lanes.report, atomic=device), chosen)
        elif len(where):
            values, known = lanes.data(data, access.dwords)
            if access.kind == "store":
                memory.store(where, access.size, values, known, who, lanes.report, atomic=device)
            else:
                _update(access, lanes, where, values, known, who)

    return run


def _update(access: Access, lanes: Lanes, where: Array, values: Array, known: Array, who: Array) -> None:
    if not known.all():
        raise lanes.report(int((~known).argmax()), "the data of an atomic is undefined")
    assert access.update is not None
    memory = lanes.active.batch.memory
    memory.update(where, access.update, KINDS[access.data], values, who, lanes.report, returning=False)


def buffer_address(instruction: Instruction, register: Registers) -> Callable[[Active], tuple[Array, Array | None]]:
    """A function to (addresses uint64 [n, lane], lanes beyond the end or None).

    The range is checked on the offset without the scalar offset, as the compiler assumes. A lane wholly beyond the
    end reads 0 and stores nothing; one that is partly beyond it is an error.
    """
    _, lane_offset, resource, scalar_offset = instruction.operands
    access = instruction.row.access
    assert access is not None
    size, fixed = access.size, np.uint64(instruction.modifiers.get("offset", 0))
    read_offset = None if lane_offset.kind == "off" else reader(lane_offset, "u32", register)
    read_scalar = reader(scalar_offset, "u32", register)

    def address(active: Active) -> tuple[Array, Array | None]:
        base, count = descriptor(active, resource.number)
        soffset, known = read_scalar(active)
        active.require_lanes(np.broadcast_to(known, active.count), "the scalar offset")
        offset = np.full((active.count, 64), fixed)
        if read_offset is not None:
            values, bits = read_offset(active)
            active.require_lanes(bits, "the offset")
            offset = values.astype(np.uint64) + fixed
        whole = offset >= count[:, None]
        partly = ~whole & (offset + np.uint64(size) > count[:, None])
        if (partly & active.lanes).any():
            active.fail(partly & active.lanes, "partly beyond the end of the buffer")
        places = base[:, None] + offset + soffset.astype(np.uint64)
        return places, whole if (whole & active.lanes).any() else None

    return address


def descriptor(active: Active, first: int) -> tuple[Array, Array]:
    """(base, bytes), uint64 [n], of a raw buffer descriptor in four scalar registers."""
    low, known = active.scalar_pair(first)
    high, high_known = active.scalar_pair(first + 2)
    undefined = (~known | ~high_known) != 0
    if undefined.any():
        active.fail(undefined, "the buffer descriptor is undefined")
    strange = (low >> np.uint64(48) != 0) | (high >> np.uint64(32) != RAW_BUFFER)
    if strange.any():
        active.fail(strange, f"the buffer descriptor is not a raw buffer of flags 0x{RAW_BUFFER:x} and stride 0")
    return low & _LOW48, high & np.uint64(0xFFFFFFFF)


def global_address(instruction: Instruction, register: Registers) -> Callable[[Active], tuple[Array, Array | None]]:
    """A function to (addresses uint64 [n, lane], None): of lanes, or a scalar base and offsets of lanes."""
    access, base = instruction.row.access, instruction.operands[-1]
    assert access is not None
    where = instruction.operands[1 if access.kind == "load" else 0]
    offset = np.uint64(instruction.modifiers.get("offset", 0) & 0xFFFFFFFFFFFFFFFF)
    read = reader(where, "u64" if where.dwords == 2 else "u32", register)
    read_base = None if base.kind == "off" else reader(base, "u64", register)

    def address(active: Active) -> tuple[Array, Array | None]:
        values, known = read(active)
        places = values.astype(np.uint64) + offset
        if read_base is not None:
            start, start_known = read_base(active)
            places, known = places + start, known & start_known
        active.require_lanes(known, "the address")
        return places, None

    return address


def local_memory(instruction: Instruction, register: Registers) -> Run:
    """LDS loads and stores, one or two places a lane."""
    access = instruction.row.access
    assert access is not None
    loads = access.kind == "load"
    where = register(instruction.operands[1 if loads else 0])
    if access.count == 2:
        offsets = [instruction.modifiers.get(f"offset{i}", 0) * access.size * access.stride for i in (0, 1)]
    else:
        offsets = [instruction.modifiers.get("offset", 0)]
    width = max(1, access.size // 4)
    if loads:
        registers = [register(instruction.operands[0]) + width * index for index in range(access.count)]
    else:
        registers = [register(operand) for operand in instruction.operands[1:]]

    def run(active: Active) -> None:
        values, known = active.vector(where)
        active.require_lanes(known, "the address")
        lanes = Lanes(active, active.lanes)
        if not len(lanes.rows):
            return
        batch = active.batch
        who = (batch.slots[lanes.waves], batch.waves[lanes.waves], batch.epochs[lanes.waves])
        starts = values[lanes.rows, lanes.lanes].astype(np.uint64)
        report: Report = lanes.report
        for first, offset in zip(registers, offsets, strict=True):
            places = starts + np.uint64(offset)
            active.observe(active.lanes, values + np.uint32(offset), access.size)
            if loads:
                lanes.write(first, batch.local.load(places, access.size, *who, report), active.lanes)
            else:
                data, ready = lanes.data(first, width)
                batch.local.store(places, access.size, data, ready, *who, report)

    return run


def permute(instruction: Instruction, register: Registers) -> Run:
    """ds_bpermute_b32: every lane fetches from the lane that it names; a lane that is off gives 0."""
    target, where, source = (register(operand) for operand in instruction.operands)
    offset = np.uint32(instruction.modifiers.get("offset", 0))

    def run(active: Active) -> None:
        places, known = active.vector(where)
        active.require_lanes(known, "the number of the lane")
        lane = ((places + offset) >> np.uint32(2) & np.uint32(63)).astype(np.int64)
        values, ready = active.vector(source)
        on = np.take_along_axis(active.lanes, lane, axis=1)
        fetched = np.where(on, np.take_along_axis(values, lane, axis=1), np.uint32(0))
        fine = pack(np.take_along_axis(unpack(ready), lane, axis=1) | ~on)
        active.set_vector(target, fetched, fine)

    return run
