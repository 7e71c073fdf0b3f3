"""Counters of a launch against cases counted by hand, each with a change of the code that the case notices."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sim_kernels import PROLOGUE, make_kernel

from spconv_compiler.sim import access_counter, chip, counters, lds_banks, occupancy
from spconv_compiler.sim.access_counter import AccessCounter
from spconv_compiler.sim.counters import LaunchCounters, count_launch
from spconv_compiler.sim.elf import Kernel
from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.interpreter import Machine
from spconv_compiler.sim.isa import ROWS

assembled = functools.cache(make_kernel)


def count(
    text: str,
    *,
    groups: int = 1,
    block: int = 64,
    every: int = 1,
    watch: bool = True,
    useful: int | None = None,
    **kernel: Any,
) -> LaunchCounters:
    """Runs a kernel k(buffer of 64 KiB of zeros, the same) and counts."""
    made = assembled(f"{PROLOGUE}{text}\ns_endpgm", **kernel)
    machine = Machine({"k": made})
    buffers = [machine.memory.allocate(name, 1 << 16) for name in ("first", "second")]
    for buffer in buffers:
        machine.memory.write_array(buffer, np.zeros(1 << 14, np.uint32))
    counter = AccessCounter(every) if watch else None
    machine.observer = counter
    ran = machine.launch("k", [groups], block, buffers)
    program = machine.program("k")
    return count_launch(
        made, program.instructions, ran.by_address, groups=groups, block=block, accesses=counter, useful_macs=useful
    )


def kernel_of(vgprs: int = 32, lds_bytes: int = 0, sgprs: int = 32) -> Kernel:
    return dataclasses.replace(make_kernel("s_endpgm", vgprs=vgprs, lds_bytes=lds_bytes), sgprs=sgprs)


# Instructions.


def check_classes() -> None:
    text = """
    s_mov_b32 s20, 3
    v_add_u32_e32 v3, v1, v1
    v_readfirstlane_b32 s21, v1
    s_sub_u32 s20, s20, 1
    s_cmp_lg_u32 s20, 0
    s_cbranch_scc1 -5
    s_nop 0
    s_barrier
    """
    found = count(text, groups=2, block=128, watch=False)
    # The prologue: one scalar load, eight scalar, one vector, one wait. The loop of five runs three times.
    waves = 4
    assert found.by_class == {
        "barrier": waves,
        "branch": 3 * waves,
        "end": waves,
        "nop": waves,
        "salu": (8 + 1 + 6) * waves,
        "smem": waves,
        "valu": (1 + 6) * waves,
        "wait": waves,
    }
    assert (found.groups, found.waves, found.block) == (2, waves, 128)
    assert found.instructions == sum(found.by_class.values()) == 30 * waves
    assert found.by_opcode["s_cbranch_scc1"] == 12 and found.memory == {} and found.sample is None


def check_matrix() -> None:
    zero = "\n".join(f"v_mov_b32_e32 v{number}, 0" for number in range(4, 16))
    wide = "v_mfma_f32_16x16x32_bf16 v[16:19], v[8:11], v[12:15], 0\n"
    single = "v_mfma_f32_16x16x4_f32 v[4:7], v8, v12, 0\n"
    found = count(f"{zero}\ns_nop 1\n{wide * 3}{single}", groups=2, useful=20_000)
    # 4 passes and 16 · 16 · 32 products each; 8 passes and 16 · 16 · 4.
    assert found.matrix.by_opcode == {"v_mfma_f32_16x16x32_bf16": 6, "v_mfma_f32_16x16x4_f32": 2}
    assert found.matrix.passes == 6 * 4 + 2 * 8
    assert found.matrix.executed_macs == 6 * 8192 + 2 * 1024 and found.matrix.useful_macs == 20_000


# Vector memory.

LOADS = {
    # address in v2 -> (bytes of a lane, lanes, lines of 64, lines of 128)
    "contiguous": ("v_lshlrev_b32_e32 v2, 2, v0", "dword", 4, 64, 4, 2),
    "contiguous x4": ("v_lshlrev_b32_e32 v2, 4, v0", "dwordx4", 16, 64, 16, 8),
    "a line each": ("v_lshlrev_b32_e32 v2, 6, v0", "dword", 4, 64, 64, 32),
    "two lines each": ("v_lshlrev_b32_e32 v2, 7, v0", "dword", 4, 64, 64, 64),
    "one word": ("v_mov_b32_e32 v2, 0", "dword", 4, 64, 1, 1),
    "across lines": ("v_lshlrev_b32_e32 v2, 4, v0\nv_add_u32_e32 v2, 8, v2", "dwordx4", 16, 64, 17, 9),
    "half": ("v_lshlrev_b32_e32 v2, 2, v0\ns_mov_b32 exec_hi, 0", "dword", 4, 32, 2, 1),
}


def check_loads() -> None:
    for name, (address, width, size, lanes, narrow, wide) in LOADS.items():
        data = "v[4:7]" if size == 16 else "v4"
        for form in ("buffer_load_{} {}, v2, s[4:7], 0 offen", "global_load_{} {}, v2, s[12:13]"):
            found = count(f"{address}\n{form.format(width, data)}\ns_waitcnt vmcnt(0)").memory
            assert set(found) - {"smem load"} == {"vmem load"}
            totals = found["vmem load"]
            seen = (totals.instructions, totals.lanes, totals.bytes, totals.lines_64, totals.lines_128)
            assert seen == (1, lanes, size * lanes, narrow, wide), name
            assert totals.coalescing == pytest.approx(size * lanes / (64 * narrow)), name


def check_atomics() -> None:
    """The reference gemm's pattern: 16 lanes a row of 64 bytes, four rows."""
    address = "v_lshrrev_b32_e32 v2, 4, v0\nv_lshlrev_b32_e32 v2, 9, v2\nv_and_b32_e32 v3, 15, v0\n"
    address += "v_lshl_or_b32 v2, v3, 2, v2\nv_mov_b32_e32 v4, 1.0\n"
    found = count(f"{address}buffer_atomic_add_f32 v4, v2, s[4:7], 0 offen", groups=3)
    assert found.atomic_segments == 3 * 4 and found.memory["vmem atomic"].bytes == 3 * 256
    assert "vmem load" not in found.memory


