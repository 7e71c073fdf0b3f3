"""Which maps of a network one plan builds together, with all its levels, on a GPU (level_options.py)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from spconv_compiler.compiler import compile_options
from spconv_compiler.coordinates import Box
from spconv_compiler.errors import InputError, LaunchError
from spconv_compiler.level_options import SORT_ITEMS, LevelMap, LevelOptions, MadeLevel, is_gapless, submanifold
from spconv_compiler.map_request import MapRequest, sparse_options
from spconv_compiler.network.plan import MapPlan, NetworkPlan, Step


@dataclasses.dataclass(frozen=True)
class LevelPlan:
    """Levels and maps that are built together.

    Attributes:
        options: what builds them; its levels are those of the network.
        numbers: of each (map of the network, whether backwards) its number in options.maps.
    """

    options: LevelOptions
    numbers: Mapping[tuple[int, bool], int]


def level_plan(plan: NetworkPlan, kernels: Sequence[Any], target: str) -> LevelPlan | None:
    """What is built together of a network's maps, or None where its levels are not made one of another.

    That asks for one level that is given, and others that strided geometries without gaps make. Maps of pools, and of
    gemms that do not own their rows, are not among them.

    Args:
        kernels: of the steps, None for those without.
    """
    made = [_made(plan, number) for number in range(len(plan.levels))]
    if made[:1] != [None] or plan.levels[0].argument is None or None in made[1:]:
        return None
    numbers: dict[tuple[int, bool], int] = {}
    maps: list[LevelMap] = []
    for step, kernel in zip(plan.steps, kernels, strict=True):
        key = (step.map, step.inverse)
        if step.map is None or kernel is None or key in numbers or not _takes(kernel, plan.maps[step.map]):
            continue
        item = _level_map(step, plan.maps[step.map])
        if item not in maps:
            maps.append(item)
        numbers[step.map, step.inverse] = maps.index(item)
    if not maps:
        return None
    levels = tuple(level for level in made[1:] if level is not None)
    try:
        return LevelPlan(LevelOptions(levels, tuple(maps), target), numbers)
    except InputError:  # a level that is made of a later one
        return None


def _made(plan: NetworkPlan, number: int) -> MadeLevel | None:
    level = plan.levels[number]
    if level.argument is not None or level.map is None:
        return None
    map_ = plan.maps[level.map]
    fits = map_.makes_level and map_.writes == number and is_gapless(map_.geometry)
    return MadeLevel(map_.reads, map_.geometry) if fits else None


def _level_map(step: Step, map_: MapPlan) -> LevelMap:
    if map_.submanifold:
        return LevelMap(map_.reads, map_.reads, submanifold(map_.geometry.kernel_size, map_.geometry.dilation))
    geometry = dataclasses.replace(map_.geometry, transposed=map_.geometry.transposed != step.inverse)
    reads, writes = (map_.writes, map_.reads) if step.inverse else (map_.reads, map_.writes)
    return LevelMap(reads, writes, geometry)


def _takes(kernel: Any, map_: MapPlan) -> bool:
    """Whether a kernel reads its map as these are: rows sorted by masks, in blocks of 256."""
    taps = math.prod(map_.geometry.kernel_size)
    names = {launch.kernel for launch in kernel.artifact.plan.launches if launch.group == "pairs"}
    return any(name.startswith(f"arrange_t{taps}_i{SORT_ITEMS}") for name in names)


def launches(plan: NetworkPlan, kernels: Sequence[Any], together: LevelPlan | None) -> tuple[list[int], int]:
    """(launches of each convolution or pool, launches of all levels and maps) of a call that is queued as one.

    Every launch of the kernels' plans counts, those of the levels included.
    """
    own: list[int] = []
    groups: dict[tuple[Any, ...], int] = {}
    for step, kernel in zip(plan.steps, kernels, strict=True):
        if kernel is None:
            continue
        names: dict[str, list[str]] = {}
        for launch in kernel.artifact.plan.launches:
            names.setdefault(launch.group, []).append(launch.kernel)
        own.append(len(names.get("output", ())))
        if together is None or (step.map, step.inverse) not in together.numbers:
            # Kernels that relate two sets serve both directions.
            for group, direction in (("map", None), ("pairs", step.inverse)):
                found = tuple(names.get(group, ()))
                groups[step.map, direction, found] = len(found)
    if together is None:
        target = next((kernel.options.target for kernel in kernels if kernel is not None), "")
        outputs = [sparse_options("outputs", map_.geometry, target) for map_ in plan.maps if map_.makes_level]
        return own, sum(groups.values()) + sum(len(compile_options(item).plan.launches) for item in outputs)
    return own, sum(groups.values()) + len(compile_options(together.options).plan.launches)


def boxes_of(plan: NetworkPlan, requests: Mapping[int, MapRequest]) -> list[Box]:
    """Around all that every level may hold; levels that are given have a shape and a number of batches.

    Raises:
        LaunchError: a level has no room, or no outputs wherever voxels lie.
    """
    found: dict[int, Box] = {}
    for number, level in enumerate(plan.levels):
        if level.argument is not None:
            assert level.shape is not None and level.batches is not None
            z, y, x = level.shape
            if min(level.shape) == 0:
                raise LaunchError(f"{level.name} has no room for a voxel")
            found[number] = Box((0, 0, 0, 0), (level.batches - 1, z - 1, y - 1, x - 1))
    for number, map_ in enumerate(plan.maps):
        if map_.makes_level:
            request = requests[number]
            box = request.geometry.output_box(found[map_.reads], request.out_shape)
            if box is None:
                raise LaunchError(f"{plan.levels[map_.writes].name} has no outputs wherever voxels lie")
            found[map_.writes] = box
    return [found[number] for number in range(len(plan.levels))]
