"""Runs a network on the CPU: between two maps, all kernels are started by one call into machine code."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from spconv_compiler.arrays import ITEM_BYTES, Array, address_of, as_array
from spconv_compiler.driver import load_conv, thread_count
from spconv_compiler.errors import LaunchError
from spconv_compiler.network.kernels import step_options
from spconv_compiler.network.maps import RunMaps
from spconv_compiler.network.memory import Slots
from spconv_compiler.network.plan import NetworkPlan, Step, Value
from spconv_compiler.network.table import CallTable, Layout, Words
from spconv_compiler.plan import evaluate
from spconv_compiler.runtime.calls_list import CALL_ARGUMENTS, CALL_WORDS
from spconv_compiler.runtime.cpu import CpuBuffer, CpuModule
from spconv_compiler.sparse_driver import load_sparse

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@dataclasses.dataclass(frozen=True, eq=False)
class _Kernel:
    """The kernel of a step.

    Attributes:
        kernel: a ConvKernel or SparseKernel.
        function: address. names: of its arguments, in order.
        fixed: addresses of weights and vectors, by argument; `held` keeps them alive.
        scratch: (argument, size in bytes over the plan's symbols).
    """

    kernel: Any
    function: int
    names: tuple[str, ...]
    fixed: Mapping[str, int]
    held: tuple[Any, ...]
    scratch: tuple[tuple[str, Any, int], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class _Group:
    """Steps that run over the same pairs.

    Attributes:
        segment: the first one with such a step. step: the first of them.
        places: by argument of a kernel, its words in the flattened table of calls.
    """

    segment: int
    step: int
    places: Mapping[str, list[int]]


@dataclasses.dataclass(frozen=True, eq=False)
class _Calls:
    """All calls of a run whose maps are kept, for the next one over them.

    Attributes:
        table: as the run has left it, for an arena of `nbytes` at `pointer` and so many threads.
        layout: of that arena. rows: of the levels.
    """

    table: Words
    pointer: int
    nbytes: int
    threads: int
    layout: Layout
    rows: Words


@dataclasses.dataclass(frozen=True)
class _Segment:
    """Steps [first, end) that run in one call, after which the maps `drops` are done with."""

    first: int
    end: int
    drops: tuple[int, ...]


class CpuNetwork:
    """A plan with its kernels loaded. `run` may be called from several threads."""

    def __init__(self, plan: NetworkPlan, target: str) -> None:
        self._plan, self._target = plan, target
        self._kernels = [_load(step, target) for step in plan.steps]
        self._segments = _segments(plan)
        self._calls = CallTable(plan, [(kernel.names, kernel.fixed) for kernel in self._kernels])
        self._functions = np.array([kernel.function for kernel in self._kernels], np.int64)
        self._out_levels = np.array([plan.values[step.out].level for step in plan.steps], np.int64)
        self._groups = self._group_steps()
        self._results = _results(plan)
        self._outer = [number for kind, number in plan.arguments if kind == "value"]
        self._outer += [number for number, _, _ in self._results]
        self.use_slots(Slots((), {}))
        self._arenas: list[CpuBuffer] = []
        self._scratch: dict[int, int] = {}
        self._lock = threading.Lock()
        if plan.steps:
            module = CpuModule(self._kernels[0].kernel.artifact.object)
            self._run_calls = module.function("run_calls", ("buffer", "symbol"))

    @property
    def any_kernel(self) -> Any:
        """A kernel that finds boxes, or None without steps."""
        return self._kernels[0].kernel if self._kernels else None

    def use_slots(self, slots: Slots) -> None:
        """Which values share memory."""
        self._layout = Layout(self._plan, slots)
        self._outside = {
            number: self._calls.words(self._layout.shared.get(number, (number,))) for number in self._outer
        }

    def _group_steps(self) -> list[_Group]:
        """Steps with one map, direction and kind of pairs, by the segment that first needs them."""
        found: dict[tuple[Any, ...], list[int]] = {}
        for place, (step, item) in enumerate(zip(self._plan.steps, self._kernels, strict=True)):
            if step.map is not None:
                submanifold = self._plan.maps[step.map].submanifold
                kind = item.kernel.map_signature if submanifold else item.kernel.signature("pairs")
                found.setdefault((step.map, step.inverse, kind), []).append(place)
        segment_of = [n for n, segment in enumerate(self._segments) for _ in range(segment.first, segment.end)]
        return [_Group(segment_of[places[0]], places[0], self._calls.places(places)) for places in found.values()]

    def run(self, maps: RunMaps, given: Mapping[int, Array], *, keep: bool) -> dict[int, torch.Tensor]:
        """Runs all steps.

        Args:
            given: the values that are arguments, by number.
            keep: whether maps stay for another run.

        Returns:
            The values that are results and no arguments, by number.

        Raises:
            InputError, LaunchError: see RunMaps.
        """
        if not keep or maps.calls is not None:
            return self._run(given, maps, maps.calls, keep)
        # Threads that share coordinates which no run has met wait for the one that builds their maps.
        with maps.first_run:
            return self._run(given, maps, maps.calls, keep)

    def _run(
        self, given: Mapping[int, Array], maps: RunMaps, calls: _Calls | None, keep: bool
    ) -> dict[int, torch.Tensor]:
        """As run; calls: those of maps, once and for all of this run."""
        threads, known = thread_count(), calls
        rows = np.array(maps.counts, np.int64) if known is None else known.rows
        if known is not None and known.threads == threads and known.layout is self._layout:
            nbytes = known.nbytes
        else:
            nbytes, known = self._layout(rows)[1] + self._scratch_bytes(threads), None
        results = {
            number: torch.empty((maps.counts[value.level], value.channels), dtype=dtype)
            for number, value, dtype in self._results
        }
        arena = self._take(nbytes)
        try:
            again = known is not None and known.pointer == arena.pointer
            table = known.table.copy() if known is not None and again else self._filled(calls, rows, arena, threads)
            self._place(table, given, results)
            if calls is None:
                self._run_segments(table, maps, rows, keep)
            else:
                self._call(table, 0, len(table))
        finally:
            self._give_back(arena)
        if keep and not again:
            maps.calls = _Calls(table, arena.pointer, nbytes, threads, self._layout, rows)
        return results

    def _filled(self, calls: _Calls | None, rows: Words, arena: CpuBuffer, threads: int) -> Words:
        """All calls but for the addresses of arguments and results, and of pairs where there are no calls yet."""
        table: Words = (self._calls.base if calls is None else calls.table).copy()
        offsets, total = self._layout(rows)
        self._calls.fill(table, offsets + arena.pointer, rows, arena.pointer + total, threads)
        # A step without rows is no call.
        table[:, 0] = np.where(rows[self._out_levels] > 0, self._functions, 0)
        return table

    def _place(self, table: Words, given: Mapping[int, Array], results: Mapping[int, torch.Tensor]) -> None:
        """Writes the addresses of arguments and results."""
        flat = table.reshape(-1)
        for number, words in self._outside.items():
            address = given[number].pointer if number in given else results[number].data_ptr()
            for word in words:
                flat[word] = address

    def _run_segments(self, table: Words, maps: RunMaps, rows: Words, keep: bool) -> None:
        for number, segment in enumerate(self._segments):
            for group in self._groups:
                if group.segment == number and rows[self._out_levels[group.step]] > 0:
                    self._fill_pairs(table, group, maps)
            self._call(table, segment.first, segment.end)
            if not keep:
                for map_ in segment.drops:
                    maps.drop(map_)

    def _fill_pairs(self, table: Words, group: _Group, maps: RunMaps) -> None:
        step = self._plan.steps[group.step]
        assert step.map is not None
        pairs, symbols = maps.pairs(step.map, step.inverse, self._kernels[group.step].kernel, _more(step))
        flat = table.reshape(-1)
        for name, words in group.places.items():
            buffer = pairs.get(name)
            value = symbols.get(name) if buffer is None else buffer.pointer
            if value is not None:
                for word in words:
                    flat[word] = value

    def _call(self, table: Words, first: int, end: int) -> None:
        if first == end:
            return
        done = first + self._run_calls(address_of(table) + first * table.itemsize * CALL_WORDS, end - first)
        if done < end:
            name, code = self._plan.steps[done].name, table[done, -1]
            raise LaunchError(f"the kernel of {name} ran out of memory or threads (code {code})")

    def _scratch_bytes(self, threads: int) -> int:
        """Bytes that the hungriest kernel needs beside its operands."""
        if threads not in self._scratch:
            needs = (
                sum(evaluate(size, {"threads": threads}) * item for _, size, item in kernel.scratch)
                for kernel in self._kernels
            )
            self._scratch[threads] = max(needs, default=0)
        return self._scratch[threads]

    def _take(self, nbytes: int) -> CpuBuffer:
        """An arena of at least so many bytes; a new one is at least twice as large as the largest so far."""
        with self._lock:
            if self._arenas and self._arenas[-1].nbytes >= nbytes:
                return self._arenas.pop()
            held = max((arena.nbytes for arena in self._arenas), default=0)
            fitting = next((arena for arena in self._arenas if arena.nbytes >= nbytes), None)
            if fitting is not None:
                self._arenas.remove(fitting)
                return fitting
            self._arenas.clear()
        return CpuBuffer("i64", -(-max(nbytes, 2 * held if held else 0) // 8))

    def _give_back(self, arena: CpuBuffer) -> None:
        with self._lock:
            self._arenas.append(arena)

    def feature_bytes(self, rows: Sequence[int]) -> int:
        """Bytes of the slots, and of results, for the rows of every level."""
        results = sum(rows[value.level] * value.row_bytes for _, value, _ in self._results)
        return self._layout(np.array(rows, np.int64))[1] + results

    @property
    def parameter_bytes(self) -> int:
        """Bytes of packed weights and vectors."""
        held = (item for kernel in self._kernels for item in kernel.held)
        return sum(sum(b.nbytes for b in item.values()) if isinstance(item, dict) else item.nbytes for item in held)

    @property
    def arena_bytes(self) -> int:
        """Bytes of all arenas that are held."""
        with self._lock:
            return sum(arena.nbytes for arena in self._arenas)


def _results(plan: NetworkPlan) -> list[tuple[int, Value, torch.dtype]]:
    """The results that steps make."""
    wanted = {number for kind, number in plan.results if kind == "value"}
    made = [(step.out, plan.values[step.out]) for step in plan.steps if step.out in wanted]
    return [(number, value, _DTYPES[value.dtype]) for number, value in made]


def _load(step: Step, target: str) -> _Kernel:
    options = step_options(step, target)
    kernel: Any = load_conv(options) if step.operation == "subm_conv" else load_sparse(options)  # type: ignore[arg-type]
    fixed: dict[str, int] = {}
    held: list[Any] = []
    for name, tensor in step.numbers:
        array = as_array(tensor, name)
        if name == "weight":
            packed = kernel.pack(array)
            held.append(packed)
            fixed.update((key, buffer.pointer) for key, buffer in packed.items())
        else:
            held.append(array)
            fixed[name] = array.pointer
    ((function, names),) = kernel.calls("output")
    if len(names) > CALL_ARGUMENTS:
        raise LaunchError(f"the kernel of {step.name} takes {len(names)} arguments; accepted: {CALL_ARGUMENTS}")
    mine = {buffer.name: buffer for buffer in kernel.artifact.plan.buffers if buffer.name.endswith("scratch")}
    scratch = tuple((name, mine[name].size, ITEM_BYTES[mine[name].dtype]) for name in names if name in mine)
    return _Kernel(kernel, function, names, fixed, tuple(held), scratch)


def _more(step: Step) -> dict[str, Any]:
    """The fields of SparseOptions of a step, but its geometry."""
    return {name: value for name, value in step.options.items() if name not in ("geometry", "kernel_size", "dilation")}


def _segments(plan: NetworkPlan) -> tuple[_Segment, ...]:
    """Steps in runs: a run ends before a step whose map no step before it has used."""
    last = {step.map: place for place, step in enumerate(plan.steps) if step.map is not None}
    starts = [
        place
        for place, step in enumerate(plan.steps)
        if place == 0 or (step.map is not None and all(other.map != step.map for other in plan.steps[:place]))
    ]
    found = []
    for first, end in zip(starts, [*starts[1:], len(plan.steps)], strict=False):
        found.append(_Segment(first, end, tuple(map_ for map_, place in last.items() if first <= place < end)))
    return tuple(found)
