"""Objects of the HIP runtime, each of which owns its handle (owned.py): streams, events, memory, graphs."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

from spconv_compiler.errors import LaunchError
from spconv_compiler.runtime.hip_library import (
    CAPTURE_THREAD_LOCAL,
    EVENT_DISABLE_TIMING,
    HOST_PORTABLE_MAPPED_COHERENT,
    NOT_READY,
    STREAM_NON_BLOCKING,
    SUCCESS,
    HipError,
    HipLibrary,
)
from spconv_compiler.runtime.owned import Owned, uncollected


class HipOwned(Owned):
    """A handle of HIP and the duty to release it."""

    @property
    def hip(self) -> HipLibrary:
        library: HipLibrary = self.driver
        return library


class Stream(HipOwned):
    """A queue of work on the current device; it does not wait for the default stream.

    Its end waits for its work: HIP promises nothing for work in a stream that is destroyed.
    """

    releases = ("hipStreamSynchronize", "hipStreamDestroy")

    def __init__(self, hip: HipLibrary) -> None:
        super().__init__(hip, hip.value(ctypes.c_void_p, "hipStreamCreateWithFlags", STREAM_NON_BLOCKING))

    def synchronize(self) -> None:
        """Waits until all work queued so far is done; raises the HipError of work that failed."""
        self.hip.call("hipStreamSynchronize", self.handle)

    def done(self) -> bool:
        """Whether all work queued so far is done."""
        return _done(self.hip, "hipStreamQuery", self.handle)

    def wait(self, event: Event) -> None:
        """Lets work that is queued from now on wait for an event."""
        self.hip.call("hipStreamWaitEvent", self.handle, event.handle, 0)


class Event(HipOwned):
    """A mark in a stream; `timing`: it carries a time."""

    releases = ("hipEventDestroy",)

    def __init__(self, hip: HipLibrary, timing: bool = False) -> None:
        flags = 0 if timing else EVENT_DISABLE_TIMING
        super().__init__(hip, hip.value(ctypes.c_void_p, "hipEventCreateWithFlags", flags))

    def record(self, stream: Stream | int) -> None:
        """Sets the mark behind all work queued so far on a stream, or on that with a handle."""
        self.hip.call("hipEventRecord", self.handle, stream if isinstance(stream, int) else stream.handle)

    def synchronize(self) -> None:
        """Waits until the mark is reached."""
        self.hip.call("hipEventSynchronize", self.handle)

    def done(self) -> bool:
        """Whether the mark is reached."""
        return _done(self.hip, "hipEventQuery", self.handle)

    def milliseconds_since(self, earlier: Event) -> float:
        """Time between two marks that are reached."""
        return float(self.hip.value(ctypes.c_float, "hipEventElapsedTime", earlier.handle, self.handle))


def _done(hip: HipLibrary, call: str, handle: int) -> bool:
    code = hip.code(call, handle)
    if code not in (SUCCESS, NOT_READY):
        raise hip.error(call, code)
    return code == SUCCESS


class DeviceMemory(HipOwned):
    """`nbytes` bytes on the current device, uninitialised.

    With a pool, they are taken in order with the work of `stream` and given back in order with that of `frees`,
    which they keep; without, HIP itself waits for the whole device before it takes them back.
    """

    releases = ("hipFree",)

    def __init__(self, hip: HipLibrary, nbytes: int, stream: int | None = None, frees: Stream | None = None) -> None:
        self.nbytes = nbytes
        if stream is None or frees is None:
            super().__init__(hip, hip.value(ctypes.c_void_p, "hipMalloc", nbytes))
        else:
            self.releases = ("hipFreeAsync",)
            super().__init__(hip, hip.value(ctypes.c_void_p, "hipMallocAsync", nbytes, stream), frees)

    @property
    def pointer(self) -> int:
        """Address on the device."""
        return self.handle


class HostWords(HipOwned):
    """`count` words i32 of host memory that kernels can reach too; all are 0 at first.

    Attributes:
        words: as the host sees them. pointer: their address on the device. nbytes: their size.
    """

    releases = ("hipHostFree",)

    def __init__(self, hip: HipLibrary, count: int) -> None:
        self.nbytes = 4 * count
        super().__init__(hip, hip.value(ctypes.c_void_p, "hipHostMalloc", self.nbytes, HOST_PORTABLE_MAPPED_COHERENT))
        self.words = (ctypes.c_int32 * count).from_address(self.handle)
        ctypes.memset(self.handle, 0, self.nbytes)
        self.pointer = int(hip.value(ctypes.c_void_p, "hipHostGetDevicePointer", self.handle, 0))


class Graph(HipOwned):
    """Work captured from a stream, to be run again as often as wanted. Made by `capture`.

    Addresses are fixed: buffers and host memory that the work touches must live as long as the graph is launched.
    """

    releases = ("hipGraphExecDestroy",)

    def launch(self, stream: Stream | int) -> None:
        """Queues the captured work on a stream, or on that with a handle."""
        self.hip.call("hipGraphLaunch", self.handle, stream if isinstance(stream, int) else stream.handle)


class Capture:
    """What `capture` yields; `graph` is there once the block has ended."""

    def __init__(self) -> None:
        self._graph: Graph | None = None

    @property
    def graph(self) -> Graph:
        if self._graph is None:
            raise LaunchError("the capture has not ended, or it failed: there is no graph")
        return self._graph


@contextlib.contextmanager
def capture(stream: Stream) -> Iterator[Capture]:
    """Captures the work that this thread queues on `stream`, instead of running it.

    In the block, memory can neither be allocated nor waited for. When it raises, the capture is ended and dropped.

    Raises:
        HipError: the stream is capturing already, or something in the block is not allowed in a capture.
    """
    hip, result = stream.hip, Capture()
    hip.call("hipStreamBeginCapture", stream.handle, CAPTURE_THREAD_LOCAL)
    try:
        with uncollected():
            yield result
    except BaseException:
        with contextlib.suppress(HipError):  # an error in the block invalidates the capture, which is said again here
            _destroy(hip, _end_capture(stream))
        raise
    template = _end_capture(stream)
    try:
        result._graph = Graph(hip, hip.value(ctypes.c_void_p, "hipGraphInstantiateWithFlags", template, 0))
    finally:
        _destroy(hip, template)


def _end_capture(stream: Stream) -> int:
    """The graph's handle, or 0."""
    graph = ctypes.c_void_p()
    stream.hip.call("hipStreamEndCapture", stream.handle, ctypes.addressof(graph))
    return graph.value or 0


def _destroy(hip: HipLibrary, template: int) -> None:
    if template:
        hip.call_at_end("hipGraphDestroy", template)
