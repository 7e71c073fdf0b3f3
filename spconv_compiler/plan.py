"""The launch plan: the host side of a compiled convolution as data, readable without MLIR.

A plan says which buffers exist and how large they are, and which kernels run in what order on which arguments.
Sizes and grids are expressions over run-time symbols (rows, cells, threads), kept as nested lists so that they
go to JSON and back: `["ceildiv", ["mul", "rows", 27], 16]`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from spconv_compiler.errors import LaunchError, VerifyError

if TYPE_CHECKING:
    from spconv_compiler.bindings import ir

Expr: TypeAlias = "int | str | list[Any]"


def evaluate(expr: Expr, symbols: Mapping[str, int]) -> int:
    """The value of a size or grid expression."""
    if isinstance(expr, int):
        return expr
    if isinstance(expr, str):
        return symbols[expr]
    left, right = evaluate(expr[1], symbols), evaluate(expr[2], symbols)
    match expr[0]:
        case "add":
            return left + right
        case "mul":
            return left * right
        case "mod":
            return left % right
        case "floordiv":
            return left // right
        case "ceildiv":
            return -(-left // right)
        case "min":
            return min(left, right)
    raise ValueError(f"unknown operator in plan expression {expr}")


def compiled(exprs: Sequence[Expr]) -> Callable[[Mapping[str, int]], tuple[int, ...]]:
    """A function of the symbols that gives the values of several expressions, ten times as fast as `evaluate`.

    Raises:
        ValueError: an expression has an unknown operator.
    """
    values = "".join(f"{_source(expr)}, " for expr in exprs)
    function: Callable[[Mapping[str, int]], tuple[int, ...]] = eval(f"lambda symbols: ({values})")
    return function


def _source(expr: Expr) -> str:
    """The Python text of an expression; nothing but numbers, names as string constants and these operators."""
    if isinstance(expr, int):
        return f"{expr:d}"
    if isinstance(expr, str):
        return f"symbols[{expr!r}]"
    operator, left, right = expr[0], _source(expr[1]), _source(expr[2])
    match operator:
        case "ceildiv":
            return f"-(-({left}) // ({right}))"
        case "min":
            return f"min({left}, {right})"
    signs = {"add": "+", "mul": "*", "mod": "%", "floordiv": "//"}
    if operator not in signs:
        raise ValueError(f"unknown operator in plan expression {expr}")
    return f"({left}) {signs[operator]} ({right})"


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A buffer of the plan: `size` elements of `dtype`; `grows`: the size is a guess, see spconv.alloc."""

    name: str
    dtype: str
    size: Expr
    grows: bool = False


@dataclasses.dataclass(frozen=True)
class Argument:
    """A kernel argument: a buffer (kind "buffer") or a number (kind "symbol", dtype i32 or i64)."""

    kind: str
    name: str
    dtype: str


@dataclasses.dataclass(frozen=True)
class Launch:
    """One kernel launch: workgroups per axis, lanes per workgroup, arguments, and the group it belongs to."""

    kernel: str
    grid: tuple[Expr, ...]
    block: int
    group: str
    arguments: tuple[Argument, ...]


