"""Runs a launch plan on a device, group by group, so that the driver can keep what a group made (see plan.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from spconv_compiler.arrays import ITEM_BYTES
from spconv_compiler.errors import LaunchError
from spconv_compiler.plan import Argument, Launch, Plan, compiled
from spconv_compiler.plan import Buffer as PlanBuffer
from spconv_compiler.runtime.device import Buffer, Device
from spconv_compiler.runtime.prepared import PreparedLaunch

WHOLE = slice(None)
# Kernels compute keys modulo 2^32 when keys have 32 bits: a coordinate's distance from these fits, they need not.
_WRAPS = ("min_z", "min_y", "min_x", "out_min_z", "out_min_y", "out_min_x")


class Call(Protocol):
    """Where one call runs: a device, a stream on it, and memory that lives as long as the work (calls.py)."""

    @property
    def device(self) -> Device: ...

    @property
    def stream(self) -> int | None: ...

    def allocate_all(self, sizes: Mapping[str, int]) -> Mapping[str, Buffer]:
        """Uninitialised memory, in bytes by name."""


@dataclasses.dataclass(frozen=True)
class _Launch:
    """A launch with its sizes compiled: grid gives workgroups per axis; arguments are buffers' names and numbers."""

    kernel: str
    block: int
    grid: Callable[[Mapping[str, int]], tuple[int, ...]]
    arguments: tuple[tuple[bool, str, bool], ...]


class _Group:
    """The launches of a group, the buffers they use, and how large those are that the plan allocates."""

    def __init__(self, launches: list[Launch], buffers: Mapping[str, PlanBuffer]) -> None:
        self.launches = [
            _Launch(item.kernel, item.block, compiled(item.grid), tuple(map(_argument, item.arguments)))
            for item in launches
        ]
        self.used = _buffers_of(launches)
        self.made = [name for name in self.used if name in buffers]
        self.sizes = compiled(
            [["mul", buffers[name].size, ITEM_BYTES[buffers[name].dtype]] for name in self.made]
        )
        self.kept: list[str] = []
        # Buffers that an earlier group fills: they have to be given.
        self.needed: list[str] = []


