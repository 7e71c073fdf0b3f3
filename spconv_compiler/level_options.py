"""Several coordinate levels and the maps between them, built together on a GPU: what is compiled, and its numbers.

Level 0 is given. Every other level is made of an earlier one by a strided geometry, and ascends in (batch, z, y, x). A
map reads one level and writes one level, which may be the same. The numbers of one run (boxes, places in buffers) are
words of one array, `places`, that kernels read: nothing is compiled anew for other coordinates, and buffers are shared.

places i32: LEVEL_WORDS for each level, then MAP_WORDS for each map. Places in marks, records, tables are in elements.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, TypeAlias

from spconv_compiler.errors import InputError
from spconv_compiler.geometry import ConvGeometry

if TYPE_CHECKING:
    from spconv_compiler.frame_options import FrameOptions
    from spconv_compiler.options import CompileOptions
    from spconv_compiler.sparse_options import SparseOptions

AnyOptions: TypeAlias = "CompileOptions | SparseOptions | LevelOptions | FrameOptions"
"""What can be compiled."""

LEVEL_WORDS, MAP_WORDS = 16, 8
# Of a level: its box (low corner, extents, batches), the rows that there is room for, and where things are: its marks
# in `marks`, its pairs of marks and rank there, its tiles among those of all levels, its rows in level_rows; and where
# a voxel of the level that it is made of lies above the first that coarse place 0 meets.
LOW, EXTENT, BATCHES, CAPACITY, MARKS, PAIRS, FIRST_TILE, TILES, FIRST_ROW, ORIGIN = 0, 3, 6, 7, 8, 9, 10, 11, 12, 13
# Of a map: its rows among those of all maps, how many it has, its place in the state of sorts, and its origin as above.
MAP_ROW, MAP_ROWS, MAP_STATE, MAP_ORIGIN = 0, 1, 2, 3

# A tile of marks: a workgroup of LANES reads TILE_WORDS words of 32 cells.
LANES, WORDS_A_LANE, WORD_CELLS = 256, 16, 32
TILE_WORDS = LANES * WORDS_A_LANE
# Elements of marks that it takes: bits and ranks.
TILE_MARKS = 2 * TILE_WORDS
# Rows of maps are laid out in whole tiles of the sort.
SORT_ITEMS = 4
ROW_UNIT = LANES * SORT_ITEMS
# Words of a sort's state beside those of its tiles (passes/gpu/radix_sort.py).
SORT_WORDS = 16 + 4 * 256
_NO_EFFECT = {"affects_code": False}


@dataclasses.dataclass(frozen=True)
class MadeLevel:
    """A level that all voxels of level `parent` reach through a strided geometry."""

    parent: int
    geometry: ConvGeometry


@dataclasses.dataclass(frozen=True)
class LevelMap:
    """A map from level `reads` to level `writes`; for a submanifold map stride 1, padding of half a kernel."""

    reads: int
    writes: int
    geometry: ConvGeometry


def submanifold(kernel_size: tuple[int, int, int], dilation: tuple[int, int, int] = (1, 1, 1)) -> ConvGeometry:
    """The geometry of a submanifold map."""
    z, y, x = (size // 2 * step for size, step in zip(kernel_size, dilation, strict=True))
    return ConvGeometry(kernel_size, (1, 1, 1), (z, y, x), dilation)


@dataclasses.dataclass(frozen=True)
class LevelOptions:
    """What code for levels and maps depends on. Every field enters the cache key unless marked otherwise.

    Attributes:
        levels: made levels, in order: level 1, 2, …
        maps: in order.
        target: resolved name. schedule: "auto"; these maps are those of gemms that own their rows.
        verify, dump_dir, print_after: as in CompileOptions.

    Raises:
        InputError: a level is made of a later one, a geometry leaves gaps between the outputs of neighbouring voxels,
            or a map names no level.
    """

    levels: tuple[MadeLevel, ...]
    maps: tuple[LevelMap, ...]
    target: str
    schedule: str = "auto"
    verify: bool = dataclasses.field(default=True, metadata=_NO_EFFECT)
    dump_dir: str = dataclasses.field(default="", metadata=_NO_EFFECT)
    print_after: str = dataclasses.field(default="", metadata=_NO_EFFECT)

    def __post_init__(self) -> None:
        if not self.maps:
            raise InputError("there are no maps; accepted: at least one")
        for number, level in enumerate(self.levels, 1):
            if not 0 <= level.parent < number:
                raise InputError(f"level {number} is made of level {level.parent}; accepted: one before it")
            if not is_gapless(level.geometry):
                raise InputError(
                    f"level {number} is made by {level.geometry}; accepted: strided, dilation 1, kernels not below "
                    "strides"
                )
        for number, item in enumerate(self.maps):
            if max(item.reads, item.writes) > len(self.levels) or min(item.reads, item.writes) < 0:
                raise InputError(f"map {number} is of levels {item.reads} and {item.writes}; accepted: 0 to "
                                 f"{len(self.levels)}")

    @property
    def name(self) -> str:
        """A short name for folders and listings."""
        return f"level_maps_{len(self.levels) + 1}_{len(self.maps)}"

    @property
    def most_taps(self) -> int:
        """Taps of the map that has most: what every map has room for."""
        return max(math.prod(item.geometry.kernel_size) for item in self.maps)

    def key_parts(self) -> dict[str, Any]:
        """The fields that affect code."""
        parts = dataclasses.asdict(self)
        fields = dataclasses.fields(self)
        return {"operation": "level_maps"} | {
            field.name: parts[field.name] for field in fields if field.metadata.get("affects_code", True)
        }


def is_gapless(geometry: ConvGeometry) -> bool:
    """Whether the outputs of a run of neighbouring voxels are a run: then a level's marks follow from level 0 alone."""
    sizes = zip(geometry.kernel_size, geometry.stride, geometry.dilation, strict=True)
    return not geometry.transposed and all(size >= stride and step == 1 for size, stride, step in sizes)
