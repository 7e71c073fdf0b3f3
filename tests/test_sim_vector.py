"""The meaning of every vector opcode against plain Python integers, on random and edge values and random EXEC.

The expectations are written from the ISA document, not from the tables: a row without one fails.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sim_step import (
    M32,
    M64,
    bf16,
    carry,
    compare,
    draw,
    f16,
    f32,
    f32_bits,
    highest,
    lowest,
    ones,
    reverse,
    s32,
    s64,
    step,
)

from spconv_compiler.sim.instruction import EXEC
from spconv_compiler.sim.isa import ROWS
from spconv_compiler.sim.machine import ALL, pack, unpack
from spconv_compiler.sim.rows import DWORDS, Row


def perm(a: int, b: int, c: int) -> int:
    data = struct.pack("<II", b, a)
    out = 0
    for place in range(4):
        choice = c >> 8 * place & 0xFF
        sign = [1, 3, 5, 7]
        if choice < 8:
            byte = data[choice]
        elif choice < 12:
            byte = 0xFF if data[sign[choice - 8]] & 0x80 else 0
        else:
            byte = 0 if choice == 12 else 0xFF
        out |= byte << 8 * place
    return out


# Arguments are unsigned integers; masks are 0 or 1. Two results come as a tuple. Results are cut to their width.
VECTOR: dict[str, Callable[..., Any]] = {
    "v_add_u32": lambda a, b: a + b,
    "v_sub_u32": lambda a, b: a - b,
    "v_subrev_u32": lambda a, b: b - a,
    "v_add_co_u32": lambda a, b: carry(a + b),
    "v_sub_co_u32": lambda a, b: carry(a - b),
    "v_subrev_co_u32": lambda a, b: carry(b - a),
    "v_addc_co_u32": lambda a, b, c: carry(a + b + c),
    "v_subb_co_u32": lambda a, b, c: carry(a - b - c),
    "v_subbrev_co_u32": lambda a, b, c: carry(b - a - c),
    "v_cndmask_b32": lambda a, b, c: b if c else a,
    "v_and_b32": lambda a, b: a & b,
    "v_or_b32": lambda a, b: a | b,
    "v_xor_b32": lambda a, b: a ^ b,
    "v_lshlrev_b32": lambda a, b: b << a % 32,
    "v_lshrrev_b32": lambda a, b: b >> a % 32,
    "v_ashrrev_i32": lambda a, b: s32(b) >> a % 32,
    "v_min_i32": lambda a, b: min(s32(a), s32(b)),
    "v_max_i32": lambda a, b: max(s32(a), s32(b)),
    "v_min_u32": min,
    "v_max_u32": max,
    "v_mul_u32_u24": lambda a, b: a % 2**24 * (b % 2**24),
    "v_mov_b32": lambda a: a,
    "v_mov_b64": lambda a: a,
    "v_not_b32": lambda a: ~a,
    "v_bfrev_b32": reverse,
    "v_ffbh_u32": highest,
    "v_ffbl_b32": lowest,
    "v_cvt_f32_f16": lambda a: f32_bits(struct.unpack("<e", struct.pack("<H", a % 65536))[0]),
    "v_cvt_f16_f32": f16,
    "v_add3_u32": lambda a, b, c: a + b + c,
    "v_lshl_add_u32": lambda a, b, c: (a << b % 32) + c,
    "v_add_lshl_u32": lambda a, b, c: (a + b) << c % 32,
    "v_lshl_or_b32": lambda a, b, c: a << b % 32 | c,
    "v_and_or_b32": lambda a, b, c: a & b | c,
    "v_or3_b32": lambda a, b, c: a | b | c,
    "v_xad_u32": lambda a, b, c: (a ^ b) + c,
    "v_bfi_b32": lambda a, b, c: a & b | ~a & c,
    "v_bfe_u32": lambda a, b, c: a >> b % 32 & (1 << c % 32) - 1,
    "v_perm_b32": perm,
    "v_alignbit_b32": lambda a, b, c: (a << 32 | b) >> c % 32,
    "v_med3_i32": lambda a, b, c: sorted(map(s32, (a, b, c)))[1],
    "v_med3_u32": lambda a, b, c: sorted((a, b, c))[1],
    "v_mad_u32_u24": lambda a, b, c: a % 2**24 * (b % 2**24) + c,
    "v_mad_u64_u32": lambda a, b, c: ((a * b + c) & M64, int(a * b + c > M64)),
    "v_lshl_add_u64": lambda a, b, c: (a << b) + c,
    "v_mul_lo_u32": lambda a, b: a * b,
    "v_mul_hi_u32": lambda a, b: a * b >> 32,
    "v_mul_hi_i32": lambda a, b: s32(a) * s32(b) >> 32,
    "v_lshlrev_b64": lambda a, b: b << a % 64,
    "v_lshrrev_b64": lambda a, b: b >> a % 64,
    "v_ashrrev_i64": lambda a, b: s64(b) >> a % 64,
    "v_bcnt_u32_b32": lambda a, b: ones(a) + b,
    "v_cvt_pk_bf16_f32": lambda a, b: bf16(a) | bf16(b) << 16,
    "v_cvt_pk_f16_f32": lambda a, b: f16(a) | f16(b) << 16,
}


def compare_is_old(name: str) -> bool:
    """Compares that sim_step.compare knows; the others stand in test_sim_float.py."""
    kind = name.rsplit("_", 1)[1]
    return name.startswith("v_cmp_") and kind in ("i32", "u32", "i64", "u64", "f32") and "class" not in name


def is_nan_pattern(row: Row, value: int) -> bool:
    return row.results == ("f32",) and math.isnan(f32(value))


@pytest.mark.parametrize(
    "name", [name for name, row in ROWS.items() if row.kind == "valu" and (name in VECTOR or compare_is_old(name))]
)
def test_vector(name: str) -> None:
    row, rng = ROWS[name], random.Random(name)
    expect = compare(name) if name.startswith("v_cmp_") else VECTOR[name]
    results = [
        f"v[{30 - 2 * i}:{31 - 2 * i}]" if DWORDS[t] == 2 and t != "mask" else "s[20:21]" if t == "mask" else "v30"
        for i, t in enumerate(row.results)
    ]
    sources = [
        "s[24:25]" if t == "mask" else f"v[{2 * i}:{2 * i + 1}]" if DWORDS[t] == 2 else f"v{2 * i}"
        for i, t in enumerate(row.sources)
    ]
    suffix = "_e64" if len(row.formats) > 1 else ""
    batch, run = step(f"{name}{suffix} {', '.join(results + sources)}", waves=2)
    values = [[[draw(t, rng, row, i) for _ in range(64)] for _ in range(2)] for i, t in enumerate(row.sources)]
    exec_mask = np.array([rng.getrandbits(64) for _ in range(2)], np.uint64)
    for part in (0, 1):
        batch.set_scalar(EXEC + part, (exec_mask >> np.uint64(32 * part)).astype(np.uint32))
    for index, type_ in enumerate(row.sources):
        data = np.array(values[index], np.uint64)
        if type_ == "mask":
            bits = pack(data != 0)
            for part in (0, 1):
                batch.set_scalar(24 + part, (bits >> np.uint64(32 * part)).astype(np.uint32))
            continue
        for part in range(DWORDS[type_]):
            batch.vector[2 * index + part] = (data >> np.uint64(32 * part)).astype(np.uint32)
            batch.vector_defined[2 * index + part] = ALL
    before = batch.vector[30].copy()
    run()
    on = unpack(exec_mask)
    for wave in range(2):
        for lane in range(64):
            wanted = expect(*[source[wave][lane] for source in values])
            wanted_all = wanted if isinstance(wanted, tuple) else (wanted,)
            for type_, value in zip(row.results, wanted_all, strict=True):
                if type_ == "mask":
                    bits = int(batch.scalar[20 + lane // 32][wave]) >> lane % 32 & 1
                    assert bits == (value if on[wave, lane] else 0)
                    continue
                found = int(batch.vector[30][wave, lane])
                if not on[wave, lane]:
                    assert found == before[wave, lane]
                    continue
                if DWORDS[type_] == 2:
                    found |= int(batch.vector[31][wave, lane]) << 32
                if is_nan_pattern(row, value):
                    assert is_nan_pattern(row, found)
                elif "f16" in name and math.isnan(f32(values[0][wave][lane])):
                    assert found & 0x7C00 == 0x7C00 and found & 0x3FF
                elif name == "v_cvt_pk_f16_f32" and math.isnan(f32(values[1][wave][lane])):
                    assert found >> 16 & 0x7C00 == 0x7C00
                else:
                    assert found == value % 2 ** (32 * DWORDS[type_]), (values[0][wave][lane], lane)


def test_lane_reads_and_counts() -> None:
    values = np.arange(64, dtype=np.uint32) * 3 + 1
    for line, mask, wanted in (
        ("v_readfirstlane_b32 s8, v2", 0b1101000, values[3]),
        ("v_readfirstlane_b32 s8, v2", 0, values[0]),
        ("v_readlane_b32 s8, v2, 37", 1, values[37]),
        ("v_readlane_b32 s8, v2, s12", 1, values[5]),
    ):
        batch, run = step(line)
        batch.vector[2], batch.vector_defined[2] = values, ALL
        batch.set_scalar(12, 69)
        for part in (0, 1):
            batch.set_scalar(EXEC + part, mask >> 32 * part & M32)
        run()
        assert batch.scalar[8][0] == wanted
    mask = random.Random(1).getrandbits(64)
    total = np.zeros(64, np.uint32)
    for half in ("lo", "hi"):
        batch, run = step(f"v_mbcnt_{half}_u32_b32 v3, s12, v2")
        batch.set_scalar(12, mask >> (32 if half == "hi" else 0) & M32)
        batch.vector[2], batch.vector_defined[2] = total, ALL
        run()
        total = batch.vector[3][0].copy()
    assert total.tolist() == [ones(mask & (1 << lane) - 1) for lane in range(64)]
