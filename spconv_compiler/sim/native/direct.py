"""Loads straight to local memory (`buffer_load … lds`, `global_load_lds_…`), and the waits at which they land.

Lane l writes at the base in M0, plus the instruction's offset, plus l times the bytes of a lane. A load may land at
any time from its issue to the wait that covers it: at issue the data is written, and its words count as written by
this wave but not initialised; the wait makes them initialised (sim/transfers.py). What is under way stands in the
context, in the order of issue. Without checks the data is simply there at issue.
"""

from __future__ import annotations

from spconv_compiler.sim import cells as rules
from spconv_compiler.sim import local as local_rules
from spconv_compiler.sim.native import fences, layout, quads
from spconv_compiler.sim.native import local_cells as cells
from spconv_compiler.sim.native.emit import CHUNK, POINTER, Handler, Module, Value, like, vector_type
from spconv_compiler.sim.native.lanes import check_suspect
from spconv_compiler.sim.native.layout import Code
from spconv_compiler.sim.native.memory_block import ROOM, ROOM_SUSPECT, SPARE_LOCAL
from spconv_compiler.sim.native.settle import Shared, settle_quad, shared, step, suspect, tag, take
from spconv_compiler.sim.rows import Access
from spconv_compiler.sim.transfers import CAPACITY

_WORDS = [("start", "i64"), ("step", "i64"), ("lanes", "i64")]


def count_issue(h: Handler) -> None:
    """One more instruction that vmcnt counts."""
    if h.build.checks:
        h.set_state(layout.ISSUED, h.binary("add", h.state(layout.ISSUED), h.constant(1, "i32")))


def check_base(h: Handler) -> None:
    """M0 must be defined."""
    base = h.constant(layout.M0, "i64")
    h.check(h.compare("ne", h.scalar_defined(base), h.constant(-1, "i32")), Code.M0_UNDEFINED)


def load(module: Module, scope: str, access: Access, offset: int) -> str:
    """The step that loads from the addresses in ROOM to LDS; offset: the field with the instruction's offset."""
    name = f"direct_{scope}_{access.size}{'_signed' if access.signed else ''}"
    return step(module, name, lambda f: _emit_load(f, scope, access, offset))


def _emit_load(f: Shared, scope: str, access: Access, offset: int) -> None:
    width = max(4, access.size)
    lanes, zero = f.exec(), f.constant(0, "i64")
    start = f.convert("zext", f.scalar(f.constant(layout.M0, "i64")), "i64")
    start = f.binary("add", start, f.field(offset))
    _check_place(f, start, width, lanes)
    _emit_data(f, scope, access, start, lanes)
    check_suspect(f)
    if f.build.checks:
        numbers = (start, f.constant(width, "i64"), lanes)
        with f.when(f.compare("ne", lanes, zero)):
            f.call(_cells(f.module, "issue"), "", f.context, *numbers)
        check_suspect(f)
        _note(f, *numbers)
    f.done()


def _check_place(f: Shared, start: Value, width: int, lanes: Value) -> None:
    """The words up to that of the highest lane must lie in local memory."""
    zero = f.constant(0, "i64")
    count = f.binary("sub", f.constant(layout.LANES, "i64"), f.count_zeros("ctlz", lanes))
    end = f.binary("add", start, f.binary("mul", count, f.constant(width, "i64")))
    beyond = f.compare("sgt", end, f.convert("sext", f.state(layout.LDS_BYTES), "i64"))
    bad = f.binary("or", beyond, f.compare("slt", start, zero))
    if f.build.checks:
        bad = f.binary("or", bad, f.compare("ne", f.binary("and", start, f.constant(3, "i64")), zero))
    f.fault_if(f.binary("and", bad, f.compare("ne", lanes, zero)), Code.MEMORY)


