"""Static check of wait states: pairs of instructions that must stand apart, because the hardware does not look.

The numbers are those that LLVM 22 keeps for gfx950 (GCNHazardRecognizer) and that the CDNA ISA documents state under
"manually inserted wait states". Distances are the least on any path; every instruction is one wait state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from spconv_compiler.sim.cfg import Register, registers_of, split_operands, wait_states
from spconv_compiler.sim.instruction import Instruction, Operand
from spconv_compiler.sim.rows import MatrixShape


@dataclasses.dataclass(frozen=True)
class Source:
    """Something that later instructions must keep away from.

    kind: "valu" (registers it wrote), "mfma" (D), "mfma c" (C that it still reads), "wide store" (its data);
        "clause reads", "clause writes": registers of a memory instruction right before, name: "smem" or "vmem".
    """

    kind: str
    name: str
    registers: tuple[Register, ...]
    shape: MatrixShape | None = None


State = dict[Source, int]
_FARTHEST = 20
VALU_TO_MATRIX, VALU_SGPR_TO_VMEM, VALU_SGPR_TO_VALU, VALU_SGPR_TO_LANE_NUMBER = 2, 5, 2, 4
VALU_TO_LANE_READ, WIDE_STORE_TO_VALU = 1, 2
_VECTOR = ("valu", "lane", "mfma")
# Memory instructions in a row are one clause, which is issued again as a whole after a page fault (XNACK).
_CLAUSE = {"buffer": "vmem", "global": "vmem", "smem": "smem"}


def matrix_wait(shape: MatrixShape, what: str) -> int:
    """Wait states after an MFMA: "c": of an MFMA whose C overlaps D; "other": any other use of D; "war": of C."""
    if shape.element == "f32":
        return {"c": shape.passes, "other": shape.passes + 2, "war": 0}[what]
    return {"c": shape.passes + 2, "other": shape.passes + 4, "war": shape.passes - 1}[what]


def join(a: State, b: State) -> State:
    """What holds where two paths meet."""
    return {key: min(a.get(key, 99), b.get(key, 99)) for key in a.keys() | b.keys()}


def step(state: State, item: Instruction) -> tuple[State, list[str]]:
    """(the state after an instruction, what is wrong with it)."""
    passed = wait_states(item)
    if passed == 0:
        return state, []
    problems = [
        f"{reason}: {found} wait states, needed: {needed}"
        for reason, needed, found in _conflicts(state, item)
        if found < needed
    ]
    written = {register for operand in split_operands(item)[0] for register in registers_of(operand)}
    after: State = {}
    for source, distance in state.items():
        # What another instruction overwrites is no longer the result of the first one.
        stale = source.kind == "valu" and written.issuperset(source.registers)
        stale |= source.kind.startswith("clause") and source.name != _CLAUSE.get(item.row.kind)
        if distance + passed < _FARTHEST and not stale:
            after[source] = distance + passed
    for source in _sources(item):
        after[source] = 0
    return after, problems


def _sources(item: Instruction) -> Iterator[Source]:
    row = item.row
    written, read = split_operands(item)
    if row.kind in _CLAUSE:
        for what, operands in (("reads", read), ("writes", written)):
            registers = tuple(register for operand in operands for register in registers_of(operand))
            if registers:
                yield Source(f"clause {what}", _CLAUSE[row.kind], registers)
    if row.kind == "mfma":
        yield Source("mfma", row.name, tuple(registers_of(written[0])), row.matrix)
        registers = tuple(registers_of(read[2]))
        if registers:
            yield Source("mfma c", row.name, registers, row.matrix)
    elif row.kind in ("valu", "lane"):
        for operand in written:
            for register in registers_of(operand):
                yield Source("valu", "", (register,))
    elif row.kind in ("buffer", "global") and row.access is not None and row.access.kind == "store":
        data = item.operands[0 if row.kind == "buffer" else 1]
        # With the offset in a scalar register the store takes its data early enough.
        early = row.kind == "buffer" and item.operands[3].kind == "s"
        if row.access.dwords > 2 and not early:
            yield Source("wide store", row.name, tuple(registers_of(data)))


def _conflicts(state: State, item: Instruction) -> Iterator[tuple[str, int, int]]:
    """(what is too close, wait states needed, wait states found)."""
    written, read = split_operands(item)
    writes = {register for operand in written for register in registers_of(operand)}
    reads = {register for operand in read for register in registers_of(operand)}
    kind = item.row.kind
    if _breaks_clause(state, item, reads, writes):
        yield "a clause reads and writes one register, or a store ends it without a pause", 1, 0
    for source, distance in state.items():
        touched = set(source.registers)
        if source.kind == "valu":
            needed = _after_valu(item, source.registers[0], read, reads)
            if needed:
                file, number = source.registers[0]
                yield f"uses {file}{number} too soon after the VALU that wrote it", needed, distance
        elif source.kind == "wide store" and kind in _VECTOR and touched & writes:
            yield "overwrites the data of a store", WIDE_STORE_TO_VALU, distance
        elif source.kind == "mfma c" and kind in ("valu", "lane") and touched & writes:
            assert source.shape is not None
            yield f"overwrites C of {source.name}", matrix_wait(source.shape, "war"), distance
        elif source.kind == "mfma" and touched & (reads | writes):
            yield f"uses D of {source.name}", _after_matrix(source, item, read), distance


def _breaks_clause(state: State, item: Instruction, reads: set[Register], writes: set[Register]) -> bool:
    name = _CLAUSE.get(item.row.kind)
    before: dict[str, set[Register]] = {"clause reads": set(), "clause writes": set()}
    for source in state:
        if source.kind in before and source.name == name:
            before[source.kind].update(source.registers)
    if name is None or not before["clause writes"]:
        return False
    assert item.row.access is not None
    stores = item.row.access.kind != "load"
    return stores or bool((before["clause reads"] | reads) & (before["clause writes"] | writes))


def _after_valu(item: Instruction, register: Register, read: list[Operand], reads: set[Register]) -> int:
    if register not in reads:
        return 0
    kind = item.row.kind
    if register[0] == "s":
        if kind in ("buffer", "global"):
            return VALU_SGPR_TO_VMEM
        if kind == "lane" and register in registers_of(read[-1]):
            return VALU_SGPR_TO_LANE_NUMBER
        return VALU_SGPR_TO_VALU if kind in _VECTOR else 0
    if kind == "mfma":
        return VALU_TO_MATRIX
    return VALU_TO_LANE_READ if kind == "lane" and item.row.results == ("scalar",) else 0


def _after_matrix(source: Source, item: Instruction, read: list[Operand]) -> int:
    """An MFMA may take over D as its C without waiting, if it is the same opcode on the same registers."""
    assert source.shape is not None
    touched = set(source.registers)
    if item.row.kind == "mfma":
        operands = [set(registers_of(operand)) for operand in read]
        if touched & (operands[0] | operands[1]):
            return matrix_wait(source.shape, "other")
        if operands[2] & touched:
            same = tuple(registers_of(read[2])) == source.registers and item.row.name == source.name
            return 0 if same else matrix_wait(source.shape, "c")
        # Two MFMAs end in the order in which they start, unless the second is the shorter one.
        assert item.row.matrix is not None
        return max(0, matrix_wait(source.shape, "other") - matrix_wait(item.row.matrix, "other"))
    return matrix_wait(source.shape, "other")
