"""Writes handlers: one function of LLVM-dialect text per opcode and operand shape.

A handler gets the context of a wave and its record, does what the instruction does to the wave, and returns the next
record, or null when the wave stops. The run loop counts the record before it calls. In this file a `Value` is the
name of an SSA value with its MLIR type; methods of `Handler` append operations. Sixteen lanes are worked on at a time,
so that few registers of any host are needed. A vector instruction of two sources:

    h = Handler(module, "v_add_u32__VS")
    left, right = h.field(1), h.field(2)              # offsets into the context, as program.py has put them
    target = h.target(h.field(0))                     # where lanes that are off keep their values
    splat = h.broadcast(h.scalar(right))
    with h.lanes() as place:                          # a loop over 4 x 16 lanes; byte offset in a register
        target.store(place, h.binary("add", h.vector(left, place), splat))
    target.finish(h.binary("and", h.vector_defined(left), h.as_lanes(h.scalar_defined(right))))
    h.done()                                          # goes on with the next record

`check` and `check_lanes` leave for a cold block that records the fault; without checks they emit nothing, and then
defined bits are neither read nor written: `*_defined` give constants.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from spconv_compiler.sim.native import layout
from spconv_compiler.sim.native.function import (
    CHUNK,
    POINTER,
    Build,
    Function,
    Loop,
    Module,
    Value,
    bits_of,
    element_of,
    lanes_of,
    like,
    vector_type,
)
from spconv_compiler.sim.native.layout import Code, Status

__all__ = [
    "CHUNK",
    "POINTER",
    "Build",
    "Function",
    "Handler",
    "Loop",
    "Module",
    "Target",
    "Value",
    "bits_of",
    "element_of",
    "emit_common",
    "lanes_of",
    "like",
    "vector_type",
]


class Handler(Function):
    """A function (context, record) -> next record."""

    def __init__(self, module: Module, name: str) -> None:
        self.context, self.record = Value("%ctx", POINTER), Value("%rec", POINTER)
        super().__init__(module, name, [self.context, self.record], POINTER, linkage="internal")
        module.handlers.append(name)
        self._fields: dict[tuple[int, str], Value] = {}
        self._exec: Value | None = None

    # Records and state.

    def field(self, number: int, type_: str = "i64") -> Value:
        """A number of the record: "i64" extends its sign."""
        found = self._fields.get((number, type_))
        if found is None:
            kept, self._lines = self._lines, self._head
            found = self.load(self.address(self.record, layout.FIELDS + 4 * number), "i32")
            if type_ == "i64":
                found = self.convert("sext", found, "i64")
            self._lines = kept
            self._fields[number, type_] = found
        return found

    def state(self, offset: int, type_: str = "i32") -> Value:
        """Loads from a fixed place in the context, such as layout.WAVE."""
        return self.load(self.address(self.context, offset), type_)

    def set_state(self, offset: int, value: Value) -> None:
        """Stores to a fixed place in the context."""
        self.store(value, self.address(self.context, offset))

    def launch(self, offset: int, type_: str = "i64") -> Value:
        """Loads from the launch block."""
        return self.load(self.address(self.state(layout.LAUNCH, POINTER), offset), type_)

    def exec(self) -> Value:
        """EXEC, i64; loaded once, where it is first asked for: ask before entering a block that may not run."""
        if self._exec is None:
            self._exec = self.state(layout.EXEC, "i64")
        return self._exec

    # Scalar registers and constants.

    def scalar(self, offset: Value, dwords: int = 1) -> Value:
        """i32, or i64 of a pair, at an offset."""
        return self.load(self.address(self.context, offset), _WORDS[dwords], 4)

    def scalar_defined(self, offset: Value, dwords: int = 1) -> Value:
        """The defined bits, as wide as the value."""
        if not self.build.checks:
            return self.constant(-1, _WORDS[dwords])
        return self.load(self.address(self.context, offset, layout.SCALAR_DEFINED), _WORDS[dwords], 4)

    def set_scalar(self, offset: Value, value: Value, defined: Value | None) -> None:
        """Writes one or two registers (i32, i64); EXEC must stay defined. defined: None for all."""
        known = self.constant(-1, value.type) if defined is None else defined
        if self.build.checks:
            if defined is not None:
                partly = self.compare("ne", known, self.constant(-1, known.type))
                executes = self.compare("sge", offset, self.constant(layout.EXEC, "i64"))
                self.check(self.binary("and", partly, executes), Code.EXEC_UNDEFINED)
            self.store(known, self.address(self.context, offset, layout.SCALAR_DEFINED), 4)
        self.store(value, self.address(self.context, offset), 4)

    def set_scc(self, value: Value, defined: Value | None = None) -> None:
        """Writes SCC from an i1; defined: i1, or None for yes."""
        self.set_state(layout.SCC, self.convert("zext", value, "i32"))
        if self.build.checks:
            known = self.constant(1, "i32") if defined is None else self.convert("zext", defined, "i32")
            self.set_state(layout.SCC_DEFINED, known)

    def scc(self) -> Value:
        """SCC as i1; a fault where it is undefined."""
        if self.build.checks:
            known = self.state(layout.SCC_DEFINED)
            self.check(self.compare("eq", known, self.constant(0, "i32")), Code.SCC_UNDEFINED)
        return self.compare("ne", self.state(layout.SCC), self.constant(0, "i32"))

    def as_lanes(self, defined: Value) -> Value:
        """i64 of lanes from the defined bits of a scalar source: all lanes or none."""
        whole = self.compare("eq", defined, self.constant(-1, defined.type))
        return self.convert("sext", whole, "i64")

    # Vector registers.

    def lanes(self) -> contextlib.AbstractContextManager[Value]:
        """A loop over the 64 lanes, CHUNK at a time: gives the byte offset in a register, i64."""
        return self._lanes()

    @contextlib.contextmanager
    def _lanes(self) -> Iterator[Value]:
        with self.loop(layout.VECTOR_BYTES, 4 * CHUNK) as state:
            yield state.index

    def vector(self, offset: Value, place: Value, type_: str = "i32") -> Value:
        """CHUNK lanes of a register at byte `place` of it, as i32 or f32."""
        return self.load(self.address(self.context, offset, place), vector_type(type_), 64)

    def vector_defined(self, offset: Value) -> Value:
        """i64: the lanes of a register that are defined."""
        if not self.build.checks:
            return self.constant(-1, "i64")
        return self.load(self._defined_place(offset), "i64")

    def set_vector_defined(self, offset: Value, known: Value, *, ignore_exec: bool = False) -> None:
        """Notes which lanes are defined, under EXEC."""
        if not self.build.checks:
            return
        place = self._defined_place(offset)
        if not ignore_exec:
            old, mask = self.load(place, "i64"), self.exec()
            known = self.binary("or", self.binary("and", old, self.invert(mask)), self.binary("and", known, mask))
        self.store(known, place)

    def _defined_place(self, offset: Value) -> Value:
        word = self.binary("lshr", offset, self.constant(5, "i64"))
        return self.address(self.context, word, layout.VECTOR_DEFINED - layout.VECTORS // 32)

    def target(self, offset: Value, place: int = 0) -> Target:
        """A register to write whole; lanes that are off keep their values. `place`: its own for every target."""
        return Target(self, offset, place)

    def chunk_mask(self, mask: Value, place: Value) -> Value:
        """The bits of an i64 lane mask for the lanes at byte `place` of a register, as a vector of i1."""
        shifted = self.binary("lshr", mask, self.binary("lshr", place, self.constant(2, "i64")))
        return self.convert("bitcast", self.convert("trunc", shifted, f"i{CHUNK}"), vector_type("i1"))

    def chunk_bits(self, lanes: Value, place: Value) -> Value:
        """The reverse: a vector of i1 as bits of an i64, at the lanes' place."""
        bits = self.convert("zext", self.convert("bitcast", lanes, f"i{CHUNK}"), "i64")
        return self.binary("shl", bits, self.binary("lshr", place, self.constant(2, "i64")))

    # Leaving.

    def done(self) -> None:
        """Goes on with the next record, and finishes the function."""
        self.go(self.address(self.record, layout.RECORD_BYTES))
        self.close()

    def go(self, record: Value) -> None:
        """Ends the block: goes on at a record."""
        self.line(f"  llvm.return {record} : {POINTER}")

    def stop(self, status: Status, resume: Value) -> None:
        """Ends the block: the wave stops, to go on at a record."""
        self.set_state(layout.STATUS, self.constant(status, "i32"))
        self.set_state(layout.RESUME, resume)
        self.go(self.op(f"llvm.mlir.zero : {POINTER}", POINTER))

    def check(self, bad: Value, code: int, lane: Value | None = None, address: Value | None = None) -> None:
        """A fault where an i1 holds; nothing in a build without checks. lane: i32; address: i64."""
        if self.build.checks:
            self.fault_if(bad, code, lane, address)

    def check_lanes(self, lanes: Value, code: int) -> None:
        """A fault where an i64 lane mask is not zero, at its lowest lane; nothing in a build without checks."""
        if self.build.checks:
            self.fault_lanes(lanes, code)

    def fault_lanes(self, lanes: Value, code: int) -> None:
        """The same in every build."""
        bad = self.compare("ne", lanes, self.constant(0, "i64"))
        fault, after = self.label("fault"), self.label("ok")
        self.branch(bad, fault, after, weights=(1, 100000))
        with self._in_cold(fault):
            lowest = self.count_zeros("cttz", lanes)
            self._raise(code, self.convert("trunc", lowest, "i32"), None)
        self.block(after)

    def fault_if(self, bad: Value, code: int, lane: Value | None = None, address: Value | None = None) -> None:
        """A fault where an i1 holds, in every build."""
        fault, after = self.label("fault"), self.label("ok")
        self.branch(bad, fault, after, weights=(1, 100000))
        with self._in_cold(fault):
            self._raise(code, lane, address)
        self.block(after)

    def fault(self, code: int, lane: Value | None = None, address: Value | None = None) -> None:
        """Ends the block: the wave has done what it must not."""
        self._raise(code, lane, address)

    @contextlib.contextmanager
    def _in_cold(self, label: str) -> Iterator[None]:
        kept, self._lines = self._lines, self._cold
        self.block(label)
        yield
        self._lines = kept

    def cold(self, label: str) -> contextlib.AbstractContextManager[None]:
        """What is written inside is a block behind the function's end; end it with jump, stop or fault."""
        return self._in_cold(label)

    def _raise(self, code: int, lane: Value | None, address: Value | None) -> None:
        nobody = self.constant(-1, "i32") if lane is None else lane
        nowhere = self.constant(0, "i64") if address is None else address
        arguments = (self.context, self.record, self.constant(code, "i32"), nobody, nowhere)
        self.go(self.call_pointer(self.state(layout.RAISE, POINTER), POINTER, *arguments))


