"""Objects of the HIP runtime, each of which owns its handle: streams, events, memory, graphs.

A handle is released once: by `close()`, at the end of a `with` block, or when its object is collected. At the end of
the process nothing is released: the library may be gone by then, and the driver takes everything back.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TypeVar

from spconv_compiler.errors import LaunchError
from spconv_compiler.runtime.hip_library import (
    CAPTURE_THREAD_LOCAL,
    EVENT_DISABLE_TIMING,
    NOT_READY,
    STREAM_NON_BLOCKING,
    SUCCESS,
    HipError,
    HipLibrary,
)

_Self = TypeVar("_Self", bound="Owned")


class Owned:
    """A handle of HIP and the duty to release it.

    Attributes:
        releases: the functions that end its life, in order; they take the handle, and `stream` if there is one.
    """

    releases: tuple[str, ...]

    def __init__(self, hip: HipLibrary, handle: int, stream: Stream | None = None) -> None:
        self.hip = hip
        self._handle = handle
        # The arguments live as long as they are needed: a stream that this object's memory goes back through does.
        self._release = weakref.finalize(self, _release, hip.call_at_end, self.releases, handle, stream)
        self._release.atexit = False
        self._stream = stream

    @property
    def handle(self) -> int:
        """The handle as HIP knows it; raises LaunchError when it has been released."""
        self.require_open()
        return self._handle

    def require_open(self) -> None:
        """Raises LaunchError when the handle has been released."""
        if not self._release.alive:
            raise LaunchError(f"this {type(self).__name__} has been closed")

    def close(self) -> None:
        """Releases the handle; a second time does nothing.

        Raises:
            HipError: HIP refuses. The handle counts as released all the same.
        """
        if self._release.detach() is not None:
            _release(self.hip.call, self.releases, self._handle, self._stream)

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            # The error that is under way says more than one of the release.
            self._release()


def _release(call: Callable[..., None], names: tuple[str, ...], handle: int, stream: Stream | None) -> None:
    arguments = (handle,) if stream is None else (handle, stream.handle)
    with contextlib.ExitStack() as stack:
        # All are called even if one raises; a stack runs what was pushed last first.
        for name in reversed(names):
            stack.callback(call, name, *arguments)


class Stream(Owned):
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


class Event(Owned):
    """A mark in a stream; `timing`: it carries a time."""

    releases = ("hipEventDestroy",)

    def __init__(self, hip: HipLibrary, timing: bool = False) -> None:
        flags = 0 if timing else EVENT_DISABLE_TIMING
        super().__init__(hip, hip.value(ctypes.c_void_p, "hipEventCreateWithFlags", flags))

    def record(self, stream: Stream) -> None:
        """Sets the mark behind all work queued so far."""
        self.hip.call("hipEventRecord", self.handle, stream.handle)

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


class DeviceMemory(Owned):
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


class Graph(Owned):
    """Work captured from a stream, to be run again as often as wanted. Made by `capture`.

    Addresses are fixed: buffers and host memory that the work touches must live as long as the graph is launched.
    """

    releases = ("hipGraphExecDestroy",)

    def launch(self, stream: Stream) -> None:
        """Queues the captured work."""
        self.hip.call("hipGraphLaunch", self.handle, stream.handle)


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
