"""Objects of a GPU's driver, each of which owns its handle (owned.py): streams, events, memory, graphs."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

from spconv_compiler.errors import LaunchError
from spconv_compiler.runtime.driver_library import (
    CAPTURE_THREAD_LOCAL,
    EVENT_DISABLE_TIMING,
    NOT_READY,
    STREAM_NON_BLOCKING,
    SUCCESS,
    DriverLibrary,
    passed,
)
from spconv_compiler.runtime.owned import Owned, uncollected


class DriverOwned(Owned):
    """A handle of a driver and the duty to release it."""

    driver: DriverLibrary


class Stream(DriverOwned):
    """A queue of work on the current device; it does not wait for the default stream.

    Its end waits for its work: nothing is promised for work in a stream that is destroyed.
    """

    def __init__(self, driver: DriverLibrary) -> None:
        names = driver.names
        self.releases = (names.stream_synchronize, names.stream_destroy)
        super().__init__(driver, driver.value(ctypes.c_void_p, names.stream_create, STREAM_NON_BLOCKING))

    def synchronize(self) -> None:
        """Waits until all work queued so far is done; raises the DriverError of work that failed."""
        self.driver.call(self.driver.names.stream_synchronize, self.handle)

    def done(self) -> bool:
        """Whether all work queued so far is done."""
        return _done(self.driver, self.driver.names.stream_query, self.handle)

    def wait(self, event: Event) -> None:
        """Lets work that is queued from now on wait for an event."""
        self.driver.call(self.driver.names.stream_wait, self.handle, event.handle, 0)


class Event(DriverOwned):
    """A mark in a stream; `timing`: it carries a time."""

    def __init__(self, driver: DriverLibrary, timing: bool = False) -> None:
        self.releases = (driver.names.event_destroy,)
        flags = 0 if timing else EVENT_DISABLE_TIMING
        super().__init__(driver, driver.value(ctypes.c_void_p, driver.names.event_create, flags))

    def record(self, stream: Stream | int) -> None:
        """Sets the mark behind all work queued so far on a stream, or on that with a handle."""
        handle = stream if isinstance(stream, int) else stream.handle
        self.driver.call(self.driver.names.event_record, self.handle, handle)

    def synchronize(self) -> None:
        """Waits until the mark is reached."""
        self.driver.call(self.driver.names.event_synchronize, self.handle)

    def done(self) -> bool:
        """Whether the mark is reached."""
        return _done(self.driver, self.driver.names.event_query, self.handle)

    def milliseconds_since(self, earlier: Event) -> float:
        """Time between two marks that are reached."""
        name = self.driver.names.event_elapsed
        return float(self.driver.value(ctypes.c_float, name, earlier.handle, self.handle))


def _done(driver: DriverLibrary, call: str, handle: int) -> bool:
    code = driver.code(call, handle)
    if code not in (SUCCESS, NOT_READY):
        raise driver.error(call, code)
    return code == SUCCESS


class DeviceMemory(DriverOwned):
    """`nbytes` bytes on the current device, uninitialised.

    They are taken in order with the work of `stream` and given back in order with that of `frees`, which they keep.
    """

    def __init__(self, driver: DriverLibrary, nbytes: int, stream: int, frees: Stream) -> None:
        self.nbytes, self.releases = nbytes, (driver.names.free_later,)
        super().__init__(driver, driver.value(ctypes.c_uint64, driver.names.allocate_later, nbytes, stream), frees)

    @property
    def pointer(self) -> int:
        """Address on the device."""
        return self.handle


class HostWords(DriverOwned):
    """`count` words i32 of host memory that kernels can reach too; all are 0 at first.

    Attributes:
        words: as the host sees them. pointer: their address on the device. nbytes: their size.
    """

    def __init__(self, driver: DriverLibrary, count: int) -> None:
        names, self.nbytes = driver.names, 4 * count
        self.releases = (names.host_free,)
        super().__init__(driver, driver.value(ctypes.c_void_p, names.host_allocate, self.nbytes, names.host_flags))
        self.words = (ctypes.c_int32 * count).from_address(self.handle)
        ctypes.memset(self.handle, 0, self.nbytes)
        self.pointer = int(driver.value(ctypes.c_void_p, names.host_pointer, self.handle, 0))


class Template(DriverOwned):
    """What was captured, of which graphs are made."""

    def __init__(self, driver: DriverLibrary, handle: int) -> None:
        self.releases = (driver.names.template_destroy,)
        super().__init__(driver, handle)


class Graph(DriverOwned):
    """Work captured from a stream, to be run again as often as wanted. Made by `capture`.

    Addresses are fixed: buffers and host memory that the work touches must live as long as the graph is launched.
    """

    def __init__(self, driver: DriverLibrary, handle: int) -> None:
        self.releases = (driver.names.graph_destroy,)
        super().__init__(driver, handle)

    def bare(self) -> tuple[Any, Callable[[Any, Any], int]]:
        """(the handle, a function of it and of driver_library.passed(a stream): `launch` with nothing around it).

        The function gives the driver's code, and the device has to be the current one.
        """
        return passed(self.handle), self.driver.bare(self.driver.names.graph_launch)

    def launch(self, stream: Stream | int) -> None:
        """Queues the captured work on a stream, or on that with a handle."""
        handle = stream if isinstance(stream, int) else stream.handle
        self.driver.call(self.driver.names.graph_launch, self.handle, handle)


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
        LaunchError: the stream is capturing already, or something in the block is not allowed in a capture.
    """
    driver, result = stream.driver, Capture()
    driver.call(driver.names.capture_begin, stream.handle, CAPTURE_THREAD_LOCAL)
    try:
        with uncollected():
            yield result
    except BaseException:
        # An error in the block invalidates the capture, which is said again here.
        with contextlib.suppress(LaunchError):
            _end_capture(stream)
        raise
    with _end_capture(stream) as template:
        made = int(driver.value(ctypes.c_void_p, driver.names.graph_make, template.handle, 0) or 0)
        result._graph = Graph(driver, made)


def _end_capture(stream: Stream) -> Template:
    graph = ctypes.c_void_p()
    stream.driver.call(stream.driver.names.capture_end, stream.handle, ctypes.addressof(graph))
    if not graph.value:
        raise LaunchError("the capture gave no graph")
    return Template(stream.driver, graph.value)
