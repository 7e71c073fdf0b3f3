"""What was wrong with a memory access that native code did not let pass, in the words of the numpy engine.

Native code only notices that something is wrong, before or while the access takes place. It leaves the addresses in
the context, and the numpy engine makes the same access on the same memory, which raises the fault.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.sim.execute_memory import KINDS
from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.local import LocalMemory
from spconv_compiler.sim.memory import Memory
from spconv_compiler.sim.native import layout
from spconv_compiler.sim.native.memory_block import ROOM, ROOM_MASK, ROOM_PART
from spconv_compiler.sim.transfers import Who, arrive, issue

_ANOTHER_THREAD = "race: another workgroup touched these words at the same time, in another thread"
_OF_SCRATCH: dict[int, str] = {
    layout.Code.PRIVATE_BOUNDS: "out of bounds",
    layout.Code.PRIVATE_MISALIGNED: "misaligned",
    layout.Code.PRIVATE_UNWRITTEN: "nobody wrote",
}
Bytes = npt.NDArray[np.uint8]


class _FoundError(Exception):
    """What a check reports: index among the lanes that access memory, and the reason."""


def _lanes_of(mask: int) -> npt.NDArray[np.int64]:
    return np.array([lane for lane in range(layout.LANES) if mask >> lane & 1], np.int64)


class _Context:
    """A wave at a memory instruction."""

    def __init__(self, context: Bytes) -> None:
        self._bytes = context
        self.lanes = _lanes_of(self.read(ROOM + ROOM_MASK, np.int64))
        self.places = context[ROOM:][: 8 * layout.LANES].view(np.uint64)[self.lanes]

    def read(self, offset: int, kind: Any = np.int32) -> int:
        return int(self._bytes[offset:][: np.dtype(kind).itemsize].view(kind)[0])

    def everyone(self, offset: int) -> npt.NDArray[np.int64]:
        """A number of the wave, for each lane."""
        return np.full(len(self.lanes), self.read(offset), np.int64)

    def data(self, first: int, count: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.bool_]]:
        """(words, defined), [lanes, count], of registers from the offset of the first."""
        words, known = [], []
        for offset in range(first, first + layout.VECTOR_BYTES * count, layout.VECTOR_BYTES):
            words.append(self._bytes[offset:][: layout.VECTOR_BYTES].view(np.uint32)[self.lanes])
            place = layout.VECTOR_DEFINED + (offset - layout.VECTORS) // 32
            mask = np.uint64(self.read(place, np.int64) & layout.ALL)
            known.append(mask >> self.lanes.astype(np.uint64) & np.uint64(1) != 0)
        return np.stack(words, axis=1), np.stack(known, axis=1)


def text_of(code: int, item: Instruction, context: Bytes, lane: int | None, scratch_bytes: int) -> str:
    """What a fault code means, of a lane if it names one; not of MEMORY, LANDING, BUDGET. scratch_bytes: of a lane."""
    if code == layout.Code.TRAP:
        return f"the kernel traps (s_trap {item.operands[0].number})"
    if code not in _OF_SCRATCH:
        return layout.FAULT_TEXT[code]
    assert item.row.access is not None and lane is not None
    # Places count from the start of the wave's scratch memory.
    byte = int(context[ROOM + 8 * lane :][:8].view(np.int64)[0]) - lane * scratch_bytes
    if code == layout.Code.PRIVATE_BOUNDS:
        return f"out of bounds: byte {byte} of {scratch_bytes} bytes of scratch memory"
    return f"{_OF_SCRATCH[code]}: {item.row.access.size} bytes at byte {byte} of scratch memory"


def explain_landing(context: Bytes) -> tuple[int, str]:
    """(lane, reason) of a wave whose fault code is layout.Code.LANDING: of its oldest load to LDS."""
    wave = _Context(context)
    number = wave.read(layout.FLIGHTS_LANDED) % layout.FLIGHT_COUNT
    entry = layout.FLIGHTS + layout.FLIGHT_BYTES * number
    lanes = _lanes_of(wave.read(entry + layout.FLIGHT_LANES, np.int64))
    step = wave.read(entry + layout.FLIGHT_STEP)
    places = (wave.read(entry + layout.FLIGHT_START) + lanes * step).astype(np.uint64)
    try:
        arrive(_local_memory(wave), _who(wave, lanes), places, step, _FoundError)
    except _FoundError as found:
        return int(lanes[found.args[0]]), f"a load to LDS lands: {found.args[1]}"
    raise AssertionError("the native engine refuses the landing of a load to LDS; the numpy engine does not")


def explain(memory: Memory, item: Instruction, context: Bytes, fields: npt.NDArray[np.int32]) -> tuple[int | None, str]:
    """(lane or None, reason) of a wave whose fault code is layout.Code.MEMORY.

    Args:
        item: the instruction. context: of the wave. fields: of the instruction's record.
    """
    wave = _Context(context)
    try:
        if item.row.kind in ("lds", "local"):
            _access_local(wave, item, fields)
        else:
            _access_memory(memory, wave, item, fields)
    except _FoundError as found:
        index, reason = found.args
        return (None if item.row.kind == "smem" else int(wave.lanes[index])), reason
    return None, _ANOTHER_THREAD


def _access_memory(memory: Memory, wave: _Context, item: Instruction, fields: npt.NDArray[np.int32]) -> None:
    access = item.row.access
    assert access is not None
    segments, device = wave.everyone(layout.SEGMENT), bool(item.modifiers.get("sc1"))
    if access.lds:
        _access_direct(memory, wave, item)
    elif item.row.kind == "smem":
        # Through a descriptor word by word.
        size = 4 if item.operands[1].dwords == 4 else access.size
        memory.load_scalar(wave.places, size, segments, _FoundError)
    elif access.kind == "load":
        memory.load(wave.places, access.size, segments, _FoundError, atomic=device)
    else:
        words, known = wave.data(int(fields[0]), access.dwords * (2 if access.pair else 1))
        if access.kind == "atomic":
            _require_defined(known)
        if access.kind == "store":
            memory.store(wave.places, access.size, words, known, segments, _FoundError, atomic=device)
        else:
            memory.update(wave.places, _same, KINDS[access.data], words[:, : access.dwords], segments, _FoundError)


def _access_direct(memory: Memory, wave: _Context, item: Instruction) -> None:
    """A load to LDS: lanes beyond the end of a buffer read nothing, and write."""
    access = item.row.access
    assert access is not None
    if len(wave.lanes):
        atomic = bool(item.modifiers.get("sc1"))
        memory.load(wave.places, access.size, wave.everyone(layout.SEGMENT), _FoundError, atomic=atomic)
    wave.lanes = _lanes_of(wave.read(layout.EXEC, np.int64))
    step = max(4, access.size)
    start = (wave.read(layout.M0) & 0xFFFFFFFF) + item.modifiers.get("offset", 0)
    places = (start + wave.lanes * step).astype(np.uint64)
    data = np.zeros((len(places), step // 4), np.uint32)
    issue(_local_memory(wave), _who(wave, wave.lanes), places, data, _FoundError)


def _same(old: Any, data: Any) -> Any:
    """In place of an atomic's operation: only the checks count."""
    return old


