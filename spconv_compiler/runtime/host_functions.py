"""Functions that every CPU code object has beside its plan (passes/cpu/host_functions.py), on arrays in host memory."""

from __future__ import annotations

import ctypes
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spconv_compiler.arrays import ITEM_BYTES, Array, address_of
from spconv_compiler.coordinates import Box
from spconv_compiler.runtime.cpu import CpuBuffer, CpuModule

# Of a tap's weights that lie together; with fewer, tap by tap is no faster than all at once.
_LEAST_TAP_BYTES = 32
# Tap by tap a weight is read at two thirds of the speed of a whole one.
_MOST_TAPS = 0.6


class UsedTaps(NamedTuple):
    """The taps that a map has pairs of.

    Attributes:
        numbers: of the taps, ascending; address: of the first number; size: how many.
    """

    numbers: npt.NDArray[np.int64]
    address: int
    size: int


def used_taps(chunk_first: CpuBuffer, tap_first: CpuBuffer) -> UsedTaps | None:
    """The taps of a list of pairs (passes/cpu/chunk_pairs.py), or None if they are about as many as there are."""
    starts = tap_first.array().reshape(chunk_first.count, -1)
    numbers = np.flatnonzero((starts[:, :-1] != starts[:, 1:]).any(axis=0))
    if len(numbers) > _MOST_TAPS * (starts.shape[1] - 1):
        return None
    return UsedTaps(numbers, numbers.ctypes.data, len(numbers))


class WeightPrint(NamedTuple):
    """Checksums of a weight's contents.

    Attributes:
        whole: of all bytes.
        shape: (rows, taps, bytes) of the memory as [rows, taps, bytes], or None where a tap is scattered.
        taps: of each tap, where there is a shape; address: of the first.
    """

    whole: int
    shape: tuple[int, int, int] | None
    taps: npt.NDArray[np.int64] | None
    address: int


class HostFunctions:
    """The functions, by their module. May be called from several threads."""

    def __init__(self, module: CpuModule) -> None:
        self._bounds = module.function("coords_bounds", ("buffer", "symbol", "buffer"), result=False)
        self._seen = module.function("coords_seen", ("buffer", "symbol", "buffer"))
        self._fingerprint = module.function("fingerprint", ("buffer", "symbol"))
        weight = ("buffer", "symbol", "symbol", "symbol")
        self._tap_fingerprints = module.function("tap_fingerprints", (*weight, "buffer"))
        self._taps_unchanged = module.function("taps_unchanged", (*weight, "buffer", "buffer", "symbol"))

    def box(self, coords: Array) -> Box:
        """The box around coords int32 [N, 4], N ≥ 1."""
        found = (ctypes.c_int32 * 8)()
        self._bounds(coords.pointer, coords.shape[0], ctypes.addressof(found))
        return Box(tuple(found[:4]), tuple(found[4:]))  # type: ignore[arg-type]

    def seen(self, coords: Array) -> tuple[Box, int]:
        """(box, checksum) of coords int32 [N, 4], N ≥ 1, which are read once."""
        found = (ctypes.c_int32 * 8)()
        checksum: int = self._seen(coords.pointer, coords.shape[0], ctypes.addressof(found))
        return Box(tuple(found[:4]), tuple(found[4:])), checksum  # type: ignore[arg-type]

    def checksum(self, array: Array) -> int:
        """A checksum of an array's bytes."""
        found: int = self._fingerprint(array.pointer, ITEM_BYTES[array.dtype] * math.prod(array.shape))
        return found

    def weight_print(self, weight: Array, layout: str) -> WeightPrint:
        """Checksums of a weight in a layout of layouts.py."""
        shape, item = weight.shape, ITEM_BYTES[weight.dtype]
        taps = math.prod(shape[1:4]) if layout == "native" else shape[0]
        rows = shape[0] if layout == "native" else 1
        tap_bytes = item * math.prod(shape) // max(1, rows * taps)
        whole = self.checksum(weight)
        if layout == "torch" or tap_bytes < _LEAST_TAP_BYTES:
            return WeightPrint(whole, None, None, 0)
        found = np.empty(taps, np.int64)
        address = address_of(found)
        self._tap_fingerprints(weight.pointer, rows, taps, tap_bytes, address)
        return WeightPrint(whole, (rows, taps, tap_bytes), found, address)

    def weight_unchanged(self, weight: Array, known: WeightPrint, used: UsedTaps | None) -> bool:
        """Whether a weight still is what `known` was made of, as far as the taps go that are used; None: all of them.

        No other tap can have an influence on a result, and a map that uses it will have it looked at.
        """
        if used is None or known.shape is None:
            return self.checksum(weight) == known.whole
        unchanged: int = self._taps_unchanged(weight.pointer, *known.shape, known.address, used.address, used.size)
        return unchanged != 0
