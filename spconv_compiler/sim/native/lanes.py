"""The addresses of the lanes of a memory instruction, into ROOM of the context.

A lane that is off, or wholly beyond the end of a buffer, gets a safe address, so that what follows works on all lanes
alike. Bounds of the arena and alignment are tested on all addresses or-ed together.
"""

from __future__ import annotations

from spconv_compiler.sim.execute_memory import RAW_BUFFER
from spconv_compiler.sim.native import layout
from spconv_compiler.sim.native.emit import CHUNK, Handler, Value, vector_type
from spconv_compiler.sim.native.layout import Code
from spconv_compiler.sim.native.memory_block import ROOM, ROOM_BITS, ROOM_MASK, ROOM_PARTLY, ROOM_SUSPECT

_WIDE = vector_type("i64")
_LOW48 = 0xFFFFFFFFFFFF


def find_lanes(
    h: Handler,
    form: str,
    register: Value | None,
    base: Value,
    fixed: Value,
    count: Value | None,
    size: Value,
    below: Value,
    safe: Value,
) -> None:
    """Fills ROOM, and checks the addresses.

    Args:
        form: "offset": 32 bits in a register; "pair": 64 bits in two; "none": the same address for all lanes.
        register: its offset, or None. base: i64, added to all; fixed: i64, part of the offset that a buffer's range
        check sees. count: i64, bytes of the buffer, or None. size: i64, bytes of a lane. below: i64, the
        alignment less one. safe: i64, see SAFE_LOAD.
    """
    ranged = count is not None
    _emit_lanes(h, form, count, register, base, fixed, size, safe)
    if ranged:
        h.check_lanes(room_word(h, ROOM_PARTLY), Code.PARTLY_BEYOND)
    bits = room_word(h, ROOM_BITS)
    bad = h.compare("uge", bits, h.binary("sub", h.launch(layout.ARENA_END), h.launch(layout.ARENA)))
    if h.build.checks:
        wrong = h.compare("ne", h.binary("and", bits, below), h.constant(0, "i64"))
        bad = h.binary("or", bad, wrong)
    h.fault_if(bad, Code.MEMORY)


def descriptor(h: Handler, resource: Value) -> tuple[Value, Value]:
    """(base, bytes), i64, of a raw buffer descriptor in four scalar registers at an offset; faults where it is none."""
    upper = h.binary("add", resource, h.constant(8, "i64"))
    low, high = h.scalar(resource, 2), h.scalar(upper, 2)
    known = h.binary("and", h.scalar_defined(resource, 2), h.scalar_defined(upper, 2))
    h.check(h.compare("ne", known, h.constant(-1, "i64")), Code.DESCRIPTOR_UNDEFINED)
    flags = h.compare("ne", h.binary("lshr", high, h.constant(32, "i64")), h.constant(RAW_BUFFER, "i64"))
    stride = h.compare("ugt", low, h.constant(_LOW48, "i64"))
    h.check(h.binary("or", flags, stride), Code.DESCRIPTOR_STRANGE)
    return h.binary("and", low, h.constant(_LOW48, "i64")), h.binary("and", high, h.constant(0xFFFFFFFF, "i64"))


def room_word(h: Handler, offset: int) -> Value:
    """An i64 of the room."""
    return h.load(h.address(h.context, ROOM + offset), "i64")


def check_suspect(h: Handler) -> None:
    """A fault where the rules found something: see native/faults.py."""
    if h.build.checks:
        h.fault_if(h.compare("ne", room_word(h, ROOM_SUSPECT), h.constant(0, "i64")), Code.MEMORY)


def _offsets(f: Handler, form: str, register: Value, fixed: Value, place: Value) -> Value:
    """i64 of sixteen lanes."""
    splat = f.broadcast(fixed)
    if form == "none":
        return splat
    low = f.convert("zext", f.vector(register, place), _WIDE)
    if form == "pair":
        upper = f.vector(f.binary("add", register, f.constant(layout.VECTOR_BYTES, "i64")), place)
        high = f.binary("shl", f.convert("zext", upper, _WIDE), f.constant(32, _WIDE))
        low = f.binary("or", low, high)
    return f.binary("add", low, splat)


