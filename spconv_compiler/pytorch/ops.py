"""The sparse ops as torch.library ops: what eager modules call, and what traced and exported graphs contain.

All have the namespace `spconv_compiler` (torch.ops.spconv_compiler.<name>.default). Coordinates are int32 [N, 4]
(batch, z, y, x), one row per voxel; features [N, C] of f32, bf16 or f16; weights native, [C_out, kz, ky, kx, C_in], of
the features' dtype; geometry is given in (z, y, x); bias [C_out]; sums are taken in f32.

    subm_conv3d(Tensor features, Tensor coords, Tensor weight, Tensor? bias, int[] dilation,
                SymInt[]? spatial_shape, SymInt batch_size, str activation) -> Tensor            [N, C_out]
    output_coords(Tensor coords, int[] kernel_size, int[] stride, int[] padding, int[] dilation,
                int[] output_padding, bool transposed, SymInt[]? spatial_shape, SymInt batch_size) -> Tensor   [M, 4]
    sparse_conv3d(Tensor features, Tensor coords, Tensor out_coords, Tensor weight, Tensor? bias,
                int[] stride, int[] padding, int[] dilation, bool transposed, str activation) -> Tensor   [M, C_out]
    sparse_pool3d(Tensor features, Tensor coords, Tensor out_coords, int[] kernel_size, int[] stride,
                int[] padding, int[] dilation, str mode) -> Tensor                               [M, C]
    to_dense(Tensor features, Tensor coords, SymInt[] spatial_shape, SymInt batch_size) -> Tensor [B, C, z, y, x]
    union_coords(Tensor first, Tensor second, SymInt[]? spatial_shape, SymInt batch_size) -> Tensor  [M, 4]
    int32_coords(Tensor indices) -> Tensor                                                           [N, 1 + ndim]

* Maps are no arguments: they belong to the coordinate tensors and are found again by them (maps.py).
* output_coords gives the rows that inputs reach, ascending, clipped to the output shape of spatial_shape; M is unknown
  until it runs (an unbacked size in a trace). spatial_shape None: the grid has no edge.
* sparse_conv3d takes both sets. transposed says that coords are the coarse side: coarse voxel c meets fine voxel
  c·stride − padding + tap·dilation. The inverse of a convolution is sparse_conv3d with the two sets exchanged and
  `transposed` negated; taps stay as they are.
* union_coords gives the rows that either has, ascending; int32_coords narrows int64 and raises InputError for values
  that do not fit.
* mode: "max" (of the voxels that are there), "max_or_zero" (spconv's: no less than 0), "avg" (of those there).
* activation: "none" or "relu".
* The target is read when an op runs (target.use_target).
* Backward: to_dense has one. The others raise SpconvError when a gradient is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spconv_compiler import api, sparse_conv, sparse_pool
from spconv_compiler.errors import InputError, SpconvError
from spconv_compiler.pytorch.coords import to_int32, union_rows
from spconv_compiler.pytorch.maps import geometry_of, map_between, outputs_map, three
from spconv_compiler.pytorch.target import current_target
from spconv_compiler.sparse_map import SparseMap

NAMESPACE = "spconv_compiler"
POOL_MODES = ("max", "max_or_zero", "avg")
_SCHEMAS = (
    "subm_conv3d(Tensor features, Tensor coords, Tensor weight, Tensor? bias, int[] dilation,"
    " SymInt[]? spatial_shape, SymInt batch_size, str activation) -> Tensor",
    "output_coords(Tensor coords, int[] kernel_size, int[] stride, int[] padding, int[] dilation,"
    " int[] output_padding, bool transposed, SymInt[]? spatial_shape, SymInt batch_size) -> Tensor",
    "sparse_conv3d(Tensor features, Tensor coords, Tensor out_coords, Tensor weight, Tensor? bias,"
    " int[] stride, int[] padding, int[] dilation, bool transposed, str activation) -> Tensor",
    "sparse_pool3d(Tensor features, Tensor coords, Tensor out_coords, int[] kernel_size, int[] stride,"
    " int[] padding, int[] dilation, str mode) -> Tensor",
    "to_dense(Tensor features, Tensor coords, SymInt[] spatial_shape, SymInt batch_size) -> Tensor",
    "union_coords(Tensor first, Tensor second, SymInt[]? spatial_shape, SymInt batch_size) -> Tensor",
    "int32_coords(Tensor indices) -> Tensor",
)

_library: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_check: Any = torch._check
for _schema in _SCHEMAS:
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))


# What runs. Modules call these without the dispatcher where they may (calls.py).


def run_subm_conv3d(
    features: Tensor,
    coords: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dilation: Sequence[int],
    spatial_shape: Sequence[int] | None,
    batch_size: int,
    activation: str,
) -> Tensor:
    """subm_conv3d, where no gradient is asked for."""
    # It takes any three whole numbers, and makes tuples of them.
    step: Any = dilation
    shape: Any = spatial_shape
    out: Tensor = api.subm_conv3d(
        coords,
        features,
        weight,
        bias,
        dilation=step,
        activation=activation,
        spatial_shape=shape,
        batch_size=batch_size,
        target=current_target(),
    )
    return out


def run_sparse_conv3d(
    features: Tensor,
    coords: Tensor,
    out_coords: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    activation: str,
) -> Tensor:
    """sparse_conv3d, where no gradient is asked for."""
    geometry = geometry_of(weight.shape[1:4], stride, padding, dilation, transposed)
    map_, backwards = map_between(coords, out_coords, geometry, current_target())
    convolve = sparse_conv.sparse_inverse_conv3d if backwards else sparse_conv.mapped_conv3d
    out: Tensor = convolve(features, weight, bias, map=map_, activation=activation)
    return out


def run_pool3d(features: Tensor, map_: SparseMap, mode: str) -> Tensor:
    """A pool over a map, where no gradient is asked for."""
    if mode not in POOL_MODES:
        raise InputError(f"mode is {mode!r}; accepted: {', '.join(POOL_MODES)}")
    out: Tensor = sparse_pool.mapped_pool3d(features, map=map_, mode="avg" if mode == "avg" else "max")
    return out.clamp_(min=0) if mode == "max_or_zero" else out


# Below autograd a tensor's requires_grad says nothing more: the ops run without gradients.


@torch.library.impl(_library, "subm_conv3d", "CompositeExplicitAutograd")
def _subm_conv3d(features: Tensor, *rest: Any) -> Tensor:
    with torch.no_grad():
        return run_subm_conv3d(features, *rest)


@torch.library.impl(_library, "output_coords", "CompositeExplicitAutograd")
def _output_coords(
    coords: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    transposed: bool,
    spatial_shape: Sequence[int] | None,
    batch_size: int,
) -> Tensor:
    geometry = geometry_of(kernel_size, stride, padding, dilation, transposed)
    map_ = outputs_map(coords, geometry, output_padding, spatial_shape, batch_size, current_target())
    out: Tensor = map_.out_coords
    return out


@torch.library.impl(_library, "sparse_conv3d", "CompositeExplicitAutograd")
def _sparse_conv3d(features: Tensor, *rest: Any) -> Tensor:
    with torch.no_grad():
        return run_sparse_conv3d(features, *rest)


@torch.library.impl(_library, "sparse_pool3d", "CompositeExplicitAutograd")
def _sparse_pool3d(
    features: Tensor,
    coords: Tensor,
    out_coords: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    mode: str,
) -> Tensor:
    geometry = geometry_of(kernel_size, stride, padding, dilation, False)
    map_, _ = map_between(coords, out_coords, geometry, current_target())
    with torch.no_grad():
        return run_pool3d(features, map_, mode)


@torch.library.impl(_library, "to_dense", "CompositeExplicitAutograd")
def _to_dense(features: Tensor, coords: Tensor, spatial_shape: Sequence[int], batch_size: int) -> Tensor:
    sizes = (int(batch_size), *three(spatial_shape))
    _check_inside(coords, sizes)
    dense = features.new_zeros((sizes[0], features.shape[1], *sizes[1:]))
    batch, z, y, x = coords.long().unbind(1)
    if not features.is_cpu:
        dense[batch, :, z, y, x] = features
        return dense
    # One thread of numpy: torch's threads wait for each other longer than this takes, above all on a busy machine.
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[features.element_size()]
    cells, batches = ((z * sizes[2] + y) * sizes[3] + x).numpy(), batch.numpy()
    rows, planes = (tensor.detach().view(bits).numpy() for tensor in (features, dense.flatten(2)))
    if (cells[1:] < cells[:-1]).any():
        # In order, what is written lies close together: up to twice as fast. Stable: of equal cells the last one stays.
        order = cells.argsort(kind="stable")
        cells, batches, rows = cells[order], batches[order], rows[order]
    for number, plane in enumerate(planes):
        mine = slice(None) if sizes[0] == 1 else batches == number
        plane[:, cells[mine]] = rows[mine].T
    return dense


@torch.library.impl(_library, "union_coords", "CompositeExplicitAutograd")
def _union_coords(first: Tensor, second: Tensor, spatial_shape: Sequence[int] | None, batch_size: int) -> Tensor:
    if spatial_shape is not None:
        for coords in (first, second):
            _check_inside(coords, (int(batch_size), *three(spatial_shape)))
    return union_rows([first, second])


@torch.library.impl(_library, "int32_coords", "CompositeExplicitAutograd")
def _int32_coords(indices: Tensor) -> Tensor:
    return to_int32(indices)


def _check_inside(coords: Tensor, sizes: tuple[int, ...]) -> None:
    """Raises InputError when a row lies outside of (batch, z, y, x) sizes: an index must not wrap around."""
    # numpy: reductions as small as these cost torch's threads more than they do.
    rows = coords.detach().cpu().numpy()
    if len(rows) == 0 or ((rows.min(0) >= 0).all() and (rows.max(0) < sizes).all()):
        return
    outside = ((rows < 0) | (rows >= sizes)).any(1)
    row = int(outside.argmax())
    raise InputError(
        f"{int(outside.sum())} coords are out of range, the first in row {row}: {rows[row].tolist()} "
        f"(batch, z, y, x); accepted: 0 ≤ each < {list(sizes)}"
    )


# What traces see.


def _check_rows(features: Tensor, coords: Tensor) -> None:
    _check(features.dim() == 2, lambda: f"features have {features.dim()} axes; accepted: [N, C]")
    _check(coords.dim() == 2, lambda: f"coords have {coords.dim()} axes; accepted: [N, 4]")
    _check(
        features.shape[0] == coords.shape[0], lambda: "features and coords differ in rows; accepted: as many of each"
    )


def _check_weight(features: Tensor, weight: Tensor) -> None:
    _check(weight.dim() == 5, lambda: f"weight has {weight.dim()} axes; accepted: [C_out, kz, ky, kx, C_in]")
    _check(
        features.shape[1] == weight.shape[4],
        lambda: f"features have {features.shape[1]} channels but the weight takes {weight.shape[4]}",
    )
    _check(
        features.dtype == weight.dtype,
        lambda: f"features are {features.dtype} but the weight is {weight.dtype}; accepted: equal dtypes",
    )


def _fake_subm_conv3d(features: Tensor, coords: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    _check_rows(features, coords)
    _check_weight(features, weight)
    return features.new_empty((features.shape[0], weight.shape[0]))


def _fake_output_coords(coords: Tensor, *geometry: Any) -> Tensor:
    rows = torch.library.get_ctx().new_dynamic_size()
    return coords.new_empty((rows, coords.shape[1]))


def _fake_sparse_conv3d(features: Tensor, coords: Tensor, out_coords: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    _check_rows(features, coords)
    _check_weight(features, weight)
    return features.new_empty((out_coords.shape[0], weight.shape[0]))


def _fake_sparse_pool3d(features: Tensor, coords: Tensor, out_coords: Tensor, *rest: Any) -> Tensor:
    _check_rows(features, coords)
    return features.new_empty((out_coords.shape[0], features.shape[1]))


def _fake_union_coords(first: Tensor, second: Tensor, *rest: Any) -> Tensor:
    return first.new_empty((torch.library.get_ctx().new_dynamic_size(), first.shape[1]))


def _fake_int32_coords(indices: Tensor) -> Tensor:
    return torch.empty_like(indices, dtype=torch.int32)


def _fake_to_dense(features: Tensor, coords: Tensor, spatial_shape: Any, batch_size: Any) -> Tensor:
    _check_rows(features, coords)
    return features.new_empty((batch_size, features.shape[1], *spatial_shape))


for _run in (
    _fake_subm_conv3d,
    _fake_output_coords,
    _fake_sparse_conv3d,
    _fake_sparse_pool3d,
    _fake_to_dense,
    _fake_union_coords,
    _fake_int32_coords,
):
    torch.library.register_fake(f"{NAMESPACE}::{_run.__name__.removeprefix('_fake_')}", _run, lib=_library)


# Gradients.


def _refuse(name: str) -> Any:
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise SpconvError(f"{name} has no backward pass in this version; run it under torch.no_grad() for inference")

    return backward


def _keep_coords(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _dense_backward(ctx: Any, gradient: Tensor) -> Any:
    batch, z, y, x = ctx.saved_tensors[0].long().unbind(1)
    return gradient[batch, :, z, y, x], None, None, None


for _name in ("subm_conv3d", "sparse_conv3d", "sparse_pool3d"):
    torch.library.register_autograd(f"{NAMESPACE}::{_name}", _refuse(_name), lib=_library)
torch.library.register_autograd(
    f"{NAMESPACE}::to_dense", _dense_backward, setup_context=_keep_coords, lib=_library
)

subm_conv3d = torch.ops.spconv_compiler.subm_conv3d.default
output_coords = torch.ops.spconv_compiler.output_coords.default
sparse_conv3d = torch.ops.spconv_compiler.sparse_conv3d.default
sparse_pool3d = torch.ops.spconv_compiler.sparse_pool3d.default
to_dense = torch.ops.spconv_compiler.to_dense.default
union_coords = torch.ops.spconv_compiler.union_coords.default
int32_coords = torch.ops.spconv_compiler.int32_coords.default

__all__ = [
    "NAMESPACE",
    "POOL_MODES",
    "int32_coords",
    "output_coords",
    "sparse_conv3d",
    "sparse_pool3d",
    "subm_conv3d",
    "to_dense",
    "union_coords",
]
