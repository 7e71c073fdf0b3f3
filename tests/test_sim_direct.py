"""Loads straight to LDS on both engines: where they write, which wait covers them, what they must not meet."""

from __future__ import annotations

import numpy as np
import pytest
from sim_run import WORDS, ZEROS, run

from spconv_compiler.sim.errors import Fault

DMA = """
s_mov_b32 m0, 64
v_lshlrev_b32_e32 v6, {shift}, v0
{load}
{wait}
v_add_u32_e32 v7, 64, v6
ds_read_b32 v2, v7{place}
s_waitcnt lgkmcnt(0)
buffer_store_dword v2, v1, s[8:11], 0 offen
"""
FORMS = {
    "buffer dword": ("buffer_load_dword v6, s[4:7], 0 offen lds", 2, ""),
    "buffer x4": ("buffer_load_dwordx4 v6, s[4:7], 0 offen lds", 4, " offset:12"),
    "global dword": ("global_load_lds_dword v6, s[12:13]", 2, ""),
    "global x4": ("global_load_lds_dwordx4 v6, s[12:13]", 4, " offset:12"),
    "global offset": ("global_load_lds_dword v6, s[12:13] offset:16", 2, " offset:16"),
}


@pytest.mark.parametrize("name", FORMS)
def test_loads_to_lds(name: str) -> None:
    load, shift, place = FORMS[name]
    source = np.arange(320, dtype=np.uint32) * 5
    form = DMA.format(load=load, shift=shift, place=place, wait="s_waitcnt vmcnt(0)")
    found = run(form, source, ZEROS, native=True, lds_bytes=2048)
    words = [lane + 4 * ("offset" in name) if shift == 2 else 4 * lane + 3 for lane in range(64)]
    assert found.tolist() == [5 * word for word in words]
    for early in ("s_nop 0", "s_waitcnt vmcnt(1)"):
        with pytest.raises(Fault, match="nobody wrote: byte .* of local memory"):
            run(DMA.format(load=load, shift=shift, place=place, wait=early), source, ZEROS, native=True, lds_bytes=2048)
    with pytest.raises(Fault, match="m0 is undefined"):
        run(form.replace("s_mov_b32 m0, 64", ""), source, ZEROS, native=True, lds_bytes=2048)
    with pytest.raises(Fault, match="out of bounds: byte .* of 256 bytes of local memory"):
        run(form, source, ZEROS, native=True, lds_bytes=256)


def test_a_counted_wait_covers_the_older_load_to_lds() -> None:
    load = "buffer_load_dword v6, s[4:7], 0 offen lds"
    two = f"{load}\ns_mov_b32 m0, 1024\ns_nop 0\n{load}"
    form = DMA.format(load=two, shift=2, place="{place}", wait="s_waitcnt vmcnt(1)")
    found = run(form.format(place=""), WORDS, ZEROS, native=True, lds_bytes=2048)
    assert found.tolist() == WORDS.tolist()
    with pytest.raises(Fault, match="nobody wrote"):
        run(form.format(place=" offset:960"), WORDS, ZEROS, native=True, lds_bytes=2048)


def test_loads_to_lds_need_a_barrier_for_other_waves() -> None:
    """Each wave loads its part and reads the other's."""
    text = """
    v_lshrrev_b32_e32 v6, 6, v0
    s_nop 0
    v_readfirstlane_b32 s20, v6
    s_lshl_b32 s20, s20, 8
    s_mov_b32 m0, s20
    s_nop 0
    buffer_load_dword v1, s[4:7], 0 offen lds
    s_waitcnt vmcnt(0)
    {barrier}
    v_xor_b32_e32 v7, 0x100, v1
    ds_read_b32 v2, v7
    s_waitcnt lgkmcnt(0)
    buffer_store_dword v2, v1, s[8:11], 0 offen
    """
    source = np.arange(128, dtype=np.uint32)
    found = run(
        text.format(barrier="s_barrier"), source, np.zeros(128, np.uint32), native=True, block=128, lds_bytes=512
    )
    assert found.tolist() == [lane ^ 64 for lane in range(128)]
    with pytest.raises(Fault, match="race: another wave writes what this one reads"):
        run(text.format(barrier="s_nop 0"), source, np.zeros(128, np.uint32), native=True, block=128, lds_bytes=512)


