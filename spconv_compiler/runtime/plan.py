"""Runs a launch plan on the CPU, group by group, so that the driver can keep what a group made.

A group is a set of launches whose result depends on the same inputs: "fine", "coarse", "coords", "decode", "map" and
"pairs" on the coordinates, "weights" on the weight, "output" on everything. What another group reads is kept, and what
the caller names; the rest is scratch and dies with the run.
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence

from spconv_compiler.arrays import ITEM_BYTES
from spconv_compiler.errors import LaunchError
from spconv_compiler.plan import Launch, Plan, compiled
from spconv_compiler.runtime.cpu import ALIGNMENT, Block, CpuBuffer, CpuModule, scratch

STATUS = "status"
CAPACITY = "capacity"


@dataclasses.dataclass(frozen=True)
class _Call:
    """A launch with its function found.

    Attributes:
        names: of all arguments, in order; buffers and symbols never share one (plan.py).
        arguments: takes them out of a table.
        buffers: the names among them that are buffers.
        growable: the one buffer among them that may turn out too small, if any.
    """

    function: ctypes._FuncPointer
    kernel: str
    names: tuple[str, ...]
    arguments: Callable[[Mapping[str, int]], Sequence[int]]
    buffers: tuple[str, ...]
    growable: str | None


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Memory for some launches: a block for what is returned, one for scratch, and one for what may turn out too small.

    Attributes:
        kept, scratch, growing: names of the buffers.
        counts: of the elements of `kept` and `growing`; nbytes: of those in the first two blocks, in whole cache lines.
    """

    kept: tuple[str, ...]
    scratch: tuple[str, ...]
    growing: tuple[str, ...]
    counts: Callable[[Mapping[str, int]], tuple[int, ...]]
    nbytes: Callable[[Mapping[str, int]], tuple[int, ...]]


