"""`SparseConvTensor`: features at voxels, with spconv's attributes and methods."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils import _pytree

from spconv_compiler.errors import InputError
from spconv_compiler.options import is_bool
from spconv_compiler.pytorch import ops
from spconv_compiler.pytorch.coords import same_rows, widen
from spconv_compiler.pytorch.keys import IndiceData

Shape: TypeAlias = "list[int] | None"


class SparseConvTensor:
    """Features at the voxels that are there; each layer makes a new one.

    Args:
        features: [N, C] f32, bf16 or f16.
        indices: int32 [N, 1 + ndim], ndim 1 to 3: batch, then coordinates in the order of spatial_shape; every voxel
            once. Layers check that they are in range, when they build a map of them. int64 is converted if it fits;
            maps then belong to the converted tensor, `indices`.
        spatial_shape: cells per axis, of which 0 have no voxel. None (spconv has no such thing): the grid has no edge,
            coordinates may be negative and are divided rounding down; dense() is then not possible.
        batch_size: number of batches, at least 1.
        indice_dict: what layers have noted under their indice_key.
        grid, voxel_num, benchmark, permanent_thrust_allocator, enable_timer, force_algo: spconv's, kept as they are or
            without effect.

    Raises:
        InputError: rank, dtype, rows or sizes do not fit, or int64 indices do not fit into int32.
    """

    def __init__(
        self,
        features: Tensor,
        indices: Tensor,
        spatial_shape: Sequence[int] | Any | None,
        batch_size: int,
        grid: Tensor | None = None,
        voxel_num: Tensor | None = None,
        indice_dict: dict[str, IndiceData] | None = None,
        benchmark: bool = False,
        permanent_thrust_allocator: bool = False,
        enable_timer: bool = False,
        force_algo: Any = None,
    ) -> None:
        what = "a size of spatial_shape"
        self.spatial_shape: Shape = None if spatial_shape is None else [plain_int(size, what) for size in spatial_shape]
        self.batch_size = plain_int(batch_size, "batch_size")
        _check(features, indices, self.spatial_shape, self.batch_size)
        if indices.dtype is torch.int64:
            indices = ops.int32_coords(indices)
        self._features = features
        self.indices = indices
        self.indice_dict: dict[str, IndiceData] = {} if indice_dict is None else indice_dict
        self.grid, self.voxel_num, self.force_algo = grid, voxel_num, force_algo
        self.benchmark = benchmark
        self.benchmark_record: dict[str, Any] = {}
        self.thrust_allocator, self._timer, self.int8_scale = None, None, None
        # (indices, the same as [N, 4]), once a layer has asked.
        self._wide: tuple[Tensor, Tensor] | None = None

    def __repr__(self) -> str:
        shape = list(self._features.shape)
        return f"SparseConvTensor({shape} {self._features.dtype}, {self.spatial_shape}, batch_size={self.batch_size})"

    @property
    def features(self) -> Tensor:
        """[N, C]; to be changed by replace_feature only."""
        return self._features

    @features.setter
    def features(self, value: Tensor) -> None:
        raise InputError("features cannot be assigned; accepted: x = x.replace_feature(features)")

    @property
    def ndim(self) -> int:
        """Spatial axes."""
        return self.indices.shape[1] - 1

    @property
    def coords(self) -> Tensor:
        """The indices as ops take them, int32 [N, 4] (batch, z, y, x): the same tensor while indices stay."""
        if self.ndim == 3:
            return self.indices
        if self._wide is None or self._wide[0] is not self.indices:
            self._wide = self.indices, widen(self.indices)
        return self._wide[1]

    @property
    def shape3(self) -> Shape:
        """spatial_shape as ops take it, (z, y, x)."""
        return None if self.spatial_shape is None else [1] * (3 - self.ndim) + self.spatial_shape

    @property
    def spatial_size(self) -> int:
        """Cells of one batch."""
        return math.prod(self._bounded("spatial_size"))

    @property
    def sparity(self) -> float:
        """Part of all cells that are there (spconv's spelling); 0 of none."""
        return self.indices.shape[0] / max(self.spatial_size, 1) / self.batch_size

    @property
    def is_quantized(self) -> bool:
        """Always False: there is no int8 here."""
        return False

    def replace_feature(self, feature: Tensor) -> SparseConvTensor:
        """The same voxels with other features, [N, C']."""
        return self._with(feature, self.indices, self._wide, self.spatial_shape, self.indice_dict)

    def shadow_copy(self) -> SparseConvTensor:
        """A new SparseConvTensor with the same members."""
        return self.replace_feature(self._features)

    def minus(self) -> SparseConvTensor:
        """The same voxels with negated features."""
        return self.replace_feature(-self._features)

    def select_by_index(self, valid_indices: Tensor) -> SparseConvTensor:
        """The rows that `valid_indices` (row numbers or a mask) select; what layers noted under keys is dropped."""
        return self._with(self._features[valid_indices], self.indices[valid_indices], None, self.spatial_shape, {})

    def find_indice_pair(self, key: str | None) -> IndiceData | None:
        """What a layer noted under an indice_key, or None."""
        return None if key is None else self.indice_dict.get(key)

    def dense(self, channels_first: bool = True) -> Tensor:
        """Dense features, zero where no voxel is: [batch, C, *spatial_shape], or channels last.

        Raises:
            InputError: a voxel lies outside of spatial_shape or batch_size, or there is no spatial_shape.
        """
        shape = self._bounded("dense()")
        out: Tensor = ops.to_dense(self._features, self.coords, [1] * (3 - self.ndim) + shape, self.batch_size)
        out = out.reshape(self.batch_size, self._features.shape[1], *shape)
        return out if channels_first else out.movedim(1, -1).contiguous()

    @classmethod
    def from_dense(cls, x: Tensor) -> SparseConvTensor:
        """The cells of a dense tensor [batch, *spatial_shape, C] with a channel that is not 0."""
        place = (x != 0).any(-1).nonzero()
        return cls(x[tuple(place.unbind(1))], place.int(), list(x.shape[1:-1]), x.shape[0])

    def __add__(self, other: SparseConvTensor | Tensor) -> SparseConvTensor:
        """Sum of features, row by row; another SparseConvTensor must have the same indices (else: sparse_add)."""
        if isinstance(other, SparseConvTensor):
            same_rows(self.indices, other.indices, "operands of +")
            other = other.features
        if not isinstance(other, Tensor):
            raise InputError(f"a {type(other).__name__} is added; accepted: a SparseConvTensor or a Tensor")
        return self.replace_feature(self._features + other)

    __radd__ = __add__

    def __iadd__(self, other: SparseConvTensor | Tensor) -> SparseConvTensor:
        raise InputError("features are not changed in place; accepted: x = x + other")

    def filled(self, features: Tensor, indice_dict: dict[str, IndiceData]) -> SparseConvTensor:
        """What a layer makes of this at the same voxels."""
        if torch.compiler.is_compiling():
            return self._with(features, self.indices, self._wide, self.spatial_shape, indice_dict)
        return self._made(features, self.indices, self._wide, self.spatial_shape, indice_dict)

    def moved(
        self,
        features: Tensor,
        indices: Tensor,
        coords: Tensor,
        spatial_shape: Shape,
        indice_dict: dict[str, IndiceData],
    ) -> SparseConvTensor:
        """What a layer makes of this at other voxels: indices [M, 1 + ndim], and the same as coords [M, 4]."""
        if torch.compiler.is_compiling():
            return self._with(features, indices, (indices, coords), spatial_shape, indice_dict)
        return self._made(features, indices, (indices, coords), spatial_shape, indice_dict)

    def _with(
        self,
        features: Tensor,
        indices: Tensor,
        wide: tuple[Tensor, Tensor] | None,
        spatial_shape: Shape,
        indice_dict: dict[str, IndiceData],
    ) -> SparseConvTensor:
        if torch.compiler.is_compiling():
            more = self.grid, self.voxel_num, indice_dict, self.benchmark
            made = SparseConvTensor(features, indices, spatial_shape, self.batch_size, *more)
            made.benchmark_record, made.force_algo, made._wide = self.benchmark_record, self.force_algo, wide
            return made
        _check_features(features, indices)
        return self._made(features, indices, wide, spatial_shape, indice_dict)

    def _made(
        self,
        features: Tensor,
        indices: Tensor,
        wide: tuple[Tensor, Tensor] | None,
        spatial_shape: Shape,
        indice_dict: dict[str, IndiceData],
    ) -> SparseConvTensor:
        """The same without checks, which cost what a layer's other Python does: layers make many of these."""
        made = SparseConvTensor.__new__(SparseConvTensor)
        made._features, made.indices, made._wide = features, indices, wide
        made.spatial_shape, made.batch_size = spatial_shape and list(spatial_shape), self.batch_size
        made.indice_dict, made.grid, made.voxel_num = indice_dict, self.grid, self.voxel_num
        made.benchmark, made.benchmark_record, made.force_algo = self.benchmark, self.benchmark_record, self.force_algo
        made.thrust_allocator, made._timer, made.int8_scale = None, None, None
        return made

    def _bounded(self, what: str) -> list[int]:
        if self.spatial_shape is None:
            raise InputError(f"{what} of a SparseConvTensor without spatial_shape; accepted: one with a spatial_shape")
        return self.spatial_shape


def plain_int(value: Any, what: str) -> int:
    """A whole number as an int; symbolic ones stay as they are.

    Raises:
        InputError: anything else; a truth value is none.
    """
    if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
        return value  # type: ignore[return-value]
    if isinstance(value, Tensor) and value.numel() != 1:
        raise InputError(f"{what} is a Tensor of {value.numel()} values; accepted: an int")
    try:
        found = int(value)
    except (TypeError, ValueError, OverflowError):
        found = None
    if found is None or found != value or is_bool(value):
        raise InputError(f"{what} is {value!r}; accepted: an int")
    return found


def _check(features: Any, indices: Any, spatial_shape: Shape, batch_size: int) -> None:
    if not isinstance(features, Tensor) or not isinstance(indices, Tensor):
        kinds = f"a {type(features).__name__} and a {type(indices).__name__}"
        raise InputError(f"features and indices are {kinds}; accepted: torch.Tensor")
    if indices.dim() != 2 or not 2 <= indices.shape[1] <= 4:
        raise InputError(f"indices have shape {list(indices.shape)}; accepted: [N, 1 + ndim] with 1 to 3 spatial axes")
    if indices.dtype not in (torch.int32, torch.int64):
        raise InputError(f"indices have dtype {indices.dtype}; accepted: torch.int32, or torch.int64 within its range")
    _check_features(features, indices)
    if spatial_shape is not None and (len(spatial_shape) != indices.shape[1] - 1 or min(spatial_shape) < 0):
        raise InputError(
            f"spatial_shape is {spatial_shape} for indices of {indices.shape[1]} columns; accepted: a size for each of "
            f"the {indices.shape[1] - 1} columns after the batch, at least 1, or 0 where there are no voxels"
        )
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; accepted: at least 1")


def _check_features(features: Any, indices: Tensor) -> None:
    if not isinstance(features, Tensor):
        raise InputError(f"features are a {type(features).__name__}; accepted: a torch.Tensor")
    if features.dim() != 2:
        raise InputError(f"features have shape {list(features.shape)}; accepted: [N, C]")
    if torch.compiler.is_compiling():
        equal = features.shape[0] == indices.shape[0]
        # A plain True needs no note; torch would import its tracer to take it.
        if equal is not True:
            torch._check(equal)  # type: ignore[no-untyped-call]
    elif features.shape[0] != indices.shape[0]:
        rows = f"features have {features.shape[0]} rows but indices have {indices.shape[0]}"
        raise InputError(f"{rows}; accepted: as many of each")


def expand_nd(ndim: int, value: int | Sequence[int] | Any, what: str = "a size") -> list[int]:
    """One number or one per axis, as a list of ndim ints.

    Raises:
        InputError: another number of values, or what is no whole number.
    """
    single = not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0
    given: Any = [value] * ndim if single else value
    values = [plain_int(item, what) for item in given]
    if len(values) != ndim:
        raise InputError(f"{what} {values} has {len(values)} values; accepted: one number, or {ndim}")
    return values


def _flatten(x: SparseConvTensor) -> tuple[list[Any], Any]:
    shape = None if x.spatial_shape is None else tuple(x.spatial_shape)
    return [x.features, x.indices], (shape, x.batch_size)


def _flatten_with_keys(x: SparseConvTensor) -> tuple[list[Any], Any]:
    children, context = _flatten(x)
    return list(zip((_pytree.GetAttrKey("features"), _pytree.GetAttrKey("indices")), children, strict=True)), context


def _unflatten(children: Any, context: Any) -> SparseConvTensor:
    features, indices = children
    made = SparseConvTensor.__new__(SparseConvTensor)
    if isinstance(features, Tensor) and isinstance(indices, Tensor):
        made.__init__(features, indices, context[0], context[1])  # type: ignore[misc]
    else:  # the tree's leaves stand for tensors
        made._features, made.indices = features, indices
        made.spatial_shape, made.batch_size = context
    return made


# As an input or a result of an exported program: its tensors; sizes are fixed, and keys do not cross the border.
_pytree.register_pytree_node(
    SparseConvTensor,
    _flatten,
    _unflatten,
    serialized_type_name="spconv_compiler.pytorch.SparseConvTensor",
    flatten_with_keys_fn=_flatten_with_keys,
)
