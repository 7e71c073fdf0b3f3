"""Text of LLVM-dialect functions: modules, SSA values, operations, control flow.

Everything is text: it is quick to write, and the parser of MLIR checks it. A `Value` is the name of an SSA value with
its MLIR type; methods of `Function` append operations and check that types fit, since LLVM may abort where MLIR's
verifier is content.
"""

from __future__ import annotations

import contextlib
import dataclasses
import struct
from collections.abc import Callable, Iterator, Sequence

CHUNK = 16
POINTER = "!llvm.ptr"


@dataclasses.dataclass(frozen=True)
class Build:
    """What a set of handlers is made for.

    Attributes:
        checks: undefined values, memory rules and races are looked for.
        traced: memory instructions append their addresses to the trace.
        features: of the host, by LLVM's names, such as "avx2".
    """

    checks: bool = True
    traced: bool = False
    features: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Value:
    """An SSA value: its name with the percent sign, and its MLIR type."""

    name: str
    type: str

    def __str__(self) -> str:
        return self.name


def vector_type(element: str, count: int = CHUNK) -> str:
    """The MLIR type of `count` lanes."""
    return f"vector<{count}x{element}>"


def lanes_of(type_: str) -> int:
    """Lanes of a type; 0 for a scalar."""
    return int(type_[7:].split("x")[0]) if type_.startswith("vector<") else 0


def element_of(type_: str) -> str:
    """The type of one lane."""
    return type_[7:-1].split("x", 1)[1] if type_.startswith("vector<") else type_


def bits_of(type_: str) -> int:
    """Bits of an element: of i1, i8, i16, i32, i64, f16, bf16, f32, f64."""
    return int(element_of(type_).removeprefix("b").removeprefix("f").removeprefix("i"))


def like(type_: str, element: str) -> str:
    """The same number of lanes of another element."""
    count = lanes_of(type_)
    return vector_type(element, count) if count else element


class Module:
    """The functions that are compiled together."""

    def __init__(self, build: Build) -> None:
        self.build = build
        self.functions: list[str] = []
        self.handlers: list[str] = []
        self._written: set[str] = set()

    def attributes(self) -> str:
        """Attributes of every function: compile for this host."""
        features = ", ".join(f'"+{name}"' for name in sorted(self.build.features))
        return f'target_cpu = "x86-64", target_features = #llvm.target_features<[{features}]>, no_unwind'

    def once(self, name: str, emit: Callable[[Module], None]) -> str:
        """Has a helper function written the first time that it is asked for; gives the name."""
        if name not in self._written:
            self._written.add(name)
            emit(self)
        return name


