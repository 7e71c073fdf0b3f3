"""The innermost loop of MFMA in float32, in assembly of the host: an element of A in all lanes times columns of B.

As an intrinsic in a block of many, LLVM loads the elements of A far ahead of their use and spills them. Here a turn of
the loop is one piece of assembly, with as many sums as fit into the registers. B of bf16 is converted on the way:
shifts and masks run beside the multiplications.
"""

from __future__ import annotations

from collections.abc import Sequence

from spconv_compiler.sim.native import layout
from spconv_compiler.sim.native.emit import CHUNK, Handler, Value, vector_type
from spconv_compiler.sim.rows import MatrixShape

_HALF = vector_type("f32", CHUNK // 2)
_MASK = 0xFFFF0000


def in_place(shape: MatrixShape) -> bool:
    """Whether B is read as it lies in its registers, not converted before."""
    return "bf16" in (shape.element, shape.other) and shape.result == "f32"


def add_products(
    h: Handler, shape: MatrixShape, a: Value, b: Value, initial: Sequence[Value], column: int
) -> list[Value]:
    """CHUNK columns of the sums of some rows.

    a: pointer to the rows' elements of the first k; those of the next one lie 4 · m bytes further. b: alike, or the
    registers if `in_place`. initial: the sums to start with, 16 lanes each.
    """
    halves = [half for each in initial for half in _halves(h, each)]
    raw, held = in_place(shape), shape.m * shape.k // layout.LANES
    parts = min(2, held)
    mask = h.constant(_MASK, vector_type("i32", CHUNK // 2)) if raw else None
    with h.loop(4 * layout.LANES * held, 4 * layout.LANES * parts, halves, rolled=True) as state:
        here = h.binary("lshr", state.index, h.constant(1, "i64")) if raw else state.index
        columns = h.address(b, here, 4 * CHUNK * column)
        state.nexts = _turn(
            h, shape, parts * layout.LANES // shape.n, h.address(a, state.index), columns, mask, state.values
        )
    pairs = zip(state.results[::2], state.results[1::2], strict=True)
    return [_joined(h, low, high) for low, high in pairs]


def _turn(
    h: Handler, shape: MatrixShape, slots: int, a: Value, b: Value, mask: Value | None, sums: Sequence[Value]
) -> list[Value]:
    """The products of some k that follow each other, added one after the other."""
    count = len(sums)
    low, high, element, at_a, at_b, at_mask = (f"${count + number}" for number in range(6))
    lines = []
    for slot in range(slots):
        place = 4 * shape.n * (slot if mask is None else slot % (slots // 2))
        for target, byte in ((low, place), (high, place + 32)):
            if mask is None:
                lines.append(f"vmovaps {byte}({at_b}), {target}")
            elif slot < slots // 2:
                lines += [f"vmovdqa {byte}({at_b}), {target}", f"vpslld $$16, {target}, {target}"]
            else:
                lines.append(f"vpand {byte}({at_b}), {at_mask}, {target}")
        for row in range(count // 2):
            lines.append(f"vbroadcastss {4 * (shape.m * slot + row)}({at_a}), {element}")
            lines += [f"vfmadd231ps {part}, {element}, ${2 * row + half}" for half, part in enumerate((low, high))]
    inputs = [a, b] if mask is None else [a, b, mask]
    constraints = ["=x"] * count + ["=&x"] * 3 + ["r", "r", "x"][: len(inputs)]
    constraints += [*map(str, range(count)), "~{memory}"]
    arguments = [*inputs, *sums]
    types = ", ".join(value.type for value in arguments)
    result = f"!llvm.struct<({', '.join([_HALF] * (count + 3))})>"
    found = h.op(
        f'llvm.inline_asm has_side_effects "{"; ".join(lines)}", "{",".join(constraints)}" '
        f"{', '.join(map(str, arguments))} : ({types}) -> {result}",
        result,
    )
    return [h.op(f"llvm.extractvalue {found}[{number}] : {result}", _HALF) for number in range(count)]


def _halves(h: Handler, lanes: Value) -> list[Value]:
    return [_shuffled(h, lanes, lanes, range(first, first + CHUNK // 2)) for first in (0, CHUNK // 2)]


def _joined(h: Handler, low: Value, high: Value) -> Value:
    return _shuffled(h, low, high, range(CHUNK))


def _shuffled(h: Handler, a: Value, b: Value, places: Sequence[int]) -> Value:
    type_ = vector_type("f32", len(places))
    return h.op(f"llvm.shufflevector {a}, {b} [{', '.join(map(str, places))}] : {a.type}", type_)