def _require_defined(known: npt.NDArray[np.bool_]) -> None:
    if not known.all():
        raise _FoundError(int(np.argwhere(~known)[0][0]), layout.FAULT_TEXT[layout.Code.ATOMIC_UNDEFINED])


def _local_memory(wave: _Context) -> LocalMemory:
    """The memory itself, not a copy."""
    size = wave.read(layout.LDS_BYTES)
    count = -(-size // 4)
    words, cells = (
        np.ctypeslib.as_array(ctypes.cast(wave.read(place, np.int64), ctypes.POINTER(ctypes.c_uint32)), (1, count))
        for place in (layout.LDS, layout.LDS_CELLS)
    )
    return LocalMemory(1, size, words, cells)


def _who(wave: _Context, lanes: npt.NDArray[np.int64]) -> Who:
    """Lanes of the wave."""
    nothing = np.zeros(len(lanes), np.int64)
    return Who(nothing, nothing, nothing + wave.read(layout.WAVE), nothing + wave.read(layout.EPOCH), lanes)


def _access_local(wave: _Context, item: Instruction, fields: npt.NDArray[np.int32]) -> None:
    access = item.row.access
    assert access is not None
    local = _local_memory(wave)
    who = (np.zeros(len(wave.lanes), np.int64), wave.everyone(layout.WAVE), wave.everyone(layout.EPOCH))
    if access.kind == "load":
        local.load(wave.places, access.size, *who, _FoundError)
        return
    # Field 0 is the address, then come the registers of both places.
    given, known = wave.data(int(fields[1 + wave.read(ROOM + ROOM_PART, np.int64)]), max(1, access.size // 4))
    if access.kind == "store":
        local.store(wave.places, access.size, given, known, *who, _FoundError)
    else:
        others = wave.data(int(fields[2]), max(1, access.size // 4))[1] if access.pair else known
        _require_defined(known & others)
        local.update(wave.places, _same, KINDS[access.data], given, *who, _FoundError)
