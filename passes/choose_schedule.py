"""Gives every stage op its schedule, from the target's facts and the gemm or pool it feeds.

Before:
    %pairs = "spconv.compact"(%map)
    %sum   = "spconv.gemm"(%pairs, …)
After:
    %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16}>}
    %sum   = "spconv.gemm"(%pairs, …) {schedule = #spconv.schedule<"pairs_m16", {tile_m = 16, …}>}

Needs and gives level stages. A schedule that is already there is kept. Pairs or weights that two gemms want in
different orders are cloned. Fails when no schedule serves a gemm (every one is listed with its reason), or when
the ops that feed it are not in the same function.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import ClassVar

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import (
    ApplyEpilogueOp,
    CompactOp,
    CrossCompactOp,
    CrossMapOp,
    FillOp,
    GemmOp,
    MapOp,
    OutputCoordsOp,
    PackWeightOp,
    PoolOp,
)
from spconv_compiler.dialect.types import element_type, schedule_attr
from spconv_compiler.errors import ScheduleError
from spconv_compiler.passes.base import Pass, defining_op, location_text, ops_named
from spconv_compiler.schedules import Choice, Chosen, Problem, choose, choose_outputs, choose_pool
from spconv_compiler.schedules.mappers import with_mapper, with_outputs_by
from spconv_compiler.targets import Target, get_target


def schedule_gemm(gemm: GemmOp, chosen: Chosen) -> None:
    """Sets the schedule of a gemm and of what feeds it."""
    _set(gemm, chosen.gemm)
    _schedule_pairs(gemm, chosen)
    _set(_own(gemm, 2, chosen.weights), chosen.weights)
    for value in (gemm.init, *gemm.operation.results):
        rows_ops = [defining_op(value), *(use.owner for use in value.uses)]
        for op in rows_ops:
            if op is not None and op.operation.name in (FillOp.OPERATION_NAME, ApplyEpilogueOp.OPERATION_NAME):
                _set(op, chosen.gemm)


def schedule_pool(pool: PoolOp, chosen: Chosen) -> None:
    """Sets the schedule of a pool and of its pairs."""
    _set(pool, chosen.gemm)
    _schedule_pairs(pool, chosen)


def _schedule_pairs(op: GemmOp | PoolOp, chosen: Chosen) -> None:
    pairs = _own(op, 0, chosen.pairs)
    _set(pairs, chosen.pairs)
    _set(pairs.operands[0].owner, chosen.map)


def _attr(choice: Choice) -> ir.Attribute:
    return schedule_attr(choice.name, dict(choice.parameters))


def _set(op: ir.Operation | ir.OpView, choice: Choice) -> None:
    if "schedule" not in op.operation.attributes:
        op.operation.attributes["schedule"] = _attr(choice)


def _own(gemm: GemmOp | PoolOp, index: int, choice: Choice) -> ir.Operation:
    """The op behind operand `index`, cloned if it already has another schedule."""
    op = gemm.operation.operands[index].owner.operation
    if "schedule" in op.attributes and op.attributes["schedule"] != _attr(choice):
        with ir.InsertionPoint(gemm):
            op = op.clone()
        del op.attributes["schedule"]
        gemm.operation.operands[index] = op.results[0]
    return op


@dataclasses.dataclass(frozen=True)
class ChooseSchedule(Pass):
    """See the module."""

    target: str = "cpu"
    schedule: str = "auto"
    mapper: str = "auto"
    name: ClassVar[str] = "choose-schedule"
    needs: ClassVar[str] = "stages"
    gives: ClassVar[str] = "stages"

    def run(self, module: ir.Module) -> None:
        target = get_target(self.target)
        for op in ops_named(module, OutputCoordsOp.OPERATION_NAME):
            with self._located(op):
                _set(op, with_outputs_by(choose_outputs(target), self.mapper))
        for op in ops_named(module, PoolOp.OPERATION_NAME):
            if op.schedule is None:
                self._check_pairs(op)
                with self._located(op):
                    schedule_pool(op, with_mapper(choose_pool(target), self.mapper))
        for gemm in ops_named(module, GemmOp.OPERATION_NAME):
            if gemm.schedule is None:
                self._check_operands(gemm)
                schedule_gemm(gemm, self._choose(gemm, target))

    def _check_operands(self, gemm: GemmOp) -> None:
        """A schedule also says how pairs and weights are made, so their ops have to be at hand."""
        self._check_pairs(gemm)
        if not isinstance(defining_op(gemm.weight), PackWeightOp):
            self.fail(gemm, "the weight is not packed in this function", "supported: the result of pack_weight")

    def _check_pairs(self, op: GemmOp | PoolOp) -> None:
        pairs = defining_op(op.pairs)
        made = isinstance(pairs, (CompactOp, CrossCompactOp))
        if pairs is None or not made or not isinstance(defining_op(pairs.map), (MapOp, CrossMapOp)):
            note = "supported: compact of map, cross_compact of cross_map"
            self.fail(op, "the pairs are not made in this function", note)

    def _choose(self, gemm: GemmOp, target: Target) -> Chosen:
        dtype = str(element_type(gemm.weight.type))
        between_sets = isinstance(defining_op(gemm.pairs), CrossCompactOp)
        with self._located(gemm):
            problem = Problem(gemm.taps, gemm.c_in, gemm.c_out, dtype, between_sets)
            return with_mapper(choose(problem, target, self.schedule)[1], self.mapper)

    @contextlib.contextmanager
    def _located(self, op: ir.OpView) -> Iterator[None]:
        """Puts the op into the error of a choice that fails."""
        try:
            yield
        except ScheduleError as error:
            raise ScheduleError(
                error.message,
                error.rejections,
                op=op.operation.get_asm(),
                location=location_text(op.operation.location),
                pass_name=self.name,
                level=self.needs,
            ) from None
