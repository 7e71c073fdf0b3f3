"""Checks coordinates and describes their box: what packs a coordinate into a key of 32 or 64 bits."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.arrays import Array, as_array, dtype_name, is_tensor
from spconv_compiler.errors import InputError

_INT32 = np.iinfo(np.int32)


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


def check_coords(coords: Any) -> Array:
    """The coordinates as a contiguous int32 array [N, 3] or [N, 4]; int64 is converted if every value fits.

    Raises:
        InputError: wrong kind, rank, columns or dtype, or an int64 value outside int32.
    """
    shape = tuple(getattr(coords, "shape", ()))
    if len(shape) != 2 or shape[1] not in (3, 4):
        raise InputError(f"coords have shape {list(shape)}; accepted: [N, 3] (z, y, x) or [N, 4] (batch, z, y, x)")
    array = as_array(coords, "coords")
    if array.dtype == "i64":
        return _narrow(array)
    if array.dtype != "i32":
        raise InputError(f"coords have dtype {dtype_name(coords)}; accepted: int32, or int64 within its range")
    return array


def _narrow(array: Array) -> Array:
    wide = numpy_view(array)
    outside = ((wide < _INT32.min) | (wide > _INT32.max)).any(axis=1)
    if outside.any():
        row = int(outside.argmax())
        raise InputError(
            f"{int(outside.sum())} coords are outside int32, the first in row {row}: {wide[row].tolist()}"
        )
    narrow = wide.astype(np.int32)
    return Array(narrow, "i32", array.shape, narrow.ctypes.data)


def numpy_view(array: Array) -> npt.NDArray[Any]:
    """The contents as a numpy array, sharing memory."""
    return array.source.numpy() if is_tensor(array.source) else np.asarray(array.source)


def with_batch(array: Array) -> Array:
    """[N, 4] with batch 0 in front of [N, 3]; [N, 4] as it is."""
    if array.shape[1] == 4:
        return array
    wide = np.zeros((array.shape[0], 4), np.int32)
    wide[:, 1:] = numpy_view(array)
    return Array(wide, "i32", wide.shape, wide.ctypes.data)


def check_box(box: Box, array: Array, spatial_shape: tuple[int, int, int] | None, batch_size: int | None) -> None:
    """Checks the range of coordinates ([N, 4]).

    Raises:
        InputError: a negative batch index, a batch index of at least batch_size, or a coordinate outside an
            explicit spatial_shape; the message counts the rows and shows the first.
    """
    limits = [batch_size, *(spatial_shape or (None, None, None))]
    for axis, (name, limit) in enumerate(zip(("batch", "z", "y", "x"), limits, strict=True)):
        low = 0 if axis == 0 or limit is not None else None
        if (low is None or box.low[axis] >= low) and (limit is None or box.high[axis] < limit):
            continue
        column = numpy_view(array)[:, axis]
        bad = (column < 0) if limit is None else (column < 0) | (column >= limit)
        row = int(bad.argmax())
        accepted = "at least 0" if limit is None else f"0 ≤ {name} < {limit}"
        raise InputError(
            f"{int(bad.sum())} coords have {name} outside its range, the first in row {row}: "
            f"{numpy_view(array)[row].tolist()} (batch, z, y, x); accepted: {accepted}"
        )
