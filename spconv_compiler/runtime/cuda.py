"""Objects of the CUDA driver, each of which owns its handle: streams, events, memory, graphs. As hip.py's."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

from spconv_compiler.errors import LaunchError
from spconv_compiler.runtime.cuda_library import (
    CAPTURE_THREAD_LOCAL,
    EVENT_DISABLE_TIMING,
    HOST_PORTABLE_MAPPED,
    NOT_READY,
    STREAM_NON_BLOCKING,
    SUCCESS,
    CudaContext,
    CudaError,
)
from spconv_compiler.runtime.owned import Owned, uncollected


class CudaOwned(Owned):
    """A handle of the driver and the duty to release it."""

    driver: CudaContext


class Stream(CudaOwned):
    """A queue of work on a device; it does not wait for the default stream, and its end waits for its work."""

    releases = ("cuStreamSynchronize", "cuStreamDestroy_v2")

    def __init__(self, driver: CudaContext) -> None:
        super().__init__(driver, driver.value(ctypes.c_void_p, "cuStreamCreate", STREAM_NON_BLOCKING))

    def synchronize(self) -> None:
        """Waits until all work queued so far is done; raises the CudaError of work that failed."""
        self.driver.call("cuStreamSynchronize", self.handle)

    def done(self) -> bool:
        """Whether all work queued so far is done."""
        return _done(self.driver, "cuStreamQuery", self.handle)

    def wait(self, event: Event) -> None:
        """Lets work that is queued from now on wait for an event."""
        self.driver.call("cuStreamWaitEvent", self.handle, event.handle, 0)


class Event(CudaOwned):
    """A mark in a stream; `timing`: it carries a time."""

    releases = ("cuEventDestroy_v2",)

    def __init__(self, driver: CudaContext, timing: bool = False) -> None:
        flags = 0 if timing else EVENT_DISABLE_TIMING
        super().__init__(driver, driver.value(ctypes.c_void_p, "cuEventCreate", flags))

    def record(self, stream: Stream | int) -> None:
        """Sets the mark behind all work queued so far on a stream, or on that with a handle."""
        self.driver.call("cuEventRecord", self.handle, stream if isinstance(stream, int) else stream.handle)

    def synchronize(self) -> None:
        """Waits until the mark is reached."""
        self.driver.call("cuEventSynchronize", self.handle)

    def done(self) -> bool:
        """Whether the mark is reached."""
        return _done(self.driver, "cuEventQuery", self.handle)

    def milliseconds_since(self, earlier: Event) -> float:
        """Time between two marks that are reached."""
        return float(self.driver.value(ctypes.c_float, "cuEventElapsedTime", earlier.handle, self.handle))


def _done(driver: CudaContext, call: str, handle: int) -> bool:
    code = driver.code(call, handle)
    if code not in (SUCCESS, NOT_READY):
        raise driver.error(call, code)
    return code == SUCCESS


class DeviceMemory(CudaOwned):
    """`nbytes` bytes, uninitialised, taken in order with the work of `stream`, given back with that of `frees`."""

    releases = ("cuMemFreeAsync",)

    def __init__(self, driver: CudaContext, nbytes: int, stream: int, frees: Stream) -> None:
        self.nbytes = nbytes
        super().__init__(driver, driver.value(ctypes.c_uint64, "cuMemAllocAsync", nbytes, stream), frees)

    @property
    def pointer(self) -> int:
        """Address on the device."""
        return self.handle


class HostWords(CudaOwned):
    """`count` words i32 of host memory that kernels can reach too; all are 0 at first.

    Attributes:
        words: as the host sees them. pointer: their address on the device. nbytes: their size.
    """

    releases = ("cuMemFreeHost",)

    def __init__(self, driver: CudaContext, count: int) -> None:
        self.nbytes = 4 * count
        super().__init__(driver, driver.value(ctypes.c_void_p, "cuMemHostAlloc", self.nbytes, HOST_PORTABLE_MAPPED))
        self.words = (ctypes.c_int32 * count).from_address(self.handle)
        ctypes.memset(self.handle, 0, self.nbytes)
        self.pointer = int(driver.value(ctypes.c_void_p, "cuMemHostGetDevicePointer_v2", self.handle, 0))


class Graph(CudaOwned):
    """Work captured from a stream, to be run again as often as wanted. Made by `capture`.

    Addresses are fixed: buffers and host memory that the work touches must live as long as the graph is launched.
    """

    releases = ("cuGraphExecDestroy",)

    def launch(self, stream: Stream | int) -> None:
        """Queues the captured work on a stream, or on that with a handle."""
        self.driver.call("cuGraphLaunch", self.handle, stream if isinstance(stream, int) else stream.handle)


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
        CudaError: the stream is capturing already, or something in the block is not allowed in a capture.
    """
    driver, result = stream.driver, Capture()
    driver.call("cuStreamBeginCapture_v2", stream.handle, CAPTURE_THREAD_LOCAL)
    try:
        with uncollected():
            yield result
    except BaseException:
        with contextlib.suppress(CudaError):  # an error in the block invalidates the capture, which is said again here
            _destroy(driver, _end_capture(stream))
        raise
    template = _end_capture(stream)
    try:
        result._graph = Graph(driver, driver.value(ctypes.c_void_p, "cuGraphInstantiateWithFlags", template, 0))
    finally:
        _destroy(driver, template)


def _end_capture(stream: Stream) -> int:
    """The graph's handle, or 0."""
    graph = ctypes.c_void_p()
    stream.driver.call("cuStreamEndCapture", stream.handle, ctypes.addressof(graph))
    return graph.value or 0


def _destroy(driver: CudaContext, template: int) -> None:
    if template:
        driver.call_at_end("cuGraphDestroy", template)
