"""Expectations for vector opcodes in plain Python: exact fractions, rounded once to a format.

Arguments and results are bit patterns. Nothing here uses the simulator.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

M32, M64 = 2**32 - 1, 2**64 - 1


@dataclasses.dataclass(frozen=True)
class Format:
    """A binary format: exponent and mantissa bits."""

    exponent: int
    mantissa: int

    @property
    def bias(self) -> int:
        return (1 << self.exponent - 1) - 1

    @property
    def width(self) -> int:
        return 1 + self.exponent + self.mantissa

    def value(self, bits: int) -> float:
        """The number of a bit pattern; exact, since every format here fits a double."""
        bits &= (1 << self.width) - 1
        sign = -1.0 if bits >> self.width - 1 else 1.0
        exponent, mantissa = bits >> self.mantissa & (1 << self.exponent) - 1, bits & (1 << self.mantissa) - 1
        if exponent == (1 << self.exponent) - 1:
            return math.nan if mantissa else sign * math.inf
        if exponent == 0:
            return sign * math.ldexp(mantissa, 1 - self.bias - self.mantissa)
        return sign * math.ldexp(mantissa + (1 << self.mantissa), exponent - self.bias - self.mantissa)

    def bits(self, exact: Fraction | float, zero_sign: float = 1.0) -> int:
        """The nearest number, the even one of two; of 0 the sign is that of `zero_sign`."""
        if isinstance(exact, float):
            if math.isnan(exact):
                return ((1 << self.exponent) - 1) << self.mantissa | 1 << self.mantissa - 1
            if math.isinf(exact):
                return ((1 << self.exponent) - 1) << self.mantissa | (exact < 0) << self.width - 1
            zero_sign = math.copysign(1.0, exact) if exact == 0 else zero_sign
            exact = Fraction(exact)
        sign = exact < 0 or exact == 0 and zero_sign < 0
        magnitude = abs(exact)
        if magnitude == 0:
            return sign << self.width - 1
        power = max(_floor_log2(magnitude), 1 - self.bias)
        scaled = magnitude / Fraction(2) ** (power - self.mantissa)
        whole = round(scaled)
        code = whole + (power + self.bias - 1 << self.mantissa)
        code = min(code, (1 << self.exponent) - 1 << self.mantissa)
        return code | sign << self.width - 1


def _floor_log2(value: Fraction) -> int:
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    while Fraction(2) ** guess > value:
        guess -= 1
    while Fraction(2) ** (guess + 1) <= value:
        guess += 1
    return guess


F16, F32, F64, BF16 = Format(5, 10), Format(8, 23), Format(11, 52), Format(8, 7)
FORMATS = {"f16": F16, "f32": F32, "f64": F64}


def exact(format_: Format, function: Callable[..., Any]) -> Callable[..., int]:
    """An operation of +, -, * on numbers, exact, then rounded once."""

    def run(*bits: int) -> int:
        values = [format_.value(b) for b in bits]
        special = _special(function, values)
        if special is not None:
            return format_.bits(special)
        found = function(*map(Fraction, values))
        # A zero has the sign that double arithmetic gives; only whether it is a zero is not its business.
        return format_.bits(found, _zero_sign(function, values))

    return run


def _special(function: Callable[..., Any], values: list[float]) -> float | None:
    """The result where a NaN or infinity takes part; finite parts are replaced so that they cannot overflow."""
    if all(map(math.isfinite, values)):
        return None
    tame = [v if not math.isfinite(v) or v == 0 else math.copysign(1.0, v) for v in values]
    return float(function(*tame))


def _zero_sign(function: Callable[..., Any], values: list[float]) -> float:
    tame = [v if v == 0 else math.copysign(1.0, v) for v in values]
    return math.copysign(1.0, function(*tame)) if function(*tame) == 0 else 1.0


def divided(numerator: float, denominator: float) -> float:
    """IEEE division of doubles."""
    if denominator == 0:
        if numerator == 0 or math.isnan(numerator):
            return math.nan
        return math.copysign(math.inf, numerator) * math.copysign(1.0, denominator)
    return numerator / denominator


def is_signalling(format_: Format, bits: int) -> bool:
    return math.isnan(format_.value(bits)) and not bits >> format_.mantissa - 1 & 1


def smaller(format_: Format) -> Callable[[int, int], int]:
    return lambda a, b: _extremum(format_, a, b, -1)


def larger(format_: Format) -> Callable[[int, int], int]:
    return lambda a, b: _extremum(format_, a, b, 1)


def _extremum(format_: Format, a: int, b: int, direction: int) -> int:
    x, y = format_.value(a), format_.value(b)
    if is_signalling(format_, a) or is_signalling(format_, b) or math.isnan(x) and math.isnan(y):
        return format_.bits(math.nan)
    if math.isnan(x) or math.isnan(y):
        return b if math.isnan(x) else a
    key = lambda bits: (direction * format_.value(bits), direction * math.copysign(1.0, format_.value(bits)))  # noqa: E731
    return max((a, b), key=key)


def middle(format_: Format) -> Callable[[int, int, int], int]:
    def run(a: int, b: int, c: int) -> int:
        low, high = smaller(format_), larger(format_)
        if any(math.isnan(format_.value(bits)) for bits in (a, b, c)):
            return low(low(a, b), c)
        return high(low(a, b), low(high(a, b), c))

    return run


def half_of(word: int, upper: int) -> int:
    return word >> 16 if upper else word & 0xFFFF


def s16(a: int) -> int:
    return (a % 65536 ^ 0x8000) - 0x8000


def s24(a: int) -> int:
    return (a % 2**24 ^ 0x800000) - 0x800000


def s32(a: int) -> int:
    return (a + 2**31) % 2**32 - 2**31


def s64(a: int) -> int:
    return (a + 2**63) % 2**64 - 2**63


def clip(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


def to_integer(value: float, low: int, high: int) -> int:
    """Toward zero, saturated; 0 for a NaN."""
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return high if value > 0 else low
    return clip(int(value), low, high)


def fp8(bits: int) -> float:
    """OCP e4m3fn."""
    sign, exponent, mantissa = (-1.0 if bits & 0x80 else 1.0), bits >> 3 & 15, bits & 7
    if bits & 0x7F == 0x7F:
        return math.nan
    return sign * (math.ldexp(mantissa, -9) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 10))


def bf8(bits: int) -> float:
    """OCP e5m2: the upper byte of a half."""
    return float(struct.unpack("<e", struct.pack("<H", (bits & 0xFF) << 8))[0])


def nearest(decode: Callable[[int], float], value: float, largest: float, beyond: int) -> int:
    """The code whose number is nearest to a value, by looking at all of them."""
    sign = 0x80 if math.copysign(1.0, value) < 0 else 0
    if math.isnan(value):
        return 0x7F | sign
    magnitude = abs(value)
    codes = [code for code in range(0x80) if not math.isnan(decode(code)) and not math.isinf(decode(code))]
    tie = largest + (largest - decode(codes[-2])) / 2
    if magnitude > tie or magnitude == tie and codes[-1] & 1:
        return beyond | sign
    best = min(codes, key=lambda code: (abs(Fraction(decode(code)) - Fraction(magnitude)), code & 1))
    return best | sign


def classes(format_: Format, bits: int) -> int:
    """The bit of v_cmp_class that a number has."""
    value = format_.value(bits)
    if math.isnan(value):
        return 1 if is_signalling(format_, bits) else 2
    tiny = abs(value) < 2.0 ** (1 - format_.bias)
    kind = 0 if math.isinf(value) else 3 if value == 0 else 2 if tiny else 1
    return 1 << (2 + kind if math.copysign(1.0, value) < 0 else 9 - kind)
