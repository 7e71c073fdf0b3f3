"""Atomics of every space and kind, with and without result, against a replay lane after lane."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from sim_oracles import BF16, F16, F32, F64, exact, larger, s32, s64, smaller
from sim_run import run


def pair(function: Callable[[int, int], int]) -> Callable[[int, int], int]:
    return lambda a, b: function(a & 0xFFFF, b & 0xFFFF) | function(a >> 16, b >> 16) << 16


ADD16, ADDBF = exact(F16, lambda a, b: a + b), exact(BF16, lambda a, b: a + b)
# Name after _atomic_ -> (bytes, new value of old value and data). LDS has other names: in brackets.
ATOMICS: dict[str, tuple[int, Callable[[int, int], int], str]] = {
    "swap": (4, lambda o, d: d, "wrxchg_rtn_b32"),
    "add": (4, lambda o, d: o + d, "add_rtn_u32"),
    "sub": (4, lambda o, d: o - d, "sub_rtn_u32"),
    "smin": (4, lambda o, d: min(s32(o), s32(d)), "min_rtn_i32"),
    "umin": (4, min, "min_rtn_u32"),
    "smax": (4, lambda o, d: max(s32(o), s32(d)), "max_rtn_i32"),
    "umax": (4, max, "max_rtn_u32"),
    "and": (4, lambda o, d: o & d, "and_rtn_b32"),
    "or": (4, lambda o, d: o | d, "or_rtn_b32"),
    "xor": (4, lambda o, d: o ^ d, "xor_rtn_b32"),
    "inc": (4, lambda o, d: 0 if o >= d else o + 1, "inc_rtn_u32"),
    "dec": (4, lambda o, d: d if o == 0 or o > d else o - 1, "dec_rtn_u32"),
    "add_f32": (4, exact(F32, lambda a, b: a + b), "add_rtn_f32"),
    "pk_add_f16": (4, pair(ADD16), "pk_add_rtn_f16"),
    "pk_add_bf16": (4, pair(ADDBF), "pk_add_rtn_bf16"),
    "swap_x2": (8, lambda o, d: d, "wrxchg_rtn_b64"),
    "add_x2": (8, lambda o, d: o + d, "add_rtn_u64"),
    "sub_x2": (8, lambda o, d: o - d, "sub_rtn_u64"),
    "smin_x2": (8, lambda o, d: min(s64(o), s64(d)), "min_rtn_i64"),
    "umin_x2": (8, min, "min_rtn_u64"),
    "smax_x2": (8, lambda o, d: max(s64(o), s64(d)), "max_rtn_i64"),
    "umax_x2": (8, max, "max_rtn_u64"),
    "and_x2": (8, lambda o, d: o & d, "and_rtn_b64"),
    "or_x2": (8, lambda o, d: o | d, "or_rtn_b64"),
    "xor_x2": (8, lambda o, d: o ^ d, "xor_rtn_b64"),
    "inc_x2": (8, lambda o, d: 0 if o >= d else o + 1, "inc_rtn_u64"),
    "dec_x2": (8, lambda o, d: d if o == 0 or o > d else o - 1, "dec_rtn_u64"),
    "add_f64": (8, exact(F64, lambda a, b: a + b), "add_rtn_f64"),
    "min_f64": (8, smaller(F64), "min_rtn_f64"),
    "max_f64": (8, larger(F64), "max_rtn_f64"),
}


def number(name: str, rng: random.Random, size: int) -> int:
    """Data that the operation takes to something new; floats are such that sums are exact or rounded alike."""
    if "f16" in name:
        encode16 = BF16 if "bf16" in name else F16
        return encode16.bits(rng.uniform(-4, 4)) | encode16.bits(rng.uniform(-4, 4)) << 16
    if name.endswith("f32"):
        return F32.bits(rng.uniform(-100, 100))
    if name.endswith("f64"):
        return F64.bits(rng.uniform(-100, 100))
    return rng.choice((0, 5, rng.getrandbits(8 * size), rng.getrandbits(8 * size)))


def replay(
    size: int, function: Callable[[int, int], int], old: list[int], data: list[int]
) -> tuple[list[int], list[int]]:
    """(memory after, what each lane gets): lane after lane, two lanes in each place."""
    memory, found = list(old), []
    for lane, value in enumerate(data):
        found.append(memory[lane // 2])
        memory[lane // 2] = function(memory[lane // 2], value) % 2 ** (8 * size)
    return memory, found


@pytest.mark.parametrize("space", ["buffer", "global", "ds"])
@pytest.mark.parametrize("name", ATOMICS)
def test_returning_atomics(space: str, name: str) -> None:
    size, function, local = ATOMICS[name]
    rng = random.Random(name)
    kind = np.uint32 if size == 4 else np.uint64
    old = [number(name, rng, size) for _ in range(32)] + [0] * 96
    data = [number(name, rng, size) for _ in range(64)]
    words = size // 4
    registers = {1: "v4", 2: "v[4:5]"}[words]
    result = {1: "v8", 2: "v[8:9]"}[words]
    suffix = "" if words == 1 else "x2"
    shift = {4: 1, 8: 2}[size]
    lines = [
        f"v_lshlrev_b32_e32 v6, {size // 4 + 1}, v0",
        "v_lshrrev_b32_e32 v7, 1, v0",
        f"v_lshlrev_b32_e32 v7, {shift + 1}, v7",
        f"buffer_load_dword{suffix} {registers}, v6, s[4:7], 0 offen",
    ]
    output = f"buffer_store_dword{suffix} {result}, v6, s[8:11], 0 offen offset:{32 * size}"
    if space == "ds":
        lines += [
            f"buffer_load_dword{suffix} {result}, v7, s[8:11], 0 offen",
            "s_waitcnt vmcnt(0)",
            f"ds_write_b{8 * size} v7, {result}",
            f"ds_{local} {result}, v7, {registers}",
            f"ds_read_b{8 * size} {'v10' if words == 1 else 'v[10:11]'}, v7",
            "s_waitcnt lgkmcnt(0)",
            output,
            f"buffer_store_dword{suffix} {'v10' if words == 1 else 'v[10:11]'}, v7, s[8:11], 0 offen",
        ]
    elif space == "buffer":
        moves = [f"v_mov_b32_e32 v{8 + i}, v{4 + i}" for i in range(words)]
        lines += [
            "s_waitcnt vmcnt(0)",
            *moves,
            f"buffer_atomic_{name} {result}, v7, s[8:11], 0 offen sc0",
            "s_waitcnt vmcnt(0)",
            output,
        ]
    else:
        lines += [
            "s_waitcnt vmcnt(0)",
            f"global_atomic_{name} {result}, v7, {registers}, s[14:15] sc0",
            "s_waitcnt vmcnt(0)",
            output,
        ]
    found = run("\n".join(lines), np.array(data, kind), np.array(old, kind), lds_bytes=512)
    memory, given = replay(size, function, old[:32], data)
    assert found[:32].tolist() == memory
    assert found[32:96].tolist() == given


@pytest.mark.parametrize("space", ["buffer", "global", "ds"])
@pytest.mark.parametrize("size", [4, 8])
def test_compare_and_swap(space: str, size: int) -> None:
    """Even lanes compare with what is there, odd lanes with what the even ones put there, every fourth in vain."""
    kind, words = (np.uint32, 1) if size == 4 else (np.uint64, 2)
    old = [100 + place for place in range(32)]
    new = [1000 + lane for lane in range(64)]
    wanted = [old[lane // 2] if lane % 2 == 0 else new[lane - 1] for lane in range(64)]
    wanted = [value + (lane % 4 == 3) for lane, value in enumerate(wanted)]
    source = np.array([[n, w] for n, w in zip(new, wanted, strict=True)], kind)
    block = f"v[4:{3 + 2 * words}]"
    halves = [f"v[{4 + words * i}:{3 + words * (i + 1)}]" if words == 2 else f"v{4 + i}" for i in range(2)]
    result, suffix = ("v8", "") if words == 1 else ("v[8:9]", "_x2")
    wide = {2: "x2", 4: "x4"}[2 * words]
    lines = [
        f"v_lshlrev_b32_e32 v13, {2 + words}, v0",
        "v_lshrrev_b32_e32 v14, 1, v0",
        f"v_lshlrev_b32_e32 v14, {1 + words}, v14",
        f"v_lshlrev_b32_e32 v15, {1 + words}, v0",
        f"buffer_load_dword{wide} {block}, v13, s[4:7], 0 offen",
        "s_waitcnt vmcnt(0)",
    ]
    store = "dword" + ("x2" if words == 2 else "")
    output = f"buffer_store_{store} {result}, v15, s[8:11], 0 offen offset:{32 * size}"
    if space == "ds":
        lines += [
            f"buffer_load_{store} {result}, v14, s[8:11], 0 offen",
            "s_waitcnt vmcnt(0)",
            f"ds_write_b{8 * size} v14, {result}",
            # In LDS the value to compare with comes first.
            f"ds_cmpst_rtn_b{8 * size} {result}, v14, {halves[1]}, {halves[0]}",
            f"ds_read_b{8 * size} {halves[0]}, v14",
            "s_waitcnt lgkmcnt(0)",
            f"buffer_store_{store} {halves[0]}, v14, s[8:11], 0 offen",
        ]
    elif space == "buffer":
        lines += [f"buffer_atomic_cmpswap{suffix} {block}, v14, s[8:11], 0 offen sc0", "s_waitcnt vmcnt(0)"]
        output = output.replace(result, halves[0])
    else:
        lines += [f"global_atomic_cmpswap{suffix} {result}, v14, {block}, s[14:15] sc0", "s_waitcnt vmcnt(0)"]
    found = run("\n".join([*lines, output]), source, np.array(old + [0] * 96, kind), lds_bytes=512)
    memory, given = list(old), []
    for lane in range(64):
        given.append(memory[lane // 2])
        if memory[lane // 2] == wanted[lane]:
            memory[lane // 2] = new[lane]
    assert found[:32].tolist() == memory
    assert found[32:96].tolist() == given


@pytest.mark.parametrize("local", [name[2].replace("_rtn", "") for name in ATOMICS.values() if "wrxchg" not in name[2]])
def test_local_atomics_without_result(local: str) -> None:
    """The same as with a result that nobody reads."""
    rng, wide = random.Random(local), local.endswith("64")
    name = next(key for key, value in ATOMICS.items() if value[2].replace("_rtn", "") == local)
    size, function, _ = ATOMICS[name]
    kind, suffix = (np.uint64, "x2") if wide else (np.uint32, "")
    data = [number(name, rng, size) for _ in range(64)]
    register = "v[4:5]" if wide else "v4"
    text = f"""
    v_lshlrev_b32_e32 v6, {3 if wide else 2}, v0
    buffer_load_dword{suffix} {register}, v6, s[4:7], 0 offen
    s_waitcnt vmcnt(0)
    ds_write_b{8 * size} v6, {register}
    ds_{local} v6, {register}
    ds_read_b{8 * size} {register}, v6
    s_waitcnt lgkmcnt(0)
    buffer_store_dword{suffix} {register}, v6, s[8:11], 0 offen
    """
    found = run(text, np.array(data, kind), np.zeros(64, kind), lds_bytes=512)
    assert found.tolist() == [function(d, d) % 2 ** (8 * size) for d in data]
