"""Runs a launch plan on the CPU, group by group, so that the driver can keep what a group made.

A group is a set of launches whose result depends on the same inputs: "fine", "coarse", "coords", "decode", "map" and
"pairs" on the coordinates, "weights" on the weight, "output" on everything. What another group reads is kept, and what
the caller names; the rest is scratch and dies with the run.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Iterable, Mapping

from spconv_compiler.errors import LaunchError
from spconv_compiler.plan import Launch, Plan, evaluate
from spconv_compiler.runtime.cpu import CpuBuffer, CpuModule

_STATUS = "status"
CAPACITY = "capacity"


@dataclasses.dataclass(frozen=True)
class _Call:
    """A launch with its function found.

    Attributes:
        names: of all arguments, in order; buffers and symbols never share one (plan.py).
        buffers: the names among them that are buffers.
        growable: the one buffer among them that may turn out too small, if any.
    """

    function: ctypes._FuncPointer
    kernel: str
    names: tuple[str, ...]
    buffers: tuple[str, ...]
    growable: str | None


class CpuPlan:
    """A plan bound to its code object. `run` may be called from several threads."""

    def __init__(self, plan: Plan, module: CpuModule) -> None:
        self.plan = plan
        self._buffers = {buffer.name: buffer for buffer in plan.buffers}
        self._inputs = {name for name, _ in plan.inputs}
        self._calls: dict[str, list[_Call]] = {}
        for launch in plan.launches:
            self._calls.setdefault(launch.group, []).append(self._bind(launch, module))
        self._kept = {group: self._read_elsewhere(group) for group in self._calls}

    def _bind(self, launch: Launch, module: CpuModule) -> _Call:
        function = module.function(launch.kernel, [argument.kind for argument in launch.arguments])
        buffers = tuple(argument.name for argument in launch.arguments if argument.kind == "buffer")
        growable = [name for name in buffers if name in self._buffers and self._buffers[name].grows]
        names = tuple(argument.name for argument in launch.arguments)
        return _Call(function, launch.kernel, names, buffers, growable[0] if growable else None)

    def _read_elsewhere(self, group: str) -> set[str]:
        """Buffers that `group` touches and another group reads, and those that say how it went."""
        mine = {name for call in self._calls[group] for name in call.buffers}
        others = {
            name for other, calls in self._calls.items() if other != group for call in calls for name in call.buffers
        }
        return {name for name in mine if name in others or name.endswith(_STATUS)} - self._inputs

    def calls(self, group: str) -> list[tuple[int, tuple[str, ...]]]:
        """(address of the function, names of its arguments) of each launch of a group."""
        return [
            (ctypes.cast(call.function, ctypes.c_void_p).value or 0, call.names) for call in self._calls.get(group, ())
        ]

    def run(
        self,
        group: str,
        values: Mapping[str, int],
        kept: Mapping[str, CpuBuffer] | None = None,
        also: Iterable[str] = (),
    ) -> dict[str, CpuBuffer]:
        """Runs a group's launches in order.

        Args:
            values: all symbols, and the addresses of the plan's inputs that the group uses.
            kept: buffers that earlier groups returned.
            also: names of further buffers to return.

        Returns:
            The buffers that other groups read, those called "…status", and those in `also`.

        Raises:
            LaunchError: out of memory, out of threads, or a size beyond the plan's limits.
        """
        buffers, values = dict(kept or {}), dict(values)
        for name, buffer in buffers.items():
            values[name] = buffer.pointer
        for call in self._calls.get(group, ()):
            self._launch(call, values, buffers)
        return {name: buffers[name] for name in self._kept.get(group, set()).union(also)}

    def _launch(self, call: _Call, values: dict[str, int], buffers: dict[str, CpuBuffer]) -> None:
        for name in call.buffers:
            if name not in values:
                wanted = self._buffers[name]
                self._place(name, CpuBuffer(wanted.dtype, evaluate(wanted.size, values)), values, buffers)
        growable = call.growable
        while True:
            if growable is not None:
                values[CAPACITY] = buffers[growable].count
            needed = call.function(*[values[name] for name in call.names])
            if needed == 0:
                return
            if needed < 0:
                raise LaunchError(f"kernel {call.kernel} ran out of memory or threads (code {needed})")
            if growable is None or buffers[growable].count >= needed:
                raise LaunchError(f"kernel {call.kernel} asks for {needed} elements of a buffer that cannot grow")
            # The old buffer goes before the new one comes: its contents are not needed.
            dtype = buffers.pop(growable).dtype
            self._place(growable, CpuBuffer(dtype, needed), values, buffers)

    @staticmethod
    def _place(name: str, buffer: CpuBuffer, values: dict[str, int], buffers: dict[str, CpuBuffer]) -> None:
        buffers[name], values[name] = buffer, buffer.pointer
