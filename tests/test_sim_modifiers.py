"""Modifiers and lane moves: neg, abs, clamp, op_sel, SDWA, DPP, truth tables, swaps; lane by lane in plain Python."""

from __future__ import annotations

import functools
import math
import random
import re
from collections.abc import Callable

import numpy as np
import pytest
from sim_kernels import encode, make_kernel
from sim_oracles import F16, F32, F64, M32, clip, exact, half_of, s16, s32

from spconv_compiler.sim.decode import decode
from spconv_compiler.sim.errors import Fault
from spconv_compiler.sim.instruction import EXEC
from spconv_compiler.sim.interpreter import Program
from spconv_compiler.sim.machine import ALL, Active, Batch
from spconv_compiler.sim.memory import Memory

Words = list[int]


@functools.cache
def program(lines: tuple[str, ...]) -> Program:
    return Program(make_kernel("\n".join([*lines, "s_endpgm"]), vgprs=64, accum_offset=32))


def execute(
    lines: tuple[str, ...], index: int, registers: dict[int, Words], exec_mask: int = 2**64 - 1, vcc: int = 0
) -> Batch:
    """Runs one of some instructions on one wave; registers: number -> 64 words."""
    bound = program(lines)
    batch = Batch(bound.kernel, Memory(), np.zeros(1, np.int64), np.zeros(1, np.int64), 1)
    for number, words in registers.items():
        batch.vector[number][0], batch.vector_defined[number][0] = np.array(words, np.uint32), ALL
    for first, value in ((EXEC, exec_mask), (106, vcc)):
        for part in (0, 1):
            batch.set_scalar(first + part, value >> 32 * part & M32)
    batch.at = bound.instructions[index]
    bound.steps[index](Active(batch, np.arange(1)))
    return batch


def draw(rng: random.Random) -> Words:
    special = [0, 0x3F800000, 0xBF800000, 0x7F800000, 0x7FC00000, 0x3C003C00, 0xFFFF0001, M32, 0x80000000]
    return [rng.choice(special) if rng.random() < 0.3 else rng.getrandbits(32) for _ in range(64)]


def same_number(found: int, wanted: int, format_: object = F32) -> bool:
    value = format_.value  # type: ignore[attr-defined]
    return math.isnan(value(found)) and math.isnan(value(wanted)) or found == wanted


# (line, expectation of words v2, v4, v6, old v0). Results of floats may be any NaN where one is expected.
add, mul = exact(F32, lambda a, b: a + b), exact(F32, lambda a, b: a * b)
fma = exact(F32, lambda a, b, c: a * b + c)
fma16, add16 = exact(F16, lambda a, b, c: a * b + c), exact(F16, lambda a, b: a + b)
NEG, ABS = 1 << 31, (1 << 31) - 1


def clamped(format_: object, bits: int) -> int:
    value = format_.value(bits)  # type: ignore[attr-defined]
    return int(format_.bits(0.0 if math.isnan(value) else clip(value, 0.0, 1.0)))  # type: ignore[attr-defined, arg-type]


def mixed(word: int, half: bool, upper: int) -> int:
    """A source of v_fma_mix as float32."""
    return F32.bits(F16.value(half_of(word, upper))) if half else word


def saturate(value: int, low: int, high: int) -> int:
    return clip(value, low, high)


