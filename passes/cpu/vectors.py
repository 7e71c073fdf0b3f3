"""Vectors of lanes that move: what kernels say in vector<8xi32>, a register of the processors that there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from spconv_compiler.bindings import arith, ir, vector
from spconv_compiler.passes.cpu.functions import call_intrinsic
from spconv_compiler.passes.kernel_builder import V, const, i32, vec

# 32-bit elements that vpermd permutes.
LANES = 8


def numbered(first: V) -> V:
    """The numbers from `first` on, one per lane, i32."""
    text = f"dense<{list(range(LANES))}> : vector<{LANES}xi32>"
    return first.to(i32()).broadcast(LANES) + V(arith.constant(vec(LANES, i32()), ir.Attribute.parse(text)))


def shuffled(first: V, second: V, places: Iterable[int]) -> V:
    """Lanes of two different vectors of one type: places of the second begin behind those of the first."""
    return V(vector.ShuffleOp(first.value, second.value, list(places)).result)


def permuted(values: V, places: Sequence[int]) -> V:
    """The eight i32 lanes of a vector in another order."""
    text = f"dense<{list(places)}> : vector<{LANES}xi32>"
    order = V(arith.constant(values.type, ir.Attribute.parse(text)))
    return call_intrinsic("llvm.x86.avx2.permd", [values, order], values.type)


def everywhere(value: V) -> V:
    """An i64 that 32 bits hold, in all lanes."""
    return value.to(i32()).broadcast(LANES)


def quotients_by(divisor: V) -> Callable[[V], V]:
    """A function that gives value // divisor for lanes that are not negative, as candidates.quotient_by does."""
    double = ir.F64Type.get()
    inverse = V(arith.divf(const(1.0, double).value, arith.sitofp(double, divisor.value))).broadcast(LANES)

    def quotients(values: V) -> V:
        as_double = V(arith.sitofp(inverse.type, values.value))
        return V(arith.fptosi(values.type, ((as_double + 0.5) * inverse).value))

    return quotients


def rows_of(columns: Sequence[V]) -> list[V]:
    """Four columns of eight lanes as eight rows of four, two in a vector."""
    batch, z, y, x = columns
    rows = []
    for start in (0, 2):
        # Within halves first, as registers are made of them: rows 0, 1, 4 and 5, then 2, 3, 6 and 7.
        places = [place for lane in (start, start + 1, start + 4, start + 5) for place in (lane, lane + LANES)]
        front, back = shuffled(batch, z, places), shuffled(y, x, places)
        pairs = [[at + lane for lane in (0, 1, 8, 9, 4, 5, 12, 13)] for at in (0, 2)]
        even, odd = (shuffled(front, back, chosen) for chosen in pairs)
        rows += [shuffled(even, odd, [*range(half, half + 4), *range(half + 8, half + 12)]) for half in (0, 4)]
    first, third, second, fourth = rows
    return [first, second, third, fourth]
