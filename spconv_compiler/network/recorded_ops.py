"""The functions of torch that the recorder knows: what each gives for tensors without contents.

A function belongs here if its result's shape and dtype follow from those of its arguments, and if it neither draws
random numbers nor asks how many voxels there are. Pointwise ones are given their shape here: torch would import its
tracer to find it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spconv_compiler.pytorch import ops

if TYPE_CHECKING:
    from spconv_compiler.network.recorder import Recorder


class Unsure(Exception):
    """A model cannot be recorded; says why."""


def _getter(name: str) -> Any:
    return getattr(Tensor, name).__get__


FACTS: dict[Any, Callable[..., Any]] = {
    **{_getter(name): _getter(name) for name in ("shape", "dtype", "ndim", "layout", "requires_grad", "device")},
    _getter("is_cpu"): lambda tensor: True,
    _getter("is_cuda"): lambda tensor: False,
    **{getattr(Tensor, name): getattr(Tensor, name) for name in ("size", "dim", "is_floating_point")},
}
"""What a program may ask of a tensor."""

CALLS: dict[Any, tuple[str, Callable[..., Any]]] = {}
"""By function: how it is written down, and (recorder, arguments of the function) → result."""


def _register(label: str, *functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(run: Callable[..., Any]) -> Callable[..., Any]:
        for number, function in enumerate(functions):
            CALLS[function] = (f"{label}.{number}", run)
        return run

    return add


@_register("pointwise", torch.relu, Tensor.relu, torch.sigmoid, Tensor.sigmoid, torch.tanh, Tensor.tanh)
def _pointwise(recorder: Recorder, input: Tensor) -> Tensor:
    return input.new_empty(input.shape)


@_register("copy", Tensor.clone, torch.clone, Tensor.neg, Tensor.__neg__, torch.neg)
def _copy(recorder: Recorder, input: Tensor) -> Tensor:
    return input.new_empty(input.shape)


@_register("relu", F.relu)
def _relu(recorder: Recorder, input: Tensor, inplace: bool = False) -> Tensor:
    return _activated(recorder, input, inplace)


@_register("silu", F.silu)
def _silu(recorder: Recorder, input: Tensor, inplace: bool = False) -> Tensor:
    return _activated(recorder, input, inplace)


@_register("leaky_relu", F.leaky_relu)
def _leaky_relu(recorder: Recorder, input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    return _activated(recorder, input, inplace)


@_register("gelu", F.gelu)
def _gelu(recorder: Recorder, input: Tensor, *, approximate: str = "none") -> Tensor:
    return input.new_empty(input.shape)


@_register("dropout", F.dropout)
def _dropout(recorder: Recorder, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if training:
        raise Unsure("dropout draws random numbers")
    return _activated(recorder, input, inplace)


@_register("batch_norm", F.batch_norm)
def _batch_norm(
    recorder: Recorder,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if training:
        raise Unsure("batch norm over the statistics of the batch")
    return input.new_empty(input.shape)


def _activated(recorder: Recorder, input: Tensor, inplace: bool) -> Tensor:
    if inplace:
        recorder.refuse_given(input)
        return input
    return input.new_empty(input.shape)


@_register(
    "arithmetic",
    *(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, torch.sub, Tensor.sub, Tensor.__sub__, Tensor.__rsub__),
    *(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.div, Tensor.div, Tensor.__truediv__),
)
def _arithmetic(recorder: Recorder, input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    shapes = [list(value.shape) for value in (input, other) if isinstance(value, Tensor)]
    dtype = torch.result_type(input, other)
    if not dtype.is_floating_point:
        raise Unsure("arithmetic on integers")
    return torch.empty(_broadcast(shapes), dtype=dtype, device="meta")


def _broadcast(shapes: list[list[int]]) -> list[int]:
    axes = max(map(len, shapes))
    columns = zip(*([1] * (axes - len(shape)) + shape for shape in shapes), strict=True)
    found = []
    for sizes in columns:
        wide = {size for size in sizes if size != 1}
        if len(wide) > 1:
            raise Unsure(f"shapes {shapes} do not fit together")
        found.append(wide.pop() if wide else 1)
    return found


@_register("cat", torch.cat, torch.concat)
def _cat(recorder: Recorder, tensors: Any, dim: int = 0) -> Tensor:
    shape = list(tensors[0].shape)
    if dim not in (1, -1) or len({tensor.dtype for tensor in tensors}) != 1:
        raise Unsure("a concatenation of other things than channels of one dtype")
    for tensor in tensors:
        if len(tensor.shape) != len(shape) or tensor.shape[0] != shape[0]:
            raise Unsure("a concatenation of other rows")
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    return torch.empty(shape, dtype=tensors[0].dtype, device="meta")


@_register("mm", torch.mm, Tensor.mm, torch.matmul, Tensor.matmul, Tensor.__matmul__)
def _mm(recorder: Recorder, input: Tensor, other: Tensor) -> Tensor:
    if input.dim() != 2 or other.dim() != 2 or input.shape[1] != other.shape[0] or input.dtype != other.dtype:
        raise Unsure("a product of other things than fitting matrices")
    return input.new_empty((input.shape[0], other.shape[1]))


@_register("addmm", torch.addmm)
def _addmm(
    recorder: Recorder, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    made: Tensor = _mm(recorder, mat1, mat2)
    return made


@_register("linear", F.linear)
def _linear(recorder: Recorder, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if input.shape[-1] != weight.shape[1] or input.dtype != weight.dtype:
        raise Unsure("a product of other things than fitting matrices")
    return input.new_empty((*input.shape[:-1], weight.shape[0]))


@_register("conv2d", torch.conv2d)
def _conv2d(
    recorder: Recorder,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    return _image(input, weight, groups, (stride, padding, 0, dilation), transposed=False)


@_register("conv_transpose2d", torch.conv_transpose2d)
def _conv_transpose2d(
    recorder: Recorder,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    return _image(input, weight, groups, (stride, padding, output_padding, dilation), transposed=True)


def _image(input: Tensor, weight: Tensor, groups: int, options: tuple[Any, ...], *, transposed: bool) -> Tensor:
    """What a convolution of images gives; options: stride, padding, output_padding, dilation."""
    taken, channels = (weight.shape[0], weight.shape[1] * groups)[:: 1 if transposed else -1]
    if input.dim() != 4 or weight.dim() != 4 or input.shape[1] != taken:
        raise Unsure("a convolution of other things than fitting images")
    sizes = []
    for size, taps, *numbers in zip(input.shape[2:], weight.shape[2:], *map(_pair, options), strict=True):
        step, pad, extra, gap = numbers
        reach = gap * (taps - 1) - 2 * pad
        sizes.append((size - 1) * step + reach + extra + 1 if transposed else (size - reach - 1) // step + 1)
    if min(sizes) < 1:
        raise Unsure("a convolution of images that are too small")
    return torch.empty((input.shape[0], channels, *sizes), dtype=input.dtype, device="meta")


def _pair(value: Any) -> tuple[int, int]:
    first, second = (value, value) if isinstance(value, int) else value
    return first, second


# Those whose results torch finds without its tracer.
_PLAIN = (
    *(Tensor.view, Tensor.reshape, torch.reshape, Tensor.flatten, torch.flatten, Tensor.unsqueeze, torch.unsqueeze),
    *(Tensor.permute, torch.permute, Tensor.transpose, torch.transpose, Tensor.t, Tensor.contiguous, Tensor.detach),
    *(Tensor.float, Tensor.half, Tensor.bfloat16),
)
for _number, _function in enumerate(_PLAIN):
    _label = f"{getattr(_function, '__name__', '')}.{_number}"
    CALLS[_function] = (_label, lambda recorder, *args, run=_function, **named: run(*args, **named))


@_register("iadd", Tensor.__iadd__)
def _add_in_place(recorder: Recorder, input: Tensor, other: Any) -> Tensor:
    recorder.refuse_given(input)
    if _arithmetic(recorder, input, other).shape != input.shape:
        raise Unsure("a sum does not fit into its place")
    return input


@_register("to", Tensor.to)
def _to(recorder: Recorder, input: Tensor, other: Any) -> Tensor:
    if not isinstance(other, (torch.dtype, Tensor)):
        raise Unsure("a tensor is moved")
    return input.to(other)


@_register("getitem", Tensor.__getitem__)
def _getitem(recorder: Recorder, input: Tensor, index: Any) -> Tensor:
    places = index if isinstance(index, tuple) else (index,)
    if not all(place is None or place is ... or type(place) in (int, slice) for place in places):
        raise Unsure("a tensor is indexed by what is no number")
    return input[index]


# The ops of this package.


@_register("subm_conv3d", ops.subm_conv3d)
def _subm_conv3d(recorder: Recorder, features: Tensor, coords: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    return features.new_empty((features.shape[0], weight.shape[0]))


@_register("output_coords", ops.output_coords)
def _output_coords(recorder: Recorder, coords: Tensor, *geometry: Any) -> Tensor:
    return coords.new_empty((recorder.fresh_rows(), coords.shape[1]))


@_register("sparse_conv3d", ops.sparse_conv3d)
def _sparse_conv3d(
    recorder: Recorder, features: Tensor, coords: Tensor, out_coords: Tensor, weight: Tensor, *rest: Any
) -> Tensor:
    return features.new_empty((out_coords.shape[0], weight.shape[0]))


@_register("sparse_pool3d", ops.sparse_pool3d)
def _sparse_pool3d(
    recorder: Recorder, features: Tensor, coords: Tensor, out_coords: Tensor, *rest: Any
) -> Tensor:
    return features.new_empty((out_coords.shape[0], features.shape[1]))


@_register("union_coords", ops.union_coords)
def _union_coords(recorder: Recorder, first: Tensor, second: Tensor, *rest: Any) -> Tensor:
    return first.new_empty((recorder.fresh_rows(), first.shape[1]))


@_register("int32_coords", ops.int32_coords)
def _int32_coords(recorder: Recorder, indices: Tensor) -> Tensor:
    return indices.new_empty(indices.shape, dtype=torch.int32)


@_register("to_dense", ops.to_dense)
def _to_dense(
    recorder: Recorder, features: Tensor, coords: Tensor, spatial_shape: Any, batch_size: int
) -> Tensor:
    return features.new_empty((batch_size, features.shape[1], *spatial_shape))
