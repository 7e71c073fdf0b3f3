"""Floating-point meanings made of the algebra's primitives: extrema, scaling, transcendental functions, fp8.

Transcendental functions are computed in float64 and rounded once, so that every carrier gives the same bits; the
hardware promises 1 ulp only. Those of float32 take denormals as zeros and give none, as the ISA documents say.
Denormals of the rest are kept (FLOAT_MODE 0xF0), and NaNs become quiet (IEEE mode).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spconv_compiler.sim import algebra as al
from spconv_compiler.sim.algebra import Array

U32, U64, I32, F32, F64 = np.uint32, np.uint64, np.int32, np.float32, np.float64


@dataclasses.dataclass(frozen=True)
class Kind:
    """A format: its numpy type, that of its bits, how bits become a number, and widths of its fields."""

    number: Any
    word: Any
    wrap: Callable[[Array], Array]
    mantissa: int
    bias: int

    @property
    def sign(self) -> Any:
        """The bit of the sign."""
        return self.word(1 << (8 * np.dtype(self.word).itemsize - 1))

    @property
    def quiet(self) -> Any:
        """The bit that makes a NaN quiet."""
        return self.word(1 << self.mantissa - 1)

    def exponent(self, a: Array) -> Array:
        """The biased exponent, int32."""
        field = self.bits(a) >> self.word(self.mantissa) & self.word(2 * self.bias + 1)
        return al.as_i32(field if self is SINGLE else al.low(field))

    def bits(self, a: Array) -> Array:
        """The bits, unsigned."""
        return al.bits_of(a)

    def negative(self, a: Array) -> Array:
        """The sign flipped, also of a NaN."""
        return self.wrap(self.bits(a) ^ self.sign)

    def absolute(self, a: Array) -> Array:
        """The sign cleared."""
        return self.wrap(self.bits(a) & ~self.sign)

    def is_negative(self, a: Array) -> Array:
        """Whether the sign is set."""
        return self.bits(a) & self.sign != self.word(0)

    def signed(self, a: Array, sign: Array) -> Array:
        """a with the sign of another number."""
        return self.wrap(self.bits(a) & ~self.sign | self.bits(sign) & self.sign)

    def quieted(self, a: Array) -> Array:
        """A NaN made quiet; other numbers as they are."""
        return al.select(al.is_nan(a), self.wrap(self.bits(a) | self.quiet), a)

    def is_signalling(self, a: Array) -> Array:
        """Whether it is a NaN that is not quiet."""
        return al.is_nan(a) & (self.bits(a) & self.quiet == self.word(0))

    def maximum(self, a: Array, b: Array) -> Array:
        """The larger number, of a number and a NaN the number; +0 above -0; a signalling NaN wins."""
        above = (a > b) | (a == b) & ~self.is_negative(a)
        return self._extremum(above, a, b)

    def minimum(self, a: Array, b: Array) -> Array:
        """The smaller number, otherwise like `maximum`."""
        below = (a < b) | (a == b) & self.is_negative(a)
        return self._extremum(below, a, b)

    def _extremum(self, first: Array, a: Array, b: Array) -> Array:
        chosen = al.select(al.is_nan(b) | first & ~al.is_nan(a), a, b)
        chosen = al.select(self.is_signalling(b), b, al.select(self.is_signalling(a), a, chosen))
        return self.quieted(chosen)

    def median(self, a: Array, b: Array, c: Array) -> Array:
        """The middle one of three; with a NaN, the smallest one."""
        least = self.minimum(self.minimum(a, b), c)
        middle = self.maximum(self.minimum(a, b), self.minimum(self.maximum(a, b), c))
        return al.select(al.is_nan(a) | al.is_nan(b) | al.is_nan(c), least, middle)

    def clamped(self, a: Array) -> Array:
        """Between 0 and 1; a NaN becomes 0 (DX10_CLAMP)."""
        zero, one = self.number(0), self.number(1)
        return al.select(a > zero, al.select(a < one, a, one), zero)

    def flushed(self, a: Array) -> Array:
        """Denormals become zeros of their sign."""
        return al.select(self.exponent(a) == I32(0), self.wrap(self.bits(a) & self.sign), a)

    def fraction(self, a: Array) -> Array:
        """a - floor(a), below 1."""
        rest = a - al.floor(a)
        below_one = np.array((self.bias << self.mantissa) - 1, self.word).view(self.number)[()]
        return al.select(rest >= self.number(1), below_one, rest)

    def in_class(self, a: Array, classes: Array) -> Array:
        """Whether a is of one of the classes: bits 0 to 9 are signalling and quiet NaN, -inf, -normal, …, +inf."""
        exponent, top = self.exponent(a), I32(2 * self.bias + 1)
        infinite = (exponent == top) & ~al.is_nan(a)
        zero = a == self.number(0)
        denormal, normal = (exponent == I32(0)) & ~zero, (exponent != I32(0)) & (exponent != top)
        minus = self.is_negative(a)
        parts = [self.is_signalling(a), al.is_nan(a) & ~self.is_signalling(a)]
        parts += [infinite & minus, normal & minus, denormal & minus, zero & minus]
        parts += [zero & ~minus, denormal & ~minus, normal & ~minus, infinite & ~minus]
        found = None
        for number, part in enumerate(parts):
            hit = part & (classes >> U32(number) & U32(1) != U32(0))
            found = hit if found is None else found | hit
        return found


SINGLE = Kind(F32, U32, al.as_f32, 23, 127)
DOUBLE = Kind(F64, U64, al.as_f64, 52, 1023)


def half(function: Callable[..., Array]) -> Callable[..., Array]:
    """A function of float32 as one of the bits of float16; for +, -, *, / and sqrt one rounding is as good as two."""
    return lambda *sources: al.f16_bits(function(*[al.from_f16(source) for source in sources]))


def half_fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of float16 bits: float64 holds more than any tie of float16 needs."""
    wide = [al.to_f64(al.from_f16(each)) for each in (a, b, c)]
    return f16_of_f64(wide[0] * wide[1] + wide[2])


