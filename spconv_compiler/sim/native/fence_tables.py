"""The tables of sim/fences.py as native code sees them."""

from __future__ import annotations

from spconv_compiler.sim.native import layout
from spconv_compiler.sim.native.emit import POINTER, Handler, Value
from spconv_compiler.sim.native.memory_block import FENCE_ACQUIRED, FENCE_RELEASED


def entry(f: Handler, table: int, index: Value) -> Value:
    """Pointer to an entry of a table of uint32."""
    return f.address(f.launch(table, POINTER), f.binary("shl", index, f.constant(2, "i64")))


def at(f: Handler, table: int, index: Value) -> Value:
    """Pointer to an entry by an i32."""
    return entry(f, table, f.convert("zext", index, "i64"))


def known(f: Handler, last: Value) -> Value:
    """i1: an access of a segment (i32, 0 for none) is released, and this workgroup knows of it."""
    time = f.load(at(f, FENCE_RELEASED, last), "i32")
    released = f.compare("ne", time, f.constant(0, "i32"))
    acquired = f.load(entry(f, FENCE_ACQUIRED, f.state(layout.GROUP, "i64")), "i32")
    return f.binary("and", released, f.compare("ule", time, acquired))
