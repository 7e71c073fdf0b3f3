"""From a network at level spconv, after its passes, to its plan."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from spconv_compiler.bindings import func, ir
from spconv_compiler.dialect import (
    AffineOp,
    ConcatOp,
    OutputCoordsOp,
    PointwiseOp,
    SparseConv3dOp,
    SparsePool3dOp,
    SubmConv3dOp,
    UnionCoordsOp,
)
from spconv_compiler.dialect.rules import channels, element
from spconv_compiler.dialect.types import type_name
from spconv_compiler.epilogue import Epilogue
from spconv_compiler.geometry import ConvGeometry, Triple
from spconv_compiler.network.graph import Graph
from spconv_compiler.network.importer import BATCH, EXTRA, NAME, SHAPE
from spconv_compiler.network.parameters import Numbers
from spconv_compiler.network.plan import Level, MapPlan, NetworkPlan, Step, Value
from spconv_compiler.passes.base import defining_op

_MODULE = re.compile(r'^loc\("([^"]*)"')
_Between = (SparseConv3dOp, SparsePool3dOp)
_OnRows = (PointwiseOp, AffineOp, ConcatOp)


def build_plan(graph: Graph) -> NetworkPlan:
    """The plan of a graph that network_passes have run on.

    Raises:
        CompileError: an op is left that has no step.
    """
    with graph.context, ir.Location.unknown():
        return _Builder(graph).plan()


class _Builder:
    def __init__(self, graph: Graph) -> None:
        (function,) = (op for op in graph.module.body.operations if isinstance(op, func.FuncOp))
        self._block = function.regions[0].blocks[0]
        self._attributes = [ir.DictAttr(entry) for entry in function.attributes["arg_attrs"]]
        self._numbers = Numbers(graph.parameters)
        self._ops = list(self._block.operations)
        self._level_of: dict[ir.Value, int] = {}
        self._levels: list[Level] = []
        self._maps: dict[tuple[Any, ...], int] = {}
        self._plans: list[MapPlan] = []
        self._values: list[Value] = []
        self._value_of: dict[ir.Value, int] = {}
        self._steps: list[Step] = []

    def plan(self) -> NetworkPlan:
        arguments = [("level" if self._is_coords(value) else "value", value) for value in self._block.arguments]
        for place, ((kind, argument), attributes) in enumerate(zip(arguments, self._attributes, strict=True)):
            if kind == "level":
                name = ir.StringAttr(attributes[NAME]).value
                self._add_level(argument, Level(name, place, None, *_limits(attributes)))
        for op in self._ops:
            if isinstance(op, OutputCoordsOp):
                self._add_outputs(op)
            elif isinstance(op, UnionCoordsOp):
                self._add_union(op)
        self._spread_levels()
        for (kind, argument), attributes in zip(arguments, self._attributes, strict=True):
            if kind == "value":
                self._value(argument, ir.StringAttr(attributes[NAME]).value)
        for op in self._ops:
            self._step(op)
        results = self._ops[-1].operation.operands
        return NetworkPlan(
            tuple((kind, self._number(kind, value)) for kind, value in arguments),
            tuple(self._levels),
            tuple(self._plans),
            tuple(self._values),
            tuple(self._steps),
            tuple(self._result(value) for value in results),
        )

    @staticmethod
    def _is_coords(value: ir.Value) -> bool:
        return type_name(value.type) == "spconv.coords"

    def _number(self, kind: str, value: ir.Value) -> int:
        return self._level_of[value] if kind == "level" else self._value_of[value]

    def _result(self, value: ir.Value) -> tuple[str, int]:
        kind = "level" if self._is_coords(value) else "value"
        return kind, self._number(kind, value)

    def _add_level(self, value: ir.Value, level: Level) -> int:
        self._level_of[value] = len(self._levels)
        self._levels.append(level)
        return self._level_of[value]

    def _add_outputs(self, op: OutputCoordsOp) -> None:
        attributes = op.operation.attributes
        shape, batches = _limits(attributes)
        geometry = _geometry(op, op.kernel_size, op.transposed)
        extra = _triple(attributes[EXTRA]) if EXTRA in attributes else (0, 0, 0)
        reads = self._level_of[op.coords]
        out_shape = None if shape is None else geometry.output_shape(shape, extra)
        place = len(self._plans)
        level = self._add_level(op.operation.results[0], Level(_name(op), None, place, out_shape, batches))
        self._plans.append(MapPlan(reads, level, geometry, False, True, extra))
        self._maps[self._key(reads, level, geometry)] = place

    def _add_union(self, op: UnionCoordsOp) -> None:
        first, second = (self._level_of[value] for value in op.parts)
        limits = _limits(op.operation.attributes)
        self._add_level(op.operation.results[0], Level(_name(op), None, None, *limits, (first, second)))

    @staticmethod
    def _key(reads: int, writes: int, geometry: ConvGeometry) -> tuple[Any, ...]:
        """Equal for both directions of one map."""
        fine, coarse = (writes, reads) if geometry.transposed else (reads, writes)
        return fine, coarse, dataclasses.replace(geometry, transposed=False)

    def _map(self, reads: int, writes: int, geometry: ConvGeometry) -> tuple[int, bool]:
        """(number of the map between two levels, whether it is run from its outputs to its inputs)."""
        key = self._key(reads, writes, geometry)
        if key not in self._maps:
            self._maps[key] = len(self._plans)
            self._plans.append(MapPlan(reads, writes, geometry, False))
        place = self._maps[key]
        return place, self._plans[place].geometry.transposed != geometry.transposed

    def _submanifold(self, level: int, kernel_size: Triple, dilation: Triple) -> int:
        key = (level, kernel_size, dilation)
        if key not in self._maps:
            self._maps[key] = len(self._plans)
            self._plans.append(MapPlan(level, level, ConvGeometry(kernel_size, dilation=dilation), True))
        return self._maps[key]

    def _spread_levels(self) -> None:
        """Finds the level of every value: that of its convolutions, and one for all operands of an op on rows."""
        for op in self._ops:
            if isinstance(op, SubmConv3dOp):
                self._level_of[op.features] = self._level_of[op.operation.results[0]] = self._level_of[op.coords]
            elif isinstance(op, _Between):
                self._level_of[op.features] = self._level_of[op.coords]
                self._level_of[op.operation.results[0]] = self._level_of[op.out_coords]
        rows = [_rows_of(op) for op in self._ops if isinstance(op, _OnRows)]
        # Forwards along the program, and backwards to arguments.
        for group in [*rows, *reversed(rows)]:
            known = next((self._level_of[value] for value in group if value in self._level_of), None)
            if known is not None:
                self._level_of.update(dict.fromkeys(group, known))

    def _value(self, value: ir.Value, name: str) -> int:
        self._value_of[value] = len(self._values)
        self._values.append(Value(self._level_of[value], channels(value), str(element(value)), name))
        return self._value_of[value]

    def _step(self, op: ir.OpView) -> None:
        match op:
            case SubmConv3dOp():
                size, dilation = _three(op.kernel_size), _three(op.dilation)
                map_ = self._submanifold(self._level_of[op.coords], size, dilation)
                self._convolution(op, "subm_conv", (map_, False), {"kernel_size": size, "dilation": dilation})
            case SparseConv3dOp():
                geometry = _geometry(op, op.kernel_size, op.transposed)
                found = self._map(self._level_of[op.coords], self._level_of[op.out_coords], geometry)
                self._convolution(op, "conv", found, {"geometry": geometry})
            case SparsePool3dOp():
                geometry = _geometry(op, op.kernel_size, False)
                found = self._map(self._level_of[op.coords], self._level_of[op.out_coords], geometry)
                self._add(op, f"{op.mode}_pool", found, [("features", op.features)], [], {"geometry": geometry})
            case PointwiseOp() if not self._is_end(op):
                residual = [] if op.residual is None else [("residual", op.residual)]
                self._add(op, "pointwise", None, [("features", op.input), *residual], [], _ending(op.epilogue))
            case AffineOp():
                vectors = [("scale", op.scale), ("shift", op.shift)]
                self._add(op, "affine", None, [("features", op.input)], vectors, {})
            case ConcatOp():
                first, second = op.parts
                self._add(op, "concat", None, [("features", first), ("second", second)], [], {})

    def _is_end(self, op: PointwiseOp) -> bool:
        """Whether a convolution's step does the op's work."""
        conv = defining_op(op.input)
        return isinstance(conv, (SubmConv3dOp, SparseConv3dOp)) and _end_of(conv) is not None

    def _convolution(self, op: Any, operation: str, map_: tuple[int, bool], more: dict[str, Any]) -> None:
        end = _end_of(op)
        vectors = [("weight", op.weight)] + ([] if op.bias is None else [("bias", op.bias)])
        reads = [("features", op.features)] + ([] if end is None else [("residual", end.residual)])
        epilogue = op.epilogue if end is None else end.epilogue
        self._add(op if end is None else end, operation, map_, reads, vectors, {**more, **_ending(epilogue)}, op)

    def _add(
        self,
        op: Any,
        operation: str,
        map_: tuple[int, bool] | None,
        reads: list[tuple[str, ir.Value]],
        vectors: list[tuple[str, ir.Value]],
        more: dict[str, Any],
        conv: Any = None,
    ) -> None:
        result, names = op.operation.results[0], [name for name, _ in (*reads, *vectors)]
        options = {
            "c_in": channels(reads[0][1]),
            "c_out": channels(result),
            "dtype": str(element(reads[0][1])),
            "out_dtype": str(element(result)),
            "bias": "bias" in names,
            "residual": "residual" in names,
            **more,
        }
        place, inverse = map_ or (None, False)
        given = tuple((name, self._value_of[value]) for name, value in reads)
        numbers = tuple((name, self._numbers(value)) for name, value in vectors)
        name = _name(conv or op)
        out = self._value(result, name)
        recipes = tuple((name, self._numbers.recipe(value)) for name, value in vectors)
        self._steps.append(Step(name, operation, place, inverse, options, given, numbers, out, recipes))


def _end_of(conv: Any) -> PointwiseOp | None:
    """The op that adds a residual to a convolution's f32 sum and that the convolution's kernel does.

    The residual must be there when the convolution runs. Before fuse-pointwise it may be made after it.
    """
    (result,) = conv.operation.results
    users = [use.owner.operation.opview for use in result.uses]
    if len(users) != 1 or not isinstance(users[0], PointwiseOp) or users[0].residual is None:
        return None
    op = users[0]
    fits = op.input == result and conv.epilogue == Epilogue() and str(element(result)) == "f32"
    fits = fits and element(op.residual) == element(op.operation.results[0])
    return op if fits and _is_before(op.residual, conv) else None


def _is_before(value: ir.Value, op: Any) -> bool:
    """Whether a value is there before an op of the same block."""
    made = defining_op(value)
    return made is None or made.operation.is_before_in_block(op.operation)


def _rows_of(op: ir.OpView) -> list[ir.Value]:
    if isinstance(op, ConcatOp):
        return [*op.parts, op.operation.results[0]]
    more = [op.residual] if isinstance(op, PointwiseOp) and op.residual is not None else []
    return [op.input, *more, op.operation.results[0]]


def _ending(epilogue: Epilogue) -> dict[str, Any]:
    return dataclasses.asdict(epilogue)


def _geometry(op: Any, kernel_size: Iterable[int], transposed: bool) -> ConvGeometry:
    size, stride, padding, dilation = map(_three, (kernel_size, op.stride, op.padding, op.dilation))
    return ConvGeometry(size, stride, padding, dilation, transposed)


def _three(values: Iterable[int]) -> Triple:
    z, y, x = values
    return z, y, x


def _triple(attribute: ir.Attribute) -> Triple:
    return _three(ir.DenseI64ArrayAttr(attribute))


def _limits(attributes: Any) -> tuple[Triple | None, int | None]:
    shape = _triple(attributes[SHAPE]) if SHAPE in attributes else None
    return shape, int(ir.IntegerAttr(attributes[BATCH]).value) if BATCH in attributes else None


def _name(op: Any) -> str:
    """The module that an op was."""
    found = _MODULE.match(str(op.operation.location))
    return found[1] if found else op.operation.name
