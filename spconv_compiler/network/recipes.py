"""How the numbers that a network is loaded with are made of a model's parameters: as data, without MLIR."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from spconv_compiler.errors import InputError

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
# Beyond it, sums of products have no room in f32.
_MOST_WEIGHT = 2.0**64


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A tensor of parameters.

    Attributes:
        operation: "parameter", "norm_scale", "norm_shift", "scale_bias" or "scale_weight", as level spconv has them.
        operands: what it is made of. name: of a parameter; epsilon: of a norm_scale.
        dtype, shape: of the tensor.
    """

    operation: str
    operands: tuple[Recipe, ...]
    dtype: str
    shape: tuple[int, ...]
    name: str = ""
    epsilon: float = 0.0


def evaluate(recipe: Recipe, parameters: Mapping[str, torch.Tensor], known: dict[Recipe, torch.Tensor]) -> torch.Tensor:
    """The tensor of a recipe, contiguous, in host memory.

    Args:
        known: tensors of recipes, to which those that are made are added.

    Raises:
        InputError: a parameter is missing, or does not have the shape that the network was compiled for.
    """
    if recipe not in known:
        with torch.no_grad():
            operands = [evaluate(operand, parameters, known) for operand in recipe.operands]
            made = _compute(recipe, operands, parameters)
            if made.numel() != torch.Size(recipe.shape).numel():
                found = f"{recipe.name or recipe.operation} has shape {list(made.shape)}"
                raise InputError(f"{found}; accepted, as compiled: {list(recipe.shape)}")
            made = made.to(_DTYPES[recipe.dtype]).reshape(recipe.shape)
        known[recipe] = made.detach().cpu().contiguous()
    return known[recipe]


def most_weight(dtype: torch.dtype) -> float:
    """The least number that is too large for a folded weight."""
    return min(_MOST_WEIGHT, torch.finfo(dtype).max)


def has_room(recipe: Recipe, made: torch.Tensor) -> bool:
    """Whether numbers that are folded into a convolution leave its sums room (overflow.py); others always do."""
    if recipe.operation == "scale_weight":
        # A NaN is not less than anything.
        return bool((made.abs() < most_weight(made.dtype)).all())
    return recipe.operation != "scale_bias" or bool(torch.isfinite(made).all())


def _compute(recipe: Recipe, operands: list[Any], parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
    match recipe.operation:
        case "parameter":
            if recipe.name not in parameters:
                raise InputError(f"the network needs a parameter {recipe.name!r}; given: {len(parameters)} others")
            return parameters[recipe.name]
        case "norm_scale":
            return _norm_scale(recipe.epsilon, *operands)
        case "norm_shift":
            return _norm_shift(*operands)
        case "scale_bias":
            scale, shift, *bias = operands
            made: torch.Tensor = shift + scale * bias[0] if bias else shift
            return made
        case "scale_weight":
            weight, scale = operands
            scaled: torch.Tensor = weight.float() * scale.reshape(-1, 1, 1, 1, 1)
            return scaled
    raise InputError(f"no number is made by {recipe.operation}; accepted: ops on parameters")


def _norm_scale(epsilon: float, variance: torch.Tensor, gamma: Any = None) -> torch.Tensor:
    # As torch does it: the sum is taken in double, and its root once.
    scale = (variance.double() + epsilon).rsqrt()
    return (scale if gamma is None else gamma.double() * scale).float()


def _norm_shift(scale: torch.Tensor, mean: torch.Tensor, beta: Any = None) -> torch.Tensor:
    product = mean.double() * scale.double()
    return (-product if beta is None else beta.double() - product).float()
