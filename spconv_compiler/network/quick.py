"""A call of a captured network with next to no work on the host: what the last calls have proven is not proven again.

It serves networks over one coordinate tensor that make no voxels and end in a convolution: one kernel takes the frame
in, one graph does the rest, the last launch goes from the caller's features (or the graph's) to a new tensor. The GPU
gets its work as early as it can be: before the graph is launched nothing is looked at but where its coordinates are;
features, the result's memory and the last launch are seen to while it runs. A frame whose tensors are of another kind,
or that has no room, is left to replay.py, which says what is wrong with it; what was queued of it by then is seen by
nobody.

Between two calls other code has the host's caches, so that a call is as long as the memory that it touches: up to the
launch these are a few objects that one tuple names, and behind it the variables that a function encloses.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from spconv_compiler.network.boundary import TorchPart
from spconv_compiler.network.captured import CapturedNetwork
from spconv_compiler.network.intake import ALIGNMENT
from spconv_compiler.network.places import DTYPES
from spconv_compiler.network.plan import NetworkPlan
from spconv_compiler.runtime.driver_library import passed

# torch's current stream as a number, without an object around it.
_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
# Results of up to so many bytes are made one call ahead.
_SPARE_BYTES = 64 << 20

Note = Callable[[str, Callable[..., Any]], Callable[..., Any]]
Call = Callable[[Sequence[Any]], Any]


def quick_call(
    owner: Any, plan: NetworkPlan, found: CapturedNetwork, head: TorchPart, kinds: Sequence[Any], note: Note
) -> Call | None:
    """The quick call of a network that is captured, or None where it is not one of those.

    Args:
        owner: the Replay that the call is made for; its lock lets one in at a time.
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
    picks = [pick for pick in head.picks if pick is not None]
    places = {argument: picks[place] for place, argument in enumerate(plan.arguments)}
    return _enclosed(owner, plan, found, places, kinds, note)


def _enclosed(
    owner: Any,
    plan: NetworkPlan,
    found: CapturedNetwork,
    places: dict[tuple[str, int], int],
    kinds: Sequence[Any],
    note: Note,
) -> Call:
    """The call itself: it gives the result [N, C], or None where the call has to go the long way, for whatever reason.

    It raises LaunchError where the device refuses or fails.
    """
    place, device, index, work = places.pop(("level", 0)), found.device, found.index, found.last_work
    outside, calls = found.intake.report.words, device.calls()
    is_current, failed = note("is_current", calls.is_current), calls.graph_failed
    headed = found.frame_graph(owner.stream_writes)
    graph, launch = headed.launcher()
    launch, words, anchor = note("launch of the graph", launch), headed.words, headed.anchor
    write, written = (None, ()) if headed.written is None else headed.written.bare()
    write_failed: Any = headed.written and headed.written.failed
    write = write and note("write of the words", write)
    bring = _bringer(plan, found, {number: at for (_, number), at in places.items()}, kinds)
    # Values that the graph reads have to be there before it.
    early = any(number not in found.direct_slots for _, number in places)
    rest = _rest(owner, plan, found, None if early else bring, note)
    work.ready = None
    # Side by side: what a call touches before the launch.
    first = (
        *(place, kinds[place], torch.int32, found.room[0], ALIGNMENT, index, anchor),
        *(note("current stream", _raw_stream or _stream_of), note("lock", owner.lock.acquire)),
    )
    then = (work, words, *headed.places, write, written, launch, graph)
    release = owner.lock.release

    def call(args: Sequence[Any]) -> Any:
        place, kind, int32, room, alignment, index, anchor, raw_stream, acquire = first
        work, words, begins, counts, write, written, launch, graph = then
        try:
            coords = args[place]
            if type(coords) is not kind or coords.dtype is not int32 or not coords.is_contiguous():
                return None
            rows, columns = coords.shape
            begin = coords.data_ptr()
            if columns != 4 or not 0 < rows <= room or begin % alignment or not begin or coords.get_device() != index:
                return None
        except (RuntimeError, IndexError, ValueError):  # other dimensions, no strides: the long way has words for it
            return None
        stream = raw_stream(index)
        acquire()
        try:
            if work.ready != stream and not prepare(args, stream, rows):
                return None
            work.ready, work.unread, work.pending = None, True, True
            words[begins], words[counts] = begin - anchor >> 2, rows
            if write is not None:
                code = write(work.bound, *written)
                if code:
                    return refused(write_failed(code), args, stream, rows)
            code = launch(graph, work.bound)
            return refused(failed(code), args, stream, rows) if code else rest(args, stream, rows)
        finally:
            release()

    def prepare(args: Sequence[Any], stream: int, rows: int) -> bool:
        """Sees to what the last call has not: another stream, a call that did not come to its end, values to copy."""
        # The default stream cannot be captured.
        if stream and torch.cuda.is_current_stream_capturing():
            return False
        if work.unread:
            work.wait()
        outside[0] = 0
        work.order(stream)
        if work.bound is None:
            work.bound, work.lasting = passed(stream), _lasts(index, stream)
        return not early or bring(args, rows, stream)

    def refused(failure: Exception, args: Sequence[Any], stream: int, rows: int) -> Any:
        """The driver has not queued the graph. Where there is one device it was not asked which one is current."""
        if is_current():
            raise failure
        with device.current():
            headed.launch(stream)
            return rest(args, stream, rows)

    return call if torch.cuda.device_count() == 1 else _on_device(call, device, is_current)


