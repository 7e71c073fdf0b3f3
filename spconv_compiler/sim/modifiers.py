"""Rows with the modifiers of one instruction worked into their meaning, so that executing them needs no special case.

Source modifiers act on bits: neg flips a sign, abs clears it, op_sel and SDWA choose a part, sext extends it. Result
modifiers: clamp, the choice of a half (op_sel) or part (SDWA). Results that leave bits of the old value in place read
it as first source (`Row.tied`). DPP does not change a meaning: it moves the first source between lanes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from spconv_compiler.sim import algebra as al
from spconv_compiler.sim.algebra import Array
from spconv_compiler.sim.floats import DOUBLE, I32, SINGLE, U32, U64
from spconv_compiler.sim.rows import LaneMove, Row

FLOAT_SOURCES = ("f16", "f32", "f64", "b32")
_HALVES = ("f16", "u16", "i16")
DWORD, PAD, SEXT, PRESERVE = 6, 0, 1, 2


@dataclasses.dataclass(frozen=True)
class Parts:
    """SDWA: which part of a register is meant: 0 to 3 a byte, 4 and 5 a half, 6 all of it.

    Attributes:
        sources: parts of the sources; signed: bits, one a source: extended with the sign.
        result: part of the result, or None for lane masks; unused: what the rest becomes (PAD, SEXT, PRESERVE).
    """

    sources: tuple[int, ...]
    signed: int
    result: int | None
    unused: int


@dataclasses.dataclass(frozen=True)
class Modifiers:
    """All modifiers of an instruction; neg, abs, op_sel, op_sel_hi, neg_hi: a bit for each source (8: the result)."""

    neg: int = 0
    abs: int = 0
    clamp: bool = False
    op_sel: int = 0
    op_sel_hi: int = 7
    neg_hi: int = 0
    parts: Parts | None = None
    lanes: LaneMove | None = None


NONE = Modifiers()
# By name and modifiers: the hash of a whole row would cost more than the rest of decoding.
_derived: dict[tuple[str, Modifiers], Row] = {}


def derive(row: Row, modifiers: Modifiers = NONE) -> Row:
    """The row of the tables whose meaning contains the modifiers; the row itself if there are none."""
    found = _derived.get((row.name, modifiers))
    if found is None:
        found = _derived[row.name, modifiers] = _derive(row, modifiers)
    return found


def _derive(row: Row, modifiers: Modifiers) -> Row:
    if row.packed in ("16", "32", "move"):
        changed = _packed(row, modifiers)
    elif row.packed:
        changed = _mixed(row, modifiers)
    else:
        changed = _plain(row, modifiers)
    if modifiers.lanes is not None:
        changed = dataclasses.replace(changed, lanes=modifiers.lanes)
    text = _text(modifiers)
    return dataclasses.replace(changed, variant=text) if text else changed


def _text(modifiers: Modifiers) -> str:
    """A short name of the modifiers, fit for a symbol."""
    text = ""
    default = Modifiers()
    for mark, name in (
        ("n", "neg"),
        ("b", "abs"),
        ("c", "clamp"),
        ("o", "op_sel"),
        ("h", "op_sel_hi"),
        ("m", "neg_hi"),
    ):
        value = getattr(modifiers, name)
        if value != getattr(default, name):
            text += f"{mark}{int(value)}"
    if modifiers.parts is not None:
        parts = modifiers.parts
        text += f"s{''.join(map(str, parts.sources))}x{parts.signed}d{parts.result}u{parts.unused}"
    if modifiers.lanes is not None:
        move = modifiers.lanes
        text += f"l{move.control:x}r{move.rows:x}k{move.banks:x}z{int(move.zero)}"
    return text


# One operation on whole operands.


def _plain(row: Row, modifiers: Modifiers) -> Row:
    encoded = row.sources[1:] if row.tied else row.sources
    types, readers = [], []
    for index, type_ in enumerate(encoded):
        type_, reader = _source(type_, index, modifiers)
        types.append(type_)
        readers.append(reader)
    kind = row.results[0] if row.results else ""
    high = bool(modifiers.op_sel & 8)
    parts = modifiers.parts
    places = parts is not None and parts.result is not None and (parts.result, parts.unused) != (DWORD, PAD)
    keeps_part = parts is not None and parts.result is not None and parts.unused == PRESERVE
    merges = kind == "h16" or high or keeps_part
    if not (any(readers) or modifiers.clamp or merges or places):
        return row
    operation = row.saturated if modifiers.clamp and kind not in ("f16", "f32", "f64") else row.meaning
    assert operation is not None
    clamp = _clamp(kind) if modifiers.clamp and operation is row.meaning else None
    already_tied = row.tied

    def meaning(*sources: Array) -> Any:
        given = list(sources)
        old = given.pop(0) if merges or already_tied else None
        values = [reader(value) if reader else value for reader, value in zip(readers, given, strict=True)]
        found = operation(_typed(kind, old) if merges else old, *values) if already_tied else operation(*values)
        result = found[0] if isinstance(found, tuple) else found
        if clamp:
            result = clamp(result)
        if parts is not None and parts.result is not None:
            result = _place(_raw(kind, result), old, parts)
        elif merges:
            result = _merge(result, old, high)
        return (result, *found[1:]) if isinstance(found, tuple) else result

    results = ("u32", *row.results[1:]) if places or merges else row.results
    tied = merges or already_tied
    old_type = ("u32",) if merges else row.sources[:1]
    return dataclasses.replace(
        row,
        results=results,
        sources=(*old_type, *types) if tied else tuple(types),
        meaning=meaning,
        tied=tied,
        keeps=row.keeps and not high,
    )


def _source(type_: str, index: int, modifiers: Modifiers) -> tuple[str, Callable[[Array], Array] | None]:
    """(type that is read, what becomes of it or None)."""
    neg, absolute = modifiers.neg >> index & 1, modifiers.abs >> index & 1
    chosen = modifiers.op_sel >> index & 1 and type_ in _HALVES
    part = DWORD if modifiers.parts is None or index > 1 else modifiers.parts.sources[index]
    signed = modifiers.parts is not None and modifiers.parts.signed >> index & 1
    if not (neg or absolute or chosen or part != DWORD or signed):
        return type_, None
    wide = type_ == "f64"
    word = U64 if wide else U32
    sign = word(1 << (63 if wide else 15 if type_ == "f16" else 31))

    def read(value: Array) -> Array:
        if chosen:
            value = value >> U32(16)
        if part != DWORD or signed:
            value = _part(value, part, bool(signed), type_ in _HALVES)
        if absolute:
            value = value & ~sign
        if neg:
            value = value ^ sign
        return _typed(type_, value)

    return ("u64" if wide else "u32"), read


def _typed(type_: str, bits: Array) -> Array:
    """Bits in the carrier of a type."""
    if type_ == "f32":
        return al.as_f32(bits)
    if type_ == "f64":
        return al.as_f64(bits)
    return al.as_i32(bits) if type_ == "i32" else bits


def _raw(type_: str, value: Array) -> Array:
    return al.bits_of(value) if type_ in ("f32", "i32") else value


def _part(value: Array, part: int, signed: bool, half: bool) -> Array:
    """A byte or half of a register; extended with its sign if asked for."""
    low, width = (8 * part, 8) if part < 4 else (16 * (part - 4), 16) if part < DWORD else (0, 16 if half else 32)
    if signed:
        return al.as_u32(al.as_i32(value << U32(32 - width - low)) >> I32(32 - width))
    return value >> U32(low) & U32((1 << width) - 1)


def _place(result: Array, old: Array | None, parts: Parts) -> Array:
    """The result in its part of the register."""
    part = parts.result
    assert part is not None
    if part == DWORD:
        return result
    low, width = (8 * part, 8) if part < 4 else (16 * (part - 4), 16)
    mask = U32((1 << width) - 1)
    value = (result & mask) << U32(low)
    if parts.unused == PRESERVE:
        assert old is not None
        return old & ~(mask << U32(low)) | value
    if parts.unused == SEXT:
        return al.as_u32(al.as_i32(result << U32(32 - width)) >> I32(32 - width)) << U32(low)
    return value


def _merge(result: Array, old: Array, high: bool) -> Array:
    """A 16-bit result in one half of the old value."""
    if high:
        return old & U32(0xFFFF) | result << U32(16)
    return old & U32(0xFFFF0000) | result & U32(0xFFFF)


def _clamp(kind: str) -> Callable[[Array], Array]:
    if kind == "f32":
        return SINGLE.clamped
    if kind == "f64":
        return DOUBLE.clamped
    return lambda bits: al.f16_bits(SINGLE.clamped(al.from_f16(bits)))


# Two halves at once.


def _packed(row: Row, modifiers: Modifiers) -> Row:
    operation = row.saturated if modifiers.clamp and row.results[0] == "pki" else row.meaning
    assert operation is not None
    wide = row.results[0] == "p32"
    # A source of which both results take the lower half is read no further: its upper half may be undefined.
    only_low = [wide and not (modifiers.op_sel | modifiers.op_sel_hi) >> i & 1 for i in range(len(row.sources))]
    clamp = _clamp("f32" if wide else "f16") if modifiers.clamp and operation is row.meaning else None

    def value(source: Array, index: int, upper: int, negated: int) -> Array:
        chosen = upper >> index & 1
        if wide:
            bits = source if only_low[index] else al.high(source) if chosen else al.low(source)
            return al.as_f32(bits ^ U32(0x80000000) if negated >> index & 1 else bits)
        bits = source >> U32(16) if chosen else source & U32(0xFFFF)
        return bits ^ U32(0x8000) if negated >> index & 1 else bits

    def part(sources: tuple[Array, ...], upper: int, negated: int) -> Array:
        found = operation(*[value(source, i, upper, negated) for i, source in enumerate(sources)])
        return clamp(found) if clamp else found

    def meaning(*sources: Array) -> Array:
        low = part(sources, modifiers.op_sel, modifiers.neg)
        high = part(sources, modifiers.op_sel_hi, modifiers.neg_hi)
        return al.join(al.bits_of(low), al.bits_of(high)) if wide else low | high << U32(16)

    def move(low: Array, high: Array) -> Array:
        """v_pk_mov_b32: the low result from the first source, the high one from the second."""
        chosen = [
            al.high(source) if modifiers.op_sel >> index & 1 else al.low(source)
            for index, source in enumerate((low, high))
        ]
        return al.join(chosen[0], chosen[1])

    carrier = "u64" if wide else "u32"
    return dataclasses.replace(
        row,
        results=(carrier,),
        sources=tuple("u32" if low and row.packed != "move" else carrier for low in only_low),
        meaning=move if row.packed == "move" else meaning,
    )


def _mixed(row: Row, modifiers: Modifiers) -> Row:
    """v_fma_mix: sources are f32, or where op_sel_hi says so a half; neg_hi stands for abs."""
    assert row.meaning is not None
    operation, upper, lower = row.meaning, row.packed == "mix high", row.packed == "mix" and row.results[0] == "h16"

    def value(source: Array, index: int) -> Array:
        if modifiers.op_sel_hi >> index & 1:
            number = al.from_f16(source >> U32(16) if modifiers.op_sel >> index & 1 else source & U32(0xFFFF))
        else:
            number = al.as_f32(source)
        if modifiers.neg_hi >> index & 1:
            number = SINGLE.absolute(number)
        return SINGLE.negative(number) if modifiers.neg >> index & 1 else number

    def meaning(*sources: Array) -> Array:
        given = list(sources)
        old = given.pop(0) if upper or lower else None
        result = operation(*[value(source, index) for index, source in enumerate(given)])
        if modifiers.clamp:
            result = SINGLE.clamped(result)
        return result if old is None else _merge(al.f16_bits(result), old, upper)

    tied = upper or lower
    return dataclasses.replace(
        row,
        results=("u32",) if tied else ("f32",),
        sources=("u32",) * (len(row.sources) + tied),
        meaning=meaning,
        tied=tied,
    )
