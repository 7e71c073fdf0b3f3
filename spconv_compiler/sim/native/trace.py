"""The trace of memory accesses: handlers of a traced build append an entry for every access, Python empties it."""

from __future__ import annotations

from spconv_compiler.sim.native import layout
from spconv_compiler.sim.native.emit import POINTER, Handler, Value
from spconv_compiler.sim.native.memory_block import ROOM, ROOM_MASK, TRACE_BYTES, TRACE_DRAIN, TRACE_END, TRACE_NEXT
from spconv_compiler.sim.native.settle import Shared, shared


def trace(h: Handler, size: Value) -> None:
    """Appends the lanes in ROOM_MASK with the addresses in ROOM; nothing in a build that is not traced."""
    if h.build.traced:
        name = shared(h.module, "append_trace", [("index", "i32"), ("size", "i64")], _emit_append)
        h.call(name, "", h.context, h.field(layout.INDEX_FIELD, "i32"), size)


def _emit_append(f: Shared, index: Value, size: Value) -> None:
    """append_trace(context, index of the instruction, bytes of a lane)."""
    launch = f.state(layout.LAUNCH, POINTER)
    end = f.launch(TRACE_END)
    after = f.binary("add", f.launch(TRACE_NEXT), f.constant(TRACE_BYTES, "i64"))
    with f.when(f.compare("ugt", after, end), likely=False):
        f.call_pointer(f.launch(TRACE_DRAIN, POINTER), "", launch)
    entry = f.launch(TRACE_NEXT, POINTER)
    f.store(index, entry)
    f.store(f.state(layout.WAVE), f.address(entry, 4))
    f.store(f.state(layout.GROUP, "i64"), f.address(entry, 8))
    f.store(f.load(f.address(f.context, ROOM + ROOM_MASK), "i64"), f.address(entry, 16))
    f.store(size, f.address(entry, 24))
    length = f.constant(8 * layout.LANES, "i64")
    f.line(
        f'  "llvm.intr.memcpy"({f.address(entry, 32)}, {f.address(f.context, ROOM)}, {length}) '
        f"<{{isVolatile = false}}> : ({POINTER}, {POINTER}, i64) -> ()"
    )
    f.store(f.address(entry, TRACE_BYTES), f.address(launch, TRACE_NEXT))
    f.give()
