"""A network's work on a GPU (queued.py), captured into graphs, and run on one frame after another.

Maps, convolutions and pools of the whole plan are one graph, which is launched on other coordinates and features in the
same place; where the network makes levels, they are a graph of their own in front of it, behind which their numbers are
known. What torch does, ops on rows that no kernel has taken over, lies between two graphs. A convolution that comes
last is launched behind them, out of the caller's features and into the caller's result: neither is copied.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from spconv_compiler.arrays import Array
from spconv_compiler.errors import LaunchError
from spconv_compiler.network.intake import Intake
from spconv_compiler.network.places import DTYPES, Counted, Joined, Launches, OnRows, Place, Queue
from spconv_compiler.network.queued import QueuedNetwork
from spconv_compiler.runtime.device import Graph, HostWords, StreamWords
from spconv_compiler.runtime.gpu_plan import WHOLE, PreparedGroup


class CapturedNetwork(QueuedNetwork):
    """See the module. The caller lets one call in at a time, on any stream.

    Args:
        as QueuedNetwork.

    Attributes:
        intake: takes frames in, and says what the host has to know.
        refused: whether a capture has failed, with or without the kernel that takes the frame in.
        last: the launches behind the graphs, or None.
        last_work: where the last call's work is.
        direct_slots: of values that the last launch reads where the caller has them, what it calls them.

    Raises:
        InputError, LaunchError: as QueuedNetwork.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refused = False
        self._graphs: list[Graph | OnRows | Counted] = []
        self._headed: dict[bool, FrameGraph] = {}
        self.last_work = LastWork(self.device)
        weakref.finalize(self, self.last_work.settle).atexit = False
        plan = self.plan
        given = {number: self.levels[number] for number, level in enumerate(plan.levels) if level.argument is not None}
        status = Place(self.status, self.status.data_ptr(), self.status.nbytes)
        self.intake = Intake(self.device, self.steps.target, given, status, self.counted)
        self.last = None if self.loose is None else self._prepared(self.loose)
        reads = () if self.loose is None else plan.steps[self.loose].reads
        self.direct_slots = {number: name for name, number in reads if number in self._direct}

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
        self.last_work.order(stream)
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

    def slots_of(self, number: int) -> tuple[Any, ...]:
        """Where the last launch takes the address of a value that it reads where the caller has it; none of others."""
        name = self.direct_slots.get(number)
        return () if name is None or self.last is None else self.last.slots[name]

    def copy_value(self, number: int, pointer: int, rows: int, stream: int) -> None:
        """Brings so many rows of a value to where the graph reads them."""
        nbytes = rows * self.plan.values[number].row_bytes
        self.device.copy(self.values[number].pointer, pointer, nbytes, stream)

    def finish(self, stream: int) -> None:
        """Behind all work of a call on what is kept from call to call."""
        self.last_work.done.record(stream)
        self.last_work.pending = False

    @property
    def _captured_work(self) -> list[Launches | Joined | OnRows | Counted]:
        return self.work if self.loose is None else self.work[:-1]

    def _prepared(self, place: int) -> PreparedGroup:
        """The launches of the last step, between the caller's tensors."""
        work = self.work[-1]
        assert isinstance(work, Launches)
        changing = ["out", *(name for name, number in self.plan.steps[place].reads if number in self._direct)]
        return work.plan.prepare(work.group, work.symbols, work.buffers, changing)

    def _run_loose(self, place: int, values: Mapping[int, Array], stream: int) -> dict[int, torch.Tensor]:
        step = self.plan.steps[place]
        assert self.last is not None
        out = self.plan.values[step.out]
        made = self.like.new_empty((self.room[out.level], out.channels), dtype=DTYPES[out.dtype])
        self.last.set("out", made.data_ptr())
        for number, name in self.direct_slots.items():
            self.last.set(name, values[number].pointer)
        self.last.launch(stream)
        return {step.out: made}

    def _needs_no_frame(self, work: Launches | Joined) -> int:
        """How many launches there are, at the begin of a graph's first work, before one that uses coordinates."""
        if isinstance(work, Joined):
            return 0
        (level,) = self.levels.values()
        frame = {level.place.pointer, level.count.pointer}
        return work.plan.leading(work.group, [name for name, place in work.buffers.items() if place.pointer in frame])

    def _launch(self, work: Launches | Joined, stream: int, which: slice = WHOLE) -> None:
        if isinstance(work, Joined):
            work.queue(self.device, stream)
            return
        work.plan.launch(work.group, work.symbols, work.buffers, Queue(self.device, stream), which)

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

    def frame_graph(self, stream_writes: bool) -> FrameGraph:
        """The only graph, with the kernel that takes the frame in; it lives as long as this.

        Args:
            stream_writes: whether it finds the frame in words that the stream writes, where streams can.
        """
        if stream_writes not in self._headed:
            self._headed[stream_writes] = self._graph_with_frame(stream_writes)
        return self._headed[stream_writes]

    def _graph_with_frame(self, stream_writes: bool) -> FrameGraph:
        assert self.only_graph is not None
        first, *others = [work for work in self._captured_work if isinstance(work, (Launches, Joined))]
        written = self.device.stream_words() if stream_writes else None
        words = self.device.host_words(4) if written is None else written
        head = self.intake.by_words(words)
        ahead = self._needs_no_frame(first)

        def queue(stream: int) -> None:
            if ahead:
                self._launch(first, stream, slice(ahead))
            head.launch(stream)
            self._launch(first, stream, slice(ahead, None))
            for work in others:
                self._launch(work, stream)

        return FrameGraph(self.device.capture(queue), words, written)


