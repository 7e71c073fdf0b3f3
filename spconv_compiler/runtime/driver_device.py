"""A GPU behind its driver, as the executor of launch plans uses it: what HIP's and CUDA's have in common."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from spconv_compiler.errors import LaunchError
from spconv_compiler.runtime.device import Buffer
from spconv_compiler.runtime.driver_library import (
    OUT_OF_MEMORY,
    POOL_RELEASE_THRESHOLD,
    DriverError,
    DriverLibrary,
)
from spconv_compiler.runtime.driver_objects import DeviceMemory, Event, Graph, HostWords, Stream, capture
from spconv_compiler.runtime.prepared import DriverCalls, PreparedLaunch, quick

_MAX_BYTES = 2**63 - 1


class Module(Protocol):
    """Code on a device."""

    def function(self, name: str) -> Any:
        """The kernel `name`, which has `launch` and `prepare`."""


class DriverDevice:
    """GPU number `index` of this process; see runtime/device.py for what the methods do.

    Streams are handles (integers), so that those of other libraries will do. Memory comes from the driver's own pool,
    which keeps what is given back.
    """

    driver: DriverLibrary
    index: int
    _frees: Stream | None
    _pool: int | None

    def __init__(self) -> None:
        self._idle: deque[Stream] = deque()

    def current(self) -> contextlib.AbstractContextManager[None]:
        """Makes this the thread's current device in the block."""
        raise NotImplementedError

    def is_current(self) -> Callable[[], bool]:
        """A function that says whether this is the thread's current device; one thread at a time may ask."""
        raise NotImplementedError

    def _open_pool(self, device: int) -> int:
        """The driver's pool, which from now on keeps what is given back: else it has nothing whenever it is idle."""
        names = self.driver.names
        pool = int(self.driver.value(ctypes.c_void_p, names.pool_default, device) or 0)
        keep = ctypes.c_uint64(2**64 - 1)
        self.driver.call(names.pool_set, pool, POOL_RELEASE_THRESHOLD, ctypes.addressof(keep))
        return pool

    @contextlib.contextmanager
    def stream(self) -> Iterator[int]:
        with self.current():
            try:
                stream = self._idle.pop()
            except IndexError:
                stream = Stream(self.driver)
            # Until it is put back, an error here lets the stream go with its last reference.
            try:
                yield stream.handle
                stream.synchronize()
            except BaseException:
                self.driver.call_at_end(self.driver.names.stream_synchronize, stream.handle)
                raise
            self._idle.append(stream)

    def allocate(self, name: str, nbytes: int, stream: int, *, writable: bool = True) -> DeviceMemory:
        try:
            if nbytes > _MAX_BYTES:
                raise self.driver.error(self.driver.names.allocate, OUT_OF_MEMORY)
            try:
                return self._allocate(nbytes, stream)
            except DriverError as error:
                if error.code != OUT_OF_MEMORY:
                    raise
                self._give_back_what_is_free()
                return self._allocate(nbytes, stream)
        except DriverError as error:
            raise LaunchError(f"{nbytes} bytes for {name} on GPU {self.index}: {error}") from error

    def _allocate(self, nbytes: int, stream: int) -> DeviceMemory:
        raise NotImplementedError

    def _give_back_what_is_free(self) -> None:
        """Lets the pool return to the system what nobody uses; it may lie in blocks that are too small."""
        self.driver.call(self.driver.names.device_synchronize)
        if self._pool is not None:
            self.driver.call(self.driver.names.pool_trim, self._pool, 0)

    def calls(self) -> DriverCalls:
        names = self.driver.names
        return DriverCalls(
            quick(self.driver, names.graph_launch),
            quick(self.driver, names.event_record),
            quick(self.driver, names.event_synchronize),
            self.is_current(),
            functools.partial(self.driver.failed, names.graph_launch),
        )

    def host_words(self, count: int) -> HostWords:
        with self.current():
            return HostWords(self.driver, count)

    def stream_words(self) -> Any:
        """See runtime/device.py; None where a driver has no like."""
        return None

    def event(self) -> Event:
        with self.current():
            return Event(self.driver)

    def wait_event(self, stream: int, event: Event) -> None:
        self.driver.call(self.driver.names.stream_wait, stream, event.handle, 0)

    def capture(self, queue: Callable[[int], None]) -> Graph:
        with self.current(), Stream(self.driver) as stream:
            with capture(stream) as captured:
                queue(stream.handle)
            self.upload(captured.graph, stream)
            return captured.graph

    def upload(self, graph: Graph, stream: Stream) -> None:
        """Brings a graph to the device, so that its first launch need not; nothing where a driver cannot."""

    def launch(
        self,
        module: Module,
        kernel: str,
        grid: Sequence[int],
        block: int,
        arguments: Sequence[Buffer | int],
        stream: int,
    ) -> None:
        module.function(kernel).launch(grid, block, _numbers(arguments), stream)

    def prepare(
        self, module: Module, kernel: str, grid: Sequence[int], block: int, arguments: Sequence[Buffer | int]
    ) -> PreparedLaunch:
        made: PreparedLaunch = module.function(kernel).prepare(grid, block, _numbers(arguments))
        return made

    def synchronize(self, stream: int) -> None:
        self.driver.call(self.driver.names.stream_synchronize, stream)


def _numbers(arguments: Sequence[Buffer | int]) -> list[int]:
    return [value if isinstance(value, int) else value.pointer for value in arguments]
