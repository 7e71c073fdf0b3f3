"""Lockstep execution of a kernel over all lanes of a launch: values, regions, control flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spconv_compiler.bindings import ir

from .memory import Array, Fault, Shared, storage


class Launch:
    """One kernel launch: values by SSA value, each one number for all lanes or an array [lanes, …].

    A region that less than half of the workgroups enter runs on those alone, in a Launch inside this one.
    """

    def __init__(self, block: int, grid: tuple[int, int, int], lanes: Array, outer: Launch | None = None) -> None:
        self.block, self.grid, self.lanes, self.outer = block, grid, lanes, outer
        self.epoch: int = 0 if outer is None else outer.epoch
        # Where the lanes lie among those of the launch outside.
        self.places = lanes if outer is None else np.searchsorted(outer.lanes, lanes)
        self.values: dict[ir.Value, Any] = {}

    @staticmethod
    def run(kernel: ir.OpView, grid: tuple[int, int, int], arguments: list[Any]) -> None:
        """Runs a gpu.func on buffers and numbers."""
        (block, *_) = ir.DenseI32ArrayAttr(kernel.operation.attributes["known_block_size"])
        groups = grid[0] * grid[1] * grid[2]
        launch = Launch(block, grid, np.arange(groups * block))
        entry = kernel.operation.regions[0].blocks[0]
        shared = [Shared(ir.MemRefType(a.type).shape[0], groups) for a in entry.arguments[len(arguments) :]]
        launch.values = dict(zip(entry.arguments, [*arguments, *shared], strict=True))
        launch.run_block(entry, np.ones(len(launch.lanes), bool))

    def __getitem__(self, value: ir.Value) -> Any:
        if value not in self.values:
            assert self.outer is not None
            known = self.outer[value]
            per_lane = isinstance(known, np.ndarray) and known.ndim and len(known) == len(self.outer.lanes)
            self.values[value] = known[self.places] if per_lane else known
        return self.values[value]

    def run_region(self, block: ir.Block, active: Array) -> list[Any]:
        """What the block yields for the active lanes; the others' results mean nothing."""
        entered = active.reshape(-1, self.block).any(axis=1)
        if entered.sum() * 2 > len(entered):
            return self.run_block(block, active)
        chosen = np.repeat(entered, self.block)
        inner = Launch(self.block, self.grid, self.lanes[chosen], self)
        yielded = inner.run_block(block, active[chosen])
        self.epoch = inner.epoch
        return [self._spread(inner, value) for value in yielded]

    def _spread(self, inner: Launch, value: Any) -> Any:
        """A value of the launch inside as one of this launch."""
        if not np.ndim(value) or len(value) != len(inner.lanes):
            return value
        result = np.zeros((len(self.lanes), *value.shape[1:]), value.dtype)
        result[inner.places] = value
        return result

    def run_block(self, block: ir.Block, active: Array) -> list[Any]:
        """Runs the ops; what the terminator yields."""
        for op in block.operations:
            name = op.operation.name
            if name in ("scf.yield", "scf.condition", "gpu.return"):
                return [self[operand] for operand in op.operation.operands]
            handler = HANDLERS.get(name)
            if handler is None:
                raise Fault(f"no meaning is known for {name}")
            results = handler(self, op, active, *[self[operand] for operand in op.operation.operands])
            for result, value in zip(op.operation.results, results, strict=True):
                self.values[result] = value
        raise Fault("a block without a terminator")

    def full(self, value: Any, width: int = 0) -> Array:
        """The value with one entry for each lane."""
        shape = (len(self.lanes), width) if width > 1 else (len(self.lanes),)
        return np.broadcast_to(np.asarray(value), shape)


HANDLERS: dict[str, Callable[..., list[Any]]] = {}


def handles(*names: str) -> Callable[[Callable[..., list[Any]]], Callable[..., list[Any]]]:
    def register(function: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        for name in names:
            HANDLERS[name] = function
        return function

    return register


def element(type_: ir.Type) -> str:
    """Name of a scalar type, or of a vector's element."""
    return str(ir.VectorType(type_).element_type if isinstance(type_, ir.VectorType) else type_)


def width(type_: ir.Type) -> int:
    """Elements of a vector type; 1 for a scalar."""
    return int(ir.VectorType(type_).shape[0]) if isinstance(type_, ir.VectorType) else 1


def pick(condition: Any, true: Any, false: Any) -> Any:
    """np.where whose scalar or per-lane condition may choose between vectors."""
    condition = np.asarray(condition)
    if condition.ndim == 1 and max(np.ndim(true), np.ndim(false)) == 2:
        condition = condition[:, None]
    return np.where(condition, true, false)


@handles("scf.if")
def _if(launch: Launch, op: ir.OpView, active: Array, condition: Any) -> list[Any]:
    chosen = launch.full(condition)
    outcomes: list[list[Any] | None] = []
    for region, mask in zip(op.operation.regions, (active & chosen, active & ~chosen), strict=True):
        has_block = len(region.blocks) > 0
        outcomes.append(launch.run_region(region.blocks[0], mask) if has_block and mask.any() else None)
    then, otherwise = outcomes
    if not len(op.operation.results):
        return []
    if then is None or otherwise is None:
        return then if then is not None else otherwise if otherwise is not None else _nothing(op)
    return [pick(chosen, true, false) for true, false in zip(then, otherwise, strict=True)]


def _nothing(op: ir.OpView) -> list[Any]:
    """Results that no lane looks at."""
    return [np.zeros(width(r.type), storage(element(r.type))) for r in op.operation.results]


@handles("scf.while")
def _while(launch: Launch, op: ir.OpView, active: Array, *init: Any) -> list[Any]:
    before, after = (region.blocks[0] for region in op.operation.regions)
    carried, running = list(init), active
    results = _nothing(op)
    while running.any():
        for argument, value in zip(before.arguments, carried, strict=True):
            launch.values[argument] = value
        flag, *passed = launch.run_region(before, running)
        results = [pick(running, new, old) for new, old in zip(passed, results, strict=True)]
        running = running & launch.full(flag)
        if not running.any():
            break
        for argument, value in zip(after.arguments, passed, strict=True):
            launch.values[argument] = value
        yielded = launch.run_region(after, running)
        carried = [pick(running, new, old) for new, old in zip(yielded, carried, strict=True)]
    return results


@handles("scf.for")
def _for(launch: Launch, op: ir.OpView, active: Array, lower: Any, upper: Any, step: Any, *init: Any) -> list[Any]:
    body = op.operation.regions[0].blocks[0]
    variable, carried = launch.full(lower), list(init)
    while True:
        running = active & (variable < launch.full(upper))
        if not running.any():
            return carried
        for argument, value in zip(body.arguments, [variable, *carried], strict=True):
            launch.values[argument] = value
        yielded = launch.run_region(body, running)
        carried = [pick(running, new, old) for new, old in zip(yielded, carried, strict=True)]
        variable = variable + step
