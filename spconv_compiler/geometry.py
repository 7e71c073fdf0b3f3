"""The geometry of a convolution between two coordinate sets: sizes, boxes, and how wide packed keys have to be.

Through tap i, coarse voxel c meets fine voxel c·stride − padding + i·dilation. A convolution reads fine voxels and
writes coarse ones; transposed, it reads coarse ones and writes fine ones.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, TypeAlias

from spconv_compiler.coordinates import Box
from spconv_compiler.errors import InputError

Triple: TypeAlias = "tuple[int, int, int]"

_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
# Keys of one width leave room for what a search adds to them.
_SLACK = 64


@dataclasses.dataclass(frozen=True)
class ConvGeometry:
    """Kernel size, stride, padding and dilation, (z, y, x) each, and the direction.

    Raises:
        InputError: a number is out of range.
    """

    kernel_size: Triple
    stride: Triple = (1, 1, 1)
    padding: Triple = (0, 0, 0)
    dilation: Triple = (1, 1, 1)
    transposed: bool = False

    def __post_init__(self) -> None:
        for name, least in (("kernel_size", 1), ("stride", 1), ("padding", 0), ("dilation", 1)):
            values = getattr(self, name)
            if min(values) < least or max(values) > _INT32_MAX:
                raise InputError(
                    f"{name} is {values}; accepted: three numbers (z, y, x) from {least} to {_INT32_MAX}"
                )
        if max(self.reach) > _INT32_MAX:
            raise InputError(
                f"kernel {self.kernel_size} with dilation {self.dilation} reaches over {max(self.reach)} cells; "
                f"accepted: at most {_INT32_MAX}"
            )

    @functools.cached_property
    def reach(self) -> Triple:
        """Cells between the first and the last tap, per axis."""
        z, y, x = (step * (size - 1) for step, size in zip(self.dilation, self.kernel_size, strict=True))
        return z, y, x

    def output_shape(self, shape: Triple, output_padding: Triple = (0, 0, 0)) -> Triple:
        """The spatial shape that `shape` becomes, as in spconv 2.x; an axis with no room for the kernel becomes 0.

        Convolution: (n + 2·padding − dilation·(k − 1) − 1) // stride + 1. Transposed: (n − 1)·stride − 2·padding + k +
        output_padding; dilation does not count there.
        """
        axes = zip(shape, self.kernel_size, self.stride, self.padding, self.reach, output_padding, strict=True)
        if self.transposed:
            z, y, x = (max((n - 1) * s - 2 * p + k + extra, 0) for n, k, s, p, _, extra in axes)
        else:
            z, y, x = (max((n + 2 * p - reach - 1) // s + 1, 0) for n, _, s, p, reach, _ in axes)
        return z, y, x

    def output_box(self, box: Box, shape: Triple | None) -> Box | None:
        """A box around all outputs of inputs in `box`: those in [0, shape), if it is given; None if there are none.

        Raises:
            InputError: an output may lie outside of int32.
        """
        low, high = [box.low[0]], [box.high[0]]
        for axis in range(3):
            first, last = self._outputs(axis, box.low[axis + 1], box.high[axis + 1])
            if shape is not None:
                first, last = max(first, 0), min(last, shape[axis] - 1)
            if first > last:
                return None
            if first < _INT32_MIN or last > _INT32_MAX:
                raise InputError(f"outputs along {'zyx'[axis]} go from {first} to {last}; accepted: int32")
            low.append(first)
            high.append(last)
        return Box(tuple(low), tuple(high))  # type: ignore[arg-type]

    def _outputs(self, axis: int, low: int, high: int) -> tuple[int, int]:
        stride, padding, reach = self.stride[axis], self.padding[axis], self.reach[axis]
        if self.transposed:
            return low * stride - padding, high * stride - padding + reach
        return -(-(low + padding - reach) // stride), (high + padding) // stride

    def coarse_beside(self, fine: Box) -> Box:
        """A coarse voxel that adds next to nothing to the box of `symbols` for the fine ones."""
        axes = zip(fine.low[1:], self.padding, self.stride, strict=True)
        z, y, x = ((low + padding) // stride for low, padding, stride in axes)
        return Box((fine.low[0], z, y, x), (fine.low[0], z, y, x))

    def fine_beside(self, coarse: Box) -> Box:
        """A fine voxel that adds nothing to the box of `symbols` for the coarse ones."""
        axes = zip(coarse.low[1:], self.padding, self.stride, strict=True)
        z, y, x = (low * stride - padding for low, padding, stride in axes)
        return Box((coarse.low[0], z, y, x), (coarse.low[0], z, y, x))

    def symbols(self, fine: Box, coarse: Box) -> dict[str, int]:
        """The plan's symbols for a map: a box of fine voxels around both sets and all that the coarse ones meet.

        Raises:
            InputError: the box has 2^63 cells or more.
        """
        found = {"batches": max(fine.high[0], coarse.high[0]) + 1}
        for axis, name in enumerate("zyx"):
            stride, padding, reach = self.stride[axis], self.padding[axis], self.reach[axis]
            low = min(fine.low[axis + 1], coarse.low[axis + 1] * stride - padding)
            high = max(fine.high[axis + 1], coarse.high[axis + 1] * stride - padding + reach)
            found[f"min_{name}"], found[f"extent_{name}"] = low, high - low + 1
        return {**found, "cells": cells_of(found, "extent_", "coordinates and what the kernel reaches")}


def output_symbols(box: Box) -> dict[str, int]:
    """The plan's symbols for outputs that lie in `box`.

    Raises:
        InputError: the box has 2^63 cells or more.
    """
    found = {"batches": box.high[0] + 1}
    for axis, name in enumerate("zyx", 1):
        found[f"out_min_{name}"] = box.low[axis]
        found[f"out_extent_{name}"] = box.high[axis] - box.low[axis] + 1
    return {**found, "cells": cells_of(found, "out_extent_", "outputs")}


def cells_of(symbols: dict[str, int], extent: str, what: str) -> int:
    """Cells of the box in a plan's symbols, over all batches; extent: what names of its extents begin with.

    Raises:
        InputError: a key of 64 bits, of which one is the sign, cannot tell them apart.
    """
    sizes = [symbols["batches"], *(symbols[f"{extent}{axis}"] for axis in "zyx")]
    cells = math.prod(sizes)
    if cells >= 2**63 - _SLACK:
        shape = " x ".join(map(str, sizes))
        raise InputError(
            f"{what} span {shape} (batches, z, y, x), a box of {cells} cells; accepted: below 2^63 - {_SLACK} cells, "
            "which a key of 64 bits can tell apart"
        )
    return cells


def key_width(symbols: dict[str, int]) -> int:
    """Bits of a packed coordinate, 32 or 64."""
    return 32 if symbols["cells"] < 2**31 - _SLACK else 64


def reach_of(geometry: ConvGeometry) -> Any:
    """The geometry as passes have it."""
    from spconv_compiler.passes.reach import Reach

    axes = (geometry.kernel_size, geometry.stride, geometry.padding, geometry.dilation)
    return Reach.of(*axes, transposed=geometry.transposed)
