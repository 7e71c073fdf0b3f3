"""Runs a launch plan on the CPU, group by group, so that the driver can keep what a group made.

A group is a set of launches whose result depends on the same inputs: "pairs" on the coordinates, "weights" on
the weight, "output" on everything. What a later group reads is kept; the rest is scratch and dies with the run.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Mapping

from spconv_compiler.errors import LaunchError
from spconv_compiler.plan import Buffer, Launch, Plan, evaluate
from spconv_compiler.runtime.cpu import CpuBuffer, CpuModule

_STATUS = "status"
CAPACITY = "capacity"


@dataclasses.dataclass(frozen=True)
class _Call:
    """A launch with its function found: argument names, and which of them are symbols."""

    function: ctypes._FuncPointer
    kernel: str
    names: tuple[tuple[str, bool], ...]


class CpuPlan:
    """A plan bound to its code object."""

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
        names = tuple((argument.name, argument.kind == "symbol") for argument in launch.arguments)
        return _Call(function, launch.kernel, names)

    def _read_elsewhere(self, group: str) -> set[str]:
        """Buffers that `group` touches and another group reads, and the status."""
        mine = {name for call in self._calls[group] for name, symbol in call.names if not symbol}
        others = {
            name
            for other, calls in self._calls.items()
            if other != group
            for call in calls
            for name, symbol in call.names
            if not symbol
        }
        return (mine & (others | {_STATUS})) - self._inputs

    def run(
        self,
        group: str,
        pointers: Mapping[str, int],
        symbols: Mapping[str, int],
        kept: Mapping[str, CpuBuffer] | None = None,
    ) -> dict[str, CpuBuffer]:
        """Runs a group's launches in order.

        Args:
            pointers: addresses of the plan's inputs that the group uses.
            symbols: values of all symbols.
            kept: buffers that earlier groups returned.

        Returns:
            The buffers that later groups read, and "status" if the group has one.

        Raises:
            LaunchError: out of memory, out of threads, or a size beyond the plan's limits.
        """
        buffers: dict[str, CpuBuffer] = dict(kept or {})
        for call in self._calls.get(group, ()):
            self._launch(call, pointers, symbols, buffers)
        return {name: buffers[name] for name in self._kept.get(group, ())}

    def _launch(
        self, call: _Call, pointers: Mapping[str, int], symbols: Mapping[str, int], buffers: dict[str, CpuBuffer]
    ) -> None:
        growable = self._growable(call)
        while True:
            for name in (name for name, symbol in call.names if not symbol):
                if name not in pointers and name not in buffers:
                    buffers[name] = self._allocate(self._buffers[name], symbols)
            arguments = [
                (buffers[growable].count if name == CAPACITY and growable else symbols[name])
                if symbol
                else (pointers[name] if name in pointers else buffers[name].pointer)
                for name, symbol in call.names
            ]
            needed = call.function(*arguments)
            if needed == 0:
                return
            if needed < 0:
                raise LaunchError(f"kernel {call.kernel} ran out of memory or threads (code {needed})")
            if growable is None or buffers[growable].count >= needed:
                raise LaunchError(f"kernel {call.kernel} asks for {needed} elements of a buffer that cannot grow")
            # The old buffer goes before the new one comes: its contents are not needed.
            dtype = buffers.pop(growable).dtype
            buffers[growable] = CpuBuffer(dtype, needed)

    def _growable(self, call: _Call) -> str | None:
        """The one growable buffer among a call's arguments."""
        names = [name for name, symbol in call.names if not symbol and name in self._buffers]
        return next((name for name in names if self._buffers[name].grows), None)

    @staticmethod
    def _allocate(buffer: Buffer, symbols: Mapping[str, int]) -> CpuBuffer:
        return CpuBuffer(buffer.dtype, evaluate(buffer.size, symbols))
