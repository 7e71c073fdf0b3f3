"""Handlers of scratch memory: every lane has bytes of its own, from 0 up to the size in the kernel descriptor.

The bytes of lane l start at l times that size; behind those of all lanes, and only with checks, lies a byte for each
that is 1 where something was written. What fills registers runs lane by lane: spills are rare.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.native import direct, layout
from spconv_compiler.sim.native.emit import CHUNK, POINTER, Handler, Module, Value, vector_type
from spconv_compiler.sim.native.family import Family, Places
from spconv_compiler.sim.native.layout import Code
from spconv_compiler.sim.native.memory_block import ROOM
from spconv_compiler.sim.rows import Access, Row

_DATA, _LANE, _WAVE, _OFFSET = range(4)
_WIDE = vector_type("i64")
_WRITTEN = 0x01010101


def emit(module: Module, row: Row, shape: str, name: str) -> None:
    """The handler of scratch_load and scratch_store.

    shape: "V" where a register of the lanes is part of the address, then "S" where a scalar register is; else "N".
    """
    access = row.access
    assert access is not None
    h = Handler(module, name)
    direct.count_issue(h)
    _find(h, access.size, shape)
    if access.kind == "load":
        _emit_load(h, access)
    else:
        _emit_store(h, access)
    h.done()


def _find(h: Handler, size: int, shape: str) -> None:
    """Writes the places of active lanes, from the start of the wave's scratch memory, to ROOM."""
    lanes, start, total = h.exec(), h.field(_OFFSET), h.launch(layout.PRIVATE_BYTES)
    if shape[0] == "V":
        h.check_lanes(h.binary("and", lanes, h.invert(h.vector_defined(h.field(_LANE)))), Code.ADDRESS_UNDEFINED)
    if shape[1] == "S":
        known = h.as_lanes(h.scalar_defined(h.field(_WAVE)))
        h.check_lanes(h.binary("and", lanes, h.invert(known)), Code.ADDRESS_UNDEFINED)
        start = h.binary("add", start, h.convert("zext", h.scalar(h.field(_WAVE)), "i64"))
    zero, limit = h.constant(0, "i64"), h.broadcast(h.binary("sub", total, h.constant(size, "i64")))
    numbers = h.dense(range(CHUNK), "i64")
    with h.loop(layout.VECTOR_BYTES, 4 * CHUNK, [zero, zero]) as state:
        places = h.broadcast(start)
        if shape[0] == "V":
            places = h.binary("add", places, h.convert("zext", h.vector(h.field(_LANE), state.index), _WIDE))
        bad = h.binary("or", h.compare("slt", places, h.constant(0, _WIDE)), h.compare("sgt", places, limit))
        rest = h.binary("and", places, h.constant(min(size, 4) - 1, _WIDE))
        odd = h.compare("ne", rest, h.constant(0, _WIDE))
        first = h.binary("lshr", state.index, h.constant(2, "i64"))
        lane = h.binary("add", h.broadcast(first), numbers)
        places = h.binary("add", places, h.binary("mul", lane, h.broadcast(total)))
        h.store(places, h.address(h.context, h.binary("shl", state.index, h.constant(1, "i64")), ROOM), 64)
        state.nexts = [
            h.binary("or", before, h.chunk_bits(found, state.index))
            for before, found in zip(state.values, (bad, odd), strict=True)
        ]
    beyond, misaligned = state.results
    h.fault_lanes(h.binary("and", lanes, beyond), Code.PRIVATE_BOUNDS)
    h.check_lanes(h.binary("and", lanes, misaligned), Code.PRIVATE_MISALIGNED)


@contextlib.contextmanager
def _active(h: Handler) -> Iterator[tuple[Value, Value]]:
    """What is written inside runs for every active lane: (number, pointer to its bytes)."""
    private = h.state(layout.PRIVATE, POINTER)
    with h.loop(layout.LANES) as lane:
        on = h.convert("trunc", h.binary("lshr", h.exec(), lane.index), "i1")
        with h.when(on):
            place = h.address(h.context, h.binary("shl", lane.index, h.constant(3, "i64")), ROOM)
            yield lane.index, h.address(private, h.load(place, "i64"))


def _parts(size: int) -> list[tuple[int, str]]:
    """(first byte, type) of what is moved at once."""
    return [(0, f"i{8 * size}")] if size < 4 else [(byte, "i32") for byte in range(0, size, 4)]


