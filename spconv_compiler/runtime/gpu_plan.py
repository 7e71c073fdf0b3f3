"""Runs a launch plan on a device, group by group, so that the driver can keep what a group made (see plan.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from spconv_compiler.arrays import ITEM_BYTES
from spconv_compiler.plan import Argument, Launch, Plan, evaluate
from spconv_compiler.runtime.device import Buffer, Device

# Kernels compute keys modulo 2^32 when keys have 32 bits: a coordinate's distance from these fits, they need not.
_WRAPS = ("min_z", "min_y", "min_x")


class Call(Protocol):
    """Where one call runs: a device, a stream on it, and memory that lives as long as the work (calls.py)."""

    @property
    def device(self) -> Device: ...

    @property
    def stream(self) -> int | None: ...

    def allocate(self, name: str, nbytes: int, *, writable: bool = True) -> Buffer:
        """Uninitialised memory."""


class GpuPlan:
    """A plan bound to its code object on one device. `run` may be called from several threads.

    Args:
        keep: buffers that are wanted although no later group reads them.
    """

    def __init__(self, plan: Plan, device: Device, code: bytes, keep: Iterable[str] = ()) -> None:
        self.plan, self.device = plan, device
        self._module = device.load(code)
        self._buffers = {buffer.name: buffer for buffer in plan.buffers}
        self._groups: dict[str, list[Launch]] = {}
        for launch in plan.launches:
            self._groups.setdefault(launch.group, []).append(launch)
        used = {group: _buffers_of(launches) for group, launches in self._groups.items()}
        self._used = used
        self._kept = {
            group: [
                name
                for name in names
                if name in self._buffers
                and (name in keep or any(name in theirs for other, theirs in used.items() if other != group))
            ]
            for group, names in used.items()
        }

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
        return {name: buffers[name] for name in self._kept.get(group, ()) if name not in given}

    def allocate(
        self, group: str, symbols: Mapping[str, int], given: Mapping[str, Buffer], call: Call
    ) -> dict[str, Buffer]:
        """The buffers of a group that are not given."""
        made = {}
        for name in self._used.get(group, ()):
            if name not in given:
                wanted = self._buffers[name]
                made[name] = call.allocate(name, evaluate(wanted.size, symbols) * ITEM_BYTES[wanted.dtype])
        return made

    def launch(self, group: str, symbols: Mapping[str, int], buffers: Mapping[str, Buffer], call: Call) -> None:
        """Queues a group's launches on buffers that are all there: what a graph can capture."""
        for launch in self._groups.get(group, ()):
            grid = [evaluate(axis, symbols) for axis in launch.grid]
            if min(grid) > 0:
                arguments = [
                    buffers[item.name] if item.kind == "buffer" else _number(item, symbols) for item in launch.arguments
                ]
                self.device.launch(self._module, launch.kernel, grid, launch.block, arguments, call.stream)


def _buffers_of(launches: Iterable[Launch]) -> list[str]:
    names = [item.name for launch in launches for item in launch.arguments if item.kind == "buffer"]
    return list(dict.fromkeys(names))


def _number(argument: Argument, symbols: Mapping[str, int]) -> int:
    value = symbols[argument.name]
    return value % 2**32 if argument.dtype == "i32" and argument.name in _WRAPS else value