def reduce_or(f: Handler, lanes: Value) -> Value:
    """All lanes or-ed."""
    return f.op(f'"llvm.intr.vector.reduce.or"({lanes}) : ({lanes.type}) -> i64', "i64")


def _emit_lanes(
    f: Handler,
    form: str,
    count: Value | None,
    register: Value | None,
    base: Value,
    fixed: Value,
    size: Value,
    safe: Value,
) -> None:
    exec_, zero = f.exec(), f.constant(0, "i64")
    given = zero if register is None else register
    arena = f.launch(layout.ARENA)
    shift = f.broadcast(f.binary("sub", base, arena))
    start = f.broadcast(arena)
    room = f.address(f.context, ROOM)
    for word in (ROOM_PARTLY, ROOM_SUSPECT):
        f.store(zero, f.address(room, word))
    nothing = f.constant(0, _WIDE)
    limit = nothing if count is None else f.broadcast(f.binary("sub", count, size))
    simple, general, finished = f.label("all"), f.label("some"), f.label("over")
    f.branch(f.compare("eq", exec_, f.constant(-1, "i64")), simple, general, weights=(1000, 1))

    f.block(simple)
    with f.loop(layout.VECTOR_BYTES, 4 * CHUNK, [nothing, nothing]) as state:
        offsets = _offsets(f, form, given, fixed, state.index)
        inside = f.binary("add", offsets, shift)
        place = f.address(room, f.binary("shl", state.index, f.constant(1, "i64")))
        f.store(f.binary("add", inside, start), place, 64)
        beyond = nothing if count is None else f.binary("or", state.values[1], f.binary("sub", limit, offsets))
        state.nexts = [f.binary("or", state.values[0], inside), beyond]
    f.store(reduce_or(f, state.results[0]), f.address(room, ROOM_BITS))
    f.store(exec_, f.address(room, ROOM_MASK))
    if count is not None:
        f.branch(f.compare("slt", reduce_or(f, state.results[1]), zero), general, finished, weights=(1, 1000))
    else:
        f.jump(finished)

    f.block(general)
    _emit_some(f, form, count, (given, fixed, limit, shift, start, safe), room)
    f.jump(finished)
    f.block(finished)


def _emit_some(f: Handler, form: str, count: Value | None, values: tuple[Value, ...], room: Value) -> None:
    """The same where not all lanes are on and inside."""
    register, fixed, limit, shift, start, safe = values
    zero, nothing = f.constant(0, "i64"), f.constant(0, _WIDE)
    spare = f.broadcast(safe)
    with f.loop(layout.VECTOR_BYTES, 4 * CHUNK, [nothing, zero, zero]) as state:
        bits, mask, partly = state.values
        offsets = _offsets(f, form, register, fixed, state.index)
        take = f.chunk_mask(f.exec(), state.index)
        if count is not None:
            take = f.binary("and", take, f.compare("slt", offsets, f.broadcast(count)))
            cut = f.binary("and", take, f.compare("sgt", offsets, limit))
            partly = f.binary("or", partly, f.chunk_bits(cut, state.index))
        found = f.binary("add", offsets, shift)
        chosen = f.select(take, f.binary("add", found, start), spare)
        f.store(chosen, f.address(room, f.binary("shl", state.index, f.constant(1, "i64"))), 64)
        bits = f.binary("or", bits, f.select(take, found, nothing))
        state.nexts = [bits, f.binary("or", mask, f.chunk_bits(take, state.index)), partly]
    bits, mask, partly = state.results
    for offset, value in ((ROOM_BITS, reduce_or(f, bits)), (ROOM_MASK, mask), (ROOM_PARTLY, partly)):
        f.store(value, f.address(room, offset))