def _emit_data(f: Shared, scope: str, access: Access, start: Value, lanes: Value) -> None:
    """Copies the bytes of all lanes, those of lanes that are off to a place of no use; checks where they come from."""
    size, checks, width = access.size, f.build.checks, max(4, access.size)
    room, local = f.address(f.context, ROOM), f.state(layout.LDS, POINTER)
    spare = f.binary("sub", f.launch(layout.LDS_STRIDE), f.constant(SPARE_LOCAL, "i64"))
    kind = rules.READ if scope == "read" else rules.UPDATE
    if checks:
        distance = f.launch(layout.CELL_DISTANCE)
        mine, many = tag(f, kind), tag(f, kind, f.constant(rules.MANY, "i32"))
    with f.loop(8 * layout.LANES, 32) as quad:
        places = [f.load(f.address(room, quad.index, 8 * lane), "i64") for lane in range(4)]
        first = f.binary("lshr", quad.index, f.constant(3, "i64"))
        on = f.binary("lshr", lanes, first)
        for lane, place in enumerate(places):
            number = f.binary("add", first, f.constant(lane, "i64"))
            target = f.binary("add", start, f.binary("mul", number, f.constant(width, "i64")))
            active = f.convert("trunc", f.binary("lshr", on, f.constant(lane, "i64")), "i1")
            _copy(f, access, quads.pointer(f, place), f.address(local, f.select(active, target, spare)))
        if checks:
            words = [f.binary("and", place, f.constant(-4, "i64")) for place in places] if size < 4 else places
            beside = [f.address(quads.pointer(f, word), distance) for word in words]
            found = quads.load_cells(f, beside, size)
            tests = [quads.relevant(f, quads.steady(f, kind, cell, mine, many), size) for cell in found]
            with f.when(f.invert(quads.every(f, tests)), likely=False):
                settle_quad(f, scope, size, found, beside, quad.index, mine, many)


