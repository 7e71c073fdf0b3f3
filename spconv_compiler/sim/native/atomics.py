"""Atomic read-modify-writes of device memory, lane after lane, or sixteen float sums in a row at once.

With one thread an update is a load and a store; with more it is an atomic instruction of the host, or a loop around
compare-and-exchange. Sums of floats, which no host has an instruction for, are loads and stores under one lock for
all lanes: 64 locked instructions took half of the time of a gemm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spconv_compiler.sim import cells as rules
from spconv_compiler.sim.native import fences, layout, quads
from spconv_compiler.sim.native.emit import CHUNK, POINTER, Handler, Module, Value, vector_type
from spconv_compiler.sim.native.lanes import check_suspect, reduce_or, room_word
from spconv_compiler.sim.native.layout import Code
from spconv_compiler.sim.native.memory_block import LOCK, ROOM, ROOM_MASK, SHARED
from spconv_compiler.sim.native.quads import pointer
from spconv_compiler.sim.native.settle import Shared, settle_quad, shared, step, tag
from spconv_compiler.sim.rows import Row

# From old value and data (integers of the size of the access) to the new value.
Combine = Callable[[Handler, Value, Value], Value]


def _integer(name: str) -> Combine:
    return lambda f, old, data: f.binary(name, old, data)


def _extreme(name: str) -> Combine:
    return lambda f, old, data: f.intrinsic(name, old.type, old, data)


def _add_float(f: Handler, old: Value, data: Value) -> Value:
    kind = {"i32": "f32", "i64": "f64"}[old.type]
    total = f.binary("fadd", f.convert("bitcast", old, kind), f.convert("bitcast", data, kind))
    return f.convert("bitcast", total, old.type)


def _reverse(f: Handler, old: Value, data: Value) -> Value:
    return f.binary("sub", data, old)


def _increment(f: Handler, old: Value, limit: Value) -> Value:
    more = f.binary("add", old, f.constant(1, old.type))
    return f.select(f.compare("uge", old, limit), f.constant(0, old.type), more)


def _decrement(f: Handler, old: Value, limit: Value) -> Value:
    zero, less = f.constant(0, old.type), f.binary("sub", old, f.constant(1, old.type))
    wraps = f.binary("or", f.compare("eq", old, zero), f.compare("ugt", old, limit))
    return f.select(wraps, limit, less)


def _half(f: Handler, word: Value, place: int) -> Value:
    shifted = f.binary("lshr", word, f.constant(16, "i32")) if place else word
    return f.convert("fpext", f.convert("bitcast", f.convert("trunc", shifted, "i16"), "f16"), "f32")


def _add_halves(f: Handler, old: Value, data: Value) -> Value:
    parts = []
    for place in (0, 1):
        total = f.convert("fptrunc", f.binary("fadd", _half(f, old, place), _half(f, data, place)), "f16")
        parts.append(f.convert("zext", f.convert("bitcast", total, "i16"), "i32"))
    return f.binary("or", parts[0], f.binary("shl", parts[1], f.constant(16, "i32")))


def _add_brain_halves(f: Handler, old: Value, data: Value) -> Value:
    """bf16: rounded to nearest even on the bits; a NaN stays one, made quiet."""
    high, sixteen, parts = f.constant(0xFFFF0000, "i32"), f.constant(16, "i32"), []
    for place in (0, 1):
        raised = [f.binary("and", w, high) if place else f.binary("shl", w, sixteen) for w in (old, data)]
        total = f.binary("fadd", *(f.convert("bitcast", w, "f32") for w in raised))
        bits = f.convert("bitcast", total, "i32")
        upper = f.binary("lshr", bits, sixteen)
        odd = f.binary("and", upper, f.constant(1, "i32"))
        bias = f.binary("add", odd, f.constant(0x7FFF, "i32"))
        rounded = f.binary("lshr", f.binary("add", bits, bias), sixteen)
        quiet = f.binary("or", upper, f.constant(0x40, "i32"))
        parts.append(f.select(f.compare("uno", total, total), quiet, rounded))
    return f.binary("or", parts[0], f.binary("shl", parts[1], sixteen))


# By the name of the opcode behind "_atomic_", without its size: what it does, and the host's own instruction for it.
OPERATIONS: dict[str, tuple[Combine, str | None]] = {
    "add": (_integer("add"), "add"),
    "sub": (_integer("sub"), "sub"),
    "and": (_integer("and"), "_and"),
    "or": (_integer("or"), "_or"),
    "xor": (_integer("xor"), "_xor"),
    "smin": (_extreme("smin"), None),
    "smax": (_extreme("smax"), None),
    "umin": (_extreme("umin"), None),
    "umax": (_extreme("umax"), None),
    "swap": (lambda f, old, data: data, "xchg"),
    "rsub": (_reverse, None),
    "inc": (_increment, None),
    "dec": (_decrement, None),
    "pk_add_f16": (_add_halves, None),
    "pk_add_bf16": (_add_brain_halves, None),
    "add_f32": (_add_float, None),
    "add_f64": (_add_float, None),
}


# Operations whose words nothing but themselves updates while they run.
LOCKED = ("add_f32", "add_f64", "pk_add_f16", "pk_add_bf16")

# Compare and swap has two values, and no place in the table.
COMPARE = "cmpswap"

# The same of LDS opcodes, behind "ds_" and without "_rtn".
_LOCAL = {
    **{f"{name}_u{bits}": name for name in ("add", "sub", "rsub", "inc", "dec") for bits in (32, 64)},
    **{
        f"{name}_{sign}{bits}": f"{kind}{name}"
        for name in ("min", "max")
        for sign, kind in (("i", "s"), ("u", "u"))
        for bits in (32, 64)
    },
    **{f"{name}_b{bits}": name for name in ("and", "or", "xor") for bits in (32, 64)},
    **{f"wrxchg_b{bits}": "swap" for bits in (32, 64)},
    **{f"cmpst_b{bits}": COMPARE for bits in (32, 64)},
    **{name: name for name in ("add_f32", "add_f64", "pk_add_f16", "pk_add_bf16")},
}


def operation_of(row: Row) -> str:
    """The operation of an atomic opcode, such as "add_f32"; "" where it has none here."""
    if row.name.startswith("ds_"):
        return _LOCAL.get(row.name.removeprefix("ds_").replace("_rtn", ""), "")
    return row.name.partition("_atomic_")[2].removesuffix("_x2")


def supported(row: Row) -> bool:
    """Whether this module knows the operation."""
    return operation_of(row) in (*OPERATIONS, COMPARE)


def update(module: Module, row: Row, returns: bool, data: int, result: int) -> str:
    """The step of an atomic: the words at the addresses in ROOM; data, result: fields of the record."""
    access = row.access
    assert access is not None
    words, operation = access.size // 4, operation_of(row)
    return step(
        module,
        f"update_{operation}_{words}{'_returning' if returns else ''}",
        lambda f: _emit_update(f, operation, words, data, result if returns else None),
    )


def register(f: Handler, first: Value, index: int) -> Value:
    """Offset of the register `index` behind the first."""
    return f.binary("add", first, f.constant(layout.VECTOR_BYTES * index, "i64"))


def check_data(h: Handler, words: int, *sources: Value) -> None:
    """The data of all lanes that access memory must be defined; sources: offsets of the first registers."""
    known = h.constant(-1, "i64")
    for source in sources:
        for index in range(words):
            known = h.binary("and", known, h.vector_defined(register(h, source, index)))
    h.check_lanes(h.binary("and", room_word(h, ROOM_MASK), h.invert(known)), Code.ATOMIC_UNDEFINED)


def _check(module: Module, size: int) -> str:
    """Name of check_update(context): the cells of all lanes."""
    return shared(module, f"check_update_{size}", [], lambda f: _emit_check(f, size))


def _emit_check(f: Shared, size: int) -> None:
    room, distance = f.address(f.context, ROOM), f.launch(layout.CELL_DISTANCE)
    mine, many = tag(f, rules.UPDATE), tag(f, rules.UPDATE, f.constant(rules.MANY, "i32"))
    with f.loop(8 * layout.LANES, 32) as quad:
        places = [f.load(f.address(room, quad.index, 8 * lane), "i64") for lane in range(4)]
        # Eight bytes at a place that is not a multiple of eight are for the numpy engine to refuse.
        at = [f.address(pointer(f, place), distance) for place in places]
        cells = quads.load_cells(f, at, size)
        tests = [quads.steady(f, rules.UPDATE, cell, mine, many) for cell in cells]
        with f.when(f.invert(quads.every(f, tests)), likely=False):
            settle_quad(f, "update", size, cells, at, quad.index, mine, many)
    f.give()


def _emit_update(f: Shared, operation: str, words: int, data: int, result: int | None) -> None:
    given, wanted = f.field(data), None
    if operation == COMPARE:
        wanted = register(f, given, words)
    check_data(f, words, given, *(() if wanted is None else (wanted,)))
    if f.build.checks:
        f.call(_check(f.module, 4 * words), "", f.context)
        check_suspect(f)
    fences.note_releases(f)
    update_lanes(f, operation, words, given, None if result is None else f.field(result), None, wanted)
    f.done()


def update_lanes(
    f: Handler,
    operation: str,
    words: int,
    data: Value,
    result: Value | None,
    base: Value | None,
    wanted: Value | None = None,
) -> None:
    """Updates the words at the places in ROOM; data, result: offsets of registers.

    base: of places in local memory; None where they are addresses of device memory. wanted: of a compare and swap, the
    offset of the registers to compare with.
    """
    sources = [f.address(f.context, each) for each in (data, wanted) if each is not None]
    if result is None:
        _emit_lanes(f, operation, words, sources, None, base)
        return
    registers = [register(f, result, index) for index in range(words)]
    full = f.compare("eq", f.exec(), f.constant(-1, "i64"))
    target = f.address(f.context, f.select(full, result, f.constant(layout.SCRATCH, "i64")))
    targets = [f.target(each, place) for place, each in enumerate(registers)]
    # The data may lie in the registers of the result: lane by lane it is read before the old value is written, but
    # lanes that a buffer's range check drops give 0.
    mask, zero = room_word(f, ROOM_MASK), f.constant(0, quads.QUAD)
    _emit_lanes(f, operation, words, sources, target, base)
    with f.when(f.compare("ne", mask, f.exec()), likely=False):
        for word in range(words):
            with f.loop(layout.VECTOR_BYTES, 16) as each:
                place = f.address(target, each.index, word * layout.VECTOR_BYTES)
                lanes = f.binary("lshr", mask, f.binary("lshr", each.index, f.constant(2, "i64")))
                on = f.convert("bitcast", f.convert("trunc", lanes, "i4"), vector_type("i1", 4))
                f.store(f.select(on, f.load(place, quads.QUAD, 16), zero), place, 16)
    for target_ in targets:
        target_.finish(f.constant(-1, "i64"))


def _emit_lanes(
    f: Handler, operation: str, words: int, sources: Sequence[Value], target: Value | None, base: Value | None
) -> None:
    room = f.address(f.context, ROOM)
    type_ = "i32" if words == 1 else "i64"
    mask = room_word(f, ROOM_MASK)
    alone, many, end = f.label("alone"), f.label("many"), f.label("end")
    locked = base is None and operation in LOCKED
    several = base is None and not locked
    if locked:
        _lock(f, room)
    if operation == "add_f32" and target is None and base is None:
        mask = _add_rows(f, room, sources[0], mask)
    if several:
        f.branch(f.compare("eq", f.launch(SHARED), f.constant(0, "i64")), alone, many)
    else:
        f.jump(alone)
    for label in (alone, many) if several else (alone,):
        f.block(label)
        left, head, body = f.fresh("i64"), f.label("next"), f.label("lane")
        f.jump(head, mask)
        f.block(head, left)
        f.branch(f.compare("ne", left, f.constant(0, "i64")), body, end)
        f.block(body)
        lane = f.count_zeros("cttz", left)
        place = f.binary("shl", lane, f.constant(2, "i64"))
        number = f.load(f.address(room, f.binary("shl", lane, f.constant(3, "i64"))), "i64")
        word = pointer(f, number) if base is None else f.address(base, number)
        data, *wanted = (_lane_data(f, source, place, words) for source in sources)
        combine, host = (_if_equal(wanted[0]), None) if wanted else OPERATIONS[operation]
        old = _alone(f, combine, word, data, type_) if label == alone else _atomic(f, combine, host, word, data)
        if target is not None:
            f.store(old if words == 1 else f.convert("trunc", old, "i32"), f.address(target, place))
            if words == 2:
                upper = f.convert("trunc", f.binary("lshr", old, f.constant(32, "i64")), "i32")
                f.store(upper, f.address(target, place, layout.VECTOR_BYTES))
        f.jump(head, f.binary("and", left, f.binary("sub", left, f.constant(1, "i64"))))
    f.block(end)
    if locked:
        _unlock(f)


def _add_rows(f: Handler, room: Value, source: Value, mask: Value) -> Value:
    """Adds at once where CHUNK lanes have words that follow each other, as rows of a gemm's result do.

    Returns the lanes that are left.
    """
    steps, all_on = f.dense(range(0, 4 * CHUNK, 4), "i64"), f.constant((1 << CHUNK) - 1, "i64")
    with f.loop(layout.VECTOR_BYTES, 4 * CHUNK, [mask]) as chunk:
        places = f.load(f.address(room, f.binary("shl", chunk.index, f.constant(1, "i64"))), vector_type("i64"), 64)
        first = quads.element(f, places, 0)
        apart = f.binary("xor", places, f.binary("add", f.broadcast(first), steps))
        whole = f.compare("eq", reduce_or(f, apart), f.constant(0, "i64"))
        lane = f.binary("lshr", chunk.index, f.constant(2, "i64"))
        on = f.compare("eq", f.binary("and", f.binary("lshr", mask, lane), all_on), all_on)
        together = f.binary("and", whole, on)
        with f.when(together):
            word = pointer(f, first)
            # The next atomic often adds what lies behind.
            f.prefetch(f.address(word, 4 * CHUNK), write=True)
            data = f.load(f.address(source, chunk.index), vector_type("f32"), 64)
            f.store(f.binary("fadd", f.load(word, vector_type("f32"), 4), data), word, 4)
        done = f.select(together, f.binary("shl", all_on, lane), f.constant(0, "i64"))
        chunk.nexts = [f.binary("and", chunk.values[0], f.invert(done))]
    return chunk.results[0]


def _lock(f: Handler, room: Value) -> None:
    """Waits until no other thread adds floats, if there are others; asks for the words beforehand."""
    lock, one, zero = f.launch(LOCK, POINTER), f.constant(1, "i64"), f.constant(0, "i64")
    ask, take, look, wait, taken = (f.label(stem) for stem in ("ask", "take", "look", "wait", "taken"))
    f.branch(f.compare("eq", f.launch(SHARED), zero), taken, ask)
    f.block(ask)
    for lane in range(0, layout.LANES, CHUNK):
        f.prefetch(pointer(f, f.load(f.address(room, 8 * lane), "i64")), write=True)
    f.jump(take)
    f.block(take)
    before = f.op(f"llvm.atomicrmw xchg {lock}, {one} acquire : {POINTER}, i64", "i64")
    f.branch(f.compare("eq", before, zero), taken, wait)
    f.block(wait)
    f.line('  llvm.call_intrinsic "llvm.x86.sse2.pause"() : () -> ()')
    f.jump(look)
    f.block(look)
    held = f.op(f"llvm.load {lock} atomic monotonic {{alignment = 8 : i64}} : {POINTER} -> i64", "i64")
    f.branch(f.compare("eq", held, zero), take, wait)
    f.block(taken)


def _unlock(f: Handler) -> None:
    """Lets other threads add. One thread alone has no lock to give back, but a word for it."""
    zero = f.constant(0, "i64")
    f.line(f"  llvm.store {zero}, {f.launch(LOCK, POINTER)} atomic release {{alignment = 8 : i64}} : i64, {POINTER}")


def _if_equal(wanted: Value) -> Combine:
    return lambda f, old, data: f.select(f.compare("eq", old, wanted), data, old)


def _lane_data(f: Handler, source: Value, place: Value, words: int) -> Value:
    low = f.load(f.address(source, place), "i32")
    if words == 1:
        return low
    high = f.convert("zext", f.load(f.address(source, place, layout.VECTOR_BYTES), "i32"), "i64")
    return f.binary("or", f.convert("zext", low, "i64"), f.binary("shl", high, f.constant(32, "i64")))


def _alone(f: Handler, combine: Combine, word: Value, data: Value, type_: str) -> Value:
    old = f.load(word, type_)
    f.store(combine(f, old, data), word)
    return old


def _atomic(f: Handler, combine: Combine, host: str | None, word: Value, data: Value) -> Value:
    """The old value of an update that other threads see as one step."""
    type_ = data.type
    if host is not None:
        return f.op(f"llvm.atomicrmw {host} {word}, {data} monotonic : {POINTER}, {type_}", type_)
    expected, head, after = f.fresh(type_), f.label("again"), f.label("stored")
    f.jump(head, f.load(word, type_))
    f.block(head, expected)
    new = combine(f, expected, data)
    pair = f"!llvm.struct<({type_}, i1)>"
    found = f.op(f"llvm.cmpxchg {word}, {expected}, {new} monotonic monotonic : {POINTER}, {type_}", pair)
    old = f.op(f"llvm.extractvalue {found}[0] : {pair}", type_)
    done = f.op(f"llvm.extractvalue {found}[1] : {pair}", "i1")
    f.line(f"  llvm.cond_br {done}, {after}, {head}({old} : {type_})")
    f.block(after)
    return expected
