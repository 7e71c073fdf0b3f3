"""The decoder against the compiler: its assembly text of whole kernels, and random operands of every opcode."""

from __future__ import annotations

import bisect
import functools
import pathlib
import random
import re
from typing import Any

import pytest

from spconv_compiler.artifact import Artifact
from spconv_compiler.compiler import compile_conv
from spconv_compiler.errors import CodegenError
from spconv_compiler.sim import opcodes
from spconv_compiler.sim.assembler import assemble
from spconv_compiler.sim.decode import decode, decode_one
from spconv_compiler.sim.elf import CodeObject
from spconv_compiler.sim.errors import DecodeError
from spconv_compiler.sim.generate_opcodes import generate
from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.isa import ROWS
from spconv_compiler.sim.sample import extensible, sample, sample_dpp, sample_sdwa

CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "bf16": {"kernel_size": 3, "c_in": 16, "c_out": 32, "dtype": "bf16"},
    "few channels": {"kernel_size": 3, "c_in": 3, "c_out": 16, "dtype": "bf16", "out_dtype": "f32"},
    "64-bit keys": {"kernel_size": 3, "c_in": 64, "c_out": 64, "dtype": "bf16", "key_width": 64},
    "f32, bias": {"kernel_size": 3, "c_in": 32, "c_out": 32, "dtype": "f32", "bias": True},
    "f16, relu": {"kernel_size": (1, 3, 5), "c_in": 40, "c_out": 80, "dtype": "f16", "activation": "relu"},
    "wide": {"kernel_size": 3, "c_in": 128, "c_out": 272, "dtype": "bf16", "dilation": (1, 2, 3), "out_dtype": "f32"},
    "pairs": {"kernel_size": 3, "c_in": 16, "c_out": 32, "dtype": "bf16", "schedule": "pairs_m16"},
    "map by search": {"kernel_size": 3, "c_in": 16, "c_out": 32, "dtype": "bf16", "mapper": "z_delta"},
}


@functools.cache
def artifact(name: str) -> Artifact:
    return compile_conv(**CONVOLUTIONS[name], target="gfx950")


def listing(isa: str, kernel: str) -> tuple[list[str], dict[str, int], set[int]]:
    """(instructions, label -> index, indices before which the assembler may pad) of a kernel's assembly text."""
    body = isa.split(f"\n{kernel}:\n", 1)[1].split(".Lfunc_end", 1)[0]
    lines: list[str] = []
    labels: dict[str, int] = {}
    padded: set[int] = set()
    for line in body.splitlines():
        text = re.sub(r"\s+", " ", line.partition(";")[0]).strip()
        if text.endswith(":"):
            labels[text[:-1]] = len(lines)
        elif text.startswith(".p2align"):
            padded.add(len(lines))
        elif text and not text.startswith("."):
            lines.append(text)
    return lines, labels, padded


def without_padding(instructions: list[Instruction], lines: list[str], padded: set[int]) -> list[Instruction]:
    """The instructions without the s_nop that the assembler put before aligned labels."""
    kept: list[Instruction] = []
    for instruction in instructions:
        index = len(kept)
        pads = index in padded and str(instruction) == "s_nop 0" and lines[index] != "s_nop 0"
        if not pads:
            kept.append(instruction)
    return kept


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_kernels_equal_the_assembly_text(name: str) -> None:
    isa = artifact(name).isa
    assert isa is not None
    for kernel in CodeObject(artifact(name).object).kernels.values():
        lines, labels, padded = listing(isa, kernel.name)
        instructions = without_padding(decode(kernel.code, kernel.address), lines, padded)
        index_of = {instruction.address: index for index, instruction in enumerate(instructions)}
        texts = []
        for instruction in instructions:
            if instruction.row.kind == "branch":
                target = index_of[instruction.operands[0].number]
                labels_there = [label for label, index in labels.items() if index == target]
                texts.append((instruction.row.name, labels_there))
            else:
                texts.append((str(instruction), []))
        assert len(texts) == len(lines)
        for (text, labels_there), line in zip(texts, lines, strict=True):
            assert line == text or line in [f"{text} {label}" for label in labels_there], kernel.name


def test_random_operands() -> None:
    """What the assembler makes of every row in every encoding comes back as the text that went in."""
    rng = random.Random(7)
    lines = [sample(row, format_, rng) for _ in range(10) for row in ROWS.values() for format_ in row.formats]
    lines += [sample_sdwa(row, rng) for _ in range(3) for row in ROWS.values() if extensible(row) and not row.tied]
    lines += [
        sample_dpp(row, rng) for _ in range(3) for row in ROWS.values() if extensible(row) and "mask" not in row.results
    ]
    assert len(lines) > 10_000
    for line, code in zip(lines, assemble(lines), strict=True):
        instruction = decode_one(code)
        text = str(instruction)
        if instruction.row.kind == "branch":
            text = f"{instruction.row.name} {(instruction.operands[0].number - 4) // 4}"
        assert text == line


