"""When a network on a GPU is queued as one, and how much room its graphs have.

The first call runs step by step and says how many voxels the levels have. The second finds room for as many and an
eighth more, queues everything in places that stay, and captures it; from then on a call brings its frame into place,
launches the graphs and waits once: for the check of its coordinates, and for the numbers of voxels where levels are
made, not for the convolutions. More voxels than there is room for run step by step; the room of their level is doubled,
and the next call captures anew. Calls that are like earlier ones take a shorter way (quick.py).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from spconv_compiler.arrays import Array
from spconv_compiler.compiler import compile_options
from spconv_compiler.coordinates import check_coords, with_batch
from spconv_compiler.errors import InputError, LaunchError
from spconv_compiler.frame_options import FrameOptions
from spconv_compiler.map_request import MapRequest
from spconv_compiler.network.boundary import TorchPart
from spconv_compiler.network.captured import CapturedNetwork
from spconv_compiler.network.dense_tail import padded_tail
from spconv_compiler.network.intake import aligned
from spconv_compiler.network.places import ALL, COORD_BYTES, COUNT_WORDS, makes_levels
from spconv_compiler.network.plan import NetworkPlan
from spconv_compiler.network.quick import Note, quick_call
from spconv_compiler.network.steps import StepNetwork
from spconv_compiler.runtime.calls import tensor_call
from spconv_compiler.targets import GpuTarget, get_target

_LEAST_ROOM = 16


def _no_quick_call(args: Sequence[Any]) -> None:
    """There is no way for a quick call."""


def _as_it_is(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    return call


class Replay:
    """See the module. `run` may be called from several threads, on several streams: one call runs at a time.

    Args:
        tail: makes the program's results of those of the plan and of the program's inputs.
        keep_maps: whether maps are to stay for the next call.

    Attributes:
        quick: takes a call's arguments, all of them tensors, and gives the only result, or None where `run` has to take
            the call; it raises LaunchError where the device refuses or fails.
        lock: is held while a call is queued.
        reason: why the last call was not queued as one, or None.
        graphs: how many graphs the last call launched; 0 where every launch was queued by itself.
        stream_writes: whether graphs find their frame in words that the stream writes, where it can (captured.py),
            or in words of the host's memory.
        together: whether a network that makes levels builds them and all maps together where it can (level_plan.py).
    """

    def __init__(
        self,
        plan: NetworkPlan,
        steps: StepNetwork,
        requests: Mapping[int, MapRequest],
        tail: TorchPart,
        *,
        keep_maps: bool,
    ) -> None:
        self._plan, self._steps, self._requests, self._tail = plan, steps, requests, tail
        self._padded = padded_tail(tail, plan)
        self._never = why_never(plan, steps, keep_maps)
        if self._never is None:
            for by_words in (False, True):
                compile_options(FrameOptions(steps.target, by_words))
            if makes_levels(plan) and steps.level_plan is not None:
                compile_options(steps.level_plan.options)
        self._room: list[int] | None = None
        self._captured: dict[int, CapturedNetwork] = {}
        # For quick calls too.
        self.lock = threading.Lock()
        self.quick: Callable[[Sequence[Any]], Any] = _no_quick_call
        self._learned: tuple[TorchPart, list[type]] | None = None
        self.reason: str | None = None
        self.graphs = 0
        self._on = self.together = self._stream_writes = True

    @property
    def on(self) -> bool:
        """Whether graphs are wanted; False lets every call run step by step."""
        return self._on

    @on.setter
    def on(self, wanted: bool) -> None:
        with self.lock:
            self._on, self.quick = wanted, _no_quick_call

    @property
    def stream_writes(self) -> bool:
        """See the class."""
        return self._stream_writes

    @stream_writes.setter
    def stream_writes(self, wanted: bool) -> None:
        with self.lock:
            self._stream_writes, self.quick = wanted, _no_quick_call

    @property
    def room(self) -> tuple[int, ...] | None:
        """The rows that there is room for, by level; None before the first call."""
        return None if self._room is None else tuple(self._room)

    def note(self, rows: Sequence[int]) -> None:
        """Finds room for so many rows of the levels."""
        with self.lock:
            before = self._room
            wanted = [room_for(count) for count in rows]
            if before is None:
                self._room = wanted
            elif any(count > old for count, old in zip(rows, before, strict=True)):
                pairs = zip(rows, wanted, before, strict=True)
                self._room = [max(new, 2 * old) if count > old else old for count, new, old in pairs]
                self._captured.clear()
                self.quick = _no_quick_call

    def learn(self, head: TorchPart, args: Sequence[Any]) -> None:
        """After a call with arguments that are all tensors: lets the next ones be quick, where they can be."""
        if self.quick is _no_quick_call:
            self._learned = head, [type(value) for value in args]
            self.make_quick()

    def make_quick(self, note: Note = _as_it_is) -> None:
        """Makes quick calls of what is captured and learned; note: as in quick.py."""
        with self.lock:
            tail = self._tail
            plain = tail.module is None and not tail.constants and tail.picks == (0,) and self._padded is None
            if self._learned is None or not self.on or len(self._captured) != 1 or not plain or not self.graphs:
                return
            (found,) = self._captured.values()
            if found.refused:
                return
            try:
                made = quick_call(self, self._plan, found, *self._learned, note)
            except LaunchError as error:
                found.refused = True
                logging.getLogger("spconv_compiler").warning("calls of a network go the long way: %s", str(error))
                return
            self.quick = _no_quick_call if made is None else made

    def run(
        self, coords: Mapping[int, Any], values: Mapping[int, Array], leaves: Sequence[Any]
    ) -> tuple[list[Any], list[int]] | None:
        """(the program's results, rows of the levels), or None where the network has to run step by step.

        Args:
            coords: those of the arguments, by level. values: those of the arguments, by number, checked.
            leaves: the program's inputs.

        Raises:
            LaunchError: the device refuses or fails.
        """
        points = {level: aligned(with_batch(check_coords(tensor, on_gpu=True))) for level, tensor in coords.items()}
        values = {number: aligned(array) for number, array in values.items()}
        with self.lock:
            self.graphs = 0
            self.reason = self._why_not(points, values)
            return None if self.reason is not None else self._run(points, values, leaves)

    def _why_not(self, points: Mapping[int, Array], values: Mapping[int, Array]) -> str | None:
        if self._never is not None or not self.on:
            return self._never or "graphs are switched off"
        places = {array.device for array in (*points.values(), *values.values())}
        if len(places) != 1 or None in places:
            return "the arguments lie in host memory, or not all on one GPU"
        if self._room is None:
            return "the first call finds out how many voxels the levels have"
        for level, array in points.items():
            if array.shape[0] == 0:
                return f"{self._plan.levels[level].name} has no voxels"
            if array.shape[0] > self._room[level]:
                return self._outgrown(level, array.shape[0])
        if torch.cuda.is_current_stream_capturing():
            return "the caller captures the stream, and a call waits for numbers of voxels"
        return None

    def _outgrown(self, level: int, rows: int) -> str:
        assert self._room is not None
        return f"{self._plan.levels[level].name} has {rows} voxels, and there was room for {self._room[level]}"

    def _run(
        self, points: Mapping[int, Array], values: Mapping[int, Array], leaves: Sequence[Any]
    ) -> tuple[list[Any], list[int]] | None:
        first = next(iter(points.values()))
        kernel = self._steps.any_kernel.on(first.device)
        with tensor_call(kernel.device, share=False) as call:
            try:
                found = self._find(call, first)
            except (InputError, LaunchError) as error:
                self._never = self.reason = str(error)
                return None
            outputs = copies = None
            try:
                copies = self._queue(found, points, values, call.stream)
                if self._padded is not None:
                    outputs = self._padded([*copies, *leaves])
            finally:
                found.finish(call.stream)
            counts = self._numbers(found, points)
            if counts is None:
                return None
            self._capture(found)
            if outputs is None:
                results = [
                    copy.narrow(0, 0, counts[self._level_of(kind, number)])
                    for copy, (kind, number) in zip(copies, self._plan.results, strict=True)
                ]
                outputs = self._tail([*results, *leaves])
        self.graphs = found.graphs
        return outputs, counts

    def _queue(
        self, found: CapturedNetwork, points: Mapping[int, Array], values: Mapping[int, Array], stream: int
    ) -> list[Any]:
        """Queues a call; the plan's results, which are the network's own memory where the tail takes all rows."""
        found.place(points, values, stream)
        made = found.run(values, stream)
        if self._padded is not None:
            return [found.tensor(kind, number) for kind, number in self._plan.results]
        rows = {level: array.shape[0] for level, array in points.items()}
        return [
            made[number] if kind == "value" and number in made else self._copy(found, kind, number, rows, stream)
            for kind, number in self._plan.results
        ]

    def _find(self, call: Any, first: Array) -> CapturedNetwork:
        index = call.device.index
        if index not in self._captured:
            assert self._room is not None
            self._captured[index] = CapturedNetwork(
                self._plan,
                self._steps,
                self._requests,
                tuple(self._room),
                call,
                first.source,
                together=self.together,
                hand_out=self._padded is None,
            )
        return self._captured[index]

    def _level_of(self, kind: str, number: int) -> int:
        return number if kind == "level" else self._plan.values[number].level

    def _copy(self, found: CapturedNetwork, kind: str, number: int, rows: Mapping[int, int], stream: int) -> Any:
        """A copy of a result: of the rows that there are where their number is known, else of all."""
        level, source = self._level_of(kind, number), found.tensor(kind, number)
        count = rows.get(level, found.room[level])
        made = source.new_empty((count, source.shape[1]))
        row_bytes = COORD_BYTES if kind == "level" else self._plan.values[number].row_bytes
        found.device.copy(made.data_ptr(), source.data_ptr(), count * row_bytes, stream)
        return made

    def _numbers(self, found: CapturedNetwork, points: Mapping[int, Array]) -> list[int] | None:
        """Rows of the levels; None where a level has no room, or coordinates are out of range.

        This is the call's only wait: for the levels, not for what is made of them.
        """
        outside, words = found.intake.wait()
        for level, count in zip(points, outside, strict=True):
            if count:
                self.reason = f"coords of {self._plan.levels[level].name} are out of range"
                return None
        counts = words[ALL::COUNT_WORDS] or [0] * len(found.room)
        for level, array in points.items():
            counts[level] = array.shape[0]
        for level, (count, room) in enumerate(zip(counts, found.room, strict=True)):
            if count > room:
                self.reason = self._outgrown(level, count)
                return None
        return counts

    def _capture(self, found: CapturedNetwork) -> None:
        if found.graphs or found.refused:
            return
        try:
            found.capture()
        except LaunchError as error:
            found.refused = True
            logging.getLogger("spconv_compiler").warning("a network is queued without a graph: %s", error)


def room_for(rows: int) -> int:
    """Room for so many rows and up to an eighth more: a multiple of an eighth of the octave."""
    step = max(_LEAST_ROOM, 1 << max(rows - 1, 0).bit_length() >> 4)
    return max(-(-rows // step), 1) * step


def why_never(plan: NetworkPlan, steps: StepNetwork, keep_maps: bool) -> str | None:
    """What keeps every call of a network from being queued as one, or None."""
    target = get_target(steps.target)
    if not isinstance(target, GpuTarget) or target.simulated:
        return f"target {steps.target} has no graphs"
    if keep_maps:
        return "keep_maps keeps the maps of one call for the next, and graphs build them anew"
    if steps.any_kernel is None:
        return "no step has a kernel"
    for level in plan.levels:
        if level.argument is not None and (level.shape is None or level.batches is None):
            return f"{level.name} has no spatial_shape or no batch_size"
        if level.union is not None:
            return f"{level.name} joins the voxels of two sets, which torch does"
    for kind, number in plan.arguments:
        if kind == "value" and plan.levels[plan.values[number].level].argument is None:
            return f"{plan.values[number].name} belongs to voxels that the network makes"
    return None
