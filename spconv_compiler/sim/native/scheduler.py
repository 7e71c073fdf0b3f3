"""The run loop and the scheduler of workgroups, written once for all kernels.

A thread calls `run` with its launch block. Workgroups are taken from a list that all threads share, into slots of a
window. A workgroup runs until it ends or a slice is over: then the next slot has its turn, so that a workgroup may
wait for another one that is resident. The waves of a workgroup run one after the other, each to its next barrier.
"""

from __future__ import annotations

from spconv_compiler.sim.local import EPOCHS, INITIALISED
from spconv_compiler.sim.native import layout
from spconv_compiler.sim.native.emit import CHUNK, POINTER, Function, Module, Value, vector_type
from spconv_compiler.sim.native.layout import Code, Status
from spconv_compiler.sim.native.memory_block import FENCE_PREVIOUS

# What `step` returns, and `run`.
_ENDED, _SLICE_OVER, _STOPPED = 0, 1, 2
_ZEROS = (
    *(layout.STATUS, layout.EPOCH, layout.SCC, layout.SCC_DEFINED, layout.FAULT_CODE),
    *(layout.ISSUED, layout.FLIGHTS_LANDED, layout.FLIGHTS_ISSUED, layout.RELEASING, layout.NOTED, layout.SEGMENT),
)
_CHECK_GROUPS = 64


def emit(module: Module) -> None:
    """Adds `run(launch block)`; afterwards FAULTY of the launch block tells whether a wave is at fault."""
    _emit_wave(module)
    _emit_total(module)
    _emit_segments(module)
    _emit_start(module)
    _emit_step(module)
    _emit_run(module)


class _Code(Function):
    """A function of the scheduler, with access to launch block and contexts."""

    def get(self, base: Value, offset: int, type_: str = "i64") -> Value:
        return self.load(self.address(base, offset), type_)

    def put(self, base: Value, offset: int, value: Value | int, type_: str = "i64") -> None:
        self.store(self.constant(value, type_) if isinstance(value, int) else value, self.address(base, offset))

    def give(self, value: Value | int | None = None, type_: str = "i32") -> None:
        """Ends the block and the function."""
        if value is None:
            self.line("  llvm.return")
            return
        known = self.constant(value, type_) if isinstance(value, int) else value
        self.line(f"  llvm.return {known} : {known.type}")

    def is_(self, predicate: str, a: Value, b: int) -> Value:
        return self.compare(predicate, a, self.constant(b, a.type))

    def scaled(self, a: Value, b: Value) -> Value:
        return self.binary("mul", a, b)


def _function(module: Module, name: str, result: str, *parameters: Value, exported: bool = False) -> _Code:
    return _Code(module, name, parameters, result, linkage="" if exported else "internal")


_LAUNCH, _CONTEXT = Value("%launch", POINTER), Value("%ctx", POINTER)


def _emit_wave(module: Module) -> None:
    """run_wave(context): runs records until a handler gives none."""
    f = _function(module, "run_wave", "", _CONTEXT)
    record, following = f.fresh(POINTER), None
    head, out = f.label("next"), f.label("out")
    f.line(f"  llvm.br {head}({f.get(_CONTEXT, layout.RESUME, POINTER)} : {POINTER})")
    f.block(head, record)
    f.put(record, layout.COUNT, f.binary("add", f.get(record, layout.COUNT), f.constant(1, "i64")))
    following = f.call_pointer(f.get(record, layout.HANDLER, POINTER), POINTER, _CONTEXT, record)
    null = f.op(f"llvm.mlir.zero : {POINTER}", POINTER)
    more = f.op(f'llvm.icmp "ne" {following}, {null} : {POINTER}', "i1")
    f.line(f"  llvm.cond_br {more}, {head}({following} : {POINTER}), {out}")
    f.block(out)
    f.give()
    f.close()


def _emit_total(module: Module) -> None:
    """total(launch block): instructions that this thread has run."""
    f = _function(module, "total", "i64", _LAUNCH)
    record = f.get(_LAUNCH, layout.PROGRAM, POINTER)
    with f.loop(f.get(_LAUNCH, layout.RECORDS), 1, [f.constant(0, "i64")]) as loop:
        place = f.binary("shl", loop.index, f.constant(6, "i64"))
        count = f.load(f.address(record, place, layout.COUNT), "i64")
        loop.nexts = [f.binary("add", loop.values[0], count)]
    f.give(loop.results[0])
    f.close()


