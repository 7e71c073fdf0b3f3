"""The plan of a network: coordinate sets, maps, values and steps as data, without MLIR and without sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from spconv_compiler.arrays import ITEM_BYTES
from spconv_compiler.geometry import ConvGeometry, Triple
from spconv_compiler.network.recipes import Recipe, evaluate


@dataclasses.dataclass(frozen=True)
class Level:
    """A coordinate set.

    Attributes:
        argument: place among the arguments of the network, or None for one that is made.
        map: the map whose outputs it is, or None.
        union: the two levels whose voxels it has, or None.
        shape, batches: where its coordinates must lie, or None.
    """

    name: str
    argument: int | None
    map: int | None
    shape: Triple | None
    batches: int | None
    union: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True)
class MapPlan:
    """A map that steps run over.

    Attributes:
        reads, writes: levels of inputs and outputs; equal for a submanifold map.
        geometry: which voxels meet; a submanifold one has kernel size and dilation only.
        makes_level: whether `writes` are its outputs.
        extra: output padding.
    """

    reads: int
    writes: int
    geometry: ConvGeometry
    submanifold: bool
    makes_level: bool = False
    extra: Triple = (0, 0, 0)


@dataclasses.dataclass(frozen=True)
class Value:
    """Rows of features: [rows of its level, channels]."""

    level: int
    channels: int
    dtype: str
    name: str

    @property
    def row_bytes(self) -> int:
        return self.channels * ITEM_BYTES[self.dtype]


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One op: one kernel on the CPU.

    Attributes:
        name: the module that it was, operation: a SparseOptions operation or "subm_conv".
        map: the map that it runs over, or None; inverse: from its outputs to its inputs.
        options: what its kernel depends on, but target and key width.
        reads: (argument of the kernel, value), in order; numbers: (argument, tensor) likewise.
        out: the value that it makes.
        recipes: how the numbers are made of a model's parameters, likewise.
    """

    name: str
    operation: str
    map: int | None
    inverse: bool
    options: dict[str, Any]
    reads: tuple[tuple[str, int], ...]
    numbers: tuple[tuple[str, torch.Tensor], ...]
    out: int
    recipes: tuple[tuple[str, Recipe], ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class NetworkPlan:
    """A network.

    Attributes:
        arguments: for each argument ("level", its number) or ("value", its number).
        results: likewise.
    """

    arguments: tuple[tuple[str, int], ...]
    levels: tuple[Level, ...]
    maps: tuple[MapPlan, ...]
    values: tuple[Value, ...]
    steps: tuple[Step, ...]
    results: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        lines = [f"{len(self.levels)} coordinate sets, {len(self.maps)} maps, {len(self.steps)} steps"]
        for n, level in enumerate(self.levels):
            both = "" if level.union is None else f", union of sets {level.union[0]} and {level.union[1]}"
            lines.append(f"  set {n}: {level.name}{both}")
        for n, map_ in enumerate(self.maps):
            kind = "submanifold" if map_.submanifold else f"{map_.reads} → {map_.writes}, stride {map_.geometry.stride}"
            lines.append(f"  map {n}: set {map_.reads}, kernel {map_.geometry.kernel_size}, {kind}")
        lines += [f"  {self._step_text(step)}" for step in self.steps]
        return "\n".join(lines)

    def _step_text(self, step: Step) -> str:
        given = ", ".join(f"{name} v{value}" for name, value in step.reads)
        over = "" if step.map is None else f" over map {step.map}{' backwards' if step.inverse else ''}"
        end = "" if step.options.get("activation", "none") == "none" else f", {step.options['activation']}"
        out = self.values[step.out]
        return f"v{step.out} = {step.operation}({given}){over}{end} → {out.channels} {out.dtype}   # {step.name}"


def without_numbers(plan: NetworkPlan) -> NetworkPlan:
    """The plan without tensors of parameters; recipes say how they are made."""
    return dataclasses.replace(plan, steps=tuple(dataclasses.replace(step, numbers=()) for step in plan.steps))


def with_numbers(
    plan: NetworkPlan, tensors: Mapping[str, torch.Tensor], known: dict[Recipe, torch.Tensor]
) -> NetworkPlan:
    """The plan with the numbers that its recipes make of a model's tensors; arguments and errors as for evaluate."""

    def filled(step: Step) -> Step:
        numbers = tuple((name, evaluate(recipe, tensors, known)) for name, recipe in step.recipes)
        return dataclasses.replace(step, numbers=numbers)

    return dataclasses.replace(plan, steps=tuple(map(filled, plan.steps)))
