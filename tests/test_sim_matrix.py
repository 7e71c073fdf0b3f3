"""MFMA: layouts of operands element by element, register files, undefined lanes."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from sim_step import (
    step,
)

from spconv_compiler.sim.instruction import EXEC
from spconv_compiler.sim.isa import ROWS
from spconv_compiler.sim.machine import ALL

MATRICES = [name for name, row in ROWS.items() if row.kind == "mfma"]


@pytest.mark.parametrize("files", ["vv", "aa", "va"])
@pytest.mark.parametrize("name", MATRICES)
def test_matrix(name: str, files: str) -> None:
    """Every element of A and B is put where the layout says, lane by lane; products of whole numbers are exact."""
    shape = ROWS[name].matrix
    assert shape is not None
    m, n, k = shape.m, shape.n, shape.k
    rng = np.random.default_rng(3)
    a, b = rng.integers(-8, 9, (m, k)), rng.integers(-8, 9, (k, n))
    c = rng.integers(-99, 99, (m, n))
    per_lane, total = m * k // 64, m * n // 64
    dwords = per_lane if shape.element == "f32" else per_lane // 2
    source, result = files
    at = [0, 4]
    texts = [f"{source}{first}" if dwords == 1 else f"{source}[{first}:{first + dwords - 1}]" for first in at]
    block = f"{result}[{8}:{8 + total - 1}]"
    batch, run = step(f"{name} {block}, {', '.join(texts)}, {block}")
    base = {"v": 0, "a": 32}
    encode = {
        "f32": lambda x: struct.unpack("<I", struct.pack("<f", x))[0],
        "bf16": lambda x: struct.unpack("<I", struct.pack("<f", x))[0] >> 16,
        "f16": lambda x: struct.unpack("<H", struct.pack("<e", x))[0],
    }[shape.element]
    batch.vector[:] = 0
    batch.vector_defined[:] = ALL
    size = 1 if shape.element == "f32" else 2
    for lane in range(64):
        for j in range(per_lane):
            row, depth = lane % m, lane // m * per_lane + j
            for first, value in ((0, a[row, depth]), (4, b[depth, row])):
                batch.vector[base[source] + first + j // size][0, lane] |= np.uint32(encode(value) << 16 * (j % size))
        for v in range(total):
            row = 4 * (lane // 16) + v if m == 16 else 8 * (v // 4) + 4 * (lane // 32) + v % 4
            batch.vector[base[result] + 8 + v][0, lane] = np.float32(c[row, lane % n]).view(np.uint32)
    batch.set_scalar(EXEC, 1)
    run()
    wanted = (a @ b + c).astype(np.float32)
    for lane in range(64):
        for v in range(total):
            row = 4 * (lane // 16) + v if m == 16 else 8 * (v // 4) + 4 * (lane // 32) + v % 4
            assert batch.vector[base[result] + 8 + v][0, lane].view(np.float32) == wanted[row, lane % n]


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
