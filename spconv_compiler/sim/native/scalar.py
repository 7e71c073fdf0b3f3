"""Handlers of scalar arithmetic, EXEC updates, branches, and of what ends or stops a wave."""

from __future__ import annotations

from collections.abc import Sequence

from spconv_compiler.sim.errors import UnsupportedError
from spconv_compiler.sim.instruction import Instruction, Wait
from spconv_compiler.sim.native import direct, layout
from spconv_compiler.sim.native.emit import Handler, Module, Value
from spconv_compiler.sim.native.family import Family, Places
from spconv_compiler.sim.native.layout import Code, Status
from spconv_compiler.sim.native.values import Lanes
from spconv_compiler.sim.rows import DWORDS, Row

_KINDS = {"u32": "u32", "i32": "i32", "k16": "i32", "u64": "u64", "i64": "i64", "f32": "f32"}


def _one_shape(row: Row) -> Sequence[str]:
    return [""]


def _no_shape(instruction: Instruction) -> str:
    return ""


def _types(row: Row) -> list[str]:
    """Types of the fields: the result, then the sources; a tied source is read from the result's place."""
    results = [type_ for type_ in row.results if type_ != "scc"]
    sources = [type_ for type_ in row.sources if type_ != "scc"]
    return [*results, *(sources[1:] if row.tied else sources)]


def _fields(instruction: Instruction, places: Places) -> list[int]:
    types = _types(instruction.row)
    return [places.scalar(operand, type_) for operand, type_ in zip(instruction.operands, types, strict=True)]


def _read(h: Handler, offset: Value, type_: str) -> tuple[Lanes, Value]:
    """(value, defined bits)."""
    dwords = DWORDS.get(type_, 1)
    raw = Lanes(h, h.scalar(offset, dwords), "u64" if dwords == 2 else "u32")
    return raw.as_kind(_KINDS[type_]), h.scalar_defined(offset, dwords)


def emit(module: Module, row: Row, letters: str, name: str) -> None:
    """A "salu" row."""
    if row.meaning is None:
        raise UnsupportedError(f"{row.name}: the row has no meaning")
    h = Handler(module, name)
    outputs = [type_ for type_ in row.results if type_ != "scc"]
    inputs = [type_ for type_ in row.sources if type_ != "scc"]
    first = 0 if row.tied else len(outputs)
    read = [_read(h, h.field(first + index), type_) for index, type_ in enumerate(inputs)]
    values, known = [value for value, _ in read], [bits for _, bits in read]
    if "scc" in row.sources:
        values.append(Lanes(h, h.scc(), "bool"))
    found = row.meaning(*values)
    results = found if isinstance(found, tuple) else (found,)
    width = f"i{32 * DWORDS[outputs[0]]}" if outputs else "i32"
    bits = _defined(h, row.name, values[: len(known)], known, width)
    if outputs:
        kind = "u64" if width == "i64" else "u32"
        h.set_scalar(h.field(0), results[0].as_kind(kind).value, bits)
    if row.results[-1] == "scc":
        h.set_scc(results[-1].value, h.compare("eq", bits, h.constant(-1, bits.type)))
    h.done()


def _defined(h: Handler, name: str, values: Sequence[Lanes], known: Sequence[Value], width: str) -> Value:
    """Defined bits of the result: bit by bit for logic, all or nothing for the rest."""
    logic = logic_defined(h, name, [value.value for value in values], known)
    if logic is not None:
        return logic
    whole = None
    for bits in known:
        this = h.compare("eq", bits, h.constant(-1, bits.type))
        whole = this if whole is None else h.binary("and", whole, this)
    assert whole is not None
    return h.convert("sext", whole, width)


def logic_defined(h: Handler, name: str, values: Sequence[Value], known: Sequence[Value]) -> Value | None:
    """Defined bits of a bitwise operation, or None for another one."""
    if name.startswith(("s_mov_", "s_not_", "s_xor_", "s_xnor_")):
        return known[0] if len(known) == 1 else h.binary("and", known[0], known[1])
    kind = name.split("_")[1]
    if kind not in ("and", "or", "andn1", "orn1", "andn2", "orn2", "nand", "nor"):
        return None
    (a, b), (da, db) = values, known
    a, b = h.invert(a) if kind.endswith("n1") else a, h.invert(b) if kind.endswith("n2") else b
    # A defined 0 decides an and, a defined 1 an or, whatever the other bit is.
    if kind not in ("or", "orn1", "orn2", "nor"):
        a, b = h.invert(a), h.invert(b)
    both = h.binary("and", da, db)
    return h.binary("or", both, h.binary("or", h.binary("and", da, a), h.binary("and", db, b)))