CASES: dict[str, Callable[[int, int, int, int], int]] = {
    "v_add_f32_e64 v0, -v2, |v4|": lambda a, b, c, d: add(a ^ NEG, b & ABS),
    "v_mul_f32_e64 v0, -|v2|, v4": lambda a, b, c, d: mul(a | NEG, b),
    "v_fma_f32 v0, v2, -v4, |v6| clamp": lambda a, b, c, d: clamped(F32, fma(a, b ^ NEG, c & ABS)),
    "v_cndmask_b32_e64 v0, -v2, |v4|, vcc": lambda a, b, c, d: a ^ NEG,
    "v_fmac_f32_e64 v0, -v2, v4": lambda a, b, c, d: fma(a ^ NEG, b, d),
    "v_add_f16_e64 v0, -v2, |v4| clamp": lambda a, b, c, d: clamped(F16, add16(a % 65536 ^ 0x8000, b & 0x7FFF)),
    "v_fma_f16 v0, v2, v4, v6 op_sel:[1,0,1,0]": lambda a, b, c, d: fma16(a >> 16, b % 65536, c >> 16),
    "v_fma_f16 v0, v2, v4, v6 op_sel:[0,1,0,1]": lambda a, b, c, d: (
        fma16(a % 65536, b >> 16, c % 65536) << 16 | d % 65536
    ),
    "v_mad_u16 v0, v2, v4, v6 op_sel:[1,1,0,0]": lambda a, b, c, d: ((a >> 16) * (b >> 16) + c) & 0xFFFF,
    "v_add_i16 v0, v2, v4 op_sel:[0,1,1] clamp": lambda a, b, c, d: (
        (saturate(s16(a) + s16(b >> 16), -32768, 32767) & 0xFFFF) << 16 | d & 0xFFFF
    ),
    "v_pack_b32_f16 v0, v2, v4 op_sel:[1,0,0]": lambda a, b, c, d: a >> 16 | (b & 0xFFFF) << 16,
    "v_pack_b32_f16 v0, -v2, |v4|": lambda a, b, c, d: (a ^ 0x8000) & 0xFFFF | (b & 0x7FFF) << 16,
    "v_add_u32_e64 v0, v2, v4 clamp": lambda a, b, c, d: min(a + b, M32),
    "v_sub_u32_e64 v0, v2, v4 clamp": lambda a, b, c, d: max(a - b, 0),
    "v_add_i32 v0, v2, v4 clamp": lambda a, b, c, d: saturate(s32(a) + s32(b), -(2**31), 2**31 - 1) & M32,
    "v_sub_i32 v0, v2, v4 clamp": lambda a, b, c, d: saturate(s32(a) - s32(b), -(2**31), 2**31 - 1) & M32,
    "v_add_u16_e64 v0, v2, v4 clamp": lambda a, b, c, d: min(a % 65536 + b % 65536, 65535),
    "v_sub_u16_e64 v0, v2, v4 clamp": lambda a, b, c, d: max(a % 65536 - b % 65536, 0),
    "v_bitop3_b32 v0, v2, v4, v6 bitop3:0x6c": lambda a, b, c, d: table(0x6C, a, b, c),
    "v_bitop3_b32 v0, v2, v4, v6 bitop3:0xe1": lambda a, b, c, d: table(0xE1, a, b, c),
    "v_bitop3_b16 v0, v2, v4, v6 bitop3:0x3a": lambda a, b, c, d: table(0x3A, a, b, c) & 0xFFFF,
    "v_fmaak_f32 v0, v2, v4, 0x42280000": lambda a, b, c, d: fma(a, b, F32.bits(42.0)),
    "v_fmamk_f32 v0, v2, 0x42280000, v4": lambda a, b, c, d: fma(a, F32.bits(42.0), b),
    "v_fma_mix_f32 v0, v2, -v4, |v6| op_sel:[1,0,0] op_sel_hi:[1,0,1]": lambda a, b, c, d: fma(
        mixed(a, True, 1), b ^ NEG, mixed(c, True, 0) & ABS
    ),
    "v_fma_mixlo_f16 v0, v2, v4, v6 op_sel_hi:[1,1,0]": lambda a, b, c, d: (
        F16.bits(F32.value(fma(mixed(a, True, 0), mixed(b, True, 0), c))) | d & 0xFFFF0000
    ),
    "v_fma_mixhi_f16 v0, v2, v4, v6 op_sel:[0,1,0] op_sel_hi:[0,1,0] clamp": lambda a, b, c, d: (
        F16.bits(F32.value(clamped(F32, fma(a, mixed(b, True, 1), c)))) << 16 | d & 0xFFFF
    ),
    "v_pk_add_f16 v0, v2, v4 op_sel:[1,0] op_sel_hi:[0,1] neg_lo:[1,0] neg_hi:[0,1]": lambda a, b, c, d: (
        add16(a >> 16 ^ 0x8000, b % 65536) | add16(a % 65536, b >> 16 ^ 0x8000) << 16
    ),
    "v_pk_add_f16 v0, v2, 1.0 op_sel_hi:[1,0]": lambda a, b, c, d: (
        add16(a % 65536, 0x3C00) | add16(a >> 16, 0x3C00) << 16
    ),
    "v_pk_add_u16 v0, v2, v4 op_sel:[0,1] clamp": lambda a, b, c, d: (
        min(a % 65536 + (b >> 16), 65535) | min((a >> 16) + (b >> 16), 65535) << 16
    ),
    "v_pk_sub_i16 v0, v2, 7 op_sel_hi:[1,0]": lambda a, b, c, d: (a - 7) & 0xFFFF | ((a >> 16) - 7 & 0xFFFF) << 16,
    "v_add_f32_sdwa v0, -v2, |v4| dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD": (
        lambda a, b, c, d: add(a ^ NEG, b & ABS)
    ),
    "v_add_u32_sdwa v0, v2, sext(v4) dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_2 src1_sel:WORD_1": (
        lambda a, b, c, d: ((a >> 16 & 255) + s16(b >> 16)) & M32
    ),
    "v_or_b32_sdwa v0, v2, v4 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_0 src1_sel:BYTE_3": (
        lambda a, b, c, d: d & 0xFFFF | (a & 0xFFFF | b >> 24) << 16
    ),
    "v_lshlrev_b32_sdwa v0, v2, v4 dst_sel:BYTE_1 dst_unused:UNUSED_PAD src0_sel:BYTE_0 src1_sel:DWORD": (
        lambda a, b, c, d: (b << a % 32 & 255) << 8
    ),
    "v_add_f16_sdwa v0, v2, -v4 dst_sel:WORD_0 dst_unused:UNUSED_SEXT src0_sel:WORD_1 src1_sel:WORD_0": (
        lambda a, b, c, d: s16(add16(a >> 16, b % 65536 ^ 0x8000)) & M32
    ),
    "v_cvt_f32_i32_sdwa v0, sext(v2) dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_1": (
        lambda a, b, c, d: F32.bits(float((a >> 8 & 255 ^ 128) - 128))
    ),
    "v_cndmask_b32_sdwa v0, v2, v4, vcc dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:DWORD": (
        lambda a, b, c, d: a >> 16
    ),
}
LINES = tuple(CASES)
_FLOAT_RESULTS = {
    line: F32
    for line in LINES
    if line.startswith(("v_add_f32", "v_mul_f32", "v_fma_f32", "v_fmac", "v_fmaak", "v_fmamk", "v_fma_mix_"))
}


