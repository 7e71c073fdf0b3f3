"""Handlers of local memory (LDS): loads, stores and atomics.

Addresses are offsets in the workgroup's local memory and stand in ROOM like those of device memory; the rules of
races and the layout of cells: sim/local.py. Local memory belongs to one thread, so nothing here is atomic.
"""

from __future__ import annotations

from collections.abc import Sequence

from spconv_compiler.sim import local as rules
from spconv_compiler.sim.errors import UnsupportedError
from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.native import atomics, layout, quads
from spconv_compiler.sim.native import local_cells as cells
from spconv_compiler.sim.native.emit import CHUNK, POINTER, Handler, Module, Value, vector_type
from spconv_compiler.sim.native.family import Family, Places
from spconv_compiler.sim.native.lanes import check_suspect, reduce_or, room_word
from spconv_compiler.sim.native.layout import Code
from spconv_compiler.sim.native.local_lanes import transpose
from spconv_compiler.sim.native.memory_block import (
    ROOM,
    ROOM_BITS,
    ROOM_MASK,
    ROOM_PART,
    ROOM_SUSPECT,
    SPARE_LOCAL,
)
from spconv_compiler.sim.native.settle import Shared, forget_undefined, shared, step, suspect, take
from spconv_compiler.sim.native.trace import trace
from spconv_compiler.sim.rows import Access, Row

_ADDRESS, _FIRST, _SECOND, _OFFSET, _OFFSET2, _RESULT = range(6)
_WIDE = vector_type("i64")


def _alignment(size: int) -> int:
    return 16 if size == 12 else size


# Addresses.


def _begin(module: Module) -> str:
    """The step that fills ROOM with the places of the lanes.

    Parameters, i64: the offset that is added to the register, bytes of a lane, alignment less one; i32: the cell of
    words for lanes that are off.
    """
    parameters = (("offset", "i64"), ("size", "i64"), ("below", "i64"), ("state", "i32"))
    return step(module, "begin_local", _emit_begin, *parameters)


def _emit_begin(f: Shared, offset: Value, size: Value, below: Value, state: Value) -> None:
    register, exec_, zero = f.field(_ADDRESS), f.exec(), f.constant(0, "i64")
    f.check_lanes(f.binary("and", exec_, f.invert(f.vector_defined(register))), Code.ADDRESS_UNDEFINED)
    room = f.address(f.context, ROOM)
    f.store(exec_, f.address(room, ROOM_MASK))
    f.store(zero, f.address(room, ROOM_SUSPECT))
    bytes_ = f.convert("sext", f.state(layout.LDS_BYTES), "i64")
    limit = f.broadcast(f.binary("sub", bytes_, size))
    spare = f.binary("sub", f.launch(layout.LDS_STRIDE), f.constant(SPARE_LOCAL, "i64"))
    nothing, added = f.constant(0, _WIDE), f.broadcast(offset)
    simple, general, finished = f.label("all"), f.label("some"), f.label("over")
    bits = [f.fresh("i64"), f.fresh("i64")]
    f.branch(f.compare("eq", exec_, f.constant(-1, "i64")), simple, general, weights=(1000, 1))
    for label in (simple, general):
        f.block(label)
        if label == general and f.build.checks:
            f.store(f.broadcast(state, 4), f.address(f.state(layout.LDS_CELLS, POINTER), spare))
        with f.loop(layout.VECTOR_BYTES, 4 * CHUNK, [nothing, nothing]) as loop:
            places = f.binary("add", f.convert("zext", f.vector(register, loop.index), _WIDE), added)
            beyond = f.binary("sub", limit, places)
            chosen, counted = places, places
            if label == general:
                on = f.chunk_mask(exec_, loop.index)
                chosen, counted = f.select(on, places, f.broadcast(spare)), f.select(on, places, nothing)
                beyond = f.select(on, beyond, nothing)
            f.store(chosen, f.address(room, f.binary("shl", loop.index, f.constant(1, "i64"))), 64)
            loop.nexts = [f.binary("or", loop.values[0], counted), f.binary("or", loop.values[1], beyond)]
        f.jump(finished, *(reduce_or(f, lanes) for lanes in loop.results))
    f.block(finished, *bits)
    f.store(bits[0], f.address(room, ROOM_BITS))
    bad = f.compare("slt", bits[1], zero)
    if f.build.checks:
        bad = f.binary("or", bad, f.compare("ne", f.binary("and", bits[0], below), zero))
    trace(f, size)
    f.fault_if(bad, Code.MEMORY)
    f.done()


