"""Max and average pools between two coordinate sets."""

from __future__ import annotations

from typing import Any

from spconv_compiler.arrays import empty_like_kind
from spconv_compiler.coordinates import check_coords
from spconv_compiler.errors import InputError
from spconv_compiler.forward_only import forward_only
from spconv_compiler.geometry import Triple
from spconv_compiler.map_request import map_request, target_for
from spconv_compiler.operands import check_features, check_place
from spconv_compiler.sparse_conv import cached_map
from spconv_compiler.sparse_map import SparseMap


def sparse_max_pool3d(
    coords: Any,
    features: Any,
    kernel_size: int | Triple,
    *,
    stride: int | Triple | None = None,
    padding: int | Triple = 0,
    dilation: int | Triple = 1,
    spatial_shape: Triple | None = None,
    batch_size: int | None = None,
    out_coords: Any = None,
    target: str | None = None,
) -> tuple[Any, Any]:
    """The greatest of the voxels that are there, per output and channel.

    Absent voxels do not count: a window of negative values has a negative maximum (spconv's gives 0). A NaN in a
    window makes the result NaN, as in torch.

    Args:
        coords: int32 [N, 3] or [N, 4], features: [N, C] f32, bf16 or f16, as for sparse_conv3d.
        kernel_size, padding, dilation: one number or (z, y, x); stride likewise, kernel_size by default.
        spatial_shape, batch_size, out_coords: see build_map. With out_coords a row that no voxel reaches is zero.
        target: as in compile_conv.

    Returns:
        (out_coords, out_features [M, C]): the kind of coords and of features, rows ascending in (batch, z, y, x).

    Raises:
        InputError: an argument is not accepted; nothing is changed.
        CompileError, LaunchError, ToolchainError: see compile_conv and driver.load_conv.
    """
    grid = (kernel_size, stride, padding, dilation, spatial_shape, batch_size, target)
    return _pool("max", coords, features, out_coords, *grid)


def sparse_avg_pool3d(
    coords: Any,
    features: Any,
    kernel_size: int | Triple,
    *,
    stride: int | Triple | None = None,
    padding: int | Triple = 0,
    dilation: int | Triple = 1,
    spatial_shape: Triple | None = None,
    batch_size: int | None = None,
    out_coords: Any = None,
    target: str | None = None,
) -> tuple[Any, Any]:
    """The mean of the voxels that are there, per output and channel, as in spconv.

    The sum is taken in f32 and divided by the number of voxels in the window.

    Args, Returns, Raises: as for sparse_max_pool3d.
    """
    grid = (kernel_size, stride, padding, dilation, spatial_shape, batch_size, target)
    return _pool("avg", coords, features, out_coords, *grid)


def mapped_pool3d(features: Any, *, map: SparseMap, mode: str) -> Any:
    """A pool over a map that build_map made: features [rows of map.in_coords, C] → [rows of map.out_coords, C].

    mode: "max" or "avg".

    Raises: as for sparse_max_pool3d; InputError also where the map is a transposed one.
    """
    if not isinstance(map, SparseMap) or map.geometry.transposed:
        raise InputError(f"map is {map!r}; accepted: what build_map returns without transposed=True")
    if mode not in ("max", "avg"):
        raise InputError(f"mode is {mode!r}; accepted: max, avg")
    inputs = check_features(features, map.in_rows, "coords")
    check_place(map.device, features=inputs)
    channels: dict[str, Any] = dict.fromkeys(("c_in", "c_out"), inputs.shape[1])
    channels |= dict.fromkeys(("dtype", "out_dtype"), inputs.dtype)
    kernel = map.kernel(f"{mode}_pool", **channels)
    out = empty_like_kind(features, (map.out_rows, inputs.shape[1]), inputs.dtype)
    if map.out_rows > 0:
        kernel.run(map.pairs_for(kernel).buffers, map.symbols, inputs, out.pointer)
    return forward_only(out.source, f"sparse_{mode}_pool3d", features)


def _pool(
    mode: str,
    coords: Any,
    features: Any,
    out_coords: Any,
    kernel_size: int | Triple,
    stride: int | Triple | None,
    padding: int | Triple,
    dilation: int | Triple,
    spatial_shape: Triple | None,
    batch_size: int | None,
    target: str | None,
) -> tuple[Any, Any]:
    request = map_request(
        kernel_size=kernel_size,
        stride=kernel_size if stride is None else stride,
        padding=padding,
        dilation=dilation,
        transposed=False,
        output_padding=0,
        spatial_shape=spatial_shape,
        batch_size=batch_size,
        target=target_for(target, coords),
    )
    check_features(features, check_coords(coords, on_gpu=True).shape[0], "coords")
    map_ = cached_map(request, coords, out_coords)
    return map_.out_coords, mapped_pool3d(features, map=map_, mode=mode)
