"""The schedules, and the choice among them: by estimated time where targets and schedules know it, else in order.

Adding one: a file here with the rules that accept or reject a problem, a line in SCHEDULES, and, if it needs
new code, a body in passes/.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from spconv_compiler.errors import InputError, Rejection, ScheduleError
from spconv_compiler.schedules.base import Choice, Chosen, GemmSchedule, Problem
from spconv_compiler.schedules.between_sets import choose_outputs, choose_pool
from spconv_compiler.schedules.chunk_stationary import ChunkStationary
from spconv_compiler.schedules.chunk_tiles import ChunkTiles
from spconv_compiler.schedules.cost import Estimate, Workload, estimate
from spconv_compiler.schedules.output_stationary import OutputStationary, SplitTaps
from spconv_compiler.schedules.output_stationary_tall import OutputStationaryTall
from spconv_compiler.schedules.pair_major import PairMajor
from spconv_compiler.schedules.pairs_m16 import PairsM16
from spconv_compiler.schedules.small_channels import SmallChannels
from spconv_compiler.schedules.wgmma_rows import WgmmaRowsSchedule
from spconv_compiler.targets.base import GpuTarget, Target

__all__ = [
    "AS_FAST",
    "DEFAULT",
    "SCHEDULES",
    "Choice",
    "Chosen",
    "GemmSchedule",
    "Problem",
    "Workload",
    "check_schedule_name",
    "choose",
    "choose_outputs",
    "choose_pool",
    "estimates",
    "explain",
    "rejections",
    "schedule_named",
]

SCHEDULES: tuple[GemmSchedule, ...] = (
    PairsM16(),
    SmallChannels(),
    OutputStationary(),
    OutputStationaryTall(),
    SplitTaps(),
    PairMajor(),
    WgmmaRowsSchedule(),
    ChunkTiles(),
    ChunkStationary(),
)

# What a convolution is compiled for where nobody says more: the choice must not depend on the coordinates.
DEFAULT = Workload()
# How much faster a schedule must be that adds into rows: its sums depend on the order of workgroups, and it runs over
# another list of pairs than the others, which layers of one coordinate set would share.
OTHER_PAIRS = 1.6
# How much slower a schedule may be that is there to read less.
AS_FAST = 1.03


def check_schedule_name(name: str) -> None:
    """Raises InputError unless a schedule, or "auto", has this name."""
    known = ("auto", *(schedule.name for schedule in SCHEDULES))
    if name not in known:
        raise InputError(f"unknown schedule {name!r}; accepted: {', '.join(known)}")


def schedule_named(name: str) -> GemmSchedule:
    """The schedule called `name`.

    Raises:
        ScheduleError: there is none.
    """
    for schedule in SCHEDULES:
        if schedule.name == name:
            return schedule
    known = ", ".join(schedule.name for schedule in SCHEDULES)
    raise ScheduleError(f"unknown schedule {name!r}; accepted: auto, {known}")


def rejections(problem: Problem, target: Target) -> dict[str, str | None]:
    """For every schedule the reason it is rejected, or None where it is legal."""
    return {schedule.name: schedule.reject(problem, target) for schedule in SCHEDULES}


def estimates(problem: Problem, target: Target, workload: Workload = DEFAULT) -> dict[str, Estimate]:
    """Modelled times of the legal schedules that have one."""
    if not isinstance(target, GpuTarget) or target.rates is None:
        return {}
    found = {}
    for schedule in SCHEDULES:
        work = schedule.work(problem, target, workload) if schedule.reject(problem, target) is None else None
        if work is not None:
            found[schedule.name] = estimate(work, target, target.rates)
    return found


def choose(
    problem: Problem, target: Target, wanted: str = "auto", workload: Workload = DEFAULT
) -> tuple[GemmSchedule, Chosen]:
    """The wanted schedule; or the fastest by estimate, and the first legal one where nothing has an estimate.

    One that `reads_less` is as good as the fastest where its estimate is that one's times AS_FAST or less, and it asks
    less of second-level caches.

    Raises:
        ScheduleError: none is legal; every one is listed with its reason.
    """
    candidates = SCHEDULES if wanted == "auto" else (schedule_named(wanted),)
    rejected, legal = [], []
    for schedule in candidates:
        reason = schedule.reject(problem, target)
        if reason is None:
            legal.append(schedule)
        else:
            rejected.append(Rejection(schedule.name, reason))
    if not legal:
        raise ScheduleError(f"no schedule serves {problem} on {target.name}", tuple(rejected))
    times = estimates(problem, target, workload) if len(legal) > 1 else {}
    best = min(legal, key=lambda schedule: _price(schedule, times))
    near = [one for one in legal if one.reads_less and one.name in times]
    near = [one for one in near if _price(one, times) <= AS_FAST * _price(best, times)]
    best = min([best, *near], key=lambda one: times[one.name].terms["L2"]) if near else best
    return best, best.choose(problem, target)


def _price(schedule: GemmSchedule, times: Mapping[str, Estimate]) -> float:
    if schedule.name not in times:
        return math.inf
    return times[schedule.name].us * (1.0 if schedule.owns_rows else OTHER_PAIRS)


def explain(problem: Problem, target: Target, workload: Workload = DEFAULT) -> list[str]:
    """A line for each schedule: its estimate, or why it is rejected; then the choice and what it assumes."""
    times, lines = estimates(problem, target, workload), []
    for name, reason in rejections(problem, target).items():
        lines.append(f"{name}: {reason or (str(times[name]) if name in times else 'legal')}")
    if not all(rejections(problem, target).values()):
        lines.append(f"auto: {choose(problem, target, workload=workload)[0].name}")
    if times:
        rows, pairs = workload.rows, workload.pairs(problem.taps)
        lines.append(
            f"modelled for {problem.c_in} to {problem.c_out} channels of {problem.dtype}, "
            f'size "{workload.size}" ({rows:,} rows), density "{workload.density}" ({pairs / rows:.1f} pairs a row); '
            "for ranking, never measured"
        )
    return lines
