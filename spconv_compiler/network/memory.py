"""Which values share memory: by their lives, before any size is known.

Values are put into slots; a slot is as large as the largest value that ever lies in it, and all slots lie in one arena,
which grows by doubling. A value takes a free slot that fits its size best at the sizes of the example; which values
share stays right at any sizes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from spconv_compiler.network.plan import NetworkPlan, Step

ALIGNMENT = 64


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    """Bytes, at the voxels of one run.

    Attributes:
        features: of all values between inputs and results, in the memory that they share.
        eager_features: the same of the model as it is written: every op has a result of its own, which is freed after
            its last use.
        maps: of pairs, the most at one time. eager_maps: of all pairs, which eager layers keep with the coordinates.
        arenas: what is held for the next call. parameters: packed weights and vectors.
    """

    features: int
    eager_features: int
    maps: int
    eager_maps: int
    arenas: int
    parameters: int

    @property
    def ratio(self) -> float:
        """Features and maps as part of what eager calls need."""
        return (self.features + self.maps) / max(self.eager_features + self.eager_maps, 1)

    def __str__(self) -> str:
        parts = [f"{name} {getattr(self, name) / 2**20:.2f} MiB" for name in self.__dataclass_fields__]
        return f"{', '.join(parts)}; {self.ratio:.2f} of eager"


@dataclasses.dataclass(frozen=True)
class Slots:
    """The place of each value.

    Attributes:
        members: the values in each slot. Arguments have none, and neither do results without a slot in `tensors`.
        tensors: slots that lie in the tensor of a result, by slot; all their members have its size.
    """

    members: tuple[tuple[int, ...], ...]
    tensors: Mapping[int, int]


def assign_slots(plan: NetworkPlan, sizes: Sequence[int]) -> Slots:
    """Slots for all values that steps make, but for results that share memory with nothing.

    Args:
        sizes: bytes of every value in the example.
    """
    results = {number for kind, number in plan.results if kind == "value"}
    last = last_uses(plan)
    held: list[list[int]] = []
    free: list[int] = []
    slot_of: dict[int, int] = {}
    tensors: dict[int, int] = {}
    for place, step in enumerate(plan.steps):
        dying = [v for _, v in step.reads if last[v] == place and v in slot_of and v not in results]
        inherited = [value for value in dying if _may_inherit(plan, step, value)]
        if step.out in results:
            fitting = [slot_of[value] for value in inherited if _all_alike(plan, held[slot_of[value]])]
            if fitting and fitting[0] not in tensors:
                tensors[fitting[0]] = step.out
                slot_of[step.out] = fitting[0]
                held[fitting[0]].append(step.out)
        else:
            if inherited:
                slot = slot_of[inherited[0]]
            elif free:
                slot = min(free, key=lambda slot: _waste(sizes, held[slot], sizes[step.out]))
                free.remove(slot)
            else:
                slot = len(held)
                held.append([])
            slot_of[step.out] = slot
            held[slot].append(step.out)
        # What lies in a result's tensor has the size of nothing else.
        free += {slot_of[value] for value in dying} - {slot_of.get(step.out)} - tensors.keys()
        if step.out in slot_of and step.out not in last and step.out not in results:
            free.append(slot_of[step.out])
    return Slots(tuple(map(tuple, held)), tensors)


def _all_alike(plan: NetworkPlan, values: Sequence[int]) -> bool:
    """Whether values have equal sizes whatever the rows are."""
    return len({(plan.values[value].level, plan.values[value].row_bytes) for value in values}) == 1


def last_uses(plan: NetworkPlan) -> dict[int, int]:
    """The last step that reads a value; those that none reads are absent."""
    return {value: place for place, step in enumerate(plan.steps) for _, value in step.reads}


def peak_bytes(plan: NetworkPlan, sizes: Sequence[int]) -> int:
    """The most bytes of values that are alive at once, each in memory of its own, freed after its last use."""
    last, alive, most = last_uses(plan), 0, 0
    results = {number for kind, number in plan.results if kind == "value"}
    made = {step.out for step in plan.steps}
    for place, step in enumerate(plan.steps):
        alive += sizes[step.out]
        most = max(most, alive)
        done = {value for _, value in step.reads if last[value] == place}
        alive -= sum(sizes[value] for value in done if value in made and value not in results)
    return most


def _may_inherit(plan: NetworkPlan, step: Step, value: int) -> bool:
    """Whether a step may write its result over `value`: it reads each element just before it writes it."""
    names = {name for name, read in step.reads if read == value}
    like = plan.values[value], plan.values[step.out]
    same = (like[0].level, like[0].row_bytes) == (like[1].level, like[1].row_bytes)
    if step.operation in ("pointwise", "affine"):
        return same
    return same and names == {"residual"}


def _waste(sizes: Sequence[int], members: list[int], size: int) -> tuple[int, int]:
    """How far a slot is from fitting: what it would have to grow, then what it is too large."""
    now = max((sizes[value] for value in members), default=0)
    return max(size - now, 0), max(now - size, 0)
