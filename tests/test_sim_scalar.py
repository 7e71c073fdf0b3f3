"""The meaning of every scalar opcode against plain Python integers, SCC and EXEC included."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sim_step import (
    LOGIC,
    M32,
    M64,
    carry,
    compare,
    draw,
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


def overflow(total: int) -> tuple[int, int]:
    return total, int(not -(2**31) <= total < 2**31)


def flag(value: int, width: int = 32) -> tuple[int, int]:
    return value, int(value % 2**width != 0)


def signed_field(a: int, low: int, width: int, total: int) -> int:
    """Bits [low, low + width), of which those above the register are zero, with the sign of the highest."""
    field = a >> low & (1 << width) - 1
    return field - (1 << width) if width and field >> width - 1 else field


def first_unlike_sign(a: int, width: int) -> int:
    """Distance from the top to the first bit that differs from the sign."""
    text = f"{a:0{width}b}"
    place = text.find("1" if text[0] == "0" else "0")
    return M32 if place < 0 else place


# As above; SCC is the last argument where it is read, and the last result where it is written.
SCALAR: dict[str, Callable[..., Any]] = {
    "s_add_u32": lambda a, b: carry(a + b),
    "s_addc_u32": lambda a, b, c: carry(a + b + c),
    "s_sub_u32": lambda a, b: carry(a - b),
    "s_subb_u32": lambda a, b, c: carry(a - b - c),
    "s_add_i32": lambda a, b: overflow(s32(a) + s32(b)),
    "s_sub_i32": lambda a, b: overflow(s32(a) - s32(b)),
    "s_min_i32": lambda a, b: (min(s32(a), s32(b)), int(s32(a) < s32(b))),
    "s_min_u32": lambda a, b: (min(a, b), int(a < b)),
    "s_max_i32": lambda a, b: (max(s32(a), s32(b)), int(s32(a) > s32(b))),
    "s_max_u32": lambda a, b: (max(a, b), int(a > b)),
    "s_mul_i32": lambda a, b: a * b,
    "s_mul_hi_u32": lambda a, b: a * b >> 32,
    "s_mul_hi_i32": lambda a, b: s32(a) * s32(b) >> 32,
    "s_lshl_b32": lambda a, b: flag(a << b % 32),
    "s_lshr_b32": lambda a, b: flag(a >> b % 32),
    "s_ashr_i32": lambda a, b: flag(s32(a) >> b % 32),
    "s_lshl_b64": lambda a, b: flag(a << b % 64, 64),
    "s_lshr_b64": lambda a, b: flag(a >> b % 64, 64),
    "s_bfe_u32": lambda a, b: flag(a >> b % 32 & (1 << (b >> 16) % 128) - 1),
    "s_cselect_b32": lambda a, b, c: a if c else b,
    "s_cselect_b64": lambda a, b, c: a if c else b,
    "s_pack_ll_b32_b16": lambda a, b: a % 65536 | b << 16,
    "s_movk_i32": lambda k: k,
    "s_mov_b32": lambda a: a,
    "s_mov_b64": lambda a: a,
    "s_not_b32": lambda a: flag(~a),
    "s_not_b64": lambda a: flag(~a, 64),
    "s_brev_b32": reverse,
    "s_bcnt1_i32_b32": lambda a: flag(ones(a)),
    "s_bcnt1_i32_b64": lambda a: flag(ones(a)),
    "s_ff1_i32_b32": lowest,
    "s_ff1_i32_b64": lowest,
    "s_flbit_i32_b32": highest,
    "s_sext_i32_i16": lambda a: (a % 65536 ^ 0x8000) - 0x8000,
    "s_abs_i32": lambda a: flag(abs(s32(a))),
    "s_addk_i32": lambda a, k: overflow(s32(a) + k),
    "s_mulk_i32": lambda a, k: a * k,
    "s_bitset1_b32": lambda a, b: a | 1 << b % 32,
    "s_bitset0_b32": lambda a, b: a & ~(1 << b % 32),
    "s_bitcmp0_b32": lambda a, b: int(a >> b % 32 & 1 == 0),
    "s_bitcmp1_b32": lambda a, b: int(a >> b % 32 & 1 == 1),
    "s_bfe_i32": lambda a, b: flag(signed_field(a, b % 32, min((b >> 16) % 128, 32), 32)),
    "s_bfe_u64": lambda a, b: flag(a >> b % 64 & (1 << min((b >> 16) % 128, 64)) - 1, 64),
    "s_bfe_i64": lambda a, b: flag(signed_field(a, b % 64, min((b >> 16) % 128, 64), 64), 64),
    "s_bfm_b32": lambda a, b: (1 << a % 32) - 1 << b % 32,
    "s_bfm_b64": lambda a, b: (1 << a % 64) - 1 << b % 64,
    "s_ashr_i64": lambda a, b: flag(s64(a) >> b % 64, 64),
    "s_absdiff_i32": lambda a, b: flag(abs(s32(a) - s32(b))),
    "s_pack_lh_b32_b16": lambda a, b: a % 65536 | b >> 16 << 16,
    "s_pack_hh_b32_b16": lambda a, b: a >> 16 | b >> 16 << 16,
    "s_cmov_b32": lambda old, a, c: a if c else old,
    "s_cmov_b64": lambda old, a, c: a if c else old,
    "s_cmovk_i32": lambda old, k, c: k if c else old,
    "s_brev_b64": lambda a: int(f"{a:064b}"[::-1], 2),
    "s_bcnt0_i32_b32": lambda a: flag(32 - ones(a)),
    "s_bcnt0_i32_b64": lambda a: flag(64 - ones(a)),
    "s_ff0_i32_b32": lambda a: lowest(~a & M32),
    "s_ff0_i32_b64": lambda a: lowest(~a & M64),
    "s_flbit_i32_b64": lambda a: 64 - a.bit_length() if a else M32,
    "s_flbit_i32": lambda a: first_unlike_sign(a, 32),
    "s_flbit_i32_i64": lambda a: first_unlike_sign(a, 64),
    "s_sext_i32_i8": lambda a: (a % 256 ^ 0x80) - 0x80,
    "s_bitset0_b64": lambda a, b: a & ~(1 << b % 64),
    "s_bitset1_b64": lambda a, b: a | 1 << b % 64,
    "s_bitreplicate_b64_b32": lambda a: int("".join(bit * 2 for bit in f"{a:032b}"), 2),
    "s_wqm_b64": lambda a: flag(sum(15 << n for n in range(0, 64, 4) if a >> n & 15), 64),
    "s_quadmask_b64": lambda a: flag(sum(1 << n // 4 for n in range(0, 64, 4) if a >> n & 15), 64),
    "s_bitcmp0_b64": lambda a, b: int(a >> b % 64 & 1 == 0),
    "s_bitcmp1_b64": lambda a, b: int(a >> b % 64 & 1 == 1),
    **{f"s_lshl{n}_add_u32": lambda a, b, n=n: carry((a << n) + b) for n in (1, 2, 3, 4)},
    **{f"s_{name}_b32": lambda a, b, f=f: flag(f(a, b)) for name, f in LOGIC.items()},
    **{f"s_{name}_b64": lambda a, b, f=f: flag(f(a, b), 64) for name, f in LOGIC.items()},
}


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.kind == "salu"])
def test_scalar(name: str) -> None:
    row, rng = ROWS[name], random.Random(name)
    expect = compare(name) if "cmp_" in name and "bit" not in name or "cmpk" in name else SCALAR[name]
    unsigned = name.endswith("_u32")
    k = rng.randrange(0x10000) if unsigned else rng.randrange(-0x8000, 0x8000)
    registers = {"u32": 1, "i32": 1, "u64": 2, "i64": 2}
    sources = [t for t in row.sources if t != "scc"]
    texts = []
    for index, type_ in enumerate(sources):
        number = 8 if row.tied and index == 0 else 12 + 4 * index
        texts.append(
            hex(k & 0xFFFF)
            if type_ == "k16"
            else f"s{number}"
            if registers[type_] == 1
            else f"s[{number}:{number + 1}]"
        )
    results = [("s8" if registers[t] == 1 else "s[8:9]") for t in row.results if t != "scc"]
    line = f"{name} {', '.join(results + texts[1 if row.tied else 0 :])}"
    waves = 64
    batch, run = step(line, waves=waves)
    values = []
    for index, type_ in enumerate(sources):
        if type_ == "k16":
            values.append([k] * waves)
            continue
        number = 8 if row.tied and index == 0 else 12 + 4 * index
        column = [draw(type_, rng, row, index) for _ in range(waves)]
        values.append(column)
        for part in range(registers[type_]):
            batch.set_scalar(number + part, np.array([value >> 32 * part & M32 for value in column], np.uint32))
    flags = [rng.randrange(2) for _ in range(waves)]
    batch.scc[:], batch.scc_defined[:] = flags, True
    run()
    for wave in range(waves):
        given = [column[wave] for column in values] + ([flags[wave]] if "scc" in row.sources else [])
        wanted = expect(*given)
        wanted_all = list(wanted) if isinstance(wanted, tuple) else [wanted]
        for type_, value in zip(row.results, wanted_all, strict=True):
            if type_ == "scc":
                assert int(batch.scc[wave]) == value, given
            else:
                found = int(batch.scalar[8][wave]) | (int(batch.scalar[9][wave]) << 32 if registers[type_] == 2 else 0)
                assert found == value % 2 ** (32 * registers[type_]), given
        if "scc" not in row.results:
            assert int(batch.scc[wave]) == flags[wave]


SAVE = {**LOGIC, "andn1": lambda a, b: ~a & b, "orn1": lambda a, b: ~a | b}


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.kind == "saveexec"])
def test_save_exec(name: str) -> None:
    rng = random.Random(name)
    function = SAVE[name.split("_")[1]]
    for source in (0, M64, rng.getrandbits(64)):
        batch, run = step(f"{name} s[8:9], s[12:13]")
        old = rng.getrandbits(64)
        for part in (0, 1):
            batch.set_scalar(12 + part, source >> 32 * part & M32)
            batch.set_scalar(EXEC + part, old >> 32 * part & M32)
        run()
        pair = [int(batch.scalar[n][0]) | int(batch.scalar[n + 1][0]) << 32 for n in (8, EXEC)]
        assert pair == [old, function(source, old) % 2**64]
        assert bool(batch.scc[0]) == (pair[1] != 0)