class CpuPlan:
    """A plan bound to its code object. `run` may be called from several threads."""

    def __init__(self, plan: Plan, module: CpuModule) -> None:
        self.plan = plan
        self._buffers = {buffer.name: buffer for buffer in plan.buffers}
        self._inputs = {name for name, _ in plan.inputs}
        self._calls: dict[str, list[_Call]] = {}
        for launch in plan.launches:
            self._calls.setdefault(launch.group, []).append(self._bind(launch, module))
        self._kept: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._layouts: dict[tuple[tuple[str, ...], ...], _Layout] = {}

    def _bind(self, launch: Launch, module: CpuModule) -> _Call:
        function = module.function(launch.kernel, [argument.kind for argument in launch.arguments])
        buffers = tuple(argument.name for argument in launch.arguments if argument.kind == "buffer")
        growable = [name for name in buffers if name in self._buffers and self._buffers[name].grows]
        names = tuple(argument.name for argument in launch.arguments)
        arguments = operator.itemgetter(*names) if len(names) > 1 else lambda values: [values[name] for name in names]
        return _Call(function, launch.kernel, names, arguments, buffers, growable[0] if growable else None)

    def _read_elsewhere(self, groups: tuple[str, ...]) -> tuple[str, ...]:
        """Buffers that `groups` touch and another group reads, and those that say how it went."""
        names: dict[bool, set[str]] = {True: set(), False: set()}
        for group, calls in self._calls.items():
            names[group in groups].update(name for call in calls for name in call.buffers)
        mine = sorted(names[True] - self._inputs)
        return tuple(name for name in mine if name in names[False] or name.endswith(STATUS))

    def calls(self, group: str) -> list[tuple[int, tuple[str, ...]]]:
        """(address of the function, names of its arguments) of each launch of a group."""
        return [
            (ctypes.cast(call.function, ctypes.c_void_p).value or 0, call.names) for call in self._calls.get(group, ())
        ]

    def prepare(
        self, group: str, symbols: Mapping[str, int], kept: Mapping[str, CpuBuffer], given: Iterable[str]
    ) -> PreparedRun:
        """A run of a group that returns nothing, to be made many times.

        Args:
            symbols: all but `threads`; kept: buffers that earlier groups returned. Both are the same in every run.
            given: names of the other buffers that every run is given the addresses of.
        """
        calls = self._calls.get(group, [])
        known = {*kept, *given}
        missing = tuple([name for call in calls for name in call.buffers if name not in known])
        layout = self._layout(missing, ())
        assert not layout.growing, f"group {group} makes what may turn out too small: {layout.growing}"
        return PreparedRun(calls, layout, {**symbols, **{name: buffer.pointer for name, buffer in kept.items()}}, kept)

    def run(
        self,
        group: str | tuple[str, ...],
        values: Mapping[str, int],
        kept: Mapping[str, CpuBuffer] | None = None,
        also: Iterable[str] = (),
    ) -> dict[str, CpuBuffer]:
        """Runs the launches of a group, or of several groups, in order.

        Args:
            values: all symbols, and the addresses of the plan's inputs that the group uses.
            kept: buffers that earlier groups returned.
            also: names of further buffers to return.

        Returns:
            The buffers that other groups read, those called "…status", and those in `also`.

        Raises:
            LaunchError: out of memory, out of threads, or a size beyond the plan's limits.
        """
        groups = (group,) if isinstance(group, str) else group
        buffers, values = dict(kept or {}), dict(values)
        for name, buffer in buffers.items():
            values[name] = buffer.pointer
        calls = [call for name in groups for call in self._calls.get(name, ())]
        missing = tuple([name for call in calls for name in call.buffers if name not in values])
        kept_names = self._kept.get(groups)
        if kept_names is None:
            kept_names = self._kept.setdefault(groups, self._read_elsewhere(groups))
        returned = (*also, *kept_names)
        scratch = self._allocate((missing, returned), values, buffers)
        for call in calls:
            self._launch(call, values, buffers)
        # Until here the scratch had to live.
        del scratch
        return {name: buffers[name] for name in returned}

    def _allocate(
        self, wanted: tuple[tuple[str, ...], tuple[str, ...]], values: dict[str, int], buffers: dict[str, CpuBuffer]
    ) -> Block | None:
        """Makes buffers, and gives the block of those that are not returned; wanted: all, and the returned ones."""
        layout = self._layouts.get(wanted)
        if layout is None:
            layout = self._layouts.setdefault(wanted, self._layout(*wanted))
        counts = layout.counts(values)
        places = list(itertools.accumulate(layout.nbytes(values), initial=0))
        split = len(layout.kept)
        if layout.kept:
            block = Block(places[split])
            for name, count, place in zip(layout.kept, counts, places, strict=False):
                self._place(name, block.buffer(self._buffers[name].dtype, count, place), values, buffers)
        for name, count in zip(layout.growing, counts[split:], strict=True):
            self._place(name, CpuBuffer(self._buffers[name].dtype, count), values, buffers)
        if not layout.scratch:
            return None
        scratch = Block(places[-1] - places[split])
        start = scratch.pointer - places[split]
        values.update(zip(layout.scratch, [start + place for place in places[split:]], strict=False))
        return scratch

    def _layout(self, missing: tuple[str, ...], returned: tuple[str, ...]) -> _Layout:
        made = [self._buffers[name] for name in dict.fromkeys(missing)]
        growing = tuple(buffer.name for buffer in made if buffer.grows)
        kept = tuple(buffer.name for buffer in made if not buffer.grows and buffer.name in returned)
        scratch = tuple(buffer.name for buffer in made if not buffer.grows and buffer.name not in returned)
        counts = compiled([self._buffers[name].size for name in kept + growing])
        found = (self._buffers[name] for name in kept + scratch)
        lines = [["ceildiv", ["mul", buffer.size, ITEM_BYTES[buffer.dtype]], ALIGNMENT] for buffer in found]
        return _Layout(kept, scratch, growing, counts, compiled([["mul", line, ALIGNMENT] for line in lines]))

    def _launch(self, call: _Call, values: dict[str, int], buffers: dict[str, CpuBuffer]) -> None:
        growable = call.growable
        while True:
            if growable is not None:
                values[CAPACITY] = buffers[growable].count
            needed = call.function(*call.arguments(values))
            if needed == 0:
                return
            if needed < 0 or growable is None or buffers[growable].count >= needed:
                raise _failure(call, needed)
            # The old buffer goes before the new one comes: its contents are not needed.
            dtype = buffers.pop(growable).dtype
            self._place(growable, CpuBuffer(dtype, needed), values, buffers)

    @staticmethod
    def _place(name: str, buffer: CpuBuffer, values: dict[str, int], buffers: dict[str, CpuBuffer]) -> None:
        buffers[name], values[name] = buffer, buffer.pointer


class PreparedRun:
    """See CpuPlan.prepare. May be used by several threads."""

    def __init__(
        self, calls: Sequence[_Call], layout: _Layout, values: Mapping[str, int], kept: Mapping[str, CpuBuffer]
    ) -> None:
        self._calls = [(call, call.function, call.arguments) for call in calls]
        self._layout, self._values = layout, dict(values)
        # What the values are addresses of must live.
        self._kept = kept
        self._sized: tuple[int, int, list[tuple[str, int]]] = 0, 0, []

    def values(self) -> dict[str, int]:
        """What every run is given; the caller adds `threads`, and the addresses that prepare was promised."""
        return self._values.copy()

    def run(self, values: dict[str, int]) -> None:
        """Runs the launches.

        Raises:
            LaunchError: out of memory or threads.
        """
        if self._layout.scratch:
            threads, nbytes, places = self._sized
            if threads != values["threads"]:
                threads, nbytes, places = self._sized = self._size(values)
            block = scratch(nbytes)
            for name, place in places:
                values[name] = block.pointer + place
        for call, function, arguments in self._calls:
            result = function(*arguments(values))
            if result:
                raise _failure(call, result)

    def _size(self, values: Mapping[str, int]) -> tuple[int, int, list[tuple[str, int]]]:
        """(threads, bytes of scratch for them, where each buffer lies in it)."""
        *places, nbytes = itertools.accumulate(self._layout.nbytes(values), initial=0)
        return values["threads"], nbytes, list(zip(self._layout.scratch, places, strict=True))


def _failure(call: _Call, result: int) -> LaunchError:
    if result < 0:
        return LaunchError(f"kernel {call.kernel} ran out of memory or threads (code {result})")
    return LaunchError(f"kernel {call.kernel} asks for {result} elements of a buffer that cannot grow")
