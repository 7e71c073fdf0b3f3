"""Moves data between memory and vector registers for four lanes at a time, with the tests of their cells.

Words of four lanes come lane by lane and are turned into one vector of four for each register, or the other way.
"""

from __future__ import annotations

from collections.abc import Sequence

from spconv_compiler.sim import cells as rules
from spconv_compiler.sim.native import layout
from spconv_compiler.sim.native.emit import Function, Handler, Value, lanes_of, vector_type
from spconv_compiler.sim.rows import Access

QUAD = vector_type("i32", 4)


def shuffle(f: Function, a: Value, b: Value, places: Sequence[int]) -> Value:
    """Elements of a and then b, by place."""
    type_ = vector_type("i32", len(places))
    return f.op(f"llvm.shufflevector {a}, {b} [{', '.join(map(str, places))}] : {a.type}", type_)


def gather(f: Function, values: Sequence[Value]) -> Value:
    """A vector of scalars."""
    type_ = vector_type(values[0].type, len(values))
    made = f.op(f"llvm.mlir.poison : {type_}", type_)
    for place, value in enumerate(values):
        index = f.constant(place, "i64")
        made = f.op(f"llvm.insertelement {value}, {made}[{index} : i64] : {type_}", type_)
    return made


def element(f: Function, vector: Value, place: int) -> Value:
    """One lane of a vector."""
    type_ = vector.type[7:-1].split("x", 1)[1]
    return f.op(f"llvm.extractelement {vector}[{f.constant(place, 'i64')} : i64] : {vector.type}", type_)


def transpose(f: Function, rows: Sequence[Value]) -> list[Value]:
    """Four vectors of two or four words into as many vectors of four, or four vectors of four back."""
    a, b, c, d = rows
    if a.type == vector_type("i32", 2):
        low, high = shuffle(f, a, b, [0, 1, 2, 3]), shuffle(f, c, d, [0, 1, 2, 3])
        return [shuffle(f, low, high, [0, 2, 4, 6]), shuffle(f, low, high, [1, 3, 5, 7])]
    low_ab, high_ab = shuffle(f, a, b, [0, 4, 1, 5]), shuffle(f, a, b, [2, 6, 3, 7])
    low_cd, high_cd = shuffle(f, c, d, [0, 4, 1, 5]), shuffle(f, c, d, [2, 6, 3, 7])
    return [
        shuffle(f, low_ab, low_cd, [0, 1, 4, 5]),
        shuffle(f, low_ab, low_cd, [2, 3, 6, 7]),
        shuffle(f, high_ab, high_cd, [0, 1, 4, 5]),
        shuffle(f, high_ab, high_cd, [2, 3, 6, 7]),
    ]


def untranspose(f: Function, registers: Sequence[Value]) -> list[Value]:
    """For each of four lanes its words, from vectors of four by register: vectors, or scalars of one word."""
    if len(registers) == 1:
        return [element(f, registers[0], lane) for lane in range(4)]
    if len(registers) == 2:
        low, high = (shuffle(f, registers[0], registers[1], places) for places in ([0, 4, 1, 5], [2, 6, 3, 7]))
        return [shuffle(f, half, half, places) for half in (low, high) for places in ([0, 1], [2, 3])]
    padded = [*registers, registers[-1]][:4]
    return transpose(f, padded)


