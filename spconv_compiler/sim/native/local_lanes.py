"""Lanes of a wave that exchange words the way the hardware of local memory does it.

ds_bpermute_b32, and the second half of transposed reads: dealing out what the lanes have loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

from spconv_compiler.errors import CodegenError
from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.lane_moves import transposed_sources
from spconv_compiler.sim.native import layout, quads
from spconv_compiler.sim.native.emit import POINTER, Handler, Module, Value
from spconv_compiler.sim.native.family import Family, Places
from spconv_compiler.sim.native.layout import Code
from spconv_compiler.sim.native.memory_block import ROOM
from spconv_compiler.sim.rows import Row

_ADDRESS, _SOURCE, _OFFSET, _RESULT = range(4)


def transpose(h: Handler, first: Value, bits: int) -> None:
    """Moves elements of 8 or 16 bits that 64 lanes have loaded into two registers to the lanes that get them."""
    lanes, elements = transposed_sources(bits)
    element, size = f"i{bits}", bits // 8
    count = h.constant(2 * layout.VECTOR_BYTES, "i32")
    room = h.op(f"llvm.alloca {count} x i8 {{alignment = 64 : i64}} : (i32) -> {POINTER}", POINTER)
    target, length = h.address(h.context, first), h.constant(2 * layout.VECTOR_BYTES, "i64")
    h.line(
        f'  "llvm.intr.memcpy"({room}, {target}, {length}) <{{isVolatile = false}}> : ({POINTER}, {POINTER}, i64) -> ()'
    )

    def place(lane: int, number: int) -> int:
        byte = number * size
        return layout.VECTOR_BYTES * (byte // 4) + 4 * lane + byte % 4

    # Blocks of sixteen lanes are alike.
    with h.loop(layout.VECTOR_BYTES, 64) as block:
        for lane in range(16):
            for number in range(elements.shape[1]):
                source = place(int(lanes[lane, number]), int(elements[lane, number]))
                value = h.load(h.address(room, block.index, source), element)
                h.store(value, h.address(target, block.index, place(lane, number)))


def emit(module: Module, row: Row, shape: str, name: str) -> None:
    """ds_bpermute_b32: every lane fetches from the lane that it names; a lane that is off gives 0."""
    if not _shapes(row):
        raise CodegenError(f"{row.name}: the native engine has no handler for it")
    h = Handler(module, name)
    where, source, offset = h.field(_ADDRESS), h.field(_SOURCE), h.field(_OFFSET, "i32")
    known = h.binary("and", h.exec(), h.invert(h.vector_defined(where)))
    h.check_lanes(known, Code.PERMUTE_UNDEFINED)
    fetched = h.binary("or", h.vector_defined(source), h.invert(h.exec()))
    room = h.address(h.context, ROOM)
    # The source, with 0 for lanes that are off, is set aside: it may be the target.
    with h.lanes() as place:
        on = h.chunk_mask(h.exec(), place)
        words = h.vector(source, place)
        h.store(h.select(on, words, h.constant(0, words.type)), h.address(room, place), 64)
    target = h.target(h.field(_RESULT))
    full = h.compare("eq", h.exec(), h.constant(-1, "i64"))
    base = h.address(h.context, h.select(full, h.field(_RESULT), h.constant(layout.SCRATCH, "i64")))
    zero, four = h.constant(0, "i64"), h.constant(4, "i64")
    with h.loop(layout.VECTOR_BYTES, 16, [zero]) as quad:
        numbers, defined = [], quad.values[0]
        for lane in range(4):
            byte = h.load(h.address(h.context, where, quad.index, 4 * lane), "i32")
            wrapped = h.binary("and", h.binary("add", byte, offset), h.constant(4 * layout.LANES - 4, "i32"))
            index = h.convert("zext", wrapped, "i64")
            numbers.append(h.load(h.address(room, index), "i32"))
            if h.build.checks:
                bit = h.binary("lshr", fetched, h.binary("lshr", index, h.constant(2, "i64")))
                bit = h.binary("and", bit, h.constant(1, "i64"))
                at = h.binary("add", h.binary("udiv", quad.index, four), h.constant(lane, "i64"))
                defined = h.binary("or", defined, h.binary("shl", bit, at))
        h.store(quads.gather(h, numbers), h.address(base, quad.index), 16)
        quad.nexts = [defined]
    target.finish(quad.results[0] if h.build.checks else h.constant(-1, "i64"))
    h.done()


def _shapes(row: Row) -> Sequence[str]:
    return ("D",) if row.name == "ds_bpermute_b32" else ()


def _shape(instruction: Instruction) -> str:
    if not _shapes(instruction.row):
        raise CodegenError(f"{instruction}: the native engine has no handler for it")
    return "D"


def _fields(instruction: Instruction, places: Places) -> Sequence[int]:
    target, address, source = instruction.operands
    offset = instruction.modifiers.get("offset", 0)
    return places.vector(address), places.vector(source), offset, places.vector(target)


FAMILIES = (Family(("permute",), _shapes, _shape, _fields, emit),)
