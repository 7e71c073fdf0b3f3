"""The numbers behind values of parameters alone: what a network is loaded with."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import NormScaleOp, NormShiftOp, ParameterOp, ScaleBiasOp, ScaleWeightOp
from spconv_compiler.errors import InputError
from spconv_compiler.network.recipes import Recipe, evaluate
from spconv_compiler.passes.base import defining_op

_NAMES = {
    NormScaleOp: "norm_scale",
    NormShiftOp: "norm_shift",
    ScaleBiasOp: "scale_bias",
    ScaleWeightOp: "scale_weight",
}


class Numbers:
    """Tensors of values, computed once each."""

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        self._parameters = parameters
        self._recipes: dict[ir.Value, Recipe] = {}
        self._known: dict[Recipe, torch.Tensor] = {}

    def __call__(self, value: ir.Value) -> torch.Tensor:
        """The tensor that `value` stands for, contiguous, in host memory.

        Raises:
            InputError: it depends on what the network is run with.
        """
        return evaluate(self.recipe(value), self._parameters, self._known)

    def recipe(self, value: ir.Value) -> Recipe:
        """How it is made of parameters; raises as `__call__`."""
        if value not in self._recipes:
            self._recipes[value] = self._describe(value)
        return self._recipes[value]

    def _describe(self, value: ir.Value) -> Recipe:
        type_ = ir.RankedTensorType(value.type)
        dtype, shape = str(type_.element_type), tuple(type_.shape)
        op = defining_op(value)
        if isinstance(op, ParameterOp):
            return Recipe("parameter", (), dtype, shape, name=op.parameter)
        if op is None or type(op) not in _NAMES:
            raise InputError(f"{value} is no number of the network's parameters; accepted: ops on parameters")
        operands = tuple(self.recipe(operand) for operand in op.operation.operands)
        epsilon = float(op.epsilon) if isinstance(op, NormScaleOp) else 0.0
        return Recipe(_NAMES[type(op)], operands, dtype, shape, epsilon=epsilon)
