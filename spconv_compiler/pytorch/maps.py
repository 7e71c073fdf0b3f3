"""Maps between two coordinate tensors, found again by the tensors themselves.

Ops take coordinates, never maps: a map is not a tensor, and a graph that is traced or exported holds tensors only. What
belongs to a coordinate tensor is kept while that tensor lives unchanged (tensor_cache.TensorCache): the outputs that
`output_coords` made of it, with which `sparse_conv3d` finds the same map again, forwards or, when input and output
change places, as its inverse.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from spconv_compiler.api import target_of
from spconv_compiler.arrays import Array
from spconv_compiler.coordinates import check_coords
from spconv_compiler.geometry import ConvGeometry, Triple
from spconv_compiler.map_request import MapRequest, map_request
from spconv_compiler.sparse_map import MapState, SparseMap, make_map
from spconv_compiler.tensor_cache import TensorCache

# kernel_size, stride, padding, dilation, (z, y, x) each.
Axes: TypeAlias = "tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]"

# Coordinate tensors whose maps are kept; a network has a handful.
_KEPT_COORDS = 64
_states: TensorCache[list[MapState]] = TensorCache(_KEPT_COORDS)


class KeptMap(NamedTuple):
    """The map of a layer, with what it is good for: the target, and the versions of its two coordinate tensors."""

    map: SparseMap
    target: str
    versions: tuple[int, int]

    def joins(self, coords: Tensor, out_coords: Tensor, target: str) -> bool:
        """Whether it leads from `out_coords` to `coords`, and nothing was written to them since."""
        fine, coarse = self.map.in_coords, self.map.out_coords
        if coarse is not coords or fine is not out_coords or self.target != target:
            return False
        return self.versions == (fine._version, coarse._version)


def keep(map_: SparseMap, target: str) -> KeptMap | None:
    """A map to be kept, or None where torch does not count what is written to its coordinates."""
    fine, coarse = map_.in_coords, map_.out_coords
    if fine.is_inference() or coarse.is_inference():
        return None
    return KeptMap(map_, target, (fine._version, coarse._version))


class _Unknown(Exception):
    """Nothing is kept of a coordinate tensor."""


def three(values: Sequence[int]) -> Triple:
    """(z, y, x) as a tuple of ints."""
    z, y, x = values
    return int(z), int(y), int(x)


def geometry_of(
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
) -> ConvGeometry:
    """The geometry of a layer; raises InputError as ConvGeometry does."""
    return _geometry(tuple(kernel_size), tuple(stride), tuple(padding), tuple(dilation), transposed)


def outputs_map(
    coords: Tensor,
    geometry: ConvGeometry,
    output_padding: Sequence[int],
    spatial_shape: Sequence[int] | None,
    batch_size: int,
    target: str,
) -> SparseMap:
    """The map onto what inputs at `coords` reach: the same for the same question, while `coords` live."""
    shape = None if spatial_shape is None else three(spatial_shape)
    points = check_coords(coords, on_gpu=True)
    request = _request(geometry, three(output_padding), shape, int(batch_size), target_of(target, points))
    known = _known(coords, points, request, create=True)
    for state in known:
        if state.request is request and state.outputs_unchanged():
            return SparseMap(coords, state)
    made = make_map(request, coords)
    known[:] = [state for state in known if state.request is not request] + [made]
    return SparseMap(coords, made)


def map_between(coords: Tensor, out_coords: Tensor, geometry: ConvGeometry, target: str) -> tuple[SparseMap, bool]:
    """(map, whether the op runs over it backwards) for an op from `coords` to `out_coords`."""
    # Both sets are given: there is no shape to clip outputs to.
    points, out_points = check_coords(coords, on_gpu=True), check_coords(out_coords, on_gpu=True)
    request = _request(geometry, (0, 0, 0), None, None, target_of(target, points))
    state = _find(_known(coords, points, request, create=False), geometry, out_coords)
    if state is not None:
        return SparseMap(coords, state), False
    flipped = _geometry(
        geometry.kernel_size, geometry.stride, geometry.padding, geometry.dilation, not geometry.transposed
    )
    state = _find(_known(out_coords, out_points, request, create=False), flipped, coords)
    if state is not None:
        return SparseMap(out_coords, state), True
    state = make_map(request, coords, out_coords)
    _known(coords, points, request, create=True).append(state)
    return SparseMap(coords, state), False


def clear() -> None:
    """Forgets all maps, and the kernels that they hold."""
    _states.clear()
    _request.cache_clear()


@functools.lru_cache(maxsize=512)
def _geometry(
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
) -> ConvGeometry:
    return ConvGeometry(three(kernel_size), three(stride), three(padding), three(dilation), transposed)


@functools.lru_cache(maxsize=512)
def _request(
    geometry: ConvGeometry, output_padding: Triple, shape: Triple | None, batches: int | None, target: str
) -> MapRequest:
    return map_request(
        kernel_size=geometry.kernel_size,
        stride=geometry.stride,
        padding=geometry.padding,
        dilation=geometry.dilation,
        transposed=geometry.transposed,
        output_padding=output_padding,
        spatial_shape=shape,
        batch_size=batches,
        target=target,
    )


def _known(coords: Tensor, points: Array, request: MapRequest, *, create: bool) -> list[MapState]:
    """The maps that are kept of a tensor; a new, empty list unless it is to be created."""

    def make() -> list[MapState]:
        if not create:
            raise _Unknown
        return []

    try:
        return _states.get(coords, points, request.target, request.kernel.checksum, make)
    except _Unknown:
        return []


def _find(known: list[MapState], geometry: ConvGeometry, out_coords: Tensor) -> MapState | None:
    fitting = [state for state in known if state.request.geometry == geometry]
    for state in fitting:
        if state.out_coords is out_coords and state.outputs_unchanged():
            return state
    for state in fitting:
        # A copy with the same contents, as some transformations of graphs make it.
        if _equal(state.out_coords, out_coords) and state.outputs_unchanged():
            return state
    return None


def _equal(one: Any, other: Tensor) -> bool:
    return one.shape == other.shape and one.device == other.device and bool((one == other).all())