def _contexts(f: _Code, slot_context: Value, wave: Value) -> Value:
    return f.address(slot_context, f.scaled(wave, f.get(_LAUNCH, layout.CONTEXT_BYTES)))


def _emit_segments(module: Module) -> None:
    """begin_epoch(launch block, first context): numbers for the waves of a workgroup; 0 when none are left."""
    first = Value("%first", POINTER)
    f = _function(module, "begin_epoch", "i32", _LAUNCH, first)
    if not module.build.checks:
        f.give(1)
        f.close()
        return
    width = f.get(_LAUNCH, layout.SEGMENT_WIDTH)
    shared = f.get(_LAUNCH, layout.SEGMENT_NEXT, POINTER)
    start = f.op(f"llvm.atomicrmw add {shared}, {width} monotonic : {POINTER}, i64", "i64")
    full, fine = f.label("full"), f.label("fine")
    f.branch(f.is_("ugt", f.binary("add", start, width), layout.MOST_SEGMENTS), full, fine, weights=(1, 1000))
    f.block(full)
    f.give(0)
    f.block(fine)
    group = f.convert("trunc", f.get(first, layout.GROUP), "i32")
    with f.when(f.is_("ne", width, 1)):
        # The block of segments before the barrier, or 0.
        previous = f.get(_LAUNCH, FENCE_PREVIOUS, POINTER)
        place = f.address(previous, f.binary("shl", start, f.constant(2, "i64")))
        f.store(f.get(first, layout.SEGMENT, "i32"), place)
    table = f.get(_LAUNCH, layout.SEGMENT_GROUPS, POINTER)
    with f.loop(width) as loop:
        place = f.binary("shl", f.binary("add", start, loop.index), f.constant(2, "i64"))
        f.store(group, f.address(table, place))
    with f.loop(f.get(_LAUNCH, layout.GROUP_WAVES)) as loop:
        number = f.convert("trunc", f.binary("add", start, loop.index), "i32")
        f.put(_contexts(f, first, loop.index), layout.SEGMENT, number)
    f.give(1)
    f.close()


def _emit_start(module: Module) -> None:
    """start(launch block, first context, slot, group): what the hardware sets before the first instruction."""
    first, slot, group = Value("%first", POINTER), Value("%slot", "i64"), Value("%group", "i64")
    f = _function(module, "start", "i32", _LAUNCH, first, slot, group)
    f.put(first, layout.RESIDENT, 1, "i32")
    local_place = f.scaled(slot, f.get(_LAUNCH, layout.LDS_STRIDE))
    local = f.address(f.get(_LAUNCH, layout.LDS_BASE, POINTER), local_place)
    cells = f.address(f.get(_LAUNCH, layout.LDS_CELLS_BASE, POINTER), local_place)
    size = f.get(_LAUNCH, layout.LDS_SIZE)
    words = f.binary("and", f.binary("add", size, f.constant(63, "i64")), f.constant(-64, "i64"))
    with f.when(f.is_("ne", words, 0)):
        _fill(f, local, words, layout.FILL)
        _fill(f, cells, words, 0)
    ids = _group_ids(f, group)
    with f.loop(f.get(_LAUNCH, layout.GROUP_WAVES)) as loop:
        context = _contexts(f, first, loop.index)
        for offset, value in ((layout.GROUP, group), (layout.RESUME, f.get(_LAUNCH, layout.PROGRAM, POINTER))):
            f.put(context, offset, value)
        f.put(context, layout.LAUNCH, _LAUNCH)
        f.put(context, layout.LDS, local)
        f.put(context, layout.LDS_CELLS, cells)
        f.put(context, layout.LDS_BYTES, f.convert("trunc", size, "i32"))
        f.put(context, layout.WAVE, f.convert("trunc", loop.index, "i32"))
        f.put(context, layout.SLOT, f.convert("trunc", slot, "i32"))
        for offset in _ZEROS:
            f.put(context, offset, 0, "i32")
        _give_private(f, context, slot, loop.index)
        _set_registers(f, context, loop.index, ids)
    f.give(f.call("begin_epoch", "i32", _LAUNCH, first))
    f.close()


def _give_private(f: _Code, context: Value, slot: Value, wave: Value) -> None:
    """Scratch memory: the bytes of all lanes, and with checks as many that say which were written."""
    number = f.binary("add", f.scaled(slot, f.get(_LAUNCH, layout.GROUP_WAVES)), wave)
    place = f.scaled(number, f.get(_LAUNCH, layout.PRIVATE_STRIDE))
    private = f.address(f.get(_LAUNCH, layout.PRIVATE_BASE, POINTER), place)
    f.put(context, layout.PRIVATE, private)
    if f.build.checks:
        size = f.binary("shl", f.get(_LAUNCH, layout.PRIVATE_BYTES), f.constant(6, "i64"))
        with f.when(f.is_("ne", size, 0), likely=False):
            _fill(f, f.address(private, size), size, 0)


