"""The measurement behind `spconv-bench sim --maps`: from coordinates to pairs on gfx950, counted and modelled.

Every frame is taken as it comes, in ascending order, and shuffled, through both mappers as far as a grid can hold its
box. Nothing of gfx950 is measured: bytes are those between the modelled L2 caches and memory, times are modelled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spconv_compiler.bench import sim_layer
from spconv_compiler.bench.frames import Frame, load_frame
from spconv_compiler.compiler import compile_options
from spconv_compiler.coordinates import Box
from spconv_compiler.options import CompileOptions
from spconv_compiler.plan import Plan
from spconv_compiler.schedules.mappers import DENSE_GRID, MAPPERS, NARROW_KEYS, Z_DELTA, choose_mapper, passes_of
from spconv_compiler.sim import chip
from spconv_compiler.sim.elf import CodeObject, Kernel
from spconv_compiler.sim.run_plan import run_plan
from spconv_compiler.sim.watched import WatchedMachine
from spconv_compiler.targets import GpuTarget, get_target

_KERNEL, _TAPS, _TILE = (3, 3, 3), 27, 16
_MB = 1e6


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        frames: names (frames.py); data: folder of the point clouds.
        native: the native engine, else numpy's. sample: watch every so many workgroups.
    """

    frames: tuple[str, ...]
    data: Path
    native: bool = True
    sample: int = chip.CHIPLETS


def measure(settings: Settings, progress: Callable[[str], None] = lambda step: None) -> list[dict[str, Any]]:
    """One entry for each frame, order and mapper, as plain JSON values.

    Raises:
        InputError: an unknown frame. SpconvError: a kernel does what it must not do.
    """
    target = get_target("gfx950")
    assert isinstance(target, GpuTarget)
    entries = []
    for name in settings.frames:
        progress(name)
        for shuffle in (False, True):
            frame = load_frame(name, settings.data, shuffle)
            symbols = _box(frame).symbols(_KERNEL, (1, 1, 1))
            for mapper in MAPPERS:
                if mapper == Z_DELTA or symbols["cells"] <= target.narrow_cells:
                    entry = _one(frame, symbols, mapper, settings)
                    chosen = choose_mapper(symbols["cells"], len(frame.coords), _TAPS, target)
                    entries.append({**entry, "shuffled": shuffle, "chosen": mapper == chosen})
    return entries


def minimum_bytes(mapper: str, rows: int, cells: int, pairs: int, *, ordered: bool, taps: int = _TAPS) -> int:
    """What must move between caches and memory if every buffer is read and written once where it must be.

    docs/maps.md derives it. State of scans, counts of digits and padding are left out.
    """
    table = 4 * taps * _TILE * -(-rows // _TILE)
    shared = 16 * rows + 2 * table + 8 * pairs
    if mapper == DENSE_GRID:
        # The fill; a cell of each voxel fetched and changed; coordinates and grid again for the look-ups.
        return shared + 4 * cells + 8 * rows + 16 * rows + 4 * rows
    record = 8 if cells <= NARROW_KEYS else 16
    if ordered:
        return shared + record * rows * 2
    # The passes of the sort, and the table once more, by rows.
    return shared + record * rows * (2 + 2 * passes_of(cells)) + 2 * 4 * taps * rows


def _box(frame: Frame) -> Box:
    low, high = frame.coords.min(axis=0).tolist(), frame.coords.max(axis=0).tolist()
    return Box(tuple(low), tuple(high))


def _one(frame: Frame, symbols: dict[str, int], mapper: str, settings: Settings) -> dict[str, Any]:
    cells, rows = symbols["cells"], len(frame.coords)
    width = 32 if cells <= NARROW_KEYS else 64
    options = CompileOptions(_KERNEL, 16, 16, width, "bf16", target="gfx950", schedule="pairs_m16", mapper=mapper)
    artifact = compile_options(options)
    watched: list[WatchedMachine] = []
    # One thread: how long a look-back waits does not depend on this host.
    make = sim_layer.engine(settings.native, 1)

    def engine(kernels: Mapping[str, Kernel], budget: int) -> WatchedMachine:
        watched.append(WatchedMachine(make(kernels, budget), settings.sample))
        return watched[-1]

    nothing = np.zeros(1, np.uint16)
    arrays: dict[str, Any] = {"coords": frame.coords, "features": nothing, "weight": nothing}
    run = run_plan(
        CodeObject(artifact.object).kernels,
        _of_pairs(artifact.plan),
        arrays,
        {**symbols, "rows": rows, "threads": 1},
        1,
        engine=engine,
    )
    table = run.array("table", "i32").reshape(-1, _TAPS, _TILE).transpose(0, 2, 1).reshape(-1, _TAPS)
    ordered = bool((np.diff(_keys(frame)) >= 0).all())
    launches = [one.to_json() for one in watched[0].launches]
    minimum = minimum_bytes(mapper, rows, cells, frame.pairs, ordered=ordered)
    moved = sum(one["moved_bytes"] for one in launches)
    return {
        "frame": frame.name,
        "mapper": mapper,
        "N": rows,
        "pairs": frame.pairs,
        "cells": cells,
        "ok": bool(np.array_equal(table[:rows], frame.table)),
        "launches": launches,
        "moved_bytes": moved,
        "minimum_bytes": minimum,
        **{
            name: sum(one["modelled"][name] for one in launches)
            for name in ("lower_us", "estimate_us", "pessimistic_us")
        },
    }


def _keys(frame: Frame) -> Any:
    sizes = [int(frame.coords[:, 0].max()) + 1, *frame.spatial_shape]
    return np.ravel_multi_index(tuple(frame.coords.T.astype(np.int64)), tuple(sizes))


def _of_pairs(plan: Plan) -> Plan:
    """The part that makes map and pairs."""
    launches = tuple(launch for launch in plan.launches if launch.group == "pairs")
    used = {item.name for launch in launches for item in launch.arguments}
    return dataclasses.replace(
        plan, launches=launches, buffers=tuple(item for item in plan.buffers if item.name in used)
    )


def table(entries: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells."""
    columns = ["frame", "order", "mapper", "N", "cells", "launches", "MB moved", "least MB", "ratio"]
    columns += ["modelled us", "lower", "pessimistic", "right"]
    cells = []
    for one in entries:
        cells.append(
            [
                one["frame"],
                "shuffled" if one["shuffled"] else "ascending",
                one["mapper"] + (" *" if one["chosen"] else ""),
                f"{one['N']:,}",
                f"{one['cells'] / 1e6:,.1f} M",
                str(len(one["launches"])),
                f"{one['moved_bytes'] / _MB:.1f}",
                f"{one['minimum_bytes'] / _MB:.1f}",
                f"{one['moved_bytes'] / one['minimum_bytes']:.2f}",
                *(f"{one[name]:.1f}" for name in ("estimate_us", "lower_us", "pessimistic_us")),
                "yes" if one["ok"] else "NO",
            ]
        )
    return columns, cells
