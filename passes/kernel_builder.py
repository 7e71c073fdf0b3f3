"""A small builder for kernels: Python operators on SSA values, and control flow as context managers.

    row = lane % 16 + tile * 16
    with if_(row < rows):
        store(value, pointer, row)

Python numbers next to a value become constants of its type. Integers are signless: `<` compares signed, `ult`
unsigned, and `//`, `%`, `>>` are unsigned because kernels divide counts and offsets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Union

from spconv_compiler.bindings import ir, scf

Operand = Union["V", int, float]

_SIGNED = {"eq": 0, "ne": 1, "slt": 2, "sle": 3, "sgt": 4, "sge": 5, "ult": 6, "ule": 7, "ugt": 8, "uge": 9}
_ORDERED = {"eq": 1, "sgt": 2, "sge": 3, "slt": 4, "sle": 5}
# In place of a constant index: the next operand is the index.
_DYNAMIC = -(2**31)
_FLOATS = (ir.F16Type, ir.BF16Type, ir.F32Type, ir.F64Type)


def i1() -> ir.Type:
    return ir.IntegerType.get_signless(1)


def i32() -> ir.Type:
    return ir.IntegerType.get_signless(32)


def i64() -> ir.Type:
    return ir.IntegerType.get_signless(64)


def f32() -> ir.Type:
    return ir.F32Type.get()


def vec(lanes: int, element: ir.Type) -> ir.Type:
    """vector<lanes x element>."""
    return ir.VectorType.get([lanes], element)


def scalar(type_: ir.Type) -> ir.Type:
    """The element type of a vector, or the type itself."""
    return ir.VectorType(type_).element_type if isinstance(type_, ir.VectorType) else type_


def is_float(type_: ir.Type) -> bool:
    return isinstance(scalar(type_), _FLOATS)


def bits(type_: ir.Type) -> int:
    """Width of a scalar type; index and pointers count as 64."""
    element = scalar(type_)
    return int(element.width) if isinstance(element, (ir.IntegerType, ir.FloatType)) else 64


def build(name: str, type_: ir.Type, *operands: ir.Value, **attributes: ir.Attribute) -> V:
    """Any op with one result: a fifth of the time that its class takes to make it."""
    return V(ir.Operation.create(name, [type_], operands, attributes).result)


class V:
    """An SSA value with operators."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        if isinstance(value, ir.Value):
            self.value: ir.Value = value
        else:
            self.value = value.value if isinstance(value, V) else value.result

    @property
    def type(self) -> ir.Type:
        return self.value.type

    def _binary(self, other: Operand, int_op: str, float_op: str) -> V:
        type_ = self.value.type
        right = like(other, type_)
        op = float_op if is_float(type_) else int_op
        if not op:
            raise TypeError(f"no such operation on {type_}")
        return build(op, type_, self.value, right.value)

    def __add__(self, other: Operand) -> V:
        return self._binary(other, "arith.addi", "arith.addf")

    def __sub__(self, other: Operand) -> V:
        return self._binary(other, "arith.subi", "arith.subf")

    def __mul__(self, other: Operand) -> V:
        return self._binary(other, "arith.muli", "arith.mulf")

    def __floordiv__(self, other: Operand) -> V:
        return self._binary(other, "arith.divui", "")

    def __mod__(self, other: Operand) -> V:
        return self._binary(other, "arith.remui", "")

    def __and__(self, other: Operand) -> V:
        return self._binary(other, "arith.andi", "")

    def __or__(self, other: Operand) -> V:
        return self._binary(other, "arith.ori", "")

    def __xor__(self, other: Operand) -> V:
        return self._binary(other, "arith.xori", "")

    def __lshift__(self, other: Operand) -> V:
        return self._binary(other, "arith.shli", "")

    def __rshift__(self, other: Operand) -> V:
        return self._binary(other, "arith.shrui", "")

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: Operand) -> V:
        return like(other, self.type) - self

    def compare(self, predicate: str, other: Operand) -> V:
        """i1: predicate is eq, ne, slt, sle, sgt, sge, ult, ule, ugt or uge; ordered comparison on floats."""
        type_ = self.value.type
        right = like(other, type_)
        op, numbers = ("arith.cmpf", _ORDERED) if is_float(type_) else ("arith.cmpi", _SIGNED)
        flag = vec(type_.shape[0], i1()) if isinstance(type_, ir.VectorType) else i1()
        return build(op, flag, self.value, right.value, predicate=ir.IntegerAttr.get(i64(), numbers[predicate]))

    def __lt__(self, other: Operand) -> V:
        return self.compare("slt", other)

    def __le__(self, other: Operand) -> V:
        return self.compare("sle", other)

    def __gt__(self, other: Operand) -> V:
        return self.compare("sgt", other)

    def __ge__(self, other: Operand) -> V:
        return self.compare("sge", other)

    def eq(self, other: Operand) -> V:
        return self.compare("eq", other)

    def ne(self, other: Operand) -> V:
        return self.compare("ne", other)

    def ult(self, other: Operand) -> V:
        return self.compare("ult", other)

    def select(self, true: Operand, false: Operand) -> V:
        """true where this i1 holds, else false; at least one of them is a value."""
        type_ = true.type if isinstance(true, V) else false.type if isinstance(false, V) else None
        if type_ is None:
            raise TypeError("select needs a value on one side")
        return build("arith.select", type_, self.value, like(true, type_).value, like(false, type_).value)

    def min(self, other: Operand) -> V:
        """Signed minimum."""
        return self._binary(other, "arith.minsi", "arith.minnumf")

    def umin(self, other: Operand) -> V:
        """Unsigned minimum."""
        return self._binary(other, "arith.minui", "")

    def max(self, other: Operand) -> V:
        """Signed maximum."""
        return self._binary(other, "arith.maxsi", "arith.maxnumf")

    def to(self, type_: ir.Type, *, signed: bool = False) -> V:
        """Converts between integer widths (zero-extending unless `signed`), float widths, and index."""
        mine = self.value.type
        if type_ == mine:
            return self
        if isinstance(type_, ir.IndexType) or isinstance(mine, ir.IndexType):
            return build("arith.index_cast" if signed else "arith.index_castui", type_, self.value)
        wider = bits(type_) > bits(mine)
        if is_float(mine) and is_float(type_):
            return build("arith.extf" if wider else "arith.truncf", type_, self.value)
        if is_float(mine) or is_float(type_):
            raise TypeError(f"no conversion from {mine} to {type_}; use bitcast")
        if wider:
            return build("arith.extsi" if signed else "arith.extui", type_, self.value)
        return build("arith.trunci", type_, self.value)

    def bitcast(self, type_: ir.Type) -> V:
        """The same bits as another type of the same size; scalars and vectors alike."""
        vectors = isinstance(self.type, ir.VectorType) and isinstance(type_, ir.VectorType)
        return build("vector.bitcast" if vectors else "llvm.bitcast", type_, self.value)

    def broadcast(self, lanes: int) -> V:
        """A vector with this scalar in every lane."""
        return build("vector.broadcast", vec(lanes, self.type), self.value)

    def lane(self, index: int) -> V:
        """One element of a vector."""
        place = ir.DenseI64ArrayAttr.get([index])
        return build("vector.extract", scalar(self.type), self.value, static_position=place)


