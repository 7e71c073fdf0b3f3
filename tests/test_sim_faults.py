"""Each check of the interpreter with a kernel that breaks exactly its rule; the kernels around it run clean."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
from sim_kernels import PROLOGUE, make_kernel

from spconv_compiler.sim.errors import Fault, LaunchFault, ObjectError
from spconv_compiler.sim.interpreter import Machine

COPY = "buffer_load_dword v2, v1, s[4:7], 0 offen\ns_waitcnt vmcnt(0)\n"
STORE = "buffer_store_dword v2, v1, s[8:11], 0 offen\n"
END = "s_endpgm"


def run(
    text: str, *, groups: int = 1, block: int = 64, budget: int = 10_000, bare: bool = False, **kernel: Any
) -> np.ndarray:
    """Runs PROLOGUE + text on an input of 64 words (0, 1, …) and an output of 64; returns the output."""
    machine = Machine({"k": make_kernel(text if bare else PROLOGUE + text, **kernel)}, budget)
    source = machine.memory.allocate("source", 256, writable=False)
    target = machine.memory.allocate("target", 256)
    machine.memory.write_array(source, np.arange(64, dtype=np.uint32))
    machine.launch("k", [groups], block, [source, target])
    return machine.memory.read_bytes(target).view(np.uint32)


def test_clean_copy() -> None:
    np.testing.assert_array_equal(run(COPY + STORE + END), np.arange(64))


def test_lds_exchange_between_waves() -> None:
    """Two waves exchange words through LDS, with a barrier between."""
    text = """
    ds_write_b32 v1, v0
    s_waitcnt lgkmcnt(0)
    s_barrier
    v_xor_b32_e32 v3, 0x104, v1
    v_and_b32_e32 v3, 0x1fc, v3
    ds_read_b32 v2, v3
    s_waitcnt lgkmcnt(0)
    v_cmp_gt_u32_e32 vcc, 64, v0
    s_and_saveexec_b64 s[16:17], vcc
    """
    found = run(text + STORE + END, block=128, lds_bytes=512)
    np.testing.assert_array_equal(found, (np.arange(64) * 4 ^ 0x104) // 4)


FAULTS = {
    "load past the end": (COPY.replace("offen", "offen offset:4") + STORE, {}, "lane 63: out of bounds: .* of source"),
    "store past the end": (COPY + STORE.replace("offen", "offen offset:16"), {}, "lane 60: out of bounds"),
    "far away": ("v_mov_b32_e32 v1, 0x7ffffff0\n" + COPY, {}, "lane 0: out of bounds"),
    "misaligned": (COPY.replace("offen", "offen offset:2"), {}, "misaligned: 4 bytes at byte 2 of source"),
    "nobody wrote": (COPY.replace("s[4:7]", "s[8:11]"), {}, "nobody wrote: byte 0 of target"),
    "undefined offset": (COPY.replace("v1", "v9"), {}, "lane 0: the offset is undefined"),
    "undefined through arithmetic": ("v_add_u32_e32 v1, v1, v9\n" + COPY, {}, "the offset is undefined"),
    "undefined descriptor": (COPY.replace("s[4:7]", "s[16:19]"), {}, "the buffer descriptor is undefined"),
    "strange descriptor": ("s_mov_b32 s7, 0\n" + COPY, {}, "not a raw buffer of flags 0x27000"),
    "partly beyond the end": ("s_mov_b32 s6, 254\n" + COPY, {}, "lane 63: partly beyond the end"),
    "undefined scalar offset": (COPY.replace("s[4:7], 0", "s[4:7], s20"), {}, "the scalar offset is undefined"),
    "undefined condition": ("s_cbranch_vccz 0\n", {}, "VCC is undefined"),
    "undefined SCC": ("s_cbranch_scc0 0\n", {"bare": True}, "SCC is undefined"),
    "undefined EXEC": ("s_mov_b64 exec, s[20:21]\n", {}, "EXEC becomes undefined"),
    "undefined mask": ("v_cmp_gt_u32_e32 vcc, 64, v9\ns_and_saveexec_b64 s[16:17], vcc\n", {}, "EXEC becomes"),
    "undefined lane number": ("v_readlane_b32 s16, v0, s20\n", {}, "the number of the lane is undefined"),
    "undefined address": ("global_load_dword v2, v[10:11], off\n", {}, "the address is undefined"),
    "undefined scalar address": ("s_load_dword s16, s[20:21], 0x0\n", {}, "the address is undefined"),
    "undefined atomic": (COPY + STORE + "buffer_atomic_add v9, v1, s[8:11], 0 offen\n", {}, "data of an atomic"),
    "lane that is off": (
        "s_mov_b64 exec, 1\nv_mov_b32_e32 v3, 0\ns_mov_b64 exec, -1\n" + COPY.replace("v1", "v3"),
        {},
        "lane 1: the offset is undefined",
    ),
    "atomic on nothing": ("buffer_atomic_add v0, v1, s[8:11], 0 offen\n", {}, "nobody wrote: byte 0 of target"),
    "write to an input": ("buffer_store_dword v0, v1, s[4:7], 0 offen\n", {}, "a write to an input: byte 0 of source"),
    "two values in one word": ("buffer_store_dword v0, off, s[8:11], 0\n", {}, "two lanes write different values"),
    "store by two workgroups": (COPY + STORE, {"groups": 2}, "race: another workgroup writes what this one writes"),
    "read by another workgroup": (
        "s_cmp_lg_u32 s2, 0\ns_cbranch_scc1 5\n" + COPY + STORE + "s_nop 0\n" + COPY.replace("s[4:7]", "s[8:11]"),
        {"groups": 2},
        "race: another workgroup writes what this one reads",
    ),
    "endless loop": ("s_branch -1\n", {}, "more than 10000 instructions: an endless loop"),
    "LDS past the end": ("ds_write_b32 v1, v0 offset:256\n", {"lds_bytes": 256}, "out of bounds: byte 256 of 256"),
    "LDS nobody wrote": ("ds_read_b32 v2, v1\n", {"lds_bytes": 256}, "nobody wrote: byte 0 of local memory"),
    "LDS misaligned": ("ds_write_b64 v1, v[0:1]\n", {"lds_bytes": 512}, "lane 1: misaligned: 8 bytes at byte 4"),
    "LDS undefined address": ("ds_read_b32 v2, v9\n", {"lds_bytes": 256}, "the address is undefined"),
    "LDS undefined data": ("ds_write_b32 v1, v9\nds_read_b32 v2, v1\n", {"lds_bytes": 256}, "nobody wrote"),
    "LDS two values": ("v_mov_b32_e32 v3, 0\nds_write_b32 v3, v0\n", {"lds_bytes": 256}, "two lanes write different"),
    "LDS two waves write": (
        "v_and_b32_e32 v3, 0xfc, v1\nv_mov_b32_e32 v4, 7\nds_write_b32 v3, v4\n",
        {"lds_bytes": 256, "block": 128},
        "race: another wave writes what this one writes without a barrier",
    ),
    "LDS read without barrier": (
        "ds_write_b32 v1, v0\nv_xor_b32_e32 v3, 0x100, v1\nds_read_b32 v2, v3\n",
        {"lds_bytes": 512, "block": 128},
        "race: another wave writes what this one reads without a barrier",
    ),
    "LDS write after read": (
        "ds_write_b32 v1, v0\ns_waitcnt lgkmcnt(0)\ns_barrier\n"
        "v_xor_b32_e32 v3, 0x100, v1\nds_read_b32 v2, v3\nds_write_b32 v1, v0\n",
        {"lds_bytes": 512, "block": 128},
        "race: another wave reads what this one writes without a barrier",
    ),
    "scratch past the end": (
        "scratch_store_dword v1, v0, off\n",
        {"scratch_bytes": 64},
        "lane 16: out of bounds: byte 64 of 64 bytes",
    ),
    "scratch misaligned": ("scratch_store_dword v0, v1, off\n", {"scratch_bytes": 128}, "lane 1: misaligned: 4 bytes"),
    "scratch nobody wrote": (
        "scratch_store_dword off, v0, off\nscratch_load_dword v2, v1, off\n",
        {"scratch_bytes": 256},
        "lane 1: nobody wrote: 4 bytes at byte 4 of scratch memory",
    ),
    "bpermute of an undefined lane": ("ds_bpermute_b32 v2, v9, v0\n", {}, "the number of the lane is undefined"),
}


# How a report ends that has an address: the allocation and the place in it.
_IN_MEMORY = r"byte \d+ of (source|target) \(256 bytes\), address 0x[0-9a-f]+"
_PAST_MEMORY = r"address 0x[0-9a-f]+, \d+ bytes past the end of (source|target|arguments of k)"
_LOCAL = r"byte \d+ of (\d+ bytes of )?(local|scratch) memory"


@pytest.mark.parametrize("name", FAULTS)
def test_fault(name: str) -> None:
    text, options, message = FAULTS[name]
    with pytest.raises(Fault, match=rf"(?s)^k: 0x[0-9a-f]+: .*workgroup \d+, wave \d+.*{message}") as caught:
        run(text + END, **options)
    first, reason, line, *around = str(caught.value).splitlines()
    _, address, shown = first.split(": ", 2)
    number, _, again = line.removeprefix("  line ").partition(" of kernel k: ")
    assert again == shown and f"  >{number:>6}  {address}  {shown}" in around
    if re.search("out of bounds|misaligned|nobody wrote|race|a write to|two lanes", reason):
        assert re.search(rf", lane \d+: .*({_IN_MEMORY}|{_PAST_MEMORY}|{_LOCAL})$", reason), reason


def test_undefined_data_stays_undefined_in_memory() -> None:
    machine = Machine({"k": make_kernel(PROLOGUE + STORE + END)})
    source, target = machine.memory.allocate("source", 256), machine.memory.allocate("target", 256)
    machine.launch("k", [1], 64, [source, target])
    assert not machine.memory.initialised(target).any()


def test_lanes_beyond_the_end_of_a_buffer() -> None:
    """They read 0 and store nothing; the memory is not touched."""
    found = run(f"s_mov_b32 s6, 128\n{COPY}{STORE}{END}")
    np.testing.assert_array_equal(found, np.where(np.arange(64) < 32, np.arange(64), 0))


@pytest.mark.parametrize(
    ("grid", "block", "changes", "message"),
    [
        ([0], 64, {}, "grid"),
        ([1, 1, 1, 1], 64, {}, "grid"),
        ([2**20, 2**10], 64, {}, "1073741824 workgroups"),
        ([1], 512, {}, "512 lanes"),
        ([1], 0, {}, "0 lanes"),
        ([1], 64, {"lds_bytes": 200_000}, "200000 bytes of LDS"),
        ([1], 64, {"scratch_bytes": 20_000}, "20000 bytes of scratch"),
        ([1], 64, {"properties": 10}, "user registers 0xa"),
        ([1], 64, {"float_mode": 0xC0}, "float mode 0xc0"),
        ([1], 64, {"vgprs": 8, "accum_offset": 8}, "v9 is not allocated: 8 registers are"),
    ],
)
def test_launch_that_does_not_fit(grid: list[int], block: int, changes: dict[str, int], message: str) -> None:
    kernel = make_kernel("v_mov_b32_e32 v9, 0\ns_endpgm")
    kernel = dataclasses.replace(kernel, descriptor=dataclasses.replace(kernel.descriptor, **changes))
    machine = Machine({"k": kernel})
    buffer = machine.memory.allocate("buffer", 4)
    with pytest.raises(LaunchFault, match=message):
        machine.launch("k", grid, block, [buffer, buffer])


def test_arguments_that_do_not_fit() -> None:
    machine = Machine({"k": make_kernel(END)})
    buffer = machine.memory.allocate("buffer", 4)
    with pytest.raises(LaunchFault, match="takes 2 arguments, given: 1"):
        machine.launch("k", [1], 64, [buffer])
    with pytest.raises(LaunchFault, match="argument 1 is a global_buffer of 8 bytes, given: 5"):
        machine.launch("k", [1], 64, [buffer, 5])
    with pytest.raises(ObjectError, match="no kernel 'q'; it has: k"):
        machine.launch("q", [1], 64, [])