def load_words(f: Function, places: Sequence[Value], size: int, last: int = 4) -> list[Value]:
    """Vectors of four by register from four pointers: of `size` bytes, 1, 2, or words; sub-words are zero-extended.

    Of three words the fourth is read too, and dropped.
    """
    if size < 4:
        narrow = f"i{8 * size}"
        return [gather(f, [f.convert("zext", f.load(place, narrow), "i32") for place in places])]
    if size == 4:
        return [gather(f, [f.load(place, "i32") for place in places])]
    width = 2 if size == 8 else 4
    rows = [f.load(place, vector_type("i32", width), last) for place in places]
    return transpose(f, rows)[: size // 4]


def load_eights(f: Function, places: Sequence[Value]) -> list[Value]:
    """Vectors of eight by register, from eight pointers to four words."""
    rows = [f.load(place, QUAD, 4) for place in places]
    # As the host's 256 bits are two times 128: lanes four apart share a vector.
    a, b, c, d = (shuffle(f, rows[lane], rows[lane + 4], range(8)) for lane in range(4))
    low, high = [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]
    first, second = [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]
    found = []
    for places_ in (low, high):
        left, right = shuffle(f, a, b, places_), shuffle(f, c, d, places_)
        found += [shuffle(f, left, right, each) for each in (first, second)]
    return found


def store_words(f: Function, registers: Sequence[Value], places: Sequence[Value], size: int) -> None:
    """The reverse of load_words."""
    for words, place in zip(untranspose(f, registers), places, strict=True):
        if size < 4:
            f.store(f.convert("trunc", words, f"i{8 * size}"), place)
        elif size == 12:
            f.store(shuffle(f, words, words, [0, 1]), place, 4)
            f.store(element(f, words, 2), f.address(place, 8), 4)
        else:
            f.store(words, place, 4)


def load_cells(f: Function, places: Sequence[Value], size: int) -> list[Value]:
    """Vectors of four or eight that hold the cells at four pointers; those of three words with one more: `relevant`."""
    if size <= 4:
        return [gather(f, [f.load(place, "i32") for place in places])]
    width = 2 if size == 8 else 4
    rows = [f.load(place, vector_type("i32", width), 4) for place in places]
    low, high = (shuffle(f, rows[i], rows[i + 1], range(2 * width)) for i in (0, 2))
    return [low, high] if width == 4 else [shuffle(f, low, high, range(8))]


def relevant(f: Function, fine: Value, size: int) -> Value:
    """A test of cells that the fourth of three words passes."""
    if size != 12:
        return fine
    bits = ", ".join(["false, false, false, true"] * (lanes_of(fine.type) // 4))
    mask = f.op(f"llvm.mlir.constant(dense<[{bits}]> : {fine.type}) : {fine.type}", fine.type)
    return f.binary("or", fine, mask)


def store_cells(f: Function, cells: Sequence[Value], places: Sequence[Value], size: int) -> None:
    """The reverse of load_cells; the fourth of three is left alone, since it may be another thread's."""
    if size <= 4:
        for lane, place in enumerate(places):
            f.store(element(f, cells[0], lane), place)
        return
    width = 2 if size == 8 else 4
    rows = [shuffle(f, v, v, range(at, at + width)) for v in cells for at in range(0, lanes_of(v.type), width)]
    for row, place in zip(rows, places, strict=True):
        if size == 12:
            f.store(shuffle(f, row, row, [0, 1]), place, 4)
            f.store(element(f, row, 2), f.address(place, 8), 4)
        else:
            f.store(row, place, 4)


def every(f: Function, tests: Sequence[Value]) -> Value:
    """i1: all lanes of all tests."""
    total = tests[0]
    for test in tests[1:]:
        total = f.binary("and", total, test)
    packed = f.convert("bitcast", total, f"i{lanes_of(total.type)}")
    return f.compare("eq", packed, f.constant(-1, packed.type))


def steady(f: Handler, kind: int, cells: Value, mine: Value, many: Value) -> Value:
    """i1s: whole, initialised words that an access of this kind leaves as they are.

    mine, many: the cells of an access by this wave and by many, i32. Inputs pass as read by many.
    """
    count = lanes_of(cells.type)
    shared = (
        f.binary("or", cells, f.constant(rules.READ << rules.KIND_SHIFT, cells.type)) if kind == rules.READ else cells
    )
    own = f.compare("eq", cells, f.broadcast(mine, count))
    return f.binary("or", own, f.compare("eq", shared, f.broadcast(many, count)))


def first_and_many(f: Handler, kind: int, cells: Value, mine: Value, many: Value) -> tuple[Value, Value]:
    """(cells after an access, which of them are that simple: i1s): untouched words, and words of other workgroups.

    A word that was touched in the same way becomes one of many where workgroups have one wave, which makes every other
    segment one of another workgroup. For the rest: settle.py.
    """
    count = lanes_of(cells.type)
    untouched = f.compare("eq", cells, f.constant(rules.READY, cells.type))
    bits = f.binary("and", cells, f.constant(rules.READY | rules.KIND_MASK << rules.KIND_SHIFT, cells.type))
    alike = f.compare("eq", bits, f.constant(rules.READY | kind << rules.KIND_SHIFT, cells.type))
    alone = f.compare("eq", f.launch(layout.SEGMENT_WIDTH), f.constant(1, "i64"))
    alike = f.binary("and", alike, f.broadcast(alone, count))
    kept = steady(f, kind, cells, mine, many)
    new = f.select(untouched, f.broadcast(mine, count), f.select(kept, cells, f.broadcast(many, count)))
    return new, f.binary("or", f.binary("or", kept, untouched), alike)


def registers_at(f: Function, base: Value, count: int, place: Value) -> list[Value]:
    """Pointers to four lanes of registers that follow each other; place: i64, bytes in a register."""
    return [f.address(base, place, layout.VECTOR_BYTES * index) for index in range(count)]


def shaped(f: Handler, found: Sequence[Value], access: Access, first: Value, register: Value) -> list[Value]:
    """What a load writes: signs extended, or one half of the old words replaced; first: offset of the register."""
    if access.size >= 4 or not (access.signed or access.half):
        return list(found)
    words = found[0]
    if access.signed:
        up = f.constant(32 - 8 * access.size, QUAD)
        words = f.binary("ashr", f.binary("shl", words, up), up)
    if access.half:
        old = f.load(f.address(f.context, first, register), QUAD, 16)
        low = f.constant(0xFFFF, QUAD)
        if access.half == "lo":
            kept, words = f.binary("and", old, f.invert(low)), f.binary("and", words, low)
        else:
            kept, words = f.binary("and", old, low), f.binary("shl", words, f.constant(16, QUAD))
        words = f.binary("or", kept, words)
    return [words]


def to_store(f: Handler, words: list[Value], access: Access) -> list[Value]:
    """What a store takes from its registers."""
    if access.half != "hi":
        return words
    return [f.binary("lshr", words[0], f.constant(16, QUAD))]


def verify(f: Handler, room: Value, mask: Value, base: Value | None, source: Value, access: Access) -> Value:
    """i1: two lanes wrote different values to one place: what a lane finds there is not what it wrote.

    base: of the places in the room; None where they are addresses.
    """
    size = access.size
    nothing = f.constant(0, QUAD)
    result, looked, after = f.fresh("i1"), f.label("compare"), f.label("compared")
    f.line(f"  llvm.cond_br {_increasing(f, room, size)}, {after}({f.constant(0, 'i1')} : i1), {looked}")
    f.block(looked)
    with f.loop(8 * layout.LANES, 32, [nothing]) as quad:
        numbers = [f.load(f.address(room, quad.index, 8 * lane), "i64") for lane in range(4)]
        places = [pointer(f, n) if base is None else f.address(base, n) for n in numbers]
        register = f.binary("lshr", quad.index, f.constant(1, "i64"))
        given = [f.load(at, QUAD, 16) for at in registers_at(f, source, -(-size // 4), register)]
        total = nothing
        for words, wrote in zip(load_words(f, places, size), to_store(f, given, access), strict=True):
            differs = f.binary("xor", words, wrote)
            if size < 4:
                differs = f.binary("and", differs, f.constant((1 << 8 * size) - 1, QUAD))
            total = f.binary("or", total, differs)
        lanes = f.binary("lshr", mask, f.binary("lshr", quad.index, f.constant(3, "i64")))
        on = f.convert("bitcast", f.convert("trunc", lanes, "i4"), vector_type("i1", 4))
        quad.nexts = [f.binary("or", quad.values[0], f.select(on, total, nothing))]
    differ = f.compare("ne", quad.results[0], nothing)
    f.jump(after, f.compare("ne", f.convert("bitcast", differ, "i4"), f.constant(0, "i4")))
    f.block(after, result)
    return result


def _increasing(f: Handler, room: Value, size: int) -> Value:
    """i1: every place lies behind the bytes of the place before, so that no two lanes meet."""
    type_ = vector_type("i64", 4)
    bytes_, total = f.constant(size, type_), f.constant(0, type_)
    for lane in range(0, layout.LANES, 4):
        # The last one is compared with itself and four lanes before: there is no place behind it.
        first = lane if lane + 4 < layout.LANES else lane - 1
        here, following = (f.load(f.address(room, 8 * (first + step)), type_, 8) for step in (0, 1))
        total = f.binary("or", total, f.binary("sub", f.binary("sub", following, here), bytes_))
    least = f.op(f'"llvm.intr.vector.reduce.or"({total}) : ({type_}) -> i64', "i64")
    return f.compare("sge", least, f.constant(0, "i64"))


def pointer(f: Function, address: Value) -> Value:
    """An i64 as a pointer."""
    return f.op(f"llvm.inttoptr {address} : i64 to !llvm.ptr", "!llvm.ptr")
