"""Waits and wait states: what breaks each rule, what keeps it, and mutants of every kernel the compiler emits."""

from __future__ import annotations

import functools
import re
from types import SimpleNamespace

import pytest
from conv_cases import make_case, voxels
from sim_kernels import PROLOGUE, encode, make_kernel
from test_sim_decode import CONVOLUTIONS, artifact, listing, without_padding

from spconv_compiler import compile_conv
from spconv_compiler.sim import mutation
from spconv_compiler.sim.decode import decode
from spconv_compiler.sim.elf import CodeObject, Kernel
from spconv_compiler.sim.errors import Fault
from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.interpreter import Machine, is_counted
from spconv_compiler.sim.mutation import barrier_report, report, unreachable, wait_mutants
from spconv_compiler.sim.mutation_reasons import reason
from spconv_compiler.sim.native.machine import NativeMachine
from spconv_compiler.sim.run_plan import run_conv
from spconv_compiler.sim.static_checks import check, check_clauses

LOAD = "buffer_load_dword v2, v1, s[4:7], 0 offen"
MFMA = "v_mfma_f32_16x16x32_bf16 v[4:7], v[8:11], v[12:15], 0"
WIDE = "v_mfma_f32_32x32x16_bf16 v[16:31], v[8:11], v[12:15], 0"
SINGLE = "v_mfma_f32_16x16x4_f32 v[4:7], v8, v12, 0"


def problems(text: str) -> list[str]:
    return [violation.reason for violation in check(decode(encode(f"{text}\ns_endpgm"), 0))]


def nops(count: int) -> str:
    """Wait states."""
    return "\n".join(["s_nop 0"] * count)


# (before the wait, the wait that suffices, the use after it, a part of the message without the wait)
WAITS = {
    "load, read": (LOAD, "vmcnt(0)", "v_add_u32_e32 v3, v2, v2", "reads v2 .*vmcnt"),
    "load, overwrite": (LOAD, "vmcnt(0)", "v_mov_b32_e32 v2, 0", "writes v2 .*vmcnt"),
    "load, mfma overwrites": (LOAD.replace("v2", "v5"), "vmcnt(0)", MFMA, "writes v5 .*vmcnt"),
    "one younger load": (f"{LOAD}\n{LOAD.replace('v2', 'v3')}", "vmcnt(1)", "v_mov_b32_e32 v4, v2", "reads v2"),
    "younger store counts": (
        f"{LOAD}\ns_nop 0\nbuffer_store_dword v3, v1, s[4:7], 0 offen",
        "vmcnt(1)",
        "v_mov_b32_e32 v4, v2",
        "reads v2",
    ),
    "scalar load": ("s_load_dword s8, s[0:1], 0x0", "lgkmcnt(0)", "s_mov_b32 s9, s8", "reads s8 .*lgkmcnt"),
    "lds": ("ds_read_b32 v2, v1\nds_read_b32 v3, v1", "lgkmcnt(1)", "v_mov_b32_e32 v4, v2", "reads v2 .*lgkmcnt"),
    "permute": ("ds_bpermute_b32 v2, v1, v3", "lgkmcnt(0)", "v_mov_b32_e32 v4, v2", "reads v2"),
    "lds write at a barrier": ("ds_write_b32 v1, v2", "lgkmcnt(0)", "s_barrier", "LDS write is not waited for"),
    "store of loaded data": (LOAD, "vmcnt(0)", "buffer_store_dword v2, v1, s[4:7], 0 offen", "reads v2"),
    "other queue overwrites": (LOAD, "vmcnt(0)", "ds_read_b32 v2, v1", "writes v2"),
}


@pytest.mark.parametrize("name", WAITS)
def test_waits(name: str) -> None:
    before, wait, after, message = WAITS[name]
    assert problems(f"{before}\ns_waitcnt {wait}\n{after}") == []
    raised = wait.replace("(1)", "(2)").replace("(0)", "(1)")
    for weaker in ("s_nop 7", f"s_waitcnt {raised}"):
        found = problems(f"{before}\n{weaker}\n{after}")
        assert len(found) == 1 and re.search(message, found[0]), found


def test_scalar_loads_come_back_in_any_order() -> None:
    """lgkmcnt(1) says nothing about which of two scalar loads is back."""
    text = "s_load_dword s8, s[0:1], 0x0\ns_load_dword s9, s[0:1], 0x4\ns_waitcnt lgkmcnt(1)\ns_mov_b32 s10, s8"
    assert len(problems(text)) == 1


