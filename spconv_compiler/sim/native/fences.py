"""Order between workgroups in native code: releases, acquires, and the waits that complete releases (sim/fences.py)."""

from __future__ import annotations

from spconv_compiler.sim.native import layout
from spconv_compiler.sim.native.emit import POINTER, Handler, Module, Value
from spconv_compiler.sim.native.fence_tables import at, entry
from spconv_compiler.sim.native.layout import Code
from spconv_compiler.sim.native.memory_block import FENCE_ACQUIRED, FENCE_CLOCK, FENCE_PREVIOUS, FENCE_RELEASED
from spconv_compiler.sim.native.settle import Shared, step
from spconv_compiler.sim.transfers import CAPACITY


def note_releases(h: Handler) -> None:
    """An atomic, or a load of device scope, which may read of the last release."""
    if h.build.checks:
        h.set_state(layout.NOTED, h.load(h.launch(FENCE_CLOCK, POINTER), "i32"))


def release(h: Handler) -> None:
    """buffer_wbl2 sc1, which has been counted among the issued instructions."""
    if h.build.checks:
        h.set_state(layout.RELEASING, h.state(layout.ISSUED))


def acquire(h: Handler) -> None:
    """buffer_inv sc1."""
    if not h.build.checks:
        return
    place = entry(h, FENCE_ACQUIRED, h.state(layout.GROUP, "i64"))
    h.store(h.intrinsic("umax", "i32", h.load(place, "i32"), h.state(layout.NOTED)), place)


def complete(module: Module) -> str:
    """The step at which a wait for `count` (i32) younger instructions completes a release."""
    return step(module, "complete_release", _emit_complete, ("count", "i32"))


def _emit_complete(f: Shared, count: Value) -> None:
    order, zero = f.state(layout.RELEASING), f.constant(0, "i32")
    younger = f.binary("sub", f.state(layout.ISSUED), order)
    limit = f.intrinsic("umin", "i32", count, f.constant(CAPACITY, "i32"))
    done = f.binary("and", f.compare("ne", order, zero), f.compare("uge", younger, limit))
    with f.when(done):
        f.set_state(layout.RELEASING, zero)
        clock, one = f.launch(FENCE_CLOCK, POINTER), f.constant(1, "i32")
        before = f.op(f"llvm.atomicrmw add {clock}, {one} monotonic : {POINTER}, i32", "i32")
        time = f.binary("add", before, one)
        segment = f.state(layout.SEGMENT)
        f.store(time, at(f, FENCE_RELEASED, segment))
        width = f.convert("trunc", f.launch(layout.SEGMENT_WIDTH), "i32")
        single, several, after = f.label("single"), f.label("several"), f.label("after")
        f.branch(f.compare("eq", width, one), single, several)
        f.block(single)
        _renew_segment(f)
        f.jump(after)
        f.block(several)
        _release_blocks(f, f.binary("sub", segment, f.state(layout.WAVE)), width, time)
        f.jump(after)
        f.block(after)
    f.done()


def _renew_segment(f: Shared) -> None:
    """What a workgroup of one wave writes from now on is not released."""
    shared, one = f.launch(layout.SEGMENT_NEXT, POINTER), f.constant(1, "i64")
    number = f.op(f"llvm.atomicrmw add {shared}, {one} monotonic : {POINTER}, i64", "i64")
    f.fault_if(f.compare("uge", number, f.constant(layout.MOST_SEGMENTS, "i64")), Code.SEGMENTS)
    groups = f.address(f.launch(layout.SEGMENT_GROUPS, POINTER), f.binary("shl", number, f.constant(2, "i64")))
    f.store(f.convert("trunc", f.state(layout.GROUP, "i64"), "i32"), groups)
    f.set_state(layout.SEGMENT, f.convert("trunc", number, "i32"))


def _release_blocks(f: Shared, block: Value, width: Value, time: Value) -> None:
    """All segments of the workgroup before the last barrier that are not released yet."""
    zero, one = f.constant(0, "i32"), f.constant(1, "i32")
    current, head, body, end = f.fresh("i32"), f.label("next"), f.label("block"), f.label("end")
    last = f.binary("sub", width, one)
    f.jump(head, f.load(at(f, FENCE_PREVIOUS, block), "i32"))
    f.block(head, current)
    # Entry 0 is of no block, and 0.
    several = at(f, FENCE_RELEASED, f.select(f.compare("eq", current, zero), zero, f.binary("add", current, last)))
    fresh = f.compare("eq", f.load(several, "i32"), zero)
    f.branch(f.binary("and", f.compare("ne", current, zero), fresh), body, end)
    f.block(body)
    with f.loop(f.convert("zext", width, "i64")) as loop:
        place = at(f, FENCE_RELEASED, f.binary("add", current, f.convert("trunc", loop.index, "i32")))
        old = f.load(place, "i32")
        f.store(f.select(f.compare("eq", old, zero), time, old), place)
    f.jump(head, f.load(at(f, FENCE_PREVIOUS, current), "i32"))
    f.block(end)
