"""Memory opcodes beyond plain loads and stores: partial registers, flat, scratch, waits."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import numpy as np
import pytest
from sim_kernels import PROLOGUE, encode, make_kernel
from sim_run import M32, STORE, WORDS, ZEROS, run

from spconv_compiler.sim.decode import decode
from spconv_compiler.sim.errors import Fault
from spconv_compiler.sim.interpreter import Machine
from spconv_compiler.sim.static_checks import check


def sign_extended(value: int, bits: int) -> int:
    return ((value & (1 << bits) - 1) ^ 1 << bits - 1) - (1 << bits - 1) & M32


# Opcode after buffer_load_ or ds_read_, and the register it leaves, of the word there and the old register.
PARTIAL: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "sbyte": ("i8", lambda w, old: sign_extended(w, 8)),
    "sshort": ("i16", lambda w, old: sign_extended(w, 16)),
    "ubyte_d16": ("u8_d16", lambda w, old: old & 0xFFFF0000 | w & 255),
    "ubyte_d16_hi": ("u8_d16_hi", lambda w, old: old & 0xFFFF | (w & 255) << 16),
    "sbyte_d16": ("i8_d16", lambda w, old: old & 0xFFFF0000 | sign_extended(w, 8) & 0xFFFF),
    "sbyte_d16_hi": ("i8_d16_hi", lambda w, old: old & 0xFFFF | (sign_extended(w, 8) & 0xFFFF) << 16),
    "short_d16": ("u16_d16", lambda w, old: old & 0xFFFF0000 | w & 0xFFFF),
    "short_d16_hi": ("u16_d16_hi", lambda w, old: old & 0xFFFF | (w & 0xFFFF) << 16),
}


@pytest.mark.parametrize("space", ["buffer", "global", "flat", "ds"])
@pytest.mark.parametrize("name", PARTIAL)
def test_partial_loads(space: str, name: str) -> None:
    local, function = PARTIAL[name]
    old = 0x12345678
    lines = {
        "buffer": f"buffer_load_{name} v2, v1, s[4:7], 0 offen",
        "global": f"global_load_{name} v2, v1, s[12:13]",
        "flat": "v_mov_b32_e32 v5, 0\nv_mov_b32_e32 v4, v1\nv_lshl_add_u64 v[4:5], s[12:13], 0, v[4:5]\n"
        f"flat_load_{name} v2, v[4:5]",
        "ds": "buffer_load_dword v3, v1, s[4:7], 0 offen\ns_waitcnt vmcnt(0)\nds_write_b32 v1, v3\n"
        f"ds_read_{local} v2, v1",
    }
    text = f"v_mov_b32_e32 v2, 0x{old:x}\n{lines[space]}\ns_waitcnt vmcnt(0) lgkmcnt(0)\n{STORE}"
    found = run(text, WORDS, ZEROS, lds_bytes=256)
    assert found.tolist() == [function(int(w), old) for w in WORDS]


def test_high_half_stores() -> None:
    text = "buffer_load_dword v2, v1, s[4:7], 0 offen\ns_waitcnt vmcnt(0)\n"
    found = run(text + "buffer_store_short_d16_hi v2, v1, s[8:11], 0 offen", WORDS, ZEROS)
    assert found.tolist() == [int(w) >> 16 for w in WORDS]
    found = run(text + "global_store_byte_d16_hi v1, v2, s[14:15] offset:1", WORDS, ZEROS)
    assert found.tolist() == [(int(w) >> 16 & 255) << 8 for w in WORDS]
    local = "ds_write_b32 v1, v1\nds_write_b16_d16_hi v1, v2\nds_read_b32 v2, v1\ns_waitcnt lgkmcnt(0)\n"
    found = run(text + local + STORE, WORDS, ZEROS, lds_bytes=256)
    assert found.tolist() == [4 * lane & 0xFFFF0000 | int(w) >> 16 for lane, w in enumerate(WORDS)]


# Transposed reads.


@pytest.mark.parametrize(
    ("bits", "opcode", "dwords"), [(16, "b64_tr_b16", 2), (8, "b64_tr_b8", 2), (4, "b64_tr_b4", 2)]
)
def test_transposed_reads(bits: int, opcode: str, dwords: int) -> None:
    """A block of 16 lanes reads a tile of [64 / 16 .. 16] rows; lane l gets column l mod 16 of it, row after row."""
    rng = random.Random(bits)
    data = [rng.getrandbits(64) for _ in range(64)]
    text = f"""
    v_lshlrev_b32_e32 v6, 3, v0
    buffer_load_dwordx2 v[2:3], v6, s[4:7], 0 offen
    s_waitcnt vmcnt(0)
    ds_write_b64 v6, v[2:3]
    ds_read_{opcode} v[2:3], v6
    s_waitcnt lgkmcnt(0)
    buffer_store_dwordx2 v[2:3], v6, s[8:11], 0 offen
    """
    found = run(text, np.array(data, np.uint64), np.zeros(64, np.uint64), lds_bytes=512)
    for lane in range(64):
        block = lane // 16 * 16
        stream = sum(data[block + i] << 64 * i for i in range(16))
        # The block's bytes are rows of 16 elements.
        elements = [stream >> bits * (16 * row + lane % 16) & (1 << bits) - 1 for row in range(64 // bits)]
        assert int(found[lane]) == sum(e << bits * i for i, e in enumerate(elements))
    with pytest.raises(Fault, match="lanes are off in a transposed read"):
        run(
            text.replace(f"ds_read_{opcode}", f"s_mov_b64 exec, 1\nds_read_{opcode}"),
            np.array(data, np.uint64),
            np.zeros(64, np.uint64),
            lds_bytes=512,
        )
    with pytest.raises(Fault, match="misaligned"):
        run(
            text.replace(f"{opcode} v[2:3], v6", f"{opcode} v[2:3], v6 offset:4"),
            np.array(data, np.uint64),
            np.zeros(64, np.uint64),
            lds_bytes=1024,
        )


def test_transposed_read_of_six_bits() -> None:
    rng = random.Random(6)
    data = np.array([rng.getrandbits(32) for _ in range(256)], np.uint32)
    text = """
    v_lshlrev_b32_e32 v6, 4, v0
    buffer_load_dwordx3 v[2:4], v6, s[4:7], 0 offen
    s_waitcnt vmcnt(0)
    ds_write_b96 v6, v[2:4]
    ds_read_b96_tr_b6 v[2:4], v6
    s_waitcnt lgkmcnt(0)
    buffer_store_dwordx3 v[2:4], v6, s[8:11], 0 offen
    """
    found = run(text, data, np.zeros(256, np.uint32), lds_bytes=1024).reshape(64, 4)
    words = data.reshape(64, 4)
    for lane in range(64):
        block = lane // 16 * 16
        stream = sum(int(words[block + i][k]) << 96 * i + 32 * k for i in range(16) for k in range(3))
        wanted = sum((stream >> 6 * (16 * row + lane % 16) & 63) << 6 * row for row in range(16))
        assert sum(int(found[lane][k]) << 32 * k for k in range(3)) == wanted


# Lane permutes.


def swizzled(pattern: int, lane: int) -> int:
    if pattern & 0x8000:
        return lane // 4 * 4 + (pattern >> 2 * (lane % 4) & 3)
    return lane // 32 * 32 + ((lane % 32 & pattern & 31 | pattern >> 5 & 31) ^ pattern >> 10 & 31)


@pytest.mark.parametrize("pattern", [0x8000 | 0b00011011, 0x401F, 0x7C1F, 0x0C18, 0x0861])
def test_swizzle(pattern: int) -> None:
    text = f"v_mov_b32_e32 v2, -1\nds_swizzle_b32 v2, v0 offset:{pattern}\ns_waitcnt lgkmcnt(0)\n{STORE}"
    assert run(text, WORDS, ZEROS).tolist() == [swizzled(pattern, lane) for lane in range(64)]
    off = text.replace("ds_swizzle", "s_mov_b64 exec, 0x55555555\nds_swizzle").replace(
        "s_waitcnt lgkmcnt(0)", "s_waitcnt lgkmcnt(0)\ns_mov_b64 exec, -1"
    )
    on = [lane < 32 and lane % 2 == 0 for lane in range(64)]
    wanted = [
        (swizzled(pattern, lane) if on[swizzled(pattern, lane)] else 0) if on[lane] else M32 for lane in range(64)
    ]
    assert run(off, WORDS, ZEROS).tolist() == wanted


def test_permute_forward() -> None:
    """Every lane sends to lane 63 - l / 2: of two senders the higher lane wins; who gets nothing gets 0."""
    text = f"""
    v_lshrrev_b32_e32 v3, 1, v0
    v_sub_u32_e32 v3, 63, v3
    v_lshlrev_b32_e32 v3, 2, v3
    ds_permute_b32 v2, v3, v0
    s_waitcnt lgkmcnt(0)
    {STORE}
    """
    wanted = [0] * 64
    for lane in range(64):
        wanted[63 - lane // 2] = lane
    assert run(text, WORDS, ZEROS).tolist() == wanted


# Scratch, scalar buffers, hardware registers.


def test_scratch_memory() -> None:
    text = """
    v_mov_b32_e32 v3, 8
    s_mov_b32 s20, 4
    scratch_store_dword v3, v0, off offset:4
    scratch_store_short off, v1, s20
    scratch_load_dword v4, off, s20 offset:8
    scratch_load_ushort v5, off, s20
    s_waitcnt vmcnt(0)
    v_lshl_or_b32 v2, v5, 16, v4
    """
    found = run(text + STORE, WORDS, ZEROS, scratch_bytes=32)
    assert found.tolist() == [4 * lane << 16 | lane for lane in range(64)]
    with pytest.raises(Fault, match=r"lane 0: out of bounds: byte 12 of 8 bytes of scratch"):
        run(text + STORE, WORDS, ZEROS, scratch_bytes=8)
    with pytest.raises(Fault, match=r"lane 0: nobody wrote: 4 bytes at byte 16 of scratch memory"):
        run(text.replace("s20 offset:8", "s20 offset:12") + STORE, WORDS, ZEROS, scratch_bytes=32)


def test_scalar_buffer_loads() -> None:
    text = """
    s_mov_b32 s6, 24
    s_mov_b32 s20, 8
    s_buffer_load_dwordx2 s[24:25], s[4:7], s20 offset:0x4
    s_buffer_load_dwordx2 s[26:27], s[4:7], 0x14
    s_load_dword s28, s[12:13], s20
    s_waitcnt lgkmcnt(0)
    """ + "\n".join(f"v_writelane_b32 v2, s{24 + i}, {i}" for i in range(5))
    found = run("v_mov_b32_e32 v2, 0\n" + text + "\n" + STORE, WORDS, ZEROS)
    assert found[:5].tolist() == [int(WORDS[3]), int(WORDS[4]), int(WORDS[5]), 0, int(WORDS[2])]


def test_hardware_registers() -> None:
    text = """
    s_getreg_b32 s20, hwreg(HW_REG_MODE, 4, 4)
    s_getreg_b32 s21, hwreg(HW_REG_XCC_ID)
    s_memtime s[22:23]
    s_memtime s[24:25]
    s_waitcnt lgkmcnt(0)
    s_sub_u32 s22, s24, s22
    s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 4), 15
    s_lshl_b32 s20, s20, 8
    s_or_b32 s20, s20, s21
    v_mov_b32_e32 v2, s20
    """
    assert run(text + STORE, WORDS, ZEROS)[0] == 0xF00
    with pytest.raises(Fault, match="MODE changes"):
        run(text.replace("4, 4), 15", "4, 4), 12") + STORE, WORDS, ZEROS)
    with pytest.raises(Fault, match="the kernel traps"):
        run("s_trap 2", WORDS, ZEROS)


# Waits of the new instructions.

USE = "v_mov_b32_e32 v4, v2"
WAITS = {
    "returning atomic": ("buffer_atomic_add v2, v1, s[8:11], 0 offen sc0", "vmcnt(0)", USE, "reads v2 .*vmcnt"),
    "global returning": ("global_atomic_add v2, v1, v3, s[14:15] sc0", "vmcnt(0)", USE, "reads v2 .*vmcnt"),
    "local returning": ("ds_add_rtn_u32 v2, v1, v3", "lgkmcnt(0)", USE, "reads v2 .*lgkmcnt"),
    "transposed": ("ds_read_b64_tr_b16 v[2:3], v1", "lgkmcnt(0)", "v_mov_b32_e32 v4, v3", "reads v3 .*lgkmcnt"),
    "swizzle": ("ds_swizzle_b32 v2, v1 offset:swizzle(SWAP,16)", "lgkmcnt(0)", "v_mov_b32_e32 v4, v2", "reads v2"),
    "scratch": ("scratch_load_dword v2, off, off", "vmcnt(0)", USE, "reads v2 .*vmcnt"),
    "flat": ("flat_load_dword v2, v[4:5]", "vmcnt(0) lgkmcnt(0)", "v_mov_b32_e32 v4, v2", "reads v2"),
    "clock": ("s_memtime s[20:21]", "lgkmcnt(0)", "s_mov_b32 s22, s21", "reads s21 .*lgkmcnt"),
    "cache operation counts": (
        "buffer_load_dword v2, v1, s[4:7], 0 offen\nbuffer_inv sc1", "vmcnt(1)", "v_mov_b32_e32 v4, v2", "reads v2",
    ),
    "load to LDS counts": (
        "buffer_load_dword v2, v1, s[4:7], 0 offen\ns_nop 0\nbuffer_load_dword v1, s[4:7], 0 offen lds", "vmcnt(1)",
        "v_mov_b32_e32 v4, v2", "reads v2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WAITS)
def test_waits(name: str) -> None:
    before, wait, after, message = WAITS[name]

    def problems(text: str) -> list[str]:
        return [violation.reason for violation in check(decode(encode(f"{text}\ns_endpgm")))]

    assert problems(f"{before}\ns_waitcnt {wait}\n{after}") == []
    weaker = ["s_nop 7", "s_waitcnt " + wait.replace("(1)", "(2)").replace("(0)", "(1)")]
    if " " in wait:
        weaker += [f"s_waitcnt {part}" for part in wait.split()]
    for instead in weaker:
        found = problems(f"{before}\n{instead}\n{after}")
        assert len(found) == 1 and re.search(message, found[0]), found


def test_old_value_of_a_partial_load() -> None:
    """The high half by itself leaves the register undefined where the low half is."""
    text = "buffer_load_short_d16_hi v2, v1, s[4:7], 0 offen\ns_waitcnt vmcnt(0)\n" + STORE
    machine = Machine({"k": make_kernel(f"{PROLOGUE}{text}\ns_endpgm")})
    source, target = machine.memory.allocate("source", 256), machine.memory.allocate("target", 256)
    machine.memory.write_array(source, WORDS)
    machine.launch("k", [1], 64, [source, target])
    assert not machine.memory.initialised(target).any()
