"""MFMA: layouts of operands element by element, register files, undefined lanes."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest
from sim_step import (
    step,
)

from spconv_compiler.sim.instruction import EXEC
from spconv_compiler.sim.isa import ROWS
from spconv_compiler.sim.machine import ALL, Batch

MATRICES = [name for name, row in ROWS.items() if row.kind == "mfma"]


def small_float(exponent_bits: int, mantissa_bits: int, bias: int) -> dict[float, int]:
    """Value -> code of a format without infinities, from its definition."""
    found = {}
    for code in range(1 << exponent_bits + mantissa_bits):
        exponent, mantissa = code >> mantissa_bits, code % (1 << mantissa_bits)
        unit = 2.0 ** (max(exponent, 1) - bias - mantissa_bits)
        value = (mantissa + (exponent > 0) * (1 << mantissa_bits)) * unit
        found[value] = code
        found.setdefault(-value, code | 1 << exponent_bits + mantissa_bits)
    return found


def bits32(x: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", x))[0])


# Element -> (bits, encoder, values to draw from).
INTEGERS = [float(value) for value in range(-8, 9)]
E4M3, E5M2, E2M3, E3M2, E2M1 = (small_float(*form) for form in ((4, 3, 7), (5, 2, 15), (2, 3, 1), (3, 2, 3), (2, 1, 1)))
ELEMENTS: dict[str, tuple[int, Callable[[float], int], list[float]]] = {
    "f32": (32, bits32, INTEGERS),
    "bf16": (16, lambda x: bits32(x) >> 16, INTEGERS),
    "f16": (16, lambda x: int(struct.unpack("<H", struct.pack("<e", x))[0]), INTEGERS),
    "i8": (8, lambda x: int(x) & 0xFF, [float(value) for value in range(-128, 128)]),
    "fp8": (8, E4M3.__getitem__, INTEGERS),
    "bf8": (8, E5M2.__getitem__, INTEGERS),
    "fp6": (6, E2M3.__getitem__, INTEGERS[1:-1]),
    "bf6": (6, E3M2.__getitem__, INTEGERS),
    "fp4": (4, E2M1.__getitem__, [-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6]),
}
FORMATS = ("fp8", "bf8", "fp6", "bf6", "fp4")


def put(batch: Batch, first: int, lane: int, place: int, width: int, code: int) -> None:
    """Writes an element of `width` bits as number `place` of a lane's registers."""
    low = place * width
    for offset in range(0, width):
        if code >> offset & 1:
            bit = low + offset
            batch.vector[first + bit // 32][0, lane] |= np.uint32(1 << bit % 32)


def check(name: str, files: str, a_kind: str, b_kind: str, scales: bool = False) -> None:
    """Every element of A and B is put where the layout says, lane by lane; products of such numbers are exact."""
    shape = ROWS[name].matrix
    assert shape is not None
    m, n, k = shape.m, shape.n, shape.k
    rng = np.random.default_rng(3)
    (a_bits, a_code, a_values), (b_bits, b_code, b_values) = ELEMENTS[a_kind], ELEMENTS[b_kind]
    a, b = rng.choice(np.array(a_values, float), (m, k)), rng.choice(np.array(b_values, float), (k, n))
    c = rng.integers(-99, 99, (m, n))
    per_lane, total = m * k // 64, m * n // 64
    source, result = files[0], files[1]
    at, base = [0, 8], {"v": 0, "a": 32}
    widths = [per_lane * bits // 32 for bits in (a_bits, b_bits)]
    texts = [
        f"{source}{first}" if w == 1 else f"{source}[{first}:{first + w - 1}]"
        for first, w in zip(at, widths, strict=True)
    ]
    block = f"{result}[16:{16 + total - 1}]"
    options = ""
    if a_kind in FORMATS and name.endswith("f8f6f4"):
        cbsz, blgp = FORMATS.index(a_kind), FORMATS.index(b_kind)
        options = f" cbsz:{cbsz}" * (cbsz > 0) + f" blgp:{blgp}" * (blgp > 0)
    extra = ", v20, v21 op_sel:[1,0,0] op_sel_hi:[0,1,0]" if scales else ""
    batch, run = step(f"{name} {block}, {', '.join(texts)}, {block}{extra}{options}")
    batch.vector[:] = 0
    batch.vector_defined[:] = ALL
    a_scale, b_scale = (rng.integers(125, 130, (m, 64 // m)) for _ in range(2))
    for lane in range(64):
        for j in range(per_lane):
            row, depth = lane % m, lane // m * per_lane + j
            put(batch, base[source] + at[0], lane, j, a_bits, a_code(a[row, depth]))
            put(batch, base[source] + at[1], lane, j, b_bits, b_code(b[depth, row]))
        for v in range(total):
            row = 4 * (lane // 16) + v if m == 16 else 8 * (v // 4) + 4 * (lane // 32) + v % 4
            value = c[row, lane % n]
            raw = np.int32(value).view(np.uint32) if shape.result == "i32" else np.float32(value).view(np.uint32)
            batch.vector[base[result] + 16 + v][0, lane] = raw
        # Byte 1 of the first register, byte 2 of the second one: op_sel and op_sel_hi.
        if not scales:
            continue
        batch.vector[20][0, lane] = np.uint32(int(a_scale[lane % m, lane // m]) << 8)
        batch.vector[21][0, lane] = np.uint32(int(b_scale[lane % m, lane // m]) << 16)
    batch.set_scalar(EXEC, 1)
    run()
    if scales:
        a = a * 2.0 ** (np.repeat(a_scale, k * m // 64, axis=1) - 127)
        b = b * 2.0 ** (np.repeat(b_scale, k * m // 64, axis=1).T - 127)
    wanted = a @ b + c
    for lane in range(64):
        for v in range(total):
            row = 4 * (lane // 16) + v if m == 16 else 8 * (v // 4) + 4 * (lane // 32) + v % 4
            found = batch.vector[base[result] + 16 + v][0, lane]
            value = int(found.view(np.int32)) if shape.result == "i32" else float(found.view(np.float32))
            assert value == wanted[row, lane % n]


@pytest.mark.parametrize("files", ["vv", "aa", "va"])
@pytest.mark.parametrize("name", [name for name in MATRICES if not name.endswith("f8f6f4")])
def test_matrix(name: str, files: str) -> None:
    shape = ROWS[name].matrix
    assert shape is not None
    check(name, files, shape.element, shape.other or shape.element)


@pytest.mark.parametrize(("a_kind", "b_kind"), [(kind, kind) for kind in FORMATS] + [("fp8", "fp4"), ("fp6", "bf8")])
@pytest.mark.parametrize("name", ["f32_16x16x128_f8f6f4", "f32_32x32x64_f8f6f4"])
def test_small_formats(name: str, a_kind: str, b_kind: str) -> None:
    check(f"v_mfma_{name}", "va", a_kind, b_kind)
    check(f"v_mfma_scale_{name}", "va", a_kind, b_kind, scales=True)


@pytest.mark.parametrize("operand", ["a", "b", "c"])
def test_matrix_with_one_undefined_lane(operand: str) -> None:
    """Of A a row of D, of B a column, of C an element."""
    batch, run = step("v_mfma_f32_16x16x32_bf16 v[16:19], v[0:3], v[4:7], v[8:11]")
    batch.vector[:] = 0
    batch.vector_defined[:] = ALL
    register = {"a": 1, "b": 5, "c": 9}[operand]
    batch.vector_defined[register] = ~np.uint64(1 << 21)
    run()
    undefined = {
        (4 * (lane // 16) + v, lane % 16)
        for v in range(4)
        for lane in range(64)
        if not int(batch.vector_defined[16 + v][0]) >> lane & 1
    }
    wanted = {"a": {(5, n) for n in range(16)}, "b": {(m, 5) for m in range(16)}, "c": {(5, 5)}}
    assert undefined == wanted[operand]
