"""Native handlers against the numpy engine, one instruction at a time: every opcode and operand shape.

Both engines get the same random registers, random definedness and random EXEC. Every scalar and vector register, SCC
and all defined bits must come out equal, bit by bit; any NaN equals any NaN. A fault of one must be a fault of both,
in the same words.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from sim_kernels import encode, make_kernel
from sim_step import EDGES, FLOATS, f32_bits

from spconv_compiler.sim import isa_scalar, isa_vector
from spconv_compiler.sim.assembler import assemble
from spconv_compiler.sim.decode import decode_one
from spconv_compiler.sim.errors import Fault
from spconv_compiler.sim.instruction import EXEC
from spconv_compiler.sim.interpreter import Program
from spconv_compiler.sim.isa import ROWS
from spconv_compiler.sim.machine import Active, Batch
from spconv_compiler.sim.memory import Memory
from spconv_compiler.sim.native import layout, library
from spconv_compiler.sim.native.family import handler_name
from spconv_compiler.sim.native.launch import prepare_contexts
from spconv_compiler.sim.native.program import NativeProgram, aligned
from spconv_compiler.sim.rows import Row
from spconv_compiler.sim.sample import sample

KINDS = ("salu", "saveexec", "valu", "lane", "swap", "cmpx", "getreg", "setreg", "permute")
MORE_LINES = (
    "s_mov_b64 exec, s[8:9]",
    "s_mov_b64 exec, -1",
    "s_mov_b32 exec_hi, s4",
    "s_and_b64 exec, exec, vcc",
    "v_cmp_lt_u32_e64 exec, v3, s4",
    "v_mov_b32_dpp v1, v2 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf",
    "v_mov_b32_dpp v1, v1 row_shl:3 row_mask:0xf bank_mask:0xf bound_ctrl:0",
    "v_add_u32_dpp v1, v2, v3 row_shr:1 row_mask:0xf bank_mask:0xf",
    "v_add_f32_dpp v1, v2, v3 row_ror:5 row_mask:0x5 bank_mask:0xf",
    "v_max_i32_dpp v3, v2, v3 row_bcast:15 row_mask:0xa bank_mask:0x3",
    "v_fmac_f32_dpp v1, v2, v3 row_mirror row_mask:0xf bank_mask:0xf",
    "v_min_u32_dpp v1, v2, v3 wave_shr:1 row_mask:0xf bank_mask:0xf",
    "v_add_u32_sdwa v1, v2, v3 dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_1 src1_sel:BYTE_2",
    "v_cmp_gt_i32_sdwa vcc, v2, sext(v3) src0_sel:WORD_0 src1_sel:WORD_1",
    "v_cvt_f32_i32_sdwa v1, sext(v2) dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_3",
)
REGISTERS, WAVES = 512, 3
CORE = {row.name for part in (isa_scalar, isa_vector) for row in part.ROWS}


@functools.cache
def handlers(checks: bool = True) -> library.Library:
    return library.load(library.build_of(checks))


def lines_of(row: Row) -> list[str]:
    """Random operands: of the opcodes that compiled kernels have many in every encoding, of the others one line."""
    rng = random.Random(row.name)
    if row.name in CORE:
        return [sample(row, format_, rng) for format_ in row.formats for _ in range(16)]
    return [sample(row, rng.choice(row.formats), rng) for _ in range(8 if row.kind == "permute" else 1)]


@functools.cache
def encoded() -> dict[str, list[tuple[str, int, Program, NativeProgram]]]:
    """For each opcode: (line, index, numpy program, native program), one for each shape that was drawn."""
    lines = [line for row in ROWS.values() if row.kind in KINDS for line in lines_of(row)] + list(MORE_LINES)
    chosen: dict[str, tuple[str, bytes]] = {}
    for number, (line, slot) in enumerate(zip(lines, assemble(lines), strict=True)):
        item = decode_one(slot)
        shape = handler_name(item.row, library.family_of(item.row).shape(item))
        # Twice each, with other registers and values.
        again = (
            number
            if line in MORE_LINES or item.row.kind == "permute"
            else f"{shape} again"
            if shape in chosen
            else shape
        )
        chosen.setdefault(str(again), (line, slot[: item.size]))
    code = b"".join(part for _, part in chosen.values()) + encode("s_endpgm")
    kernel = dataclasses.replace(make_kernel("s_endpgm", vgprs=REGISTERS, accum_offset=256), code=code)
    whole, native = Program(kernel), NativeProgram(kernel)
    found: dict[str, list[tuple[str, int, Program, NativeProgram]]] = {}
    for index, (line, _) in enumerate(chosen.values()):
        found.setdefault(whole.instructions[index].row.name, []).append((line, index, whole, native))
    return found


def words(rng: np.random.Generator, shape: Sequence[int]) -> Any:
    """uint32: edge values of integers and floats among random ones."""
    edges = np.array([*EDGES, *(f32_bits(value) for value in FLOATS), 0x7F800001, 0x00000001, 0x80000001], np.uint32)
    random_ = rng.integers(0, 2**32, shape, np.uint32)
    return np.where(rng.random(shape) < 0.6, rng.choice(edges, shape), random_)


def masks(rng: np.random.Generator, shape: Sequence[int], kind: Any) -> Any:
    """Words that are all ones, all zeros, or random."""
    random_ = rng.integers(0, np.iinfo(kind).max, shape, kind, endpoint=True)
    choice = rng.random(shape)
    return np.where(choice < 0.5, kind(np.iinfo(kind).max), np.where(choice < 0.6, kind(0), random_))


def make_batch(kernel: Any, seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    batch = Batch(kernel, Memory(), np.zeros(WAVES, np.int64), np.arange(WAVES), WAVES)
    batch.vector[:] = words(rng, batch.vector.shape)
    batch.vector_defined[:] = masks(rng, batch.vector_defined.shape, np.uint64)
    batch.scalar[:] = words(rng, batch.scalar.shape)
    batch.scalar_defined[:] = masks(rng, batch.scalar_defined.shape, np.uint32)
    batch.scc, batch.scc_defined = rng.random(WAVES) < 0.5, rng.random(WAVES) < 0.8
    lanes = masks(rng, (WAVES,), np.uint64)
    for part in (0, 1):
        batch.set_scalar(EXEC + part, (lanes >> np.uint64(32 * part)).astype(np.uint32))
    return batch


class Wave:
    """A native context with the state of one wave of a batch."""

    def __init__(self, batch: Batch, wave: int, program: NativeProgram, library_: library.Library) -> None:
        self.bytes = aligned(layout.context_bytes(REGISTERS))
        prepare_contexts(self.bytes[None, :], program.constants, library_.addresses)
        self.scalar = self.view(layout.SCALARS, np.uint32, 128)
        self.scalar_defined = self.view(layout.SCALARS + layout.SCALAR_DEFINED, np.uint32, 128)
        self.vector = self.view(layout.VECTORS, np.uint32, 64 * REGISTERS).reshape(REGISTERS, 64)
        self.vector_defined = self.view(layout.VECTOR_DEFINED, np.uint64, REGISTERS)
        self.scc = self.view(layout.SCC, np.int32, 2)
        self.scalar[:], self.scalar_defined[:] = batch.scalar[:, wave], batch.scalar_defined[:, wave]
        self.vector[:], self.vector_defined[:] = batch.vector[:, wave], batch.vector_defined[:, wave]
        self.scc[:] = batch.scc[wave], batch.scc_defined[wave]
        self.view(layout.SLICE, np.int32, 1)[0] = 10

    def view(self, offset: int, kind: Any, count: int) -> Any:
        return self.bytes[offset : offset + np.dtype(kind).itemsize * count].view(kind)

    def fault(self) -> str | None:
        if self.view(layout.STATUS, np.int32, 1)[0] != layout.Status.FAULT:
            return None
        lane = int(self.view(layout.FAULT_LANE, np.int32, 1)[0])
        text = layout.FAULT_TEXT[int(self.view(layout.FAULT_CODE, np.int32, 1)[0])]
        return text if lane < 0 else f"lane {lane}: {text}"


def call(library_: library.Library, program: NativeProgram, records: Any, index: int, wave: Wave) -> int | None:
    """Runs one record; gives the distance to the next one, in records, or None."""
    place = records.ctypes.data + layout.RECORD_BYTES * index
    handler = records.view(np.uint64)[index * layout.RECORD_BYTES // 8]
    function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(int(handler))
    found = function(wave.bytes.ctypes.data, place)
    return None if found is None else (found - place) // layout.RECORD_BYTES


def same(found: Any, wanted: Any, row: Row) -> bool:
    """Whether registers [REGISTERS, lane] are equal, where a NaN of the result's type equals any."""
    pair = (found, wanted)
    if row.results[:1] in (("f32",), ("p32",)):
        pair = tuple(a.view(np.float32) for a in pair)
    elif row.results[:1] == ("f64",):
        low_and_high = [a.reshape(REGISTERS // 2, 2, 64).astype(np.uint64) for a in pair]
        pair = tuple((a[:, 0] | a[:, 1] << np.uint64(32)).view(np.float64) for a in low_and_high)
    elif "16" in row.name:
        pair = tuple(np.ascontiguousarray(a).view(np.float16) for a in pair)
    floats = pair[0].dtype.kind == "f"
    return bool(np.array_equal(*pair, equal_nan=floats) and (not floats or equal_zeros(*pair)))


def equal_zeros(found: Any, wanted: Any) -> bool:
    """Whether signs are equal where the values are no NaN."""
    numbers = ~np.isnan(wanted)
    return bool(np.array_equal(np.signbit(found[numbers]), np.signbit(wanted[numbers])))


@functools.cache
def records() -> Any:
    program = next(iter(encoded().values()))[0][3]
    return program.records({**handlers().addresses, **extra(program)})


def extra(program: NativeProgram) -> dict[str, int]:
    missing = program.missing(handlers().addresses)
    return library.load_more(library.build_of(True), missing).addresses if missing else {}


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.kind in KINDS])
def test_opcode(name: str) -> None:
    row = ROWS[name]
    for number, (line, index, whole, program) in enumerate(encoded()[name]):
        batch = make_batch(whole.kernel, number)
        batch.at = whole.instructions[index]
        waves = [Wave(batch, wave, program, handlers()) for wave in range(WAVES)]
        for number, wave in enumerate(waves):
            step = call(handlers(), program, records(), index, wave)
            fault = wave.fault()
            try:
                whole.steps[index](Active(batch, np.array([number])))
            except Fault as error:
                reason = str(error).partition(f"wave {number}")[2].removeprefix(": ").removeprefix(", ")
                assert fault == reason, line
                continue
            assert fault is None, line
            assert step == 1, line
            state = f"{line}, wave {number}"
            assert np.array_equal(wave.scalar, batch.scalar[:, number]), state
            assert np.array_equal(wave.scalar_defined, batch.scalar_defined[:, number]), state
            assert np.array_equal(wave.vector_defined, batch.vector_defined[:, number]), state
            assert wave.scc[0] == batch.scc[number] and wave.scc[1] == batch.scc_defined[number], state
            assert same(wave.vector, batch.vector[:, number], row), state