def f16_of_f64(a: Array) -> Array:
    """float64 rounded once to the bits of float16: the float32 between is rounded to odd."""
    near = al.to_f32(a)
    back, bits = al.to_f64(near), al.bits_of(near)
    even = (bits & U32(1) == U32(0)) & (back != a) & ~al.is_nan(a) & ~(DOUBLE.absolute(a) > F64(3.0e38))
    outward = (DOUBLE.absolute(a) > DOUBLE.absolute(back)) | (bits << U32(1) == U32(0))
    moved = al.select(outward, bits + U32(1), bits - U32(1))
    return al.f16_bits(al.select(even, al.as_f32(moved), near))


def power_of_two(exponent: Array) -> Array:
    """2 ** exponent as float64; int32 from -1022 to 1023."""
    return al.as_f64(al.zext(al.as_u32(exponent + I32(1023))) << U64(52))


def limited(a: Array, low: int, high: int) -> Array:
    """int32 between two bounds."""
    return al.minimum(al.maximum(a, I32(low)), I32(high))


def scale_f32(a: Array, exponent: Array) -> Array:
    """a * 2 ** exponent, rounded once."""
    return SINGLE.quieted(al.to_f32(al.to_f64(a) * power_of_two(limited(exponent, -500, 500))))


def scale_f64(a: Array, exponent: Array) -> Array:
    """a * 2 ** exponent, rounded once: what may be inexact is the last product."""
    tiny = DOUBLE.exponent(a) == I32(0)
    a = al.select(tiny, a * F64(2.0**54), a)
    exponent = limited(exponent, -3000, 3000) - al.select(tiny, I32(54), I32(0))
    total = exponent + DOUBLE.exponent(a) - I32(1023)
    unit = a * power_of_two(limited(I32(1023) - DOUBLE.exponent(a), -1022, 1023))
    scaled = unit * power_of_two(limited(total, -1022, 1023)) * power_of_two(limited(total + I32(1022), -1000, 0))
    scaled = al.select(total > I32(1023), a * F64(math.inf), scaled)
    special = (a == F64(0)) | (DOUBLE.exponent(a) == I32(2047))
    return al.select(special, DOUBLE.quieted(a), scaled)