def test_generated_table_is_current() -> None:
    assert generate() == pathlib.Path(opcodes.__file__).read_text(encoding="utf-8")


# Bytes in which a stream of instructions that begins at a wrong place falls into step again, mostly.
_BEHIND = 64


def test_every_bit_flip_decodes_or_is_refused() -> None:
    kernels = CodeObject(artifact("64-bit keys").object).kernels
    kernel = next(kernel for name, kernel in kernels.items() if name.startswith("gemm"))
    starts = [item.address - kernel.address for item in decode(kernel.code, kernel.address)]
    outcomes = set()
    for bit in range(0, len(kernel.code) * 8, 13):
        # The instruction with the bit, and those behind it: they are read anew where its size is another one.
        first = starts[bisect.bisect_right(starts, bit // 8) - 1]
        code = bytearray(kernel.code[first : first + _BEHIND])
        code[bit // 8 - first] ^= 1 << bit % 8
        try:
            decode(bytes(code), kernel.address + first)
            outcomes.add("decoded")
        except DecodeError as error:
            assert str(error)
            outcomes.add("refused")
    assert outcomes == {"decoded", "refused"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("v_pk_fma_f32 v[0:1], v[2:3], 1.0, v[6:7]", "the upper half of a constant"),
        ("v_mul_f32_e64 v0, v1, v2 mul:2", "VOP3 with omod = 1 is not supported"),
        ("v_add_co_u32_dpp v0, vcc, v1, v2 row_shr:1 row_mask:0xf bank_mask:0xf", "v_add_co_u32: DPP control"),
        ("v_mov_b64_dpp v[0:1], v[2:3] row_newbcast:1 row_mask:0xf bank_mask:0xf", "v_mov_b64: DPP control"),
        ("v_permlane16_swap_b32_e64 v0, v1 bound_ctrl:1 fi:1", "VOP3 with op_sel = 3"),
        ("s_getreg_b32 s0, hwreg(HW_REG_HW_ID)", "hardware register 4"),
        ("s_setreg_b32 hwreg(HW_REG_STATUS), s0", "hardware register 2"),
        ("v_mfma_f32_4x4x4_16b_f16 v[0:3], v[4:5], v[6:7], 0", "MAI opcode 74"),
        ("v_mfma_f64_16x16x4_f64 a[0:7], v[2:3], v[4:5], 0", "MAI opcode 110"),
        ("v_smfmac_f32_16x16x32_f16 v[0:3], v[4:5], v[6:9], v10", "MAI opcode 98"),
        ("v_mfma_f32_16x16x32_bf16 v[0:3], v[4:7], v[8:11], 0 blgp:1", "blgp"),
        ("v_cvt_sr_fp8_f32 v0, v1, v2", "VOP3 opcode 676"),
        ("s_movrels_b32 s0, s1", "SOP1 opcode 42"),
        ("s_swappc_b64 s[0:1], s[2:3]", "SOP1 opcode 30"),
        ("s_sendmsg sendmsg(MSG_INTERRUPT)", "SOPP opcode 16"),
        ("buffer_load_format_x v0, v1, s[0:3], 0 offen", "MUBUF opcode 0"),
        ("buffer_load_dword v0, v1, s[0:3], 0 idxen", "MUBUF with idxen = 1"),
        ("ds_append v0", "DS opcode 190"),
        ("s_mov_b32 s0, flat_scratch_lo", "scalar register 102"),
        ("s_mov_b32 s0, src_shared_base", "scalar register 235"),
    ],
)
def test_what_is_not_supported_is_refused(line: str, message: str) -> None:
    with pytest.raises(DecodeError, match=f"0x40: .*({message})"):
        decode_one(assemble([line])[0], 0x40)


def test_backward_branch() -> None:
    assert decode(bytes.fromhex("ffff82bf000081bf"))[0].operands[0].number == 0


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("", "does not end with s_endpgm"),
        ("000080bf", "does not end with s_endpgm"),
        ("000081", "the code ends inside an instruction"),
        ("0000b5d3", "the code ends inside an instruction"),
        ("ff0080be", "a literal that this encoding or the end of the code does not allow"),
        ("feff82bf000081bf", "leads to no instruction"),
    ],
)
def test_incomplete_code(code: str, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        decode(bytes.fromhex(code))


def test_the_assembler_refuses_nonsense() -> None:
    with pytest.raises(CodegenError, match="error:"):
        assemble(["s_nonsense s0"])
