"""`indice_key`: what a layer notes under its key, and the checks of a layer that finds a note.

spconv takes the map that it finds; here a note is never trusted: maps belong to coordinates (maps.py), and a note says
what a layer may expect. A difference is an error that names both layers and what differs.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import torch
from torch import Tensor

from spconv_compiler.errors import InputError
from spconv_compiler.pytorch.coords import equal_rows
from spconv_compiler.pytorch.maps import KeptMap


class Described(Protocol):
    """A layer that messages can name."""

    def describe(self) -> str:
        """The layer, for messages."""


@dataclasses.dataclass(eq=False)
class IndiceData:
    """What a layer notes under its indice_key.

    Attributes:
        layer: the module, whose describe() messages show.
        indices, out_indices: int32 [N, 1 + ndim] and [M, 1 + ndim] of its inputs and outputs.
        coords, out_coords: the same as [N, 4] and [M, 4].
        spatial_shape, out_spatial_shape: of its inputs and outputs.
        is_subm, transposed, ksize, stride, padding, dilation: its geometry.
        kept: its map, if the layer holds one; copies and pickles have none.
    """

    layer: Described
    indices: Tensor
    out_indices: Tensor
    coords: Tensor
    out_coords: Tensor
    spatial_shape: list[int] | None
    out_spatial_shape: list[int] | None
    is_subm: bool
    transposed: bool
    ksize: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    kept: KeptMap | None = dataclasses.field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "kept": None}


def note_of(
    layer: Any,
    x: Any,
    out_indices: Tensor,
    out_coords: Tensor,
    out_shape: list[int] | None,
    kept: KeptMap | None = None,
) -> IndiceData:
    """What a convolution or a pool notes of its input, a SparseConvTensor, and of its outputs."""
    return IndiceData(
        layer,
        x.indices,
        out_indices,
        x.coords,
        out_coords,
        x.spatial_shape,
        out_shape,
        layer.subm,
        getattr(layer, "transposed", False),
        layer.kernel_size,
        layer.stride,
        layer.padding,
        layer.dilation,
        kept,
    )


def check_unwritten(layer: Described, key: str, found: IndiceData | None) -> None:
    """A strided layer or a pool writes its key; it cannot be written twice."""
    if found is not None:
        raise InputError(
            f"{layer.describe()}: indice_key {key!r} is already written by {found.layer.describe()}; accepted: a key "
            "of its own (only submanifold layers share one)"
        )


def check_subm(layer: Any, key: str, found: IndiceData, x: Any) -> None:
    """A submanifold layer over x that finds a note: same kernel, dilation, spatial_shape and coordinates."""
    same = found.ksize == layer.kernel_size and found.dilation == layer.dilation
    if same and found.is_subm and found.indices is x.indices and found.spatial_shape == x.spatial_shape:
        return
    if not found.is_subm:
        raise InputError(
            f"{_written(layer, key, found)}, which is not submanifold; accepted: a key of submanifold layers over the "
            "same voxels, or another key"
        )
    noted = {"kernel_size": found.ksize, "dilation": found.dilation, "spatial_shape": found.spatial_shape}
    expected = {"kernel_size": layer.kernel_size, "dilation": layer.dilation, "spatial_shape": x.spatial_shape}
    _compare(layer, key, found, noted, expected)
    _check_rows(layer, key, found, found.indices, x.indices, "the voxels that the key was written for")


def check_inverse(layer: Any, key: str | None, x: Any) -> IndiceData:
    """An inverse layer over x, a SparseConvTensor, needs the note of a layer or pool whose outputs are its inputs."""
    found: IndiceData | None = x.find_indice_pair(key)
    if found is None:
        keys = ", ".join(map(repr, x.indice_dict)) or "none"
        raise InputError(f"{layer.describe()}: no layer has written indice_key {key!r}; keys that were: {keys}")
    same = found.ksize == layer.kernel_size and found.out_spatial_shape == x.spatial_shape
    if same and not found.is_subm and found.out_indices is x.indices:
        return found
    if found.is_subm:
        raise InputError(
            f"{_written(layer, key, found)}, which is submanifold; accepted: the key of a strided or transposed "
            "convolution or of a pool"
        )
    noted = {"kernel_size": found.ksize, "spatial_shape": found.out_spatial_shape}
    expected = {"kernel_size": layer.kernel_size, "spatial_shape": x.spatial_shape}
    _compare(layer, key, found, noted, expected)
    _check_rows(layer, key, found, found.out_indices, x.indices, "the outputs of that layer")
    return found


def _written(layer: Described, key: str | None, found: IndiceData) -> str:
    return f"{layer.describe()}: indice_key {key!r} was written by {found.layer.describe()}"


def _compare(
    layer: Described, key: str | None, found: IndiceData, noted: dict[str, Any], expected: dict[str, Any]
) -> None:
    for name, value in noted.items():
        if value != expected[name]:
            raise InputError(
                f"{_written(layer, key, found)} with {name} {value}, but here {name} is {expected[name]}; accepted: "
                "equal values, or another key"
            )


def _check_rows(
    layer: Described, key: str | None, found: IndiceData, noted: Tensor, indices: Tensor, what: str
) -> None:
    # A trace cannot look at values. It does not have to: the map is that of the voxels at hand in any case.
    if noted is indices or torch.compiler.is_compiling():
        return
    if noted.shape[0] != indices.shape[0]:
        here = f"but here are {indices.shape[0]}"
        raise InputError(
            f"{_written(layer, key, found)} for {noted.shape[0]} voxels, {here}; accepted: {what}"
        )
    if not equal_rows(noted, indices):
        row = int((noted.to(indices.device) != indices).any(1).int().argmax())
        values = f"{noted[row].tolist()}, but here {indices[row].tolist()}"
        raise InputError(
            f"{_written(layer, key, found)} for other voxels, the first in row {row}: {values}; accepted: {what}"
        )
