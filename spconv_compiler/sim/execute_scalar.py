"""Executes scalar instructions: arithmetic, EXEC updates, branches, scalar loads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spconv_compiler.sim.algebra import Array
from spconv_compiler.sim.instruction import EXEC, VCC, Instruction, Operand
from spconv_compiler.sim.machine import WHOLE, Active
from spconv_compiler.sim.rows import DWORDS, Row

_VIEWS = {"i32": np.int32, "i64": np.int64, "f32": np.float32, "k16": np.int32}
# Opcodes of which every result bit depends on the same bit of the sources alone.
_BITWISE = ("s_mov_", "s_not_", "s_xor_", "s_xnor_")


def read(operand: Operand, type_: str, active: Active) -> tuple[Array, Array]:
    """(values [n], defined bits [n]) of a scalar source in the carrier of its type."""
    wide = DWORDS.get(type_, 1) == 2
    if operand.kind == "s":
        values, known = active.scalar_pair(operand.number) if wide else active.scalar(operand.number)
    else:
        number = operand.constant()
        if wide and operand.kind == "inline" and number >> 31:
            number |= 0xFFFFFFFF00000000
        values = np.full(active.count, number, np.uint64 if wide else np.uint32)
        known = ~np.zeros_like(values)
    return (values.view(_VIEWS[type_]) if type_ in _VIEWS else values), known


def write(operand: Operand, values: Array, known: Array, active: Active) -> None:
    """Writes a scalar result of one or two registers."""
    if operand.dwords == 2:
        active.set_scalar_pair(operand.number, values.view(np.uint64), known)
    else:
        raw = values.view(np.uint32) if values.dtype.itemsize == 4 else values.astype(np.uint32)
        active.set_scalar(operand.number, raw, known)


def _logic_known(name: str, values: list[Array], known: list[Array]) -> Array | None:
    """Defined bits of a bitwise operation, or None for another one."""
    if name.startswith(_BITWISE):
        result = known[0]
        return result if len(known) == 1 else result & known[1]
    kind = name.split("_")[1]
    if kind not in ("and", "or", "andn1", "orn1", "andn2", "orn2", "nand", "nor"):
        return None
    a, b, da, db = *values, *known
    a, b = ~a if kind.endswith("n1") else a, ~b if kind.endswith("n2") else b
    # A defined 0 decides an and, a defined 1 an or, whatever the other bit is.
    if kind in ("or", "orn1", "orn2", "nor"):
        return da & db | da & a | db & b
    return da & db | da & ~a | db & ~b


def arithmetic(instruction: Instruction) -> Callable[[Active], None]:
    """Any row of kind "salu"."""
    row, operands = instruction.row, instruction.operands
    outputs = [type_ for type_ in row.results if type_ != "scc"]
    inputs = [type_ for type_ in row.sources if type_ != "scc"]
    given = [operands[0], *operands[len(outputs) :]] if row.tied else list(operands[len(outputs) :])
    target = operands[0] if outputs else None
    meaning = row.meaning
    assert meaning is not None

    def run(active: Active) -> None:
        read_all = [read(operand, type_, active) for operand, type_ in zip(given, inputs, strict=True)]
        values, known = [value for value, _ in read_all], [bits for _, bits in read_all]
        if "scc" in row.sources:
            values.append(active.require_scc())
        found = meaning(*values)
        results = found if isinstance(found, tuple) else (found,)
        bits = _known(row, values, known, target)
        if target is not None:
            write(target, results[0], bits, active)
        if row.results[-1] == "scc":
            whole = bits == ~bits.dtype.type(0)
            active.set_scc(results[-1], whole)

    return run


def _known(row: Row, values: list[Array], known: list[Array], target: Operand | None) -> Array:
    """Defined bits of the result: bit by bit for logic, all or nothing for the rest."""
    logic = _logic_known(row.name, values[: len(known)], known)
    if logic is not None:
        return logic
    whole = np.logical_and.reduce([bits == ~bits.dtype.type(0) for bits in known])
    kind = np.uint64 if target is not None and target.dwords == 2 else np.uint32
    return np.where(whole, ~kind(0), kind(0))


def save_exec(instruction: Instruction) -> Callable[[Active], None]:
    """s_…_saveexec_b64: the old EXEC is kept, the new one is made of the source and the old one."""
    target, source = instruction.operands
    meaning, name = instruction.row.meaning, instruction.row.name
    assert meaning is not None

    def run(active: Active) -> None:
        values, known = read(source, "u64", active)
        old, all_known = active.exec, ~np.zeros_like(known)
        bits = _logic_known(name.replace("_saveexec", ""), [values, old], [known, all_known])
        assert bits is not None
        result = meaning(values, old)
        active.set_scalar_pair(target.number, old, all_known)
        active.set_scalar_pair(EXEC, result, bits)
        active.set_scc(result != 0, np.ones(active.count, np.bool_))

    return run


def branch_taken(instruction: Instruction) -> Callable[[Active], Array]:
    """bool [n]: whether each wave takes the branch."""
    condition = instruction.row.name.removeprefix("s_cbranch_")
    if condition == "s_branch":
        return lambda active: np.ones(active.count, np.bool_)
    wanted = not condition.endswith(("z", "0")) or condition.endswith("nz")

    def test(active: Active) -> Array:
        if condition.startswith("scc"):
            value = active.require_scc()
        elif condition.startswith("exec"):
            value = active.exec != 0
        else:
            bits, known = active.scalar_pair(VCC)
            if (~known).any():
                active.fail(~known != 0, "VCC is undefined")
            value = bits != 0
        return value == wanted

    return test


def load(instruction: Instruction) -> Callable[[Active], None]:
    """s_load: one address for all lanes."""
    target, base, offset = instruction.operands
    access = instruction.row.access
    assert access is not None

    def run(active: Active) -> None:
        address, known = active.scalar_pair(base.number)
        if (~known).any():
            active.fail(~known != 0, "the address is undefined")
        batch = active.batch

        def report(wave: int, reason: str) -> Exception:
            return batch.fault(int(active.waves[wave]), None, reason)

        total = address + np.uint64(offset.number & 0xFFFFFFFFFFFFFFFF)
        if batch.observer is not None:
            lanes = np.arange(64) == np.zeros((active.count, 1))
            active.observe(lanes, np.where(lanes, total[:, None], np.uint64(0)), access.size)
        data, ready = batch.memory.load_scalar(total, access.size, batch.segments[active.at], report)
        for index in range(access.dwords):
            active.set_scalar(target.number + index, data[:, index], np.where(ready[:, index], WHOLE, np.uint32(0)))

    return run


def as_lanes(known: Array) -> Array:
    """All 64 lanes where every bit of a scalar is defined, else none."""
    return np.where(known == ~known.dtype.type(0), ~np.uint64(0), np.uint64(0))
