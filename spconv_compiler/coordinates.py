"""Checks coordinates and describes their box: what packs a coordinate into a key of 32 or 64 bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.arrays import Array, as_array, dtype_name, is_tensor, torch_module
from spconv_compiler.errors import InputError

_INT32 = np.iinfo(np.int32)
_AXES = ("batch", "z", "y", "x")
# Words of what a sort says of how it went.
_DUPLICATES, _FIRST_ROW, _SECOND_ROW = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class Box:
    """The smallest box around a set of coordinates, (batch, z, y, x), both ends included."""

    low: tuple[int, int, int, int]
    high: tuple[int, int, int, int]

    def symbols(self, kernel: tuple[int, int, int], dilation: tuple[int, int, int]) -> dict[str, int]:
        """The plan's symbols for this box, padded so that no neighbour's key can alias.

        Raises:
            InputError: the padded box has 2^63 cells or more.
        """
        halo = [size // 2 * step for size, step in zip(kernel, dilation, strict=True)]
        found = {"batches": self.high[0] + 1}
        cells = found["batches"]
        for axis, name in enumerate("zyx"):
            found[f"min_{name}"] = self.low[axis + 1] - halo[axis]
            found[f"extent_{name}"] = self.high[axis + 1] - self.low[axis + 1] + 1 + 2 * halo[axis]
            cells *= found[f"extent_{name}"]
        if cells >= 2**63:
            raise InputError(
                f"coordinates span {self.low} to {self.high}: {cells} cells with halo; accepted: below 2^63"
            )
        return {**found, "cells": cells}

    def key_width(
        self, kernel: tuple[int, int, int], dilation: tuple[int, int, int], narrow_cells: int = 2**31 - 1
    ) -> int:
        """Bits of a packed coordinate, 32 or 64; raises as `symbols`.

        Args:
            narrow_cells: most cells that the target's kernels with 32-bit keys can handle.
        """
        return 32 if self.symbols(kernel, dilation)["cells"] <= narrow_cells else 64


def check_coords(coords: Any, *, on_gpu: bool = False, what: str = "coords") -> Array:
    """The coordinates as a contiguous array [N, 3] or [N, 4], int32 or int64; values are not looked at.

    Args:
        on_gpu: whether a tensor on an AMD GPU is accepted too. what: which they are, for messages.

    Raises:
        InputError: wrong kind, rank, columns or dtype.
    """
    array = as_array(coords, what, on_gpu=on_gpu)
    if len(array.shape) != 2 or array.shape[1] not in (3, 4):
        raise InputError(
            f"{what} have shape {list(array.shape)}; accepted: [N, 3] (z, y, x) or [N, 4] (batch, z, y, x)"
        )
    if array.dtype not in ("i32", "i64"):
        raise InputError(f"{what} have dtype {dtype_name(coords)}; accepted: int32, or int64 within its range")
    return array


def with_batch(array: Array, what: str = "coords") -> Array:
    """int32 [N, 4]: int64 is converted, [N, 3] gets batch 0 in front, int32 [N, 4] is returned as it is.

    Raises:
        InputError: an int64 value does not fit into int32; the message counts the rows and shows the first.
    """
    if array.dtype == "i32" and array.shape[1] == 4:
        return array
    if array.dtype == "i64":
        given = numpy_view(array)
        outside = ((given < _INT32.min) | (given > _INT32.max)).any(axis=1)
        if outside.any():
            row = int(outside.argmax())
            raise InputError(
                f"{int(outside.sum())} {what} are outside int32, the first in row {row}: {given[row].tolist()}; "
                f"accepted: {_INT32.min} to {_INT32.max}"
            )
    if array.device is not None:
        return _widened(array)
    wide = np.zeros((array.shape[0], 4), np.int32)
    wide[:, 4 - array.shape[1] :] = numpy_view(array)
    return Array(wide, "i32", wide.shape, wide.ctypes.data)


def _widened(array: Array) -> Array:
    """int32 [N, 4] on the GPU; all values fit."""
    torch: Any = torch_module()
    batch = array.source.new_zeros((array.shape[0], 4 - array.shape[1]))
    return as_array(torch.cat([batch, array.source], dim=1).int(), "coords", on_gpu=True)


def numpy_view(array: Array) -> npt.NDArray[Any]:
    """The contents as a numpy array, sharing memory with what lies on the host."""
    return array.source.cpu().numpy() if is_tensor(array.source) else np.asarray(array.source)


def check_box(
    box: Box,
    array: Array,
    spatial_shape: tuple[int, int, int] | None,
    batch_size: int | None,
    what: str = "coords",
) -> None:
    """Checks the range of coordinates.

    Args:
        box: of the coordinates; what is in range by it is not looked at again.
        array: the coordinates as check_coords gives them.
        spatial_shape, batch_size: exclusive limits, or None.
        what: which coordinates they are, for messages.

    Raises:
        InputError: a negative batch index, a batch index of at least batch_size, or a coordinate outside an
            explicit spatial_shape; the message counts the rows and shows the first.
    """
    limits = (batch_size, *(spatial_shape or (None, None, None)))
    if box.low[0] >= 0 and all(
        limit is None or (low >= 0 and high < limit) for low, high, limit in zip(box.low, box.high, limits, strict=True)
    ):
        return
    rows = numpy_view(with_batch(array))
    outside = rows[:, 0] < 0
    accepted = ["batch ≥ 0"] if batch_size is None else []
    for axis, limit in enumerate(limits):
        if limit is not None:
            outside |= (rows[:, axis] < 0) | (rows[:, axis] >= limit)
            accepted.append(f"0 ≤ {_AXES[axis]} < {limit}")
    first = int(outside.argmax())
    raise InputError(
        f"{int(outside.sum())} {what} are out of range, the first in row {first}: {rows[first].tolist()} "
        f"({', '.join(_AXES)}); accepted: {', '.join(accepted)}"
    )


def check_distinct(word: Callable[[int], int], coords: Array, what: str = "coords") -> None:
    """Raises InputError when the sort of `coords`, int32 [N, 4], found equal rows; word: of the status that it left."""
    repeated = word(_DUPLICATES)
    if repeated:
        first, second = word(_FIRST_ROW), word(_SECOND_ROW)
        raise InputError(
            f"{repeated} {what} repeat an earlier row, the first: rows {first} and {second} are both "
            f"{numpy_view(coords)[first].tolist()} (batch, z, y, x); accepted: every voxel once"
        )
