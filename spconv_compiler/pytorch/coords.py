"""Coordinate tensors of one to three axes as the three-axis ops take them; comparison and union of two of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def to_int32(indices: Tensor) -> Tensor:
    """int64 indices as int32.

    Raises:
        InputError: a value does not fit; the message counts the rows and shows the first.
    """
    narrowed = indices.to(torch.int32)
    if not torch.equal(narrowed.long(), indices):
        outside = (narrowed != indices).any(1)
        row = int(outside.int().argmax())
        raise InputError(
            f"{int(outside.sum())} rows of indices are outside int32, the first in row {row}: {indices[row].tolist()}; "
            f"accepted: {-(2**31)} to {2**31 - 1}"
        )
    return narrowed


def union_rows(sets: Sequence[Tensor]) -> Tensor:
    """The rows that any of several coordinate tensors has, ascending; int32 [M, columns].

    Raises:
        InputError: a box around all of them has 2^63 cells or more.
    """
    rows = torch.cat(list(sets))
    if rows.shape[0] == 0:
        return rows
    low = rows.amin(0).tolist()
    sizes = [high - least + 1 for high, least in zip(rows.amax(0).tolist(), low, strict=True)]
    return unpack_rows(torch.unique(pack_rows(rows, low, sizes)), low, sizes)


def pack_rows(rows: Tensor, low: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """A number per row, int64 [N], that ascends as rows do; of a box that starts at `low`.

    Raises:
        InputError: the box has 2^63 cells or more.
    """
    if math.prod(sizes) >= 2**63:
        raise InputError(f"indices span a box of {math.prod(sizes)} cells; accepted: below 2^63")
    keys = torch.zeros(rows.shape[0], dtype=torch.int64, device=rows.device)
    for axis, size in enumerate(sizes):
        keys = keys * size + (rows[:, axis].long() - low[axis])
    return keys


def unpack_rows(keys: Tensor, low: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """The rows of keys, int32 [N, columns]."""
    columns = []
    for axis in reversed(range(len(sizes))):
        columns.append((keys % sizes[axis]) + low[axis])
        keys = keys.div(sizes[axis], rounding_mode="floor")
    return torch.stack(columns[::-1], dim=1).int()


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