def test_full_counters_wait_by_themselves() -> None:
    """64 loads after the first one: vmcnt holds 63, so that the first must be back."""
    younger = [f"buffer_load_dword v{number}, v1, s[4:7], 0 offen" for number in range(100, 163)]
    assert problems("\n".join([LOAD, *younger, "v_mov_b32_e32 v3, v2"])) == []
    assert problems("\n".join([LOAD, *younger[:-1], "v_mov_b32_e32 v3, v2"])) != []


def test_all_paths_are_looked_at() -> None:
    """The load happens on one side of a branch only; without it nothing is wrong."""
    text = f"s_cbranch_scc0 {{}}\n{LOAD}\nv_mov_b32_e32 v3, v2"
    assert problems(text.format(2).replace(LOAD, "s_nop 0\ns_nop 0")) == []
    assert len(problems(text.format(2))) == 1
    loop = f"v_mov_b32_e32 v3, v2\ns_nop 0\n{LOAD}\ns_cbranch_scc0 -5"
    assert len(problems(loop)) == 1


# (producer, consumer, wait states needed, message)
HAZARDS = {
    "D to C, same": (MFMA, MFMA.replace(", 0", ", v[4:7]"), 0, ""),
    "D to C, other opcode": (MFMA, SINGLE.replace(", 0", ", v[4:7]"), 6, "uses D of v_mfma_f32_16x16x32_bf16"),
    "D to C, overlap": (MFMA, "v_mfma_f32_16x16x32_bf16 v[20:23], v[8:11], v[12:15], v[6:9]", 6, "uses D"),
    "D to A": (MFMA, "v_mfma_f32_16x16x32_bf16 v[20:23], v[4:7], v[12:15], 0", 8, "uses D"),
    "D to VALU": (MFMA, "v_mov_b32_e32 v3, v7", 8, "uses D"),
    "D overwritten": (MFMA, "v_mov_b32_e32 v5, 0", 8, "uses D"),
    "D to store": (MFMA, "buffer_store_dword v4, v1, s[4:7], 0 offen", 8, "uses D"),
    "D to LDS": (MFMA, "ds_write_b32 v1, v4", 8, "uses D"),
    "wide D to VALU": (WIDE, "v_mov_b32_e32 v3, v31", 12, "uses D"),
    "wide D to C, overlap": (WIDE, "v_mfma_f32_16x16x32_bf16 v[4:7], v[8:11], v[12:15], v[20:23]", 10, "uses D"),
    "f32 D to VALU": (SINGLE, "v_mov_b32_e32 v3, v7", 10, "uses D"),
    "f32 D to C, overlap": (SINGLE, "v_mfma_f32_16x16x4_f32 v[20:23], v8, v12, v[6:9]", 8, "uses D"),
    "C overwritten": (MFMA.replace(", 0", ", v[20:23]"), "v_mov_b32_e32 v21, 0", 3, "overwrites C"),
    "VALU to A": ("v_mov_b32_e32 v8, 0", MFMA, 2, "uses v8 too soon"),
    "VALU scalar to memory": ("v_readfirstlane_b32 s4, v3", LOAD, 5, "uses s4 too soon"),
    "VALU mask to VALU": ("v_cmp_gt_u32_e64 s[8:9], v3, v4", "v_cndmask_b32_e64 v5, v3, v4, s[8:9]", 2, "soon"),
    "VALU scalar to lane number": ("v_readfirstlane_b32 s8, v3", "v_readlane_b32 s9, v4, s8", 4, "uses s8"),
    "VALU to lane read": ("v_mov_b32_e32 v3, 0", "v_readfirstlane_b32 s8, v3", 1, "uses v3"),
    "store data overwritten": (
        "buffer_store_dwordx4 v[8:11], v1, s[4:7], 0 offen",
        "v_mov_b32_e32 v9, 0",
        2,
        "overwrites the data",
    ),
    "clause": (LOAD, "buffer_load_dword v1, v3, s[4:7], 0 offen", 1, "a clause reads and writes one register"),
    "store after load": (LOAD, "buffer_store_dword v3, v1, s[4:7], 0 offen", 1, "a store ends it without a pause"),
}


