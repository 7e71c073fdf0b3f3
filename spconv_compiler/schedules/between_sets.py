"""What ops between two coordinate sets ask for where no gemm decides: the set of outputs, and pools."""

from __future__ import annotations

from spconv_compiler.errors import Rejection, ScheduleError
from spconv_compiler.schedules.base import Choice, Chosen
from spconv_compiler.schedules.chunk_stationary import CHUNK_ROWS
from spconv_compiler.targets.base import CpuTarget, Target

OUTPUTS = "sorted_keys"
POOL = "chunk_pool"


def choose_outputs(target: Target) -> Choice:
    """The schedule of a spconv.output_coords.

    Raises:
        ScheduleError: the target has none.
    """
    _check_processor("the coordinates of outputs", OUTPUTS, target)
    return Choice(OUTPUTS)


def choose_pool(target: Target) -> Chosen:
    """The schedules of a pool, and of the map and the pairs that it runs over; it has no weights.

    Raises:
        ScheduleError: the target has none.
    """
    _check_processor("a pool", POOL, target)
    return Chosen(
        map=Choice("sorted_keys"),
        pairs=Choice("chunk_tap_row", {"chunk_rows": CHUNK_ROWS}),
        weights=Choice("none"),
        gemm=Choice(POOL, {"chunk_rows": CHUNK_ROWS}),
    )


def _check_processor(what: str, schedule: str, target: Target) -> None:
    if not isinstance(target, CpuTarget):
        reason = f"it is for processor cores, and {target.name} is a GPU"
        raise ScheduleError(f"no schedule serves {what} on {target.name}", (Rejection(schedule, reason),))
