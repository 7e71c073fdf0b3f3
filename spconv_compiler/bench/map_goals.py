"""What maps on gfx950 have to reach, and whether the figures of `spconv-bench sim --maps` do."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from spconv_compiler.bench.cpu_goals import Goal
from spconv_compiler.bench.machine import machine, versions
from spconv_compiler.bench.maps import ORDERS, Settings, order_of
from spconv_compiler.schedules.mappers import DENSE_GRID, Z_DELTA

Entry = dict[str, Any]
# Launches from coordinates to pairs.
LAUNCHES = {Z_DELTA: 12, DENSE_GRID: 6}
RATIO, MODELLED_US, HOST_READS = 1.6, 60.0, 0
# The time is asked for at 91 k voxels; frames with fewer have to keep it too.
VOXELS = 92_000


def result(settings: Settings, entries: Sequence[Entry], found: Sequence[Goal]) -> dict[str, Any]:
    """All of a run as plain JSON values."""
    return {
        "format": 1,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(1),
        "versions": versions(),
        "settings": {**asdict(settings), "data": settings.data.name},
        "entries": list(entries),
        "goals": [asdict(goal) for goal in found],
    }


def goals(entries: Sequence[Entry]) -> list[Goal]:
    """Every goal, with the worst of what `maps.measure` found."""
    chosen = [one for one in entries if one["chosen"]]
    small = [one for one in chosen if one["N"] <= VOXELS]
    ordered = {order: [one for one in chosen if order_of(one) == order] for order in ORDERS}
    by = {mapper: [one for one in entries if one["mapper"] == mapper] for mapper in LAUNCHES}
    return [
        *(
            _worst(f"launches by {mapper}", f"<= {most}", by[mapper], lambda one: len(one["launches"]), most, "d")
            for mapper, most in LAUNCHES.items()
        ),
        *(
            _worst(f"bytes moved over the least, chosen mapper, {order}", f"<= {RATIO:g}", rows, ratio, RATIO, ".2f")
            for order, rows in ordered.items()
        ),
        _worst(
            f"modelled us, chosen mapper, N <= {VOXELS:,}",
            f"<= {MODELLED_US:g}",
            small,
            lambda one: float(one["estimate_us"]),
            MODELLED_US,
            ".1f",
        ),
        _worst("host reads", f"{HOST_READS}", entries, lambda one: int(one["host_reads"]), HOST_READS, "d"),
    ]


def ratio(entry: Entry) -> float:
    """Bytes moved over the least that must move."""
    return float(entry["moved_bytes"] / entry["minimum_bytes"])


def _worst(
    name: str, wanted: str, entries: Sequence[Entry], value: Callable[[Entry], float], most: float, form: str
) -> Goal:
    """The largest value of all entries, and where it was found; a figure counts as it is, not as it is printed."""
    if not entries:
        return Goal(name, wanted, "no frame asks for it", None)
    worst = max(entries, key=value)
    found, over = value(worst), sum(value(one) > most for one in entries)
    text = f"{format(found, form)}: {worst['frame']}, {order_of(worst)}, {worst['mapper']}"
    if over:
        text += f"; {over} of {len(entries)} above"
    return Goal(name, wanted, text, over == 0)
