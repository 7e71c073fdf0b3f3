"""What a captured network is made of: places in memory, levels with room for rows, and work on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from spconv_compiler.coordinates import Box
from spconv_compiler.errors import LaunchError
from spconv_compiler.network.plan import NetworkPlan, Step
from spconv_compiler.runtime.device import Buffer, TorchDevice
from spconv_compiler.runtime.gpu_plan import GpuPlan
from spconv_compiler.sparse_options import ON_ROWS

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
COORD_BYTES = 16
# Words of a level's count: rows that are there, rows that would be there with room for all.
COUNT_WORDS, KEPT, ALL = 2, 0, 1
_CONVOLUTIONS = ("subm_conv", "conv")


@dataclasses.dataclass(frozen=True)
class Place:
    """Memory of a tensor, or a part of it. owner: keeps it."""

    owner: Any
    pointer: int
    nbytes: int


@dataclasses.dataclass(frozen=True)
class Level:
    """A coordinate set: its rows, their number, a box around all that it may hold, and the rows there is room for."""

    coords: torch.Tensor
    count: Place
    box: Box
    room: int

    @property
    def place(self) -> Place:
        return Place(self.coords, self.coords.data_ptr(), COORD_BYTES * self.room)


@dataclasses.dataclass(frozen=True)
class Launches:
    """The launches of a group on buffers that are all there."""

    plan: GpuPlan
    group: str
    symbols: Mapping[str, int]
    buffers: Mapping[str, Buffer]


@dataclasses.dataclass(frozen=True)
class Joined:
    """Rows of several values side by side: copies of columns.

    Attributes:
        parts: where each value lies, and the bytes of its rows. rows: how many there are.
    """

    parts: tuple[tuple[Place, int], ...]
    out: Place
    rows: int

    def queue(self, device: TorchDevice, stream: int) -> None:
        """Queues the copies."""
        pitch, place = sum(size for _, size in self.parts), self.out.pointer
        for part, size in self.parts:
            device.copy_columns(place, pitch, part.pointer, size, size, self.rows, stream)
            place += size


@dataclasses.dataclass(frozen=True)
class OnRows:
    """An op on rows, done by torch: run(operands) gives what goes to `out`."""

    run: Callable[[], torch.Tensor]
    out: Place


@dataclasses.dataclass(frozen=True)
class Counted:
    """From here on all levels are there, and their numbers known."""


@dataclasses.dataclass(frozen=True)
class Queue:
    """A stream that launches go to; see gpu_plan.Call."""

    device: TorchDevice
    stream: int

    def allocate_all(self, sizes: Mapping[str, int]) -> Mapping[str, Buffer]:
        raise LaunchError(f"{', '.join(sizes)} have no place: everything has one before it is queued")


def in_torch(step: Step) -> bool:
    """Whether torch does a step: an op on rows that is no concatenation."""
    return step.operation in ON_ROWS and step.operation != "concat"


def makes_levels(plan: NetworkPlan) -> bool:
    """Whether there are levels to build together: ranking the cells of a grid costs more than one map does."""
    return any(map_.makes_level for map_ in plan.maps)


def loose_step(plan: NetworkPlan) -> int | None:
    """The last step, if it is a convolution whose sums are a result."""
    if not plan.steps or plan.steps[-1].operation not in _CONVOLUTIONS:
        return None
    return len(plan.steps) - 1 if ("value", plan.steps[-1].out) in plan.results else None


def direct_reads(plan: NetworkPlan, place: int) -> set[int]:
    """The features that a step reads, if they are given and nothing else is made of them.

    Rows that are left over have no neighbours, and are nobody's: a convolution reads no more rows than there are.
    """
    step = plan.steps[place]
    number = dict(step.reads)["features"]
    readers = [value for other in plan.steps for _, value in other.reads if value == number]
    given = ("value", number) in plan.arguments and ("value", number) not in plan.results
    return {number} if given and len(readers) == 1 else set()


def take(free: list[Buffer], nbytes: int) -> Buffer | None:
    """The smallest free piece that is large enough, no longer free."""
    fitting = [item for item in free if item.nbytes >= nbytes]
    if not fitting:
        return None
    best = min(fitting, key=lambda item: item.nbytes)
    free.remove(best)
    return best


def rounded(nbytes: int) -> int:
    return -(-nbytes // 256) * 256

