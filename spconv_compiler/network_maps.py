"""`build_maps`: the maps of all levels of a network, built together from one coordinate tensor.

    maps = sc.build_maps(coords, {
        "subm0": sc.MapGeometry(3, submanifold=True),                      # over "input", the coords given
        "down1": sc.MapGeometry(3, stride=2, padding=1),                   # its outputs are the level "down1"
        "subm1": sc.MapGeometry(3, submanifold=True, reads="down1"),
        "up0":   sc.MapGeometry(2, stride=2, transposed=True, reads="down1", onto="input"),
    }, spatial_shape=(41, 1600, 1408), batch_size=1)

    maps["down1"]             # SparseMap: the map= of mapped_conv3d, sparse_inverse_conv3d, mapped_pool3d
    maps["subm1"]             # the map that subm_conv3d(maps.coords("down1"), …) finds
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

from spconv_compiler import api, sparse_conv
from spconv_compiler.errors import InputError
from spconv_compiler.geometry import Triple
from spconv_compiler.map_request import map_request
from spconv_compiler.row_order import KnownOrder, reading
from spconv_compiler.sparse_map import SparseMap

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
        given = (self.stride, self.padding, self.transposed, self.output_padding, self.onto)
        if self.submanifold and given != (1, 0, False, 0, None):
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


class NetworkMaps(Mapping[str, Any]):
    """The maps of a network by the names of their geometries, in order. Made by `build_maps`.

    A strided or transposed entry is a SparseMap; a submanifold one is what the target's kernel runs over (KernelMap on
    the CPU), and subm_conv3d finds it by the coordinates of its level.
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
        spatial_shape, batch_size, target: as in build_map; the shapes of other levels follow.

    Raises:
        InputError: an argument is not accepted, a level is read that no earlier entry makes, or coords repeat a row.
        CompileError, LaunchError, ToolchainError: see compile_conv and driver.load_conv.
    """
    levels = {INPUT: _Level(coords, spatial_shape, KnownOrder())}
    maps: dict[str, Any] = {}
    for name, geometry in geometries.items():
        if name == INPUT:
            raise InputError(f'a geometry is called "{INPUT}"; accepted: any other name')
        read = _level(levels, geometry.reads, name, "reads")
        with reading(read.order):
            if geometry.submanifold:
                maps[name] = _submanifold(read, geometry, batch_size, target)
                continue
            maps[name] = made = _between(read, geometry, levels, name, batch_size, target)
        if geometry.onto is None:
            levels[name] = _Level(made.out_coords, made.out_spatial_shape)
    return NetworkMaps(maps, levels)


def _level(levels: dict[str, _Level], wanted: str, name: str, what: str) -> _Level:
    if wanted not in levels:
        raise InputError(f"{name!r} {what} level {wanted!r}; accepted: one made before it: {', '.join(levels)}")
    return levels[wanted]


def _submanifold(read: _Level, geometry: MapGeometry, batches: int | None, target: str | None) -> Any:
    return api.cached_map(
        read.coords,
        geometry.kernel_size,
        dilation=geometry.dilation,
        spatial_shape=read.shape,
        batch_size=batches,
        target=target,
    )


def _between(
    read: _Level,
    geometry: MapGeometry,
    levels: dict[str, _Level],
    name: str,
    batches: int | None,
    target: str | None,
) -> SparseMap:
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
    onto = None if geometry.onto is None else _level(levels, geometry.onto, name, "writes onto").coords
    map_ = sparse_conv.cached_map(request, read.coords, onto)
    if map_.out_rows > 0:
        # Pairs do not depend on channels: the plan of the narrowest convolution makes them.
        map_.pairs_for(map_.kernel("conv", c_in=1, c_out=1))
    return map_