def _fill(f: _Code, pointer: Value, size: Value | int, word: int) -> None:
    """Sets memory to a word; size: a multiple of 64 bytes above 0."""
    chunk = f.constant(word, vector_type("i32"))
    with f.loop(size, 4 * CHUNK) as loop:
        f.store(chunk, f.address(pointer, loop.index), 64)


def _group_ids(f: _Code, group: Value) -> list[Value]:
    """x, y, z of a workgroup, as i32."""
    found, rest = [], group
    for offset in (layout.GRID_X, layout.GRID_Y, layout.GRID_Z):
        size = f.get(_LAUNCH, offset)
        found.append(f.convert("trunc", f.binary("urem", rest, size), "i32"))
        rest = f.binary("udiv", rest, size)
    return found


def _set_registers(f: _Code, context: Value, wave: Value, ids: list[Value]) -> None:
    vectors = f.get(_LAUNCH, layout.VECTOR_COUNT)
    scalars = 4 * layout.SCALAR_COUNT
    _fill(f, f.address(context, layout.SCALARS), scalars, layout.FILL)
    _fill(f, f.address(context, layout.VECTORS), f.binary("shl", vectors, f.constant(8, "i64")), layout.FILL)
    if f.build.checks:
        _fill(f, f.address(context, layout.SCALAR_DEFINED), scalars, 0)
        eights = f.binary("add", f.binary("shl", vectors, f.constant(3, "i64")), f.constant(63, "i64"))
        _fill(f, f.address(context, layout.VECTOR_DEFINED), f.binary("and", eights, f.constant(-64, "i64")), 0)
    kernarg = f.get(_LAUNCH, layout.KERNARG)
    lanes = f.binary("sub", f.get(_LAUNCH, layout.LANES_OF_GROUP), f.binary("shl", wave, f.constant(6, "i64")))
    some = f.binary(
        "sub",
        f.binary("shl", f.constant(1, "i64"), f.binary("and", lanes, f.constant(63, "i64"))),
        f.constant(1, "i64"),
    )
    mask = f.select(f.is_("sge", lanes, 64), f.constant(-1, "i64"), some)
    for offset, value in ((0, kernarg), (layout.EXEC, mask)):
        f.put(context, layout.SCALARS + offset, value)
        f.put(context, layout.SCALAR_DEFINED + offset, -1)
    for axis, number in enumerate(ids):
        register = f.convert("sext", f.get(_LAUNCH, layout.GROUP_ID_REGISTERS + 4 * axis, "i32"), "i64")
        with f.when(f.is_("sge", register, 0)):
            place = f.address(context, f.binary("shl", register, f.constant(2, "i64")))
            f.store(number, place)
            f.put(place, layout.SCALAR_DEFINED, -1, "i32")
    f.put(context, layout.VECTOR_DEFINED, -1)
    start = f.convert("trunc", f.binary("shl", wave, f.constant(6, "i64")), "i32")
    with f.loop(layout.VECTOR_BYTES, 4 * CHUNK) as loop:
        here = f.convert("trunc", f.binary("lshr", loop.index, f.constant(2, "i64")), "i32")
        number = f.broadcast(f.binary("add", start, here))
        lane = f.binary("add", number, f.dense(range(CHUNK), "i32"))
        f.store(lane, f.address(context, loop.index, layout.VECTORS), 64)