def test_two_loads_to_one_place_and_writes_between_have_no_order() -> None:
    """The landing finds what was written after the issue."""
    load = "buffer_load_dword v6, s[4:7], 0 offen lds"
    wait = "s_waitcnt vmcnt(0)"
    form = DMA.format(load="{load}", shift=2, place="", wait="{wait}")
    written = "ds_write_b32 v7, v0 offset:64\ns_waitcnt lgkmcnt(0)"
    between = form.format(load=f"v_lshlrev_b32_e32 v7, 2, v0\n{load}\n{written}", wait=wait)
    before = form.format(load=f"v_lshlrev_b32_e32 v7, 2, v0\n{written}\n{load}", wait=wait)
    assert run(before, WORDS, ZEROS, native=True, lds_bytes=512).tolist() == WORDS.tolist()
    twice = form.format(load=f"{load}\n{load}", wait=wait)
    one_after_another = form.format(load=f"{load}\n{wait}\n{load}", wait=wait)
    assert run(one_after_another, WORDS, ZEROS, native=True, lds_bytes=512).tolist() == WORDS.tolist()
    for text in (between, twice):
        with pytest.raises(Fault, match="lane 0: a load to LDS lands: written after the load was issued: byte 64 of l"):
            run(text, WORDS, ZEROS, native=True, lds_bytes=512)


def test_more_loads_to_lds_than_vmcnt_counts() -> None:
    """The 64th younger one waits by itself for the oldest."""
    load = "buffer_load_dword v6, s[4:7], 0 offen lds"
    step = "s_add_u32 m0, m0, 0x100\ns_nop 0"
    many = "\n".join([load, *[f"{step}\n{load}" for _ in range(79)]])
    form = DMA.format(load=many, shift=2, place="{place}", wait="s_waitcnt vmcnt(63)")
    size = 64 + 80 * 256
    found = run(form.format(place=f" offset:{16 * 256}"), WORDS, ZEROS, native=True, lds_bytes=size)
    assert found.tolist() == WORDS.tolist()
    with pytest.raises(Fault, match="nobody wrote"):
        run(form.format(place=f" offset:{17 * 256}"), WORDS, ZEROS, native=True, lds_bytes=size)
    with pytest.raises(Fault, match="nobody wrote"):
        run(
            form.replace("s_waitcnt vmcnt(63)", "").format(place=f" offset:{17 * 256}"),
            WORDS,
            ZEROS,
            native=True,
            lds_bytes=size,
        )
    assert run(
        form.replace("s_waitcnt vmcnt(63)", "").format(place=""), WORDS, ZEROS, native=True, lds_bytes=size
    ).any()


REUSE = """
v_lshrrev_b32_e32 v6, 6, v0
v_mov_b32_e32 v7, 0x80
v_xor_b32_e32 v8, 0x100, v1
s_nop 0
v_readfirstlane_b32 s20, v6
s_lshl_b32 s20, s20, 8
s_mov_b32 m0, s20
s_nop 0
buffer_load_dword v1, s[4:7], 0 offen lds
s_waitcnt vmcnt(0)
s_barrier
ds_read_b32 v2, v8
s_waitcnt lgkmcnt(0)
{barrier}
buffer_load_dword v1, s[4:7], 0 offen lds
s_waitcnt vmcnt(0)
buffer_store_dword v2, v1, s[8:11], 0 offen
"""


def test_a_load_to_lds_must_not_meet_readers_of_the_old_words() -> None:
    source = np.arange(128, dtype=np.uint32)
    zeros = np.zeros(128, np.uint32)
    found = run(REUSE.format(barrier="s_barrier"), source, zeros, native=True, block=128, lds_bytes=512)
    assert found.tolist() == [lane ^ 64 for lane in range(128)]
    with pytest.raises(Fault, match="race: another wave reads what this one writes"):
        run(REUSE.format(barrier="s_nop 0"), source, zeros, native=True, block=128, lds_bytes=512)