class Target:
    """A vector register that is written chunk by chunk.

    With all lanes on the lanes are stored at once, else into scratch, from where `finish` merges them.
    """

    def __init__(self, handler: Handler, offset: Value, place: int) -> None:
        h = self._handler = handler
        self._offset = offset
        self._full = h.compare("eq", h.exec(), h.constant(-1, "i64"))
        scratch = h.constant(layout.SCRATCH + layout.VECTOR_BYTES * place, "i64")
        self._scratch = scratch
        self._base = h.address(h.context, h.select(self._full, offset, scratch))

    def store(self, place: Value, value: Value) -> None:
        """CHUNK lanes of 32 bits at byte `place` of the register."""
        self._handler.store(value, self._handler.address(self._base, place), 64)

    def finish(self, known: Value) -> None:
        """After the last chunk; known: i64, the lanes of the result that are defined."""
        h = self._handler
        h.set_vector_defined(self._offset, known)
        with h.when(h.invert(self._full), likely=False):
            h.call_pointer(h.state(layout.MERGE, POINTER), "", h.context, self._offset, self._scratch, h.exec())


_WORDS = {1: "i32", 2: "i64"}


def emit_common(module: Module) -> None:
    """Adds the functions behind layout.RAISE and layout.MERGE."""
    parameters = [Value("%ctx", POINTER), Value("%rec", POINTER)]
    parameters += [Value("%code", "i32"), Value("%lane", "i32"), Value("%place", "i64")]
    f = Function(module, "raise_fault", parameters, POINTER, linkage="internal")
    context, record, code, lane, place = parameters
    status = f.constant(Status.FAULT, "i32")
    for where, value in (
        (layout.STATUS, status),
        (layout.FAULT_CODE, code),
        (layout.FAULT_LANE, lane),
        (layout.FAULT_ADDRESS, place),
        (layout.FAULT_RECORD, record),
    ):
        f.store(value, f.address(context, where))
    f.line(f"  llvm.return {f.op(f'llvm.mlir.zero : {POINTER}', POINTER)} : {POINTER}")
    f.close()

    parameters = [Value("%ctx", POINTER), Value("%offset", "i64"), Value("%scratch", "i64"), Value("%exec", "i64")]
    h = Handler.__new__(Handler)
    h.context, offset, scratch, mask = parameters
    Function.__init__(h, module, "merge", parameters, "", linkage="internal")
    with h.lanes() as chunk:
        new, old = h.vector(scratch, chunk), h.vector(offset, chunk)
        chosen = h.select(h.chunk_mask(mask, chunk), new, old)
        h.store(chosen, h.address(h.context, offset, chunk), 64)
    h.line("  llvm.return")
    h.close()
    module.handlers += ["raise_fault", "merge"]


_WORDS = {1: "i32", 2: "i64"}
