"""Sparse convolutions as torch modules: the base class that does the work, and one class per kind and dimension.

Weights are [C_out, *kernel_size, C_in], as spconv 2.x keeps them; parameters are drawn as spconv draws them.
"""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from spconv_compiler.errors import InputError
from spconv_compiler.pytorch import calls
from spconv_compiler.pytorch.algo import ConvAlgo
from spconv_compiler.pytorch.coords import axes3, narrow
from spconv_compiler.pytorch.core import SparseConvTensor
from spconv_compiler.pytorch.geometry import conv_output_size, transposed_output_size
from spconv_compiler.pytorch.keys import check_inverse, check_subm, check_unwritten, note_of
from spconv_compiler.pytorch.modules import SparseModule, axes_of, check_axes, numbers_of
from spconv_compiler.pytorch.operands import check_operands, count_rows

_ACTIVATIONS = (None, "none", "relu")


class SparseConvolution(SparseModule):
    """Any sparse convolution; the classes below fix `ndim` and the kind.

    Args:
        ndim: spatial axes, 1 to 3.
        in_channels, out_channels: C_in, C_out.
        kernel_size, stride, padding, dilation, output_padding: one number, or one per axis.
        groups: 1.
        bias: whether there is one, [C_out].
        subm: outputs are the inputs' voxels; stride and padding are ignored and the kernel is odd.
        transposed, inverse: the kind.
        indice_key: under which the layer notes its geometry, or finds the one it is the inverse of. Checked, never
            trusted; without a key maps are shared all the same.
        algo, fp32_accum, large_kernel_fast_algo: accepted and without effect: the compiler chooses, for any kernel, and
            sums are always taken in f32.
        record_voxel_count: keep the greatest number of outputs in the buffer `max_num_voxels_during_training`.
        act_type: None or "relu", fused; for inference.
        name: for messages.

    Raises:
        InputError: an argument is not accepted.
    """

    max_num_voxels_during_training: Tensor

    def __init__(
        self,
        ndim: int,
        in_channels: int,
        out_channels: int,
        kernel_size: Any = 3,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        subm: bool = False,
        output_padding: Any = 0,
        transposed: bool = False,
        inverse: bool = False,
        indice_key: str | None = None,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        record_voxel_count: bool = False,
        act_type: str | None = None,
        act_alpha: float = 0,
        act_beta: float = 0,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name)
        check_axes(self, ndim)
        self.ndim = ndim
        self.in_channels, self.out_channels, self.groups = numbers_of(
            self, in_channels=in_channels, out_channels=out_channels, groups=groups
        )
        self.kernel_size, self.stride, self.padding, self.dilation, self.output_padding = axes_of(
            self, kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation,
            output_padding=output_padding,
        )
        self.subm, self.transposed, self.inverse, self.indice_key = subm, transposed, inverse, indice_key
        self.algo, self.fp32_accum, self.record_voxel_count = algo, fp32_accum, record_voxel_count
        self.act_type, self.act_alpha, self.act_beta = act_type, act_alpha, act_beta
        # spconv's rule: then the layer is a matrix product, and notes nothing under its key.
        self.conv1x1 = math.prod(self.kernel_size) == 1 and (subm or math.prod(self.stride) == 1)
        self._check_arguments()
        factory = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty((self.out_channels, *self.kernel_size, self.in_channels), **factory))
        if bias:
            self.bias = nn.Parameter(torch.empty(self.out_channels, **factory))
        else:
            self.register_parameter("bias", None)
        if record_voxel_count and not subm and not inverse:
            counts = torch.zeros(1, dtype=torch.int32, device=device)
            self.register_buffer("max_num_voxels_during_training", counts)
        self.reset_parameters()

    def _check_arguments(self) -> None:
        found: list[tuple[str, Any, bool, str]] = [("groups", self.groups, self.groups == 1, "1")]
        for name, least in (("kernel_size", 1), ("stride", 1), ("padding", 0), ("dilation", 1), ("output_padding", 0)):
            values = getattr(self, name)
            found.append((name, values, min(values) >= least, f"numbers of at least {least}"))
        channels = (self.in_channels, self.out_channels)
        found.append(("(in_channels, out_channels)", channels, min(channels) >= 1, "at least 1 each"))
        odd = not self.subm or all(size % 2 for size in self.kernel_size)
        found.append(("kernel_size", self.kernel_size, odd, "odd sizes, in a submanifold convolution"))
        unpadded = self.subm or not self.conv1x1 or max(self.padding) == 0
        found.append(("padding", self.padding, unpadded, "0 for a kernel of one tap with stride 1"))
        known = self.act_type in _ACTIVATIONS and not (self.conv1x1 and self.act_type == "relu")
        found.append(("act_type", self.act_type, known, "None or 'relu'; None for a kernel of one tap"))
        for name, value, good, accepted in found:
            if not good:
                raise InputError(f"{type(self).__name__}: {name} is {value!r}; accepted: {accepted}")

    def reset_parameters(self) -> None:
        """Draws weight and bias: uniform within ±1/√(C_in · taps), as nn.Conv3d and spconv do."""
        fan_in = self.in_channels * math.prod(self.kernel_size)
        std = nn.init.calculate_gain("leaky_relu", math.sqrt(5)) / math.sqrt(fan_in)
        bound = math.sqrt(3.0) * std
        with torch.no_grad():
            self.weight.uniform_(-bound, bound)
            if self.bias is not None:
                self.bias.uniform_(-1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))

    def extra_repr(self) -> str:
        """Arguments that are not their defaults."""
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"]
        for name, default in (("padding", 0), ("dilation", 1), ("output_padding", 0)):
            values = getattr(self, name)
            parts += [f"{name}={values}"] if values != [default] * self.ndim else []
        parts += ["bias=False"] if getattr(self, "bias", None) is None else []
        parts += [f"indice_key={self.indice_key!r}"] if self.indice_key is not None else []
        return ", ".join(parts)

    def is_inverseable(self) -> bool:
        """Whether a SparseInverseConv can be the inverse of this layer."""
        return self.indice_key is not None and not self.subm

    def get_max_num_voxels(self) -> Tensor | None:
        """The greatest number of outputs so far, if it is recorded."""
        return getattr(self, "max_num_voxels_during_training", None)

    def forward(self, input: SparseConvTensor, add_input: SparseConvTensor | None = None) -> SparseConvTensor:
        """Convolves; `add_input` is added before the activation.

        Raises:
            InputError: devices, dtypes, channels or keys do not fit, or coordinates are out of range or repeat.
            CompileError, LaunchError, ToolchainError: see subm_conv3d.
        """
        x = self.check_input(input)
        if self.training and self.act_type == "relu":
            raise InputError(f"{self.describe()}: act_type is {self.act_type!r} in training; accepted: eval()")
        features, weight, bias = check_operands(self, x)
        if self.conv1x1:
            return self._residual(self._matrix_product(x, features, weight, bias), add_input)
        if self.ndim < 3:
            weight = weight.reshape(self.out_channels, *axes3(self.kernel_size, 1), self.in_channels)
        activation = self.act_type if self.act_type is not None and add_input is None else "none"
        run = self._submanifold if self.subm else self._inverse if self.inverse else self._strided
        return self._residual(run(x, features, weight, bias, activation), add_input)

    def _matrix_product(
        self, x: SparseConvTensor, features: Tensor, weight: Tensor, bias: Tensor | None
    ) -> SparseConvTensor:
        # The memory of [C_out, 1, 1, 1, C_in] is read as [C_in, C_out]: not its transpose, but what spconv trains.
        out = torch.mm(features, weight.view(self.in_channels, self.out_channels))
        made = x.replace_feature(out if bias is None else out + bias)
        made.spatial_shape = x.spatial_shape if self.subm or self.inverse else self._output_shape(x)
        return made

    def _submanifold(
        self, x: SparseConvTensor, features: Tensor, weight: Tensor, bias: Tensor | None, activation: str
    ) -> SparseConvTensor:
        coords, notes = x.coords, x.indice_dict
        if self.indice_key is not None:
            found = notes.get(self.indice_key)
            if found is None:
                notes = {**notes, self.indice_key: note_of(self, x, x.indices, coords, x.spatial_shape)}
            else:
                check_subm(self, self.indice_key, found, x)
                coords = coords if torch.compiler.is_compiling() else found.coords
        dilation = axes3(self.dilation, 1)
        out = calls.subm_conv3d(features, coords, weight, bias, dilation, x.shape3, x.batch_size, activation)
        return x.filled(out, notes)

    def _strided(
        self, x: SparseConvTensor, features: Tensor, weight: Tensor, bias: Tensor | None, activation: str
    ) -> SparseConvTensor:
        if self.indice_key is not None:
            check_unwritten(self, self.indice_key, x.indice_dict.get(self.indice_key))
        shape = self._output_shape(x)
        extra = axes3(self.output_padding, 0)
        where = (self._axes(), extra, self.transposed, x.shape3, x.batch_size)
        out_coords, out, kept = calls.sparse_conv3d(features, x.coords, weight, bias, *where, activation)
        out_indices, notes = narrow(out_coords, self.ndim), x.indice_dict
        if self.indice_key is not None:
            notes = {**notes, self.indice_key: note_of(self, x, out_indices, out_coords, shape, kept)}
        if self.record_voxel_count:
            count_rows(self.max_num_voxels_during_training, out.shape[0])
        return x.moved(out, out_indices, out_coords, shape, notes)

    def _inverse(
        self, x: SparseConvTensor, features: Tensor, weight: Tensor, bias: Tensor | None, activation: str
    ) -> SparseConvTensor:
        found = check_inverse(self, self.indice_key, x)
        coords = x.coords if torch.compiler.is_compiling() else found.out_coords
        out = calls.inverse_over(found.kept, features, coords, found.coords, weight, bias, activation)
        if out is None:
            kernel = axes3(self.kernel_size, 1)
            axes = (kernel, axes3(found.stride, 1), axes3(found.padding, 0), axes3(found.dilation, 1))
            out = calls.inverse_conv3d(
                features, coords, found.coords, weight, bias, axes, not found.transposed, activation
            )
        return x.moved(out, found.indices, found.coords, found.spatial_shape, x.indice_dict)

    def _axes(self) -> tuple[list[int], list[int], list[int], list[int]]:
        return axes3(self.kernel_size, 1), axes3(self.stride, 1), axes3(self.padding, 0), axes3(self.dilation, 1)

    def _output_shape(self, x: SparseConvTensor) -> list[int] | None:
        if x.spatial_shape is None:
            return None
        if self.transposed:
            return transposed_output_size(
                x.spatial_shape, self.kernel_size, self.stride, self.padding, self.output_padding
            )
        return conv_output_size(x.spatial_shape, self.kernel_size, self.stride, self.padding, self.dilation)

    def _residual(self, made: SparseConvTensor, add_input: SparseConvTensor | None) -> SparseConvTensor:
        if add_input is None:
            return made
        total = made + add_input
        return total.replace_feature(torch.relu(total.features)) if self.act_type == "relu" else total


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """The classes of layers.py, which spconv has in its module `conv`."""
        layers = importlib.import_module("spconv_compiler.pytorch.layers")
        if name.startswith("_") or not isinstance(getattr(layers, name, None), type):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(layers, name)