def _pointers(f: Handler, base: Value, places: Sequence[Value], size: int) -> list[Value]:
    """Pointers to the words of places; of sub-words the word around them."""
    if size < 4:
        places = [f.binary("and", place, f.constant(-4, "i64")) for place in places]
    return [f.address(base, place) for place in places]


# Loads.


def _load(module: Module, access: Access) -> str:
    """The step that loads from the places in ROOM to the register at an offset: (first: i64)."""
    name = f"load_local_{access.size}{'_signed' if access.signed else ''}{access.half}"
    return step(module, name, lambda f, first: _emit_load(f, access, first), ("first", "i64"))


def _emit_load(f: Shared, access: Access, first: Value) -> None:
    size, checks = access.size, f.build.checks
    count = -(-size // 4)
    registers = [f.binary("add", first, f.constant(layout.VECTOR_BYTES * index, "i64")) for index in range(count)]
    targets = [f.target(register, place) for place, register in enumerate(registers)]
    full = f.compare("eq", f.exec(), f.constant(-1, "i64"))
    target = f.address(f.context, f.select(full, first, f.constant(layout.SCRATCH, "i64")))
    memory, cell_base = f.state(layout.LDS, POINTER), f.state(layout.LDS_CELLS, POINTER)
    room = f.address(f.context, ROOM)
    tags = cells.own_tags(f)
    with f.loop(8 * layout.LANES, 32) as quad:
        places = [f.load(f.address(room, quad.index, 8 * lane), "i64") for lane in range(4)]
        register = f.binary("lshr", quad.index, f.constant(1, "i64"))
        at = [f.address(memory, place) for place in places]
        found = quads.shaped(f, quads.load_words(f, at, size, 4), access, first, register)
        for words, where in zip(found, quads.registers_at(f, target, count, register), strict=True):
            f.store(words, where, 16)
        if checks:
            fine = (_read_words if size >= 4 else _read_bytes)(
                f, _pointers(f, cell_base, places, size), places, size, tags
            )
            with f.when(f.invert(fine), likely=False):
                suspect(f, f.constant(1, "i1"))
    check_suspect(f)
    for each, register in zip(targets, registers, strict=True):
        known = f.vector_defined(register) if access.half == "hi" else f.constant(-1, "i64")
        each.finish(known)
    f.done()


def _read_words(f: Handler, at: Sequence[Value], places: Sequence[Value], size: int, tags: Value) -> Value:
    """Tests and notes a read of whole words; i1: all is well."""
    tests, made = [], []
    for found in quads.load_cells(f, at, size):
        mine = cells.spread(f, tags, found)
        difference = f.binary("xor", found, mine)
        good = f.binary("and", cells.ready(f, found), f.invert(cells.other(f, difference, rules.WRITER_SHIFT)))
        tests.append(quads.relevant(f, good, size))
        made.append(cells.after_read(f, found, difference, mine))
    quads.store_cells(f, made, at, size)
    return quads.every(f, tests)


def _read_bytes(f: Handler, at: Sequence[Value], places: Sequence[Value], size: int, tags: Value) -> Value:
    """The same for bytes and halves, lane after lane, since lanes share words."""
    total = f.constant(1, "i1")
    for pointer, place in zip(at, places, strict=True):
        cell = f.load(pointer, "i32")
        difference = f.binary("xor", cell, tags)
        bits = cells.bytes_of(f, place, size)
        ready = f.compare("eq", f.binary("and", cell, bits), bits)
        good = f.binary("and", ready, f.invert(cells.other(f, difference, rules.WRITER_SHIFT)))
        f.store(cells.after_read(f, cell, difference, tags), pointer)
        total = f.binary("and", total, good)
    return total


# Stores.


def _store(module: Module, access: Access) -> str:
    """The step that stores the register at an offset to the places in ROOM: (first: i64)."""
    name = f"store_local_{access.size}{access.half}"
    return step(module, name, lambda f, first: _emit_store(f, access, first), ("first", "i64"))


def _emit_store(f: Shared, access: Access, first: Value) -> None:
    size, checks = access.size, f.build.checks
    count = -(-size // 4)
    memory, cell_base = f.state(layout.LDS, POINTER), f.state(layout.LDS_CELLS, POINTER)
    room, source = f.address(f.context, ROOM), f.address(f.context, first)
    tags = cells.own_tags(f)
    with f.loop(8 * layout.LANES, 32) as quad:
        places = [f.load(f.address(room, quad.index, 8 * lane), "i64") for lane in range(4)]
        register = f.binary("lshr", quad.index, f.constant(1, "i64"))
        words = [f.load(at, quads.QUAD, 16) for at in quads.registers_at(f, source, count, register)]
        if checks:
            fine = (_write_words if size >= 4 else _write_bytes)(
                f, _pointers(f, cell_base, places, size), places, size, tags
            )
            with f.when(f.invert(fine), likely=False):
                suspect(f, f.constant(1, "i1"))
        words = quads.to_store(f, words, access)
        quads.store_words(f, words, [f.address(memory, place) for place in places], size)
    if checks:
        suspect(f, quads.verify(f, room, room_word(f, ROOM_MASK), memory, source, access))
        base = f.op(f"llvm.ptrtoint {cell_base} : {POINTER} to i64", "i64")
        forget_undefined(f, first, size, base)
    check_suspect(f)
    f.done()


def _write_words(f: Handler, at: Sequence[Value], places: Sequence[Value], size: int, tags: Value) -> Value:
    """Tests and notes a write of whole words; i1: all is well."""
    tests, made = [], []
    for found in quads.load_cells(f, at, size):
        mine = cells.spread(f, tags, found)
        clash = cells.clash(f, f.binary("xor", found, mine))
        new = cells.after_write(f, found, mine, f.constant(rules.INITIALISED, found.type))
        tests.append(quads.relevant(f, f.invert(clash), size))
        made.append(f.select(clash, found, new))
    quads.store_cells(f, made, at, size)
    return quads.every(f, tests)


def _write_bytes(f: Handler, at: Sequence[Value], places: Sequence[Value], size: int, tags: Value) -> Value:
    total = f.constant(1, "i1")
    for pointer, place in zip(at, places, strict=True):
        cell = f.load(pointer, "i32")
        clash = cells.clash(f, f.binary("xor", cell, tags))
        f.store(f.select(clash, cell, cells.after_write(f, cell, tags, cells.bytes_of(f, place, size))), pointer)
        total = f.binary("and", total, f.invert(clash))
    return total


# Atomics.


def _update(module: Module, row: Row, access: Access) -> str:
    """The step of an atomic with the register at an offset: (first: i64)."""
    operation, words = atomics.operation_of(row), access.size // 4
    name = f"update_local_{operation}_{words}{'_returning' if access.returns else ''}"
    return step(module, name, lambda f, first: _emit_update(f, operation, words, access, first), ("first", "i64"))


def _emit_update(f: Shared, operation: str, words: int, access: Access, first: Value) -> None:
    # The value to compare with comes first.
    data, wanted = (f.field(_SECOND), first) if access.pair else (first, None)
    atomics.check_data(f, words, data, *(() if wanted is None else (wanted,)))
    if f.build.checks:
        f.call(shared(f.module, f"check_local_{words}", [], lambda g: _emit_check(g, words)), "", f.context)
        check_suspect(f)
    memory = f.state(layout.LDS, POINTER)
    result = f.field(_RESULT) if access.returns else None
    atomics.update_lanes(f, operation, words, data, result, memory, wanted)
    f.done()


def _emit_check(f: Shared, words: int) -> None:
    """Tests and notes atomics in the cells of all lanes."""
    room, base = f.address(f.context, ROOM), f.state(layout.LDS_CELLS, POINTER)
    tags, mask = cells.own_tags(f), room_word(f, ROOM_MASK)
    with f.loop(layout.LANES) as lane:
        place = f.load(f.address(room, f.binary("shl", lane.index, f.constant(3, "i64"))), "i64")
        on = f.convert("trunc", f.binary("lshr", mask, lane.index), "i1")
        for index in range(words):
            at = f.address(base, place, 4 * index)
            cell = f.load(at, "i32")
            new, clash = cells.after_update(f, cell, tags)
            bad = f.binary("and", f.binary("or", clash, f.invert(cells.ready(f, cell))), on)
            suspect(f, bad)
            f.store(f.select(f.binary("and", on, f.invert(bad)), new, cell), at)
    f.give()


# Handlers.


def emit(module: Module, row: Row, shape: str, name: str) -> None:
    """The handler of a load, store or atomic; two places one after the other."""
    access = row.access
    if access is None or not supported(row):
        raise UnsupportedError(f"{row.name}: the native engine has no handler for it")
    h = Handler(module, name)
    if access.tile:
        off = h.compare("ne", h.exec(), h.constant(-1, "i64"))
        h.check_lanes(h.binary("and", h.exec(), h.invert(h.vector_defined(h.field(_ADDRESS)))), Code.ADDRESS_UNDEFINED)
        h.fault_if(off, Code.TRANSPOSED_OFF)
    for index in range(access.count):
        if h.build.checks:
            h.store(h.constant(index, "i64"), h.address(h.context, ROOM + ROOM_PART))
        numbers = [h.constant(number, "i64") for number in (access.size, _alignment(access.size) - 1)]
        state = h.constant(0 if access.kind == "store" else rules.INITIALISED, "i32")
        take(h, _begin(module), h.field((_OFFSET, _OFFSET2)[index]), *numbers, state)
        first = h.field((_FIRST, _SECOND)[index])
        if access.kind == "atomic":
            take(h, _update(module, row, access), first)
        else:
            take(h, (_load if access.kind == "load" else _store)(module, access), first)
    if access.tile:
        transpose(h, h.field(_FIRST), access.tile)
    h.done()


# Records.


def _shape(instruction: Instruction) -> str:
    if not supported(instruction.row):
        raise UnsupportedError(f"{instruction}: the native engine has no handler for it")
    return "D"


def _fields(instruction: Instruction, places: Places) -> Sequence[int]:
    access, operands = instruction.row.access, list(instruction.operands)
    assert access is not None
    modifiers, fields = instruction.modifiers, [0] * 6
    if access.kind == "load":
        data, address = operands
        fields[_FIRST] = places.vector(data)
        fields[_SECOND] = fields[_FIRST] + layout.VECTOR_BYTES * max(1, access.size // 4)
    else:
        if access.returns:
            fields[_RESULT] = places.vector(operands.pop(0))
        address, *given = operands
        fields[_FIRST : _FIRST + len(given)] = [places.vector(operand) for operand in given]
    fields[_ADDRESS] = places.vector(address)
    if access.count == 2:
        step_ = access.size * access.stride
        fields[_OFFSET], fields[_OFFSET2] = (modifiers.get(f"offset{index}", 0) * step_ for index in (0, 1))
        if access.kind == "load" and fields[_FIRST] <= fields[_ADDRESS] < fields[_SECOND]:
            # Of two places the one that overwrites the address is read last.
            fields[_FIRST], fields[_SECOND] = fields[_SECOND], fields[_FIRST]
            fields[_OFFSET], fields[_OFFSET2] = fields[_OFFSET2], fields[_OFFSET]
    else:
        fields[_OFFSET] = modifiers.get("offset", 0)
    return fields


def supported(row: Row) -> bool:
    """Whether the native engine carries an opcode."""
    access = row.access
    if access is None:
        return False
    return access.kind != "atomic" or atomics.supported(row)


FAMILIES = (Family(("lds",), lambda row: ("D",) if supported(row) else (), _shape, _fields, emit),)
