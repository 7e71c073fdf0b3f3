"""Geometries between two coordinate sets to test with, and a convolution of each against the oracle."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from conv_cases import voxels

import spconv_compiler as sc
from spconv_compiler import reference_cross as rc

SHAPE = (9, 10, 11)
# (kernel, stride, padding, dilation)
GRIDS: dict[str, tuple[Any, ...]] = {
    "k2s2": (2, 2, 0, 1),
    "k3s2p1": (3, 2, 1, 1),
    "k3s2p0": (3, 2, 0, 1),
    "k311s211": ((3, 1, 1), (2, 1, 1), 0, 1),
    "k3s1p1": (3, 1, 1, 1),
    "k3s3p1": (3, 3, 1, 1),
    "k1s2": (1, 2, 0, 1),
    "k2s3": (2, 3, 0, 1),
    "k4s2p1": (4, 2, 1, 1),
    "k3s2p2d2": (3, 2, 2, 2),
    "k234s213p102d132": ((2, 3, 4), (2, 1, 3), (1, 0, 2), (1, 3, 2)),
    "k3s2p3d3": (3, 2, 3, 3),
    "k5s1p0": (5, 1, 0, 1),
    "k1x1x9": ((1, 1, 9), (1, 1, 2), (0, 0, 4), 1),
}


def options_of(name: str) -> dict[str, Any]:
    """Stride, padding and dilation as keyword arguments."""
    _, stride, padding, dilation = GRIDS[name]
    return {"stride": stride, "padding": padding, "dilation": dilation}


@dataclasses.dataclass(frozen=True, eq=False)
class CrossCase:
    """One convolution of whole numbers, so that results are exact.

    Attributes:
        coords: int32 [N, 4]. features: f32 [N, 3]. weight: f32 native [5, …, 3]. bias: f32 [5].
        transposed: the direction.
    """

    grid: str
    coords: npt.NDArray[np.int32]
    features: npt.NDArray[np.float32]
    weight: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]
    transposed: bool

    def run(self, **options: Any) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """(out_coords, out_features), by the compiled kernels."""
        function = sc.sparse_conv_transpose3d if self.transposed else sc.sparse_conv3d
        arrays = (self.coords, self.features, self.weight, self.bias)
        tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
        out_coords, out = function(*tensors, **options_of(self.grid), **options)
        return out_coords.numpy(), out.numpy()

    def expected(self, out_coords: Any) -> npt.NDArray[Any]:
        geometry = rc.Grid.of(*GRIDS[self.grid])
        operands = (self.features, self.weight, geometry, self.bias)
        return rc.conv3d(self.coords, out_coords, *operands, transposed=self.transposed)


def cross_case(
    grid: str, rows: int, *, transposed: bool = False, seed: int = 0, batches: int = 2, shape: Any = SHAPE
) -> CrossCase:
    """Distinct voxels in random order, and operands from -3 to 3."""
    rng = np.random.default_rng(seed)
    coords = voxels(rows, shape, batches=batches, seed=seed)
    kernel = rc.Grid.of(*GRIDS[grid]).kernel_size
    operands = (rng.integers(-3, 4, size).astype(np.float32) for size in ((rows, 3), (5, *kernel, 3), (5,)))
    return CrossCase(grid, coords, *operands, transposed)