def _emit_save_exec(module: Module, row: Row, letters: str, name: str) -> None:
    """The old EXEC is kept, the new one is made of the source and the old one."""
    if row.meaning is None:
        raise UnsupportedError(f"{row.name}: the row has no meaning")
    h = Handler(module, name)
    value, known = _read(h, h.field(1), "u64")
    old = h.exec()
    result = row.meaning(value, Lanes(h, old, "u64"))
    operation = row.name.replace("_saveexec", "")
    bits = logic_defined(h, operation, [value.value, old], [known, h.constant(-1, "i64")])
    if bits is None:
        raise UnsupportedError(f"{row.name}: the native engine does not know this update of EXEC")
    h.set_scalar(h.field(0), old, None)
    h.set_scalar(h.constant(layout.EXEC, "i64"), result.value, bits)
    h.set_scc((result != 0).value)
    h.done()


def _branch_fields(instruction: Instruction, places: Places) -> list[int]:
    """The distance to the target in bytes of records."""
    return [places.distance(instruction, instruction.operands[0].number)]


def _emit_branch(module: Module, row: Row, letters: str, name: str) -> None:
    """A taken branch counts down the slice; at its end the wave stops at the target."""
    h = Handler(module, name)
    condition = row.name.removeprefix("s_cbranch_")
    if condition != "s_branch":
        taken, straight = h.label("taken"), h.label("straight")
        h.branch(_condition(h, condition), taken, straight)
        h.block(straight)
        h.go(h.address(h.record, layout.RECORD_BYTES))
        h.block(taken)
    target = h.address(h.record, h.field(0))
    left = h.binary("sub", h.state(layout.SLICE), h.constant(1, "i32"))
    h.set_state(layout.SLICE, left)
    over, on = h.label("over"), h.label("on")
    h.branch(h.compare("sle", left, h.constant(0, "i32")), over, on, weights=(1, 1000))
    h.block(on)
    h.go(target)
    h.block(over)
    h.stop(Status.SLICE_OVER, target)
    h.close()


def _condition(h: Handler, name: str) -> Value:
    """i1: whether the branch is taken."""
    if name.startswith("scc"):
        value = h.scc()
    else:
        if name.startswith("vcc"):
            known = h.scalar_defined(h.constant(layout.VCC, "i64"), 2)
            h.check(h.compare("ne", known, h.constant(-1, "i64")), Code.VCC_UNDEFINED)
            bits = h.state(layout.VCC, "i64")
        else:
            bits = h.exec()
        value = h.compare("ne", bits, h.constant(0, "i64"))
    return value if name in ("scc1", "vccnz", "execnz") else h.invert(value)


def _nothing(instruction: Instruction, places: Places) -> list[int]:
    return []


def _wait_fields(instruction: Instruction, places: Places) -> list[int]:
    """The count of vector memory instructions."""
    return [Wait.read(instruction.operands[0].number).vmcnt]


def _emit_wait(module: Module, row: Row, letters: str, name: str) -> None:
    """For registers the static checks have judged it; loads to LDS land."""
    h = Handler(module, name)
    direct.wait(h, h.field(0, "i32"))
    h.done()


def _emit_control(module: Module, row: Row, letters: str, name: str) -> None:
    """No-ops: the static checks have judged them. s_sleep ends the slice: others may be waited for."""
    h = Handler(module, name)
    following = h.address(h.record, layout.RECORD_BYTES)
    stops = {"barrier": Status.AT_BARRIER, "end": Status.ENDED}
    if row.kind in stops or row.name == "s_sleep":
        h.stop(stops.get(row.kind, Status.SLICE_OVER), following)
        h.close()
    else:
        h.done()


FAMILIES = (
    Family(("salu",), _one_shape, _no_shape, _fields, emit),
    Family(("saveexec",), _one_shape, _no_shape, _fields, _emit_save_exec),
    Family(("branch",), _one_shape, _no_shape, _branch_fields, _emit_branch),
    Family(("wait",), _one_shape, _no_shape, _wait_fields, _emit_wait),
    Family(("nop", "barrier", "end"), _one_shape, _no_shape, _nothing, _emit_control),
)
