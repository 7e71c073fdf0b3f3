"""A tail that begins with to_dense, for rows that are not all there.

A captured network leaves more rows than a level has voxels, the others in batch −1. Where torch's part does nothing to
them but make dense tensors, it can take all rows: those of batch −1 are written behind the last batch, which is cut
off. Then nobody has to know how many voxels there are.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch

from spconv_compiler.network.boundary import TorchPart
from spconv_compiler.network.plan import NetworkPlan


def scatter_padded(
    features: torch.Tensor, coords: torch.Tensor, spatial_shape: Sequence[int], batch_size: int
) -> torch.Tensor:
    """to_dense [batch, C, z, y, x] of features [rows, C] at coords int32 [rows, 4], those in batch −1 left out."""
    dense = features.new_zeros((batch_size + 1, features.shape[1], *spatial_shape))
    # −1 is the last place along every axis.
    batch, z, y, x = torch.split(coords.long(), 1, 1)
    channel = torch.arange(features.shape[1], device=features.device)
    dense.index_put_((batch, channel, z, y, x), features)
    return dense.narrow(0, 0, batch_size)


def padded_tail(tail: TorchPart, plan: NetworkPlan) -> TorchPart | None:
    """The tail for padded results of `plan`, or None where it needs their numbers."""
    count = len(plan.results)
    if tail.module is None or any(pick is not None and pick < count for pick in tail.picks):
        return None
    module = copy.deepcopy(tail.module)
    results = [node for node in module.graph.nodes if node.op == "placeholder"][:count]
    dense = {user for node in results for user in node.users}
    if not all(_may_be_padded(node, results, plan) for node in dense):
        return None
    for node in dense:
        node.target = scatter_padded
    module.recompile()
    return dataclasses.replace(tail, module=module)


def _may_be_padded(node: Any, results: Sequence[Any], plan: NetworkPlan) -> bool:
    """Whether a user of results is a to_dense of one level, into a grid that holds all of it."""
    if node.target is not torch.ops.spconv_compiler.to_dense.default or node.kwargs:
        return False
    features, coords, shape, batches = node.args
    if features not in results or coords not in results or not isinstance(batches, int):
        return False
    (kind, value), (other, number) = (plan.results[results.index(node)] for node in (features, coords))
    if (kind, other) != ("value", "level") or plan.values[value].level != number:
        return False
    level = plan.levels[number]
    # The rows of an argument may lie anywhere, which is found out later.
    if level.argument is not None or level.shape is None or level.batches is None:
        return False
    if not all(isinstance(size, int) for size in shape):
        return False
    return math.prod(shape) > 0 and all(
        size <= most for size, most in zip((level.batches, *level.shape), (batches, *shape), strict=True)
    )
