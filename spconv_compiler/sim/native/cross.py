"""Handlers of vector instructions that look at other lanes or write EXEC: lane reads, swaps, v_cmpx, DPP."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.lane_moves import lane_sources, written_lanes
from spconv_compiler.sim.native import layout
from spconv_compiler.sim.native.emit import CHUNK, Handler, Module, Value, vector_type
from spconv_compiler.sim.native.family import Family, Places
from spconv_compiler.sim.native.layout import Code
from spconv_compiler.sim.native.vector import Source, all_defined, encoded, fields, shape, shapes
from spconv_compiler.sim.rows import LaneMove, Row


def _one_shape(row: Row) -> Sequence[str]:
    return shapes(row) if row.name.startswith("v_mbcnt") else [""]


def _lane_shape(instruction: Instruction) -> str:
    return shape(instruction) if instruction.row.name.startswith("v_mbcnt") else ""


def _lane_fields(instruction: Instruction, places: Places) -> list[int]:
    """Result, source, and the number of the lane if there is one."""
    return [places.source(operand, "u32") for operand in instruction.operands]


def _emit_lane(module: Module, row: Row, letters: str, name: str) -> None:
    if row.name.startswith("v_mbcnt"):
        _emit_count(module, row, letters, name)
    elif row.name.startswith("v_writelane"):
        _emit_write(module, name)
    else:
        _emit_read(module, row, name)


def _number(h: Handler, offset: Value) -> Value:
    """i64: the number of a lane from a scalar."""
    h.check(h.compare("ne", h.scalar_defined(offset), h.constant(-1, "i32")), Code.LANE_UNDEFINED)
    return h.convert("zext", h.binary("and", h.scalar(offset), h.constant(63, "i32")), "i64")


def _emit_read(module: Module, row: Row, name: str) -> None:
    """v_readlane; v_readfirstlane, which reads lane 0 where no lane is on."""
    h = Handler(module, name)
    offset = h.field(1)
    if len(row.sources) == 1:
        lane = h.binary("and", h.count_zeros("cttz", h.exec()), h.constant(63, "i64"))
    else:
        lane = _number(h, h.field(2))
    value = h.load(h.address(h.context, offset, h.binary("shl", lane, h.constant(2, "i64"))), "i32")
    bit = h.binary("lshr", h.vector_defined(offset), lane)
    h.set_scalar(h.field(0), value, h.convert("sext", h.convert("trunc", bit, "i1"), "i32"))
    h.done()


def _emit_write(module: Module, name: str) -> None:
    """v_writelane: one lane gets a scalar, whatever EXEC is."""
    h = Handler(module, name)
    target, source = h.field(0), h.field(1)
    lane = _number(h, h.field(2))
    h.store(h.scalar(source), h.address(h.context, target, h.binary("shl", lane, h.constant(2, "i64"))))
    bit = h.binary("shl", h.constant(1, "i64"), lane)
    old = h.binary("and", h.vector_defined(target), h.invert(bit))
    known = h.binary("and", h.as_lanes(h.scalar_defined(source)), bit)
    h.set_vector_defined(target, h.binary("or", old, known), ignore_exec=True)
    h.done()


def _emit_count(module: Module, row: Row, letters: str, name: str) -> None:
    """v_mbcnt: set bits of one half of a mask below the lane, added to the second source."""
    h = Handler(module, name)
    upper = "_hi_" in row.name
    sources = [
        Source(h, type_, letter, h.field(1 + index))
        for index, (type_, letter) in enumerate(zip(row.sources, letters, strict=True))
    ]
    known, _ = all_defined(h, sources)
    target = h.target(h.field(0))
    type_ = vector_type("i32")
    with h.lanes() as place:
        first = h.convert("trunc", h.binary("lshr", place, h.constant(2, "i64")), "i32")
        lane = h.binary("add", h.broadcast(first), h.dense(range(CHUNK), "i32"))
        inside = h.binary("and", lane, h.constant(31, type_))
        below = h.binary("sub", h.binary("shl", h.constant(1, type_), inside), h.constant(1, type_))
        in_upper = h.compare("uge", lane, h.constant(32, type_))
        below = h.select(in_upper, *((below, h.constant(0, type_)) if upper else (h.constant(-1, type_), below)))
        mask, base = (source.at(place).with_lanes().value for source in sources)
        counted = h.intrinsic("ctpop", type_, h.binary("and", mask, below))
        target.store(place, h.binary("add", counted, base))
    target.finish(known)
    h.done()


# Swaps.

# Of each 16 lanes of the second register, the 16 lanes of the first one that they change places with, or None.
_PLACES = {
    "v_swap_b32": (0, 1, 2, 3),
    "v_permlane16_swap_b32": (1, None, 3, None),
    "v_permlane32_swap_b32": (2, 3, None, None),
}


def _emit_swap(module: Module, row: Row, letters: str, name: str) -> None:
    """Two registers exchange lanes; of the row swaps it is not documented what lanes that are off do."""
    h = Handler(module, name)
    first, second = h.field(0), h.field(1)
    if row.name != "v_swap_b32":
        h.check(h.compare("ne", h.exec(), h.constant(-1, "i64")), Code.LANES_OFF)
    targets = [h.target(first, 0), h.target(second, 1)]
    known = [h.vector_defined(first), h.vector_defined(second)]
    rows = [
        [h.vector(register, h.constant(4 * CHUNK * place, "i64")) for place in range(4)] for register in (first, second)
    ]
    after = [list(rows[0]), list(rows[1])]
    parts: list[list[Value]] = [[], []]
    moved = [0, 0]
    for theirs, ours in enumerate(_PLACES[row.name]):
        if ours is not None:
            after[0][ours], after[1][theirs] = rows[1][theirs], rows[0][ours]
            parts[0].append(_row_of(h, known[1], theirs, ours))
            parts[1].append(_row_of(h, known[0], ours, theirs))
            moved[0] |= 0xFFFF << 16 * ours
            moved[1] |= 0xFFFF << 16 * theirs
    for side, target in enumerate(targets):
        for place, value in enumerate(after[side]):
            target.store(h.constant(4 * CHUNK * place, "i64"), value)
        bits = h.binary("and", known[side], h.constant(~moved[side], "i64"))
        for part in parts[side]:
            bits = h.binary("or", bits, part)
        target.finish(bits)
    h.done()


def _row_of(h: Handler, mask: Value, source: int, place: int) -> Value:
    """16 bits of an i64 moved from one row to another."""
    only = h.binary("and", h.binary("lshr", mask, h.constant(16 * source, "i64")), h.constant(0xFFFF, "i64"))
    return h.binary("shl", only, h.constant(16 * place, "i64"))


def _swap_fields(instruction: Instruction, places: Places) -> list[int]:
    return [places.vector(operand) for operand in instruction.operands]


# v_cmpx.


def _emit_compare(module: Module, row: Row, letters: str, name: str) -> None:
    """The lane mask is also the new EXEC; every lane that is on must be defined."""
    assert row.meaning is not None
    h = Handler(module, name)
    sources = [
        Source(h, type_, letter, h.field(1 + index))
        for index, (type_, letter) in enumerate(zip(row.sources, letters, strict=True))
    ]
    known, _ = all_defined(h, sources)
    h.check_lanes(h.binary("and", h.exec(), h.invert(known)), Code.SOURCE_UNDEFINED)
    with h.loop(layout.VECTOR_BYTES, 4 * CHUNK, [h.constant(0, "i64")]) as loop:
        found = row.meaning(*[source.at(loop.index) for source in sources])
        bits = h.chunk_bits(found.with_lanes().value, loop.index)
        loop.nexts = [h.binary("or", loop.values[0], bits)]
    mask = h.binary("and", loop.results[0], h.exec())
    h.set_scalar(h.field(0), mask, None)
    h.set_scalar(h.constant(layout.EXEC, "i64"), mask, None)
    h.done()


# DPP.


def emit_moved(module: Module, row: Row, letters: str, name: str) -> None:
    """A vector instruction whose first encoded source comes from other lanes."""
    assert row.meaning is not None and row.lanes is not None
    h = Handler(module, name)
    target = h.field(0)
    types = [*row.sources[:1], *encoded(row)] if row.tied else list(row.sources)
    kinds = ["V", *letters] if row.tied else list(letters)
    offsets = [target] * row.tied + [h.field(1 + index) for index in range(len(letters))]
    place = int(row.tied)
    there, ready = _move(h, row.lanes, offsets[place])
    offsets[place] = h.constant(_MOVED, "i64")
    sources = [Source(h, *each) for each in zip(types, kinds, offsets, strict=True)]
    known = ready
    for index, source in enumerate(sources):
        if index != place:
            known = h.binary("and", known, source.defined()[0])
    written = h.constant(_bits(written_lanes(row.lanes)), "i64")
    chosen = h.binary("and", h.exec(), written if row.lanes.zero else h.binary("and", written, there))
    scratch = h.constant(layout.SCRATCH, "i64")
    with h.lanes() as where:
        found = row.meaning(*[source.at(where) for source in sources])
        h.store(found.with_lanes().as_kind("u32").value, h.address(h.context, scratch, where), 64)
    h.call_pointer(h.state(layout.MERGE, "!llvm.ptr"), "", h.context, target, scratch, chosen)
    old = h.binary("and", h.vector_defined(target), h.invert(chosen))
    h.set_vector_defined(target, h.binary("or", old, h.binary("and", known, chosen)), ignore_exec=True)
    h.done()


# Where the moved source is put: behind the room for the result.
_MOVED = layout.SCRATCH + layout.VECTOR_BYTES


def _move(h: Handler, move: LaneMove, offset: Value) -> tuple[Value, Value]:
    """Fills _MOVED; (lanes that read from an active lane, lanes in which the moved source is defined), i64.

    What is read from no lane is a defined 0.
    """
    source, exists = lane_sources(move.control)
    known = h.vector_defined(offset)
    one, zero = h.constant(1, "i64"), h.constant(0, "i32")
    there = ready = h.constant(0, "i64")
    for lane in range(layout.LANES):
        bit = h.constant(1 << lane, "i64")
        place = h.address(h.context, _MOVED + 4 * lane)
        if not exists[lane]:
            h.store(zero, place)
            ready = h.binary("or", ready, bit)
            continue
        shift = h.constant(int(source[lane]), "i64")
        on = h.binary("and", h.binary("lshr", h.exec(), shift), one)
        value = h.load(h.address(h.context, offset, 4 * int(source[lane])), "i32")
        active = h.compare("ne", on, h.constant(0, "i64"))
        h.store(h.select(active, value, zero), place)
        up = h.constant(lane, "i64")
        there = h.binary("or", there, h.binary("shl", on, up))
        fine = h.binary("and", h.binary("lshr", known, shift), one)
        ready = h.binary("or", ready, h.binary("shl", h.binary("or", fine, h.binary("xor", on, one)), up))
    return there, ready


def _bits(lanes: np.ndarray) -> int:
    return sum(1 << int(lane) for lane in np.flatnonzero(lanes))


FAMILIES = (
    Family(("lane",), _one_shape, _lane_shape, _lane_fields, _emit_lane),
    Family(("swap",), lambda row: ("",), lambda instruction: "", _swap_fields, _emit_swap),
    Family(("cmpx",), shapes, shape, fields, _emit_compare),
)