def const(number: int | float, type_: ir.Type) -> V:
    """A constant; a vector type gives a splat."""
    element = scalar(type_)
    if is_float(element):
        attribute: ir.Attribute = ir.FloatAttr.get(element, float(number))
    else:
        attribute = ir.IntegerAttr.get(element, int(number))
    if isinstance(type_, ir.VectorType):
        attribute = ir.DenseElementsAttr.get_splat(type_, attribute)
    return build("arith.constant", type_, value=attribute)


def like(operand: Operand, type_: ir.Type) -> V:
    """`operand` as a value of `type_`: a number becomes a constant, a value must have the type already."""
    if not isinstance(operand, V):
        return const(operand, type_)
    if operand.value.type != type_:
        raise TypeError(f"operands have types {type_} and {operand.type}")
    return operand


def fma(a: V, b: V, c: V) -> V:
    """a·b + c, rounded once; scalars or vectors."""
    return build("math.fma", c.type, a.value, b.value, c.value)


def unwrap(values: Sequence[V]) -> list[ir.Value]:
    return [value.value for value in values]


class Loop:
    """A running `for_`: the induction variable, the carried values, and where the next ones go."""

    def __init__(self, op: Any) -> None:
        self._op = op
        self._yielded = False
        self.iv = V(op.induction_variable)
        self.args = [V(argument) for argument in op.inner_iter_args]

    def yields(self, *values: V) -> None:
        """Ends the body with the carried values of the next iteration."""
        scf.yield_(unwrap(values))
        self._yielded = True

    @property
    def results(self) -> list[V]:
        """The carried values after the last iteration."""
        return [V(result) for result in self._op.results]


