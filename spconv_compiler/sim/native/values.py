"""SSA values as carriers of opcode meanings: the same lambdas that run on numpy arrays write handlers.

A `Lanes` is a scalar, or CHUNK lanes, with a kind: "u32", "i32", "u64", "i64", "f32", "f64", "f16", or "bool". Scalars
are spread when they meet lanes. Kinds do not mix: numpy would widen, so a meaning that mixes is refused here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spconv_compiler.sim.errors import UnsupportedError
from spconv_compiler.sim.native.emit import Function, Value, bits_of, element_of, lanes_of, like

ELEMENTS = {
    "u32": "i32",
    "i32": "i32",
    "u64": "i64",
    "i64": "i64",
    "f32": "f32",
    "f64": "f64",
    "f16": "f16",
    "u16": "i16",
    "i16": "i16",
    "bool": "i1",
}
_NUMPY = {"uint32": "u32", "int32": "i32", "uint64": "u64", "int64": "i64", "float32": "f32", "float64": "f64"}
_NUMPY |= {"float16": "f16", "uint16": "u16", "int16": "i16", "bool": "bool"}
_PREDICATES = {
    "lt": ("slt", "ult", "olt"),
    "le": ("sle", "ule", "ole"),
    "gt": ("sgt", "ugt", "ogt"),
    "ge": ("sge", "uge", "oge"),
    "eq": ("eq", "eq", "oeq"),
    "ne": ("ne", "ne", "une"),
}


class Lanes:
    """One value with operators. Python and numpy numbers are taken for constants."""

    __slots__ = ("function", "kind", "value")
    # numpy scalars on the left then leave the operator to this class.
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, function: Function, value: Value, kind: str) -> None:
        self.function, self.value, self.kind = function, value, kind

    @property
    def spread(self) -> bool:
        """Whether it has lanes."""
        return lanes_of(self.value.type) > 0

    def with_lanes(self) -> Lanes:
        """The same in every lane."""
        if self.spread:
            return self
        return Lanes(self.function, self.function.broadcast(self.value), self.kind)

    def made(self, value: Value, kind: str | None = None) -> Lanes:
        """Another value in the same function."""
        return Lanes(self.function, value, kind or self.kind)

    def number(self, other: Any, kind: str | None = None) -> Lanes:
        """`other` as a carrier of this kind; a number becomes a constant."""
        wanted = kind or self.kind
        if isinstance(other, np.ndarray) and other.size == 1:
            other = other.reshape(-1)[0]
        if isinstance(other, Lanes):
            if other.kind != wanted:
                raise UnsupportedError(f"{self.function.name}: a meaning mixes {wanted} and {other.kind}")
            return other
        own = _NUMPY.get(str(other.dtype)) if isinstance(other, np.generic) else wanted
        if own != wanted:
            raise UnsupportedError(f"{self.function.name}: a meaning mixes {wanted} and the constant {other!r}")
        return self.made(
            self.function.constant(other.item() if isinstance(other, np.generic) else other, ELEMENTS[wanted]), wanted
        )

    def carry(self, name: str, operands: tuple[Any, ...]) -> Any:
        """Runs an algebra primitive on carriers."""
        found = PRIMITIVES.get(name)
        if found is None:
            raise UnsupportedError(f"{self.function.name}: the native engine has no primitive {name!r}")
        return found(*operands)

    def convert(self, name: str, kind: str) -> Lanes:
        """llvm.<name> to another kind, with as many lanes."""
        return self.made(self.function.convert(name, self.value, like(self.value.type, ELEMENTS[kind])), kind)

    def as_kind(self, kind: str) -> Lanes:
        """The same bits as another kind of the same width."""
        if ELEMENTS[kind] == ELEMENTS[self.kind]:
            return self.made(self.value, kind)
        return self.convert("bitcast", kind)

    def intrinsic(self, name: str, *others: Lanes) -> Lanes:
        """llvm.intr.<name> of values of one type."""
        together = _together(self, *others)
        values = [item.value for item in together]
        return self.made(self.function.intrinsic(name, values[0].type, *values))

    def _binary(self, other: Any, integer: str, floating: str | None, *, swap: bool = False) -> Lanes:
        a, b = _together(self, self.number(other))
        if swap:
            a, b = b, a
        name = floating if self.kind[0] == "f" else integer
        if not name:
            raise UnsupportedError(f"{self.function.name}: {integer or floating} of {self.kind}")
        return self.made(self.function.binary(name, a.value, b.value))

    def __add__(self, other: Any) -> Lanes:
        return self._binary(other, "add", "fadd")

    def __sub__(self, other: Any) -> Lanes:
        return self._binary(other, "sub", "fsub")

    def __rsub__(self, other: Any) -> Lanes:
        return self._binary(other, "sub", "fsub", swap=True)

    def __mul__(self, other: Any) -> Lanes:
        return self._binary(other, "mul", "fmul")

    def __and__(self, other: Any) -> Lanes:
        return self._binary(other, "and", None)

    def __or__(self, other: Any) -> Lanes:
        return self._binary(other, "or", None)

    def __xor__(self, other: Any) -> Lanes:
        return self._binary(other, "xor", None)

    def __lshift__(self, other: Any) -> Lanes:
        return self._binary(other, "shl", None)

    def __rlshift__(self, other: Any) -> Lanes:
        return self._binary(other, "shl", None, swap=True)

    def __rshift__(self, other: Any) -> Lanes:
        return self._binary(other, "ashr" if self.kind[0] == "i" else "lshr", None)

    def __rrshift__(self, other: Any) -> Lanes:
        return self._binary(other, "ashr" if self.kind[0] == "i" else "lshr", None, swap=True)

    def __truediv__(self, other: Any) -> Lanes:
        return self._binary(other, "", "fdiv")

    def __rtruediv__(self, other: Any) -> Lanes:
        return self._binary(other, "", "fdiv", swap=True)

    __radd__, __rmul__, __rand__, __ror__, __rxor__ = __add__, __mul__, __and__, __or__, __xor__

    def __invert__(self) -> Lanes:
        return self.made(self.function.invert(self.value))

    def __neg__(self) -> Lanes:
        if self.kind[0] == "f":
            return self.made(self.function.op(f"llvm.fneg {self.value} : {self.value.type}", self.value.type))
        return self.number(0) - self

    def _compare(self, other: Any, name: str) -> Lanes:
        a, b = _together(self, self.number(other))
        signed, unsigned, floating = _PREDICATES[name]
        predicate = floating if self.kind[0] == "f" else signed if self.kind[0] == "i" else unsigned
        return self.made(self.function.compare(predicate, a.value, b.value), "bool")

    def __lt__(self, other: Any) -> Lanes:
        return self._compare(other, "lt")

    def __le__(self, other: Any) -> Lanes:
        return self._compare(other, "le")

    def __gt__(self, other: Any) -> Lanes:
        return self._compare(other, "gt")

    def __ge__(self, other: Any) -> Lanes:
        return self._compare(other, "ge")

    def __eq__(self, other: Any) -> Lanes:  # type: ignore[override]
        return self._compare(other, "eq")

    def __ne__(self, other: Any) -> Lanes:  # type: ignore[override]
        return self._compare(other, "ne")

    def __bool__(self) -> bool:
        raise UnsupportedError(f"{self.function.name}: a meaning branches on a value; it must select")


def _together(*items: Lanes) -> list[Lanes]:
    """With lanes in all of them if any has."""
    return [item.with_lanes() for item in items] if any(item.spread for item in items) else list(items)


def _zext(a: Lanes) -> Lanes:
    return a if bits_of(a.value.type) == 64 else a.convert("zext", "u64")


def _sext(a: Lanes) -> Lanes:
    return a if bits_of(a.value.type) == 64 else a.convert("sext", "i64")


def _low(a: Lanes) -> Lanes:
    bits = bits_of(a.value.type)
    whole = a.as_kind(f"u{bits}") if a.kind[0] == "f" else a
    if bits == 32:
        return whole.as_kind("u32")
    return whole.convert("trunc" if bits > 32 else "zext", "u32")


def _high(a: Lanes) -> Lanes:
    return _low(a.as_kind("u64") >> 32)


def _select(condition: Lanes, a: Any, b: Any) -> Lanes:
    kind = next((item.kind for item in (a, b) if isinstance(item, Lanes)), None)
    if kind is None:
        kind = _NUMPY[str(a.dtype)]
    yes, no = _together(condition.number(a, kind), condition.number(b, kind))
    if condition.spread:
        yes, no = yes.with_lanes(), no.with_lanes()
    return yes.made(condition.function.select(condition.value, yes.value, no.value))


def _extremum(name: str) -> Callable[[Any, Any], Lanes]:
    def made(a: Any, b: Any) -> Lanes:
        value: Lanes = a if isinstance(a, Lanes) else b
        if value.kind[0] == "f":
            raise UnsupportedError(f"{value.function.name}: {name} of {value.kind} is for integers")
        other = value.number(b if value is a else a)
        return value.intrinsic(("s" if value.kind[0] == "i" else "u") + name, other)

    return made


def _absolute(a: Lanes) -> Lanes:
    text = f'"llvm.intr.abs"({a.value}) <{{is_int_min_poison = false}}> : ({a.value.type}) -> {a.value.type}'
    return a.made(a.function.op(text, a.value.type))


def _is_nan(a: Lanes) -> Lanes:
    return a.made(a.function.compare("uno", a.value, a.value), "bool")


def _popcount(a: Lanes) -> Lanes:
    return _low(a.as_kind(f"u{bits_of(a.value.type)}").intrinsic("ctpop"))


def _zeros(name: str) -> Callable[[Lanes], Lanes]:
    def made(a: Lanes) -> Lanes:
        found = _low(a.made(a.function.count_zeros(name, a.value)))
        return _select(a == 0, np.uint32(0xFFFFFFFF), found)

    return made


def _bf16_bits(a: Lanes) -> Lanes:
    bits = a.as_kind("u32")
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return _select(_is_nan(a), (bits >> 16) | 0x40, rounded)


def _f16_bits(a: Lanes) -> Lanes:
    return a.convert("fptrunc", "f16").as_kind("u16").convert("zext", "u32")


def _from_f16(bits: Lanes) -> Lanes:
    """The conversion of the host makes NaNs quiet: they are made by hand, as numpy makes them."""
    number = bits.convert("trunc", "u16").as_kind("f16").convert("fpext", "f32")
    nan = (bits & 0x8000) << 16 | 0x7F800000 | (bits & 0x3FF) << 13
    return _select((bits & 0x7FFF) > 0x7C00, nan.as_kind("f32"), number)


def _to_float(kind: str) -> Callable[[Lanes], Lanes]:
    def made(a: Lanes) -> Lanes:
        if a.kind == kind:
            return a
        if a.kind[0] == "f":
            return a.convert("fpext" if bits_of(a.value.type) < int(kind[1:]) else "fptrunc", kind)
        return a.convert("sitofp" if a.kind[0] == "i" else "uitofp", kind)

    return made


def _to_integer(kind: str) -> Callable[[Lanes], Lanes]:
    """Without the fraction; the nearest integer where there is none, 0 for a NaN."""

    def made(a: Lanes) -> Lanes:
        type_ = like(a.value.type, "i32")
        name = f"llvm.fpto{'s' if kind[0] == 'i' else 'u'}i.sat.{_mangled(type_)}.{_mangled(a.value.type)}"
        text = f'llvm.call_intrinsic "{name}"({a.value}) : ({a.value.type}) -> {type_}'
        return a.made(a.function.op(text, type_), kind)

    return made


def _mangled(type_: str) -> str:
    """A type as LLVM writes it in names of intrinsics."""
    count = lanes_of(type_)
    return f"v{count}{element_of(type_)}" if count else type_


def _fma(*operands: Any) -> Lanes:
    first = next(item for item in operands if isinstance(item, Lanes))
    a, b, c = (first.number(item) for item in operands)
    return a.intrinsic("fma", b, c)


def _round(name: str) -> Callable[[Lanes], Lanes]:
    return lambda a: a.intrinsic(name)


# By the names of the functions in algebra.py.
PRIMITIVES: dict[str, Callable[..., Lanes]] = {
    "zext": _zext,
    "sext": _sext,
    "low": _low,
    "high": _high,
    "select": _select,
    "as_i32": lambda a: _low(a).as_kind("i32"),
    "as_u32": _low,
    "as_i64": lambda a: a.as_kind("i64"),
    "minimum": _extremum("min"),
    "maximum": _extremum("max"),
    "absolute": _absolute,
    "is_nan": _is_nan,
    "popcount": _popcount,
    "lowest_bit": _zeros("cttz"),
    "leading_zeros": _zeros("ctlz"),
    "reverse_bits": lambda a: a.intrinsic("bitreverse"),
    "bf16_bits": _bf16_bits,
    "f16_bits": _f16_bits,
    "from_f16": _from_f16,
    "from_bf16": lambda bits: (bits << 16).as_kind("f32"),
    "as_f32": lambda a: _low(a).as_kind("f32"),
    "as_f64": lambda a: a.as_kind("f64"),
    "bits_of": lambda a: a.as_kind(f"u{bits_of(a.value.type)}"),
    "to_f64": _to_float("f64"),
    "to_f32": _to_float("f32"),
    "to_i32": _to_integer("i32"),
    "to_u32": _to_integer("u32"),
    "round_even": _round("roundeven"),
    "floor": _round("floor"),
    "truncate": _round("trunc"),
    "sqrt": _round("sqrt"),
    "fma": _fma,
}