def table(truth: int, a: int, b: int, c: int) -> int:
    """Bit by bit: bit 4 a + 2 b + c of the table."""
    return sum((truth >> (4 * (a >> i & 1) + 2 * (b >> i & 1) + (c >> i & 1)) & 1) << i for i in range(32))


@pytest.mark.parametrize("line", LINES)
def test_modifiers(line: str) -> None:
    rng = random.Random(line)
    a, b, c, d = (draw(rng) for _ in range(4))
    mask = rng.getrandbits(64)
    batch = execute(LINES, LINES.index(line), {2: a, 4: b, 6: c, 0: d}, mask)
    for lane in range(64):
        found, wanted = int(batch.vector[0][0, lane]), CASES[line](a[lane], b[lane], c[lane], d[lane])
        if not mask >> lane & 1:
            assert found == d[lane]
        elif line in _FLOAT_RESULTS:
            assert same_number(found, wanted), (hex(a[lane]), hex(b[lane]), hex(c[lane]))
        elif "UNUSED_SEXT" in line:
            assert same_number(found & 0xFFFF, wanted & 0xFFFF, F16) and found == s16(found) & M32
        elif "f16" in line:
            for upper in (0, 1):
                assert same_number(half_of(found, upper), half_of(wanted, upper), F16), (hex(a[lane]), hex(b[lane]))
        else:
            assert found == wanted, (hex(a[lane]), hex(b[lane]), hex(c[lane]), hex(d[lane]))


