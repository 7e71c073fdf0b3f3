"""Handlers of buffer, global and scalar memory instructions.

A vector instruction first finds the addresses of its lanes (lanes.py). Loads and stores then take four lanes at a
time (quads.py): data and cells are read together, and one test tells whether every cell is as the access wants it.
Where it is not, the rules are applied word by word (settle.py). The functions that do this are shared by all opcodes
of a size and kind; handlers are what is left: reading operands.
"""

from __future__ import annotations

from collections.abc import Sequence

from spconv_compiler.sim import cells as rules
from spconv_compiler.sim.errors import UnsupportedError
from spconv_compiler.sim.instruction import Instruction, Operand
from spconv_compiler.sim.native import atomics, direct, fences, layout, quads
from spconv_compiler.sim.native.emit import Handler, Module, Value, lanes_of
from spconv_compiler.sim.native.family import Family, Places
from spconv_compiler.sim.native.lanes import check_suspect, descriptor, find_lanes, room_word
from spconv_compiler.sim.native.layout import Code
from spconv_compiler.sim.native.memory_block import (
    ROOM,
    ROOM_MASK,
    SAFE_LINE,
    SAFE_LOAD,
    SAFE_STORE,
    SAFE_UPDATE,
)
from spconv_compiler.sim.native.settle import (
    Shared,
    forget_undefined,
    last,
    mark,
    settle,
    settle_quad,
    step,
    suspect,
    tag,
    take,
)
from spconv_compiler.sim.native.trace import trace
from spconv_compiler.sim.rows import Access, Row

# Bytes of a cache line of the host.
_LINE = 64
_DATA, _ADDRESS, _BASE, _OFFSET, _SCALAR_OFFSET, _RESULT = range(6)


# Loads.


def _load(module: Module, scope: str, access: Access) -> str:
    """The step that loads from the addresses in ROOM; scope: of settle.ACCESSES."""
    name = f"load_{scope}_{access.size}{'_signed' if access.signed else ''}{access.half}"
    return step(module, name, lambda f: _emit_load(f, scope, access))


