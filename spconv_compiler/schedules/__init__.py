"""The schedules, in order of preference, and the choice among them.

Adding one: a file here with the rules that accept or reject a problem, a line in SCHEDULES, and, if it needs
new code, a body in passes/.
"""

from __future__ import annotations

from spconv_compiler.errors import InputError, Rejection, ScheduleError
from spconv_compiler.schedules.base import Choice, Chosen, GemmSchedule, Problem
from spconv_compiler.schedules.between_sets import choose_outputs, choose_pool
from spconv_compiler.schedules.chunk_stationary import ChunkStationary
from spconv_compiler.schedules.pairs_m16 import PairsM16
from spconv_compiler.targets.base import Target

__all__ = [
    "SCHEDULES",
    "Choice",
    "Chosen",
    "GemmSchedule",
    "Problem",
    "check_schedule_name",
    "choose",
    "choose_outputs",
    "choose_pool",
    "rejections",
    "schedule_named",
]

SCHEDULES: tuple[GemmSchedule, ...] = (PairsM16(), ChunkStationary())


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


def choose(problem: Problem, target: Target, wanted: str = "auto") -> tuple[GemmSchedule, Chosen]:
    """The wanted schedule, or the first legal one.

    Raises:
        ScheduleError: none is legal; every one is listed with its reason.
    """
    candidates = SCHEDULES if wanted == "auto" else (schedule_named(wanted),)
    rejected = []
    for schedule in candidates:
        reason = schedule.reject(problem, target)
        if reason is None:
            return schedule, schedule.choose(problem, target)
        rejected.append(Rejection(schedule.name, reason))
    raise ScheduleError(f"no schedule serves {problem} on {target.name}", tuple(rejected))