WIDE = (
    "v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7] op_sel:[0,1,0] op_sel_hi:[1,0,0] neg_lo:[1,0,0] neg_hi:[0,0,1]",
    "v_pk_mov_b32 v[0:1], v[2:3], v[4:5] op_sel:[1,0]",
    "v_pk_mul_f32 v[0:1], v[2:3], 2.0 op_sel_hi:[1,0]",
    "v_mul_f64 v[0:1], -v[2:3], |v[4:5]|",
    "v_fma_f64 v[0:1], v[2:3], v[4:5], -v[6:7] clamp",
    "v_cmp_lt_f32_e64 s[4:5], -v2, |v4|",
    "v_cmp_eq_u16_sdwa s[4:5], v2, v4 src0_sel:BYTE_1 src1_sel:WORD_1",
)


def wide_expectation(index: int, s: list[int]) -> int:
    """The 64-bit result of a line; s: words of v2 to v7."""
    pairs = [s[0] | s[1] << 32, s[2] | s[3] << 32, s[4] | s[5] << 32]
    mul64, fma64 = exact(F64, lambda a, b: a * b), exact(F64, lambda a, b, c: a * b + c)
    sign = 1 << 63
    return [
        lambda: fma(s[0] ^ NEG, s[3], s[4]) | fma(s[1], s[2], s[4] ^ NEG) << 32,
        lambda: s[1] | s[2] << 32,
        lambda: mul(s[0], F32.bits(2.0)) | mul(s[1], F32.bits(2.0)) << 32,
        lambda: mul64(pairs[0] ^ sign, pairs[1] & ~sign),
        lambda: clamped(F64, fma64(pairs[0], pairs[1], pairs[2] ^ sign)),
        lambda: int(F32.value(s[0] ^ NEG) < F32.value(s[2] & ABS)),
        lambda: int(s[0] >> 8 & 255 == s[2] >> 16),
    ][index]()