@pytest.mark.parametrize("name", HAZARDS)
def test_hazards(name: str) -> None:
    producer, consumer, needed, message = HAZARDS[name]
    assert problems(f"{producer}\n{nops(needed)}\n{consumer}") == []
    if needed:
        found = problems(f"{producer}\n{nops(needed - 1)}\n{consumer}")
        assert found and all(message in reason for reason in found), found
        assert problems(f"{producer}\ns_nop {needed - 1}\n{consumer}") == []


@pytest.mark.parametrize("loads", [2, 17, 40])
def test_a_clause_spares_its_addresses_however_long_it_is(loads: int) -> None:
    """The last load writes the address of the first one."""
    several = [f"buffer_load_dword v{number}, v1, s[4:7], 0 offen" for number in range(100, 99 + loads)]
    last = "buffer_load_dword v1, v3, s[4:7], 0 offen"
    assert [reason.partition(",")[0] for reason in problems("\n".join([*several, last]))] == [
        "a clause reads and writes one register"
    ]
    assert problems("\n".join([*several, "s_nop 0", last])) == []
    parts = decode(encode("\n".join([*several, last, "s_endpgm"])), 0)
    assert [violation.instruction for violation in check_clauses(parts)] == [parts[-2]]
    assert check_clauses(decode(encode("\n".join([*several, "s_nop 0", last, "s_endpgm"])), 0)) == []


def test_machine_refuses_a_kernel_that_fails() -> None:
    machine = Machine({"k": make_kernel(f"{PROLOGUE}{LOAD}\nv_mov_b32_e32 v3, v2\ns_endpgm")})
    buffer = machine.memory.allocate("buffer", 256)
    with pytest.raises(
        Fault, match=r"k: 1 violations, the first at 0x[0-9a-f]+: v_mov_b32_e32 v3, v2\n  reads v2 before"
    ):
        machine.launch("k", [1], 64, [buffer, buffer])


# Kernels that the compiler emits.


@functools.cache
def kernels(name: str) -> dict[str, tuple[Kernel, list[Instruction]]]:
    loaded = CodeObject(artifact(name).object).kernels
    return {key: (kernel, decode(kernel.code, kernel.address)) for key, kernel in loaded.items()}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_emitted_kernels_are_clean(name: str) -> None:
    for kernel, instructions in kernels(name).values():
        assert [str(violation) for violation in check(instructions)] == [], kernel.name


def alignment(name: str, kernel: str, instructions: list[Instruction]) -> set[int]:
    """Addresses of the s_nop that the assembler put before aligned labels."""
    isa = artifact(name).isa
    assert isa is not None
    lines, _, padded = listing(isa, kernel)
    kept = {item.address for item in without_padding(instructions, lines, padded)}
    return {item.address for item in instructions} - kept


def own_kernels(name: str) -> list[tuple[Kernel, list[Instruction]]]:
    """The kernels of a convolution whose code no convolution before it in CONVOLUTIONS has."""
    names = list(CONVOLUTIONS)
    seen = {kernel.code for other in names[: names.index(name)] for kernel, _ in kernels(other).values()}
    return [(kernel, instructions) for kernel, instructions in kernels(name).values() if kernel.code not in seen]


@pytest.mark.parametrize(
    ("schedule", "widths", "dtype"),
    [
        ("output_stationary", (33, 100), "bf16"),
        ("output_stationary", (63, 16), "f16"),
        ("pairs_m16", (129, 64), "bf16"),
        ("split_taps", (257, 256), "bf16"),
    ],
)
def test_odd_widths_make_clean_kernels(schedule: str, widths: tuple[int, int], dtype: str) -> None:
    """Rows that are gathered by half words; test_clauses.py has those whose loads are parted."""
    made = compile_conv(3, *widths, dtype=dtype, target="gfx950", schedule=schedule)
    for name, kernel in CodeObject(made.object).kernels.items():
        assert list(check(decode(kernel.code, kernel.address))) == [], name


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_wait_mutants_are_caught(name: str) -> None:
    """All of them, but for padding and what is shown to change nothing (mutation_reasons.py).

    What vmcnt means beyond registers (loads to LDS, releases) is for a run: python -m spconv_compiler.sim.mutation.
    """
    caught = same = 0
    for kernel, instructions in own_kernels(name):
        padding, dead = alignment(name, kernel.name, instructions), unreachable(instructions)
        for mutant in wait_mutants(instructions):
            item = instructions[mutant.index]
            if mutant.caught():
                caught += 1
            elif mutant.index in dead or item.address in padding:
                assert item.row.name == "s_nop"
            elif "vmcnt" not in mutant.change or not any(is_counted(each) for each in instructions):
                same += 1
                why = reason(instructions, mutant.index, mutant.change, mutant.instructions)
                assert why, f"{kernel.name} 0x{item.address:x} {item}: {mutant.change}"
    assert caught > 20 and same <= caught // 20


