"""The two ways to build a submanifold map on a GPU, and which one a set of coordinates gets.

`dense_grid` writes a number for every cell of the padded box, so it costs by volume; `z_delta` sorts keys and searches
in them, so it costs by voxels. Both give the same table. The choice is made at each call from the volume, the number
of voxels and the taps; it is no part of a kernel's cache key. docs/maps.md derives the rule.
"""

from __future__ import annotations

import dataclasses

from spconv_compiler.errors import InputError, Rejection, ScheduleError
from spconv_compiler.schedules.base import Choice, Chosen
from spconv_compiler.targets.base import GpuTarget

DENSE_GRID, Z_DELTA = "dense_grid", "z_delta"
_PARAMETERS = {DENSE_GRID: {"block": 256}, Z_DELTA: {"block": 256, "items": 4}}
MAPPERS = tuple(_PARAMETERS)
# Of maps between two sets: the grid is chosen while it fits into memory (sparse_driver_gpu.py).
COARSE_GRID, COARSE_KEYS = "coarse_grid", "coarse_keys"
_BETWEEN_SETS = {COARSE_GRID: {"block": 256}, COARSE_KEYS: {"block": 256, "items": 4}}
# Keys of 32 bits are compared with their upper bit clear.
NARROW_KEYS = 2**31 - 1

# Modelled microseconds (spconv-bench sim --maps): of launches and of what every wave waits for, then by what grows.
_LAUNCH_US = 3.0
_GRID_US_PER_CELL = 4 / 5.6e6
_GRID_US_PER_LOOKUP = 4.5e-6
_SORT_US_PER_PASS, _SORT_US_PER_RECORD = 2.0, 1.2e-5
_SEARCH_US, _SEARCH_US_PER_LOOKUP = 3.0, 4.5e-6


def check_mapper_name(name: str) -> None:
    """Raises InputError unless a mapper, or "auto", has this name."""
    if name not in ("auto", *MAPPERS):
        raise InputError(f"unknown mapper {name!r}; accepted: {', '.join(('auto', *MAPPERS))}")


def with_mapper(chosen: Chosen, mapper: str) -> Chosen:
    """The choices with another mapper; "auto" leaves them as they are.

    Raises:
        ScheduleError: the map is none that these mappers build.
    """
    if mapper == "auto":
        return chosen
    for family in (_PARAMETERS, _BETWEEN_SETS):
        if chosen.map.name in family and mapper in family:
            return dataclasses.replace(chosen, map=Choice(mapper, family[mapper]))
    if mapper in _BETWEEN_SETS:
        reason = f'it builds maps between two sets on a GPU; {chosen.gemm.name} takes a map by "{chosen.map.name}"'
    else:
        reason = f'it builds submanifold maps on a GPU; {chosen.gemm.name} takes a map by "{chosen.map.name}"'
    raise ScheduleError("the mapper that is asked for does not serve", (Rejection(mapper, reason),))


def passes_of(cells: int) -> int:
    """Digits of eight bits that keys up to `cells` have."""
    return max(1, -(-cells.bit_length() // 8))


def estimates(cells: int, rows: int, taps: int) -> dict[str, float]:
    """Modelled microseconds on gfx950 from coordinates to the table, by mapper; for ranking only."""
    lookups, passes = rows * taps, passes_of(cells)
    each_pass = _LAUNCH_US + _SORT_US_PER_PASS + _SORT_US_PER_RECORD * rows
    return {
        DENSE_GRID: 3 * _LAUNCH_US + _GRID_US_PER_CELL * cells + _GRID_US_PER_LOOKUP * lookups,
        Z_DELTA: 4 * _LAUNCH_US + passes * each_pass + _SEARCH_US + _SEARCH_US_PER_LOOKUP * lookups,
    }


def choose_mapper(cells: int, rows: int, taps: int, target: GpuTarget) -> str:
    """The mapper with the smaller estimate; a grid beyond what 32-bit offsets reach is never chosen."""
    if cells > target.narrow_cells:
        return Z_DELTA
    found = estimates(cells, rows, taps)
    return min(MAPPERS, key=lambda name: found[name])
