"""Activations on f32 values, scalars or vectors, out of multiply-adds and integer steps that every target has.

The processor and the GPU build the same operations in the same order, so both give the same bits. A NaN stays NaN.
The polynomials were fitted for this file, by weighted least squares, to a relative error below 1.1e-8.
"""

from __future__ import annotations

from spconv_compiler.bindings import arith, ir
from spconv_compiler.epilogue import Epilogue
from spconv_compiler.passes.kernel_builder import V, const, f32, fma, i32, scalar, vec

_LOG2_E = 1.4426950408889634
# ln 2 in two parts; the first has so few digits that its products with small integers are exact.
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.4286068203094172e-06
# Adding this to |x| < 2^22 leaves x, rounded to an integer, in the low bits.
_ROUND = 1.5 * 2.0**23
_ROUND_BITS = 0x4B40_0000
_EXPONENT_BIAS, _EXPONENT_SHIFT = 127, 23
# 2^f for |f| ≤ 1/2.
_EXP2 = (
    1.0000000005541876,
    0.6931472057371969,
    0.24022646890477425,
    0.055503287770774436,
    0.009618488974024331,
    0.001339993118311615,
    0.00015345807457626268,
)
# e^±87 is a normal number.
_MOST_EXPONENT = 87.0
# Φ(−x)·e^(x²/2) for 0 ≤ x ≤ 13 as a polynomial in 1 / (1 + x/4).
_TAIL_SCALE = 0.25
_TAIL = (
    -2.5671854686298845e-05,
    0.10030584846064944,
    0.09419595076092689,
    0.12443362961082115,
    -0.028580388250528777,
    0.319649551087722,
    -0.3516339254054044,
    0.4086092308066618,
    -0.20197041532611726,
    0.035016184777085894,
)
# Beyond, Φ(−x) is below 1e-38.
_LAST_TAIL = 13.0


def activate(value: V, epilogue: Epilogue) -> V:
    """The activation of f32 `value`. Errors: none, relu and leaky_relu round once; gelu and silu as said there."""
    match epilogue.activation:
        case "relu":
            # Not a maximum: NaN is not below zero, so it passes through.
            return (value < 0.0).select(0.0, value)
        case "leaky_relu":
            return (value < 0.0).select(value * epilogue.negative_slope, value)
        case "gelu":
            return gelu(value)
        case "silu":
            return silu(value)
    return value


def silu(x: V) -> V:
    """x·σ(x), within 4 units in the last place; 0 below −87, where the value is below 1e-35."""
    power = exp(_clamped(-1.0 * x, _MOST_EXPONENT))
    return (x < -_MOST_EXPONENT).select(0.0, divide(x, power + 1.0))


def gelu(x: V) -> V:
    """x·Φ(x), within 2^-21·|x|; 0 below −13, where the value is below 1e-36."""
    negative = x < 0.0
    size = negative.select(-1.0 * x, x)
    near = (size < _LAST_TAIL).select(size, _LAST_TAIL)
    u = divide(const(1.0, x.type), fma(near, const(_TAIL_SCALE, x.type), const(1.0, x.type)))
    tail = _polynomial(u, _TAIL) * exp(near * near * -0.5)
    product = x * negative.select(tail, 1.0 - tail)
    return (x < -_LAST_TAIL).select(0.0, product)


def exp(x: V) -> V:
    """e^x for |x| ≤ 87, within 2 units in the last place."""
    magic = const(_ROUND, x.type)
    shifted = fma(x, const(_LOG2_E, x.type), magic)
    whole = shifted - magic
    rest = fma(whole, const(-_LN2_LOW, x.type), fma(whole, const(-_LN2_HIGH, x.type), x))
    integers = vec(ir.VectorType(x.type).shape[0], i32()) if isinstance(x.type, ir.VectorType) else i32()
    exponent = _bits(shifted, integers) - (_ROUND_BITS - _EXPONENT_BIAS)
    return _polynomial(rest * _LOG2_E, _EXP2) * _bits(exponent << _EXPONENT_SHIFT, x.type)


def _bits(value: V, type_: ir.Type) -> V:
    """The same bits as another type: an op that is allowed at every level, for scalars too."""
    return V(arith.bitcast(type_, value.value))


def divide(a: V, b: V) -> V:
    """a / b, rounded once."""
    return V(arith.divf(a.value, b.value))


def _clamped(x: V, limit: float) -> V:
    """x kept within ±limit; NaN becomes limit."""
    below = (x < limit).select(x, limit)
    return (below > -limit).select(below, -limit)


def _polynomial(x: V, coefficients: tuple[float, ...]) -> V:
    """Horner's scheme, lowest power first in `coefficients`."""
    assert scalar(x.type) == f32()
    *lower, total = (const(coefficient, x.type) for coefficient in coefficients)
    for coefficient in reversed(lower):
        total = fma(total, x, coefficient)
    return total
