"""Between f32 and the shorter float types, for scalars and vectors.

bf16 goes through integers: processors without AVX-512 BF16 have no instruction for it, and the one that those
with it have flushes denormal numbers.
"""

from __future__ import annotations

from spconv_compiler.bindings import ir
from spconv_compiler.passes.cpu.memory import i16
from spconv_compiler.passes.kernel_builder import V, f32, i32, scalar, vec

_QUIET_NAN = 0x0040
_INFINITY = 0x7F80_0000


def widen(value: V) -> V:
    """The same number as f32."""
    if isinstance(scalar(value.type), ir.BF16Type):
        bits = value.bitcast(_alike(value, i16())).to(_alike(value, i32()))
        return (bits << 16).bitcast(_alike(value, f32()))
    return value.to(_alike(value, f32()))


def narrow(value: V, element: ir.Type) -> V:
    """The f32 `value` rounded to nearest, ties to even, as `element`; NaN stays NaN."""
    if not isinstance(element, ir.BF16Type):
        return value.to(_alike(value, element))
    bits = value.bitcast(_alike(value, i32()))
    top = bits >> 16
    rounded = (bits + ((top & 1) + 0x7FFF)) >> 16
    is_nan = (bits & 0x7FFF_FFFF) > _INFINITY
    return is_nan.select(top | _QUIET_NAN, rounded).to(_alike(value, i16())).bitcast(_alike(value, element))


def _alike(value: V, element: ir.Type) -> ir.Type:
    """`element`, as often as `value` has elements."""
    if isinstance(value.type, ir.VectorType):
        return vec(ir.VectorType(value.type).shape[0], element)
    return element
