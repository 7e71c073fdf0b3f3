"""Handlers of vector arithmetic, from the rows' meanings."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from spconv_compiler.sim.errors import UnsupportedError
from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.native import layout
from spconv_compiler.sim.native.emit import CHUNK, Handler, Module, Target, Value, vector_type
from spconv_compiler.sim.native.family import Family, Places, side
from spconv_compiler.sim.native.values import Lanes
from spconv_compiler.sim.rows import DWORDS, Row

# Types that a meaning takes as they are; of others it gets the raw words.
_KINDS = {"i32": "i32", "f32": "f32", "i64": "i64", "f64": "f64"}


_LETTERS = {"mask": "M", "imm32": "S"}


def encoded(row: Row) -> tuple[str, ...]:
    """Types of the sources that the instruction names; a tied one is the old value of the result."""
    return row.sources[1:] if row.tied else row.sources


def shapes(row: Row) -> Sequence[str]:
    """Mixes of vector and scalar sources that compilers choose.

    Of several scalars alone they make scalar instructions; a comparison they turn until the second source is a
    vector, as the short encoding wants it.
    """
    choices = [_LETTERS.get(type_, "VS") for type_ in encoded(row)]
    mixes = ["".join(mix) for mix in itertools.product(*choices)]
    return [mix for mix in mixes if ("V" in mix or len(mix) < 2) and ("VOPC" not in row.formats or mix[-1] == "V")]


def shape(instruction: Instruction) -> str:
    """One letter a source: V, S, or M for a mask."""
    row = instruction.row
    sources = instruction.operands[len(row.results) :]
    return "".join("M" if t == "mask" else side(o) for o, t in zip(sources, encoded(row), strict=True))


def fields(instruction: Instruction, places: Places) -> list[int]:
    """Offsets of results, then of sources."""
    types = (*instruction.row.results, *encoded(instruction.row))
    return [places.source(operand, type_) for operand, type_ in zip(instruction.operands, types, strict=True)]


class Source:
    """One source of a handler: scalar parts are loaded before the loop, vector parts in it."""

    def __init__(self, h: Handler, type_: str, letter: str, offset: Value) -> None:
        self._h, self._letter, self._offset = h, letter, offset
        dwords = DWORDS.get(type_, 1)
        self._wide, self._kind = dwords == 2, _KINDS.get(type_, f"u{32 * dwords}")
        if letter != "V":
            self._scalar = h.scalar(offset, dwords)

    def defined(self) -> tuple[Value, Value]:
        """i64: lanes in which the source is defined, and in which its lower half is."""
        h, offset = self._h, self._offset
        if self._letter == "V":
            low = h.vector_defined(offset)
            return (self._and_upper(low) if self._wide else low), low
        bits = h.scalar_defined(offset, 2 if self._wide else 1)
        if self._letter == "M":
            return bits, bits
        whole = h.as_lanes(bits)
        return whole, h.as_lanes(h.convert("trunc", bits, "i32")) if self._wide else whole

    def _and_upper(self, low: Value) -> Value:
        return self._h.binary("and", low, self._h.vector_defined(_next(self._h, self._offset)))

    def at(self, place: Value) -> Lanes:
        """The lanes at a place, as the meaning takes them."""
        h = self._h
        if self._letter == "M":
            return Lanes(h, h.chunk_mask(self._scalar, place), "bool")
        if self._letter == "S":
            return Lanes(h, self._scalar, "u64" if self._wide else "u32").as_kind(self._kind)
        low = h.vector(self._offset, place)
        if not self._wide:
            return Lanes(h, low, "u32").as_kind(self._kind)
        type_ = vector_type("i64")
        upper = h.convert("zext", h.vector(_next(h, self._offset), place), type_)
        shifted = h.binary("shl", upper, h.constant(32, type_))
        return Lanes(h, h.binary("or", h.convert("zext", low, type_), shifted), "u64").as_kind(self._kind)


def _next(h: Handler, offset: Value) -> Value:
    return h.binary("add", offset, h.constant(layout.VECTOR_BYTES, "i64"))


def _words(value: Lanes) -> list[Value]:
    """The value as one or two vectors of words."""
    lanes = value.with_lanes()
    parts = (
        [lanes]
        if lanes.kind in ("u32", "i32", "f32")
        else [lanes.carry("low", (lanes,)), lanes.carry("high", (lanes,))]
    )
    return [part.as_kind("u32").value for part in parts]


def emit(module: Module, row: Row, letters: str, name: str) -> None:
    """A "valu" row: every source is read before a result is written, lane by lane."""
    if row.meaning is None:
        raise UnsupportedError(f"{row.name}: the row has no meaning")
    if row.lanes is not None:
        from spconv_compiler.sim.native.cross import emit_moved

        emit_moved(module, row, letters, name)
        return
    h = Handler(module, name)
    results = [h.field(index) for index in range(len(row.results))]
    old = [Source(h, row.sources[0], "V", results[0])] if row.tied else []
    sources = [
        Source(h, type_, letter, h.field(len(results) + index))
        for index, (type_, letter) in enumerate(zip(encoded(row), letters, strict=True))
    ]
    known, low_known = all_defined(h, sources if row.keeps else old + sources)
    if not row.upward:
        low_known = known
    targets = _targets(h, row, results)
    masks = [index for index, type_ in enumerate(row.results) if type_ == "mask"]
    zero = h.constant(0, "i64")
    with h.loop(layout.VECTOR_BYTES, 4 * CHUNK, [zero] * len(masks)) as loop:
        found = row.meaning(*[source.at(loop.index) for source in old + sources])
        values = found if isinstance(found, tuple) else (found,)
        for index, value in enumerate(values):
            if index in masks:
                bits = h.chunk_bits(value.with_lanes().value, loop.index)
                loop.nexts.append(h.binary("or", loop.values[len(loop.nexts)], bits))
                continue
            for target, word in zip(targets[index], _words(value), strict=True):
                target.store(loop.index, word)
    for pair in targets:
        for target, bits in zip(pair, [low_known, known] if len(pair) == 2 else [known] * len(pair), strict=True):
            target.finish(bits)
    for index, bits in zip(masks, loop.results, strict=True):
        off = h.invert(h.exec())
        h.set_scalar(results[index], h.binary("and", bits, h.exec()), h.binary("or", known, off))
    h.done()


def all_defined(h: Handler, sources: Sequence[Source]) -> tuple[Value, Value]:
    """i64: lanes in which all sources are defined, and in which their lower halves are."""
    known = low_known = h.constant(-1, "i64")
    for source in sources:
        whole, low = source.defined()
        known, low_known = h.binary("and", known, whole), h.binary("and", low_known, low)
    return known, low_known


def _targets(h: Handler, row: Row, results: Sequence[Value]) -> list[list[Target]]:
    made: list[list[Target]] = []
    place = 0
    for type_, offset in zip(row.results, results, strict=True):
        pair = []
        if type_ != "mask":
            for part in range(DWORDS[type_]):
                pair.append(h.target(_next(h, offset) if part else offset, place))
                place += 1
        made.append(pair)
    return made


FAMILIES = (Family(("valu",), shapes, shape, fields, emit),)
