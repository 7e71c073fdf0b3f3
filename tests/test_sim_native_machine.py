"""The native machine as a whole: workgroups, barriers, slices, threads, faults, against the numpy engine."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from sim_kernels import PROLOGUE, make_kernel

from spconv_compiler.sim.errors import Fault, LaunchFault, SlowKernelWarning
from spconv_compiler.sim.interpreter import Counts, Machine
from spconv_compiler.sim.native.machine import NativeMachine

WORDS = 4096
# A word for each lane of the grid: b[i] = 3 * a[i] + the number of the workgroup, for workgroups of 256 lanes.
COPY = f"""{PROLOGUE}
s_lshl_b32 s12, s2, 10
v_add_u32_e32 v1, s12, v1
buffer_load_dword v2, v1, s[4:7], 0 offen
v_mov_b32_e32 v3, s2
s_waitcnt vmcnt(0)
v_lshl_add_u32 v2, v2, 1, v2
v_add_u32_e32 v2, v2, v3
buffer_store_dword v2, v1, s[8:11], 0 offen
s_endpgm
"""
# Every workgroup waits for word i of b, adds one, and hands it on in word i + 1: a chain through all workgroups.
CHAIN = f"""{PROLOGUE}
s_lshl_b32 s12, s2, 2
v_mov_b32_e32 v1, s12
buffer_load_dword v2, v1, s[8:11], 0 offen sc1
s_waitcnt vmcnt(0)
v_readfirstlane_b32 s13, v2
s_cmp_eq_u32 s13, 0
s_cbranch_scc1 65529
v_add_u32_e32 v2, 1, v2
buffer_store_dword v2, v1, s[8:11], 0 offen offset:4 sc1
s_endpgm
"""
ENDLESS = "s_nop 0\ns_branch 65534\ns_endpgm"
# The first wave ends, the others wait for it.
DIVERGED = "v_readfirstlane_b32 s3, v0\ns_cmp_eq_u32 s3, 0\ns_cbranch_scc1 1\ns_barrier\ns_endpgm"


def run(
    make: Callable[..., Any], text: str, grid: int, lanes: int, order: Sequence[int] | None = None, first: int = 0
) -> tuple[Counts, Any, Any]:
    """(counts, words of the second buffer, which of its words are initialised); the first one counts up."""
    machine = make({"k": make_kernel(text)})
    a, b = (machine.memory.allocate(name, 4 * WORDS) for name in "ab")
    machine.memory.write_array(a, np.arange(WORDS, dtype=np.uint32))
    if first:
        machine.memory.write_array(b, np.array([first] + [0] * (WORDS - 1), np.uint32))
    counts = machine.launch("k", [grid], lanes, [a, b], order)
    return counts, machine.memory.read_bytes(b).view(np.uint32), machine.memory.initialised(b)[::4]


@pytest.mark.parametrize("lanes", [256, 200, 64, 1])
@pytest.mark.parametrize("threads", [1, 2])
def test_equals_the_numpy_engine(lanes: int, threads: int) -> None:
    wanted, words, ready = run(Machine, COPY, 16, lanes)
    counts, found, known = run(lambda kernels: NativeMachine(kernels, threads=threads), COPY, 16, lanes)
    assert counts == wanted
    assert np.array_equal(known, ready) and ready.sum() == 16 * lanes
    assert np.array_equal(found[ready], words[ready])
    group = np.repeat(np.arange(16), 256)
    assert np.array_equal(words[ready], (3 * np.arange(WORDS) + group)[ready])


def test_without_checks() -> None:
    wanted, words, _ = run(Machine, COPY, 16, 256)
    counts, found, _ = run(lambda kernels: NativeMachine(kernels, checks=False), COPY, 16, 256)
    assert counts == wanted and np.array_equal(found, words)


@pytest.mark.parametrize("grid", [(2, 3), (3, 2, 2)])
def test_numbers_of_workgroups(grid: tuple[int, ...]) -> None:
    """s2 is the first number of the workgroup, whatever the other axes are."""
    text = f"{PROLOGUE}\nv_mov_b32_e32 v2, s2\nbuffer_atomic_add v2, v1, s[8:11], 0 offen\ns_endpgm"
    found = []
    for make in (Machine, NativeMachine):
        machine = make({"k": make_kernel(text)})
        a, b = (machine.memory.allocate(name, 4 * WORDS) for name in "ab")
        machine.memory.write_array(b, np.zeros(WORDS, np.uint32))
        machine.launch("k", grid, 64, [a, b])
        found.append(machine.memory.read_bytes(b).view(np.uint32)[0])
    assert found[0] == found[1] == sum(range(grid[0])) * np.prod(grid[1:])


ORDERS = {
    "ascending": None,
    "descending": list(range(99, -1, -1)),
    "shuffled": list(np.random.default_rng(1).permutation(100)),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("threads", [1, 2])
def test_workgroups_may_wait_for_resident_ones(order: str, threads: int) -> None:
    machine = lambda kernels: NativeMachine(kernels, 10**7, threads=threads, window=100, slice_branches=7)  # noqa: E731
    _, found, _ = run(machine, CHAIN, 100, 64, ORDERS[order], first=1)
    assert np.array_equal(found[:101], np.arange(1, 102))


def test_workgroups_that_wait_for_others_starve() -> None:
    """Fifty workgroups are resident, and the first one is not: on the hardware this hangs."""
    with pytest.raises(Fault, match="an endless loop"):
        run(lambda kernels: NativeMachine(kernels, 10**5, window=50), CHAIN, 100, 64, ORDERS["descending"], first=1)


@pytest.mark.parametrize("threads", [1, 2])
def test_budget(threads: int) -> None:
    with pytest.raises(
        Fault, match=r"0x1004|0x1000.*\n.*workgroup \d, wave 0: more than 5000 instructions: an endless loop"
    ):
        run(lambda kernels: NativeMachine(kernels, 5000, threads=threads), ENDLESS, 4, 64)


def test_budget_of_straight_code() -> None:
    with pytest.raises(Fault, match="more than 1000 instructions"):
        run(lambda kernels: NativeMachine(kernels, 1000), COPY, 16, 256)


@pytest.mark.parametrize("make", [Machine, NativeMachine])
def test_a_wave_that_misses_a_barrier(make: Callable[..., Any]) -> None:
    with pytest.raises(Fault, match=r"s_barrier\n  workgroup 0, wave 1: a wave of the workgroup has ended"):
        run(make, DIVERGED, 2, 256)


def text_of(make: Callable[..., Any], text: str) -> str:
    with pytest.raises(Fault) as caught:
        run(make, text, 1, 64)
    # The arenas of two machines lie at different addresses.
    return re.sub("address 0x[0-9a-f]+", "address", str(caught.value))


@pytest.mark.parametrize("make", [Machine, NativeMachine])
def test_a_fault_shows_the_lines_around_the_instruction(make: Callable[..., Any]) -> None:
    lines = text_of(make, f"{PROLOGUE}\nv_mov_b32_e32 v1, 2\nbuffer_store_dword v0, v1, s[8:11], 0 offen\ns_endpgm")
    instructions = [line for line in PROLOGUE.splitlines() if line] + [
        "v_mov_b32_e32 v1, 2", "buffer_store_dword v0, v1, s[8:11], 0 offen", "s_endpgm",
    ]  # fmt: skip
    head, reason, title, *shown = lines.split("\n")
    assert head.endswith("buffer_store_dword v0, v1, s[8:11], 0 offen") and "misaligned" in reason
    assert title.strip() == "line 13 of kernel k: buffer_store_dword v0, v1, s[8:11], 0 offen"
    assert [line[2:].split(None, 2 if line[2] == " " else 3)[-1] for line in shown] == instructions[9:]
    assert [line[2] for line in shown] == [" ", " ", " ", ">", " "]


@pytest.mark.parametrize(
    "lines",
    [
        "s_cmp_eq_u32 s20, 1\ns_cbranch_scc1 0\ns_endpgm",
        "s_cbranch_vccz 0\ns_endpgm",
        "s_mov_b64 exec, s[20:21]\ns_endpgm",
        "s_cmp_eq_u32 s20, 1\ns_cselect_b32 s3, 1, 2\ns_endpgm",
        "v_readlane_b32 s3, v0, s20\ns_endpgm",
        "buffer_store_dword v3, v4, s[8:11], 0 offen\ns_endpgm",
        "v_mov_b32_e32 v1, 2\nbuffer_store_dword v0, v1, s[8:11], 0 offen\ns_endpgm",
        "v_mov_b32_e32 v1, 0x10000\nbuffer_store_dword v0, v1, s[8:11], 0 offen\ns_endpgm",
        "v_mov_b32_e32 v1, 0\nbuffer_store_dword v0, v1, s[8:11], 0 offen\ns_endpgm",
        "buffer_load_dword v0, v1, s[8:11], 0 offen\ns_endpgm",
        "buffer_load_dword v0, v1, s[20:23], 0 offen\ns_endpgm",
        "s_mov_b32 s7, 0x27001\nbuffer_load_dword v0, v1, s[4:7], 0 offen\ns_endpgm",
        "s_mov_b32 s10, 10\nbuffer_store_dword v0, v1, s[8:11], 0 offen\ns_endpgm",
        "buffer_atomic_add v3, v1, s[8:11], 0 offen\ns_endpgm",
    ],
)
def test_faults_have_the_same_words(lines: str) -> None:
    text = f"{PROLOGUE}\n{lines}"
    assert text_of(NativeMachine, text) == text_of(Machine, text)


def test_an_opcode_without_handlers_is_left_to_the_numpy_engine() -> None:
    """One warning for the kernel, whatever it is launched; the other engine works on the same memory, and reports."""
    text = f"{PROLOGUE}\nv_lshlrev_b32_e32 v2, 3, v0\nv_mov_b32_e32 v4, 7\nv_mov_b32_e32 v5, 0\n"
    text += "buffer_atomic_min_f64 v[4:5], v2, s[8:11], 0 offen\ns_endpgm"
    machine = NativeMachine({"k": make_kernel(text), "other": make_kernel(COPY)})
    a, b = (machine.memory.allocate(name, 4 * WORDS) for name in "ab")
    for buffer in (a, b):
        machine.memory.write_array(buffer, np.full(WORDS // 2, 1.0))
    with pytest.warns(
        SlowKernelWarning, match=r"k runs on the numpy engine.*: buffer_atomic_min_f64 v\[4:5\], v2, s\["
    ):
        machine.launch("k", [1], 64, [a, b])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        machine.launch("k", [1], 64, [a, b])
        machine.launch("other", [1], 64, [b, a])
    # 7 of the smallest steps above 0: the bits of an integer.
    assert machine.memory.read_bytes(b).view(np.uint64)[:64].tolist() == [7] * 64
    assert machine.memory.read_bytes(a).view(np.uint32)[:64].tolist() == [21, 0] * 32
    with pytest.raises(Fault, match="out of bounds"), warnings.catch_warnings():
        warnings.simplefilter("error")
        machine.memory.free(b)
        machine.launch("k", [1], 64, [a, b])


@pytest.mark.parametrize("make", [Machine, NativeMachine])
def test_a_trap(make: Callable[..., Any]) -> None:
    with pytest.raises(Fault, match=r"workgroup 0, wave 0: the kernel traps \(s_trap 2\)"):
        run(make, "s_trap 2\ns_endpgm", 1, 64)


def test_registers_must_be_allocated() -> None:
    with pytest.raises(LaunchFault, match="v40 is not allocated: 32 registers are"):
        run(NativeMachine, "v_mov_b32_e32 v40, 0\ns_endpgm", 1, 64)


def test_arguments_of_the_machine() -> None:
    with pytest.raises(LaunchFault, match="threads 0"):
        NativeMachine({}, threads=0)


def observed(make: Callable[..., Any], **options: Any) -> list[tuple[str, int, int, int, tuple[int, ...]]]:
    """What an observer sees of COPY: text, size, workgroup, wave, and offsets of the lanes in their buffer, sorted."""
    machine = make({"k": make_kernel(COPY)}, **options)
    a, b = (machine.memory.allocate(name, 4 * WORDS) for name in "ab")
    machine.memory.write_array(a, np.arange(WORDS, dtype=np.uint32))
    seen = []

    def observer(item: Any, groups: Any, waves: Any, lanes: Any, addresses: Any, size: int) -> None:
        base = b.address if "store" in item.row.name else a.address
        for group, wave, on, places in zip(groups, waves, lanes, addresses, strict=True):
            offsets = () if item.row.kind == "smem" else tuple(int(place) - base for place in places[on])
            seen.append((str(item), size, int(group), int(wave), offsets))

    machine.observer = observer
    machine.launch("k", [9], 200, [a, b])
    assert np.array_equal(machine.memory.initialised(b)[: 9 * 1024 : 4].reshape(9, 256)[:, :200].all(), True)
    return sorted(seen)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_observer_sees_the_same_accesses(threads: int) -> None:
    wanted = observed(Machine)
    assert len(wanted) == 9 * 4 * 3
    assert observed(NativeMachine, threads=threads) == wanted


def test_an_error_of_the_observer_comes_through() -> None:
    machine = NativeMachine({"k": make_kernel(COPY)})
    a, b = (machine.memory.allocate(name, 4 * WORDS) for name in "ab")
    machine.memory.write_array(a, np.arange(WORDS, dtype=np.uint32))

    def observer(*_: Any) -> None:
        raise KeyError("mine")

    machine.observer = observer
    with pytest.raises(KeyError, match="mine"):
        machine.launch("k", [16], 256, [a, b])
