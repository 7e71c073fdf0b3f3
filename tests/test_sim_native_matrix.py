"""Native MFMA against the numpy reference, which rounds once: every shape, with C in registers and as a constant.

Whole numbers must come out exactly. Random numbers may differ by the rounding of as many sums as there are products.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
import pytest
from sim_kernels import make_kernel

from spconv_compiler.sim.instruction import Operand
from spconv_compiler.sim.isa import ROWS
from spconv_compiler.sim.matrix import defined, fragment, multiply, result_places
from spconv_compiler.sim.native import layout, library
from spconv_compiler.sim.native.family import handler_name
from spconv_compiler.sim.native.launch import prepare_contexts
from spconv_compiler.sim.native.matrix import _registers, supported
from spconv_compiler.sim.native.program import NativeProgram, aligned
from spconv_compiler.sim.rows import DWORDS

REGISTERS, ACCUMULATORS = 96, 32
SHAPED = [row for row in ROWS.values() if row.kind == "mfma" and supported(row.matrix)]
# Where D, A, B and C lie: (name, first register of each); accumulation registers lie behind ACCUMULATORS.
PLACES = {
    "D is C": ("v[32:47]", "v[0:7]", "v[8:15]", "v[32:47]"),
    "apart": ("v[32:47]", "v[0:7]", "v[8:15]", "v[16:31]"),
    "constant": ("v[32:47]", "v[0:7]", "v[8:15]", "2.0"),
    "accumulators": ("a[0:15]", "a[16:23]", "v[8:15]", "a[0:15]"),
    "D over A": ("v[0:15]", "v[0:7]", "v[16:23]", "v[32:47]"),
}
Random = np.random.Generator


@functools.cache
def handlers(checks: bool) -> library.Library:
    return library.load(library.build_of(checks))


@functools.cache
def rare_handlers(checks: bool) -> library.Library:
    listed = [(row, shape) for row in SHAPED for shape in ("V", "S")]
    missing = {handler_name(*e): e for e in listed if handler_name(*e) not in handlers(checks).addresses}
    return library.load_more(library.build_of(checks), missing)


def cut(text: str, count: int) -> str:
    """The first `count` registers of a range."""
    if "[" not in text:
        return text
    first = int(text[2:].split(":")[0])
    return f"{text[0]}{first}" if count == 1 else f"{text[0]}[{first}:{first + count - 1}]"


def line_of(row: Any, places: tuple[str, ...]) -> str:
    types = (row.results[0], *row.sources[:3])
    given = [cut(place, DWORDS[type_]) for place, type_ in zip(places, types, strict=True)]
    if row.matrix.result == "i32":
        given[3] = "2" if given[3] == "2.0" else given[3]
    return f"{row.name} {', '.join(given)}"


@functools.cache
def program() -> tuple[NativeProgram, dict[str, int]]:
    lines = list(dict.fromkeys(line_of(row, places) for row in SHAPED for places in PLACES.values()))
    kernel = make_kernel("\n".join([*lines, "s_endpgm"]), vgprs=REGISTERS, accum_offset=64)
    return NativeProgram(kernel), {line: index for index, line in enumerate(lines)}


@functools.cache
def records(checks: bool) -> Any:
    found = dict(handlers(checks).addresses)
    found.update(rare_handlers(checks).addresses)
    missing = program()[0].missing(found)
    if missing:
        found.update(library.load_more(library.build_of(checks), missing).addresses)
    return program()[0].records(found)


# 0, 1, 2 and 3 in the formats of eight bits.
SMALL = {"fp8": [0, 0x38, 0x40, 0x44], "bf8": [0, 0x3C, 0x40, 0x42]}


def elements(rng: Random, kind: str, registers: int, *, whole: bool) -> Any:
    """Random uint32 registers of A or B: whole numbers from -3 to 3, or any finite numbers."""
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


def fill(wave: Wave, row: Any, line: str, rng: Random, *, whole: bool) -> tuple[Any, Any, Any, slice]:
    """(A, B, C, place of D) of an instruction, with random contents."""
    target, a, b, c = program()[0].instructions[program()[1][line]].operands
    shape = row.matrix
    count, results = _registers(shape)
    wave.registers[wave.of(b)] = elements(rng, shape.other or shape.element, count, whole=whole)
    wave.registers[wave.of(a)] = elements(rng, shape.element, count, whole=whole)
    kind = np.int32 if shape.result == "i32" else np.float32
    if c.kind == "inline":
        given = np.full((results, layout.LANES), c.constant(), np.uint32).view(kind)
    else:
        given = rng.integers(-9, 10, (results, layout.LANES)).astype(kind)
        if not whole and kind is np.float32:
            given = rng.standard_normal(given.shape).astype(np.float32)
        wave.registers[wave.of(c)] = given.view(np.uint32)
    return wave.registers[wave.of(a)].copy(), wave.registers[wave.of(b)].copy(), given.copy(), wave.of(target)


def reference(shape: Any, a: Any, b: Any, c: Any) -> Any:
    """D in the type of c, from registers of one wave."""
    return multiply(shape, a[:, None], b[:, None], c.view(np.uint32)[:, None])[:, 0].view(c.dtype)


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("row", SHAPED, ids=lambda row: row.name)
def test_whole_numbers_exact(row: Any, places: str) -> None:
    rng = np.random.default_rng(3)
    line = line_of(row, PLACES[places])
    for checks in (True, False):
        wave = Wave(checks)
        a, b, c, target = fill(wave, row, line, rng, whole=True)
        wave.run(line)
        wanted = reference(row.matrix, a, b, c)
        np.testing.assert_array_equal(wave.registers[target].view(c.dtype), wanted, line)
        assert wanted.any()


@pytest.mark.parametrize("row", SHAPED, ids=lambda row: row.name)
def test_random_numbers_within_rounding(row: Any) -> None:
    rng = np.random.default_rng(4)
    line, shape = line_of(row, PLACES["apart"]), row.matrix
    wave = Wave(True)
    a, b, c, target = fill(wave, row, line, rng, whole=False)
    wave.run(line)
    wanted = reference(shape, a, b, c)
    found = wave.registers[target].view(c.dtype)
    if shape.result == "i32":
        np.testing.assert_array_equal(found, wanted)
        return
    left, right = fragment(shape, a[:, None]), fragment(shape, b[:, None], shape.other)
    sizes = np.abs(left) @ np.abs(right).transpose(0, 2, 1)
    rows, columns = result_places(shape)
    bound = (shape.k + 1) * 2.0**-24 * (sizes[0][rows, columns] + np.abs(c))
    assert (np.abs(found.astype(np.float64) - wanted) <= bound).all()


@pytest.mark.parametrize("row", SHAPED, ids=lambda row: row.name)
def test_defined_lanes(row: Any) -> None:
    """An element of D needs its row of A, its column of B and its element of C."""
    rng = np.random.default_rng(5)
    line = line_of(row, PLACES["apart"])
    for lost in ("none", "a", "b", "c", "all"):
        wave = Wave(True)
        _, _, _, target = fill(wave, row, line, rng, whole=True)
        places = dict(zip("abc", program()[0].instructions[program()[1][line]].operands[1:], strict=True))
        for name in "abc":
            if lost in (name, "all"):
                some = wave.defined[wave.of(places[name])]
                some[rng.integers(len(some))] &= ~np.uint64(1 << int(rng.integers(64)))
        known = [wave.defined[wave.of(places[name])][:, None].copy() for name in "abc"]
        wave.run(line)
        wanted = defined(row.matrix, *known)[:, 0]
        np.testing.assert_array_equal(wave.defined[target], wanted, f"{line}: {lost}")
        assert (wanted == layout.ALL).all() == (lost == "none")


def test_denormals_and_special_values() -> None:
    """bf16 denormals count, and infinities and NaN travel, as in the reference."""
    row = ROWS["v_mfma_f32_16x16x32_bf16"]
    line = line_of(row, PLACES["constant"])
    wave = Wave(True)
    _, _, c, target = fill(wave, row, line, np.random.default_rng(6), whole=True)
    place_a, place_b = wave.of(Operand("v", 0, 4)), wave.of(Operand("v", 8, 4))
    wave.registers[place_a], wave.registers[place_b] = 0, 0x3F803F80
    wave.registers[place_a][0, 0] = 0x00010001
    wave.registers[place_a][0, 1] = 0x00007F80
    wave.registers[place_a][0, 2] = 0x00007FC0
    a, b = wave.registers[place_a].copy(), wave.registers[place_b].copy()
    wave.registers[target] = 0
    wave.run(line)
    found = wave.registers[target].view(np.float32)
    wanted = reference(row.matrix, a, b, c)
    np.testing.assert_array_equal(found, wanted)
    assert np.isinf(found).any() and np.isnan(found).any()
