"""A GPU behind HIP, as the executor of launch plans uses it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from spconv_compiler.errors import LaunchError
from spconv_compiler.runtime.device import Buffer
from spconv_compiler.runtime.hip import DeviceMemory, Event, Graph, HostWords, Stream, capture
from spconv_compiler.runtime.hip_library import (
    ATTRIBUTE_MEMORY_POOLS,
    DEVICE_TO_DEVICE,
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    INSTEAD,
    OUT_OF_MEMORY,
    POOL_RELEASE_THRESHOLD,
    PROPERTIES_ARCH,
    PROPERTIES_BYTES,
    HipError,
    HipLibrary,
)
from spconv_compiler.runtime.hip_module import Module
from spconv_compiler.runtime.prepared import DriverCalls, PreparedLaunch, quick

_MAX_BYTES = 2**63 - 1


class HipDevice:
    """GPU number `index` of this process; see runtime/device.py for what the methods do.

    Streams are handles (integers), so that those of other libraries will do. Memory comes from HIP's own pool, which
    keeps what is given back.

    Raises:
        LaunchError: there is no such GPU, or it is not of the kind that code is compiled for.
    """

    def __init__(self, hip: HipLibrary, index: int, chip: str) -> None:
        self.hip, self.index = hip, index
        try:
            hip.call("hipInit", 0)
            count = int(hip.value(ctypes.c_int, "hipGetDeviceCount"))
        except HipError as error:
            raise LaunchError(f"no AMD GPU: {error}; {INSTEAD}") from error
        if not 0 <= index < count:
            raise LaunchError(f"no AMD GPU with number {index}: HIP finds {count}")
        self.name = _arch_of(hip, index)
        # gfx950:sramecc+:xnack-: what follows the chip are settings that this code does not depend on.
        if self.name.partition(":")[0] != chip:
            raise LaunchError(f"GPU {index} is {self.name}; the code is for {chip}")
        self._idle: deque[Stream] = deque()
        with self.current():
            pooled = bool(hip.value(ctypes.c_int, "hipDeviceGetAttribute", ATTRIBUTE_MEMORY_POOLS, index))
            self._frees = Stream(hip) if pooled else None
            self._pool = self._open_pool() if pooled else None

    def _open_pool(self) -> int:
        pool = int(self.hip.value(ctypes.c_void_p, "hipDeviceGetDefaultMemPool", self.index) or 0)
        # By default the pool gives everything back to the system whenever the device is idle.
        keep = ctypes.c_uint64(2**64 - 1)
        self.hip.call("hipMemPoolSetAttribute", pool, POOL_RELEASE_THRESHOLD, ctypes.addressof(keep))
        return pool

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Makes this the thread's current device in the block."""
        before = int(self.hip.value(ctypes.c_int, "hipGetDevice"))
        if before == self.index:
            yield
            return
        self.hip.call("hipSetDevice", self.index)
        try:
            yield
        finally:
            self.hip.call("hipSetDevice", before)

    def load(self, code: bytes) -> Module:
        with self.current():
            return Module(self.hip, code)

    @contextlib.contextmanager
    def stream(self) -> Iterator[int]:
        with self.current():
            try:
                stream = self._idle.pop()
            except IndexError:
                stream = Stream(self.hip)
            # Until it is put back, an error here lets the stream go with its last reference.
            try:
                yield stream.handle
                stream.synchronize()
            except BaseException:
                self.hip.call_at_end("hipStreamSynchronize", stream.handle)
                raise
            self._idle.append(stream)

    def allocate(self, name: str, nbytes: int, stream: int, *, writable: bool = True) -> DeviceMemory:
        try:
            if nbytes > _MAX_BYTES:
                raise self.hip.error("hipMalloc", OUT_OF_MEMORY)
            try:
                return self._allocate(nbytes, stream)
            except HipError as error:
                if error.code != OUT_OF_MEMORY:
                    raise
                self._give_back_what_is_free()
                return self._allocate(nbytes, stream)
        except HipError as error:
            raise LaunchError(f"{nbytes} bytes for {name} on GPU {self.index}: {error}") from error

    def _allocate(self, nbytes: int, stream: int) -> DeviceMemory:
        # HIP gives no address for no bytes.
        return DeviceMemory(self.hip, max(1, nbytes), stream, self._frees)

    def _give_back_what_is_free(self) -> None:
        """Lets the pool return to the system what nobody uses; it may lie in blocks that are too small."""
        self.hip.call("hipDeviceSynchronize")
        if self._pool is not None:
            self.hip.call("hipMemPoolTrimTo", self._pool, 0)

    def copy_in(self, buffer: Buffer, source: int, stream: int) -> None:
        self.hip.call("hipMemcpyAsync", buffer.pointer, source, buffer.nbytes, HOST_TO_DEVICE, stream)

    def copy_out(self, target: int, buffer: Buffer, stream: int, nbytes: int | None = None) -> None:
        size = buffer.nbytes if nbytes is None else nbytes
        self.hip.call("hipMemcpyAsync", target, buffer.pointer, size, DEVICE_TO_HOST, stream)

    def fill(self, buffer: Buffer, byte: int, stream: int) -> None:
        """Sets all bytes of a buffer to one value."""
        self.hip.call("hipMemsetAsync", buffer.pointer, byte, buffer.nbytes, stream)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self.hip.call("hipMemcpyAsync", target, source, nbytes, DEVICE_TO_DEVICE, stream)

    def copy_columns(
        self, target: int, target_pitch: int, source: int, source_pitch: int, width: int, rows: int, stream: int
    ) -> None:
        self.hip.call(
            "hipMemcpy2DAsync", target, target_pitch, source, source_pitch, width, rows, DEVICE_TO_DEVICE, stream
        )

    def fill_words(self, target: int, word: int, count: int, stream: int) -> None:
        self.hip.call("hipMemsetD32Async", target, word, count, stream)

    def calls(self) -> DriverCalls:
        names = ("hipGraphLaunch", "hipEventRecord", "hipEventSynchronize")
        return DriverCalls(*(quick(self.hip, name) for name in names))

    def host_words(self, count: int) -> HostWords:
        with self.current():
            return HostWords(self.hip, count)

    def event(self) -> Event:
        with self.current():
            return Event(self.hip)

    def wait_event(self, stream: int, event: Event) -> None:
        self.hip.call("hipStreamWaitEvent", stream, event.handle, 0)

    def capture(self, queue: Callable[[int], None]) -> Graph:
        with self.current(), Stream(self.hip) as stream:
            with capture(stream) as captured:
                queue(stream.handle)
            return captured.graph

    def launch(
        self,
        module: Module,
        kernel: str,
        grid: Sequence[int],
        block: int,
        arguments: Sequence[Buffer | int],
        stream: int,
    ) -> None:
        values = [value if isinstance(value, int) else value.pointer for value in arguments]
        module.function(kernel).launch(grid, block, values, stream)

    def prepare(
        self, module: Module, kernel: str, grid: Sequence[int], block: int, arguments: Sequence[Buffer | int]
    ) -> PreparedLaunch:
        values = [value if isinstance(value, int) else value.pointer for value in arguments]
        return module.function(kernel).prepare(grid, block, values)

    def synchronize(self, stream: int) -> None:
        self.hip.call("hipStreamSynchronize", stream)


def _arch_of(hip: HipLibrary, index: int) -> str:
    """The processor's name with its settings, as in gfx950:sramecc+:xnack-."""
    properties = ctypes.create_string_buffer(PROPERTIES_BYTES)
    hip.call("hipGetDevicePropertiesR0600", ctypes.addressof(properties), index)
    return properties.raw[PROPERTIES_ARCH:].partition(b"\0")[0].decode(errors="replace")


@functools.lru_cache(maxsize=64)
def hip_device(hip: HipLibrary, index: int, chip: str) -> HipDevice:
    """The device, opened once in a process."""
    return HipDevice(hip, index, chip)