def _written(h: Handler) -> Value:
    """Bytes from those of a lane to those that say which were written."""
    return h.binary("shl", h.launch(layout.PRIVATE_BYTES), h.constant(6, "i64"))


def _register(h: Handler, number: int, lane: Value) -> Value:
    """Pointer to the word of a lane in a register of the data."""
    word = h.binary("shl", lane, h.constant(2, "i64"))
    return h.address(h.context, h.field(_DATA), word, number * layout.VECTOR_BYTES)


def _emit_load(h: Handler, access: Access) -> None:
    if h.build.checks:
        _require_written(h, access.size)
    with _active(h) as (lane, pointer):
        for number, (byte, type_) in enumerate(_parts(access.size)):
            value, target = h.load(h.address(pointer, byte), type_, 1), _register(h, number, lane)
            if type_ != "i32":
                value = h.convert("sext" if access.signed else "zext", value, "i32")
            if access.half:
                low, old = h.constant(0xFFFF, "i32"), h.load(target, "i32")
                upper = access.half == "hi"
                new = h.binary("shl", value, h.constant(16, "i32")) if upper else h.binary("and", value, low)
                value = h.binary("or", h.binary("and", old, low if upper else h.invert(low)), new)
            h.store(value, target)
    for number in range(access.dwords):
        place = h.binary("add", h.field(_DATA), h.constant(number * layout.VECTOR_BYTES, "i64"))
        # The lower half of a word stays as it was.
        known = h.vector_defined(place) if access.half == "hi" else h.constant(-1, "i64")
        h.set_vector_defined(place, known)


def _require_written(h: Handler, size: int) -> None:
    """A fault where active lanes read bytes that they did not write."""
    behind, missing = _written(h), h.constant(0, "i64")
    found = h.op(f"llvm.alloca {h.constant(1, 'i32')} x i64 : (i32) -> {POINTER}", POINTER)
    h.store(missing, found)
    with _active(h) as (lane, pointer):
        for byte, type_ in _parts(size):
            marks = h.load(h.address(pointer, behind, byte), type_, 1)
            lost = h.compare("ne", marks, h.constant(_WRITTEN, type_))
            bit = h.binary("shl", h.convert("zext", lost, "i64"), lane)
            h.store(h.binary("or", h.load(found, "i64"), bit), found)
    h.check_lanes(h.load(found, "i64"), Code.PRIVATE_UNWRITTEN)


def _emit_store(h: Handler, access: Access) -> None:
    behind = _written(h)
    places = [
        h.binary("add", h.field(_DATA), h.constant(number * layout.VECTOR_BYTES, "i64"))
        for number in range(access.dwords)
    ]
    known = [h.vector_defined(place) for place in places]
    with _active(h) as (lane, pointer):
        for number, (byte, type_) in enumerate(_parts(access.size)):
            value = h.load(_register(h, number, lane), "i32")
            if access.half == "hi":
                value = h.binary("lshr", value, h.constant(16, "i32"))
            h.store(value if type_ == "i32" else h.convert("trunc", value, type_), h.address(pointer, byte), 1)
            if h.build.checks:
                bit = h.convert("trunc", h.binary("lshr", known[number], lane), "i1")
                marks = h.select(bit, h.constant(_WRITTEN, type_), h.constant(0, type_))
                h.store(marks, h.address(pointer, behind, byte), 1)


def _parts_of(instruction: Instruction) -> Sequence[int]:
    """Places of data, lane part and wave part among the operands."""
    access = instruction.row.access
    assert access is not None
    return (0, 1, 2) if access.kind == "load" else (1, 0, 2)


def _shape(instruction: Instruction) -> str:
    _, lane, wave = (instruction.operands[place] for place in _parts_of(instruction))
    return ("N" if lane.kind == "off" else "V") + ("N" if wave.kind == "off" else "S")


def _fields(instruction: Instruction, places: Places) -> Sequence[int]:
    data, lane, wave = (instruction.operands[place] for place in _parts_of(instruction))
    fields = [0] * 4
    fields[_DATA], fields[_OFFSET] = places.vector(data), instruction.modifiers.get("offset", 0)
    if lane.kind != "off":
        fields[_LANE] = places.vector(lane)
    if wave.kind != "off":
        fields[_WAVE] = places.scalar(wave, "u32")
    return fields


def _shapes(row: Row) -> Sequence[str]:
    """Built when a kernel has them."""
    return ()


FAMILIES = (Family(("scratch",), _shapes, _shape, _fields, emit),)
