"""spconv's layers in plain numpy, float64: the oracle for whole networks. Give this module as `spconv`.

    model = make_model(spec, plain, channels, shape)     # the same definition, the same parameters, plain arithmetic

Only what the networks of this package use. Every layer's result is rounded to the dtype of its input. Slow.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spconv_compiler import reference
from spconv_compiler.reference_cross import Grid, outputs, pairs


@dataclasses.dataclass
class SparseConvTensor:
    """features [N, C], indices int32 [N, 4] (batch, z, y, x), and what layers note under their keys."""

    features: Tensor
    indices: Tensor
    spatial_shape: list[int]
    batch_size: int
    indice_dict: dict[Any, Any] = dataclasses.field(default_factory=dict)

    def replace_feature(self, features: Tensor) -> SparseConvTensor:
        """The same voxels with other features."""
        return dataclasses.replace(self, features=features)

    def dense(self) -> Tensor:
        """[B, C, z, y, x], 0 where there is no voxel."""
        out = self.features.new_zeros((self.batch_size, *self.spatial_shape, self.features.shape[1]))
        out[tuple(self.indices.long().T)] = self.features
        return out.movedim(-1, 1)


class SparseSequential(nn.Sequential):
    """Layers in turn; those that are not sparse see the features alone."""

    def forward(self, input: SparseConvTensor) -> SparseConvTensor:
        for module in self:
            sparse = isinstance(module, (_Convolution, SparseSequential))
            input = module(input) if sparse else input.replace_feature(module(input.features))
        return input


class _Convolution(nn.Module):
    """What the three kinds share."""

    subm = inverse = False

    def __init__(
        self, c_in: int, c_out: int, kernel_size: Any, stride: Any = 1, padding: Any = 0, *, bias: bool, indice_key: Any
    ) -> None:
        super().__init__()
        self.grid, self.key = Grid.of(kernel_size, stride, padding), indice_key
        self.stride, self.padding = self.grid.stride, self.grid.padding
        self.weight = nn.Parameter(torch.empty(c_out, *self.grid.kernel_size, c_in))
        self.bias = nn.Parameter(torch.empty(c_out)) if bias else None

    def _finish(self, voxels: SparseConvTensor, out: Any) -> Tensor:
        total = out if self.bias is None else out + reference.to_numpy(self.bias).astype(np.float64)
        return torch.from_numpy(total).to(voxels.features.dtype)

    def _sum(self, voxels: SparseConvTensor, found: reference.Pairs, rows: int) -> Tensor:
        return self._finish(voxels, reference.gather_gemm_scatter(voxels.features, self.weight, found, rows))


class SubMConv3d(_Convolution):
    """Over the voxels that there are."""

    subm = True

    def __init__(
        self, c_in: int, c_out: int, kernel_size: Any, padding: Any = 0, bias: bool = True, indice_key: Any = None
    ) -> None:
        super().__init__(c_in, c_out, kernel_size, padding=padding, bias=bias, indice_key=indice_key)

    def forward(self, voxels: SparseConvTensor) -> SparseConvTensor:
        c_out, *kernel, c_in = self.weight.shape
        if kernel == [1, 1, 1]:
            # spconv reads the memory of [C_out, 1, 1, 1, C_in] as [C_in, C_out] here.
            matrix = reference.to_numpy(self.weight).astype(np.float64).reshape(c_in, c_out)
            out = reference.to_numpy(voxels.features).astype(np.float64) @ matrix
            return voxels.replace_feature(self._finish(voxels, out))
        key = ("subm", id(voxels.indices), *kernel)
        if key not in voxels.indice_dict:
            # The tensor is kept beside its pairs, so that no other one gets its id.
            table = reference.kernel_map(voxels.indices, kernel)
            voxels.indice_dict[key] = voxels.indices, reference.pairs(table)
        found = voxels.indice_dict[key][1]
        return voxels.replace_feature(self._sum(voxels, found, len(voxels.indices)))


class SparseConv3d(_Convolution):
    """Onto every voxel that an input reaches."""

    def __init__(
        self,
        c_in: int,
        c_out: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        bias: bool = True,
        indice_key: Any = None,
    ) -> None:
        super().__init__(c_in, c_out, kernel_size, stride, padding, bias=bias, indice_key=indice_key)

    def forward(self, voxels: SparseConvTensor) -> SparseConvTensor:
        shape = self.grid.output_shape(voxels.spatial_shape)
        made = outputs(voxels.indices, self.grid, shape=shape)
        indices = torch.tensor(made, dtype=torch.int32).reshape(-1, 4)
        found = pairs(voxels.indices, indices, self.grid)
        kept = {**voxels.indice_dict, self.key: (voxels, found)}
        return SparseConvTensor(self._sum(voxels, found, len(made)), indices, list(shape), voxels.batch_size, kept)


class SparseInverseConv3d(_Convolution):
    """Back onto the inputs of the SparseConv3d that has the same key, over its pairs and with its taps."""

    inverse = True

    def __init__(self, c_in: int, c_out: int, kernel_size: Any, indice_key: Any, bias: bool = True) -> None:
        super().__init__(c_in, c_out, kernel_size, bias=bias, indice_key=indice_key)

    def forward(self, voxels: SparseConvTensor) -> SparseConvTensor:
        fine, found = voxels.indice_dict[self.key]
        back = reference.Pairs(found.out_rows, found.in_rows, found.tap_start)
        features = self._sum(voxels, back, len(fine.indices))
        return SparseConvTensor(features, fine.indices, fine.spatial_shape, voxels.batch_size, voxels.indice_dict)