@pytest.mark.parametrize("index", range(len(WIDE)))
def test_wide_modifiers(index: int) -> None:
    rng = random.Random(index)
    words = [draw(rng) for _ in range(6)]
    if index == 6:
        words[2] = [(w >> 8 & 255) << 16 if rng.random() < 0.5 else w for w in words[0]]
    batch = execute(WIDE, index, {2 + i: w for i, w in enumerate(words)})
    for lane in range(64):
        wanted = wide_expectation(index, [w[lane] for w in words])
        if index >= 5:
            assert int(batch.scalar[4 + lane // 32][0]) >> lane % 32 & 1 == wanted
            continue
        found = int(batch.vector[0][0, lane]) | int(batch.vector[1][0, lane]) << 32
        if index in (3, 4):
            assert same_number(found, wanted, F64)
        elif index == 1:
            assert found == wanted
        else:
            assert same_number(found & M32, wanted & M32) and same_number(found >> 32, wanted >> 32)


DPP = tuple(
    f"v_add_u32_dpp v0, v2, v4 {control} row_mask:{rows} bank_mask:{banks}{bound}"
    for control in (
        "quad_perm:[3,1,0,2]", "row_shl:3", "row_shr:1", "row_ror:5", "row_mirror", "row_half_mirror", "wave_shl:1",
        "wave_shr:1", "wave_rol:1", "wave_ror:1", "row_bcast:15", "row_bcast:31", "row_newbcast:6",
    )
    for rows, banks, bound in (("0xf", "0xf", ""), ("0xa", "0x7", " bound_ctrl:1"))
)  # fmt: skip


def dpp_source(control: str, lane: int) -> int | None:
    """The lane that is read, or None, from the words of the ISA document."""
    name, _, rest = control.partition(":")
    row, place = lane // 16 * 16, lane % 16
    if name == "quad_perm":
        return lane // 4 * 4 + int(rest[1:-1].split(",")[lane % 4])
    count = int(rest or 0)
    simple = {
        "row_shl": row + place + count if place + count < 16 else None,
        "row_shr": lane - count if place >= count else None,
        "row_ror": row + (place - count) % 16,
        "row_mirror": row + 15 - place,
        "row_half_mirror": lane // 8 * 8 + 7 - lane % 8,
        "wave_shl": lane + 1 if lane < 63 else None,
        "wave_shr": lane - 1 if lane else None,
        "wave_rol": (lane + 1) % 64,
        "wave_ror": (lane - 1) % 64,
        "row_newbcast": row + count,
    }
    if name == "row_bcast":
        return row - 1 if count == 15 and row else 31 if count == 31 and lane >= 32 else None
    return simple[name]


@pytest.mark.parametrize("line", DPP)
def test_dpp(line: str) -> None:
    rng = random.Random(line)
    a, b, d = (draw(rng) for _ in range(3))
    mask = rng.getrandbits(64) | rng.getrandbits(64)
    batch = execute(DPP, DPP.index(line), {2: a, 4: b, 0: d}, mask)
    match = re.search(r"v4 (\S+) row_mask:(\S+) bank_mask:(\S+)", line)
    assert match is not None
    control, rows, banks = match[1], int(match[2], 16), int(match[3], 16)
    for lane in range(64):
        source = dpp_source(control, lane)
        there = source is not None and mask >> source & 1
        on = mask >> lane & 1 and rows >> lane // 16 & 1 and banks >> lane % 16 // 4 & 1
        wanted = d[lane]
        if on and (there or "bound_ctrl" in line):
            wanted = ((a[source] if there and source is not None else 0) + b[lane]) & M32
        assert int(batch.vector[0][0, lane]) == wanted, lane


def test_dpp_reads_undefined_lanes() -> None:
    """A lane that reads an undefined one becomes undefined; one that reads nothing gets a defined 0."""
    batch = execute(DPP, DPP.index("v_add_u32_dpp v0, v2, v4 row_shr:1 row_mask:0xa bank_mask:0x7 bound_ctrl:1"), {})
    assert int(batch.vector_defined[0][0]) == 0
    bound = program(DPP)
    index = DPP.index("v_add_u32_dpp v0, v2, v4 row_shr:1 row_mask:0xf bank_mask:0xf")
    batch.vector_defined[2][0], batch.vector_defined[4][0] = ALL ^ np.uint64(1 << 20), ALL
    batch.vector_defined[0][0] = ALL
    batch.at = bound.instructions[index]
    bound.steps[index](Active(batch, np.arange(1)))
    assert int(batch.vector_defined[0][0]) == 2**64 - 1 - (1 << 21)


CROSS = (
    "v_permlane16_swap_b32_e32 v0, v2",
    "v_permlane32_swap_b32_e32 v0, v2",
    "v_swap_b32 v0, v2",
    "v_writelane_b32 v0, 7, 37",
    "v_writelane_b32 v0, 9, m0",
    "v_cmpx_lt_u32_e32 vcc, v0, v2",
    "v_cmpx_gt_f32_e64 s[4:5], v0, v2",
)


def test_swaps() -> None:
    rng = random.Random(1)
    a, b = draw(rng), draw(rng)
    for index, moves in ((0, lambda lane: lane // 16 % 2 == 1), (1, lambda lane: lane >= 32), (2, None)):
        batch = execute(CROSS, index, {0: a, 2: b})
        step = 16 if index == 0 else 32
        for lane in range(64):
            if moves is None:
                wanted = (b[lane], a[lane])
            elif moves(lane):
                wanted = (b[lane - step], b[lane])
            else:
                wanted = (a[lane], a[lane + step])
            assert (int(batch.vector[0][0, lane]), int(batch.vector[2][0, lane])) == wanted
    with pytest.raises(Fault, match="lanes are off"):
        execute(CROSS, 0, {0: a, 2: b}, 2**64 - 2)


def test_write_lane_and_exec_compares() -> None:
    rng = random.Random(2)
    a, b = draw(rng), draw(rng)
    batch = execute(CROSS, 3, {0: a}, 0)
    assert [int(x) for x in batch.vector[0][0]] == [7 if lane == 37 else a[lane] for lane in range(64)]
    with pytest.raises(Fault, match="the number of the lane is undefined"):
        execute(CROSS, 4, {0: a})
    mask = rng.getrandbits(64)
    for index, relation, target in (
        (5, lambda x, y: x < y, 106),
        (6, lambda x, y: F32.value(x) > F32.value(y), 4),
    ):
        batch = execute(CROSS, index, {0: a, 2: b}, mask)
        wanted = sum(1 << lane for lane in range(64) if mask >> lane & 1 and relation(a[lane], b[lane]))
        for first in (target, EXEC):
            assert int(batch.scalar[first][0]) | int(batch.scalar[first + 1][0]) << 32 == wanted


DIVIDE = """
v_div_scale_f32 v10, s[4:5], v4, v4, v2
v_div_scale_f32 v11, vcc, v2, v4, v2
v_rcp_f32_e32 v12, v10
v_fma_f32 v13, -v10, v12, 1.0
v_fma_f32 v12, v13, v12, v12
v_mul_f32_e32 v14, v11, v12
v_fma_f32 v15, -v10, v14, v11
v_fma_f32 v14, v15, v12, v14
v_fma_f32 v15, -v10, v14, v11
v_div_fmas_f32 v15, v15, v12, v14
v_div_fixup_f32 v0, v15, v4, v2
"""


def test_division() -> None:
    """The sequence that compilers emit gives the correctly rounded quotient, extremes and denormals included."""
    rng = random.Random(3)
    values = [1e-45, 1e-38, 3e38, 1.0, 3.0, -7.0, 1e-20, 1e20, 0.0, -0.0, math.inf, math.nan, 2.0**-126, 2.0**127]
    pairs = [(x, y) for x in values for y in values] + [
        (rng.uniform(1, 2) * 2.0 ** rng.randrange(-126, 127), rng.uniform(1, 2) * 2.0 ** rng.randrange(-126, 127))
        for _ in range(316)
    ]
    bound = Program(make_kernel(DIVIDE + "s_endpgm", vgprs=64, accum_offset=32))
    for start in range(0, len(pairs), 64):
        chunk = (pairs[start : start + 64] + [(1.0, 1.0)] * 64)[:64]
        batch = Batch(bound.kernel, Memory(), np.zeros(1, np.int64), np.zeros(1, np.int64), 1)
        top, bottom = ([F32.bits(x) for x in column] for column in zip(*chunk, strict=True))
        for number, words in ((2, top), (4, bottom)):
            batch.vector[number][0], batch.vector_defined[number][0] = np.array(words, np.uint32), ALL
        for part in (0, 1):
            batch.set_scalar(EXEC + part, M32)
        for item, step in zip(bound.instructions[:-1], bound.steps, strict=False):
            batch.at = item
            step(Active(batch, np.arange(1)))
        for lane in range(64):
            x, y = F32.value(top[lane]), F32.value(bottom[lane])
            with np.errstate(all="ignore"):
                wanted = int((np.float32(x) / np.float32(y)).view(np.uint32))
            assert same_number(int(batch.vector[0][0, lane]), wanted), (x, y)


def test_partial_results_and_undefined_lanes() -> None:
    """The low half written by itself defines the register; the high half by itself does not."""
    lines = ("v_cvt_pk_fp8_f32 v0, v2, v4", "v_cvt_pk_fp8_f32 v0, v2, v4 op_sel:[0,0,1]")
    for index, wanted in ((0, 2**64 - 1), (1, 0)):
        batch = execute(lines, index, {2: [0] * 64, 4: [0] * 64})
        assert int(batch.vector_defined[0][0]) == wanted


def test_modifiers_show_in_the_text_and_name_the_row() -> None:
    items = decode(encode("v_add_f32_e64 v0, -v2, |v4|\nv_add_f32_e32 v0, v2, v4\ns_endpgm"))
    assert items[0].row.variant and not items[1].row.variant
    assert items[0].row.name == items[1].row.name
