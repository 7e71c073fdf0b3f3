"""Batch normalization of rows whose number a trace does not know.

torch's batch_norm asks whether its input is empty, which no trace can say of the outputs of a strided convolution:
models with nn.BatchNorm1d behind one would not trace. In eval mode the answer changes nothing, so a trace of such rows
takes the same op one step further down, aten._native_batch_norm_legit_no_training. Nothing else is changed: not eager
calls, not traces of known or of symbolic sizes, not training.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey

_batch_norm: Any = torch.ops.aten.batch_norm.default
_no_training: Any = torch.ops.aten._native_batch_norm_legit_no_training.default


def install() -> None:
    """Registers it with torch; once more does nothing."""
    if DispatchKey.CompositeImplicitAutograd not in _batch_norm.py_kernels:
        _batch_norm.py_impl(DispatchKey.CompositeImplicitAutograd)(_traced_batch_norm)


def _traced_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    # Only traces come here; torch's tracer takes half a second to import.
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    if training or running_mean is None or running_var is None or not free_unbacked_symbols(input.shape):
        # Its kernel in C++, which asking the op again would not reach.
        plain: Tensor = _batch_norm._op_dk(
            DispatchKey.CompositeImplicitAutograd,
            *(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled),
        )
        return plain
    out: Tensor = _no_training(input, weight, bias, running_mean, running_var, momentum, eps)[0]
    return out