@dataclasses.dataclass(frozen=True)
class Requirement:
    """A condition on the symbols: expr ≤ limit, else `message`."""

    expr: Expr
    limit: int
    message: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """The host side of one compiled function.

    Attributes:
        inputs: what the caller passes, in order, as (name, dtype); the output `out` is among them.
        buffers: what the plan allocates.
        launches: in order.
        requires: what must hold before anything is launched.
    """

    inputs: tuple[tuple[str, str], ...]
    buffers: tuple[Buffer, ...]
    launches: tuple[Launch, ...]
    requires: tuple[Requirement, ...] = ()

    @functools.cached_property
    def _required(self) -> Callable[[Mapping[str, int]], tuple[int, ...]]:
        return compiled([requirement.expr for requirement in self.requires])

    def check(self, symbols: Mapping[str, int]) -> None:
        """Raises LaunchError when a requirement does not hold."""
        for requirement, found in zip(self.requires, self._required(symbols), strict=True):
            if found > requirement.limit:
                raise LaunchError(f"{requirement.message}: found {found}, accepted: at most {requirement.limit}")

    def to_json(self) -> str:
        """As JSON text; `from_json` is its inverse."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @staticmethod
    def from_json(text: str | bytes) -> Plan:
        """The plan that `to_json` wrote."""
        data = json.loads(text)
        launches = tuple(
            Launch(
                item["kernel"],
                tuple(item["grid"]),
                item["block"],
                item["group"],
                tuple(Argument(**argument) for argument in item["arguments"]),
            )
            for item in data["launches"]
        )
        return Plan(
            tuple((name, dtype) for name, dtype in data["inputs"]),
            tuple(Buffer(**item) for item in data["buffers"]),
            launches,
            tuple(Requirement(**item) for item in data["requires"]),
        )


def extract_plan(module: ir.Module) -> Plan:
    """The plan that the host function of a module (level gpu or later, loops or later) says.

    Raises:
        VerifyError: the module has no host plan, or its IR is not one.
    """
    from spconv_compiler.bindings import func

    functions = [op for op in module.body.operations if isinstance(op, func.FuncOp)]
    if len(functions) != 1:
        raise VerifyError(f"the module has {len(functions)} functions on the host side; accepted: one")
    return _Extractor(functions[0]).plan()


class _Extractor:
    """Walks a host plan once, naming buffers as it goes."""

    def __init__(self, function: Any) -> None:
        self.function = function
        from spconv_compiler.dialect.plan import SYMBOLS

        self.names: dict[Any, str] = {}
        # Buffers and symbols share one name space, so that a run can look both up in one table.
        self.taken: set[str] = set(SYMBOLS)

    def plan(self) -> Plan:
        from spconv_compiler.bindings import ir
        from spconv_compiler.dialect import AllocOp, LaunchOp
        from spconv_compiler.dialect.types import element_type

        inputs = self._inputs()
        buffers, launches = [], []
        for op in self.function.regions[0].blocks[0].operations:
            if isinstance(op, AllocOp):
                result = op.operation.results[0]
                name = self._name(result, ir.StringAttr(op.attribute("name")).value)
                size = _expr_of_map(op.attribute("size"))
                buffers.append(Buffer(name, str(element_type(result.type)), size, op.attribute("grows") is not None))
            elif isinstance(op, LaunchOp):
                launches.append(self._launch(op))
        return Plan(inputs, tuple(buffers), tuple(launches), self._requires())

    def _inputs(self) -> tuple[tuple[str, str], ...]:
        from spconv_compiler.bindings import ir
        from spconv_compiler.dialect.types import element_type, is_buffer

        arguments = self.function.regions[0].blocks[0].arguments if len(self.function.regions[0].blocks) else ()
        given = self.function.attributes["arg_attrs"] if "arg_attrs" in self.function.attributes else ()
        named = [entry for entry in map(ir.DictAttr, given) if "spconv.name" in entry]
        if len(arguments) == 0 or len(named) != len(arguments) or not all(is_buffer(a.type) for a in arguments):
            raise VerifyError(
                "the function on the host side is no plan",
                op=self.function.operation.get_asm(skip_regions=True),
                location=str(self.function.location),
                notes=("a plan takes buffers, each with a spconv.name (convert-host-to-plan gives them)",),
            )
        names = [ir.StringAttr(entry["spconv.name"]).value for entry in named]
        return tuple(
            (self._name(argument, name), str(element_type(argument.type)))
            for argument, name in zip(arguments, names, strict=True)
        )

    def _name(self, value: Any, wanted: str) -> str:
        name, number = wanted, 1
        while name in self.taken:
            name, number = f"{wanted}_{number}", number + 1
        self.taken.add(name)
        self.names[value] = name
        return name

    def _launch(self, op: Any) -> Launch:
        from spconv_compiler.bindings import ir
        from spconv_compiler.dialect import SymbolOp
        from spconv_compiler.dialect.types import element_type
        from spconv_compiler.passes.base import defining_op

        arguments = []
        for value in op.arguments:
            producer = defining_op(value)
            if isinstance(producer, SymbolOp):
                name = ir.StringAttr(producer.attribute("name")).value
                arguments.append(Argument("symbol", name, str(value.type)))
            else:
                arguments.append(Argument("buffer", self.names[value], str(element_type(value.type))))
        kernel = ir.SymbolRefAttr(op.attribute("kernel")).value[-1]
        grid = tuple(_expr_of_map(axis) for axis in op.attribute("grid"))
        block = op.attribute("block")
        group = op.attribute("group")
        return Launch(
            kernel,
            grid,
            1 if block is None else int(ir.IntegerAttr(block).value),
            "output" if group is None else ir.StringAttr(group).value,
            tuple(arguments),
        )

    def _requires(self) -> tuple[Requirement, ...]:
        from spconv_compiler.bindings import ir

        if "spconv.requires" not in self.function.attributes:
            return ()
        found = []
        for item in self.function.attributes["spconv.requires"]:
            entry = ir.DictAttr(item)
            found.append(
                Requirement(
                    _expr_of_map(entry["size"]),
                    int(ir.IntegerAttr(entry["limit"]).value),
                    ir.StringAttr(entry["message"]).value,
                )
            )
        return tuple(found)


def _expr_of_map(attribute: Any) -> Expr:
    from spconv_compiler.bindings import ir
    from spconv_compiler.dialect.plan import SIZE_SYMBOLS

    least, *others = (_expr(result, SIZE_SYMBOLS) for result in ir.AffineMapAttr(attribute).value.results)
    # A grid with several results means the least of them.
    for other in others:
        least = ["min", least, other]
    return least


def _expr(expr: Any, symbols: tuple[str, ...]) -> Expr:
    from spconv_compiler.bindings import ir

    if isinstance(expr, ir.AffineConstantExpr):
        return int(expr.value)
    if isinstance(expr, ir.AffineSymbolExpr):
        return symbols[int(expr.position)]
    operators = {
        "add": ir.AffineAddExpr,
        "mul": ir.AffineMulExpr,
        "mod": ir.AffineModExpr,
        "floordiv": ir.AffineFloorDivExpr,
        "ceildiv": ir.AffineCeilDivExpr,
    }
    for name, kind in operators.items():
        if isinstance(expr, kind):
            return [name, _expr(expr.lhs, symbols), _expr(expr.rhs, symbols)]
    raise VerifyError(f"a size or grid is {expr}; accepted: sums, products, quotients and remainders of symbols")