def _emit_step(module: Module) -> None:
    """step(launch block, first context): runs a workgroup until it ends, its slice is over, or a wave is at fault."""
    first = Value("%first", POINTER)
    f = _function(module, "step", "i32", _LAUNCH, first)
    waves = f.get(_LAUNCH, layout.GROUP_WAVES)
    slice_ = f.convert("trunc", f.get(_LAUNCH, layout.SLICE_BRANCHES), "i32")
    with f.loop(waves) as loop:
        f.put(_contexts(f, first, loop.index), layout.SLICE, slice_)
    again, faulty = f.label("again"), f.label("faulty")
    f.jump(again)
    f.block(again)
    zero, at_fault = f.constant(0, "i64"), f.fresh(POINTER)
    with f.loop(waves, 1, [zero, zero, zero]) as loop:  # ended, at a barrier, slice over
        context = _contexts(f, first, loop.index)
        before = f.get(context, layout.STATUS, "i32")
        with f.when(f.is_("eq", before, Status.RUNNING)):
            f.call("run_wave", "", context)
        status = f.get(context, layout.STATUS, "i32")
        on = f.label("on")
        f.line(f"  llvm.cond_br {f.is_('eq', status, Status.FAULT)}, {faulty}({context} : {POINTER}), {on}")
        f.block(on)
        for kind, sum_ in zip((Status.ENDED, Status.AT_BARRIER, Status.SLICE_OVER), loop.values, strict=True):
            loop.nexts.append(f.binary("add", sum_, f.convert("zext", f.is_("eq", status, kind), "i64")))
    ended, waiting, over = loop.results
    done, not_done, resume, released = (f.label(stem) for stem in ("done", "open", "resume", "released"))
    f.branch(f.compare("eq", ended, waves), done, not_done)
    f.block(done)
    f.put(first, layout.RESIDENT, 0, "i32")
    f.give(_ENDED)
    f.block(not_done)
    f.branch(f.is_("ne", over, 0), resume, released)
    # Waves whose slice is over run again when their slot has its next turn; those at a barrier wait on.
    f.block(resume)
    _wake(f, first, waves, Status.SLICE_OVER)
    f.give(_SLICE_OVER)
    f.block(released)
    missed, whole = f.label("missed"), f.label("whole")
    f.branch(f.is_("ne", ended, 0), missed, whole, weights=(1, 1000))
    f.block(missed)
    with f.loop(waves) as loop:
        context, on = _contexts(f, first, loop.index), f.label("on")
        held = f.is_("eq", f.get(context, layout.STATUS, "i32"), Status.AT_BARRIER)
        barrier = f.address(f.get(context, layout.RESUME, POINTER), -layout.RECORD_BYTES)
        f.put(context, layout.FAULT_RECORD, barrier)
        f.put(context, layout.FAULT_CODE, Code.BARRIER_MISSED, "i32")
        f.put(context, layout.FAULT_LANE, -1, "i32")
        f.line(f"  llvm.cond_br {held}, {faulty}({context} : {POINTER}), {on}")
        f.block(on)
    f.give(_STOPPED)
    f.block(whole)
    _wake(f, first, waves, Status.AT_BARRIER)
    epoch = f.get(first, layout.EPOCH, "i32")
    round_ = f.op(f"llvm.urem {epoch}, {f.constant(EPOCHS, 'i32')} : i32", "i32")
    with f.when(f.is_("eq", round_, 0), likely=False):
        _renew(f, first)
    with f.when(f.is_("ugt", waves, 1)):
        fine = f.call("begin_epoch", "i32", _LAUNCH, first)
        full, on = f.label("full"), f.label("on")
        f.branch(f.is_("eq", fine, 0), full, on, weights=(1, 1000))
        f.block(full)
        f.put(first, layout.FAULT_CODE, Code.SEGMENTS, "i32")
        f.line(f"  llvm.br {faulty}({first} : {POINTER})")
        f.block(on)
    f.jump(again)
    f.block(faulty, at_fault)
    f.put(_LAUNCH, layout.FAULTY, at_fault)
    f.give(_STOPPED)
    f.close()


def _wake(f: _Code, first: Value, waves: Value, status: Status) -> None:
    """Waves of one status run again; behind a barrier they are in the next epoch."""
    with f.loop(waves) as loop:
        context = _contexts(f, first, loop.index)
        with f.when(f.is_("eq", f.get(context, layout.STATUS, "i32"), status)):
            f.put(context, layout.STATUS, Status.RUNNING, "i32")
            if status == Status.AT_BARRIER:
                epoch = f.get(context, layout.EPOCH, "i32")
                f.put(context, layout.EPOCH, f.binary("add", epoch, f.constant(1, "i32")))


def _renew(f: _Code, first: Value) -> None:
    """Epochs are numbered from the start again: the cells of local memory forget who accessed them."""
    cells = f.get(first, layout.LDS_CELLS, POINTER)
    size = f.binary(
        "and", f.binary("add", f.get(_LAUNCH, layout.LDS_SIZE), f.constant(63, "i64")), f.constant(-64, "i64")
    )
    with f.when(f.is_("ne", size, 0)), f.loop(size, 4 * CHUNK) as loop:
        place = f.address(cells, loop.index)
        kept = f.binary("and", f.load(place, vector_type("i32")), f.constant(INITIALISED, vector_type("i32")))
        f.store(kept, place)


