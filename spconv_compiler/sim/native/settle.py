"""The rules of races (sim/cells.py) as native code: for the lanes whose cells the quick tests do not pass.

`settle` looks at some lanes of an access, word by word: bytes that are not there, or an access out of order, set
ROOM_SUSPECT, and the numpy engine finds out what is wrong. Otherwise the cells get their new owners.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spconv_compiler.sim import cells as rules
from spconv_compiler.sim.native import layout, quads
from spconv_compiler.sim.native.emit import POINTER, Function, Handler, Module, Value
from spconv_compiler.sim.native.fence_tables import known
from spconv_compiler.sim.native.memory_block import ROOM, ROOM_DEFINED, ROOM_MASK, ROOM_SUSPECT
from spconv_compiler.sim.native.quads import pointer

# Accesses: (rule, whether initialised bytes are needed, whether inputs may be touched).
ACCESSES = {
    "read": (rules.READ, True, True),
    "fetch": (rules.UPDATE, True, True),  # a load of device scope
    "scalar": (rules.READ, False, True),
    "write": (rules.WRITE, False, False),
    "publish": (rules.UPDATE, False, False),  # a store of device scope
    "update": (rules.UPDATE, True, False),
}


class Shared(Handler):
    """A function that handlers of a module call; its first parameter is the context, and %rec the record."""

    def __init__(self, module: Module, name: str, parameters: Sequence[Value], result: str, *, cold: bool) -> None:
        self.context, self.record = parameters[0], Value("%rec", POINTER)
        self._fields = {}
        self._exec = None
        Function.__init__(self, module, name, parameters, result, linkage="internal")
        if cold:
            self._start = self._start.replace("attributes {", 'attributes {passthrough = ["noinline", "cold"], ', 1)

    def give(self, value: Value | None = None) -> None:
        """Ends the function."""
        self.line("  llvm.return" if value is None else f"  llvm.return {value} : {value.type}")
        self.close()


def shared(
    module: Module,
    name: str,
    parameters: Sequence[tuple[str, str]],
    body: Callable[..., None],
    result: str = "",
    *,
    cold: bool = False,
) -> str:
    """A function of the module, written when it is first asked for: body(function, *parameters)."""
    values = [Value("%ctx", POINTER), *(Value(f"%{word}", type_) for word, type_ in parameters)]
    return module.once(name, lambda module: body(Shared(module, name, values, result, cold=cold), *values[1:]))


def step(module: Module, name: str, body: Callable[..., None], *parameters: tuple[str, str]) -> str:
    """A part of handlers: (context, record, …) -> a record to go on with, or null when the wave stops."""

    def emit(f: Shared, record: Value, *values: Value) -> None:
        body(f, *values)

    return shared(module, name, [("rec", POINTER), *parameters], emit, POINTER)


def take(h: Handler, name: str, *arguments: Value) -> None:
    """Calls a step; where it stops the wave, so does this function."""
    found = h.call(name, POINTER, h.context, h.record, *arguments)
    stopped, after = h.label("stopped"), h.label("on")
    null = h.op(f"llvm.mlir.zero : {POINTER}", POINTER)
    h.branch(h.op(f'llvm.icmp "eq" {found}, {null} : {POINTER}', "i1"), stopped, after, weights=(1, 100000))
    with h.cold(stopped):
        h.go(null)
    h.block(after)


def last(h: Handler, name: str, *arguments: Value) -> None:
    """Calls a step and ends the function with it."""
    h.go(h.call(name, POINTER, h.context, h.record, *arguments))
    h.close()


def tag(f: Handler, kind: int, segment: Value | None = None) -> Value:
    """i32: a whole initialised word's cell with this owner: a segment, by default this wave's."""
    last = f.state(layout.SEGMENT) if segment is None else segment
    shifted = f.binary("shl", last, f.constant(rules.SEGMENT_SHIFT, "i32"))
    return f.binary("or", shifted, f.constant(rules.READY | kind << rules.KIND_SHIFT, "i32"))


def suspect(f: Handler, bad: Value) -> None:
    """Notes an i1: the numpy engine must look at this access."""
    place = f.address(f.context, ROOM + ROOM_SUSPECT)
    old = f.load(place, "i64")
    f.store(f.binary("or", old, f.convert("zext", bad, "i64")), place)


def settle_quad(
    f: Handler,
    access: str,
    size: int,
    cells: Sequence[Value],
    at: Sequence[Value],
    first: Value,
    mine: Value,
    many: Value,
) -> None:
    """The same for four lanes whose cells have been read, quick where all of them are simple.

    cells, at: of quads.load_cells; first: byte offset of the first lane's address in ROOM; mine, many: i32, the cells
    that this access leaves.
    """
    kind = ACCESSES[access][0]
    pairs = [quads.first_and_many(f, kind, each, mine, many) for each in cells]
    simple, rest, after = f.label("simple"), f.label("rest"), f.label("settled")
    f.branch(quads.every(f, [quads.relevant(f, fine, size) for _, fine in pairs]), simple, rest)
    f.block(simple)
    quads.store_cells(f, [new for new, _ in pairs], at, size)
    f.jump(after)
    f.block(rest)
    numbers = (f.constant(4, "i64"), f.constant(size, "i64"))
    f.call(settle(f.module, access), "", f.context, first, *numbers)
    f.jump(after)
    f.block(after)


def settle(module: Module, access: str) -> str:
    """Name of settle(context, first: i64 byte offset of a lane's address in the room, lanes: i64, size: i64)."""
    return shared(
        module,
        f"settle_{access}",
        [("first", "i64"), ("lanes", "i64"), ("size", "i64")],
        lambda f, *values: _emit_settle(f, access, *values),
        cold=True,
    )


def _words(f: Handler, size: Value) -> tuple[Value, Value]:
    """(bytes of all words that an access touches: i64; bytes in a word: i32)."""
    four = f.constant(4, "i64")
    return f.intrinsic("umax", "i64", size, four), f.convert("trunc", f.intrinsic("umin", "i64", size, four), "i32")


def _emit_settle(f: Shared, access: str, first: Value, lanes: Value, size: Value) -> None:
    distance = f.launch(layout.CELL_DISTANCE)
    room = f.address(f.context, first, ROOM)
    total, part_size = _words(f, size)
    with f.loop(f.binary("shl", lanes, f.constant(3, "i64")), 8) as lane:
        address = f.load(f.address(room, lane.index), "i64")
        shift = f.convert("trunc", f.binary("and", address, f.constant(3, "i64")), "i32")
        word = pointer(f, f.binary("and", address, f.constant(-4, "i64")))
        with f.loop(total, 4) as part:
            cell = f.address(word, part.index, distance)
            old = f.load(cell, "i32")
            new, bad = next_cell(f, access, old, shift, part_size)
            suspect(f, bad)
            f.store(f.select(bad, old, new), cell)
    f.give()


def next_cell(f: Handler, access: str, old: Value, shift: Value, size: Value) -> tuple[Value, Value]:
    """(the cell after an access of this wave to `size` bytes from byte `shift`, whether it is suspect: i1)."""
    _, initialised, inputs = ACCESSES[access]

    def number(value: int) -> Value:
        return f.constant(value, "i32")

    low = f.binary("and", old, number(rules.STATE_BITS))
    above = f.binary("lshr", low, f.binary("add", shift, size))
    bad = f.compare("eq", above, number(0))
    if initialised:
        mask = low_bits(f, size)
        missing = f.compare("ne", f.binary("and", f.binary("lshr", low, shift), mask), mask)
        bad = f.binary("or", bad, missing)
    kind = f.binary("and", f.binary("lshr", old, number(rules.KIND_SHIFT)), number(rules.KIND_MASK))
    last = f.binary("lshr", old, number(rules.SEGMENT_SHIFT))
    untouched = f.compare("ult", old, number(rules.STATE_BITS + 1))
    entry = _entry(f, access, kind, last, untouched)
    race = f.compare("uge", entry, number(rules.RACE))
    if access == "scalar":
        kept = f.binary("and", entry, number(rules.KIND_MASK))
        race = f.binary("or", race, f.compare("ne", kept, number(rules.READ)))
    new = f.binary("or", low, _new_owner(f, entry, last))
    input_ = f.compare("eq", f.binary("and", old, number(~rules.STATE_BITS)), number(rules.INPUT))
    race = f.select(input_, f.constant(0 if inputs else 1, "i1"), race)
    return f.select(input_, old, new), f.binary("or", bad, race)


def _relation(f: Handler, last: Value, untouched: Value) -> Value:
    """i32, of a segment to this wave's: cells.SAME, …"""
    mine, wave = f.state(layout.SEGMENT), f.state(layout.WAVE)
    many = f.compare("eq", last, f.constant(rules.MANY, "i32"))
    index = f.convert("zext", f.select(many, f.constant(0, "i32"), last), "i64")
    groups = f.launch(layout.SEGMENT_GROUPS, POINTER)
    group = f.load(f.address(groups, f.binary("shl", index, f.constant(2, "i64"))), "i32")
    ours = f.compare("eq", group, f.convert("trunc", f.state(layout.GROUP, "i64"), "i32"))
    ours = f.binary("and", ours, f.invert(many))
    now = f.compare("uge", last, f.binary("sub", mine, wave))
    relation = f.select(now, f.constant(rules.CONCURRENT, "i32"), f.constant(rules.ORDERED, "i32"))
    relation = f.select(ours, relation, f.constant(rules.FOREIGN, "i32"))
    same = f.binary("or", untouched, f.compare("eq", last, mine))
    return f.select(same, f.constant(rules.SAME, "i32"), relation)


def _entry(f: Handler, access: str, kind: Value, last: Value, untouched: Value) -> Value:
    """i32: the entry of cells.TABLE; where fences order a foreign access, that of one in order."""
    rule = ACCESSES[access][0]

    def row(state: int) -> Value:
        return f.constant(int.from_bytes(bytes(rules.TABLE[rule, state]), "little"), "i64")

    entries = row(rules.SETTLED)
    for state in (rules.READ, rules.UPDATE, rules.WRITE, rules.MIXED):
        entries = f.select(f.compare("eq", kind, f.constant(state, "i32")), row(state), entries)
    entries = f.select(untouched, row(rules.UNTOUCHED), entries)

    def column(relation: Value) -> Value:
        shift = f.convert("zext", f.binary("shl", relation, f.constant(3, "i32")), "i64")
        return f.convert("trunc", f.binary("and", f.binary("lshr", entries, shift), f.constant(0xFF, "i64")), "i32")

    relation = _relation(f, last, untouched)
    entry = column(relation)
    if access == "scalar":
        return entry
    many = f.compare("eq", last, f.constant(rules.MANY, "i32"))
    settled = known(f, f.select(many, f.constant(0, "i32"), last))
    settled = f.binary("and", settled, f.compare("eq", relation, f.constant(rules.FOREIGN, "i32")))
    fenced = kind if access in ("read", "fetch") else column(f.constant(rules.FENCED, "i32"))
    return f.select(settled, fenced, entry)


def _new_owner(f: Handler, entry: Value, last: Value) -> Value:
    """i32: the upper bits of the cell that an entry asks for."""
    mine, wave = f.state(layout.SEGMENT), f.state(layout.WAVE)
    waves = f.convert("trunc", f.launch(layout.GROUP_WAVES), "i32")
    several = f.binary("add", f.binary("sub", mine, wave), waves)
    choice = f.binary("lshr", entry, f.constant(rules.CHOICE_SHIFT, "i32"))
    segment = last
    for number, value in ((rules.MINE, mine), (rules.SEVERAL, several), (rules.ALL, f.constant(rules.MANY, "i32"))):
        segment = f.select(f.compare("eq", choice, f.constant(number, "i32")), value, segment)
    kind = f.binary("and", entry, f.constant(rules.KIND_MASK, "i32"))
    return f.binary(
        "or",
        f.binary("shl", segment, f.constant(rules.SEGMENT_SHIFT, "i32")),
        f.binary("shl", kind, f.constant(rules.KIND_SHIFT, "i32")),
    )


def low_bits(f: Handler, size: Value) -> Value:
    """i32 with as many low bits set as `size` says, below 32."""
    return f.binary("sub", f.binary("shl", f.constant(1, "i32"), size), f.constant(1, "i32"))


def mark(module: Module) -> str:
    """Name of mark(context, first, lanes, size): sets the initialised bits of the bytes that lanes store."""
    parameters = [("first", "i64"), ("lanes", "i64"), ("size", "i64")]
    return shared(module, "mark", parameters, _emit_mark, cold=True)


def _emit_mark(f: Shared, first: Value, lanes: Value, size: Value) -> None:
    distance, room = f.launch(layout.CELL_DISTANCE), f.address(f.context, first, ROOM)
    total, part_size = _words(f, size)
    _unless_suspect(f)
    with f.loop(f.binary("shl", lanes, f.constant(3, "i64")), 8) as lane:
        address = f.load(f.address(room, lane.index), "i64")
        word = pointer(f, f.binary("and", address, f.constant(-4, "i64")))
        bits = _bits_at(f, address, part_size)
        with f.loop(total, 4) as part:
            cell = f.address(word, part.index, distance)
            f.store(f.binary("or", f.load(cell, "i32"), bits), cell)
    f.give()


def _unless_suspect(f: Shared) -> None:
    """Leaves the cells as the numpy engine must find them."""
    wrong, fine = f.label("wrong"), f.label("fine")
    found = f.load(f.address(f.context, ROOM + ROOM_SUSPECT), "i64")
    f.branch(f.compare("ne", found, f.constant(0, "i64")), wrong, fine)
    f.block(wrong)
    f.line("  llvm.return")
    f.block(fine)


def _bits_at(f: Handler, address: Value, size: Value) -> Value:
    """i32: the initialised bits of `size` bytes (i32) in the word around an address."""
    shift = f.convert("trunc", f.binary("and", address, f.constant(3, "i64")), "i32")
    return f.binary("shl", low_bits(f, size), shift)


def forget_undefined(f: Handler, first: Value, size: int, base: Value) -> None:
    """After a store: data that is not defined counts as never written.

    first: offset of the first register of the data. base: i64, from the places in ROOM to their cells.
    """
    mask = f.load(f.address(f.context, ROOM + ROOM_MASK), "i64")
    total = mask
    for index in range(-(-size // 4)):
        known = f.vector_defined(f.binary("add", first, f.constant(layout.VECTOR_BYTES * index, "i64")))
        f.store(known, f.address(f.context, ROOM + ROOM_DEFINED + 8 * index))
        total = f.binary("and", total, known)
    name = shared(f.module, "forget", [("base", "i64"), ("size", "i64")], _emit_forget, cold=True)
    with f.when(f.compare("ne", total, mask), likely=False):
        f.call(name, "", f.context, base, f.constant(size, "i64"))


def _emit_forget(f: Shared, base: Value, size: Value) -> None:
    room = f.address(f.context, ROOM)
    total, part_size = _words(f, size)
    mask = f.load(f.address(room, ROOM_MASK), "i64")
    _unless_suspect(f)
    with f.loop(total, 4) as part:
        known = f.load(f.address(room, f.binary("shl", part.index, f.constant(1, "i64")), ROOM_DEFINED), "i64")
        left, head, body, end = f.fresh("i64"), f.label("next"), f.label("lane"), f.label("end")
        f.jump(head, f.binary("and", mask, f.invert(known)))
        f.block(head, left)
        f.branch(f.compare("ne", left, f.constant(0, "i64")), body, end)
        f.block(body)
        lane = f.binary("shl", f.count_zeros("cttz", left), f.constant(3, "i64"))
        place = f.load(f.address(room, lane), "i64")
        word = f.binary("add", f.binary("and", place, f.constant(-4, "i64")), base)
        cell = f.address(pointer(f, word), part.index)
        f.store(f.binary("and", f.load(cell, "i32"), f.invert(_bits_at(f, place, part_size))), cell)
        f.jump(head, f.binary("and", left, f.binary("sub", left, f.constant(1, "i64"))))
        f.block(end)
    f.give()
