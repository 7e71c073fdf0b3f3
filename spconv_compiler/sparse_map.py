"""`build_map`: two coordinate sets and which of their voxels meet, as a handle that convolutions share."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler.arrays import Array, is_tensor, torch_module
from spconv_compiler.coordinates import Box, check_box, check_coords, with_batch
from spconv_compiler.errors import InputError
from spconv_compiler.geometry import ConvGeometry, Triple, key_width, output_symbols
from spconv_compiler.map_request import MapRequest, map_request, sparse_options
from spconv_compiler.runtime.cpu import CpuBuffer
from spconv_compiler.schedules.chunk_stationary import CHUNK_ROWS
from spconv_compiler.sparse_driver import MAX_ROWS, SparseKernel, load_sparse

# A pair holds the output's place within its chunk above the input's row.
_PLACE_SHIFT, _ROW_MASK = 32, (1 << 32) - 1


class MapState:
    """All of a map but the inputs' coordinates, which a cache must not keep alive.

    Attributes:
        request: what was asked for.
        out_coords: as the user sees them; out_set: as int32 [M, 4].
        symbols: the numbers that plans over this map take.
    """

    def __init__(
        self, request: MapRequest, inputs: Array, out_coords: Any, boxes: tuple[Box | None, Box | None]
    ) -> None:
        self.request, self.out_coords = request, out_coords
        self.out_set, self.in_rows = _checked(out_coords, "out_coords"), inputs.shape[0]
        self._checksum = request.kernel.checksum
        self._known = self._checksum(inputs), self._checksum(self.out_set)
        self.symbols = self._symbols(*boxes)
        self._kernels: dict[tuple[Any, ...], SparseKernel] = {}
        self._related: dict[tuple[str, ...], dict[str, CpuBuffer]] = {}
        self._pairs: dict[tuple[str, ...], tuple[int, dict[str, CpuBuffer]]] = {}

    def _symbols(self, in_box: Box | None, out_box: Box | None) -> dict[str, int]:
        counts = (self.in_rows, self.out_set.shape[0])
        # A set without voxels lies wherever the other one is.
        boxes = in_box or out_box, out_box or in_box
        rows, coarse_rows = counts[::-1] if self.request.geometry.transposed else counts
        fine, coarse = boxes[::-1] if self.request.geometry.transposed else boxes
        box = {} if fine is None or coarse is None else self.request.geometry.symbols(fine, coarse)
        return {**box, "rows": rows, "coarse_rows": coarse_rows}

    def kernel(self, operation: str, inverse: bool, more: dict[str, Any]) -> SparseKernel:
        """As SparseMap.kernel."""
        key = (operation, inverse, *more.items())
        if key not in self._kernels:
            request = self.request
            geometry = dataclasses.replace(request.geometry, transposed=request.geometry.transposed != inverse)
            width = key_width(self.symbols) if "cells" in self.symbols else 32
            options = sparse_options(operation, geometry, request.target, key_width=width, **more)
            self._kernels[key] = load_sparse(options)
        return self._kernels[key]

    def outputs_unchanged(self) -> bool:
        """Whether out_coords hold what they held when the map was built."""
        return self._checksum(self.out_set) == self._known[1]

    def pairs_for(
        self, kernel: SparseKernel, in_coords: Any, *, inverse: bool
    ) -> tuple[int, dict[str, CpuBuffer]]:
        """As SparseMap.pairs_for, for the coordinates that the map was built from."""
        related = kernel.signature("map")
        signature = related + kernel.signature("pairs")
        if signature not in self._pairs:
            if related not in self._related:
                inputs = _checked(in_coords, "coords")
                if not self.outputs_unchanged() or self._checksum(inputs) != self._known[0]:
                    raise InputError("the coords of this map were changed after it was built; build it again")
                sets = (self.out_set, inputs) if inverse else (inputs, self.out_set)
                self._related[related] = kernel.relate(*sets, self.symbols)
            self._pairs[signature] = kernel.pairs(self._related[related], self.symbols)
        return self._pairs[signature]


class SparseMap:
    """The map of one convolution: a handle for the forward op and for its inverse. Made by `build_map`.

    The coordinates must not be changed while the map is in use; a change is found when pairs are built, on the first
    use in a direction. All methods may be called from several threads.
    """

    def __init__(self, in_coords: Any, state: MapState) -> None:
        self._in_coords, self._state = in_coords, state

    def __repr__(self) -> str:
        return f"SparseMap({self.in_rows} → {self.out_rows} voxels, {self.geometry})"

    @property
    def in_coords(self) -> Any:
        """The coordinates that build_map was given."""
        return self._in_coords

    @property
    def out_coords(self) -> Any:
        """The outputs' coordinates: kind, dtype and columns of in_coords; ascending unless they were given."""
        return self._state.out_coords

    @property
    def geometry(self) -> ConvGeometry:
        """Kernel size, stride, padding, dilation, direction."""
        return self._state.request.geometry

    @property
    def spatial_shape(self) -> Triple | None:
        """(z, y, x) of the inputs, or None where the grid has no edge."""
        return self._state.request.shape

    @property
    def out_spatial_shape(self) -> Triple | None:
        """(z, y, x) of the outputs, or None where the grid has no edge."""
        return self._state.request.out_shape

    @property
    def batch_size(self) -> int | None:
        """As build_map was given it."""
        return self._state.request.batches

    @property
    def in_rows(self) -> int:
        """Rows of in_coords."""
        return self._state.in_rows

    @property
    def out_rows(self) -> int:
        """Rows of out_coords."""
        return self._state.out_set.shape[0]

    @property
    def symbols(self) -> dict[str, int]:
        """The numbers that plans over this map take."""
        return self._state.symbols

    def kernel(self, operation: str, *, inverse: bool = False, **more: Any) -> SparseKernel:
        """An op over the map, compiled; the inverse runs from outputs to inputs. more: fields of SparseOptions.

        Raises:
            InputError, CompileError, LaunchError: see SparseOptions and driver.load_conv.
        """
        return self._state.kernel(operation, inverse, more)

    def pairs_for(self, kernel: SparseKernel, *, inverse: bool = False) -> tuple[int, dict[str, CpuBuffer]]:
        """(how many pairs there are, the pairs as `kernel` reads them), built on first use.

        Raises:
            InputError: a set has two equal rows, or was changed since the map was built.
            LaunchError: out of memory or threads.
        """
        return self._state.pairs_for(kernel, self._in_coords, inverse=inverse)

    def pairs(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """(tap, input row, output row) of every pair, int32 [P] each, ordered by tap, then by output row."""
        if self.out_rows == 0:
            nothing = np.zeros(0, np.int32)
            return nothing, nothing, nothing
        # The map's kernels do not depend on channels: the plan of the narrowest convolution has them.
        kernel = self.kernel("conv", c_in=1, c_out=1)
        _, buffers = self.pairs_for(kernel)
        first = buffers["chunk_first"].array()
        starts = buffers["tap_first"].array().reshape(len(first), -1)
        counts = np.diff(starts, axis=1)
        chunk, tap = np.divmod(np.repeat(np.arange(counts.size), counts.ravel()), counts.shape[1])
        spans = [np.arange(begin, begin + size) for begin, size in zip(first, starts[:, -1], strict=True)]
        words = buffers["pairs"].array()[np.concatenate(spans)].astype(np.int64)
        origin = buffers["origin" if self.geometry.transposed else "coarse_origin"].array()
        out_rows = origin[chunk * CHUNK_ROWS + (words >> _PLACE_SHIFT)].astype(np.int32)
        order = np.lexsort((out_rows, tap))
        return tap[order].astype(np.int32), (words & _ROW_MASK)[order].astype(np.int32), out_rows[order]


def build_map(
    coords: Any,
    kernel_size: int | Triple,
    *,
    stride: int | Triple = 1,
    padding: int | Triple = 0,
    dilation: int | Triple = 1,
    transposed: bool = False,
    output_padding: int | Triple = 0,
    spatial_shape: Triple | None = None,
    batch_size: int | None = None,
    out_coords: Any = None,
    target: str | None = None,
) -> SparseMap:
    """The map of a convolution: its output coordinates, and a handle for all ops that run over it.

    Through tap i, coarse voxel c meets fine voxel c·stride − padding + i·dilation. A convolution reads fine voxels and
    writes coarse ones; transposed, it reads coarse ones and writes fine ones. An output is every voxel that some input
    meets; the rows of outputs ascend in (batch, z, y, x).

    Args:
        coords: int32 [N, 3] (z, y, x) or [N, 4] (batch, z, y, x) of the inputs, any order, every voxel once; int64 is
            accepted if it fits. Negative values are fine unless spatial_shape is given.
        kernel_size, stride, padding, dilation: one number or (z, y, x).
        spatial_shape: (z, y, x) that coords must lie in. Outputs then lie in the shape that spconv 2.x gives
            (ConvGeometry.output_shape), as those of a dense convolution do; without it the grid has no edge, and
            coordinates are divided rounding down.
        output_padding: added to the output shape of a transposed convolution.
        batch_size: number of batches that coords must lie in.
        out_coords: the outputs, if they are to be these and not those that inputs reach; kind and columns as coords.
        target: as in compile_conv; the target must be one this host can run.

    Raises:
        InputError: an argument is not accepted.
        CompileError, LaunchError, ToolchainError: see compile_conv and driver.load_conv.
    """
    request = map_request(
        kernel_size=kernel_size,
        stride=stride,
        padding=padding,
        dilation=dilation,
        transposed=transposed,
        output_padding=output_padding,
        spatial_shape=spatial_shape,
        batch_size=batch_size,
        target=target,
    )
    return SparseMap(coords, make_map(request, coords, out_coords))


def make_map(request: MapRequest, coords: Any, out_coords: Any = None) -> MapState:
    """What build_map does once its arguments are checked."""
    inputs = _checked(coords, "coords")
    kernel = request.kernel
    box = _box(kernel, inputs, request.shape, request.batches)
    if out_coords is None:
        made, out_box = _outputs(kernel, inputs, box, request.out_shape)
        out_coords = _like(coords, made)
    else:
        outputs = _checked(out_coords, "out_coords")
        _check_alike(coords, out_coords)
        out_box = _box(kernel, outputs, request.out_shape, request.batches)
    return MapState(request, inputs, out_coords, (box, out_box))


def _checked(coords: Any, what: str) -> Array:
    """Coordinates as int32 [N, 4]."""
    array = with_batch(check_coords(coords))
    if array.shape[0] > MAX_ROWS:
        raise InputError(f"{what} have {array.shape[0]} rows; accepted: at most {MAX_ROWS}")
    return array


def _check_alike(coords: Any, out_coords: Any) -> None:
    if is_tensor(coords) != is_tensor(out_coords) or coords.shape[1] != out_coords.shape[1]:
        raise InputError(
            f"coords are a {type(coords).__name__} of {coords.shape[1]} columns but out_coords a "
            f"{type(out_coords).__name__} of {out_coords.shape[1]}; accepted: the same kind and as many columns"
        )


def _box(kernel: SparseKernel, coords: Array, shape: Triple | None, batches: int | None) -> Box | None:
    if coords.shape[0] == 0:
        return None
    box = kernel.box(coords)
    check_box(box, coords, shape, batches)
    return box


def _outputs(
    kernel: SparseKernel, coords: Array, box: Box | None, shape: Triple | None
) -> tuple[npt.NDArray[np.int32], Box | None]:
    """The outputs int32 [M, 4], ascending, and a box around them."""
    out_box = None if box is None else kernel.options.geometry.output_box(box, shape)
    if out_box is None:
        return np.zeros((0, 4), np.int32), None
    symbols = output_symbols(out_box)
    wide = load_sparse(dataclasses.replace(kernel.options, key_width=key_width(symbols)))
    return wide.outputs(coords, symbols), out_box


def _like(coords: Any, made: npt.NDArray[np.int32]) -> Any:
    """`made` as the kind, dtype and columns of `coords`."""
    columns = np.ascontiguousarray(made[:, 4 - coords.shape[1] :])
    if is_tensor(coords):
        torch: Any = torch_module()
        return torch.from_numpy(columns).to(coords.dtype)
    return columns.astype(coords.dtype, copy=False)