def _rest(owner: Any, plan: NetworkPlan, found: CapturedNetwork, bring: Any, note: Note) -> Callable[..., Any]:
    """A function of (arguments, stream, rows): all of a call that follows the launch of its graph.

    Args:
        bring: of _bringer, where values are not brought yet; else None.
    """
    assert found.loose is not None and found.last is not None
    out, calls, work = plan.values[plan.steps[found.loose].out], found.device.calls(), found.last_work
    room, outside, out_slots = found.room[0], found.intake.report.words, found.last.slots["out"]
    checked, done = found.intake.checked.handle, work.done.handle
    record, synchronize = note("record", calls.record), note("synchronize", calls.synchronize)
    launch_last = note("launch of the convolution", found.last.launch)
    new_empty, shape = found.like.new_empty((0,), dtype=DTYPES[out.dtype]).new_empty, (room, out.channels)
    ahead = room * out.row_bytes <= _SPARE_BYTES
    # The replay holds this call, not the other way round: with it a network gives its memory back.
    replay = weakref.ref(owner)
    inference = torch.is_inference_mode_enabled
    # A tensor for the next result, and where it was made: on which stream, in which mode.
    spare: Any = None
    spare_at: tuple[int, bool] | None = None

    def rest(args: Sequence[Any], stream: int, rows: int) -> Any:
        nonlocal spare, spare_at
        made, here = None, (stream, inference())
        try:
            record(checked, stream)
            if bring is None or bring(args, rows, stream):
                made, spare = (new_empty(shape) if spare is None or spare_at != here else spare), None
                pointer = made.data_ptr()
                for slot in out_slots:
                    slot.value = pointer
                launch_last(stream)
        finally:
            if not work.lasting:
                record(done, stream)
                work.pending = False
        if ahead and made is not None:
            try:
                spare, spare_at = new_empty(shape), here
            except RuntimeError:  # out of memory: the next call may find some, or says so
                spare = None
        if made is not None and rows != room:
            made = made.narrow(0, 0, rows)
        synchronize(checked)
        work.unread = False
        if outside[0] or made is None:
            return None
        if bring is not None:
            work.ready = None if stream else stream
        mine = replay()
        if mine is not None:
            mine.reason, mine.graphs = None, 1
        return made

    return rest


def _bringer(
    plan: NetworkPlan, found: CapturedNetwork, places: dict[int, int], kinds: Sequence[Any]
) -> Callable[[Sequence[Any], int, int], bool]:
    """A function of (arguments, rows, stream) that brings values to where they are read: see CapturedNetwork.slots_of.

    It is False where an argument is not of the kind that was seen.
    """
    count, index = len(kinds), found.index
    wanted = [
        (at, kinds[at], DTYPES[plan.values[number].dtype], plan.values[number].channels, found.slots_of(number), number)
        for number, at in places.items()
    ]

    def bring(args: Sequence[Any], rows: int, stream: int) -> bool:
        if len(args) != count:
            return False
        try:
            for at, kind, dtype, channels, slots, number in wanted:
                value: Any = args[at]
                if type(value) is not kind or value.dtype is not dtype or not value.is_contiguous():
                    return False
                if value.shape != (rows, channels) or value.get_device() != index:
                    return False
                if value.requires_grad or value.is_neg():
                    return False
                pointer = value.data_ptr()
                if pointer % ALIGNMENT or not pointer:
                    return False
                for slot in slots:
                    slot.value = pointer
                if not slots:
                    found.copy_value(number, pointer, rows, stream)
        except (RuntimeError, IndexError):  # as for coordinates
            return False
        return True

    return bring


def _on_device(call: Call, device: Any, is_current: Callable[[], bool]) -> Call:
    """The call where there are several devices: another one may be current."""
    asking = threading.Lock()

    def anywhere(args: Sequence[Any]) -> Any:
        with asking:
            current = is_current()
        if current:
            return call(args)
        with device.current():
            return call(args)

    return anywhere


def _stream_of(index: int) -> int:
    return int(torch.cuda.current_stream(index).cuda_stream)


def _lasts(index: int, stream: int) -> bool:
    """Whether a stream of this number, now the current one, will be the same one as long as the process lives.

    It is so for torch's own; what others have made, and torch only knows, they may give back.
    """
    return stream == 0 or getattr(torch.cuda.current_stream(index), "stream_id", stream) != stream
