"""Lanes of a wave that exchange words the way the hardware of local memory does it.

Permutes and swizzles, and the second half of transposed reads: dealing out what the lanes have loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.lane_moves import Lanes, transposed_sources
from spconv_compiler.sim.native import layout, quads
from spconv_compiler.sim.native.emit import POINTER, Handler, Module, Value, vector_type
from spconv_compiler.sim.native.family import Family, Places
from spconv_compiler.sim.native.layout import Code
from spconv_compiler.sim.native.memory_block import ROOM
from spconv_compiler.sim.rows import Row

_ADDRESS, _SOURCE, _OFFSET, _RESULT = range(4)


def transpose(h: Handler, first: Value, bits: int) -> None:
    """Moves elements of 4, 6, 8 or 16 bits that 64 lanes have loaded into registers to the lanes that get them."""
    lanes, elements = transposed_sources(bits)
    registers = elements.shape[1] * bits // 32
    size = registers * layout.VECTOR_BYTES
    count = h.constant(size, "i32")
    room = h.op(f"llvm.alloca {count} x i8 {{alignment = 64 : i64}} : (i32) -> {POINTER}", POINTER)
    target, length = h.address(h.context, first), h.constant(size, "i64")
    h.line(
        f'  "llvm.intr.memcpy"({room}, {target}, {length}) <{{isVolatile = false}}> : ({POINTER}, {POINTER}, i64) -> ()'
    )
    move = _move_bytes if bits % 8 == 0 else _move_bits
    # Blocks of sixteen lanes are alike.
    with h.loop(layout.VECTOR_BYTES, 64) as block:
        for lane in range(16):
            move(h, h.address(room, block.index), h.address(target, block.index), lane, bits, lanes, elements)


def _move_bytes(h: Handler, room: Value, target: Value, lane: int, bits: int, lanes: Lanes, elements: Lanes) -> None:
    """The elements that one lane of a block gets, each of whole bytes."""

    def place(lane: int, number: int) -> int:
        byte = number * bits // 8
        return layout.VECTOR_BYTES * (byte // 4) + 4 * lane + byte % 4

    for number in range(elements.shape[1]):
        source = place(int(lanes[lane, number]), int(elements[lane, number]))
        h.store(h.load(h.address(room, source), f"i{bits}"), h.address(target, place(lane, number)))


def _move_bits(h: Handler, room: Value, target: Value, lane: int, bits: int, lanes: Lanes, elements: Lanes) -> None:
    """The same of elements that may lie across words."""
    words = [h.constant(0, "i32")] * (elements.shape[1] * bits // 32)

    def add(word: int, value: Value, up: int) -> None:
        shifted = h.binary("shl" if up >= 0 else "lshr", value, h.constant(abs(up), "i32"))
        words[word] = h.binary("or", words[word], shifted)

    for number in range(elements.shape[1]):
        source, first = int(lanes[lane, number]), int(elements[lane, number]) * bits
        value = None
        for word in range(first // 32, (first + bits - 1) // 32 + 1):
            raw = h.load(h.address(room, layout.VECTOR_BYTES * word + 4 * source), "i32")
            up = 32 * word - first
            part = h.binary("shl" if up >= 0 else "lshr", raw, h.constant(abs(up), "i32"))
            value = part if value is None else h.binary("or", value, part)
        assert value is not None
        value = h.binary("and", value, h.constant((1 << bits) - 1, "i32"))
        to = number * bits
        for word in range(to // 32, (to + bits - 1) // 32 + 1):
            add(word, value, to - 32 * word)
    for number, whole in enumerate(words):
        h.store(whole, h.address(target, layout.VECTOR_BYTES * number + 4 * lane))


def emit(module: Module, row: Row, shape: str, name: str) -> None:
    """ds_bpermute_b32, ds_swizzle_b32: every lane fetches from another; ds_permute_b32: every lane sends to another."""
    h = Handler(module, name)
    if row.name == "ds_swizzle_b32":
        _emit_fetch(h, lambda place, lane: _swizzled(h, place, lane))
        return
    known = h.binary("and", h.exec(), h.invert(h.vector_defined(h.field(_ADDRESS))))
    h.check_lanes(known, Code.PERMUTE_UNDEFINED)
    if row.name == "ds_permute_b32":
        _emit_send(h)
    else:
        _emit_fetch(h, lambda place, lane: _named(h, place, lane))


def _named(h: Handler, place: Value, lane: int = 0) -> Value:
    """i64: byte of the word of the lane that a lane names; the lane: at byte `place` of a register, or some further."""
    byte = h.load(h.address(h.context, h.field(_ADDRESS), place, 4 * lane), "i32")
    wrapped = h.binary("and", h.binary("add", byte, h.field(_OFFSET, "i32")), h.constant(4 * layout.LANES - 4, "i32"))
    return h.convert("zext", wrapped, "i64")


def _swizzled(h: Handler, place: Value, lane: int) -> Value:
    """The same by a pattern: within four lanes, or within 32 by and, or, xor (lane_moves.swizzle_sources)."""

    def number(value: int) -> Value:
        return h.constant(value, "i64")

    pattern = h.binary("and", h.field(_OFFSET), number(0xFFFF))
    here = h.binary("add", h.binary("lshr", place, number(2)), number(lane))
    step = h.binary("shl", h.binary("and", here, number(3)), number(1))
    within_four = h.binary("and", h.binary("lshr", pattern, step), number(3))
    of_four = h.binary("or", h.binary("and", here, number(~3)), within_four)
    keep, set_, flip = (h.binary("and", h.binary("lshr", pattern, number(up)), number(31)) for up in (0, 5, 10))
    moved = h.binary("or", h.binary("and", h.binary("and", here, number(31)), keep), set_)
    of_half = h.binary("or", h.binary("and", here, number(32)), h.binary("xor", moved, flip))
    by_four = h.compare("ne", h.binary("and", pattern, number(0x8000)), number(0))
    return h.binary("shl", h.select(by_four, of_four, of_half), number(2))


def _emit_fetch(h: Handler, where: Callable[[Value, int], Value]) -> None:
    """Every lane gets the word of another one; of a lane that is off, 0. where(place, lane): byte of that word."""
    source = h.field(_SOURCE)
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
            index = where(quad.index, lane)
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


def _emit_send(h: Handler) -> None:
    """Of several senders the highest lane wins; who gets nothing gets a defined 0."""
    source, known = h.field(_SOURCE), h.vector_defined(h.field(_SOURCE))
    room, nothing = h.address(h.context, ROOM), h.constant(0, vector_type("i32"))
    one, two, spare = h.constant(1, "i64"), h.constant(2, "i64"), h.constant(layout.VECTOR_BYTES, "i64")
    with h.lanes() as place:
        h.store(nothing, h.address(room, place), 64)
    with h.loop(layout.VECTOR_BYTES, 4, [h.constant(-1, "i64")]) as lane:
        number = h.binary("lshr", lane.index, two)
        on = h.convert("trunc", h.binary("lshr", h.exec(), number), "i1")
        to = _named(h, lane.index)
        word = h.load(h.address(h.context, source, lane.index), "i32")
        h.store(word, h.address(room, h.select(on, to, spare)))
        bit = h.binary("shl", one, h.binary("lshr", to, two))
        fine = h.convert("trunc", h.binary("lshr", known, number), "i1")
        set_ = h.binary("or", lane.values[0], bit)
        after = h.select(fine, set_, h.binary("and", lane.values[0], h.invert(bit)))
        lane.nexts = [h.select(on, after, lane.values[0])]
    target = h.target(h.field(_RESULT))
    with h.lanes() as place:
        target.store(place, h.load(h.address(room, place), vector_type("i32"), 64))
    target.finish(lane.results[0])
    h.done()


def _fields(instruction: Instruction, places: Places) -> Sequence[int]:
    if instruction.row.name == "ds_swizzle_b32":
        target, source = instruction.operands
        return 0, places.vector(source), instruction.modifiers["swizzle"], places.vector(target)
    target, address, source = instruction.operands
    offset = instruction.modifiers.get("offset", 0)
    return places.vector(address), places.vector(source), offset, places.vector(target)


FAMILIES = (Family(("permute",), lambda row: ("D",), lambda instruction: "D", _fields, emit),)