class FrameGraph:
    """A graph with the kernel that takes the frame in, which it finds in words of memory.

    What needs no coordinates comes before that kernel, which reads the words while it waits for it. Words of the device
    are written by the stream, in front of the graph: nothing of a graph begins before what is in front of it is done.
    Words of the host's memory are there for drivers whose streams do not write.

    Attributes:
        words: where to put, as the numbers at `places`, where coordinates begin, in words from `anchor` on, and their
            rows. The next run of the graph reads them; they stay what they are until it has, which a call waits for.
        written: what writes them in a stream's order, or None where the graph reads what the host has put there.
    """

    def __init__(self, graph: Any, words: HostWords | StreamWords, written: StreamWords | None) -> None:
        self.graph, self.written, self.anchor, self._owner = graph, written, words.pointer, words
        self.places = (0, 1) if written is None else written.places
        self.words: Any = memoryview(words.words).cast("B").cast("q") if written is None else written.words

    def launch(self, stream: int) -> None:
        """Queues it on what `words` says; raises LaunchError where the driver refuses."""
        if self.written is not None:
            self.written.write(stream)
        self.graph.launch(stream)

    def launcher(self) -> tuple[Any, Callable[..., int]]:
        """(the graph, a function that queues it: driver_objects.Graph.bare)."""
        found: tuple[Any, Callable[..., int]] = self.graph.bare()
        return found


class LastWork:
    """Where the work of the last call was queued, for calls on other streams, and for who gives its memory back.

    Attributes:
        stream: its handle, or None. pending: whether it is not yet marked by `done`; its stream lasts, then.
        done: is reached when the work is done that was marked last.
        ready: of quick calls (quick.py): the stream on which the next one needs no more than its launch, or None.
        bound: the stream as launches of graphs take it, or None. lasting: whether it lasts.
        unread: whether a graph may still have to read the words that say where a frame is.
    """

    __slots__ = ("_device", "bound", "done", "lasting", "pending", "ready", "stream", "unread")

    def __init__(self, device: Any) -> None:
        self._device, self.done = device, device.event()
        self.stream: int | None = None
        self.pending = self.unread = self.lasting = False
        self.ready: int | None = None
        self.bound: Any = None

    def order(self, stream: int) -> None:
        """Lets a call's stream wait for the last call, where that was on another one."""
        self.ready = None
        if self.stream != stream:
            if self.stream is not None:
                self._mark()
                self._device.wait_event(stream, self.done)
            self.bound = None
        self.stream = stream

    def wait(self) -> None:
        """Until all of it is done; raises LaunchError where it has failed."""
        self._mark()
        self.done.synchronize()
        self.unread = False

    def settle(self) -> None:
        """Waits for work on memory that is about to be given back."""
        try:
            self.wait()
        except LaunchError as error:
            logging.getLogger("spconv_compiler").warning("a captured network is given up: %s", error)

    def _mark(self) -> None:
        if self.pending and self.stream is not None:
            self.done.record(self.stream)
            self.pending = False