def _copy(f: Shared, access: Access, source: Value, target: Value) -> None:
    """The bytes of a lane; less than a word becomes a word."""
    if access.size == 12:
        f.store(f.load(source, vector_type("i32", 2), 4), target, 4)
        f.store(f.load(f.address(source, 8), "i32"), f.address(target, 8), 4)
    elif access.size >= 4:
        f.store(f.load(source, vector_type("i32", access.size // 4), 4), target, 4)
    else:
        narrow = f.load(source, f"i{8 * access.size}")
        f.store(f.convert("sext" if access.signed else "zext", narrow, "i32"), target, 4)


# Cells of local memory.


def _cells(module: Module, what: str) -> str:
    """Name of a function (context, start, step, lanes) on the cells of words.

    what: "issue": tests and notes words on their way; "test", then "land": of words that land.
    """
    return shared(module, f"direct_{what}", _WORDS, lambda f, *values: _emit_cells(f, what, *values))


def _emit_cells(f: Shared, what: str, start: Value, width: Value, lanes: Value) -> None:
    f.store(f.constant(0, "i64"), f.address(f.context, ROOM + ROOM_SUSPECT))
    base = f.address(f.state(layout.LDS_CELLS, POINTER), start)
    tags = cells.own_tags(f)
    simple, general, finished = f.label("all"), f.label("some"), f.label("over")
    f.branch(f.compare("eq", lanes, f.constant(-1, "i64")), simple, general, weights=(1000, 1))
    f.block(simple)
    none = f.constant(0, vector_type("i1"))
    with f.loop(f.binary("shl", width, f.constant(6, "i64")), 4 * CHUNK, [none]) as words:
        bad = _next_cells(f, what, f.address(base, words.index), vector_type("i32"), tags)
        words.nexts = [f.binary("or", words.values[0], bad)]
    packed = f.convert("bitcast", words.results[0], f"i{CHUNK}")
    suspect(f, f.compare("ne", packed, f.constant(0, packed.type)))
    f.jump(finished)
    f.block(general)
    with f.loop(layout.LANES) as lane:
        on = f.convert("trunc", f.binary("lshr", lanes, lane.index), "i1")
        with f.when(on), f.loop(width, 4) as word:
            at = f.address(base, f.binary("mul", lane.index, width), word.index)
            suspect(f, _next_cells(f, what, at, "i32", tags))
    f.jump(finished)
    f.block(finished)
    f.give()


def _next_cells(f: Shared, what: str, at: Value, type_: str, tags: Value) -> Value:
    """Tests or changes the cells at a pointer; i1s: the numpy engine must look at them."""
    found = f.load(at, type_, 4)
    own, whole = cells.spread(f, tags, found), f.constant(local_rules.INITIALISED, type_)
    if what == "land":
        f.store(cells.after_write(f, found, own, whole), at, 4)
        return f.constant(0, like(type_, "i1"))
    clash = cells.clash(f, f.binary("xor", found, own))
    if what == "test":
        written = f.compare("ne", f.binary("and", found, whole), f.constant(0, type_))
        return f.binary("or", clash, written)
    empty = f.binary("and", found, f.invert(whole))
    f.store(f.select(clash, found, cells.after_write(f, empty, own, f.constant(0, type_))), at, 4)
    return clash


# What is under way.


def _entry(f: Handler, number: Value) -> Value:
    """Pointer to an entry of the ring."""
    place = f.binary("and", number, f.constant(layout.FLIGHT_COUNT - 1, "i32"))
    size = f.constant(layout.FLIGHT_BYTES, "i64")
    return f.address(f.context, f.binary("mul", f.convert("zext", place, "i64"), size), layout.FLIGHTS)


def _note(f: Shared, start: Value, width: Value, lanes: Value) -> None:
    """Adds an entry. The oldest load lands where vmcnt cannot count this one: so the ring never overflows."""
    number, order = f.state(layout.FLIGHTS_ISSUED), f.state(layout.ISSUED)
    entry = _entry(f, number)
    values = {
        layout.FLIGHT_ORDER: order,
        layout.FLIGHT_START: f.convert("trunc", start, "i32"),
        layout.FLIGHT_STEP: f.convert("trunc", width, "i32"),
        layout.FLIGHT_LANES: lanes,
    }
    for offset, value in values.items():
        f.store(value, f.address(entry, offset))
    f.set_state(layout.FLIGHTS_ISSUED, f.binary("add", number, f.constant(1, "i32")))
    oldest = f.load(f.address(_entry(f, f.state(layout.FLIGHTS_LANDED)), layout.FLIGHT_ORDER), "i32")
    younger, capacity = f.binary("sub", order, oldest), f.constant(CAPACITY, "i32")
    with f.when(f.compare("uge", younger, capacity), likely=False):
        take(f, _land(f.module), capacity)


def wait(h: Handler, count: Value) -> None:
    """A wait for at most `count` (i32) younger vector memory instructions: loads land, releases are complete."""
    if not h.build.checks:
        return
    under_way = h.binary("xor", h.state(layout.FLIGHTS_ISSUED), h.state(layout.FLIGHTS_LANDED))
    pending = h.binary("or", under_way, h.state(layout.RELEASING))
    with h.when(h.compare("ne", pending, h.constant(0, "i32")), likely=False):
        take(h, _land(h.module), count)
        take(h, fences.complete(h.module), count)


def _land(module: Module) -> str:
    """The step at which loads land that have `count` (i32) or more younger instructions."""
    return step(module, "land", _emit_land, ("count", "i32"))


def _emit_land(f: Shared, count: Value) -> None:
    issued, end = f.state(layout.ISSUED), f.state(layout.FLIGHTS_ISSUED)
    limit = f.intrinsic("umin", "i32", count, f.constant(CAPACITY, "i32"))
    head, look, lands, after = f.label("next"), f.label("look"), f.label("lands"), f.label("after")
    number = f.fresh("i32")
    f.jump(head, f.state(layout.FLIGHTS_LANDED))
    f.block(head, number)
    f.branch(f.compare("eq", number, end), after, look)
    f.block(look)
    entry = _entry(f, number)
    younger = f.binary("sub", issued, f.load(f.address(entry, layout.FLIGHT_ORDER), "i32"))
    f.branch(f.compare("ult", younger, limit), after, lands)
    f.block(lands)
    start, width = (
        f.convert("zext", f.load(f.address(entry, offset), "i32"), "i64")
        for offset in (layout.FLIGHT_START, layout.FLIGHT_STEP)
    )
    lanes = f.load(f.address(entry, layout.FLIGHT_LANES), "i64")
    with f.when(f.compare("ne", lanes, f.constant(0, "i64"))):
        f.call(_cells(f.module, "test"), "", f.context, start, width, lanes)
        found = f.load(f.address(f.context, ROOM + ROOM_SUSPECT), "i64")
        f.fault_if(f.compare("ne", found, f.constant(0, "i64")), Code.LANDING)
        f.call(_cells(f.module, "land"), "", f.context, start, width, lanes)
    following = f.binary("add", number, f.constant(1, "i32"))
    f.set_state(layout.FLIGHTS_LANDED, following)
    f.jump(head, following)
    f.block(after)
    f.done()
