"""What a map between two coordinate sets is asked for: checked once, and kept for the next call that asks for it."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from spconv_compiler import env
from spconv_compiler.coordinates import check_coords
from spconv_compiler.errors import InputError
from spconv_compiler.geometry import ConvGeometry, Triple
from spconv_compiler.options import triple, whole
from spconv_compiler.sparse_driver import SparseKernel, load_sparse
from spconv_compiler.sparse_options import SparseOptions
from spconv_compiler.targets import get_target, target_names

if TYPE_CHECKING:
    from spconv_compiler.sparse_driver_gpu import GpuSparseKernel

SIZES = "three sizes (z, y, x) of at least 1, or of 0 where there are no voxels"


@dataclasses.dataclass(frozen=True)
class MapRequest:
    """What a map is asked for, checked. Equal requests over equal coordinates have equal maps.

    Attributes:
        geometry: which voxels meet.
        shape, out_shape: spatial shapes (z, y, x) of inputs and outputs, or None where the grid has no edge.
        batches: number of batches, or None.
        target: resolved name.
        capacity: rows of outputs that there is room for, or None: as many as there are.
    """

    geometry: ConvGeometry
    shape: Triple | None
    out_shape: Triple | None
    batches: int | None
    target: str
    capacity: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Without the kernel, whose code and addresses belong to this process: a copy loads its own.
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def kernel(self) -> SparseKernel | GpuSparseKernel:
        """The kernel that makes outputs, with 32-bit keys; it also has the driver's helpers."""
        return load_sparse(sparse_options("outputs", self.geometry, self.target))


def map_request(
    *,
    kernel_size: int | Triple,
    stride: int | Triple,
    padding: int | Triple,
    dilation: int | Triple,
    transposed: bool,
    output_padding: int | Triple,
    spatial_shape: Triple | None,
    batch_size: int | None,
    target: str | None,
    capacity: int | None = None,
) -> MapRequest:
    """The arguments of build_map, checked.

    Raises:
        InputError: an argument is not accepted.
    """
    steps = {"kernel_size": kernel_size, "stride": stride, "padding": padding, "dilation": dilation}
    if target is not None and not isinstance(target, str):
        raise InputError(f"target is {target!r}; accepted: {', '.join(target_names())}")
    return _request(
        tuple(triple(value, name) for name, value in steps.items()),
        bool(transposed),
        triple(output_padding, "output_padding"),
        None if spatial_shape is None else triple(spatial_shape, "spatial_shape"),
        None if batch_size is None else whole(batch_size, "batch_size"),
        env.TARGET.get() if target is None else target,
        None if capacity is None else whole(capacity, "capacity"),
    )


@functools.lru_cache(maxsize=512)
def _request(
    axes: tuple[Triple, ...],
    transposed: bool,
    extra: Triple,
    shape: Triple | None,
    batches: int | None,
    target: str,
    capacity: int | None,
) -> MapRequest:
    kernel_size, stride, padding, dilation = axes
    geometry = ConvGeometry(kernel_size, stride, padding, dilation, transposed)
    # A grid that a convolution has left without room has sizes of 0, and no voxels: see make_map.
    if shape is not None and min(shape) < 0:
        raise InputError(f"spatial_shape is {shape}; accepted: {SIZES}")
    if batches is not None and batches < 1:
        raise InputError(f"batch_size is {batches}; accepted: at least 1")
    if capacity is not None and capacity < 1:
        raise InputError(f"capacity is {capacity}; accepted: at least 1, or None")
    if min(extra) < 0:
        raise InputError(f"output_padding is {extra}; accepted: three numbers (z, y, x) of at least 0")
    if max(extra) > 0 and (shape is None or not transposed):
        raise InputError(f"output_padding is {extra}; accepted: 0, or a transposed geometry with a spatial_shape")
    out_shape = None if shape is None else geometry.output_shape(shape, extra)
    return MapRequest(geometry, shape, out_shape, batches, get_target(target).name, capacity)


def target_for(target: str | None, coords: Any) -> str:
    """The name of the target of an op over `coords`: "auto" is what runs where they lie.

    Raises:
        InputError: coords are not accepted.
    """
    if target not in (None, "auto"):
        return target
    from spconv_compiler.api import target_of

    return target_of(target, check_coords(coords, on_gpu=True))


def forget_requests() -> None:
    """Forgets the kernels that requests, and networks' levels, have loaded."""
    from spconv_compiler.frame_driver import load_frames
    from spconv_compiler.level_maps import load_levels

    load_levels.cache_clear()
    load_frames.cache_clear()
    _request.cache_clear()
    _kernel.cache_clear()
    load_sparse.cache_clear()


def sparse_kernel(
    operation: str, geometry: ConvGeometry, target: str, **more: Any
) -> SparseKernel | GpuSparseKernel:
    """The kernel of sparse_options, loaded; faster than to make the options where it is loaded already.

    A kernel that is loaded is not compiled again for other settings of the environment (api.clear_caches).
    """
    return _kernel(operation, geometry, target, tuple(more.items()))


@functools.lru_cache(maxsize=512)
def _kernel(
    operation: str, geometry: ConvGeometry, target: str, more: tuple[tuple[str, Any], ...]
) -> SparseKernel | GpuSparseKernel:
    return load_sparse(sparse_options(operation, geometry, target, **dict(more)))


def sparse_options(operation: str, geometry: ConvGeometry, target: str, **more: Any) -> SparseOptions:
    """SparseOptions with what the environment adds, and with a dtype that the target has."""
    if operation == "conv":
        plain = get_target(target).plain_dtype
        more = {"dtype": plain, "out_dtype": plain, **more}
    return SparseOptions(
        operation,
        geometry,
        target=target,
        verify=env.VERIFY.get(),
        dump_dir=str(env.DUMP_DIR.get() or ""),
        print_after=env.PRINT_AFTER.get(),
        **more,
    )