def mantissa_f32(a: Array) -> Array:
    """The fraction of a, from 0.5 up to 1; zeros, infinities and NaNs as they are."""
    wide = al.to_f64(a)
    return al.select(
        _special32(a), SINGLE.quieted(a), al.to_f32(wide * power_of_two(I32(1022) - DOUBLE.exponent(wide)))
    )


def exponent_f32(a: Array) -> Array:
    """The exponent that belongs to `mantissa_f32`; 0 for zeros, infinities and NaNs."""
    return al.select(_special32(a), I32(0), DOUBLE.exponent(al.to_f64(a)) - I32(1022))


def mantissa_f64(a: Array) -> Array:
    """As mantissa_f32."""
    return al.select(_special64(a), DOUBLE.quieted(a), scale_f64(a, -exponent_f64(a)))


def exponent_f64(a: Array) -> Array:
    """As exponent_f32."""
    tiny = DOUBLE.exponent(a) == I32(0)
    normal = al.select(tiny, a * F64(2.0**54), a)
    found = DOUBLE.exponent(normal) - I32(1022) - al.select(tiny, I32(54), I32(0))
    return al.select(_special64(a), I32(0), found)


def _special32(a: Array) -> Array:
    return (a == F32(0)) | (SINGLE.exponent(a) == I32(255))


def _special64(a: Array) -> Array:
    return (a == F64(0)) | (DOUBLE.exponent(a) == I32(2047))


