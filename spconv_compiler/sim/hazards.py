"""Static check of wait states: pairs of instructions that must stand apart, because the hardware does not look.

The numbers are those of the CDNA3 and CDNA4 ISA documents ("manually inserted wait states") and of LLVM's hazard
recogniser for gfx950; tests compare them with what LLVM inserts between every pair of instruction classes. Distances
are the least on any path; every instruction is one wait state.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from spconv_compiler.sim.cfg import Register, registers_of, split_operands, wait_states
from spconv_compiler.sim.instruction import EXEC, M0, VCC, Instruction, Operand
from spconv_compiler.sim.rows import MatrixShape, Row


@dataclasses.dataclass(frozen=True)
class Source:
    """Something that later instructions must keep away from.

    kind: "valu" (a register it wrote; name: "trans" or "shifted" where that makes a difference), "m0" (written by the
        scalar unit), "setreg" (a hardware register, by name), "mfma" (D), "mfma c" (C that it still reads),
        "wide store" (its data; name: "soffset" or ""), "clause reads", "clause writes": registers of the memory
        instructions right before, name: "smem" or "vmem"; the distance does not count.
    """

    kind: str
    name: str
    registers: tuple[Register, ...]
    shape: MatrixShape | None = None


State = dict[Source, int]
_FARTHEST = 20
VALU_TO_MATRIX, VALU_SGPR_TO_VMEM, VALU_SGPR_TO_VALU, VALU_SGPR_TO_LANE_NUMBER = 2, 5, 2, 4
VALU_TO_LANE_READ, VALU_TO_LANE_MOVE, VALU_VCC_TO_FMAS = 1, 2, 4
VALU_EXEC_TO_LANE, VALU_EXEC_TO_DPP = 4, 5
TRANS_TO_VALU, SHIFTED_TO_VALU, M0_TO_LDS_LOAD, SETREG_TO_HARDWARE_REGISTER = 1, 1, 1, 2
# A store takes its data later when it has no offset in a scalar register.
WIDE_STORE_TO_VALU = {"": 2, "soffset": 1}
_ARITHMETIC = ("valu", "lane", "swap", "cmpx")
_VECTOR = (*_ARITHMETIC, "mfma")
_VMEM = ("buffer", "global", "flat", "scratch")
# Memory instructions in a row are one clause, which is issued again as a whole after a page fault (XNACK).
_CLAUSE = {**dict.fromkeys(_VMEM, "vmem"), "smem": "smem"}
_BROKEN_CLAUSE = "a clause reads and writes one register, or a store ends it without a pause"
_TRANSCENDENTAL = ("v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_")


def matrix_wait(shape: MatrixShape, what: str) -> int:
    """Wait states after an MFMA: "c": of an MFMA whose C overlaps D; "other": any other use of D; "war": of C."""
    if shape.element == "f32":
        return {"c": shape.passes, "other": shape.passes + 2, "war": 0}[what]
    return {"c": shape.passes + 2, "other": shape.passes + 4, "war": shape.passes - 1}[what]


def join(a: State, b: State) -> State:
    """What holds where two paths meet."""
    return {key: min(a.get(key, 99), b.get(key, 99)) for key in a.keys() | b.keys()}


def step(state: State, item: Instruction, *, overwritten: bool = True) -> tuple[State, list[str]]:
    """(the state after an instruction, what is wrong with it).

    overwritten: what another instruction overwrites is no longer the result of the first one. LLVM waits for it.
    """
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
        if source.kind == "mfma" and item.row.kind == "mfma":
            # MFMAs end in order: what a later one has written is its own result, for LLVM as well.
            source = dataclasses.replace(source, registers=tuple(one for one in source.registers if one not in written))
            if not source.registers:
                continue
        stale = overwritten and source.kind == "valu" and written.issuperset(source.registers)
        if distance + passed < _FARTHEST and not stale and not source.kind.startswith("clause"):
            after[source] = min(distance + passed, after.get(source, _FARTHEST))
    for source in _sources(item):
        after[source] = 0
    after.update(_clause_after(state, item))
    return after, problems


def clause_step(state: State, item: Instruction) -> tuple[State, list[str]]:
    """What step says of clauses alone."""
    written, read = split_operands(item)
    reads, writes = (
        {register for operand in operands for register in registers_of(operand)} for operands in (read, written)
    )
    return _clause_after(state, item), [_BROKEN_CLAUSE] * _breaks_clause(state, item, reads, writes)


def _clause_after(state: State, item: Instruction) -> State:
    """The registers of the clause that an instruction begins or goes on with, however long it is."""
    name = _CLAUSE.get(item.row.kind)
    if name is None:
        return {}
    after: State = {source: 0 for source in state if source.kind.startswith("clause") and source.name == name}
    for what, operands in zip(("clause writes", "clause reads"), split_operands(item), strict=True):
        registers = tuple(register for operand in operands for register in registers_of(operand))
        if registers:
            after[Source(what, name, registers)] = 0
    return after


def _sources(item: Instruction) -> Iterator[Source]:
    row = item.row
    written, read = split_operands(item)
    if row.kind == "mfma":
        yield Source("mfma", row.name, tuple(registers_of(written[0])), row.matrix)
        registers = tuple(registers_of(read[2]))
        if registers:
            yield Source("mfma c", row.name, registers, row.matrix)
    elif row.kind in _ARITHMETIC:
        name = "trans" if row.name.startswith(_TRANSCENDENTAL) else "shifted" if shifts_result(row) else ""
        for operand in written:
            for register in registers_of(operand):
                yield Source("valu", name, (register,))
    elif row.kind == "salu" and any(("s", M0) in registers_of(operand) for operand in written):
        yield Source("m0", row.name, (("s", M0),))
    elif row.kind == "setreg":
        yield Source("setreg", _hardware_register(item), ())
    elif row.kind in _VMEM and row.access is not None and row.access.kind == "store":
        data = item.operands[0 if row.kind == "buffer" else 1]
        if row.access.dwords > 2:
            early = row.kind == "buffer" and item.operands[3].kind == "s"
            yield Source("wide store", "soffset" if early else "", tuple(registers_of(data)))


def shifts_result(row: Row) -> bool:
    """Whether a vector instruction moves its result within the register, so that it cannot be forwarded.

    SDWA with a part as result, op_sel of the result; LLVM also takes op_sel_hi of the first source of a packed
    instruction for that, which is on by default, and waits after these.
    """
    part, high = re.search(r"d(\d)u", row.variant), re.search(r"h(\d)", row.variant)
    if part is not None:
        return part[1] != "6"
    if row.packed:
        return high is None or bool(int(high[1]) & 1)
    select = re.search(r"o(\d+)", row.variant)
    return select is not None and bool(int(select[1]) & 8)


def _conflicts(state: State, item: Instruction) -> Iterator[tuple[str, int, int]]:
    """(what is too close, wait states needed, wait states found)."""
    written, read = split_operands(item)
    writes = {register for operand in written for register in registers_of(operand)}
    reads = {register for operand in read for register in registers_of(operand)}
    kind = item.row.kind
    if _breaks_clause(state, item, reads, writes):
        yield _BROKEN_CLAUSE, 1, 0
    for source, distance in state.items():
        touched = set(source.registers)
        if source.kind == "valu":
            needed = _after_valu(source, item, read, reads, writes)
            if needed:
                file, number = source.registers[0]
                yield f"uses {file}{number} too soon after the VALU that wrote it", needed, distance
        elif source.kind == "setreg" and kind in ("setreg", "getreg") and source.name == _hardware_register(item):
            yield f"uses {source.name} too soon after s_setreg", SETREG_TO_HARDWARE_REGISTER, distance
        elif source.kind == "m0" and loads_to_lds(item):
            yield "loads to LDS too soon after m0 was written", M0_TO_LDS_LOAD, distance
        elif source.kind == "wide store" and kind in _VECTOR and touched & writes:
            yield "overwrites the data of a store", WIDE_STORE_TO_VALU[source.name], distance
        elif source.kind == "mfma c" and kind != "mfma" and touched & writes:
            assert source.shape is not None
            yield f"overwrites C of {source.name}", matrix_wait(source.shape, "war"), distance
        elif source.kind == "mfma" and touched & (reads | writes):
            yield f"uses D of {source.name}", _after_matrix(source, item, read), distance


def _hardware_register(item: Instruction) -> str:
    """A name for the register that s_setreg or s_getreg names, whichever of its bits are meant."""
    number = next(operand.number for operand in item.operands if operand.kind == "hwreg")
    return f"hardware register {number & 0x3F}"


def loads_to_lds(item: Instruction) -> bool:
    """A vector memory load whose data goes to LDS: the vector unit takes part in it."""
    return item.row.kind in _VMEM and ("lds" in item.modifiers or "_lds_" in item.row.name)


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


def _after_valu(
    source: Source, item: Instruction, read: list[Operand], reads: set[Register], writes: set[Register]
) -> int:
    """Wait states between a VALU and an instruction that uses a register which it wrote."""
    file, number = source.registers[0]
    if file == "s":
        return _after_scalar(number, item, read, reads)
    kind, row, read_here = item.row.kind, item.row, source.registers[0] in reads
    here = read_here or source.registers[0] in writes
    needed = 0
    if kind == "mfma":
        needed = VALU_TO_MATRIX * read_here
    elif row.name.startswith("v_permlane") or row.lanes is not None:
        needed = VALU_TO_LANE_MOVE * here
    elif kind == "lane" and row.results == ("scalar",):
        needed = VALU_TO_LANE_READ * read_here
    vector = kind in _VECTOR or loads_to_lds(item)
    # The bits that SDWA keeps of its result do not count.
    kept = item.format == "SDWA" and source.registers[0] in writes
    if source.name == "trans" and vector and read_here and not kept and not row.name.startswith(_TRANSCENDENTAL):
        needed = max(needed, TRANS_TO_VALU)
    if source.name == "shifted" and vector and here:
        needed = max(needed, SHIFTED_TO_VALU)
    return needed


def _after_scalar(number: int, item: Instruction, read: list[Operand], reads: set[Register]) -> int:
    """The same for a scalar register, VCC and EXEC among them; every vector instruction reads EXEC."""
    kind, row = item.row.kind, item.row
    if number in (EXEC, EXEC + 1):
        if kind in _VMEM:
            return VALU_SGPR_TO_VMEM
        if row.lanes is not None:
            return VALU_EXEC_TO_DPP
        if (kind in ("lane", "mfma") or row.name.startswith("v_permlane")) and not row.name.startswith("v_mbcnt"):
            return VALU_EXEC_TO_LANE
        return VALU_SGPR_TO_VALU if kind in _VECTOR and ("s", number) in reads else 0
    if number in (VCC, VCC + 1) and row.name.startswith("v_div_fmas"):
        return VALU_VCC_TO_FMAS
    if ("s", number) not in reads:
        return 0
    if kind in _VMEM:
        return VALU_SGPR_TO_VMEM
    number_of_lane = row.name in ("v_readlane_b32", "v_writelane_b32") and ("s", number) in registers_of(read[-1])
    if number_of_lane:
        return VALU_SGPR_TO_LANE_NUMBER
    return VALU_SGPR_TO_VALU if kind in _VECTOR else 0


def _after_matrix(source: Source, item: Instruction, read: list[Operand]) -> int:
    """An MFMA may take over D as its C without waiting, if it is the same opcode on the same registers.

    LLVM does not wait either where the opcodes differ and the registers are the same, which is too little (llvm PR
    218363), nor between two results in one register. Nothing that it emits comes near; these rules stay strict.
    """
    assert source.shape is not None
    touched = set(source.registers)
    if item.row.kind == "mfma":
        operands = [set(registers_of(operand)) for operand in read]
        if touched & operands[0].union(operands[1], *operands[3:]):
            return matrix_wait(source.shape, "other")
        if operands[2] & touched:
            same = tuple(registers_of(read[2])) == source.registers and item.row.name == source.name
            return 0 if same else matrix_wait(source.shape, "c")
        # Two MFMAs end in the order in which they start, unless the second is the shorter one.
        assert item.row.matrix is not None
        return max(0, matrix_wait(source.shape, "other") - matrix_wait(item.row.matrix, "other"))
    return matrix_wait(source.shape, "other")
