"""The forward pass only, said aloud: a backward pass through its result raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from spconv_compiler.errors import SpconvError


class _ForwardOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: list[torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
        # Out of a list: torch takes it for a fresh result, not for a view of an input, which in-place ops refuse.
        return out[0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise SpconvError(
            "subm_conv3d has no backward pass in this version; run it under torch.no_grad() for inference"
        )


def without_gradient(out: torch.Tensor, inputs: Sequence[Any]) -> torch.Tensor:
    """`out`, attached to the graph of `inputs` so that backward() raises a clear error."""
    tensors = [value for value in inputs if isinstance(value, torch.Tensor) and value.requires_grad]
    result: torch.Tensor = _ForwardOnly.apply([out], *tensors)  # type: ignore[no-untyped-call]
    return result
