"""Native MFMA against the numpy reference, which rounds once: every shape, with C in registers and as a constant.

Whole numbers must come out exactly. Random numbers may differ by the rounding of as many sums as there are products.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
from sim_kernels import make_kernel

from spconv_compiler.sim.instruction import Operand
from spconv_compiler.sim.isa import ROWS
from spconv_compiler.sim.matrix import defined, fragment, multiply, result_places, scaled
from spconv_compiler.sim.native import layout, library
from spconv_compiler.sim.native.launch import prepare_contexts
from spconv_compiler.sim.native.matrix import kept_operands, supported
from spconv_compiler.sim.native.program import NativeProgram, aligned
from spconv_compiler.sim.rows import DWORDS

REGISTERS, ACCUMULATORS = 96, 32
# Where D, A, B and C lie: (name, first register of each); accumulation registers lie behind ACCUMULATORS.
PLACES = {
    "D is C": ("v[32:47]", "v[0:7]", "v[8:15]", "v[32:47]"),
    "apart": ("v[32:47]", "v[0:7]", "v[8:15]", "v[16:31]"),
    "constant": ("v[32:47]", "v[0:7]", "v[8:15]", "2.0"),
    "accumulators": ("a[0:15]", "a[16:23]", "v[8:15]", "a[0:15]"),
    "D over A": ("v[0:15]", "v[0:7]", "v[16:23]", "v[32:47]"),
    "D over B": ("v[8:23]", "v[0:7]", "v[8:15]", "v[32:47]"),
    "D over some of C": ("v[32:47]", "v[0:7]", "v[8:15]", "v[30:45]"),
}
Random = np.random.Generator


@dataclasses.dataclass(frozen=True)
class Case:
    """An MFMA as the assembler writes it: opcode, registers of D, A, B, C, and what stands behind the operands."""

    name: str
    registers: tuple[int, int, int, int]
    behind: str = ""

    def line(self, places: tuple[str, ...]) -> str:
        given = [cut(place, count) for place, count in zip(places, self.registers, strict=True)]
        if "_i32_" in self.name:
            given[3] = "2" if given[3] == "2.0" else given[3]
        return f"{self.name} {', '.join(given)}{self.behind}"

    def lines(self) -> list[str]:
        """In all places: the assembler takes C that D overlaps in part only where they are four registers.

        Of the formats of few bits two: they differ from others in their elements alone.
        """
        names = [name for name in PLACES if self.registers[0] == 4 or "some" not in name]
        names = ["apart", "accumulators"] if "f8f6f4" in self.name else names
        return [self.line(PLACES[name]) for name in names]

    def __str__(self) -> str:
        return f"{self.name}{self.behind}"


def cut(text: str, count: int) -> str:
    """The first `count` registers of a range."""
    if "[" not in text:
        return text
    first = int(text[2:].split(":")[0])
    return f"{text[0]}{first}" if count == 1 else f"{text[0]}[{first}:{first + count - 1}]"


def cases() -> list[Case]:
    """Every shape; of f8f6f4 all formats."""
    found = []
    for row in ROWS.values():
        if row.kind != "mfma" or not supported(row.matrix):
            continue
        total, a, b, c = (DWORDS[type_] for type_ in (row.results[0], *row.sources[:3]))
        if not row.name.endswith("f8f6f4"):
            found.append(Case(row.name, (total, a, b, c)))
            continue
        assert row.matrix is not None
        scaled = row.matrix.scaled
        # Each format once with itself or another one, in one of the two sizes.
        pairs = [(0, 0), (2, 1), (4, 3), (3, 2)] if row.matrix.m == 16 else [(1, 4), (2, 0)]
        for number, (cbsz, blgp) in enumerate(pairs):
            counts = total, FORMATS[cbsz][1], FORMATS[blgp][1], c
            behind = f" cbsz:{cbsz}" * (cbsz > 0) + f" blgp:{blgp}" * (blgp > 0)
            if scaled:
                # Which byte of each scale.
                chosen = (number & 1, number >> 2 & 1), (number >> 1 & 1, number & 1)
                parts = [
                    f"{name}:[{bits[0]},{bits[1]},0]"
                    for name, bits in zip(("op_sel", "op_sel_hi"), chosen, strict=True)
                ]
                parts = parts[1:] if chosen[0] == (0, 0) else parts
                behind = f", v48, v49 {' '.join(parts)}{behind}"
            found.append(Case(row.name, counts, behind))
    return found


FORMATS = (("fp8", 8), ("bf8", 8), ("fp6", 6), ("bf6", 6), ("fp4", 4))
CASES = cases()


@functools.cache
def handlers(checks: bool) -> library.Library:
    return library.load(library.build_of(checks))


@functools.cache
def program() -> tuple[NativeProgram, dict[str, int]]:
    lines = list(dict.fromkeys(line for case in CASES for line in case.lines()))
    # Nothing may stand in the room for A: every line is run alone.
    text = "\n".join(f"{line}\ns_branch 0" for line in lines)
    kernel = make_kernel(f"{text}\ns_endpgm", vgprs=REGISTERS, accum_offset=64)
    return NativeProgram(kernel), {line: 2 * index for index, line in enumerate(lines)}


@functools.cache
def records(checks: bool) -> Any:
    found = dict(handlers(checks).addresses)
    missing = program()[0].missing(found)
    if missing:
        found.update(library.load_more(library.build_of(checks), missing).addresses)
    return program()[0].records(found)


# 0, 1, 2 and 3 in the formats of few bits.
SMALL = {
    "fp8": [0, 0x38, 0x40, 0x44],
    "bf8": [0, 0x3C, 0x40, 0x42],
    "fp6": [0, 8, 16, 20],
    "bf6": [0, 12, 16, 18],
    "fp4": [0, 2, 4, 5],
}
BITS = {"fp6": 6, "bf6": 6, "fp4": 4}


def elements(rng: Random, kind: str, registers: int, *, whole: bool) -> Any:
    """Random uint32 registers of A or B: whole numbers from -3 to 3, or any finite numbers."""
    if kind in BITS:
        return small_elements(rng, kind, registers, whole=whole)
    count = (registers, layout.LANES * {"f32": 1, "bf16": 2, "f16": 2}.get(kind, 4))
    if kind in SMALL and not whole:
        return rng.integers(0, 0x78, count).astype(np.uint8).view(np.uint32)
    if kind == "i8":
        return (rng.integers(-3, 4, count) if whole else rng.integers(-128, 128, count)).astype(np.int8).view(np.uint32)
    values = rng.integers(-3, 4, count).astype(np.float32) if whole else rng.standard_normal(count).astype(np.float32)
    if kind in SMALL:
        sizes = np.array(SMALL[kind])[np.abs(values).astype(int)]
        return (sizes | np.where(values < 0, 0x80, 0)).astype(np.uint8).view(np.uint32)
    if kind == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint32)
    return (values.astype(np.float16) if kind == "f16" else values).view(np.uint32)


def small_elements(rng: Random, kind: str, registers: int, *, whole: bool) -> Any:
    """The same of formats without infinities and NaNs, one element behind the other."""
    bits = BITS[kind]
    count = (layout.LANES, 32 * registers // bits)
    values = rng.integers(-3, 4, count)
    numbers = np.array(SMALL[kind])[np.abs(values)] | np.where(values < 0, 1 << bits - 1, 0)
    codes = numbers if whole else rng.integers(0, 1 << bits, count)
    flags = (codes[..., None] >> np.arange(bits) & 1).astype(np.uint8).reshape(layout.LANES, -1)
    return np.packbits(flags, axis=1, bitorder="little").view(np.uint32).T


class Wave:
    """A native context with registers of its own."""

    def __init__(self, checks: bool) -> None:
        self.bytes, self.checks = aligned(layout.context_bytes(REGISTERS)), checks
        prepare_contexts(self.bytes[None, :], program()[0].constants, handlers(checks).addresses)
        file = self.bytes[layout.VECTORS :][: layout.VECTOR_BYTES * REGISTERS]
        self.registers = file.view(np.uint32).reshape(REGISTERS, layout.LANES)
        self.defined = self.bytes[layout.VECTOR_DEFINED :][: 8 * REGISTERS].view(np.uint64)
        self.defined[:] = layout.ALL

    def run(self, line: str) -> None:
        made = records(self.checks)
        index = program()[1][line]
        place = made.ctypes.data + layout.RECORD_BYTES * index
        function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        found = function(int(made.view(np.uint64)[index * 8]))(self.bytes.ctypes.data, place)
        assert found == place + layout.RECORD_BYTES

    def of(self, operand: Operand) -> slice:
        first = operand.number + (64 if operand.kind == "a" else 0)
        return slice(first, first + operand.dwords)


@dataclasses.dataclass
class Filled:
    """An MFMA with random contents of its registers: shape, A, B, C, scales or None, place of D."""

    shape: Any
    a: Any
    b: Any
    c: Any
    scales: tuple[Any, Any] | None
    target: slice

    def wanted(self) -> Any:
        """D of the reference, in the type of C."""
        scales = None if self.scales is None else (self.scales[0][None], self.scales[1][None])
        given = self.c.view(np.uint32)[:, None]
        return multiply(self.shape, self.a[:, None], self.b[:, None], given, scales)[:, 0].view(self.c.dtype)


def fill(wave: Wave, line: str, rng: Random, *, whole: bool) -> Filled:
    item = program()[0].instructions[program()[1][line]]
    target, a, b, c, *scales = item.operands
    shape = item.row.matrix
    assert shape is not None
    wave.registers[wave.of(b)] = elements(rng, shape.other or shape.element, b.dwords, whole=whole)
    wave.registers[wave.of(a)] = elements(rng, shape.element, a.dwords, whole=whole)
    kind = np.int32 if shape.result == "i32" else np.float32
    if c.kind == "inline":
        given = np.full((target.dwords, layout.LANES), c.constant(), np.uint32).view(kind)
    else:
        given = rng.integers(-9, 10, (target.dwords, layout.LANES)).astype(kind)
        if not whole and kind is np.float32:
            given = rng.standard_normal(given.shape).astype(np.float32)
        wave.registers[wave.of(c)] = given.view(np.uint32)
    used = []
    for place, name in zip(scales, ("scale_a", "scale_b"), strict=False):
        low, high = (125, 130) if whole else (0, 255)
        codes = rng.integers(low, high, (layout.LANES, 4)).astype(np.uint8)
        wave.registers[wave.of(place)] = codes.view(np.uint32).T
        used.append(codes[:, item.modifiers[name]].astype(np.uint32))
    left, right = (wave.registers[wave.of(operand)].copy() for operand in (a, b))
    return Filled(shape, left, right, given.copy(), (used[0], used[1]) if used else None, wave.of(target))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_whole_numbers_exact(case: Case) -> None:
    rng = np.random.default_rng(3)
    for line in case.lines():
        for checks in (True, False):
            wave = Wave(checks)
            filled = fill(wave, line, rng, whole=True)
            wanted = filled.wanted()
            wave.run(line)
            np.testing.assert_array_equal(wave.registers[filled.target].view(wanted.dtype), wanted, line)
            assert wanted.any()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_random_numbers_within_rounding(case: Case) -> None:
    rng = np.random.default_rng(4)
    line = case.line(PLACES["apart"])
    wave = Wave(True)
    filled = fill(wave, line, rng, whole=False)
    shape, wanted = filled.shape, filled.wanted()
    wave.run(line)
    found = wave.registers[filled.target].view(wanted.dtype)
    if shape.result == "i32":
        np.testing.assert_array_equal(found, wanted)
        return
    left, right = fragment(shape, filled.a[:, None]), fragment(shape, filled.b[:, None], shape.other)
    rows, columns = result_places(shape)
    if filled.scales is None:
        sizes = np.abs(left) @ np.abs(right).transpose(0, 2, 1)
        bound = (shape.k + 1) * 2.0**-24 * (sizes[0][rows, columns] + np.abs(filled.c))
    else:
        # Sums in float64: what is left is one rounding to float32, which may also be to a denormal, or to infinity.
        parts = [scaled(shape, part, scale[None]) for part, scale in zip((left, right), filled.scales, strict=True)]
        sizes = np.abs(parts[0]) @ np.abs(parts[1]).transpose(0, 2, 1)
        bound = 2.0**-23 * np.abs(wanted) + 2.0**-45 * sizes[0][rows, columns] + 2.0**-149
    same = found == wanted
    with np.errstate(invalid="ignore"):
        assert (same | (np.abs(found.astype(np.float64) - wanted) <= bound)).all()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_defined_lanes(case: Case) -> None:
    """An element of D needs its row of A, its column of B, its element of C, and the scales of both."""
    rng = np.random.default_rng(5)
    line = case.line(PLACES["apart"])
    item = program()[0].instructions[program()[1][line]]
    places = dict(zip(("a", "b", "c", "scale a", "scale b"), item.operands[1:], strict=False))
    vectors = {name: place for name, place in places.items() if place.kind == "v"}
    for lost in ("none", *vectors, "all"):
        wave = Wave(True)
        target = fill(wave, line, rng, whole=True).target
        for name, place in vectors.items():
            if lost in (name, "all"):
                some = wave.defined[wave.of(place)]
                some[rng.integers(len(some))] &= ~np.uint64(1 << int(rng.integers(64)))
        known = {name: wave.defined[wave.of(place)][:, None].copy() for name, place in vectors.items()}
        for name in ("a", "b"):
            known[name] &= known.get(f"scale {name}", known[name])
        wave.run(line)
        assert item.row.matrix is not None
        wanted = defined(item.row.matrix, known["a"], known["b"], known["c"])[:, 0]
        np.testing.assert_array_equal(wave.defined[target], wanted, f"{line}: {lost}")
        assert (wanted == layout.ALL).all() == (lost == "none")


def test_denormals_and_special_values() -> None:
    """bf16 denormals count, and infinities and NaN travel, as in the reference."""
    case = next(case for case in CASES if case.name == "v_mfma_f32_16x16x32_bf16")
    line = case.line(PLACES["constant"])
    wave = Wave(True)
    filled = fill(wave, line, np.random.default_rng(6), whole=True)
    place_a, place_b = wave.of(Operand("v", 0, 4)), wave.of(Operand("v", 8, 4))
    wave.registers[place_a], wave.registers[place_b] = 0, 0x3F803F80
    wave.registers[place_a][0, 0] = 0x00010001
    wave.registers[place_a][0, 1] = 0x00007F80
    wave.registers[place_a][0, 2] = 0x00007FC0
    filled.a, filled.b = wave.registers[place_a].copy(), wave.registers[place_b].copy()
    wave.registers[filled.target] = 0
    wave.run(line)
    found = wave.registers[filled.target].view(np.float32)
    np.testing.assert_array_equal(found, filled.wanted())
    assert np.isinf(found).any() and np.isnan(found).any()


def test_special_values_of_small_formats() -> None:
    """NaN and infinity of fp8 and bf8, and the scale that is NaN."""
    for case in CASES:
        if not case.name.endswith("f8f6f4"):
            continue
        line = case.line(PLACES["apart"])
        wave = Wave(True)
        filled = fill(wave, line, np.random.default_rng(8), whole=True)
        item = program()[0].instructions[program()[1][line]]
        place = wave.of(item.operands[1])
        if filled.shape.element in ("fp8", "bf8"):
            wave.registers[place][1, 3:6] = 0x7F7E7D7C
            wave.registers[place][0, 9] = 0xFFFEFDFC
        if filled.scales is not None:
            where = wave.of(item.operands[4])
            wave.registers[where][0, 2] = 0xFFFFFFFF
            filled.scales[0][2] = 255
        filled.a = wave.registers[place].copy()
        wanted = filled.wanted()
        wave.run(line)
        np.testing.assert_array_equal(wave.registers[filled.target].view(np.float32), wanted, line)
        assert np.isnan(wanted).any() == (filled.shape.element in ("fp8", "bf8") or filled.scales is not None)


SHARED = """
v_mfma_f32_16x16x32_bf16 v[16:19], v[0:3], v[4:7], 0
v_mfma_f32_16x16x32_bf16 v[20:23], v[0:3], v[8:11], v[20:23]
s_nop 7
v_mfma_f32_16x16x32_bf16 v[24:27], v[0:3], v[8:11], 1.0
s_branch 0
v_mfma_f32_16x16x32_bf16 v[28:31], v[0:3], v[4:7], 0
v_mov_b32_e32 v1, v9
s_nop 1
v_mfma_f32_16x16x32_bf16 v[32:35], v[0:3], v[4:7], 0
v_mfma_f32_16x16x32_f16 v[36:39], v[0:3], v[4:7], 0
v_mfma_f32_16x16x32_bf16 v[0:3], v[0:3], v[4:7], 0
s_nop 7
v_mfma_f32_16x16x32_bf16 v[40:43], v[0:3], v[4:7], 0
s_nop 7
s_endpgm
"""


def test_a_that_several_use() -> None:
    """It is converted again where a branch may lead, a register of it was written, or another MFMA came between."""
    program = NativeProgram(make_kernel(SHARED.strip(), vgprs=REGISTERS, accum_offset=64))
    items = [item for item in program.instructions if item.row.kind == "mfma"]
    kept = [program.instructions[index] for index in kept_operands(program.instructions)]
    assert [items.index(item) for item in kept] == [1, 2]
    found = dict(handlers(False).addresses)
    missing = program.missing(found)
    assert {shape for _, shape in missing.values()} <= {"V", "S"}
    found.update(library.load_more(library.build_of(False), missing).addresses if missing else {})
    made, wave, rng = program.records(found), Wave(False), np.random.default_rng(9)
    prepare_contexts(wave.bytes[None, :], program.constants, found)
    wave.registers[:16] = elements(rng, "bf16", 16, whole=True)
    wave.registers[20:24] = 0
    registers = wave.registers.copy()
    wave.bytes[layout.SLICE :][:4].view(np.int32)[0] = 9
    wave.bytes[layout.EXEC :][:8] = 0xFF
    record: int | None = made.ctypes.data
    for item in program.instructions[:-1]:
        assert record is not None
        handler = int(made[record - made.ctypes.data :][:8].view(np.uint64)[0])
        record = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(handler)(
            wave.bytes.ctypes.data, record
        )
        if item.row.name.startswith("v_mov"):
            registers[1] = registers[9]
        elif item.row.matrix is not None:
            target, a, b, c = (slice(each.number, each.number + each.dwords) for each in item.operands)
            start = np.uint32(item.operands[3].constant()) if item.operands[3].kind == "inline" else registers[c]
            addend = np.broadcast_to(start, (4, layout.LANES))[:, None]
            left, right = registers[a][:, None], registers[b][:, None]
            registers[target] = multiply(item.row.matrix, left, right, addend)[:, 0]
    np.testing.assert_array_equal(wave.registers, registers)
