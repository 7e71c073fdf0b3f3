"""The numbers behind values of parameters alone: what a network is loaded with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import NormScaleOp, NormShiftOp, ParameterOp, ScaleBiasOp, ScaleWeightOp
from spconv_compiler.errors import InputError
from spconv_compiler.passes.base import defining_op

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class Numbers:
    """Tensors of values, computed once each."""

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        self._parameters = parameters
        self._known: dict[ir.Value, torch.Tensor] = {}

    def __call__(self, value: ir.Value) -> torch.Tensor:
        """The tensor that `value` stands for, contiguous, in host memory.

        Raises:
            InputError: it depends on what the network is run with.
        """
        if value not in self._known:
            with torch.no_grad():
                made = self._compute(value)
            type_ = ir.RankedTensorType(value.type)
            made = made.to(_DTYPES[str(type_.element_type)]).reshape(type_.shape)
            self._known[value] = made.detach().cpu().contiguous()
        return self._known[value]

    def _compute(self, value: ir.Value) -> torch.Tensor:
        op = defining_op(value)
        if isinstance(op, ParameterOp):
            return self._parameters[op.parameter]
        given = [self(operand) for operand in op.operation.operands] if op is not None else []
        match op:
            case NormScaleOp():
                return _norm_scale(op.epsilon, *given)
            case NormShiftOp():
                return _norm_shift(*given)
            case ScaleBiasOp():
                scale, shift, *bias = given
                return shift + scale * bias[0] if bias else shift
            case ScaleWeightOp():
                weight, scale = given
                return weight.float() * scale.reshape(-1, 1, 1, 1, 1)
        raise InputError(f"{value} is no number of the network's parameters; accepted: ops on parameters")


def _norm_scale(epsilon: float, variance: torch.Tensor, gamma: Any = None) -> torch.Tensor:
    # As torch does it: the sum is taken in double, and its root once.
    scale = (variance.double() + epsilon).rsqrt()
    return (scale if gamma is None else gamma.double() * scale).float()


def _norm_shift(scale: torch.Tensor, mean: torch.Tensor, beta: Any = None) -> torch.Tensor:
    product = mean.double() * scale.double()
    return (-product if beta is None else beta.double() - product).float()
