"""The measurement behind `spconv-bench sim --maps`: from coordinates to pairs on gfx950, counted and modelled.

Every frame is taken as it comes, in ascending order, and shuffled, through both mappers as far as a grid can hold its
box. What runs is the driver's own call, and its pairs are compared with the reference's. Nothing of gfx950 is
measured: bytes are those between the modelled L2 caches and memory, times are modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spconv_compiler.arrays import as_array
from spconv_compiler.bench.counted_device import CountedDevice
from spconv_compiler.bench.frames import Frame, load_frame
from spconv_compiler.compiler import compile_options
from spconv_compiler.coordinates import Box
from spconv_compiler.driver_gpu import DeviceMap, GpuConvKernel
from spconv_compiler.options import CompileOptions
from spconv_compiler.runtime.calls import host_call, read
from spconv_compiler.schedules.mappers import DENSE_GRID, MAPPERS, NARROW_KEYS, Z_DELTA, choose_mapper, passes_of
from spconv_compiler.sim import chip
from spconv_compiler.targets import GpuTarget, get_target

ORDERS = ("ascending", "shuffled")
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
    """The driver's own call, on a device that counts."""
    target, cells, rows = get_target("gfx950"), symbols["cells"], len(frame.coords)
    assert isinstance(target, GpuTarget)
    width = 32 if cells <= NARROW_KEYS else 64
    options = CompileOptions(_KERNEL, 16, 16, width, "bf16", target="gfx950", schedule="pairs_m16", mapper=mapper)
    device = CountedDevice(settings.native, settings.sample)
    kernel = GpuConvKernel(compile_options(options), options, target, lambda index: device)
    made = kernel.build_map(as_array(frame.coords, "coords"), _box(frame))
    reads, launches = device.reads, [one.to_json() for one in device.taken()]
    ordered = bool((np.diff(_keys(frame)) >= 0).all())
    return {
        "frame": frame.name,
        "mapper": mapper,
        "N": rows,
        "pairs": frame.pairs,
        "cells": cells,
        "ok": _right(made, device, frame),
        "launches": launches,
        "host_reads": reads,
        "moved_bytes": sum(one["moved_bytes"] for one in launches),
        "minimum_bytes": minimum_bytes(mapper, rows, cells, frame.pairs, ordered=ordered),
        **{
            name: sum(one["modelled"][name] for one in launches)
            for name in ("lower_us", "estimate_us", "pessimistic_us")
        },
    }


def _right(made: DeviceMap, device: CountedDevice, frame: Frame) -> bool:
    """Whether the pairs are those of the frame's table, by tap and row, each tap's filled up to whole tiles."""
    with host_call(device) as call:
        first = read(call, made.buffers["tap_tile"], np.int32, _TAPS + 1)
        # Behind the last tile nothing is written.
        count = int(first[_TAPS]) * _TILE
        in_rows, out_rows = (read(call, made.buffers[name], np.int32, count) for name in ("in_rows", "out_rows"))
    right = first[0] == 0
    for tap, neighbours in enumerate(frame.table.T):
        rows = np.flatnonzero(neighbours >= 0)
        start, end = first[tap] * _TILE, first[tap + 1] * _TILE
        filled = -len(rows) % _TILE
        right = right and end - start == len(rows) + filled
        right = right and np.array_equal(in_rows[start:end], np.pad(neighbours[rows], (0, filled)))
        right = right and np.array_equal(out_rows[start:end], np.pad(rows, (0, filled), constant_values=-1))
    return bool(right)


def _keys(frame: Frame) -> Any:
    sizes = [int(frame.coords[:, 0].max()) + 1, *frame.spatial_shape]
    return np.ravel_multi_index(tuple(frame.coords.T.astype(np.int64)), tuple(sizes))


def order_of(entry: Mapping[str, Any]) -> str:
    """How the rows of an entry come."""
    return ORDERS[entry["shuffled"]]


def table(entries: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells."""
    columns = ["frame", "order", "mapper", "N", "cells", "launches", "MB moved", "least MB", "ratio"]
    columns += ["modelled us", "lower", "pessimistic", "right"]
    cells = []
    for one in entries:
        cells.append(
            [
                one["frame"],
                order_of(one),
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