def _emit_run(module: Module) -> None:
    """run(launch block): workgroups until the list is empty and all have ended, or something is at fault."""
    f = _function(module, "run", "", _LAUNCH, exported=True)
    contexts, window = f.get(_LAUNCH, layout.CONTEXTS, POINTER), f.get(_LAUNCH, layout.WINDOW)
    slot_bytes = f.scaled(f.get(_LAUNCH, layout.CONTEXT_BYTES), f.get(_LAUNCH, layout.GROUP_WAVES))
    stop = f.get(_LAUNCH, layout.STOP, POINTER)
    round_, out, fault = f.label("round"), f.label("out"), f.label("fault")
    f.jump(round_)
    f.block(round_)
    with f.loop(window, 1, [f.constant(0, "i64")]) as loop:
        first = f.address(contexts, f.scaled(loop.index, slot_bytes))
        refill, ready, next_ = f.label("refill"), f.label("ready"), f.label("slot")
        live = f.fresh("i64")
        f.branch(f.is_("ne", f.get(first, layout.RESIDENT, "i32"), 0), ready, refill)
        f.block(refill)
        _refill(f, first, loop.index, next_, loop.values[0], fault)
        f.jump(ready)
        f.block(ready)
        f.branch(f.is_("ne", f.load(stop, "i32"), 0), out, (go := f.label("go")))
        f.block(go)
        result = f.call("step", "i32", _LAUNCH, first)
        ended, others, over = f.label("ended"), f.label("others"), f.label("over")
        f.branch(f.is_("eq", result, _ENDED), ended, others)
        f.block(ended)
        finished = f.binary("add", f.get(_LAUNCH, layout.FINISHED), f.constant(1, "i64"))
        f.put(_LAUNCH, layout.FINISHED, finished)
        look = f.is_("eq", f.binary("and", finished, f.constant(_CHECK_GROUPS - 1, "i64")), 0)
        with f.when(look):
            _check_budget(f, first, fault)
        f.jump(refill)
        f.block(others)
        f.branch(f.is_("eq", result, _SLICE_OVER), over, fault)
        f.block(over)
        _check_budget(f, first, fault)
        more = f.binary("add", loop.values[0], f.constant(1, "i64"))
        f.line(f"  llvm.br {next_}({more} : i64)")
        f.block(next_, live)
        loop.nexts = [live]
    f.branch(f.is_("eq", loop.results[0], 0), out, round_)
    f.block(fault)
    f.put(stop, 0, 1, "i32")
    f.jump(out)
    f.block(out)
    f.give()
    f.close()


def _refill(f: _Code, first: Value, slot: Value, next_: str, live: Value, fault: str) -> None:
    """Takes the next workgroup of the list into a slot; goes to `next_` when the list is empty."""
    shared = f.get(_LAUNCH, layout.NEXT_GROUP, POINTER)
    place = f.op(f"llvm.atomicrmw add {shared}, {f.constant(1, 'i64')} monotonic : {POINTER}, i64", "i64")
    left, begun = f.label("left"), f.label("begun")
    empty = f.compare("uge", place, f.get(_LAUNCH, layout.RUN_LENGTH))
    f.line(f"  llvm.cond_br {empty}, {next_}({live} : i64), {left}")
    f.block(left)
    where = f.binary("shl", place, f.constant(3, "i64"))
    group = f.load(f.address(f.get(_LAUNCH, layout.RUN_LIST, POINTER), where), "i64")
    fine = f.call("start", "i32", _LAUNCH, first, slot, group)
    full = f.label("full")
    f.branch(f.is_("ne", fine, 0), begun, full)
    f.block(full)
    f.put(first, layout.FAULT_CODE, Code.SEGMENTS, "i32")
    f.put(_LAUNCH, layout.FAULTY, first)
    f.jump(fault)
    f.block(begun)


def _check_budget(f: _Code, first: Value, fault: str) -> None:
    total = f.call("total", "i64", _LAUNCH)
    spent, on = f.label("spent"), f.label("on")
    f.branch(f.compare("ugt", total, f.get(_LAUNCH, layout.BUDGET)), spent, on, weights=(1, 1000))
    f.block(spent)
    f.put(first, layout.FAULT_CODE, Code.BUDGET, "i32")
    f.put(first, layout.FAULT_LANE, -1, "i32")
    f.put(first, layout.FAULT_RECORD, f.get(first, layout.RESUME, POINTER))
    f.put(_LAUNCH, layout.FAULTY, first)
    f.jump(fault)
    f.block(on)
