"""A network's work on a GPU (queued.py), captured into graphs, and run on one frame after another.

Maps, convolutions and pools of the whole plan are one graph, which is launched on other coordinates and features in the
same place; where the network makes levels, they are a graph of their own in front of it, behind which their numbers are
known. What torch does, ops on rows that no kernel has taken over, lies between two graphs. A convolution that comes
last is launched behind them, out of the caller's features and into the caller's result: neither is copied.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from spconv_compiler.arrays import Array
from spconv_compiler.errors import LaunchError
from spconv_compiler.map_request import MapRequest
from spconv_compiler.network.intake import Intake
from spconv_compiler.network.places import DTYPES, Counted, Joined, Launches, OnRows, Place, Queue
from spconv_compiler.network.plan import NetworkPlan
from spconv_compiler.network.queued import QueuedNetwork
from spconv_compiler.runtime.calls import TensorCall
from spconv_compiler.runtime.device import Event, Graph
from spconv_compiler.runtime.gpu_plan import PreparedGroup


class CapturedNetwork(QueuedNetwork):
    """See the module. The caller lets one call in at a time, on any stream.

    Args:
        as QueuedNetwork.

    Attributes:
        intake: takes frames in, and says what the host has to know.
        refused: whether a capture has failed. last: the launches behind the graphs, or None.
        done: is reached when the last call's work is done.

    Raises:
        InputError, LaunchError: as QueuedNetwork.
    """

    def __init__(
        self,
        plan: NetworkPlan,
        steps: Any,
        requests: Mapping[int, MapRequest],
        room: Sequence[int],
        call: TensorCall,
        like: torch.Tensor,
        *,
        together: bool = True,
        hand_out: bool = False,
    ) -> None:
        super().__init__(plan, steps, requests, room, call, like, together=together, hand_out=hand_out)
        self.refused = False
        self._graphs: list[Graph | OnRows | Counted] = []
        # The stream of the last call.
        self._stream: int | None = None
        self.done = self.device.event()
        weakref.finalize(self, _settle, self.done).atexit = False
        given = {number: self.levels[number] for number, level in enumerate(plan.levels) if level.argument is not None}
        status = Place(self.status, self.status.data_ptr(), self.status.nbytes)
        self.intake = Intake(self.device, steps.target, given, status, self.counted)
        self.last = None if self.loose is None else self._prepared(self.loose)
        reads = () if self.loose is None else plan.steps[self.loose].reads
        self._direct_slots = {number: name for name, number in reads if number in self._direct}

    @property
    def graphs(self) -> int:
        """Graphs that a call launches; 0 before the capture."""
        return sum(not isinstance(item, (OnRows, Counted)) for item in self._graphs)

    @property
    def only_graph(self) -> Any:
        """The graph, where a call is one graph and perhaps a launch behind it; else None."""
        return self._graphs[0] if len(self._graphs) == 1 and self.graphs == 1 else None

    def place(self, coords: Mapping[int, Array], values: Mapping[int, Array], stream: int) -> None:
        """Queues what brings a frame to where the work reads it: coordinates int32 [N, 4] by level, values by number.

        All that begins at multiples of 16 bytes. A call on another stream waits there for the work of the last one.
        """
        self.order(stream)
        self.intake.place(coords, stream)
        if not self.counted:
            self.intake.mark(stream)
        for number, array in values.items():
            if number not in self._direct:
                self.device.copy(self.values[number].pointer, array.pointer, array.nbytes, stream)

    def run(self, values: Mapping[int, Array], stream: int) -> dict[int, torch.Tensor]:
        """Queues all work: the graphs, or before `capture` every launch.

        Returns:
            By number, the results that went to new tensors, with all rows that there is room for.
        """
        for item in self._graphs or self._captured_work:
            if isinstance(item, OnRows):
                self._run_torch(item, stream)
            elif isinstance(item, Counted):
                self.intake.mark(stream)
            elif isinstance(item, (Launches, Joined)):
                self._launch(item, stream)
            else:
                item.launch(stream)
        return {} if self.loose is None else self._run_loose(self.loose, values, stream)

    def order(self, stream: int) -> None:
        """Lets a call's stream wait for the last call, where that was on another one."""
        if self._stream not in (None, stream):
            self.device.wait_event(stream, self.done)
        self._stream = stream

    def take(self, pointers: Mapping[int, int], rows: int, stream: int) -> None:
        """Brings values of so many rows to where they are read: the last launch reads the caller's, others a copy."""
        for number, pointer in pointers.items():
            slot = self._direct_slots.get(number)
            if slot is None:
                nbytes = rows * self._plan.values[number].row_bytes
                self.device.copy(self.values[number].pointer, pointer, nbytes, stream)
            elif self.last is not None:
                self.last.set(slot, pointer)

    def finish(self, stream: int) -> None:
        """Behind all work of a call on what is kept from call to call."""
        self.done.record(stream)

    @property
    def _captured_work(self) -> list[Launches | Joined | OnRows | Counted]:
        return self.work if self.loose is None else self.work[:-1]

    def _prepared(self, place: int) -> PreparedGroup:
        """The launches of the last step, between the caller's tensors."""
        work = self.work[-1]
        assert isinstance(work, Launches)
        changing = ["out", *(name for name, number in self._plan.steps[place].reads if number in self._direct)]
        return work.plan.prepare(work.group, work.symbols, work.buffers, changing)

    def _run_loose(self, place: int, values: Mapping[int, Array], stream: int) -> dict[int, torch.Tensor]:
        step = self._plan.steps[place]
        assert self.last is not None
        out = self._plan.values[step.out]
        made = self.like.new_empty((self.room[out.level], out.channels), dtype=DTYPES[out.dtype])
        self.last.set("out", made.data_ptr())
        for number, name in self._direct_slots.items():
            self.last.set(name, values[number].pointer)
        self.last.launch(stream)
        return {step.out: made}

    def _launch(self, work: Launches | Joined, stream: int) -> None:
        if isinstance(work, Joined):
            work.queue(self.device, stream)
            return
        work.plan.launch(work.group, work.symbols, work.buffers, Queue(self.device, stream))

    def _run_torch(self, item: OnRows, stream: int) -> None:
        made = item.run()
        self.device.copy(item.out.pointer, made.data_ptr(), item.out.nbytes, stream)

    def capture(self) -> None:
        """Captures all work. It has run once: nothing is loaded in a capture."""
        found: list[Graph | OnRows | Counted] = []
        waiting: list[Launches | Joined] = []

        def queue(stream: int) -> None:
            for work in waiting:
                self._launch(work, stream)

        for work in [*self._captured_work, None]:
            if isinstance(work, (Launches, Joined)):
                waiting.append(work)
                continue
            if waiting:
                found.append(self.device.capture(queue))
                waiting.clear()
            if work is not None:
                found.append(work)
        self._graphs = found


def _settle(done: Event) -> None:
    """Waits for work on memory that is about to be given back, whatever stream it is on."""
    try:
        done.synchronize()
    except LaunchError as error:
        logging.getLogger("spconv_compiler").warning("a captured network is given up: %s", error)
