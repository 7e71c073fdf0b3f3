"""Elements of A and B of an MFMA, by format: how they lie in registers, and how they become numbers of the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from spconv_compiler.sim.native.emit import Handler, Value, like


@dataclasses.dataclass(frozen=True)
class Element:
    """How elements of A and B lie in a register.

    Attributes:
        bits: of an element. sum: type of the accumulators.
        convert: from 16 lanes of i32 and the number of a part to 16 values of type `sum`. An element that does not
            divide a word is part 0.
    """

    bits: int
    sum: str
    convert: Callable[[Handler, Value, int], Value]

    @property
    def parts(self) -> int:
        """Elements in a word."""
        return 32 // self.bits


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


def _small(
    bits: int, mantissa: int, bias: int, largest: int | None = None, *, infinity: bool = False
) -> Callable[[Handler, Value, int], Value]:
    """A format of few bits; magnitudes above `largest` are NaN, and with `infinity` that one is infinity."""

    def convert(h: Handler, words: Value, part: int) -> Value:
        type_, floats = words.type, like(words.type, "f32")
        code = h.binary("lshr", words, h.constant(bits * part, type_)) if part else words
        size = h.binary("and", code, h.constant((1 << bits - 1) - 1, type_))
        sign = h.binary("and", code, h.constant(1 << bits - 1, type_))
        sign = h.binary("shl", sign, h.constant(32 - bits, type_))
        # As a float32 of the same fields it is too small by the difference of the biases; denormals come out right.
        raw = h.convert("bitcast", h.binary("shl", size, h.constant(23 - mantissa, type_)), floats)
        scaled = h.binary("fmul", raw, h.constant(2.0 ** (127 - bias), floats))
        found = h.convert("bitcast", scaled, type_)
        if largest is not None:
            if infinity:
                infinite = h.compare("eq", size, h.constant(largest, type_))
                found = h.select(infinite, h.constant(0x7F800000, type_), found)
            nan = h.compare("ugt", size, h.constant(largest, type_))
            found = h.select(nan, h.constant(0x7FC00000, type_), found)
        return h.convert("bitcast", h.binary("or", found, sign), floats)

    return convert


ELEMENTS = {
    "bf16": Element(16, "f32", _bf16),
    "f16": Element(16, "f32", _f16),
    "f32": Element(32, "f32", _f32),
    "i8": Element(8, "i32", _i8),
    "fp8": Element(8, "f32", _small(8, 3, 7, 0x7E)),
    "bf8": Element(8, "f32", _small(8, 2, 15, 0x7C, infinity=True)),
    "fp6": Element(6, "f32", _small(6, 3, 1)),
    "bf6": Element(6, "f32", _small(6, 2, 3)),
    "fp4": Element(4, "f32", _small(4, 1, 1)),
}
