"""Handlers of MFMA: D = A · B + C with fused multiply-adds in float32 (integers in int32).

A and B are converted once, into two arrays [k slot][row or column] on the stack: lane l of a register holds row
l mod M, so that the lanes of a register, cut into pieces of M, are such rows already (layouts: sim/matrix.py). Then
four rows at a time, an element of A in all lanes times sixteen columns of B. Every product is exact and every sum
rounded, one k after another; the order on the hardware is not documented.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from spconv_compiler.sim.errors import UnsupportedError
from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.native import layout
from spconv_compiler.sim.native.emit import CHUNK, POINTER, Handler, Module, Value, like, vector_type
from spconv_compiler.sim.native.family import Family, Places, side
from spconv_compiler.sim.rows import MatrixShape, Row

_LANE_BYTES = layout.VECTOR_BYTES
_ALL = -1


@dataclasses.dataclass(frozen=True)
class Element:
    """How elements of A and B lie in a register.

    Attributes:
        parts: elements in 32 bits. sum: type of the accumulators.
        convert: from 16 lanes of i32 and the number of a part to 16 values of type `sum`.
    """

    parts: int
    sum: str
    convert: Callable[[Handler, Value, int], Value]


def _bf16(h: Handler, words: Value, part: int) -> Value:
    if part == 0:
        bits = h.binary("shl", words, h.constant(16, words.type))
    else:
        bits = h.binary("and", words, h.constant(0xFFFF0000, words.type))
    return h.convert("bitcast", bits, like(words.type, "f32"))


def _f16(h: Handler, words: Value, part: int) -> Value:
    shifted = words if part == 0 else h.binary("lshr", words, h.constant(16, words.type))
    halves = h.convert("bitcast", h.convert("trunc", shifted, like(words.type, "i16")), like(words.type, "f16"))
    return h.convert("fpext", halves, like(words.type, "f32"))


def _f32(h: Handler, words: Value, part: int) -> Value:
    return h.convert("bitcast", words, like(words.type, "f32"))


def _i8(h: Handler, words: Value, part: int) -> Value:
    up = h.binary("shl", words, h.constant(24 - 8 * part, words.type))
    return h.binary("ashr", up, h.constant(24, words.type))


def _float8(mantissa: int, bias: int, largest: int) -> Callable[[Handler, Value, int], Value]:
    """A format of eight bits; magnitudes above `largest` are NaN, one less is infinity where the format has it."""

    def convert(h: Handler, words: Value, part: int) -> Value:
        type_, floats = words.type, like(words.type, "f32")
        byte = h.binary("lshr", words, h.constant(8 * part, type_)) if part else words
        size = h.binary("and", byte, h.constant(0x7F, type_))
        sign = h.binary("shl", h.binary("and", byte, h.constant(0x80, type_)), h.constant(24, type_))
        # As a float32 of the same fields it is too small by the difference of the biases; denormals come out right.
        raw = h.convert("bitcast", h.binary("shl", size, h.constant(23 - mantissa, type_)), floats)
        scaled = h.binary("fmul", raw, h.constant(2.0 ** (127 - bias), floats))
        bits = h.convert("bitcast", scaled, type_)
        nan = h.compare("ugt", size, h.constant(largest, type_))
        if mantissa == 2:
            infinite = h.compare("eq", size, h.constant(largest, type_))
            bits = h.select(infinite, h.constant(0x7F800000, type_), bits)
        bits = h.select(nan, h.constant(0x7FC00000, type_), bits)
        return h.convert("bitcast", h.binary("or", bits, sign), floats)

    return convert


ELEMENTS = {
    "bf16": Element(2, "f32", _bf16),
    "f16": Element(2, "f32", _f16),
    "f32": Element(1, "f32", _f32),
    "i8": Element(4, "i32", _i8),
    "fp8": Element(4, "f32", _float8(3, 7, 0x7E)),
    "bf8": Element(4, "f32", _float8(2, 15, 0x7C)),
}


def _elements(shape: MatrixShape) -> tuple[Element, Element]:
    """Of A and B."""
    return ELEMENTS[shape.element], ELEMENTS[shape.other or shape.element]


def supported(shape: MatrixShape | None) -> bool:
    """Whether this module has handlers for a shape: not for scaled ones, float64, and elements of other sizes."""
    if shape is None or shape.scaled or shape.m != shape.n or shape.m not in (16, 32):
        return False
    if not {shape.element, shape.other or shape.element} <= set(ELEMENTS):
        return False
    first, second = _elements(shape)
    # A slot of A must be the slot of B with the same k.
    return first.parts == second.parts and first.sum == second.sum == shape.result


def _registers(shape: MatrixShape) -> tuple[int, int]:
    """Registers of A (and B) and of D."""
    return shape.m * shape.k // layout.LANES // _elements(shape)[0].parts, shape.m * shape.n // layout.LANES


def _stack(h: Handler, size: int) -> Value:
    count = h.constant(size, "i32")
    return h.op(f"llvm.alloca {count} x i8 {{alignment = 64 : i64}} : (i32) -> {POINTER}", POINTER)


def _convert_operand(h: Handler, offset: Value, element: Element, registers: int) -> Value:
    """All elements of A or B as accumulator values, on the stack: [register, part, lane]."""
    room = _stack(h, registers * element.parts * _LANE_BYTES)
    for register in range(registers):
        with h.lanes() as place:
            words = h.load(h.address(h.context, offset, place, register * _LANE_BYTES), vector_type("i32"), 64)
            for part in range(element.parts):
                slot = (register * element.parts + part) * _LANE_BYTES
                h.store(element.convert(h, words, part), h.address(room, place, slot), 64)
    return room


def _multiply_add(h: Handler, a: Value, b: Value, c: Value) -> Value:
    if c.type == vector_type("f32"):
        return h.intrinsic("fma", c.type, a, b, c)
    return h.binary("add", c, h.binary("mul", a, b))


def _row_block(h: Handler, shape: MatrixShape, block: Value, column: int) -> tuple[Value, Value]:
    """(place of the first of four rows in a row of A, place of their sums in D), bytes; block: i64.

    Rows 4i … 4i + 3 lie in four registers that follow each other, at the same lanes.
    """
    rows = h.binary("shl", block, h.constant(4, "i64"))
    if shape.m == 16:
        return rows, h.binary("mul", block, h.constant(4 * CHUNK, "i64"))
    odd = h.binary("shl", h.binary("and", block, h.constant(1, "i64")), h.constant(7, "i64"))
    registers = h.binary("shl", h.binary("lshr", block, h.constant(1, "i64")), h.constant(10, "i64"))
    place = h.binary("add", registers, odd)
    return rows, h.binary("add", place, h.constant(4 * CHUNK * column, "i64"))


def _products(h: Handler, shape: MatrixShape, a: Value, b: Value, addend: Value | None, start: Value, d: Value) -> None:
    """Writes D. addend: where C lies, or None for `start` in every element."""
    first, second = _elements(shape)
    registers, _ = _registers(shape)
    row_bytes = 4 * shape.m
    slots = registers * first.parts * layout.LANES // shape.m
    sums = vector_type(second.sum)
    for column in range(shape.n // CHUNK):
        with h.loop(shape.m // 4) as blocks:
            row, place = _row_block(h, shape, blocks.index, column)
            if addend is None:
                initial = [start] * 4
            else:
                initial = [h.load(h.address(addend, place, v * _LANE_BYTES), sums, 64) for v in range(4)]
            with h.loop(slots * row_bytes, row_bytes, initial) as state:
                columns = h.load(h.address(b, state.index, 4 * CHUNK * column), sums, 64)
                for v in range(4):
                    value = h.load(h.address(a, state.index, row, 4 * v), second.sum)
                    state.nexts.append(_multiply_add(h, h.broadcast(value), columns, state.values[v]))
            for v in range(4):
                h.store(state.results[v], h.address(d, place, v * _LANE_BYTES), 64)


def _whole(h: Handler, masks: Sequence[Value], size: int) -> Value:
    """Bits of the rows of A, or columns of B, of which every element is defined, from masks of lanes; i64."""
    total = masks[0]
    for mask in masks[1:]:
        total = h.binary("and", total, mask)
    shift = layout.LANES // 2
    while shift >= size:
        total = h.binary("and", total, h.binary("lshr", total, h.constant(shift, "i64")))
        shift //= 2
    return h.binary("and", total, h.constant((1 << size) - 1, "i64"))


def _defined(h: Handler, shape: MatrixShape, a: Sequence[Value], b: Sequence[Value]) -> list[Value]:
    """For each register of D the lanes whose row of A and column of B are defined, i64."""
    rows, columns = _whole(h, a, shape.m), _whole(h, b, shape.n)
    masks = []
    for v in range(_registers(shape)[1]):
        total = h.constant(0, "i64")
        for piece in range(layout.LANES // shape.n):
            row = 4 * piece + v if shape.m == 16 else 8 * (v // 4) + 4 * piece + v % 4
            bit = h.binary("and", h.binary("lshr", rows, h.constant(row, "i64")), h.constant(1, "i64"))
            lanes = h.binary("mul", bit, h.binary("shl", columns, h.constant(piece * shape.n, "i64")))
            total = h.binary("or", total, lanes)
        masks.append(total)
    return masks


def _set_defined(h: Handler, shape: MatrixShape, a: Value, b: Value, c: Value | None, d: Value) -> None:
    """The lanes of D that are defined; c: None where C is a constant."""
    if not h.build.checks:
        return
    count, results = _registers(shape)

    def masks(offset: Value, number: int) -> list[Value]:
        places = [h.binary("add", offset, h.constant(i * _LANE_BYTES, "i64")) for i in range(number)]
        return [h.vector_defined(place) for place in places]

    of_a, of_b = masks(a, count), masks(b, count)
    of_c = [h.constant(_ALL, "i64")] * results if c is None else masks(c, results)
    total = of_a[0]
    for mask in [*of_a[1:], *of_b]:
        total = h.binary("and", total, mask)
    targets = [h.binary("add", d, h.constant(i * _LANE_BYTES, "i64")) for i in range(results)]
    for target, mask in zip(targets, of_c, strict=True):
        h.set_vector_defined(target, mask, ignore_exec=True)
    with h.when(h.compare("ne", total, h.constant(_ALL, "i64")), likely=False):
        for target, mask, found in zip(targets, of_c, _defined(h, shape, of_a, of_b), strict=True):
            h.set_vector_defined(target, h.binary("and", mask, found), ignore_exec=True)


def emit(module: Module, row: Row, operands: str, name: str) -> None:
    """The handler of an MFMA; operands: "V" where C is in registers, "S" where it is a constant. EXEC is ignored."""
    shape = row.matrix
    if shape is None or not supported(shape):
        raise UnsupportedError(f"{row.name}: the native engine has no handler for {shape}")
    h = Handler(module, name)
    first, second = _elements(shape)
    count, results = _registers(shape)
    d, a, b, c = (h.field(number) for number in range(4))
    constant = operands == "S"
    _set_defined(h, shape, a, b, None if constant else c, d)
    room_a, room_b = _convert_operand(h, a, first, count), _convert_operand(h, b, second, count)
    target = h.address(h.context, d)
    if constant:
        start = h.broadcast(h.convert("bitcast", h.scalar(c), second.sum) if second.sum == "f32" else h.scalar(c))
        _products(h, shape, room_a, room_b, None, start, target)
    else:
        # D is written while C is read: where they are not the same registers, C is set aside first.
        aside, given = _stack(h, results * _LANE_BYTES), h.address(h.context, c)
        apart = h.compare("ne", c, d)
        size = h.constant(results * _LANE_BYTES, "i64")
        with h.when(apart):
            h.line(
                f'  "llvm.intr.memcpy"({aside}, {given}, {size}) <{{isVolatile = false}}> : '
                f"({POINTER}, {POINTER}, i64) -> ()"
            )
        _products(h, shape, room_a, room_b, h.select(apart, aside, given), size, target)
    h.done()


def _fields(instruction: Instruction, places: Places) -> Sequence[int]:
    target, a, b, c = instruction.operands[:4]
    return [places.vector(target), places.vector(a), places.vector(b), places.source(c, c.type or "f32")]


FAMILIES = (
    Family(
        kinds=("mfma",),
        shapes=lambda row: ("V", "S") if supported(row.matrix) else (),
        shape=lambda instruction: side(instruction.operands[3]),
        fields=_fields,
        emit=emit,
    ),
)
