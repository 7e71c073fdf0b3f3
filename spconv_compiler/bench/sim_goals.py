"""The measurement behind `spconv-bench sim --schedules --goals`: one schedule beside pairs_m16, and the goals.

The schedule is the chosen one, if none is named.

For every frame and width both run in one process on the simulator. Frames are the real ones, and voxels as many and as
dense as those that FlyDSL pull request 942 states times for (sim/validate.py), each with its own width. Everything is
counted, but for times, which are modelled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spconv_compiler.bench import frames, sim_schedules
from spconv_compiler.bench.frames import Frame
from spconv_compiler.errors import InputError

REFERENCE = "pairs_m16"
WIDTHS = (32, 64, 128, 256, 512)
_PUBLISHED = "pr942"


@dataclasses.dataclass(frozen=True)
class Goal:
    """A figure that should be at least, or at most, `bound`.

    Attributes:
        title: of its column. least: whether it is a lower bound. form: of the printed number.
        widths: from how many channels on; frames: where it is asked for: "all", or "real" or "published" alone.
        own: other bounds, of the schedules named.
    """

    title: str
    bound: float
    least: bool
    form: str
    widths: int = 1
    frames: str = "all"
    own: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def asked(self, published: bool, channels: int) -> bool:
        return channels >= self.widths and self.frames in ("all", "published" if published else "real")

    def kept(self, value: float, schedule: str = "") -> bool:
        return self.margin(value, schedule) >= 0

    def margin(self, value: float, schedule: str = "") -> float:
        """By how much a figure is better than its bound; negative: worse."""
        bound = self.own.get(schedule, self.bound)
        return value - bound if self.least else bound - value

    def __str__(self) -> str:
        where = {"all": "", "real": " on real frames", "published": " at the pull request's shapes"}[self.frames]
        wide = f" from C = {self.widths} on" if self.widths > 1 else ""
        own = "".join(f", {format(bound, self.form)} with {name}" for name, bound in self.own.items())
        return f"{self.title} {'≥' if self.least else '≤'} {format(self.bound, self.form)}{own}{wide}{where}"


GOALS: dict[str, Goal] = {
    "times_faster": Goal("times faster", 3.0, True, ".2f", frames="published"),
    "fewer_weights": Goal("weights from L2, times fewer", 6.0, True, ".1f", widths=256),
    "fewer_requests": Goal("requests to L2, times fewer", 3.0, True, ".2f", widths=128),
    "gather_coalescing": Goal("coalescing", 0.95, True, ".0%", widths=64),
    "executed_over_useful": Goal("executed/useful", 1.6, False, ".2f", own={"pair_major": 1.25}),
    "matrix_busy": Goal("MFMA busy", 0.35, True, ".0%", widths=256),
    "lds_conflicts": Goal("LDS cycles/phases", 1.1, False, ".2f"),
    "waves_per_simd": Goal("waves/SIMD", 2, True, ".0f"),
    "spills": Goal("spills", 0, False, ".0f"),
    "same_bits": Goal("same bits in a shuffled order", 1, True, ".0f", own={"pair_major": 0, REFERENCE: 0}),
}


def cases(data: Path, frame: str | None, widths: Sequence[int]) -> list[tuple[Frame, int]]:
    """Frames with widths: all of them, or those of one frame.

    Args:
        frame: a name of frames.py; "pr942", or with voxels and density behind it: "pr942-32371", "pr942-32371-4.2".
        widths: C of the real frames; each shape of the pull request has its own.

    Raises:
        InputError: an unknown frame.
    """
    from spconv_compiler.sim.validate import DENSITIES, SHAPES

    found = []
    if frame is None or not frame.startswith(_PUBLISHED):
        names = (frame,) if frame else frames.map_names(data)
        found += [(frames.load_frame(name, data), width) for name in names for width in widths]
    shapes = {_name(one.rows, density): (one, density) for one in SHAPES for density in DENSITIES}
    wanted = [name for name in shapes if f"{name}-".startswith(f"{frame or _PUBLISHED}-")]
    found += [(published(one.rows, density, data), one.channels) for one, density in map(shapes.__getitem__, wanted)]
    if not found:
        raise InputError(f"unknown frame {frame!r}; accepted of that pull request: {_PUBLISHED}, {', '.join(shapes)}")
    return found


def _name(rows: int, density: float) -> str:
    return f"{_PUBLISHED}-{rows}-{density}"


def published(rows: int, density: float, data: Path) -> Frame:
    """So many voxels with about so many pairs each."""
    from spconv_compiler.sim.validate import thinned

    coords, table = thinned(rows, density, data)
    shape = tuple((coords[:, 1:].max(axis=0) + 1).tolist())
    return Frame(_name(rows, density), coords, shape, table)


def measure(
    found: Sequence[tuple[Frame, int]],
    dtype: str,
    *,
    schedule: str = "auto",
    threads: int,
    every: int,
    progress: Callable[[str], None] = lambda name: None,
) -> Iterator[dict[str, Any]]:
    """The figures of each case, as plain JSON values, as soon as they are there; schedule: "auto" is the chosen one.

    Raises:
        SpconvError: the schedule does not serve a case, or a kernel does what it must not do.
    """
    for frame, channels in found:
        progress(f"{frame.name}, C = {channels}")
        name = chosen(channels, dtype, wanted=schedule)
        before, after = sim_schedules.measure(frame, channels, dtype, (REFERENCE, name), threads=threads, every=every)
        row = {
            "frame": frame.name,
            "N": len(frame.coords),
            "pairs": frame.pairs,
            "channels": channels,
            "published": frame.name.startswith(_PUBLISHED),
            "schedule": name,
            "right": before["right"] and after["right"],
            "times_faster": before["modelled_us"][1] / after["modelled_us"][1],
            "fewer_weights": _fewer(before, after, "weights_from_l2_bytes"),
            "fewer_requests": _fewer(before, after, "l2_requests"),
            **{key: after[key] for key in GOALS if key in after},
            "before": before,
            "after": after,
        }
        yield {**row, "reached": reached(row)}


def _fewer(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> float | None:
    """How many times less there is after than before; None where there is nothing."""
    found: float = after[name]
    return before[name] / found if found else None


def chosen(channels: int, dtype: str, taps: int = 27, wanted: str = "auto") -> str:
    """The schedule that a C → C convolution gets on gfx950."""
    from spconv_compiler.schedules import Problem, choose
    from spconv_compiler.targets import get_target

    return choose(Problem(taps, channels, channels, dtype), get_target("gfx950"), wanted)[0].name


def reached(row: Mapping[str, Any]) -> dict[str, bool]:
    """Whether a case reaches each goal that is set for it; a figure that does not exist reaches its goal."""
    asked = [key for key in GOALS if _asked(key, row)]
    return {key: row[key] is None or GOALS[key].kept(row[key], row["schedule"]) for key in asked}


def _asked(key: str, row: Mapping[str, Any]) -> bool:
    """Whether a goal is set for a case; files that were written before there was this figure do not have it."""
    return key in row and GOALS[key].asked(row["published"], row["channels"])


def missed(row: Mapping[str, Any]) -> list[str]:
    """The goals that a case misses."""
    return [key for key, kept in reached(row).items() if not kept]


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells: "!" behind a figure that misses its goal, brackets where no goal is set for it."""
    columns = ["frame", "voxels", "pairs/voxel", "C", "schedule", "result", "modelled us"]
    columns += [*(goal.title for goal in GOALS.values()), "goals reached"]
    cells = []
    for row in rows:
        line = [row["frame"], f"{row['N']:,}", f"{row['pairs'] / row['N']:.1f}", str(row["channels"]), row["schedule"]]
        times = " → ".join(f"{row[which]['modelled_us'][1]:.1f}" for which in ("before", "after"))
        line += ["right" if row["right"] else "WRONG", times]
        wrong = missed(row)
        for key, goal in GOALS.items():
            text = "-" if row.get(key) is None else format(row[key], goal.form)
            line.append(f"{text}!" if key in wrong else text if _asked(key, row) else f"({text})")
        goals = reached(row).values()
        cells.append([*line, f"{sum(goals)} of {len(goals)}"])
    return columns, cells


def notes(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Each goal with how many cases keep it, and the worst of them; then how many results are right."""
    for key, goal in GOALS.items():
        asked = [row for row in rows if _asked(key, row)]
        kept = sum(key not in missed(row) for row in asked)
        yield f"{goal}: {kept} of {len(asked)}{_worst(key, asked)}"
    yield f"right, with every check of the simulator on: {sum(row['right'] for row in rows)} of {len(rows)}"


def _worst(key: str, asked: Sequence[Mapping[str, Any]]) -> str:
    """The case whose figure is the worst against its bound; several: the first. Nothing where no case has a figure."""
    goal = GOALS[key]
    found = [row for row in asked if row[key] is not None]
    if not found:
        return ""
    row = min(found, key=lambda one: goal.margin(one[key], one["schedule"]))
    return f"; worst {format(row[key], goal.form)}: {row['frame']}, C = {row['channels']}, {row['schedule']}"