class GpuPlan:
    """A plan bound to its code object on one device. `run` may be called from several threads.

    Args:
        keep: buffers that are wanted although no later group reads them.
    """

    def __init__(self, plan: Plan, device: Device, code: bytes, keep: Iterable[str] = ()) -> None:
        self.plan, self.device = plan, device
        self._module = device.load(code)
        buffers = {buffer.name: buffer for buffer in plan.buffers}
        by_group: dict[str, list[Launch]] = {}
        for launch in plan.launches:
            by_group.setdefault(launch.group, []).append(launch)
        self._groups = {name: _Group(launches, buffers) for name, launches in by_group.items()}
        seen: set[str] = set()
        for group in self._groups.values():
            group.needed = [name for name in group.made if name in seen]
            seen.update(group.made)
            others = [other for other in self._groups.values() if other is not group]
            group.kept = [
                name for name in group.made if name in keep or any(name in other.used for other in others)
            ]

    def run(self, group: str, symbols: Mapping[str, int], given: Mapping[str, Buffer], call: Call) -> dict[str, Buffer]:
        """Queues a group's launches in order.

        Args:
            symbols: the plan's numbers.
            given: the plan's inputs that the group uses, and what earlier groups returned.

        Returns:
            The buffers that later groups read, and those to keep.

        Raises:
            LaunchError, SimulatorError: the device refuses or fails; see runtime/device.py.
        """
        buffers = {**given, **self.allocate(group, symbols, given, call)}
        self.launch(group, symbols, buffers, call)
        if group not in self._groups:
            return {}
        return {name: buffers[name] for name in self._groups[group].kept if name not in given}

    def allocate(
        self, group: str, symbols: Mapping[str, int], given: Mapping[str, Buffer], call: Call
    ) -> dict[str, Buffer]:
        """The buffers of a group that are not given; those that are kept, and the others, are made together."""
        kept, scratch = self.sizes(group, symbols, given)
        return {**call.allocate_all(kept), **call.allocate_all(scratch)}

    def sizes(
        self, group: str, symbols: Mapping[str, int], given: Mapping[str, Buffer]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Bytes of the buffers of a group that are not given: of those that later groups read or that are kept, others.

        Raises:
            LaunchError: a buffer is missing that an earlier group fills.
        """
        if group not in self._groups:
            return {}, {}
        found = self._groups[group]
        missing = [name for name in found.needed if name not in given]
        if missing:
            raise LaunchError(f"group {group} reads {', '.join(missing)}, which an earlier group fills and nobody kept")
        sizes = {
            name: size for name, size in zip(found.made, found.sizes(symbols), strict=True) if name not in given
        }
        kept = {name: size for name, size in sizes.items() if name in found.kept}
        return kept, {name: size for name, size in sizes.items() if name not in kept}

    def leading(self, group: str, names: Collection[str]) -> int:
        """How many launches a group begins with that use none of these buffers."""
        launches = self._groups[group].launches if group in self._groups else []
        for place, launch in enumerate(launches):
            if any(name in names for _, name, _ in launch.arguments):
                return place
        return len(launches)

    def launch(
        self,
        group: str,
        symbols: Mapping[str, int],
        buffers: Mapping[str, Buffer],
        call: Call,
        which: slice = WHOLE,
    ) -> None:
        """Queues a group's launches, or some, on buffers that are all there: what a graph can capture."""
        if group not in self._groups:
            return
        for launch in self._groups[group].launches[which]:
            grid = launch.grid(symbols)
            if min(grid) > 0:
                arguments = _arguments_of(launch, symbols, buffers)
                self.device.launch(self._module, launch.kernel, grid, launch.block, arguments, call.stream)

    def prepare(
        self, group: str, symbols: Mapping[str, int], buffers: Mapping[str, Buffer], changing: Iterable[str]
    ) -> PreparedGroup:
        """As `launch`, to be queued later; `changing`: buffers and symbols that are set in every run.

        Sizes of grids are those of `symbols` in every run. The device has to have graphs (device.TorchDevice).
        """
        device: Any = self.device
        launches: list[PreparedLaunch] = []
        slots: dict[str, list[Any]] = {name: [] for name in changing}
        for launch in self._groups[group].launches if group in self._groups else ():
            grid = launch.grid(symbols)
            if min(grid) == 0:
                continue
            arguments = _arguments_of(launch, symbols, buffers)
            made = device.prepare(self._module, launch.kernel, grid, launch.block, arguments)
            launches.append(made)
            for place, (_, name, _) in enumerate(launch.arguments):
                if name in slots:
                    slots[name].append(made.slot(place))
        return PreparedGroup(tuple(launches), {name: tuple(found) for name, found in slots.items()})


@dataclasses.dataclass(frozen=True)
class PreparedGroup:
    """A group's launches, to be queued again and again.

    Attributes:
        launches: in order. slots: by name the places among their arguments that are set in every run.
    """

    launches: tuple[PreparedLaunch, ...]
    slots: Mapping[str, tuple[Any, ...]]

    def set(self, name: str, value: int) -> None:
        """Passes another address or number from now on."""
        for slot in self.slots[name]:
            slot.value = value

    def launch(self, stream: int) -> None:
        """Queues it; raises LaunchError where the driver refuses."""
        for launch in self.launches:
            launch.launch(stream)


def _buffers_of(launches: Iterable[Launch]) -> list[str]:
    names = [item.name for launch in launches for item in launch.arguments if item.kind == "buffer"]
    return list(dict.fromkeys(names))


def _arguments_of(launch: _Launch, symbols: Mapping[str, int], buffers: Mapping[str, Buffer]) -> list[Buffer | int]:
    return [
        buffers[name] if is_buffer else symbols[name] % 2**32 if wraps else symbols[name]
        for is_buffer, name, wraps in launch.arguments
    ]


def _argument(argument: Argument) -> tuple[bool, str, bool]:
    """(whether it is a buffer, its name, whether it is taken modulo 2^32)."""
    return argument.kind == "buffer", argument.name, argument.dtype == "i32" and argument.name in _WRAPS
