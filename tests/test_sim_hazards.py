"""The table of wait states against LLVM: every pair of instruction classes, and code that the wheel's LLVM generates.

hazard_pairs.json holds what the hazard recogniser of another LLVM (22 or later, through machine IR) puts between the
instructions of each pair; hazard_pairs.py makes it anew. The wheel's own LLVM takes IR only, so that few pairs can be
brought next to each other: those are compiled here.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import hazard_pairs
import pytest
from hazard_pairs import Pair

from spconv_compiler.sim import hazards
from spconv_compiler.sim.assembler import assemble
from spconv_compiler.sim.cfg import registers_of, split_operands, wait_states
from spconv_compiler.sim.decode import decode, decode_one
from spconv_compiler.sim.elf import CodeObject
from spconv_compiler.sim.errors import DecodeError
from spconv_compiler.sim.instruction import Instruction

RECORD = hazard_pairs.read_record()
# More than any hazard needs.
FAR = 25


@functools.cache
def decoded() -> dict[str, Instruction]:
    """Every line of every pair that the decoder knows."""
    lines = sorted({line for pair in hazard_pairs.pairs() for line in pair.lines()})
    found = {}
    for line, slot in zip(lines, assemble(lines), strict=True):
        try:
            found[line] = decode_one(slot)
        except DecodeError:
            continue
    return found


@functools.cache
def no_op() -> Instruction:
    return decode_one(assemble(["s_nop 0"])[0])


def needed(first: Instruction, second: Instruction) -> int:
    """The fewest wait states between two instructions that the table accepts."""
    state, _ = hazards.step({}, first)
    for states in range(FAR):
        if not hazards.step(state, second)[1]:
            return states
        state, _ = hazards.step(state, no_op())
    raise AssertionError(f"{first}, {second}: never far enough apart")


@functools.cache
def reachable() -> list[tuple[Pair, Instruction, Instruction]]:
    """All pairs that LLVM and the decoder know, with their instructions."""
    table, found = decoded(), []
    for pair in hazard_pairs.pairs():
        one, other = (table.get(line) for line in pair.lines())
        if one is not None and other is not None and pair.name not in RECORD.unreached:
            found.append((pair, one, other))
    return found


def compared(*first: str) -> list[tuple[Pair, int, int]]:
    """(pair, wait states that the table wants, that LLVM inserts), of the pairs that begin with one of some forms."""
    return [
        (pair, needed(one, other), RECORD.waits.get(pair.name, 0))
        for pair, one, other in reachable()
        if not first or pair.first.name in first
    ]


def stricter_on_purpose(pair: Pair) -> bool:
    """Two MFMAs that share an accumulator but not the opcode, or that write one register: see hazards.py."""
    both = "MFMA" in pair.first.mir and "MFMA" in pair.second.mir and pair.first is not pair.second
    return both and pair.one == "d" and pair.other in "cd"


@functools.cache
def whole() -> list[tuple[Pair, int, int]]:
    """All of them, with the table as it is."""
    return compared()


def too_little(found: list[tuple[Pair, int, int]]) -> list[str]:
    return [f"{pair.name}: {ours}, LLVM: {theirs}" for pair, ours, theirs in found if ours < theirs]


def test_no_pair_needs_less_than_llvm_inserts() -> None:
    assert too_little(whole()) == []


def test_pairs_that_need_more_than_llvm_inserts_are_known() -> None:
    found = [pair for pair, ours, theirs in whole() if ours > theirs and not stricter_on_purpose(pair)]
    assert [pair.name for pair in found] == []


def test_most_pairs_are_compared() -> None:
    """Left out are those between which LLVM puts a wait of its own, or which it does not leave as they are."""
    every = list(hazard_pairs.pairs())
    assert {line for pair in every for line in pair.lines()} == set(decoded())
    assert RECORD.pairs == len(every) and RECORD.unreached <= {pair.name for pair in every}
    assert len(whole()) == len(every) - len(RECORD.unreached) > 0.9 * len(every)
    assert sum(theirs > 0 for _, _, theirs in whole()) == len(RECORD.waits) > 3000


# Number of the table -> a pair of forms that is apart because of it.
CONSTANTS = {
    "VALU_TO_MATRIX": ("valu", "bf16 16x16x32"),
    "VALU_SGPR_TO_VMEM": ("first lane", "buffer load"),
    "VALU_SGPR_TO_VALU": ("cmp", "select"),
    "VALU_SGPR_TO_LANE_NUMBER": ("first lane", "read lane"),
    "VALU_TO_LANE_READ": ("valu", "first lane"),
    "VALU_TO_LANE_MOVE": ("valu", "dpp"),
    "VALU_VCC_TO_FMAS": ("cmp vcc", "fmas"),
    "VALU_EXEC_TO_LANE": ("cmpx", "write lane"),
    "VALU_EXEC_TO_DPP": ("cmpx", "dpp"),
    "TRANS_TO_VALU": ("trans", "valu"),
    "SHIFTED_TO_VALU": ("sdwa", "valu"),
    "M0_TO_LDS_LOAD": ("salu m0", "lds dma"),
    "SETREG_TO_HARDWARE_REGISTER": ("setreg", "getreg"),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_every_number_of_the_table_is_held_by_a_pair(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One less, and LLVM asks for more than the table."""
    monkeypatch.setattr(hazards, name, getattr(hazards, name) - 1)
    first, second = CONSTANTS[name]
    found = compared(first)
    assert too_little([one for one in found if one[0].second.name == second]) != []


