"""Workgroups that wait for others: tickets, status words that are polled, fences; what is accepted and what is not."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sim_kernels import PROLOGUE, lines_of, make_kernel

from spconv_compiler.sim.assembler import assemble
from spconv_compiler.sim.decode import decode_one
from spconv_compiler.sim.errors import Fault
from spconv_compiler.sim.interpreter import Machine
from spconv_compiler.sim.mutation import wait_report
from spconv_compiler.sim.native.machine import NativeMachine

GROUPS = 16
OUTPUT = 4096
REVERSED = list(range(GROUPS - 1, -1, -1))
# A workgroup takes a ticket, adds up its 256 words, tells its sum (flag 1), adds those of the workgroups before it up
# to one that tells its prefix (flag 2), and tells its own. Status words are pairs of value and flag, at byte 64 of the
# second buffer; each word of the first buffer plus the sum of all workgroups before goes behind byte 4096.
SCAN = """
s_movk_i32 s30, 0x1000
v_mov_b32_e32 v3, 0
v_cmp_eq_u32_e32 vcc, 0, v0
s_and_saveexec_b64 s[20:21], vcc
v_mov_b32_e32 v2, 1
v_mov_b32_e32 v4, 0
buffer_atomic_add v2, v3, s[8:11], 0 offen sc0
s_waitcnt vmcnt(0)
ds_write_b32 v3, v2
ds_write_b32 v3, v4 offset:4
s_waitcnt lgkmcnt(0)
s_or_b64 exec, exec, s[20:21]
s_barrier
ds_read_b32 v2, v3
s_waitcnt lgkmcnt(0)
v_readfirstlane_b32 s20, v2
s_lshl_b32 s21, s20, 10
v_add_u32_e32 v4, s21, v1
buffer_load_dword v5, v4, s[4:7], 0 offen
s_waitcnt vmcnt(0)
ds_add_u32 v3, v5 offset:4
s_waitcnt lgkmcnt(0)
s_barrier
s_and_saveexec_b64 s[22:23], vcc
s_cbranch_execz after
ds_read_b32 v10, v3 offset:4
v_lshlrev_b32_e32 v7, 3, v2
v_mov_b32_e32 v11, 1
v_mov_b32_e32 v12, 0
s_waitcnt lgkmcnt(0)
s_cmp_eq_u32 s20, 0
s_cbranch_scc1 publish
{tell}
v_subrev_u32_e32 v13, 8, v7
poll:
{look}
s_cmp_eq_u32 s24, 0
s_cbranch_scc1 poll
{read}
v_add_u32_e32 v12, v12, v14
v_subrev_u32_e32 v13, 8, v13
s_cmp_lg_u32 s24, 2
s_cbranch_scc1 poll
publish:
v_add_u32_e32 v10, v12, v10
v_mov_b32_e32 v11, 2
{tell}
ds_write_b32 v3, v12 offset:8
s_waitcnt lgkmcnt(0)
after:
s_or_b64 exec, exec, s[22:23]
s_barrier
ds_read_b32 v16, v3 offset:8
s_waitcnt lgkmcnt(0)
v_add_u32_e32 v16, v16, v5
buffer_store_dword v16, v4, s[8:11], s30 offen
s_endpgm
"""
LOOK = """
buffer_load_dwordx2 v[14:15], v13, s[8:11], 0 offen offset:64 sc1
s_waitcnt vmcnt(0)
v_readfirstlane_b32 s24, v15
"""
# Value and flag in one access of device scope.
TOGETHER = {
    "store": ("buffer_store_dwordx2 v[10:11], v7, s[8:11], 0 offen offset:64 sc1", LOOK, ""),
    "sleeping": ("buffer_store_dwordx2 v[10:11], v7, s[8:11], 0 offen offset:64 sc1", f"s_sleep 1\n{LOOK}", ""),
    "system scope": (
        "buffer_store_dwordx2 v[10:11], v7, s[8:11], 0 offen offset:64 sc0 sc1", LOOK.replace(" sc1", " sc0 sc1"), ""
    ),
    "atomics": (
        "buffer_atomic_swap_x2 v[10:11], v7, s[8:11], 0 offen offset:64",
        "v_mov_b32_e32 v14, 0\nv_mov_b32_e32 v15, 0\n"
        "buffer_atomic_or_x2 v[14:15], v13, s[8:11], 0 offen offset:64 sc0\n"
        "s_waitcnt vmcnt(0)\nv_readfirstlane_b32 s24, v15", "",
    ),
}  # fmt: skip
# The value by a plain store, then a release, then the flag; behind the flag an acquire, then the value.
FENCED = (
    "buffer_store_dword v10, v7, s[8:11], 0 offen offset:64\n"
    "buffer_wbl2 sc1\ns_waitcnt vmcnt(0)\n"
    "buffer_store_dword v11, v7, s[8:11], 0 offen offset:68 sc1",
    "buffer_load_dword v15, v13, s[8:11], 0 offen offset:68 sc1\ns_waitcnt vmcnt(0)\nv_readfirstlane_b32 s24, v15",
    "buffer_inv sc1\nbuffer_load_dword v14, v13, s[8:11], 0 offen offset:64\ns_waitcnt vmcnt(0)",
)
# A word that is told once: the flag is 2 always, and each workgroup waits for the one before it.
CHAIN = SCAN.replace("{tell}\n", "", 1)


@functools.cache
def kernel(form: tuple[str, str, str]) -> Any:
    """The kernel of a form; labels become distances in dwords, as the assembler takes them."""
    tell, look, read = form
    text = SCAN if form[2] == "" else CHAIN
    lines = lines_of(PROLOGUE + text.format(tell=tell, look=look, read=read))
    branch = re.compile(r"(s_cbranch\w*) ([a-z]\w*)$")
    sizes = iter(
        decode_one(slot).size // 4 for slot in assemble([branch.sub(r"\1 0", x) for x in lines if x[-1] != ":"])
    )
    place, labels, kept = 0, {}, []
    for line in lines:
        if line[-1] == ":":
            labels[line[:-1]] = place
        else:
            place += next(sizes)
            kept.append((place, line))
    resolved = []
    for at, line in kept:
        found = branch.match(line)
        resolved.append(f"{found[1]} {labels[found[2]] - at & 0xFFFF}" if found else line)
    return make_kernel("\n".join(resolved), lds_bytes=64, vgprs=32)


def scan(make: Callable[..., Any], form: tuple[str, str, str], order: Any = None, budget: int = 1_000_000) -> Any:
    """The words that the kernel of a form gives, and those it should give."""
    return run(make({"k": kernel(form)}, budget), order)


def run(machine: Any, order: Any = None) -> Any:
    words = np.random.default_rng(3).integers(0, 1 << 20, GROUPS * 256, np.uint32)
    source = machine.memory.allocate("source", words.nbytes)
    target = machine.memory.allocate("target", OUTPUT + words.nbytes)
    machine.memory.write_array(source, words)
    machine.memory.write_array(target, np.zeros(OUTPUT, np.uint8))
    machine.launch("k", [GROUPS], 256, [source, target], order)
    found = machine.memory.read_bytes(target).view(np.uint32)[OUTPUT // 4 :].reshape(GROUPS, 256)
    sums = words.reshape(GROUPS, 256).sum(axis=1, dtype=np.uint32)
    return found, (np.cumsum(sums, dtype=np.uint32) - sums)[:, None] + words.reshape(GROUPS, 256)


def native(**options: Any) -> Callable[..., Any]:
    return lambda kernels, budget: NativeMachine(kernels, budget, **options)


MACHINES = {
    "numpy": Machine,
    "native": native(),
    "short slices": native(slice_branches=1),
    "few resident": native(window=3, slice_branches=2),
    "two threads": native(threads=2, slice_branches=5),
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("form", TOGETHER)
def test_value_and_flag_together(form: str, machine: str) -> None:
    found, wanted = scan(MACHINES[machine], TOGETHER[form])
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("machine", "order"), [*((name, None) for name in MACHINES), ("native", REVERSED), ("two threads", REVERSED)]
)
def test_value_before_flag(machine: str, order: Any) -> None:
    """Tickets count in the order of arrival, whichever numbers the workgroups have."""
    found, wanted = scan(MACHINES[machine], FENCED, order)
    np.testing.assert_array_equal(found, wanted)


WEAKER = {
    "no write-back": (0, "buffer_wbl2 sc1\n", "", "writes what this one reads"),
    "no wait for the write-back": (0, "s_waitcnt vmcnt(0)\n", "", "writes what this one reads"),
    "a write-back for the workgroup only": (0, "buffer_wbl2 sc1", "buffer_wbl2 sc0", "writes what this one reads"),
    "no invalidation": (2, "buffer_inv sc1\n", "", "writes what this one reads"),
    "the flag is read as any word": (
        1,
        "offset:68 sc1",
        "offset:68",
        "(reads what this one updates|updates what this one reads)",
    ),
    "the flag is written as any word": (
        0,
        "offset:68 sc1",
        "offset:68",
        "(writes what this one updates|updates what this one writes)",
    ),
}


@pytest.mark.parametrize(
    ("name", "machine"),
    # Polling with plain loads does not look like waiting to the numpy engine, which then takes its time.
    [
        (name, machine)
        for name in WEAKER
        for machine in ("numpy", "native")
        if machine == "native" or "flag" not in name
    ],
)
def test_what_has_no_order_is_a_race(name: str, machine: str) -> None:
    part, old, new, verb = WEAKER[name]
    form = list(FENCED)
    assert old in form[part]
    form[part] = form[part].replace(old, new)
    with pytest.raises(Fault, match=f"race: another workgroup {verb} in this launch"):
        scan(MACHINES[machine], (form[0], form[1], form[2]))


@pytest.mark.parametrize("scope", ["", " sc0 nt", " sc0"])
@pytest.mark.parametrize("machine", ["numpy", "native"])
def test_a_word_that_is_polled_needs_stores_of_device_scope(machine: str, scope: str) -> None:
    """A release behind the store helps those that acquire, not those that poll at the same time."""
    tell, look, read = TOGETHER["store"]
    plain = f"{tell.replace(' sc1', scope)}\nbuffer_wbl2 sc1\ns_waitcnt vmcnt(0)"
    with pytest.raises(Fault, match="race: another workgroup (writes|updates) what this one (writes|updates)"):
        scan(MACHINES[machine], (plain, look, read))


@pytest.mark.parametrize("machine", MACHINES)
def test_waiting_for_what_never_comes_is_an_error(machine: str) -> None:
    """Nobody tells: every workgroup but the first polls until the budget is spent."""
    with pytest.raises(Fault, match="more than 30000 instructions: an endless loop"):
        scan(MACHINES[machine], ("s_nop 0", LOOK, ""), budget=30_000)


def test_weaker_waits_for_a_release_are_found_by_running() -> None:
    """No register depends on them: the static checks alone let them pass."""
    whole = kernel(FENCED)
    alone = wait_report(whole)
    assert [line.split(": ")[2] for line in alone.missed] == ["vmcnt dropped", "vmcnt raised by one"]
    found = wait_report(whole, lambda changed: run(NativeMachine(changed, 1_000_000)))
    assert found.missed == [] and found.caught == found.total > 20
