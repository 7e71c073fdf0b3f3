"""Schedules are data: what a gemm schedule asks of the map, the pairs, the weights and itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from spconv_compiler.schedules.cost import Work, Workload
from spconv_compiler.targets.base import Target


@dataclasses.dataclass(frozen=True)
class Problem:
    """What a schedule is chosen for: one gemm, without its number of rows.

    Attributes:
        taps: kz·ky·kx.
        c_in, c_out: channels.
        dtype: of features and weights.
        between_sets: inputs and outputs are two coordinate sets, not one.
    """

    taps: int
    c_in: int
    c_out: int
    dtype: str
    between_sets: bool = dataclasses.field(default=False, repr=False)


@dataclasses.dataclass(frozen=True)
class Choice:
    """A schedule with its parameters: what `#spconv.schedule` holds."""

    name: str
    parameters: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Chosen:
    """One choice for each stage op of a convolution.

    Map and pairs do not depend on channels, so that layers of different widths share them.
    """

    map: Choice
    pairs: Choice
    weights: Choice
    gemm: Choice


class GemmSchedule:
    """One way to run a gemm.

    Attributes:
        name: as in `#spconv.schedule` and --schedule.
        owns_rows: a workgroup (or thread) finishes whole output rows, so the epilogue can be fused.
        reads_less: it is there to ask less of caches than a schedule that is as fast.
    """

    name: str = ""
    owns_rows: bool = False
    reads_less: bool = False

    def reject(self, problem: Problem, target: Target) -> str | None:
        """Why this schedule cannot serve the problem on the target, or None when it can."""
        raise NotImplementedError

    def work(self, problem: Problem, target: Target, workload: Workload) -> Work | None:
        """What it does to a problem that is not rejected; None where nobody has worked that out."""
        return None

    def choose(self, problem: Problem, target: Target) -> Chosen:
        """The parameters for a problem that is not rejected."""
        raise NotImplementedError
