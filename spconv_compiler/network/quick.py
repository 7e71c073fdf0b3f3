"""A call of a captured network with next to no work on the host: what the last calls have proven is not proven again.

It serves networks over one coordinate tensor that make no voxels and end in a convolution: one kernel takes the frame
in, one graph does the rest, the last launch goes from the caller's features (or the graph's) to a new tensor. The GPU
gets its work as early as it can be: what needs the coordinates alone is queued as soon as they are checked, and the
features, the result's memory and the last launch are seen to while it runs. A frame whose tensors are of another kind,
or that has no room, is left to replay.py, which says what is wrong with it.

Between two calls other code has the host's caches, so that a call is as long as the memory that it touches: it is one
function, and all that it needs are variables that it encloses.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from spconv_compiler.errors import LaunchError
from spconv_compiler.network.boundary import TorchPart
from spconv_compiler.network.captured import CapturedNetwork
from spconv_compiler.network.intake import ALIGNMENT
from spconv_compiler.network.places import DTYPES
from spconv_compiler.network.plan import NetworkPlan

# torch's current stream as a number, without an object around it.
_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)

Note = Callable[[str, Callable[..., Any]], Callable[..., Any]]


def quick_call(
    owner: Any, plan: NetworkPlan, found: CapturedNetwork, head: TorchPart, kinds: Sequence[Any], note: Note
) -> Callable[[Sequence[Any]], Any] | None:
    """The quick call of a network that is captured, or None where it is not one of those.

    Args:
        owner: the Replay that the call is made for, as long as its `turn` stays what it is; its lock lets one in at
            a time.
        head: picks the plan's arguments out of the program's inputs. kinds: types of the inputs.
        note: what stands for a function of the driver, given its name and itself.
    """
    loose, levels = found.loose, [number for kind, number in plan.arguments if kind == "level"]
    if head.module is not None or head.constants or None in head.picks:
        return None
    if loose is None or len(levels) != 1 or len(plan.levels) != 1 or found.only_graph is None:
        return None
    if plan.results != (("value", plan.steps[loose].out),):
        return None
    return _enclosed(owner, plan, found, [pick for pick in head.picks if pick is not None], kinds, note)


def _enclosed(
    owner: Any, plan: NetworkPlan, found: CapturedNetwork, picks: Sequence[int], kinds: Sequence[Any], note: Note
) -> Callable[[Sequence[Any]], Any]:
    """The call itself: it gives the result [N, C], or None where the call has to go the long way, for whatever reason.

    It raises LaunchError where the device refuses or fails.
    """
    assert found.loose is not None and found.last is not None
    device, index, room, int32 = found.device, found.index, found.room[0], torch.int32
    out = plan.values[plan.steps[found.loose].out]
    places = {argument: picks[place] for place, argument in enumerate(plan.arguments)}
    place, count = places.pop(("level", 0)), len(kinds)
    coords_type, shape_made = kinds[place], (room, out.channels)
    read_values = _reader(plan, {at: number for (_, number), at in places.items()}, kinds, index)
    # Values that the graph reads have to be there before it.
    early = any(number not in found.direct_slots for _, number in places)
    like = found.like.new_empty((0,), dtype=DTYPES[out.dtype])
    words, calls = found.intake.report.words, device.calls()
    checked, done = found.intake.checked.handle, found.last_work.done.handle
    is_current, synchronize = note("is_current", calls.is_current), note("synchronize", calls.synchronize)
    record = note("record", calls.record)
    begin_graph = note("launch of the graph", _beginning(found, owner.headed, calls, checked))
    launch_last, out_slots = note("launch of the convolution", found.last.launch), found.last.slots["out"]
    _, coords_slot, rows_slot = found.intake.only()
    headed = found.headed is not None
    # Where there is one device, a launch that finds another context current fails, and is done again in the right one.
    several = not headed or torch.cuda.device_count() != 1
    lock, new_empty, take = owner.lock, like.new_empty, found.take
    raw_stream = _stream_of if _raw_stream is None else _raw_stream
    # The replay holds this call, not the other way round: with it a network gives its memory back.
    replay, turn = weakref.ref(owner), owner.turn
    # The stream of the last quick call, and whether it lasts.
    work, seen, lasting = found.last_work, -1, False

    def queue(args: Sequence[Any], stream: int, begin: int, rows: int) -> Any:
        nonlocal seen, lasting
        # The default stream cannot be captured.
        if stream and torch.cuda.is_current_stream_capturing():
            return None
        if seen != stream:
            seen, lasting = stream, _lasts(index, stream)
        if work.stream != stream:
            work.order(stream)
        if early:
            pointers = read_values(args, rows)
            if pointers is None:
                return None
            take(pointers, rows, stream)
        words[0] = 0
        coords_slot.value, rows_slot.value = begin, rows
        work.pending = True
        begin_graph(stream)
        try:
            if headed:
                record(checked, stream)
            pointers = {} if early else read_values(args, rows)
            made = None
            if pointers is not None:
                if not early:
                    take(pointers, rows, stream)
                made = new_empty(shape_made)
                pointer = made.data_ptr()
                for slot in out_slots:
                    slot.value = pointer
                launch_last(stream)
        finally:
            if not lasting:
                record(done, stream)
                work.pending = False
        if made is not None and rows != room:
            made = made.narrow(0, 0, rows)
        synchronize(checked)
        return None if words[0] else made

    def call(args: Sequence[Any]) -> Any:
        if len(args) != count:
            return None
        coords: Any = args[place]
        try:
            if type(coords) is not coords_type or coords.dtype is not int32:
                return None
            shape = coords.shape
            rows = shape[0]
            if len(shape) != 2 or shape[1] != 4 or not 0 < rows <= room or not coords.is_contiguous():
                return None
            begin = coords.data_ptr()
            if begin % ALIGNMENT or not begin or coords.get_device() != index:
                return None
        except (RuntimeError, IndexError):  # a tensor without strides or memory, which the long way has words for
            return None
        with lock:
            mine = replay()
            # Another thread may have given it up.
            if mine is None or mine.turn != turn or not mine.on:
                return None
            stream = int(raw_stream(index))
            if several and not is_current():
                with device.current():
                    made = queue(args, stream, begin, rows)
            else:
                try:
                    made = queue(args, stream, begin, rows)
                except LaunchError:
                    if several or is_current():
                        raise
                    with device.current():
                        made = queue(args, stream, begin, rows)
            mine.reason, mine.graphs = None, int(made is not None)
            return made

    return call


def _reader(
    plan: NetworkPlan, places: dict[int, int], kinds: Sequence[Any], index: int
) -> Callable[[Sequence[Any], int], dict[int, int] | None]:
    """A function of (arguments, rows): addresses of values by number, or None where they are not of the kind seen."""
    wanted = [
        (at, number, kinds[at], DTYPES[plan.values[number].dtype], plan.values[number].channels)
        for at, number in places.items()
    ]

    def read_values(args: Sequence[Any], rows: int) -> dict[int, int] | None:
        pointers = {}
        try:
            for at, number, kind, dtype, channels in wanted:
                value: Any = args[at]
                if type(value) is not kind or value.dtype is not dtype or value.shape != (rows, channels):
                    return None
                pointer = value.data_ptr()
                if value.requires_grad or not value.is_contiguous() or value.is_neg():
                    return None
                if value.get_device() != index or pointer % ALIGNMENT or not pointer:
                    return None
                pointers[number] = pointer
        except (RuntimeError, IndexError):  # as for coordinates
            return None
        return pointers

    return read_values


def _beginning(found: CapturedNetwork, headed: bool, calls: Any, checked: int) -> Callable[[int], None]:
    """A function of a stream that queues what needs the coordinates alone."""
    assert found.only_graph is not None
    found.headed = found.graph_with_frame() if headed else None
    if found.headed is not None:
        begin: Callable[[int], None] = found.headed.launch
        return begin
    (frame, _, _), graph = found.intake.only(), found.only_graph.handle

    def begin_in_front(stream: int) -> None:
        frame.launch(stream)
        calls.record(checked, stream)
        calls.launch_graph(graph, stream)

    return begin_in_front


def _stream_of(index: int) -> int:
    return int(torch.cuda.current_stream(index).cuda_stream)


def _lasts(index: int, stream: int) -> bool:
    """Whether a stream of this number, now the current one, will be the same one as long as the process lives.

    It is so for torch's own; what others have made, and torch only knows, they may give back.
    """
    return stream == 0 or getattr(torch.cuda.current_stream(index), "stream_id", stream) != stream