def _emit_load(f: Shared, scope: str, access: Access) -> None:
    kind, size = rules.READ if scope == "read" else rules.UPDATE, access.size
    checks, count, first = f.build.checks, -(-size // 4), f.field(_DATA)
    targets = [f.target(registers_of(f, first, index), index) for index in range(count)]
    full = f.compare("eq", f.exec(), f.constant(-1, "i64"))
    target = f.address(f.context, f.select(full, first, f.constant(layout.SCRATCH, "i64")))
    room = f.address(f.context, ROOM)
    if checks:
        distance = f.launch(layout.CELL_DISTANCE)
        mine, many = tag(f, kind), tag(f, kind, f.constant(rules.MANY, "i32"))
    lanes = 8 if size == 16 else 4
    if size == 16:
        _look_ahead(f, room)
    with f.loop(8 * layout.LANES, 8 * lanes) as state:
        places = [f.load(f.address(room, state.index, 8 * lane), "i64") for lane in range(lanes)]
        pointers = [quads.pointer(f, place) for place in places]
        register = f.binary("lshr", state.index, f.constant(1, "i64"))
        if lanes == 8:
            found = quads.load_eights(f, pointers)
        else:
            found = quads.shaped(f, quads.load_words(f, pointers, size), access, first, register)
        for words, at in zip(found, quads.registers_at(f, target, count, register), strict=True):
            f.store(words, at, 4 * lanes)
        for quad in range(0, lanes, 4) if checks else ():
            beside = _cell_places(f, places[quad : quad + 4], size, distance)
            cells = quads.load_cells(f, beside, size)
            tests = [quads.relevant(f, quads.steady(f, kind, cell, mine, many), size) for cell in cells]
            with f.when(f.invert(quads.every(f, tests)), likely=False):
                index = f.binary("add", state.index, f.constant(8 * quad, "i64"))
                settle_quad(f, scope, size, cells, beside, index, mine, many)
    check_suspect(f)
    if scope == "fetch":
        fences.note_releases(f)
    for each in targets:
        each.finish(f.vector_defined(first) if access.half == "hi" else f.constant(-1, "i64"))
    f.done()


def _look_ahead(f: Handler, room: Value) -> None:
    """Asks for the lines behind those of the first lanes: rows of a matrix operand are read piece by piece."""
    for lane in range(16):
        place = f.load(f.address(room, 8 * lane), "i64")
        f.prefetch(f.address(quads.pointer(f, place), _LINE))


def registers_of(f: Handler, first: Value, index: int) -> Value:
    """Offset of a register behind the first."""
    return f.binary("add", first, f.constant(layout.VECTOR_BYTES * index, "i64"))


def _numbers(f: Handler, *values: int) -> list[Value]:
    return [f.constant(value, "i64") for value in values]


def _cell_places(f: Handler, places: Sequence[Value], size: int, distance: Value) -> list[Value]:
    """Pointers to the cells of four lanes."""
    if size < 4:
        places = [f.binary("and", place, f.constant(-4, "i64")) for place in places]
    return [f.address(quads.pointer(f, place), distance) for place in places]


# Stores.


def _store(module: Module, scope: str, access: Access) -> str:
    """The step that stores to the addresses in ROOM; scope: of settle.ACCESSES."""
    return step(module, f"store_{scope}_{access.size}{access.half}", lambda f: _emit_store(f, scope, access))


def _emit_store(f: Shared, scope: str, access: Access) -> None:
    size = access.size
    checks, count, first = f.build.checks, -(-size // 4), f.field(_DATA)
    source = f.address(f.context, first)
    room = f.address(f.context, ROOM)
    kind = rules.WRITE if scope == "write" else rules.UPDATE
    if checks:
        distance = f.launch(layout.CELL_DISTANCE)
        mine = tag(f, kind)
    with f.loop(8 * layout.LANES, 32) as quad:
        places = [f.load(f.address(room, quad.index, 8 * lane), "i64") for lane in range(4)]
        register = f.binary("lshr", quad.index, f.constant(1, "i64"))
        words = [f.load(at, quads.QUAD, 16) for at in quads.registers_at(f, source, count, register)]
        if checks:
            at = _cell_places(f, places, size, distance)
            own = _own_words if size >= 4 else _own_bytes
            with f.when(f.invert(own(f, at, places, size, mine)), likely=False):
                arguments = (f.context, quad.index, *_numbers(f, 4, size))
                f.call(settle(f.module, scope), "", *arguments)
                f.call(mark(f.module), "", *arguments)
        words = quads.to_store(f, words, access)
        quads.store_words(f, words, [quads.pointer(f, place) for place in places], size)
    if checks:
        suspect(f, quads.verify(f, room, room_word(f, ROOM_MASK), None, source, access))
        forget_undefined(f, first, size, distance)
    check_suspect(f)
    f.done()


def _own_words(f: Handler, at: Sequence[Value], places: Sequence[Value], size: int, mine: Value) -> Value:
    """Makes untouched words this wave's, initialised; i1: all of them were untouched, or this wave's already."""
    tests, made = [], []
    for cells in quads.load_cells(f, at, size):
        splat = f.broadcast(mine, lanes_of(cells.type))
        whole = f.binary("or", cells, f.constant(rules.READY >> 1, cells.type))
        untouched = f.compare("eq", whole, f.constant(rules.READY, cells.type))
        fine = f.binary("or", untouched, f.compare("eq", whole, splat))
        made.append(f.select(fine, splat, cells))
        tests.append(quads.relevant(f, fine, size))
    quads.store_cells(f, made, at, size)
    return quads.every(f, tests)


def _own_bytes(f: Handler, at: Sequence[Value], places: Sequence[Value], size: int, mine: Value) -> Value:
    """The same for bytes and halves, lane after lane, since lanes share words."""
    total = f.constant(1, "i1")
    for cell, place in zip(at, places, strict=True):
        old = f.load(cell, "i32")
        shift = f.convert("trunc", f.binary("and", place, f.constant(3, "i64")), "i32")
        bits = f.binary("shl", f.constant((1 << size) - 1, "i32"), shift)
        owner = f.binary("and", old, f.constant(~15, "i32"))
        whole = f.constant(rules.WHOLE_WORD, "i32")
        owned = f.binary("and", mine, f.constant(~15, "i32"))
        fine = f.binary("or", f.compare("eq", owner, whole), f.compare("eq", owner, owned))
        ready = f.binary("or", f.binary("and", old, f.constant(15, "i32")), bits)
        f.store(f.select(fine, f.binary("or", ready, owned), old), cell)
        total = f.binary("and", total, fine)
    return total


# Handlers.


def _scope(access: Access, shape: str) -> str:
    """The rules that an access follows: of settle.ACCESSES."""
    device = shape.endswith("d")
    if access.kind == "load":
        return "fetch" if device else "read"
    return "publish" if device else "write"


def _begin_buffer(h: Handler, offen: bool, size: Value, below: Value, safe: Value) -> None:
    """Checks the descriptor and the offsets, in the order of the numpy engine, and finds the lanes."""
    start, count = descriptor(h, h.field(_BASE))
    place = h.field(_SCALAR_OFFSET)
    _require(h, h.as_lanes(h.scalar_defined(place)), Code.SCALAR_OFFSET_UNDEFINED)
    scalar = h.convert("zext", h.scalar(place), "i64")
    base = h.binary("add", start, scalar)
    register = h.field(_ADDRESS) if offen else None
    if register is not None:
        _require(h, h.vector_defined(register), Code.OFFSET_UNDEFINED)
    direct.count_issue(h)
    find_lanes(h, "offset" if offen else "none", register, base, h.field(_OFFSET), count, size, below, safe)
    trace(h, size)
    h.done()


def _begin_global(h: Handler, based: bool, size: Value, below: Value, safe: Value) -> None:
    """The same for an address in registers."""
    register = h.field(_ADDRESS)
    known = h.vector_defined(register)
    base = h.constant(0, "i64")
    if based:
        known = h.binary("and", known, h.as_lanes(h.scalar_defined(h.field(_BASE), 2)))
        base = h.scalar(h.field(_BASE), 2)
    else:
        upper = h.binary("add", register, h.constant(layout.VECTOR_BYTES, "i64"))
        known = h.binary("and", known, h.vector_defined(upper))
    _require(h, known, Code.ADDRESS_UNDEFINED)
    direct.count_issue(h)
    find_lanes(h, "offset" if based else "pair", register, base, h.field(_OFFSET), None, size, below, safe)
    trace(h, size)
    h.done()


def _require(h: Handler, known: Value, code: Code) -> None:
    """All active lanes must be defined."""
    h.check_lanes(h.binary("and", h.exec(), h.invert(known)), code)


def _safe(h: Handler, kind: str) -> Value:
    """The address for lanes that access nothing."""
    end = h.launch(layout.ARENA_END)
    if kind != "store":
        return h.binary("add", end, h.constant(SAFE_LOAD if kind == "load" else SAFE_UPDATE, "i64"))
    address = h.binary("add", h.binary("shl", h.launch(SAFE_LINE), h.constant(6, "i64")), end)
    address = h.binary("add", address, h.constant(SAFE_STORE, "i64"))
    if h.build.checks:
        # As if nobody had stored there.
        cells = h.address(quads.pointer(h, address), h.launch(layout.CELL_DISTANCE))
        h.store(h.constant(rules.WHOLE_WORD, quads.QUAD), cells)
    return address


def emit(module: Module, row: Row, shape: str, name: str) -> None:
    """The handler of a buffer or global instruction.

    shape: the form of the address ("V", "N": buffer with and without a register; "P", "S": global, and flat, with a
    pair, or with a scalar base), then "r": the old value is returned, or "d": device scope.
    """
    access = row.access
    if access is None or not supported(row):
        raise UnsupportedError(f"{row.name}: the native engine has no handler for it")
    h = Handler(module, name)
    if access.lds:
        direct.check_base(h)
    form = shape[0]
    parameters = (("size", "i64"), ("below", "i64"), ("safe", "i64"))
    alignment = access.size if access.kind == "atomic" else min(access.size, 4)
    if row.kind == "buffer":
        begin = step(module, f"begin_buffer_{form}", lambda f, *v: _begin_buffer(f, form == "V", *v), *parameters)
    else:
        begin = step(module, f"begin_global_{form}", lambda f, *v: _begin_global(f, form == "S", *v), *parameters)
    take(h, begin, *_numbers(h, access.size, alignment - 1), _safe(h, access.kind))
    if access.kind == "atomic":
        last(h, atomics.update(module, row, "r" in shape, _DATA, _RESULT))
    elif access.lds:
        last(h, direct.load(module, _scope(access, shape), access, _OFFSET))
    else:
        move = _load if access.kind == "load" else _store
        last(h, move(module, _scope(access, shape), access))


# Records.


def _shapes(row: Row) -> Sequence[str]:
    access = row.access
    assert access is not None
    return {"buffer": ("V", "N"), "global": ("P", "S"), "flat": ("P",)}[row.kind]


def _operands(instruction: Instruction) -> dict[str, Operand]:
    """Operands by what they are for: data, address, base, scalar offset; result where it is apart from the data."""
    access, operands = instruction.row.access, list(instruction.operands)
    assert access is not None
    if instruction.row.kind == "flat":
        operands.append(Operand("off", 0))
    if access.lds:
        return dict(zip(("address", "base", "scalar"), operands, strict=False))
    if instruction.row.kind == "buffer":
        named = dict(zip(("data", "address", "base", "scalar"), operands, strict=True))
        return {**named, "result": named["data"]} if instruction.modifiers.get("sc0") else named
    if access.kind == "load":
        return dict(zip(("data", "address", "base"), operands, strict=True))
    names = ("result", "address", "data", "base") if len(operands) == 4 else ("address", "data", "base")
    return dict(zip(names, operands, strict=True))


def _shape(instruction: Instruction) -> str:
    access = instruction.row.access
    if access is None or not supported(instruction.row):
        raise UnsupportedError(f"{instruction}: the native engine has no handler for it")
    operands = _operands(instruction)
    if instruction.row.kind == "buffer":
        form = "N" if operands["address"].kind == "off" else "V"
    else:
        form = "P" if operands["base"].kind == "off" else "S"
    if access.kind == "atomic":
        return form + ("r" if "result" in operands else "")
    return form + ("d" if instruction.modifiers.get("sc1") else "")


def _fields(instruction: Instruction, places: Places) -> Sequence[int]:
    operands = _operands(instruction)
    fields = [0] * 6
    if "data" in operands:
        fields[_DATA] = places.vector(operands["data"])
    if operands["address"].kind != "off":
        fields[_ADDRESS] = places.vector(operands["address"])
    if operands["base"].kind != "off":
        fields[_BASE] = places.scalar(operands["base"], "u64")
    fields[_OFFSET] = instruction.modifiers.get("offset", 0)
    if "scalar" in operands:
        fields[_SCALAR_OFFSET] = places.scalar(operands["scalar"], "u32")
    if "result" in operands:
        fields[_RESULT] = places.vector(operands["result"])
    return fields


def supported(row: Row) -> bool:
    """Whether the native engine carries an opcode."""
    access = row.access
    if access is None:
        return False
    return access.kind != "atomic" or atomics.supported(row)


FAMILIES = (
    Family(("buffer", "global", "flat"), lambda row: _shapes(row) if supported(row) else (), _shape, _fields, emit),
)