class Function:
    """One llvm.func while it is written."""

    def __init__(self, module: Module, name: str, parameters: Sequence[Value], result: str, *, linkage: str) -> None:
        self.module, self.build, self.name = module, module.build, name
        self._head: list[str] = []  # constants
        self._body: list[str] = []
        self._cold: list[str] = []
        self._lines = self._body
        self._count = 0
        self._constants: dict[tuple[str, str], Value] = {}
        listed = ", ".join(f"{p.name}: {p.type}" for p in parameters)
        arrow = f" -> {result}" if result else ""
        self._start = f"llvm.func {linkage} @{name}({listed}){arrow} attributes {{{module.attributes()}}} {{"

    def close(self) -> None:
        """Adds the finished function to the module."""
        self.module.functions.append("\n".join([self._start, *self._head, *self._body, *self._cold, "}"]))

    # Operations.

    def line(self, text: str) -> None:
        """An operation without a result, or a label."""
        self._lines.append(text)

    def op(self, text: str, type_: str) -> Value:
        """An operation with one result, as text without the result."""
        value = self.fresh(type_)
        self._lines.append(f"  {value.name} = {text}")
        return value

    def fresh(self, type_: str) -> Value:
        """A new name, for block arguments."""
        self._count += 1
        return Value(f"%{self._count}", type_)

    def label(self, stem: str = "b") -> str:
        """A new block label, with the caret."""
        self._count += 1
        return f"^{stem}{self._count}"

    def constant(self, value: int | float, type_: str) -> Value:
        """A constant; the same in every lane of a vector. Integers may be given signed or unsigned."""
        element, count = element_of(type_), lanes_of(type_)
        if element[0] == "i":
            bits = bits_of(type_)
            number = int(value) & (1 << bits) - 1
            text = ("true" if number else "false") if bits == 1 else str(number - (number >> bits - 1 << bits))
        else:
            form = {"f16": "<eH", "f32": "<fI", "f64": "<dQ"}[element]
            number = struct.unpack(f"<{form[2]}", struct.pack(form[:2], value))[0]
            text = f"0x{number:0{bits_of(type_) // 4}X}"
        found = self._constants.get((text, type_))
        if found is None:
            found = self._constants[text, type_] = self.fresh(type_)
            short = text if bits_of(type_) == 1 and not count else f"{text} : {type_}"
            full = f"dense<{text}> : {type_}" if count else short
            self._head.append(f"  {found.name} = llvm.mlir.constant({full}) : {type_}")
        return found

    def dense(self, values: Sequence[int], element: str) -> Value:
        """A vector constant with an integer for each lane."""
        type_ = vector_type(element, len(values))
        text = ", ".join(map(str, values))
        found = self._constants.get((text, type_))
        if found is None:
            found = self._constants[text, type_] = self.fresh(type_)
            self._head.append(f"  {found.name} = llvm.mlir.constant(dense<[{text}]> : {type_}) : {type_}")
        return found

    def binary(self, name: str, a: Value, b: Value) -> Value:
        """llvm.<name> of two values of one type: add, sub, mul, and, or, xor, shl, lshr, ashr, fadd, …"""
        if a.type != b.type:
            raise TypeError(f"{self.name}: {name} of {a.type} and {b.type}")
        return self.op(f"llvm.{name} {a}, {b} : {a.type}", a.type)

    def compare(self, predicate: str, a: Value, b: Value) -> Value:
        """llvm.icmp, or llvm.fcmp for floats, to i1 or a vector of it."""
        if a.type != b.type:
            raise TypeError(f"{self.name}: comparison of {a.type} and {b.type}")
        name = "fcmp" if "f" in element_of(a.type) else "icmp"
        return self.op(f'llvm.{name} "{predicate}" {a}, {b} : {a.type}', like(a.type, "i1"))

    def convert(self, name: str, a: Value, type_: str) -> Value:
        """llvm.<name>: zext, sext, trunc, bitcast, fpext, fptrunc, sitofp, …"""
        return self.op(f"llvm.{name} {a} : {a.type} to {type_}", type_)

    def intrinsic(self, name: str, type_: str, *arguments: Value) -> Value:
        """llvm.intr.<name>(…), such as ctpop, umin, fma."""
        listed, types = ", ".join(map(str, arguments)), ", ".join(a.type for a in arguments)
        return self.op(f"llvm.intr.{name}({listed}) : ({types}) -> {type_}", type_)

    def count_zeros(self, name: str, a: Value) -> Value:
        """cttz or ctlz; the width of the element for 0."""
        return self.op(f'"llvm.intr.{name}"({a}) <{{is_zero_poison = false}}> : ({a.type}) -> {a.type}', a.type)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """a or b, by one i1 or by lane."""
        if a.type != b.type or lanes_of(condition.type) not in (0, lanes_of(a.type)):
            raise TypeError(f"{self.name}: select {condition.type}, {a.type}, {b.type}")
        return self.op(f"llvm.select {condition}, {a}, {b} : {condition.type}, {a.type}", a.type)

    def invert(self, a: Value) -> Value:
        """All bits flipped."""
        return self.binary("xor", a, self.constant(-1, a.type))

    def broadcast(self, a: Value, count: int = CHUNK) -> Value:
        """A scalar in every lane."""
        type_ = vector_type(a.type, count)
        first = self.op(
            f"llvm.insertelement {a}, {self.op(f'llvm.mlir.poison : {type_}', type_)}"
            f"[{self.constant(0, 'i64')} : i64] : {type_}",
            type_,
        )
        zeros = ", ".join(["0"] * count)
        return self.op(f"llvm.shufflevector {first}, {first} [{zeros}] : {type_}", type_)

    def address(self, base: Value, *offsets: Value | int) -> Value:
        """base plus offsets in bytes: i64 values and numbers."""
        fixed = sum(offset for offset in offsets if isinstance(offset, int))
        for offset in offsets:
            if isinstance(offset, Value):
                base = self.op(f"llvm.getelementptr {base}[{offset}] : ({POINTER}, i64) -> {POINTER}, i8", POINTER)
        if fixed:
            base = self.op(f"llvm.getelementptr {base}[{fixed}] : ({POINTER}) -> {POINTER}, i8", POINTER)
        return base

    def load(self, pointer: Value, type_: str, alignment: int | None = None) -> Value:
        """Loads; the alignment is that of an element unless given."""
        alignment = alignment or (8 if type_ == POINTER else max(1, bits_of(type_) // 8))
        return self.op(f"llvm.load {pointer} {{alignment = {alignment} : i64}} : {POINTER} -> {type_}", type_)

    def store(self, value: Value, pointer: Value, alignment: int | None = None) -> None:
        """Stores; the alignment is that of an element unless given."""
        alignment = alignment or (8 if value.type == POINTER else max(1, bits_of(value.type) // 8))
        self.line(f"  llvm.store {value}, {pointer} {{alignment = {alignment} : i64}} : {value.type}, {POINTER}")

    def prefetch(self, pointer: Value, *, write: bool = False) -> None:
        """Asks for the cache line of any address, ahead of its use."""
        hints = f"<{{cache = 1 : i32, hint = 3 : i32, rw = {int(write)} : i32}}>"
        self.line(f'  "llvm.intr.prefetch"({pointer}) {hints} : ({POINTER}) -> ()')

    def call(self, name: str, type_: str, *arguments: Value) -> Value:
        """Calls a function of the module."""
        listed, types = ", ".join(map(str, arguments)), ", ".join(a.type for a in arguments)
        if not type_:
            self.line(f"  llvm.call @{name}({listed}) : ({types}) -> ()")
            return Value("", "")
        return self.op(f"llvm.call @{name}({listed}) : ({types}) -> {type_}", type_)

    def call_pointer(self, function: Value, type_: str, *arguments: Value) -> Value:
        """Calls through a pointer: cheaper than by name in code that may lie anywhere."""
        listed, types = ", ".join(map(str, arguments)), ", ".join(a.type for a in arguments)
        text = f"llvm.call {function}({listed}) : {POINTER}, ({types}) -> {type_ or '()'}"
        if not type_:
            self.line(f"  {text}")
            return Value("", "")
        return self.op(text, type_)

    # Control flow.

    def jump(self, label: str, *arguments: Value) -> None:
        """Ends the block."""
        self.line(f"  llvm.br {_target(label, arguments)}")

    def branch(self, condition: Value, then: str, otherwise: str, *, weights: tuple[int, int] | None = None) -> None:
        """Ends the block; neither target takes arguments."""
        weight = f" weights([{weights[0]}, {weights[1]}])" if weights else ""
        self.line(f"  llvm.cond_br {condition}{weight}, {then}, {otherwise}")

    def block(self, label: str, *arguments: Value) -> None:
        """Starts a block."""
        listed = ", ".join(f"{a.name}: {a.type}" for a in arguments)
        self.line(f"{label}({listed}):" if arguments else f"{label}:")

    @contextlib.contextmanager
    def when(self, condition: Value, *, likely: bool | None = None) -> Iterator[None]:
        """What is written inside runs where an i1 holds. Values made inside are not known outside."""
        inside, after = self.label("then"), self.label("join")
        weights = None if likely is None else ((1000, 1) if likely else (1, 1000))
        self.branch(condition, inside, after, weights=weights)
        self.block(inside)
        yield
        self.jump(after)
        self.block(after)

    @contextlib.contextmanager
    def loop(
        self, end: int | Value, step: int = 1, carried: Sequence[Value] = (), *, rolled: bool = False
    ) -> Iterator[Loop]:
        """Runs its body for an i64 index 0, step, … below end, at least once. See Loop for carried values.

        rolled: LLVM may not unroll it.
        """
        start, index = self.constant(0, "i64"), self.fresh("i64")
        state = Loop(index, [self.fresh(value.type) for value in carried])
        head, after = self.label("loop"), self.label("after")
        self.jump(head, start, *carried)
        self.block(head, index, *state.values)
        yield state
        following = self.binary("add", index, self.constant(step, "i64"))
        limit = end if isinstance(end, Value) else self.constant(end, "i64")
        again = self.compare("ult", following, limit)
        nexts = state.nexts or state.values
        state.results = [self.fresh(value.type) for value in carried]
        hint = " {loop_annotation = #llvm.loop_annotation<unroll = <disable = true>>}" if rolled else ""
        self.line(f"  llvm.cond_br {again}, {_target(head, [following, *nexts])}, {_target(after, nexts)}{hint}")
        self.block(after, *state.results)


@dataclasses.dataclass
class Loop:
    """A loop while it is written.

    Attributes:
        index: i64. values: what is carried, as the body sees it. nexts: what the body hands on; set it in the body.
        results: what is carried, behind the loop.
    """

    index: Value
    values: list[Value]
    nexts: list[Value] = dataclasses.field(default_factory=list)
    results: list[Value] = dataclasses.field(default_factory=list)


def _target(label: str, arguments: Sequence[Value]) -> str:
    if not arguments:
        return label
    listed, types = ", ".join(map(str, arguments)), ", ".join(a.type for a in arguments)
    return f"{label}({listed} : {types})"
