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
    _emit_lanes(h, form, count, register, base, fixed, size, below, safe)
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
    below: Value,
    safe: Value,
) -> None:
    exec_, zero = f.exec(), f.constant(0, "i64")
    room = f.address(f.context, ROOM)
    for word in (ROOM_PARTLY, ROOM_SUSPECT):
        f.store(zero, f.address(room, word))
    simple, general, finished = f.label("all"), f.label("some"), f.label("over")
    f.branch(f.compare("eq", exec_, f.constant(-1, "i64")), simple, general, weights=(1000, 1))
    f.block(simple)
    fine = None
    if form == "pair":
        assert register is not None
        bits = _emit_pairs(f, register, fixed, base, room)
    else:
        bits, fine = _emit_offsets(f, register, fixed, base, room, count, size, below)
    f.store(bits, f.address(room, ROOM_BITS))
    f.store(exec_, f.address(room, ROOM_MASK))
    if fine is None:
        f.jump(finished)
    else:
        f.branch(fine, finished, general, weights=(1000, 1))
    f.block(general)
    _emit_some(f, form, count, (zero if register is None else register, base, fixed, size, safe), room)
    f.jump(finished)
    f.block(finished)


def _emit_offsets(
    f: Handler,
    register: Value | None,
    fixed: Value,
    base: Value,
    room: Value,
    count: Value | None,
    size: Value,
    below: Value,
) -> tuple[Value, Value]:
    """Addresses of 64 lanes that are on, from offsets of 32 bits; gives (ROOM_BITS, i1: all are inside and aligned).

    The largest offset tells whether all are inside, the offsets or-ed whether all are aligned.
    """
    narrow, start = vector_type("i32"), f.binary("add", base, fixed)
    splat, nothing = f.broadcast(start), f.constant(0, narrow)
    with f.loop(layout.VECTOR_BYTES, 4 * CHUNK, [nothing, nothing]) as state:
        offsets = nothing if register is None else f.vector(register, state.index)
        place = f.address(room, f.binary("shl", state.index, f.constant(1, "i64")))
        f.store(f.binary("add", f.convert("zext", offsets, _WIDE), splat), place, 64)
        most, bits = state.values
        state.nexts = [f.intrinsic("umax", narrow, most, offsets), f.binary("or", bits, offsets)]
    most, bits = (_reduced(f, name, lanes) for name, lanes in zip(("umax", "or"), state.results, strict=True))
    fine = f.constant(1, "i1")
    if count is not None:
        end = f.binary("add", f.binary("add", most, fixed), size)
        fine = f.compare("sle", end, count)
    if f.build.checks:
        odd = f.binary("and", f.binary("or", start, bits), below)
        fine = f.binary("and", fine, f.compare("eq", odd, f.constant(0, "i64")))
    arena = f.launch(layout.ARENA)
    first = f.binary("sub", start, arena)
    found = f.binary("or", first, f.binary("add", first, most))
    # The least offset may lead into the arena from a start that lies outside.
    inside = f.compare("ult", found, f.binary("sub", f.launch(layout.ARENA_END), arena))
    return found, f.binary("and", fine, inside)


def _reduced(f: Handler, name: str, lanes: Value) -> Value:
    """i64 of all lanes of 32 bits in one."""
    return f.convert("zext", f.op(f'"llvm.intr.vector.reduce.{name}"({lanes}) : ({lanes.type}) -> i32', "i32"), "i64")


def _emit_pairs(f: Handler, register: Value, fixed: Value, base: Value, room: Value) -> Value:
    """Addresses of 64 lanes that are on, from pairs of registers; gives all offsets in the arena or-ed."""
    nothing = f.constant(0, _WIDE)
    arena = f.broadcast(f.launch(layout.ARENA))
    start = f.broadcast(f.binary("add", base, fixed))
    with f.loop(layout.VECTOR_BYTES, 4 * CHUNK, [nothing]) as state:
        places = f.binary("add", _offsets(f, "pair", register, f.constant(0, "i64"), state.index), start)
        f.store(places, f.address(room, f.binary("shl", state.index, f.constant(1, "i64"))), 64)
        state.nexts = [f.binary("or", state.values[0], f.binary("sub", places, arena))]
    return reduce_or(f, state.results[0])


def _emit_some(f: Handler, form: str, count: Value | None, values: tuple[Value, ...], room: Value) -> None:
    """The same where not all lanes are on and inside."""
    register, base, fixed, size, safe = values
    zero, nothing = f.constant(0, "i64"), f.constant(0, _WIDE)
    arena = f.launch(layout.ARENA)
    limit = nothing if count is None else f.broadcast(f.binary("sub", count, size))
    shift, start, spare = f.broadcast(f.binary("sub", base, arena)), f.broadcast(arena), f.broadcast(safe)
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