def single(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A function of float64 as one of float32 that knows no denormals."""
    return lambda a: SINGLE.quieted(SINGLE.flushed(al.to_f32(function(al.to_f64(SINGLE.flushed(a))))))


def narrow(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A function of float64 as one of the bits of float16."""
    return lambda a: f16_of_f64(function(al.to_f64(al.from_f16(a))))


def _polynomial(x: Array, coefficients: list[float]) -> Array:
    """Highest power first."""
    total = x * F64(coefficients[0]) + F64(coefficients[1])
    for coefficient in coefficients[2:]:
        total = total * x + F64(coefficient)
    return total


_EXP2 = [math.log(2) ** n / math.factorial(n) for n in range(14, -1, -1)]
_ATANH = [2 / math.log(2) / n for n in range(25, 0, -2)]
_SIN = [(-1) ** n * (2 * math.pi) ** (2 * n + 1) / math.factorial(2 * n + 1) for n in range(8, -1, -1)]
_COS = [(-1) ** n * (2 * math.pi) ** (2 * n) / math.factorial(2 * n) for n in range(8, -1, -1)]


def reciprocal(a: Array) -> Array:
    """1 / a; float64."""
    return DOUBLE.wrap(DOUBLE.bits(a) & U64(0) | U64(1023 << 52)) / a


def inverse_root(a: Array) -> Array:
    """1 / sqrt(a); float64."""
    return reciprocal(al.sqrt(a))


def exp2(a: Array) -> Array:
    """2 ** a; float64, for results that float32 or float16 can hold."""
    a = al.select(a > F64(1000), F64(1000), al.select(a < F64(-1000), F64(-1000), a))
    whole = al.round_even(a)
    power = power_of_two(al.to_i32(whole))
    return al.select(al.is_nan(a), a, _polynomial(a - whole, _EXP2) * power)


def log2(a: Array) -> Array:
    """The binary logarithm; float64 that came from float32 or float16."""
    exponent = DOUBLE.exponent(a) - I32(1023)
    mantissa = a * power_of_two(limited(-exponent, -1022, 1023))
    upper = mantissa > F64(math.sqrt(2))
    mantissa = al.select(upper, mantissa * F64(0.5), mantissa)
    ratio = (mantissa - F64(1)) / (mantissa + F64(1))
    found = ratio * _polynomial(ratio * ratio, _ATANH) + al.to_f64(exponent + al.select(upper, I32(1), I32(0)))
    found = al.select(a == F64(math.inf), a, found)
    found = al.select(a == F64(0), F64(-math.inf), found)
    return al.select((a < F64(0)) | al.is_nan(a), F64(math.nan), found)


def sine(a: Array) -> Array:
    """sin(2 pi a); float64; 0 beyond 256 turns."""
    return _turn(a, 0, F64(0))


def cosine(a: Array) -> Array:
    """cos(2 pi a); float64; 1 beyond 256 turns."""
    return _turn(a, 1, F64(1))


def _turn(a: Array, quarter: int, beyond: Any) -> Array:
    rest = a - al.round_even(a)
    quarters = al.round_even(rest * F64(4))
    angle = rest - quarters * F64(0.25)
    square = angle * angle
    sine, cosine = angle * _polynomial(square, _SIN), _polynomial(square, _COS)
    place = al.as_u32(al.to_i32(quarters) + I32(quarter)) & U32(3)
    found = al.select(place & U32(1) == U32(0), sine, cosine)
    found = al.select(place > U32(1), DOUBLE.negative(found), found)
    found = al.select(DOUBLE.absolute(a) > F64(256), beyond, found)
    return al.select(al.is_nan(a) | (DOUBLE.absolute(a) == F64(math.inf)), F64(math.nan), found)


# fp8: OCP e4m3fn (no infinities) and e5m2, as gfx950 has them.


def from_fp8(bits: Array) -> Array:
    """float32 of the e4m3fn number in the low 8 bits."""
    magnitude = al.as_f32((bits & U32(0x7F)) << U32(20)) * F32(2.0**120)
    value = al.as_f32(al.bits_of(magnitude) | (bits & U32(0x80)) << U32(24))
    return al.select(bits & U32(0x7F) == U32(0x7F), F32(math.nan), value)


def from_bf8(bits: Array) -> Array:
    """float32 of the e5m2 number in the low 8 bits."""
    return SINGLE.quieted(al.from_f16((bits & U32(0xFF)) << U32(8)))


def fp8_bits(a: Array) -> Array:
    """float32 rounded to e4m3fn; what is too large becomes a NaN."""
    return _small_bits(a, mantissa=3, bias=7, largest=448.0, beyond=0x7F, infinity=0x7F, nan=0x7F)


def bf8_bits(a: Array) -> Array:
    """float32 rounded to e5m2; what is too large becomes an infinity."""
    return _small_bits(a, mantissa=2, bias=15, largest=57344.0, beyond=0x7C, infinity=0x7C, nan=0x7F)


def _small_bits(a: Array, *, mantissa: int, bias: int, largest: float, beyond: int, infinity: int, nan: int) -> Array:
    magnitude = al.to_f64(SINGLE.absolute(a))
    finite = al.select(magnitude < F64(1e6), magnitude, F64(1e6))
    exponent = al.maximum(DOUBLE.exponent(finite) - I32(1023), I32(1 - bias))
    rounded = al.round_even(finite * power_of_two(I32(mantissa) - exponent))
    # The mantissa with its leading one; a carry into the next exponent comes out right by itself.
    code = al.as_u32(al.to_i32(rounded) + (exponent + I32(bias - 1)) * I32(1 << mantissa))
    value = rounded * power_of_two(exponent - I32(mantissa))
    code = al.select(value > F64(largest), U32(beyond), code)
    code = al.select(magnitude == F64(math.inf), U32(infinity), code)
    code = al.select(al.is_nan(a), U32(nan), code)
    return code | al.bits_of(a) >> U32(24) & U32(0x80)
