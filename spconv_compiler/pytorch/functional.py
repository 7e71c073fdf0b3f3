"""Functions on SparseConvTensors."""

from __future__ import annotations

import torch
from torch import Tensor

from spconv_compiler.errors import InputError
from spconv_compiler.pytorch import ops
from spconv_compiler.pytorch.coords import narrow, pack_rows, unpack_rows
from spconv_compiler.pytorch.core import SparseConvTensor

# kernel_size, stride, padding, dilation: a voxel meets itself alone.
_ONE_TAP = ([1, 1, 1], [1, 1, 1], [0, 0, 0], [1, 1, 1])


def sparse_add(*tensors: SparseConvTensor) -> SparseConvTensor:
    """Sum over the union of voxels: a voxel that several tensors have gets the sum of their features.

    Args:
        tensors: one or more, of equal spatial_shape, batch_size and channels; their indices may differ.

    Returns:
        Rows ascend in (batch, coordinates). What layers noted under keys is kept if one operand has just these rows
        in this order; otherwise, and in a trace, it is dropped, and no inverse convolution is possible.

    Raises:
        InputError: the tensors do not fit together, or an index is out of range.
    """
    first = _check_alike(tensors)
    if all(x.indices is first.indices for x in tensors):
        return first.replace_feature(_total([x.features for x in tensors]))
    if torch.compiler.is_compiling():
        return _over_union(first, tensors)
    indices = torch.cat([x.indices for x in tensors])
    features = torch.cat([x.features for x in tensors])
    low, sizes = _box(tensors, indices)
    distinct, place = torch.unique(pack_rows(indices, low, sizes), return_inverse=True)
    out = features.new_zeros((distinct.shape[0], features.shape[1])).index_add(0, place, features)
    union = unpack_rows(distinct, low, sizes)
    for x in tensors:
        if x.indices.shape == union.shape and torch.equal(x.indices, union):
            return x.replace_feature(out)
    return SparseConvTensor(out, union, first.spatial_shape, first.batch_size)


def _over_union(first: SparseConvTensor, tensors: tuple[SparseConvTensor, ...]) -> SparseConvTensor:
    """The sum in a trace, of ops that know coordinates: each operand, spread over the union by a pool of one tap."""
    coords = first.coords
    for x in tensors[1:]:
        coords = ops.union_coords(coords, x.coords, first.shape3, first.batch_size)
    parts = [ops.sparse_pool3d(x.features, x.coords, coords, *_ONE_TAP, "avg") for x in tensors]
    return first.moved(_total(parts), narrow(coords, first.ndim), coords, first.spatial_shape, {})


def sparse_add_hash_based(*tensors: SparseConvTensor) -> SparseConvTensor:
    """spconv's other name for the same sum: `sparse_add`."""
    return sparse_add(*tensors)


def _check_alike(tensors: tuple[SparseConvTensor, ...]) -> SparseConvTensor:
    if not tensors:
        raise InputError("sparse_add is given nothing; accepted: one SparseConvTensor or more")
    first = tensors[0]
    for x in tensors:
        for name in ("spatial_shape", "batch_size", "channels"):
            found, wanted = (y.features.shape[1] if name == "channels" else getattr(y, name) for y in (x, first))
            if found != wanted:
                raise InputError(f"sparse_add: {name} of the operands are {wanted} and {found}; accepted: equal ones")
    return first


def _box(tensors: tuple[SparseConvTensor, ...], indices: Tensor) -> tuple[list[int], list[int]]:
    """(lowest, sizes) per column of a box around all indices, those of all tensors: what a key counts in."""
    first = tensors[0]
    if first.spatial_shape is not None:
        sizes = [first.batch_size, *first.spatial_shape]
        low = [0] * len(sizes)
        limits = torch.tensor(sizes, device=indices.device)
        outside = ((indices < 0) | (indices >= limits)).any(1)
        if bool(outside.any()):
            row = int(outside.int().argmax())
            found, operand = indices[row].tolist(), 0
            while row >= tensors[operand].indices.shape[0]:
                row, operand = row - tensors[operand].indices.shape[0], operand + 1
            raise InputError(
                f"sparse_add: {int(outside.sum())} indices are out of range, the first in row {row} of operand "
                f"{operand}: {found}; accepted: 0 ≤ each < {sizes}"
            )
    elif indices.shape[0] == 0:
        low, sizes = [0] * indices.shape[1], [1] * indices.shape[1]
    else:
        low = indices.amin(0).tolist()
        sizes = [int(high) - least + 1 for high, least in zip(indices.amax(0).tolist(), low, strict=True)]
    return low, sizes


def _total(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
