"""Handlers of MFMA: D = A · B + C with fused multiply-adds in float32 (integers in int32, scaled elements in float64).

A is converted once, into an array [element of a lane, lane] in the context, where the MFMAs behind it find it that
have the same A; so is B, on the stack, unless converting is as cheap as loading. Lane l of a register holds row (of B:
column) l mod M: the lanes of a register, cut into pieces of M, are rows of one k (layouts: sim/matrix.py). Then some
rows at a time, an element of A in all lanes times sixteen columns of B. Every product is exact and every sum rounded,
one k after another; the order on the hardware is not documented.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from spconv_compiler.sim.cfg import build_blocks, registers_of, split_operands
from spconv_compiler.sim.errors import UnsupportedError
from spconv_compiler.sim.instruction import Instruction, Operand
from spconv_compiler.sim.native import layout
from spconv_compiler.sim.native.elements import ELEMENTS, Element
from spconv_compiler.sim.native.emit import (
    CHUNK,
    POINTER,
    Handler,
    Module,
    Value,
    bits_of,
    element_of,
    like,
    vector_type,
)
from spconv_compiler.sim.native.family import Family, Places, side
from spconv_compiler.sim.native.fma import add_products, in_place
from spconv_compiler.sim.rows import MatrixShape, Row

_LANE_BYTES = layout.VECTOR_BYTES
_ALL = -1
# Rows of D that are worked on together, of 16: as many sums as registers of the host can hold.
_BLOCKS = (6, 5, 5)
# In a shape: A has stood in MATRIX_ROOM since an MFMA before.
KEPT = "k"
# MFMAs that kernels issue several at a time with one A.
_COMMON = ("v_mfma_f32_16x16x32_bf16", "v_mfma_f32_16x16x32_f16", "v_mfma_f32_16x16x4_f32")


def _elements(shape: MatrixShape) -> tuple[Element, Element]:
    """Of A and B."""
    return ELEMENTS[shape.element], ELEMENTS[shape.other or shape.element]


def supported(shape: MatrixShape | None) -> bool:
    """Whether this module has handlers for a shape."""
    if shape is None or shape.m != shape.n or shape.m not in (16, 32):
        return False
    if not {shape.element, shape.other or shape.element} <= set(ELEMENTS):
        return False
    first, second = _elements(shape)
    return first.sum == second.sum == shape.result


def _sum(shape: MatrixShape) -> str:
    """Type of the sums: scaled products leave the range of float32."""
    return "f64" if shape.scaled else _elements(shape)[1].sum


def _held(shape: MatrixShape) -> int:
    """Elements of A, and of B, in a lane."""
    return shape.m * shape.k // layout.LANES


def registers(shape: MatrixShape) -> tuple[int, int, int]:
    """Registers of A, B and D."""
    first, second = (_held(shape) * element.bits // 32 for element in _elements(shape))
    return first, second, shape.m * shape.n // layout.LANES


def _stack(h: Handler, size: int) -> Value:
    count = h.constant(size, "i32")
    return h.op(f"llvm.alloca {count} x i8 {{alignment = 64 : i64}} : (i32) -> {POINTER}", POINTER)


Scale = Callable[[Value], Value]


def _convert_operand(h: Handler, offset: Value, element: Element, count: int, room: Value, scale: Scale | None) -> None:
    """`count` elements of every lane of A or B as accumulator values, to memory: [element, lane].

    scale: from the byte offset of lanes in a register to their factors, float64.
    """
    type_, wide = vector_type("i32"), 1 if scale is None else 2
    # Elements come in groups of whole registers.
    group_registers = 1 if 32 % element.bits == 0 else 3
    group = 32 * group_registers // element.bits
    with h.loop(count // group, rolled=True) as number, h.lanes() as place:
        first = h.binary("mul", number.index, h.constant(group_registers * _LANE_BYTES, "i64"))
        words = [
            h.load(h.address(h.context, offset, first, place, each * _LANE_BYTES), type_, 64)
            for each in range(group_registers)
        ]
        start = h.binary("mul", number.index, h.constant(group * wide * _LANE_BYTES, "i64"))
        target = h.address(room, start, *[place] * wide)
        factor = None if scale is None else scale(place)
        for part in range(group):
            value = element.convert(h, *_code(h, words, part, element.bits))
            if factor is not None:
                value = h.binary("fmul", h.convert("fpext", value, factor.type), factor)
            h.store(value, h.address(target, part * wide * _LANE_BYTES), 64)


def _code(h: Handler, words: Sequence[Value], number: int, bits: int) -> tuple[Value, int]:
    """(words, part of them) with an element of a group of registers."""
    if 32 % bits == 0:
        return words[0], number
    at, type_ = number * bits % 32, words[0].type
    found = h.binary("lshr", words[number * bits // 32], h.constant(at, type_))
    if at + bits > 32:
        upper = h.binary("shl", words[number * bits // 32 + 1], h.constant(32 - at, type_))
        found = h.binary("or", found, upper)
    return found, 0


def _scale(h: Handler, field: int) -> Scale:
    """The factors of lanes: 2 to the power of a byte of theirs less 127; the byte 255 is NaN."""
    offset, shift = h.field(field), h.field(field + 2, "i32")

    def factors(place: Value) -> Value:
        words = h.vector(offset, place)
        code = h.binary("and", h.binary("lshr", words, h.broadcast(shift)), h.constant(0xFF, words.type))
        wide = h.convert("zext", code, like(code.type, "i64"))
        # A float64 of that exponent has no bits besides.
        bits = h.binary("shl", h.binary("add", wide, h.constant(1023 - 127, wide.type)), h.constant(52, wide.type))
        nan = h.compare("eq", wide, h.constant(255, wide.type))
        bits = h.select(nan, h.constant(0x7FF8 << 48, wide.type), bits)
        return h.convert("bitcast", bits, like(bits.type, "f64"))

    return factors


@dataclasses.dataclass(frozen=True)
class _Problem:
    """Where the operands of one MFMA lie: pointers.

    Attributes:
        a: converted. b: converted, or as it lies in its registers. addend: C, or None for `start` in every element.
    """

    shape: MatrixShape
    a: Value
    b: Value
    addend: Value | None
    start: Value | None
    d: Value


def _block(h: Handler, problem: _Problem, rows: Value, place: Value | None, places: Sequence[int], column: int) -> None:
    """Some rows of D, CHUNK columns of them.

    rows: i64, number of the first row. place, places: bytes from the start of D to all of them, and to each.
    """
    sum_ = _sum(problem.shape)
    sums, unit = vector_type(sum_), bits_of(sum_) // 8
    moved = [] if place is None else [place]
    first = h.address(problem.a, h.binary("mul", rows, h.constant(unit, "i64")))
    initial = []
    for each in places:
        if problem.addend is None:
            assert problem.start is not None
            value = problem.start
        else:
            value = h.load(h.address(problem.addend, *moved, each), vector_type(_stored(sum_)), 64)
        initial.append(h.convert("fpext", value, sums) if sum_ == "f64" else value)
    found = (add_products if sum_ == "f32" else _add_products)(h, problem.shape, first, problem.b, initial, column)
    for result, each in zip(found, places, strict=True):
        stored = h.convert("fptrunc", result, vector_type("f32")) if sum_ == "f64" else result
        h.store(stored, h.address(problem.d, *moved, each), 64)


def _stored(sum_: str) -> str:
    """Type of C and D."""
    return "f32" if sum_ == "f64" else sum_


def _add_products(
    h: Handler, shape: MatrixShape, a: Value, b: Value, initial: Sequence[Value], column: int
) -> list[Value]:
    """The sums of some rows, from where their first row of A stands; of integers and float64."""
    type_ = initial[0].type
    unit = bits_of(type_) // 8
    with h.loop(_held(shape) * layout.LANES * unit, shape.n * unit, initial) as slot:
        columns = h.load(h.address(b, slot.index, CHUNK * column * unit), type_, 64)
        for row, total in enumerate(slot.values):
            value = h.broadcast(h.load(h.address(a, slot.index, row * unit), element_of(type_)))
            if element_of(type_) == "i32":
                slot.nexts.append(h.binary("add", total, h.binary("mul", value, columns)))
            else:
                slot.nexts.append(h.intrinsic("fma", type_, value, columns, total))
    return slot.results


def _products(h: Handler, problem: _Problem) -> None:
    """Writes D."""
    shape = problem.shape
    if shape.m == 16:
        first = 0
        for count in _BLOCKS:
            places = [row // 4 * 4 * CHUNK + row % 4 * _LANE_BYTES for row in range(first, first + count)]
            _block(h, problem, h.constant(first, "i64"), None, places, 0)
            first += count
        return
    for column in range(shape.n // CHUNK):
        # Rows 4i … 4i + 3 lie in four registers that follow each other, at the same lanes.
        with h.loop(shape.m // 4) as blocks:
            rows = h.binary("shl", blocks.index, h.constant(2, "i64"))
            odd = h.binary("shl", h.binary("and", blocks.index, h.constant(1, "i64")), h.constant(7, "i64"))
            upper = h.binary("shl", h.binary("lshr", blocks.index, h.constant(1, "i64")), h.constant(10, "i64"))
            places = [v * _LANE_BYTES + 4 * CHUNK * column for v in range(4)]
            _block(h, problem, rows, h.binary("add", upper, odd), places, column)


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
    for v in range(registers(shape)[2]):
        total = h.constant(0, "i64")
        for piece in range(layout.LANES // shape.n):
            row = 4 * piece + v if shape.m == 16 else 8 * (v // 4) + 4 * piece + v % 4
            bit = h.binary("and", h.binary("lshr", rows, h.constant(row, "i64")), h.constant(1, "i64"))
            lanes = h.binary("mul", bit, h.binary("shl", columns, h.constant(piece * shape.n, "i64")))
            total = h.binary("or", total, lanes)
        masks.append(total)
    return masks


def _set_defined(
    h: Handler, shape: MatrixShape, a: Value, b: Value, c: Value | None, d: Value, scales: Sequence[Value]
) -> None:
    """The lanes of D that are defined; c: None where C is a constant; scales: lanes where those of A and B are."""
    if not h.build.checks:
        return
    of_a_count, of_b_count, results = registers(shape)

    def masks(offset: Value, number: int) -> list[Value]:
        places = [h.binary("add", offset, h.constant(i * _LANE_BYTES, "i64")) for i in range(number)]
        return [h.vector_defined(place) for place in places]

    of_a, of_b = masks(a, of_a_count) + list(scales[:1]), masks(b, of_b_count) + list(scales[1:])
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


def _beside(h: Handler, offset: Value, count: int, d: Value, results: int, *, same: bool = False) -> Value:
    """Pointer to registers, or to a copy of those that D overlaps: D is written while they are read.

    same: they may be the registers of D.
    """
    distance = h.binary("sub", offset, d)
    shifted = h.binary("add", distance, h.constant((count - 1) * _LANE_BYTES, "i64"))
    meets = h.compare("ult", shifted, h.constant((count + results - 1) * _LANE_BYTES, "i64"))
    if same:
        meets = h.binary("and", meets, h.compare("ne", distance, h.constant(0, "i64")))
    given, aside = h.address(h.context, offset), _stack(h, count * _LANE_BYTES)
    with h.when(meets, likely=False):
        size = h.constant(count * _LANE_BYTES, "i64")
        h.line(
            f'  "llvm.intr.memcpy"({aside}, {given}, {size}) <{{isVolatile = false}}> : '
            f"({POINTER}, {POINTER}, i64) -> ()"
        )
    return h.select(meets, aside, given)


def emit(module: Module, row: Row, operands: str, name: str) -> None:
    """The handler of an MFMA; EXEC is ignored.

    operands: "V" where C is in registers, "S" where it is a constant; then perhaps KEPT.
    """
    shape = row.matrix
    if shape is None or not supported(shape):
        raise UnsupportedError(f"{row.name}: the native engine has no handler for {shape}")
    h = Handler(module, name)
    first, second = _elements(shape)
    _, of_b, results = registers(shape)
    d, a, b, c = (h.field(number) for number in range(4))
    constant, fields = operands[0] == "S", (4, 5) if shape.scaled else ()
    known = [h.vector_defined(h.field(number)) for number in fields]
    _set_defined(h, shape, a, b, None if constant else c, d, known)
    scales: list[Scale | None] = [_scale(h, number) for number in fields] or [None, None]
    room_bytes = _held(shape) * layout.LANES * bits_of(_sum(shape)) // 8
    room = _stack(h, room_bytes) if room_bytes > layout.MATRIX_BYTES else h.address(h.context, layout.MATRIX_ROOM)
    if KEPT not in operands:
        _convert_operand(h, a, first, _held(shape), room, scales[0])
    if in_place(shape):
        place_b = _beside(h, b, of_b, d, results)
    else:
        place_b = _stack(h, room_bytes)
        _convert_operand(h, b, second, _held(shape), place_b, scales[1])
    target = h.address(h.context, d)
    if constant:
        value = h.scalar(c) if second.sum == "i32" else h.convert("bitcast", h.scalar(c), second.sum)
        _products(h, _Problem(shape, room, place_b, None, h.broadcast(value), target))
    else:
        addend = _beside(h, c, results, d, results, same=True)
        _products(h, _Problem(shape, room, place_b, addend, None, target))
    h.done()


def _shape(instruction: Instruction) -> str:
    if any(scale.kind != "v" for scale in instruction.operands[4:]):
        raise UnsupportedError(f"{instruction}: the native engine takes scales from vector registers only")
    return side(instruction.operands[3])


def _fields(instruction: Instruction, places: Places) -> Sequence[int]:
    """D, A, B, C, then the places of the scales and how far to shift them."""
    target, a, b, c, *scales = instruction.operands
    fields = [places.vector(target), places.vector(a), places.vector(b), places.source(c, c.type or "f32")]
    if scales:
        fields += [places.vector(scale) for scale in scales]
        fields += [8 * instruction.modifiers.get(name, 0) for name in ("scale_a", "scale_b")]
    return fields


def kept_operands(instructions: Sequence[Instruction]) -> Iterator[int]:
    """Numbers of the MFMAs whose A stands in MATRIX_ROOM: that of the MFMA before, unchanged since."""
    for block in build_blocks(instructions):
        held: tuple[str, MatrixShape | None, Operand] | None = None
        for index in range(block.start, block.end):
            item = instructions[index]
            if item.row.kind == "mfma":
                used = item.row.name, item.row.matrix, item.operands[1]
                if used == held:
                    yield index
                held = used if item.row.matrix is not None and not item.row.matrix.scaled else None
            if held is not None:
                written = {register for operand in split_operands(item)[0] for register in registers_of(operand)}
                if not written.isdisjoint(registers_of(held[2])):
                    held = None


def _shapes(row: Row) -> Sequence[str]:
    if not supported(row.matrix):
        return ()
    return ("V", "S", "V" + KEPT, "S" + KEPT) if row.name in _COMMON else ("V", "S")


FAMILIES = (
    Family(
        kinds=("mfma",),
        shapes=_shapes,
        shape=_shape,
        fields=_fields,
        emit=emit,
    ),
)
