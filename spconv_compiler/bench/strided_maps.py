"""The measurement behind `spconv-bench sim --strided`: outputs, map and pairs of a strided op, counted and modelled.

Kernel 3, stride 2, padding 1. Every frame is taken in a box of its own, and in one that is stretched along z until it
has 2^41 cells of outputs, which no grid holds. Each way to make outputs and to find coarse voxels
(schedules/mappers.py) is run as far as the simulator's memory lets it; * is what the driver chooses. Nothing of gfx950
is measured: bytes are those between the modelled L2 caches and memory, times are modelled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from spconv_compiler.arrays import as_array
from spconv_compiler.bench.counted_device import CountedDevice
from spconv_compiler.bench.frames import load_frame
from spconv_compiler.bench.maps import Settings
from spconv_compiler.coordinates import Box
from spconv_compiler.geometry import ConvGeometry
from spconv_compiler.schedules.mappers import COARSE_ASCENDING, COARSE_KEYS, SORTED_CANDIDATES
from spconv_compiler.sim.watched import WatchedLaunch
from spconv_compiler.sparse_driver_gpu import GpuSparseKernel
from spconv_compiler.sparse_options import SparseOptions
from spconv_compiler.targets import GpuTarget, get_target

_GEOMETRY = ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1))
_WIDE_CELLS = 2**41
# What a simulated grid, or marks, may take.
_MOST_BYTES = 2**29
_MB = 1e6


def _kernel(device: CountedDevice, operation: str, **more: Any) -> GpuSparseKernel:
    target = get_target("gfx950-sim")
    assert isinstance(target, GpuTarget)
    options = SparseOptions(operation, _GEOMETRY, target=target.name, **more)
    return GpuSparseKernel(options, target, lambda index: device)


def measure(settings: Settings, progress: Callable[[str], None] = lambda step: None) -> list[dict[str, Any]]:
    """One entry for each frame, box and mapper, as plain JSON values.

    Raises:
        InputError: an unknown frame. SpconvError: a kernel does what it must not do.
    """
    entries = []
    for name in settings.frames:
        progress(name)
        frame = load_frame(name, settings.data)
        for wide in (False, True):
            known: dict[str, Any] = {}
            for entry in _frame(frame.coords, wide, settings, known):
                entries.append({"frame": name, "wide": wide, **entry})
    return entries


def _frame(coords: Any, wide: bool, settings: Settings, known: dict[str, Any]) -> Iterator[dict[str, Any]]:
    device, inputs = CountedDevice(settings.native, settings.sample), as_array(coords, "coords")
    box = Box(tuple(coords.min(axis=0).tolist()), tuple(coords.max(axis=0).tolist()))
    out_box = _GEOMETRY.output_box(box, None)
    assert out_box is not None
    if wide:
        out_box = _stretched(out_box)
    outputs: Any = None
    for mapper in ("auto", SORTED_CANDIDATES):
        any_kernel = _kernel(device, "outputs")
        symbols, width = any_kernel.output_numbers(box, out_box)
        if mapper == "auto" and symbols["cells"] // 8 > _MOST_BYTES:
            continue
        kernel = _kernel(device, "outputs", key_width=width, mapper=mapper)
        made = kernel.outputs(inputs, symbols, None).rows
        right = outputs is None or np.array_equal(outputs, made)
        outputs, chosen = made, any_kernel.outputs_by(symbols, len(coords), width) == mapper
        yield _entry("outputs", mapper, chosen, symbols["cells"], len(coords), device.taken(), right)
    pairs: Any = None
    for mapper in ("auto", COARSE_KEYS, COARSE_ASCENDING):
        any_kernel = _kernel(device, "conv", c_in=1, c_out=1)
        symbols, width = any_kernel.key_numbers(box, out_box)
        if mapper == "auto":
            if 4 * symbols["cells"] > _MOST_BYTES:
                continue
            symbols, width = any_kernel.map_numbers(box, out_box)
        chosen = any_kernel.mapper(symbols, len(coords), len(outputs), ascending=True) == mapper
        symbols |= {"rows": len(coords), "coarse_rows": len(outputs)}
        gemm = {"c_in": 16, "c_out": 16, "dtype": "bf16", "out_dtype": "bf16", "schedule": "pairs_m16"}
        kernel = _kernel(device, "conv", key_width=width, mapper=mapper, **gemm)
        found = kernel.triples(kernel.pairs(kernel.relate(inputs, as_array(outputs, "coords"), symbols), symbols))
        right = pairs is None or all(map(np.array_equal, pairs, found))
        pairs = found
        yield _entry("map and pairs", mapper, chosen, symbols["cells"], len(coords), device.taken(), right)


def _stretched(box: Box) -> Box:
    cells = (box.high[0] + 1) * (box.high[2] - box.low[2] + 1) * (box.high[3] - box.low[3] + 1)
    high = box.low[1] - (-_WIDE_CELLS // cells)
    return Box(box.low, (box.high[0], high, *box.high[2:]))


def _entry(
    what: str, mapper: str, chosen: bool, cells: int, rows: int, launches: list[WatchedLaunch], right: bool
) -> dict[str, Any]:
    found = [launch.to_json() for launch in launches]
    return {
        "what": what,
        "mapper": {"auto": "marked_cells" if what == "outputs" else "coarse_grid"}.get(mapper, mapper),
        "chosen": chosen,
        "N": rows,
        "cells": cells,
        "launches": found,
        "moved_bytes": sum(one["moved_bytes"] for one in found),
        "ok": right,
        **{
            field.name: sum(one["modelled"][field.name] for one in found)
            for field in dataclasses.fields(launches[0].band)
            if field.name.endswith("_us")
        },
    }


def table(entries: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells."""
    columns = ["frame", "makes", "mapper", "N", "cells", "launches", "MB moved", "modelled us", "lower", "pessimistic"]
    cells = []
    for one in entries:
        cells.append(
            [
                one["frame"],
                one["what"],
                one["mapper"] + (" *" if one["chosen"] else ""),
                f"{one['N']:,}",
                f"{one['cells'] / 1e6:,.1f} M",
                str(len(one["launches"])),
                f"{one['moved_bytes'] / _MB:.1f}",
                *(f"{one[name]:.1f}" for name in ("estimate_us", "lower_us", "pessimistic_us")),
                "yes" if one["ok"] else "NO",
            ]
        )
    return [*columns, "same"], cells
