"""The ways to build a map, or a set of outputs, on a GPU, and which one a set of coordinates gets.

Of each there are some that cost by volume and some that cost by voxels; all give the same.

* Submanifold maps: `dense_grid` writes a number for every cell of the padded box; `z_delta` sorts keys and searches.
* Outputs: `marked_cells` has a bit for every cell of their box; `sorted_candidates` sorts the keys of all candidates.
* Maps between two sets: `coarse_grid` has a number for every cell; `coarse_keys` sorts the coarse set's keys and
  searches; `coarse_ascending` searches in the coarse set itself, which ascends where an op has made it.

The choice is made at each call from cells and voxels; it is no part of a kernel's cache key. docs/maps.md derives the
rules.
"""

from __future__ import annotations

import dataclasses

from spconv_compiler.errors import InputError, Rejection, ScheduleError
from spconv_compiler.schedules.base import Choice, Chosen
from spconv_compiler.targets.base import GpuTarget

DENSE_GRID, Z_DELTA = "dense_grid", "z_delta"
_PARAMETERS = {DENSE_GRID: {"block": 256}, Z_DELTA: {"block": 256, "items": 4}}
MAPPERS = tuple(_PARAMETERS)
COARSE_GRID, COARSE_KEYS, COARSE_ASCENDING = "coarse_grid", "coarse_keys", "coarse_ascending"
_BETWEEN_SETS = {
    COARSE_GRID: {"block": 256},
    COARSE_KEYS: {"block": 256, "items": 4},
    COARSE_ASCENDING: {},
}
MARKED_CELLS, SORTED_CANDIDATES = "marked_cells", "sorted_candidates"
_OUTPUTS = {MARKED_CELLS: {"block": 256}, SORTED_CANDIDATES: {"block": 256, "items": 4}}
# Keys of 32 bits are compared with their upper bit clear.
NARROW_KEYS = 2**31 - 1

# Modelled microseconds (spconv-bench sim --maps): of launches and of what every wave waits for, then by what grows.
_LAUNCH_US = 3.0
_GRID_US_PER_CELL = 4 / 5.6e6
_GRID_US_PER_LOOKUP = 4.5e-6
_SORT_US_PER_PASS, _SORT_US_PER_RECORD = 2.0, 1.2e-5
_SEARCH_US, _SEARCH_US_PER_LOOKUP = 3.0, 4.5e-6
# The same of ops between two sets (spconv-bench sim --strided); of rows of outputs 16 bytes are written.
_MARKS_US, _MARKS_US_PER_CELL, _FILL_US_PER_ROW = 5.0, 0.25 / 5.6e6, 16 / 5.6e6
_MAKE_KEYS_US, _MAKE_KEYS_US_PER_RECORD = 2.0, 1.1e-5
_KEYS_US_PER_PASS, _KEYS_US_PER_RECORD = 2.3, 1.5e-6
_CELL_US, _CELL_US_PER_LOOKUP, _SCATTER_US_PER_ROW = 1.2, 1.5e-6, 5e-6
_PROBE_US, _PROBE_US_PER_STEP = 4.7, 1.2e-7


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
    does = "builds submanifold maps"
    if mapper in _BETWEEN_SETS:
        does = "builds maps between two sets"
    elif mapper in _OUTPUTS:
        does = "makes sets of outputs"
    reason = f'it {does} on a GPU; {chosen.gemm.name} takes a map by "{chosen.map.name}"'
    raise ScheduleError("the mapper that is asked for does not serve", (Rejection(mapper, reason),))


def with_outputs_by(choice: Choice, mapper: str) -> Choice:
    """How outputs are made, if `mapper` says so; names of maps' mappers, and "auto", leave the choice as it is.

    Raises:
        ScheduleError: the outputs are not made on a GPU.
    """
    if mapper not in _OUTPUTS:
        return choice
    if choice.name not in _OUTPUTS:
        reason = f'it makes sets of outputs on a GPU; here they are made by "{choice.name}"'
        raise ScheduleError("the mapper that is asked for does not serve", (Rejection(mapper, reason),))
    return Choice(mapper, _OUTPUTS[mapper])


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


def key_bytes(records: int, width: int) -> int:
    """Bytes of the records of a sort: a key and a row each, in two halves."""
    return records * 4 * width // 8


def outputs_estimates(cells: int, rows: int, candidates: int) -> dict[str, float]:
    """Modelled microseconds on gfx950 from inputs to outputs, by mapper; candidates: of each input."""
    records, passes = rows * candidates, passes_of(cells)
    each_pass = _LAUNCH_US + _KEYS_US_PER_PASS + _KEYS_US_PER_RECORD * records
    return {
        MARKED_CELLS: 3 * _LAUNCH_US + _MARKS_US + _MARKS_US_PER_CELL * cells + _FILL_US_PER_ROW * records,
        SORTED_CANDIDATES: 3 * _LAUNCH_US + _MAKE_KEYS_US + _MAKE_KEYS_US_PER_RECORD * records + passes * each_pass,
    }


def choose_outputs_by(cells: int, rows: int, candidates: int) -> str:
    """The way to make outputs with the smaller estimate."""
    found = outputs_estimates(cells, rows, candidates)
    return min(found, key=lambda name: found[name])


def coarse_estimates(cells: int, rows: int, coarse_rows: int, candidates: int) -> dict[str, float]:
    """Modelled microseconds on gfx950 until each of so many fine rows has looked up its candidates, by mapper."""
    lookups, passes = rows * candidates, passes_of(cells)
    search = _PROBE_US + _PROBE_US_PER_STEP * lookups * coarse_rows.bit_length()
    each_pass = _LAUNCH_US + _SORT_US_PER_PASS + _SORT_US_PER_RECORD * coarse_rows
    fill = _GRID_US_PER_CELL * cells + _SCATTER_US_PER_ROW * coarse_rows
    return {
        COARSE_GRID: 2 * _LAUNCH_US + fill + _CELL_US + _CELL_US_PER_LOOKUP * lookups,
        COARSE_KEYS: 2 * _LAUNCH_US + passes * each_pass + search,
        COARSE_ASCENDING: search,
    }


def choose_coarse_by(cells: int, rows: int, coarse_rows: int, candidates: int, by_search: str) -> str:
    """A grid, or `by_search` where its estimate is smaller."""
    found = coarse_estimates(cells, rows, coarse_rows, candidates)
    return by_search if found[by_search] < found[COARSE_GRID] else COARSE_GRID
