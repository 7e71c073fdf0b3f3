"""Which outputs an input reaches: the geometry of an op between two coordinate sets, as its passes share it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class Reach:
    """Kernel size, stride, padding, dilation (z, y, x), and the direction: transposed reads coarse, writes fine."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool

    @staticmethod
    def of(*axes: Iterable[int], transposed: bool) -> Reach:
        """From kernel size, stride, padding and dilation."""
        kernel_size, stride, padding, dilation = (tuple(map(int, values)) for values in axes)
        return Reach(kernel_size, stride, padding, dilation, transposed)

    def on(self, axis: int) -> tuple[int, int, int, int]:
        """(kernel size, stride, padding, dilation) along an axis."""
        return self.kernel_size[axis], self.stride[axis], self.padding[axis], self.dilation[axis]

    @property
    def coarse_of_fine(self) -> int:
        """Coarse voxels that one fine voxel meets at most: per axis the taps that are alike modulo the stride."""
        axes = map(self.on, range(3))
        return math.prod(-(-kernel * math.gcd(stride, dilation) // stride) for kernel, stride, _, dilation in axes)

    @property
    def candidates(self) -> tuple[int, ...]:
        """Per axis, how many outputs of an input kernels look at (passes/gpu/cross_axes.py): no fewer than it has."""
        axes = map(self.on, range(3))
        return tuple(
            kernel if self.transposed or dilation > 1 else -(-kernel // stride) for kernel, stride, _, dilation in axes
        )

    @property
    def most(self) -> int:
        """Outputs of one input at most."""
        return math.prod(self.kernel_size) if self.transposed else self.coarse_of_fine

    @property
    def name(self) -> str:
        axes = ("x".join(map(str, values)) for values in (self.kernel_size, self.stride, self.padding, self.dilation))
        kernel, stride, padding, dilation = axes
        return f"{kernel}_s{stride}_p{padding}_d{dilation}{'_transposed' if self.transposed else ''}"
