"""The two coordinate sets of a map: checked, with a box around them, and the set of outputs that inputs make."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spconv_compiler.arrays import Array, dtype_name, is_tensor, torch_module
from spconv_compiler.coordinates import Box, check_box, check_coords, with_batch
from spconv_compiler.errors import InputError
from spconv_compiler.geometry import Triple
from spconv_compiler.map_request import MapRequest
from spconv_compiler.sparse_driver import MAX_ROWS, Outputs, SparseKernel, load_sparse

if TYPE_CHECKING:
    from spconv_compiler.sparse_driver_gpu import GpuSparseKernel

Kernel: TypeAlias = "SparseKernel | GpuSparseKernel"


def checked_set(coords: Any, what: str) -> Array:
    """Coordinates as int32 [N, 4]."""
    array = with_batch(check_coords(coords, on_gpu=True, what=what), what)
    if array.shape[0] > MAX_ROWS:
        raise InputError(f"{what} have {array.shape[0]} rows; accepted: at most {MAX_ROWS}")
    return array


def check_alike(coords: Any, out_coords: Any) -> None:
    """Raises InputError when the two are not of one kind, or have other columns."""
    if is_tensor(coords) != is_tensor(out_coords) or coords.shape[1] != out_coords.shape[1]:
        raise InputError(
            f"coords are a {type(coords).__name__} of {coords.shape[1]} columns but out_coords a "
            f"{type(out_coords).__name__} of {out_coords.shape[1]}; accepted: the same kind and as many columns"
        )


def set_box(
    kernel: Kernel, coords: Array, request: MapRequest, shape: Triple | None, what: str
) -> tuple[Box | None, int | None]:
    """A box around coordinates: the smallest, or with a capacity the whole grid, whose edge kernels know.

    With it comes their checksum, where the same look at them gives it.

    Raises:
        InputError: a row is out of range; the message calls the set `what`.
    """
    if coords.shape[0] == 0:
        return None, None
    if request.capacity is not None and shape is not None and request.batches is not None and min(shape) > 0:
        z, y, x = shape
        return Box((0, 0, 0, 0), (request.batches - 1, z - 1, y - 1, x - 1)), None
    box, checksum = kernel.seen(coords) if isinstance(kernel, SparseKernel) else (kernel.box(coords), None)
    check_box(box, coords, shape, request.batches, what)
    return box, checksum


def made_outputs(kernel: Kernel, coords: Array, box: Box | None, request: MapRequest) -> tuple[Outputs, Box | None]:
    """The outputs int32 [M, 4], ascending, and a box around them."""
    out_box = None if box is None else request.geometry.output_box(box, request.out_shape)
    if box is None or out_box is None:
        return Outputs(_nothing(coords, request.capacity or 0)), None
    symbols, width = kernel.output_numbers(box, out_box)
    options = kernel.options
    if width != options.key_width:
        options = dataclasses.replace(options, key_width=width)
    if not isinstance(kernel, SparseKernel):
        options = dataclasses.replace(options, mapper=kernel.outputs_by(symbols, coords.shape[0], width))
    if options is not kernel.options:
        kernel = load_sparse(options).on(coords.device)
    return kernel.outputs(coords, symbols, request.capacity), out_box


def _nothing(coords: Array, rows: int) -> Any:
    """Rows int32 [rows, 4] in batch −1, where `coords` are."""
    if coords.device is not None:
        torch: Any = torch_module()
        return coords.source.new_full((rows, 4), -1, dtype=torch.int32)
    return np.full((rows, 4), -1, np.int32)


def like_coords(coords: Any, made: Any) -> Any:
    """`made` as the kind, dtype and columns of `coords`."""
    count = coords.shape[1]
    if count == 4 and not is_tensor(made) and is_tensor(coords) and dtype_name(coords) == "i32":
        torch: Any = torch_module()
        return torch.from_numpy(made)
    if is_tensor(made):
        columns = made if count == 4 else made.narrow(1, 4 - count, count).contiguous()
        return columns.to(coords.dtype)
    array = np.ascontiguousarray(made[:, 4 - count :])
    if not is_tensor(coords):
        return array.astype(coords.dtype, copy=False)
    torch = torch_module()
    return torch.from_numpy(array).to(coords.dtype)
