"""Keeps affine ops out of convolutions whose weights would become too large for it.

Folded, out = Σ (weight·scale)·x + bias; as written, out = (Σ weight·x)·scale + shift. Where weight·scale overflows, the
first adds infinities of both signs and gives NaN, the second is infinite; so that sums have room, much less counts as
too large. Such numbers are a mask's or a mistake's, not a batch norm's, but both are to give what the model gives.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from spconv_compiler.bindings import ir
from spconv_compiler.dialect import AffineOp, SparseConv3dOp, SubmConv3dOp
from spconv_compiler.network.parameters import Numbers
from spconv_compiler.network.recipes import most_weight
from spconv_compiler.passes.base import defining_op, ops_named
from spconv_compiler.passes.fold_affine import KEPT


def keep_large(module: ir.Module, parameters: Mapping[str, torch.Tensor]) -> None:
    """Marks the affine ops that fold-affine shall leave alone, those that are folded before them being folded."""
    numbers = Numbers(parameters)
    # Of what is folded so far, by the result: the largest weight of each channel, the bias, the most for a weight.
    folded: dict[ir.Value, tuple[torch.Tensor, torch.Tensor, float]] = {}
    for op in ops_named(module, AffineOp.OPERATION_NAME):
        made = folded.get(op.input) or _of_convolution(op.input, numbers)
        if made is None:
            continue
        weight, bias, most = made
        scale, shift = numbers(op.scale), numbers(op.shift)
        weight, bias = weight * scale.abs(), shift + scale * bias
        # A NaN is not less than anything.
        if bool((weight < most).all()) and bool(torch.isfinite(bias).all()):
            folded[op.operation.results[0]] = weight, bias, most
        else:
            op.operation.attributes[KEPT] = ir.UnitAttr.get()


def _of_convolution(value: ir.Value, numbers: Numbers) -> tuple[torch.Tensor, torch.Tensor, float] | None:
    conv = defining_op(value)
    if not isinstance(conv, (SubmConv3dOp, SparseConv3dOp)):
        return None
    weight = numbers(conv.weight)
    largest = weight.flatten(1).abs().amax(1).float()
    bias = torch.zeros_like(largest) if conv.bias is None else numbers(conv.bias).float()
    return largest, bias, most_weight(weight.dtype)
