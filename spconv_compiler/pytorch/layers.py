"""The convolution classes that models use: spconv's names, with its arguments in its order."""

from __future__ import annotations

from typing import Any

from spconv_compiler.pytorch.algo import ConvAlgo
from spconv_compiler.pytorch.conv import SparseConvolution
from spconv_compiler.pytorch.modules import given


class _SubMConv(SparseConvolution):
    NDIM: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        indice_key: str | None = None,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(self.NDIM, **given(locals()), subm=True)


class _SparseConv(SparseConvolution):
    NDIM: int
    TRANSPOSED = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        indice_key: str | None = None,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        record_voxel_count: bool = False,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(self.NDIM, **given(locals()), transposed=self.TRANSPOSED)


class _SparseInverseConv(SparseConvolution):
    NDIM: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        indice_key: str,
        bias: bool = True,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(self.NDIM, **given(locals()), inverse=True)


class SubMConv1d(_SubMConv):
    """Submanifold convolution: outputs at the input voxels; stride and padding are ignored; 1 spatial axis."""

    NDIM = 1


class SubMConv2d(_SubMConv):
    """Submanifold convolution: outputs at the input voxels; stride and padding are ignored; 2 spatial axes."""

    NDIM = 2


class SubMConv3d(_SubMConv):
    """Submanifold convolution: outputs at the input voxels; stride and padding are ignored; 3 spatial axes."""

    NDIM = 3


class SparseConv1d(_SparseConv):
    """Convolution onto every voxel that an input reaches; 1 spatial axis."""

    NDIM = 1


class SparseConv2d(_SparseConv):
    """Convolution onto every voxel that an input reaches; 2 spatial axes."""

    NDIM = 2


class SparseConv3d(_SparseConv):
    """Convolution onto every voxel that an input reaches; 3 spatial axes."""

    NDIM = 3


class SparseConvTranspose1d(_SparseConv):
    """Transposed convolution onto every voxel that an input reaches; 1 spatial axis."""

    NDIM = 1
    TRANSPOSED = True


class SparseConvTranspose2d(_SparseConv):
    """Transposed convolution onto every voxel that an input reaches; 2 spatial axes."""

    NDIM = 2
    TRANSPOSED = True


class SparseConvTranspose3d(_SparseConv):
    """Transposed convolution onto every voxel that an input reaches; 3 spatial axes."""

    NDIM = 3
    TRANSPOSED = True


class SparseInverseConv1d(_SparseInverseConv):
    """Inverse of the layer that wrote indice_key: back to the voxels it read, through its taps; 1 spatial axis."""

    NDIM = 1


class SparseInverseConv2d(_SparseInverseConv):
    """Inverse of the layer that wrote indice_key: back to the voxels it read, through its taps; 2 spatial axes."""

    NDIM = 2


class SparseInverseConv3d(_SparseInverseConv):
    """Inverse of the layer that wrote indice_key: back to the voxels it read, through its taps; 3 spatial axes."""

    NDIM = 3


# Frameworks import all of spconv's names, and register them; few of their models use these.


class SubMConv4d(_SubMConv):
    """Not here: with four spatial axes the constructor raises InputError."""

    NDIM = 4


class SparseConv4d(_SparseConv):
    """Not here: with four spatial axes the constructor raises InputError."""

    NDIM = 4


class SparseConvTranspose4d(_SparseConv):
    """Not here: with four spatial axes the constructor raises InputError."""

    NDIM = 4
    TRANSPOSED = True


class SparseInverseConv4d(_SparseInverseConv):
    """Not here: with four spatial axes the constructor raises InputError."""

    NDIM = 4
