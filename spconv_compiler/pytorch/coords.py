"""Coordinate tensors of one to three axes as the three-axis ops take them, and comparison of two of them."""

from __future__ import annotations

import torch
from torch import Tensor

from spconv_compiler.errors import InputError


def widen(indices: Tensor) -> Tensor:
    """int32 [N, 1 + ndim] → [N, 4]: the axes that are missing are in front, and zero."""
    missing = indices.new_zeros((indices.shape[0], 4 - indices.shape[1]))
    return torch.cat([indices[:, :1], missing, indices[:, 1:]], dim=1)


def narrow(coords: Tensor, ndim: int) -> Tensor:
    """The reverse of `widen`; with three axes the tensor itself."""
    return coords if ndim == 3 else torch.cat([coords[:, :1], coords[:, 4 - ndim :]], dim=1)


def axes3(values: list[int], fill: int) -> list[int]:
    """Numbers per axis as (z, y, x)."""
    return values if len(values) == 3 else [fill] * (3 - len(values)) + values


def equal_rows(one: Tensor, other: Tensor) -> bool:
    """Whether two coordinate tensors have the same rows in the same order."""
    return one is other or (one.device == other.device and torch.equal(one, other))


def same_rows(one: Tensor, other: Tensor, what: str) -> None:
    """Checks that two coordinate tensors hold the same rows; in a trace, when the trace runs.

    Raises:
        InputError: they do not. (A trace raises RuntimeError.)
    """
    if one is other:
        return
    accepted = "accepted: equal indices, row by row (spconv_compiler.pytorch.functional.sparse_add takes others)"
    if torch.compiler.is_compiling():
        torch._check(one.shape[0] == other.shape[0])  # type: ignore[no-untyped-call]
        torch._assert_async((one == other).all(), f"{what} have different indices; {accepted}")
    elif not equal_rows(one, other):
        rows = f"{one.shape[0]} and {other.shape[0]} rows of "
        raise InputError(f"{what} have {rows if one.shape != other.shape else ''}different indices; {accepted}")
