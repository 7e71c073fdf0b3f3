"""Handlers of scalar loads, from an address or through a buffer descriptor: one address, some words."""

from __future__ import annotations

from collections.abc import Sequence

from spconv_compiler.sim import cells as rules
from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.native import layout, quads
from spconv_compiler.sim.native.emit import Handler, Module, Value, vector_type
from spconv_compiler.sim.native.family import Family, Places
from spconv_compiler.sim.native.lanes import check_suspect, descriptor
from spconv_compiler.sim.native.layout import Code
from spconv_compiler.sim.native.memory_block import ROOM, ROOM_MASK, ROOM_SUSPECT
from spconv_compiler.sim.native.settle import settle, tag
from spconv_compiler.sim.native.trace import trace
from spconv_compiler.sim.rows import Row

_DATA, _BASE, _OFFSET, _REGISTER = range(4)


def emit(module: Module, row: Row, shape: str, name: str) -> None:
    """The handler of s_load and s_buffer_load; words that nobody wrote are undefined.

    shape: "M", or "R" where a register is added to the offset; with "B" through a descriptor.
    """
    access = row.access
    assert access is not None
    h = Handler(module, name)
    moved = h.field(_OFFSET)
    if "R" in shape:
        h.check(h.compare("ne", h.scalar_defined(h.field(_REGISTER)), h.constant(-1, "i32")), Code.OFFSET_UNDEFINED)
        moved = h.binary("add", moved, h.convert("zext", h.scalar(h.field(_REGISTER)), "i64"))
    if "B" in shape:
        _emit_buffer(h, access.size, moved)
        return
    base = h.field(_BASE)
    h.check(h.compare("ne", h.scalar_defined(base, 2), h.constant(-1, "i64")), Code.ADDRESS_UNDEFINED)
    address = h.binary("add", h.scalar(base, 2), moved)
    _note(h, address)
    trace(h, h.constant(access.size, "i64"))
    _load(h, address, access.size, h.field(_DATA))
    h.done()


def _emit_buffer(h: Handler, size: int, moved: Value) -> None:
    """Words beyond the end of the buffer are 0, and defined; the lowest two bits of the offset do not count."""
    base, count = descriptor(h, h.field(_BASE))
    rest = h.binary("sub", h.intrinsic("umax", "i64", count, moved), moved)
    address = h.binary("add", base, h.binary("and", moved, h.constant(-4, "i64")))
    _note(h, address)
    trace(h, h.constant(size, "i64"))
    with h.loop(size, 4) as word:
        following = h.binary("add", word.index, h.constant(4, "i64"))
        inside = h.compare("uge", rest, following)
        target = h.binary("add", h.field(_DATA), word.index)
        h.set_scalar(target, h.constant(0, "i32"), None)
        with h.when(inside, likely=True):
            here = h.binary("add", address, word.index)
            _note(h, here)
            _load(h, here, 4, target)
    h.done()


def _note(h: Handler, address: Value) -> None:
    """The address is that of the only lane in ROOM."""
    room = h.address(h.context, ROOM)
    h.store(address, room)
    h.store(h.constant(1, "i64"), h.address(room, ROOM_MASK))


def _load(h: Handler, address: Value, size: int, place: Value) -> None:
    """Words into scalar registers from the offset `place` on."""
    arena = h.launch(layout.ARENA)
    inside = h.binary("sub", address, arena)
    bad = h.compare("uge", inside, h.binary("sub", h.launch(layout.ARENA_END), arena))
    if h.build.checks:
        rest = h.binary("and", inside, h.constant(3, "i64"))
        bad = h.binary("or", bad, h.compare("ne", rest, h.constant(0, "i64")))
    h.fault_if(bad, Code.MEMORY)
    known = _scalar_cells(h, address, size) if h.build.checks else None
    target = h.address(h.context, place)
    h.store(h.load(quads.pointer(h, address), vector_type("i32", size // 4), 4), target, 4)
    if known is not None:
        h.store(known, h.address(target, layout.SCALAR_DEFINED), 4)


def _scalar_cells(h: Handler, address: Value, size: int) -> Value:
    """Tests the cells of a scalar load; all bits of its words that are defined."""
    type_ = vector_type("i32", size // 4)
    h.store(h.constant(0, "i64"), h.address(h.context, ROOM + ROOM_SUSPECT))
    at = h.address(quads.pointer(h, address), h.launch(layout.CELL_DISTANCE))
    cells = h.load(at, type_, 4)
    # Initialised or not: what steady() asks for, of words that are there.
    whole = h.binary("or", cells, h.constant(rules.READY >> 1, type_))
    mine, many = tag(h, rules.READ), tag(h, rules.READ, h.constant(rules.MANY, "i32"))
    fine = quads.steady(h, rules.READ, whole, mine, many)
    packed = h.convert("bitcast", fine, f"i{size // 4}")
    with h.when(h.compare("ne", packed, h.constant(-1, packed.type)), likely=False):
        h.call(settle(h.module, "scalar"), "", h.context, *(h.constant(number, "i64") for number in (0, 1, size)))
    check_suspect(h)
    states = h.binary("and", cells, h.constant(rules.READY, type_))
    return h.convert("sext", h.compare("eq", states, h.constant(rules.READY, type_)), type_)


def _shape(instruction: Instruction) -> str:
    through = "B" if instruction.operands[1].dwords == 4 else ""
    return through + ("M" if instruction.operands[2].kind == "offset" else "R")


def _shapes(row: Row) -> Sequence[str]:
    """Loads through a descriptor are rare: their handlers are built when a kernel has them."""
    return ("M", "R") if row.sources == ("u64",) else ()


def _fields(instruction: Instruction, places: Places) -> Sequence[int]:
    target, base, offset = instruction.operands
    fields = [0] * 4
    fields[_DATA], fields[_BASE] = places.scalar(target, "u32"), places.scalar(base, "u64")
    if offset.kind == "offset":
        fields[_OFFSET] = offset.number
    else:
        fields[_OFFSET], fields[_REGISTER] = instruction.modifiers.get("offset", 0), places.scalar(offset, "u32")
    return fields


FAMILIES = (Family(("smem",), _shapes, _shape, _fields, emit),)