@pytest.mark.parametrize("change", [("c", -1), ("other", -1), ("war", -1)])
def test_every_number_of_an_mfma_is_held_by_a_pair(change: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    right = hazards.matrix_wait
    monkeypatch.setattr(
        hazards, "matrix_wait", lambda shape, what: right(shape, what) + (change[1] if what == change[0] else 0)
    )
    assert len(too_little(compared("bf16 16x16x32", "bf16 32x32x16"))) > 10


@pytest.mark.parametrize("name", ["", "soffset"])
def test_wide_stores_are_held_by_a_pair(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hazards.WIDE_STORE_TO_VALU, name, hazards.WIDE_STORE_TO_VALU[name] - 1)
    assert too_little(compared("buffer store x4", "buffer store x4 o")) != []


def test_the_record_is_what_llvm_says() -> None:
    """Asks LLVM again, where one that reads machine IR is installed, about pairs drawn over the whole list."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("no LLVM that reads machine IR: triton is not installed")
    chosen = [pair for pair in hazard_pairs.pairs() if pair.name not in RECORD.unreached][::20]
    for pair, lines in zip(chosen, hazard_pairs.ask_llvm([pair.machine() for pair in chosen]), strict=True):
        assert hazard_pairs.inserted(lines) == RECORD.waits.get(pair.name, 0), pair.name
        assert (lines[0].replace("\t", " "), lines[-1].replace("\t", " ")) == pair.lines()


# Tables that others publish.

# What rocRoller's wait state observers keep for gfx950 (ROCm/rocRoller, lib/include/rocRoller/Scheduling/Observers/
# WaitState: its rows for 94x, with one more after an XDL write on gfx950), which follow AMD's ISA documents.
ROCROLLER: dict[str, int] = {
    "bf16 16x16x32.d > valu.a": 8,
    "bf16 16x16x32.d > valu.d": 8,
    "bf16 16x16x32.d > buffer store.d": 8,
    "bf16 16x16x32.d > lds write.d": 8,
    "bf16 16x16x32.d > global load.p": 8,
    "bf16 16x16x32.d > bf16 16x16x32.a": 8,
    "bf16 16x16x32.d > bf16 16x16x32.b": 8,
    "bf16 16x16x32.d > bf16 16x16x32.c": 0,
    "bf16 16x16x32.d > bf16 16x16x32.c +2": 6,
    "bf16 32x32x16.d > valu.a": 12,
    "bf16 32x32x16.d > buffer store x4.d": 12,
    "bf16 32x32x16.d > bf16 32x32x16.a": 12,
    "bf16 32x32x16.d > bf16 32x32x16.c": 0,
    "bf16 32x32x16.d > bf16 32x32x16.c +2": 10,
    "f8 32x32x64.d > valu.a": 20,
    "f8 32x32x64.d > f8 32x32x64.c +2": 18,
    "f32 16x16x4.d > f32 16x16x4.a": 10,
    "f32 16x16x4.d > f32 16x16x4.c +2": 8,
    "f32 32x32x2.d > f32 32x32x2.a": 18,
    "f32 32x32x2.d > f32 32x32x2.c +2": 16,
    "bf16 16x16x32.c > valu.d": 3,
    "bf16 32x32x16.c > valu.d": 7,
    "f8 32x32x64.c > valu.d": 15,
    "valu.d > bf16 16x16x32.a": 2,
    "valu.d > read lane.a": 1,
    "valu.d > swap 32.d": 2,
    "trans.d > valu.a": 1,
    "sdwa.d > valu.a": 1,
    "cmp.m > buffer load.r": 5,
    "first lane.s > buffer load o.o": 5,
    "cmp.m > valu s.s": 2,
    "cmp.m > read lane.l": 4,
    "cmp vcc.vcc > fmas.vcc": 4,
    "cmpx.exec > read lane.exec": 4,
    "cmpx.exec > first lane.exec": 4,
    "cmpx.exec > write lane.exec": 4,
    "cmpx.exec > swap 32.exec": 4,
    "cmpx.exec > valu.exec": 0,
    "buffer store x4.d > valu.d": 2,
}
# Where it waits longer than LLVM and this table: after MFMAs of f32 it takes the numbers of the others (11 and 19, and
# C overwritten), and one state before a load writes the data of a wide store. Shorter: none after a wide store with
# its offset in a scalar register, one between VCC and its use as a number.
ROCROLLER_DIFFERS = {
    "f32 16x16x4.d > valu.a": (11, 10),
    "f32 32x32x2.d > buffer store.d": (19, 18),
    "f32 16x16x4.c > valu.d": (7, 0),
    "buffer store x4.d > lds read.d": (1, 0),
    "buffer store x4 o.d > valu.d": (0, 1),
}


def test_the_table_agrees_with_the_published_ones() -> None:
    names = {pair.name: (one, other) for pair, one, other in reachable()}
    assert {name: needed(*names[name]) for name in ROCROLLER} == ROCROLLER
    assert {name: needed(*names[name]) for name in ROCROLLER_DIFFERS} == {
        name: ours for name, (_, ours) in ROCROLLER_DIFFERS.items()
    }


def test_an_mfma_that_overwrites_part_of_a_result_is_what_the_next_one_reads() -> None:
    """In code of pair_major: the third takes over D of the second, the fourth reads what is left of the first's."""
    lines = [
        "v_mfma_f32_16x16x4_f32 v[22:25], v1, v2, v[22:25]",
        "v_mfma_f32_16x16x4_f32 v[24:27], v1, v2, 0",
        "v_mfma_f32_16x16x4_f32 v[24:27], v1, v2, v[24:27]",
        "v_mfma_f32_16x16x4_f32 v[20:23], v1, v2, v[20:23]",
    ]
    state, found = hazards.State(), []
    for slot in assemble(lines):
        state, problems = hazards.step(state, decode_one(slot))
        found.append(problems)
    assert found[:3] == [[], [], []] and "needed: 8" in found[3][0]


def test_exec_as_a_number_after_a_compare_that_wrote_it() -> None:
    """rocRoller and the ISA documents: 2; every instruction reads EXEC as a mask without waiting."""
    lines = ["v_cmpx_gt_u32_e32 vcc, v3, v4", "v_mov_b32_e32 v5, exec_lo"]
    compare, use = (decode_one(slot) for slot in assemble(lines))
    assert needed(compare, use) == 2


# Code of the wheel's own LLVM.

_KERNEL = """
module attributes {{gpu.container_module}} {{
  gpu.module @m [#rocdl.target<O = 2, chip = "gfx950", abi = "600">] {{
    llvm.func @k(%p: !llvm.ptr<1>, %q: !llvm.ptr<1>) attributes {{gpu.kernel, rocdl.kernel}} {{
      %a = llvm.load %p : !llvm.ptr<1> -> vector<8xbf16>
      %c = llvm.mlir.zero : {type}
      %d = rocdl.mfma.f32.{shape}.bf16 %a, %a, %c, 0, 0, none : (vector<8xbf16>, vector<8xbf16>, {type}) -> {type}
      {use}
      llvm.return
    }}
  }}
}}
"""
_AS_A = """%e = llvm.bitcast %d : vector<4xf32> to vector<8xbf16>
      %f = rocdl.mfma.f32.16x16x32.bf16 %e, %a, %c, 0, 0, none : (vector<8xbf16>, vector<8xbf16>, {0}) -> {0}
      llvm.store %f, %q : {0}, !llvm.ptr<1>""".replace("{0}", "vector<4xf32>")
_SHIFT = """%e = llvm.bitcast %d : vector<4xf32> to vector<4xi32>
      %n = llvm.mlir.constant(dense<3> : vector<4xi32>) : vector<4xi32>
      %f = llvm.lshr %e, %n : vector<4xi32>
      llvm.store %f, %q : vector<4xi32>, !llvm.ptr<1>"""
_STORE = "llvm.store %d, %q : {type}, !llvm.ptr<1>"
USES: dict[str, tuple[str, str]] = {
    "16x16 to store": ("16x16x32", _STORE.format(type="vector<4xf32>")),
    "32x32 to store": ("32x32x16", _STORE.format(type="vector<16xf32>")),
    "16x16 to A": ("16x16x32", _AS_A),
    "16x16 to VALU": ("16x16x32", _SHIFT),
}


@pytest.mark.parametrize("name", USES)
def test_generated_code_waits_as_long_as_the_table_says(name: str) -> None:
    shape, use = USES[name]
    type_ = "vector<4xf32>" if shape.startswith("16") else "vector<16xf32>"
    instructions = compiled(_KERNEL.format(shape=shape, type=type_, use=use))
    start = next(index for index, item in enumerate(instructions) if item.row.kind == "mfma")
    result = set(registers_of(split_operands(instructions[start])[0][0]))
    states, stalled = 0, False
    for item in instructions[start + 1 :]:
        if result & {register for operand in split_operands(item)[1] for register in registers_of(operand)}:
            break
        states += wait_states(item)
        stalled |= item.row.name == "s_nop"
    # With an s_nop in between LLVM has put there what it must, and no more.
    shape_of = instructions[start].row.matrix
    assert shape_of is not None and stalled and states == hazards.matrix_wait(shape_of, "other")


def compiled(module: str) -> list[Any]:
    from spconv_compiler.sim.assembler import _link

    kernel = CodeObject(_link(module)).kernels["k"]
    return decode(kernel.code, kernel.address)