def check_sample() -> None:
    """Sixteen equal workgroups, every fourth watched: the same totals, and it is said."""
    text = "v_lshlrev_b32_e32 v2, 6, v0\nbuffer_load_dword v4, v2, s[4:7], 0 offen\ns_waitcnt vmcnt(0)"
    whole, part = (count(text, groups=16, every=every) for every in (1, 4))
    assert whole.memory == part.memory and whole.by_class == part.by_class
    assert whole.sample is not None and part.sample is not None
    assert (whole.sample.every, whole.sample.scale) == (1, 1.0) and (part.sample.every, part.sample.scale) == (4, 4.0)


# LDS.


def banks_by_hand(kind: str, size: int, addresses: list[int], on: list[bool]) -> tuple[int, int]:
    """(phases, cycles) counted lane by lane, with the phases written out anew."""
    low = [[0, 1, 2, 3, 12, 13, 14, 15, 20, 21, 22, 23, 24, 25, 26, 27]]
    low += [[4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19, 28, 29, 30, 31]]
    if (kind, size) == ("load", 16):
        banks, groups = 64, low + [[32 + lane for lane in group] for group in low]
    else:
        lanes = {("load", 12): 8, ("store", 8): 16, ("store", 12): 8, ("store", 16): 8}.get((kind, size), 32)
        banks = 32 if lanes < 32 else 64
        groups = [list(range(first, first + lanes)) for first in range(0, 64, lanes)]
    phases = cycles = 0
    for group in groups:
        served: dict[int, Any] = {}
        for lane in group:
            for word in range(addresses[lane] // 4, addresses[lane] // 4 + max(1, size // 4)) if on[lane] else ():
                entry = served.setdefault(word % banks, [])
                if kind == "atomic" or word not in entry:
                    entry.append(word)
        phases += any(on[lane] for lane in group)
        cycles += max(map(len, served.values()), default=0)
    return phases, cycles


PATTERNS: dict[str, Callable[[int, int], int]] = {
    "in a row": lambda lane, size: lane * size,
    "one word": lambda lane, size: 0,
    "one bank": lambda lane, size: 256 * lane,
    "rows of 64 bytes": lambda lane, size: lane % 16 * 64 + lane // 16 * size,
    "rows of 80 bytes": lambda lane, size: lane % 16 * 80 + lane // 16 * size,
    "every other": lambda lane, size: 2 * lane * size,
}


def check_banks() -> None:
    rng = np.random.default_rng(0)
    for size in (4, 8, 12, 16):
        for kind in ("load", "store", *(["atomic"] if size == 4 else [])):
            for name, place in PATTERNS.items():
                for on in (np.ones(64, np.bool_), rng.random(64) < 0.5, np.zeros(64, np.bool_)):
                    addresses = np.array([place(lane, size) for lane in range(64)])
                    found = lds_banks.phase_cycles(kind, size, addresses[None], on[None])
                    wanted = banks_by_hand("store" if kind == "atomic" else kind, size, addresses.tolist(), on.tolist())
                    if kind == "atomic":
                        wanted = banks_by_hand("atomic", size, addresses.tolist(), on.tolist())
                    assert tuple(int(part[0]) for part in found) == wanted, (size, kind, name)


def check_lds() -> None:
    """Known by heart: in a row costs no conflict; 64 words apart, all lanes meet in one bank."""
    wait = "s_waitcnt lgkmcnt(0)"
    row = f"v_lshlrev_b32_e32 v2, 2, v0\nds_write_b32 v2, v1\n{wait}\nds_read_b32 v4, v2\n{wait}"
    found = count(row, groups=2, lds_bytes=1 << 14).lds
    assert {kind: (one.phases, one.cycles) for kind, one in found.items()} == {"load": (4, 4), "store": (4, 4)}
    found = count(row.replace("2, 2, v0", "2, 8, v0"), lds_bytes=1 << 14).lds
    assert {kind: (one.phases, one.cycles) for kind, one in found.items()} == {"load": (2, 64), "store": (2, 64)}
    both = "v_lshlrev_b32_e32 v2, 2, v0\nds_write2_b32 v2, v1, v1 offset1:64\ns_waitcnt lgkmcnt(0)"
    (one,) = count(both, lds_bytes=1 << 14).lds.values()
    assert (one.instructions, one.bytes, one.phases, one.cycles) == (2, 512, 4, 4)


# Occupancy and spills.


def check_occupancy() -> None:
    """FlyDSL commit 865fcd1f measured these on MI355X: registers -> waves of a SIMD."""
    for registers, waves in {64: 8, 72: 7, 96: 5, 128: 4, 168: 3, 256: 2, 512: 1, 97: 4}.items():
        found = occupancy.occupancy(kernel_of(registers), 64)
        assert found.waves_per_simd == waves and ("vector registers" in found.limited_by), registers
    # 160 KiB in steps of 1280 bytes; four waves a workgroup.
    for lds_bytes, groups in {65536: 2, 54613: 2, 81920: 2, 81921: 1, 163840: 1, 20480: 8}.items():
        found = occupancy.occupancy(kernel_of(lds_bytes=lds_bytes), 256)
        assert (found.groups_per_unit, found.waves_per_simd) == (groups, float(groups)), lds_bytes
        assert found.limits["LDS"] == groups
    assert occupancy.occupancy(kernel_of(lds_bytes=65536), 256).limited_by == ("LDS",)
    two_waves = occupancy.occupancy(kernel_of(), 128)
    assert two_waves.groups_per_unit == 16 and "barriers" in two_waves.limited_by
    assert "barriers" not in occupancy.occupancy(kernel_of(), 64).limits
    assert occupancy.occupancy(kernel_of(sgprs=102), 64).waves_per_simd == 7
    assert occupancy.occupancy(kernel_of(vgprs=512), 1024).groups_per_unit == 0


def check_spills() -> None:
    text = "v_readlane_b32 s20, v1, 3\n" * 2
    found = count(text, watch=False).spills
    assert (found.scratch_bytes, found.lane_moves, found.accumulation_moves) == (0, 2, 0)


CHECKS: dict[str, Callable[[], None]] = {
    name.removeprefix("check_"): value for name, value in list(globals().items()) if name.startswith("check_")
}


@pytest.mark.parametrize("name", CHECKS)
def test_counts(name: str) -> None:
    CHECKS[name]()


def _wrong_lines(addresses: Any, lanes: Any, size: int, line: int) -> Any:
    """Forgets the last byte of a lane."""
    return RIGHT_LINES(addresses, lanes, 1, line)


RIGHT_LINES = access_counter.unique_lines
# What is changed, and the check that must notice.
MUTATIONS: list[tuple[Any, str, Any, str]] = [
    (counters, "_CLASSES", {**counters._CLASSES, "lane": "salu"}, "classes"),
    (access_counter, "unique_lines", _wrong_lines, "loads"),
    (counters, "scaled_accesses", lambda accesses, by_address: accesses.by_address, "sample"),
    (lds_banks, "PHASES", {key: (32, groups) for key, (_, groups) in lds_banks.PHASES.items()}, "banks"),
    (lds_banks, "PHASES", {key: (banks, lds_banks._runs(16)) for key, (banks, _) in lds_banks.PHASES.items()}, "lds"),
    (chip, "VECTOR_GRANULE", 1, "occupancy"),
    (chip, "LDS_GRANULE", 1, "occupancy"),
    (chip, "BARRIERS", 32, "occupancy"),
    (occupancy, "_by_scalar_registers", lambda count: 8, "occupancy"),
    (counters, "_SPILLS", ("", "", "v_readlane_b32", ""), "spills"),
]


@pytest.mark.parametrize(("module", "name", "value", "check"), MUTATIONS, ids=[f"{m[1]}-{m[3]}" for m in MUTATIONS])
def test_changes_are_noticed(module: Any, name: str, value: Any, check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, name, value)
    with pytest.raises((AssertionError, KeyError)):
        CHECKS[check]()


def test_every_opcode_has_a_class() -> None:
    found = {}
    for name, row in ROWS.items():
        found[name] = counters.instruction_class(Instruction(0, 4, row, row.formats[0], ()))
    assert set(found.values()) == set(counters.CLASSES)
    expected = {"v_exp_f32": "trans", "v_add_f32": "valu", "v_readlane_b32": "valu", "s_and_saveexec_b64": "salu"}
    expected |= {"buffer_atomic_add_f32": "vmem", "ds_bpermute_b32": "lds", "s_load_dword": "smem"}
    assert {name: found[name] for name in expected} == expected


def test_json() -> None:
    found = count("v_lshlrev_b32_e32 v2, 2, v0\nbuffer_load_dword v4, v2, s[4:7], 0 offen\ns_waitcnt vmcnt(0)")
    read = json.loads(json.dumps(found.to_json()))
    assert read["memory"]["vmem load"]["lines_64"] == 4 and read["occupancy"]["waves_per_simd"] == 8.0
    assert read["sample"] == {"every": 1, "scale": 1.0} and read["atomic_segments"] == 0


def test_a_share_of_the_workgroups_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="every 0-th workgroup; accepted: 1 and up"):
        AccessCounter(0)
    with pytest.raises(ValueError, match="without a trace"):
        AccessCounter().trace()