@contextlib.contextmanager
def for_(
    lower: Operand, upper: V, step: Operand = 1, init: Sequence[V] = (), *, unroll: bool = True
) -> Iterator[Loop]:
    """`scf.for` over [lower, upper); `unroll=False` keeps LLVM from unrolling or vectorising it by itself."""
    op = scf.ForOp(like(lower, upper.type).value, upper.value, like(step, upper.type).value, unwrap(init))
    if not unroll:
        op.operation.attributes["loop_annotation"] = ir.Attribute.parse(
            "#llvm.loop_annotation<vectorize = <disable = true>, unroll = <disable = true>>"
        )
    with ir.InsertionPoint(op.body):
        loop = Loop(op)
        yield loop
        if not loop._yielded:
            if init:
                raise ValueError("a loop that carries values must end with yields(...)")
            scf.yield_([])


@contextlib.contextmanager
def if_(condition: V) -> Iterator[None]:
    """`scf.if` without results."""
    op = scf.IfOp(condition.value)
    with ir.InsertionPoint(op.then_block):
        yield
        scf.yield_([])


def if_else(condition: V, then: Callable[[], Sequence[V]], otherwise: Callable[[], Sequence[V]]) -> list[V]:
    """`scf.if` with results; both functions return values of the same types."""
    probe = scf.IfOp(condition.value, [], has_else=True)
    with ir.InsertionPoint(probe.then_block):
        then_values = unwrap(then())
        scf.yield_(then_values)
    op = scf.IfOp(condition.value, [value.type for value in then_values], has_else=True)
    # The result types are known only after `then` was built, so its body moves into the final op.
    for inner in list(probe.then_block.operations):
        op.then_block.append(inner)
    probe.operation.erase()
    with ir.InsertionPoint(op.else_block):
        scf.yield_(unwrap(otherwise()))
    return [V(result) for result in op.results]


def while_(
    init: Sequence[V], condition: Callable[..., tuple[V, Sequence[V]]], body: Callable[..., Sequence[V]]
) -> list[V]:
    """`scf.while`: condition(*values) gives (i1, values for the body and the results); body gives the next ones."""
    types = [value.type for value in init]
    op = scf.WhileOp(types, unwrap(init))
    locations = [ir.Location.current for _ in types]
    before = op.regions[0].blocks.append(*types, arg_locs=locations)
    with ir.InsertionPoint(before):
        flag, passed = condition(*[V(argument) for argument in before.arguments])
        scf.ConditionOp(flag.value, unwrap(passed))
    after = op.regions[1].blocks.append(*types, arg_locs=locations)
    with ir.InsertionPoint(after):
        scf.yield_(unwrap(body(*[V(argument) for argument in after.arguments])))
    return [V(result) for result in op.results]


def gep(pointer: V, index: Operand, element: ir.Type) -> V:
    """pointer + index elements of `element` (an llvm.ptr; the index is i32, sign-extended, or i64)."""
    if isinstance(index, V):
        dynamic, constant = [index.value], _DYNAMIC
    else:
        dynamic, constant = [], int(index)
    places = ir.DenseI32ArrayAttr.get([constant])
    attributes = {"rawConstantIndices": places, "elem_type": ir.TypeAttr.get(element)}
    return build("llvm.getelementptr", pointer.type, pointer.value, *dynamic, **attributes)


def load(pointer: V, type_: ir.Type, index: Operand = 0, *, align: int | None = None) -> V:
    """Loads `type_` at `index` elements (of its scalar type) from an llvm.ptr.

    `align` is in bytes and defaults to one scalar: a vector that promises more faults when it is not true.
    """
    address = gep(pointer, index, scalar(type_))
    return build("llvm.load", type_, address.value, alignment=_alignment(type_, align))


def store(value: V, pointer: V, index: Operand = 0, *, align: int | None = None) -> None:
    """Stores at `index` elements (of the value's scalar type) behind an llvm.ptr; `align` as in load."""
    type_ = value.type
    address = gep(pointer, index, scalar(type_))
    ir.Operation.create("llvm.store", [], [value.value, address.value], {"alignment": _alignment(type_, align)})


def _alignment(type_: ir.Type, given: int | None) -> ir.Attribute:
    return ir.IntegerAttr.get(i64(), given or max(bits(type_) // 8, 1))
