"""Sparse pools as torch modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spconv_compiler.errors import InputError
from spconv_compiler.pytorch import calls, ops
from spconv_compiler.pytorch.algo import ConvAlgo
from spconv_compiler.pytorch.coords import axes3, narrow
from spconv_compiler.pytorch.core import SparseConvTensor
from spconv_compiler.pytorch.geometry import conv_output_size
from spconv_compiler.pytorch.keys import check_unwritten, note_of
from spconv_compiler.pytorch.modules import SparseModule, axes_of, check_axes, given
from spconv_compiler.pytorch.operands import check_pool_input, count_rows


class _SparsePool(SparseModule):
    """A pool onto every voxel whose window an input is in."""

    MODE: str
    max_num_voxels_during_training: Tensor

    def __init__(
        self,
        ndim: int,
        kernel_size: Any = 3,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        indice_key: str | None = None,
        subm: bool = False,
        algo: ConvAlgo | None = None,
        record_voxel_count: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        check_axes(self, ndim)
        self.ndim, self.indice_key, self.subm, self.algo = ndim, indice_key, subm, algo
        self.kernel_size, self.stride, self.padding, self.dilation = axes_of(
            self, kernel_size=kernel_size, stride=kernel_size if stride is None else stride, padding=padding,
            dilation=dilation,
        )
        if subm and not all(size % 2 for size in self.kernel_size):
            raise InputError(f"{type(self).__name__}: kernel_size is {self.kernel_size}; accepted with subm: odd sizes")
        self.record_voxel_count = record_voxel_count and not subm
        if self.record_voxel_count:
            self.register_buffer("max_num_voxels_during_training", torch.zeros(1, dtype=torch.int32))

    def extra_repr(self) -> str:
        """Kernel size, stride, padding, dilation."""
        return ", ".join(f"{name}={getattr(self, name)}" for name in ("kernel_size", "stride", "padding", "dilation"))

    def get_max_num_voxels(self) -> Tensor | None:
        """The greatest number of outputs so far, if it is recorded."""
        return getattr(self, "max_num_voxels_during_training", None)

    def forward(self, input: SparseConvTensor) -> SparseConvTensor:
        """Pools; raises InputError as the convolutions do."""
        x = self.check_input(input)
        check_pool_input(self, x)
        kernel, dilation = axes3(self.kernel_size, 1), axes3(self.dilation, 1)
        if self.subm:
            around = [size // 2 * step for size, step in zip(kernel, dilation, strict=True)]
            geometry = (kernel, [1, 1, 1], around, dilation)
            return x.replace_feature(ops.sparse_pool3d(x.features, x.coords, x.coords, *geometry, self.MODE))
        if self.indice_key is not None:
            check_unwritten(self, self.indice_key, x.indice_dict.get(self.indice_key))
        shape = None
        if x.spatial_shape is not None:
            shape = conv_output_size(x.spatial_shape, self.kernel_size, self.stride, self.padding, self.dilation)
        geometry = (kernel, axes3(self.stride, 1), axes3(self.padding, 0), dilation)
        out_coords, out, kept = calls.sparse_pool3d(x.features, x.coords, geometry, x.shape3, x.batch_size, self.MODE)
        out_indices, notes = narrow(out_coords, self.ndim), x.indice_dict
        if self.indice_key is not None:
            notes = {**notes, self.indice_key: note_of(self, x, out_indices, out_coords, shape, kept)}
        if self.record_voxel_count:
            count_rows(self.max_num_voxels_during_training, out.shape[0])
        return x.moved(out, out_indices, out_coords, shape, notes)


class SparseMaxPool(_SparsePool):
    """The greatest of the voxels in the window and 0, as in spconv: a window of negative values gives 0.

    (spconv_compiler.sparse_max_pool3d gives their maximum.)
    """

    MODE = "max_or_zero"


class SparseAvgPool(_SparsePool):
    """The mean of the voxels that are in the window."""

    MODE = "avg"


class _ByDimension:
    """spconv's arguments for a pool of fixed dimension: stride is kernel_size unless given."""

    NDIM: int

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        indice_key: str | None = None,
        algo: ConvAlgo | None = None,
        record_voxel_count: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(self.NDIM, **given(locals()))  # type: ignore[call-arg]


class SparseMaxPool1d(_ByDimension, SparseMaxPool):
    """SparseMaxPool over one spatial axis."""

    NDIM = 1


class SparseMaxPool2d(_ByDimension, SparseMaxPool):
    """SparseMaxPool over two spatial axes."""

    NDIM = 2


class SparseMaxPool3d(_ByDimension, SparseMaxPool):
    """SparseMaxPool over three spatial axes."""

    NDIM = 3


class SparseMaxPool4d(_ByDimension, SparseMaxPool):
    """Not here: with four spatial axes the constructor raises InputError."""

    NDIM = 4


class SparseAvgPool1d(_ByDimension, SparseAvgPool):
    """SparseAvgPool over one spatial axis."""

    NDIM = 1


class SparseAvgPool2d(_ByDimension, SparseAvgPool):
    """SparseAvgPool over two spatial axes."""

    NDIM = 2


class SparseAvgPool3d(_ByDimension, SparseAvgPool):
    """SparseAvgPool over three spatial axes."""

    NDIM = 3


class _GlobalPool(SparseModule):
    REDUCE: str

    def forward(self, input: SparseConvTensor) -> Tensor:
        """[batch, C]; a batch without voxels gives zeros."""
        x = self.check_input(input)
        check_pool_input(self, x)
        batch = x.indices[:, :1].long().expand(-1, x.features.shape[1])
        out = x.features.new_zeros((x.batch_size, x.features.shape[1]))
        return out.scatter_reduce(0, batch, x.features, self.REDUCE, include_self=False)


class SparseGlobalMaxPool(_GlobalPool):
    """The maximum over all voxels of each batch: [batch, C]."""

    REDUCE = "amax"


class SparseGlobalAvgPool(_GlobalPool):
    """The mean over all voxels of each batch: [batch, C].

    spconv 2.3.8 returns [batch], the mean of channel 0 alone; `[:, 0]` of this is that.
    """

    REDUCE = "mean"
