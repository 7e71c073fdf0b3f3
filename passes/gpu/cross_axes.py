"""Coarse and fine voxels along an axis, inside kernels: which of them meet, and through which tap.

Coarse voxel c meets fine voxel f through tap i where c·stride = f + padding − i·dilation. Places are counted from the
low corner of the box that they are packed in, in the type of its keys; what is not in the box wraps to a place beyond
its extent, and the driver chooses keys so wide that nothing wraps further (sparse_driver_gpu.py).
"""

from __future__ import annotations

from spconv_compiler.passes.kernel_builder import V
from spconv_compiler.passes.reach import Reach


def above_origin(reach: Reach, axis: int, fine: V, low: V) -> V:
    """How far a fine voxel is above the one that coarse voxel `low` meets through its first tap."""
    _, stride, padding, _ = reach.on(axis)
    return fine + (padding - low * stride)


def coarse_at(reach: Reach, axis: int, above: V, tap: V | int, extent: V) -> tuple[V, V]:
    """(whether there is one, its place) of the coarse voxel that meets a fine one through `tap`."""
    _, stride, _, dilation = reach.on(axis)
    distance = above - (tap * dilation if isinstance(tap, V) or tap else 0)
    if stride == 1:
        return distance.ult(extent), distance
    place = distance // stride
    return (place * stride).eq(distance) & place.ult(extent), place


def coarse_run(reach: Reach, axis: int, above: V, extent: V) -> tuple[list[tuple[V, V]], V]:
    """The coarse voxels that a fine one can meet where dilation is 1, and the remainder that says through which taps.

    Number n is met through tap n·stride + remainder: (whether it is there if there is such a tap, its place).
    """
    kernel, stride, _, _ = reach.on(axis)
    greatest = above // stride
    places = [greatest - number if number else greatest for number in range(-(-kernel // stride))]
    return [(place.ult(extent), place) for place in places], above - greatest * stride


def candidates(reach: Reach, axis: int) -> int:
    """How many outputs `output_at` knows along an axis."""
    return reach.candidates[axis]


def output_at(reach: Reach, axis: int, place: V, number: V | int, low: V, extent: V) -> tuple[V, V]:
    """(whether there is one, its place above `low`) of output `number` of an input that lies at `place`."""
    kernel, stride, padding, dilation = reach.on(axis)
    if reach.transposed:
        output = place * stride + (number * dilation - padding) - low
        return output.ult(extent), output
    above = above_origin(reach, axis, place, low)
    if dilation > 1:
        return coarse_at(reach, axis, above, number, extent)
    # From the coarse voxel that meets `place` through the least tap downwards: the tap grows by a stride each.
    greatest = above // stride
    output = greatest - number
    tap = above - output * stride
    return tap.ult(kernel) & output.ult(extent), output