@pytest.mark.parametrize("name", ["bf16", "map by search"])
def test_mutants_are_judged_as_by_the_whole_check(name: str) -> None:
    """Which looks at the blocks behind a weaker instruction only."""
    for _, instructions in own_kernels(name):
        for mutant in list(wait_mutants(instructions))[:: 1 + len(instructions) // 40]:
            assert mutant.caught() == bool(check(mutant.instructions))


def test_what_changes_nothing_is_told_from_what_is_missed() -> None:
    """Of a wait: the operation that it stops covering writes registers only; of a no-op: an overwritten register."""

    def told(text: str, index: int, change: str) -> str:
        items = decode(encode(f"{text}\ns_endpgm"), 0)
        mutant = next(each for each in wait_mutants(items) if (each.index, each.change) == (index, change))
        assert not mutant.caught()
        return reason(items, index, change, mutant.instructions)

    wait = "s_waitcnt vmcnt(0)"
    assert "0x8 buffer_load_dword:" in told(f"{nops(2)}\n{LOAD}\n{wait}", 3, "vmcnt raised by one")
    to_local = f"s_mov_b32 m0, 0\ns_nop 0\n{LOAD.replace('v2, ', '')} lds"
    assert told(f"{to_local}\n{wait}", 3, "vmcnt raised by one") == ""
    store = f"buffer_store_dword v3, v1, s[4:7], 0 offen\n{wait}"
    assert told(store, 1, "vmcnt raised by one") == ""
    assert told(f"{LOAD}\ns_nop 0\n{store}", 3, "vmcnt raised by one") == ""
    assert told(wait, 0, "vmcnt dropped").startswith("on no path")
    # On one path the load to LDS is the youngest, on the other one a load to a register.
    both = f"{to_local}\ns_cbranch_scc0 2\n{LOAD}\n{wait}"
    assert told(both, 5, "vmcnt raised by one") == ""
    mask = "v_cmp_gt_u32_e32 vcc, v3, v4\ns_and_b64 vcc, s[8:9], s[10:11]\ns_nop 0\nv_cndmask_b32_e32 v5, v3, v4, vcc"
    assert "overwritten" in told(mask, 2, "s_nop shorter by one")
    assert told("s_nop 0\nv_mov_b32_e32 v3, 0", 0, "s_nop shorter by one") == ""
    # Loads around it are no reason: whether their registers meet is what the checks look at.
    other = LOAD.replace("v2", "v3")
    assert told(f"{LOAD}\ns_nop 0\n{other}", 1, "s_nop shorter by one") == ""


def test_barrier_mutants_are_caught() -> None:
    """Every barrier of every kernel, one at a time, on a frame with several waves in each scan."""
    case = make_case(voxels(1100, 14), 3, 16, 32, dtype="bf16", whole=True)
    run_conv(artifact("bf16"), case.coords, case.features, case.weight, engine=NativeMachine)
    found = barrier_report(artifact("bf16"), case.coords, case.features, case.weight)
    assert found.total > 0 and found.caught == found.total, found.missed


def test_report_of_mutants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two of the kernels: test_wait_mutants_are_caught has them all."""
    loaded = CodeObject(artifact("bf16").object).kernels
    few = {name: kernel for name, kernel in loaded.items() if name.startswith(("sort_digit", "arrange"))}
    monkeypatch.setattr(mutation, "CodeObject", lambda code: SimpleNamespace(kernels=few))
    parts: dict[str, list[str]] = {}
    for line in report(artifact("bf16").object):
        if not line.startswith("  "):
            parts[line.partition(":")[0]] = [line]
        else:
            parts[next(reversed(parts))].append(line)
    assert list(parts) == list(few) and len(few) == 2
    for first, *missed in parts.values():
        caught, total = (int(number) for number in re.findall(r"(\d+) of (\d+) caught", first)[0])
        assert caught > 10 and caught + len(missed) == total
        assert all(re.match(r"  0x[0-9a-f]+: s_\w+ .*: .+: .+", line) for line in missed)
        assert not any("no rule needs it" in line for line in missed)
