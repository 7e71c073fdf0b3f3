"""The meaning of float, half, integer and packed opcodes against exact fractions, on random and edge values."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from sim_expectations import EXPECT, TRANSCENDENTAL
from sim_oracles import F16, F32, F64, FORMATS, M32, is_signalling
from sim_step import step

from spconv_compiler.sim.instruction import EXEC
from spconv_compiler.sim.isa import ROWS
from spconv_compiler.sim.machine import ALL, pack, unpack
from spconv_compiler.sim.rows import DWORDS, Row

EDGES = [0, 1, 2, 7, 15, 16, 31, 32, 33, 63, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFF, 0xFFFFFF, 0x7FFFFFFF,
         0x80000000, 0xFFFFFFFE, M32]  # fmt: skip
NUMBERS = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    1.5,
    -2.5,
    0.5,
    3.0,
    2.0**-14,
    2.0**-15,
    65504.0,
    1e-7,
    448.0,
    464.0,
    57344.0,
    0.1,
    -255.5,
]
# Tested with their modifiers, in test_sim_modifiers.py and below.
ELSEWHERE = {"v_fmamk_f32", "v_fmaak_f32", "v_bitop3_b32", "v_bitop3_b16", "v_fma_mixlo_f16", "v_fma_mixhi_f16"}
ELSEWHERE |= {f"v_div_{step}_{kind}" for step in ("scale", "fmas", "fixup") for kind in ("f32", "f64")}
# Relative error that the ISA documents allow, in units of the last place.
CLOSE = {f"v_{name}_{kind}" for name in TRANSCENDENTAL for kind in FORMATS}
NAN_OF = {"f16": F16, "f32": F32, "f64": F64, "h16": F16}
PACKED_NAN = {"pkf": F16, "p32": F32}


def new_rows() -> list[str]:
    from test_sim_vector import VECTOR

    return [n for n, r in ROWS.items() if r.kind == "valu" and n not in VECTOR and n not in ELSEWHERE and not _old(n)]


def _old(name: str) -> bool:
    return (
        name.startswith("v_cmp_")
        and name.rsplit("_", 1)[1] in ("i32", "u32", "i64", "u64")
        or (name.startswith("v_cmp_") and name.endswith("f32") and "class" not in name)
    )


def draw(kind: str, rng: random.Random, row: Row, index: int) -> int:
    """A bit pattern: a number, an edge or random bits."""
    if row.name.startswith("v_cvt_f32_") and kind in ("u32", "u16"):
        return rng.getrandbits(32)
    number = {"f16": F16, "f32": F32, "f64": F64, "mix": F32, "b32": F32}.get(kind)
    if number is not None:
        choice = rng.random()
        if choice < 0.3:
            return number.bits(rng.choice([*NUMBERS, math.inf, -math.inf, math.nan]))
        if choice < 0.7:
            return number.bits(rng.uniform(-4, 4) * 2.0 ** rng.randrange(-12, 12))
        return rng.getrandbits(number.width)
    if kind in ("pkf", "p32"):
        part = "f16" if kind == "pkf" else "f32"
        width = 16 if kind == "pkf" else 32
        return draw(part, rng, row, 0) | draw(part, rng, row, 0) << width
    word = rng.choice(EDGES) if rng.random() < 0.5 else rng.getrandbits(32)
    if DWORDS[kind] == 2:
        word |= (rng.choice(EDGES) if rng.random() < 0.5 else rng.getrandbits(32)) << 32
    return word


def name_of(kind: str, first: int, mask: str) -> str:
    if kind == "mask":
        return mask
    file = "a" if kind == "acc" else "v"
    return f"{file}{first}" if DWORDS[kind] == 1 else f"{file}[{first}:{first + 1}]"


def kind_of(name: str, type_: str) -> str:
    """What a result is compared as: halves and moves are bits unless they are numbers."""
    if name == "v_cvt_pkrtz_f16_f32":
        return "pkf"
    if name.startswith("v_cvt_pk_f32_"):
        return "p32"
    if name == "v_pk_mov_b32":
        return "u64"
    return "u32" if type_ == "h16" and not name.endswith("3_f16") else type_


def same(found: int, wanted: int, kind: str, close: bool) -> bool:
    if kind in PACKED_NAN:
        part, width = ("f16", 16) if kind == "pkf" else ("f32", 32)
        mask = (1 << width) - 1
        return all(same(found >> s & mask, wanted >> s & mask, part, close) for s in (0, width))
    number = NAN_OF.get(kind)
    if number is None:
        return found == wanted % 2 ** (32 * DWORDS[kind])
    if kind in ("f16", "h16") and found >> 16:
        return False
    if math.isnan(number.value(wanted)):
        return math.isnan(number.value(found)) and not is_signalling(number, found)
    if close and number.value(found) == number.value(wanted):
        return True
    return found == wanted or close and abs(found - wanted) <= 1


@pytest.mark.parametrize("name", new_rows())
def test_meaning(name: str) -> None:
    """Registers of sources, the old value of the result, random EXEC; lanes that are off keep their value."""
    row, rng = ROWS[name], random.Random(name)
    tied = row.tied or row.results[0] == "h16"
    results = [name_of(t, 28 - 4 * i, "s[20:21]") for i, t in enumerate(row.results)]
    encoded = row.sources[1:] if row.tied else row.sources
    sources = [name_of(t, 2 * i, "s[24:25]") for i, t in enumerate(encoded)]
    suffix = "_e64" if "VOP3" in row.formats and len(row.formats) > 1 else "_e32" if len(row.formats) > 1 else ""
    batch, run = step(f"{name}{suffix} {', '.join(results + sources)}", waves=2)
    values = [[[draw(t, rng, row, i) for _ in range(64)] for _ in range(2)] for i, t in enumerate(encoded)]
    kind = row.results[0]
    old = [
        [draw(kind if kind in DWORDS and kind != "h16" else "u32", rng, row, 0) for _ in range(64)] for _ in range(2)
    ]
    mask = np.array([rng.getrandbits(64) for _ in range(2)], np.uint64)
    for part in (0, 1):
        batch.set_scalar(EXEC + part, (mask >> np.uint64(32 * part)).astype(np.uint32))
    base = 32 if "acc" in row.results else 0
    for index, type_ in enumerate(encoded):
        data = np.array(values[index], np.uint64)
        if type_ == "mask":
            bits = pack(data & np.uint64(1) != 0)
            for part in (0, 1):
                batch.set_scalar(24 + part, (bits >> np.uint64(32 * part)).astype(np.uint32))
            continue
        first = 2 * index + (32 if type_ == "acc" else 0)
        for part in range(DWORDS[type_]):
            batch.vector[first + part] = (data >> np.uint64(32 * part)).astype(np.uint32)
            batch.vector_defined[first + part] = ALL
    for part in range(2):
        batch.vector[base + 28 + part] = (np.array(old, np.uint64) >> np.uint64(32 * part)).astype(np.uint32)
        batch.vector_defined[base + 28 + part] = ALL
    run()
    on = unpack(mask)
    for wave in range(2):
        for lane in range(64):
            given = [
                source[wave][lane] & 1 if t == "mask" else source[wave][lane]
                for source, t in zip(values, encoded, strict=True)
            ]
            wanted = EXPECT[name](*([old[wave][lane]] if row.tied else []), *given)
            wanted_all = wanted if isinstance(wanted, tuple) else (wanted,)
            for type_, value in zip(row.results, wanted_all, strict=True):
                if type_ == "mask":
                    bits = int(batch.scalar[20 + lane // 32][wave]) >> lane % 32 & 1
                    assert bits == (value if on[wave, lane] else 0), given
                    continue
                wide = DWORDS[type_] == 2
                found = (
                    int(batch.vector[base + 28][wave, lane]) | (int(batch.vector[base + 29][wave, lane]) << 32) * wide
                )
                if not on[wave, lane]:
                    assert found == old[wave][lane] % 2 ** (64 if wide else 32)
                    continue
                if type_ == "h16" and tied:
                    assert found >> 16 == old[wave][lane] >> 16
                    found &= 0xFFFF
                assert same(found, value, kind_of(name, type_), name in CLOSE), (
                    list(map(hex, given)),
                    hex(found),
                    hex(value),
                )


def test_every_vector_row_has_an_expectation() -> None:
    from test_sim_vector import VECTOR

    for name, row in ROWS.items():
        if row.kind == "valu" and not _old(name):
            assert name in EXPECT or name in VECTOR or name in ELSEWHERE, name
