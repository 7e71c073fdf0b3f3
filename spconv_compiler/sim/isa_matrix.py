"""MFMA opcodes that isa_vector.py has not got. Shapes and passes: LLVM's tables for gfx950."""

from __future__ import annotations

import dataclasses

from spconv_compiler.sim.rows import MatrixShape, Row, row

_REGISTERS = {1: "u32", 2: "u64", 4: "u128", 6: "u192", 8: "u256", 16: "u512"}
_BITS = {"f16": 16, "bf16": 16}


def _shapes() -> dict[str, MatrixShape]:
    shapes = {
        "v_mfma_f32_16x16x16_f16": MatrixShape(16, 16, 16, "f16", 4),
        "v_mfma_f32_32x32x8_f16": MatrixShape(32, 32, 8, "f16", 8),
        "v_mfma_f32_16x16x16_bf16": MatrixShape(16, 16, 16, "bf16", 4),
        "v_mfma_f32_32x32x8_bf16": MatrixShape(32, 32, 8, "bf16", 8),
        "v_mfma_i32_16x16x32_i8": MatrixShape(16, 16, 32, "i8", 4, result="i32"),
        "v_mfma_i32_32x32x16_i8": MatrixShape(32, 32, 16, "i8", 8, result="i32"),
        "v_mfma_i32_16x16x64_i8": MatrixShape(16, 16, 64, "i8", 4, result="i32"),
        "v_mfma_i32_32x32x32_i8": MatrixShape(32, 32, 32, "i8", 8, result="i32"),
    }
    for a in ("fp8", "bf8"):
        for b in ("fp8", "bf8"):
            shapes[f"v_mfma_f32_16x16x32_{a}_{b}"] = MatrixShape(16, 16, 32, a, 4, other=b)
            shapes[f"v_mfma_f32_32x32x16_{a}_{b}"] = MatrixShape(32, 32, 16, a, 8, other=b)
    return shapes


def _plain() -> list[Row]:
    rows = []
    for name, shape in _shapes().items():
        bits = _BITS.get(shape.element, 8)
        operand = _REGISTERS[shape.m * shape.k * bits // 64 // 32]
        total = _REGISTERS[shape.m * shape.n // 64]
        rows.append(row(name, "mfma", "MAI", f"{total} <- {operand} {operand} {total}", matrix=shape))
    return rows


def _scaled() -> list[Row]:
    """Formats of A and B are modifiers (cbsz, blgp); decode.py sets them and the widths that follow."""
    rows = []
    for m, k, passes in ((16, 128, 8), (32, 64, 16)):
        shape = MatrixShape(m, m, k, "fp8", passes)
        total = _REGISTERS[m * m // 64]
        signature = f"{total} <- u256 u256 {total}"
        rows.append(row(f"v_mfma_f32_{m}x{m}x{k}_f8f6f4", "mfma", "MAI", signature, matrix=shape))
        scaled = dataclasses.replace(shape, scaled=True)
        name = f"v_mfma_scale_f32_{m}x{m}x{k}_f8f6f4"
        # Two instructions in one: SCALE is no format of the decoder, which knows the pair.
        rows.append(row(name, "mfma", "SCALE", f"{signature} u32 u32", matrix=scaled))
    return rows


ROWS = [*_plain(), *_scaled()]
