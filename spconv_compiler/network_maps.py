"""`build_maps`: the maps of all levels of a network, built together from one coordinate tensor.

    maps = sc.build_maps(coords, {
        "subm0": sc.MapGeometry(3, submanifold=True),                      # over "input", the coords given
        "down1": sc.MapGeometry(3, stride=2, padding=1),                   # its outputs are the level "down1"
        "subm1": sc.MapGeometry(3, submanifold=True, reads="down1"),
        "up0":   sc.MapGeometry(2, stride=2, transposed=True, reads="down1", onto="input"),
    }, spatial_shape=(41, 1600, 1408), batch_size=1)

    maps["down1"]             # SparseMap: the map= of mapped_conv3d, sparse_inverse_conv3d, mapped_pool3d
    maps["subm1"]             # SubmanifoldMap: the map that subm_conv3d(maps.coords("down1"), …) finds
    maps.coords("down1")      # that level's coordinates; maps.spatial_shape("down1")

Signature:

    build_maps(coords, geometries: Mapping[str, MapGeometry], *, spatial_shape=None, batch_size=None, target=None)
        -> NetworkMaps                                                     # a Mapping of the same names, in order

Coordinates are sorted at most once. The rows of a level ascend whenever a strided or transposed entry made it, which
the next map's sort notices; the order of the given rows is found by the first map over them and used by the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from spconv_compiler import api, sparse_conv
from spconv_compiler.errors import InputError
from spconv_compiler.geometry import ConvGeometry, Triple
from spconv_compiler.map_request import map_request
from spconv_compiler.options import triple
from spconv_compiler.row_order import KnownOrder, reading
from spconv_compiler.sparse_map import SparseMap, build_map

INPUT = "input"


@dataclasses.dataclass(frozen=True)
class MapGeometry:
    """One map of a network.

    Attributes:
        kernel_size, stride, padding, dilation, output_padding: one number or (z, y, x), as in build_map; a
            submanifold map has neither stride nor padding.
        submanifold: outputs are the inputs. transposed: as in build_map.
        reads: the level whose coordinates are the inputs: "input", or the name of an earlier entry that makes outputs.
        onto: the level whose coordinates are the outputs, instead of all that inputs reach.
    """

    kernel_size: int | Triple = 3
    stride: int | Triple = 1
    padding: int | Triple = 0
    dilation: int | Triple = 1
    submanifold: bool = False
    transposed: bool = False
    output_padding: int | Triple = 0
    reads: str = INPUT
    onto: str | None = None

    def __post_init__(self) -> None:
        steps = {"stride": 1, "padding": 0, "output_padding": 0}
        own = any(triple(getattr(self, name), name) != (only,) * 3 for name, only in steps.items())
        if self.submanifold and (own or self.transposed or self.onto is not None):
            raise InputError(
                "a submanifold geometry has a stride, padding, direction or outputs of its own; accepted: kernel_size, "
                "dilation and reads"
            )


@dataclasses.dataclass(frozen=True)
class _Level:
    """Coordinates of a level, as the user sees them, and the shape that they lie in.

    order: of the rows, once a map has sorted them; None: they ascend already.
    """

    coords: Any
    shape: Triple | None
    order: KnownOrder | None = None


class SubmanifoldMap:
    """The map of a submanifold entry: of voxels with themselves. subm_conv3d finds it by the coordinates of its level.

    Attributes:
        coords: of inputs and outputs: the level's.
        kernel_map: what the target's kernel runs over (KernelMap on the CPU), or None where there are no voxels.
        geometry: the same map as one between two equal sets: which voxels meet through which tap.
    """

    def __init__(self, coords: Any, kernel_map: Any, geometry: ConvGeometry, target: str | None) -> None:
        self.coords, self.kernel_map, self.geometry = coords, kernel_map, geometry
        self._target = target

    def __repr__(self) -> str:
        return f"SubmanifoldMap({self.rows} voxels, {self.geometry})"

    @property
    def rows(self) -> int:
        """Voxels."""
        return int(self.coords.shape[0])

    def pairs(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """As SparseMap.pairs. The kernels' own form differs from one target to another: these are found anew.

        Raises:
            InputError: coords have come to hold a row twice.
        """
        geometry = self.geometry
        given = {name: getattr(geometry, name) for name in ("kernel_size", "padding", "dilation")}
        return build_map(self.coords, **given, out_coords=self.coords, target=self._target).pairs()


class NetworkMaps(Mapping[str, Any]):
    """The maps of a network by the names of their geometries, in order. Made by `build_maps`.

    A strided or transposed entry is a SparseMap, a submanifold one a SubmanifoldMap.
    """

    def __init__(self, maps: dict[str, Any], levels: dict[str, _Level]) -> None:
        self._maps, self._levels = maps, levels

    def __getitem__(self, name: str) -> Any:
        return self._maps[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._maps)

    def __len__(self) -> int:
        return len(self._maps)

    def __repr__(self) -> str:
        return f"NetworkMaps({', '.join(f'{name}: {map_}' for name, map_ in self._maps.items())})"

    @property
    def levels(self) -> tuple[str, ...]:
        """The names of all levels, "input" first."""
        return tuple(self._levels)

    def coords(self, level: str = INPUT) -> Any:
        """The coordinates of a level: the kind, dtype and columns of those that build_maps was given.

        Raises:
            InputError: no entry makes a level of that name.
        """
        return self._level(level).coords

    def spatial_shape(self, level: str = INPUT) -> Triple | None:
        """(z, y, x) of a level, or None where the grid has no edge.

        Raises:
            InputError: no entry makes a level of that name.
        """
        return self._level(level).shape

    def _level(self, name: str) -> _Level:
        if name not in self._levels:
            raise InputError(f"there is no level {name!r}; accepted: {', '.join(map(repr, self._levels))}")
        return self._levels[name]


def build_maps(
    coords: Any,
    geometries: Mapping[str, MapGeometry],
    *,
    spatial_shape: Triple | None = None,
    batch_size: int | None = None,
    target: str | None = None,
) -> NetworkMaps:
    """Builds the maps of a whole network; subm_conv3d, sparse_conv3d and their like then find them by coordinates.

    Pairs are built in the direction that each geometry names; those of an inverse convolution on its first call.

    Args:
        coords: int32 [N, 3] or [N, 4], as for build_map: the level "input".
        geometries: by name, in an order in which every level is made before it is read.
        spatial_shape, batch_size, target: as in build_map; the shapes of other levels follow. A level whose shape has
            no room for a voxel is empty, as are those made of it.

    Raises:
        InputError: an argument is not accepted, a level is read that no earlier entry makes, or coords repeat a row.
            What an entry does not accept begins with its name.
        CompileError, LaunchError, ToolchainError: see compile_conv and driver.load_conv.
    """
    _check(geometries)
    limits = api.check_limits(spatial_shape, batch_size)
    levels = {INPUT: _Level(coords, None if limits is None else limits[0], KnownOrder())}
    maps: dict[str, Any] = {}
    for name, geometry in geometries.items():
        read = _level(levels, geometry.reads, name, "reads")
        onto = None if geometry.onto is None else _level(levels, geometry.onto, name, "writes onto").coords
        try:
            with reading(read.order):
                if geometry.submanifold:
                    maps[name] = _submanifold(read, geometry, batch_size, target)
                    continue
                maps[name] = made = _between(read, geometry, onto, batch_size, target)
        except InputError as error:
            raise InputError(f"{name!r}: {error}") from error
        if onto is None:
            levels[name] = _Level(made.out_coords, made.out_spatial_shape)
    return NetworkMaps(maps, levels)


def _check(geometries: Any) -> None:
    if not isinstance(geometries, Mapping):
        raise InputError(f"geometries are a {type(geometries).__name__}; accepted: a dict of MapGeometry by name")
    for name, geometry in geometries.items():
        if not isinstance(geometry, MapGeometry):
            raise InputError(f"{name!r} is a {type(geometry).__name__}; accepted: a MapGeometry")
        if name == INPUT:
            raise InputError(f'a geometry is called "{INPUT}"; accepted: any other name')


def _level(levels: dict[str, _Level], wanted: str, name: str, what: str) -> _Level:
    if wanted not in levels:
        raise InputError(f"{name!r} {what} level {wanted!r}; accepted: one made before it: {', '.join(levels)}")
    return levels[wanted]


def _submanifold(read: _Level, geometry: MapGeometry, batches: int | None, target: str | None) -> SubmanifoldMap:
    size, step = triple(geometry.kernel_size, "kernel_size"), triple(geometry.dilation, "dilation")
    made = api.cached_map(read.coords, size, dilation=step, spatial_shape=read.shape, batch_size=batches, target=target)
    z, y, x = (axis // 2 * each for axis, each in zip(size, step, strict=True))
    return SubmanifoldMap(read.coords, made, ConvGeometry(size, (1, 1, 1), (z, y, x), step), target)


def _between(read: _Level, geometry: MapGeometry, onto: Any, batches: int | None, target: str | None) -> SparseMap:
    request = map_request(
        kernel_size=geometry.kernel_size,
        stride=geometry.stride,
        padding=geometry.padding,
        dilation=geometry.dilation,
        transposed=geometry.transposed,
        output_padding=geometry.output_padding,
        spatial_shape=read.shape,
        batch_size=batches,
        target=target,
    )
    map_ = sparse_conv.cached_map(request, read.coords, onto)
    if map_.out_rows > 0:
        # Pairs do not depend on channels: the plan of the narrowest convolution makes them.
        map_.pairs_for(map_.kernel("conv", c_in=1, c_out=1))
    return map_
