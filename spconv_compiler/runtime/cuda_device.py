"""A GPU behind NVIDIA's driver, as the executor of launch plans uses it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from spconv_compiler.errors import LaunchError
from spconv_compiler.runtime.cuda import DeviceMemory, Event, Graph, HostWords, Stream, capture
from spconv_compiler.runtime.cuda_library import (
    INSTEAD,
    MAJOR,
    MEMORY_DEVICE,
    MINOR,
    OUT_OF_MEMORY,
    POOL_RELEASE_THRESHOLD,
    Copy2D,
    CudaContext,
    CudaError,
    CudaLibrary,
)
from spconv_compiler.runtime.cuda_module import Module
from spconv_compiler.runtime.device import Buffer
from spconv_compiler.runtime.prepared import DriverCalls, PreparedLaunch, quick

_MAX_BYTES = 2**63 - 1
_NAME_BYTES = 256


class CudaDevice:
    """GPU number `index` of this process; see runtime/device.py for what the methods do.

    Streams are handles (integers), so that those of other libraries will do. Memory comes from the driver's own pool,
    which keeps what is given back.

    Raises:
        LaunchError: there is no such GPU, or its compute capability is not the one that code is compiled for.
    """

    def __init__(self, library: CudaLibrary, index: int, chip: str) -> None:
        self.index = index
        try:
            library.call("cuInit", 0)
            count = int(library.value(ctypes.c_int, "cuDeviceGetCount"))
        except CudaError as error:
            raise LaunchError(f"no NVIDIA GPU: {error}; {INSTEAD}") from error
        if not 0 <= index < count:
            raise LaunchError(f"no NVIDIA GPU with number {index}: the driver finds {count}")
        self.driver = driver = CudaContext(library, index)
        major, minor = (
            int(driver.value(ctypes.c_int, "cuDeviceGetAttribute", attribute, driver.device))
            for attribute in (MAJOR, MINOR)
        )
        name = ctypes.create_string_buffer(_NAME_BYTES)
        driver.call("cuDeviceGetName", ctypes.addressof(name), _NAME_BYTES, driver.device)
        self.name = name.value.decode(errors="replace")
        if "".join(filter(str.isdigit, chip)) != f"{major}{minor}":
            raise LaunchError(
                f"GPU {index} is {self.name} of compute capability {major}.{minor}; the code is for {chip}"
            )
        self._idle: deque[Stream] = deque()
        self._frees = Stream(driver)
        self._pool = int(driver.value(ctypes.c_void_p, "cuDeviceGetDefaultMemPool", driver.device) or 0)
        # By default the pool gives everything back to the system whenever the device is idle.
        keep = ctypes.c_uint64(2**64 - 1)
        driver.call("cuMemPoolSetAttribute", self._pool, POOL_RELEASE_THRESHOLD, ctypes.addressof(keep))

    def current(self) -> contextlib.AbstractContextManager[None]:
        """Makes this the thread's current device in the block."""
        return self.driver.current()

    def load(self, code: bytes) -> Module:
        return Module(self.driver, code)

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
                self.driver.call_at_end("cuStreamSynchronize", stream.handle)
                raise
            self._idle.append(stream)

    def allocate(self, name: str, nbytes: int, stream: int, *, writable: bool = True) -> DeviceMemory:
        try:
            if nbytes > _MAX_BYTES:
                raise self.driver.error("cuMemAllocAsync", OUT_OF_MEMORY)
            try:
                return self._allocate(nbytes, stream)
            except CudaError as error:
                if error.code != OUT_OF_MEMORY:
                    raise
                self._give_back_what_is_free()
                return self._allocate(nbytes, stream)
        except CudaError as error:
            raise LaunchError(f"{nbytes} bytes for {name} on GPU {self.index}: {error}") from error

    def _allocate(self, nbytes: int, stream: int) -> DeviceMemory:
        # The driver gives no address for no bytes.
        return DeviceMemory(self.driver, max(1, nbytes), stream, self._frees)

    def _give_back_what_is_free(self) -> None:
        """Lets the pool return to the system what nobody uses; it may lie in blocks that are too small."""
        self.driver.call("cuCtxSynchronize")
        self.driver.call("cuMemPoolTrimTo", self._pool, 0)

    def copy_in(self, buffer: Buffer, source: int, stream: int) -> None:
        self.driver.call("cuMemcpyHtoDAsync_v2", buffer.pointer, source, buffer.nbytes, stream)

    def copy_out(self, target: int, buffer: Buffer, stream: int, nbytes: int | None = None) -> None:
        size = buffer.nbytes if nbytes is None else nbytes
        self.driver.call("cuMemcpyDtoHAsync_v2", target, buffer.pointer, size, stream)

    def fill(self, buffer: Buffer, byte: int, stream: int) -> None:
        """Sets all bytes of a buffer to one value."""
        self.driver.call("cuMemsetD8Async", buffer.pointer, byte, buffer.nbytes, stream)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self.driver.call("cuMemcpyDtoDAsync_v2", target, source, nbytes, stream)

    def copy_columns(
        self, target: int, target_pitch: int, source: int, source_pitch: int, width: int, rows: int, stream: int
    ) -> None:
        columns = Copy2D(
            source_type=MEMORY_DEVICE,
            source=source,
            source_pitch=source_pitch,
            target_type=MEMORY_DEVICE,
            target=target,
            target_pitch=target_pitch,
            width=width,
            rows=rows,
        )
        self.driver.call("cuMemcpy2DAsync_v2", ctypes.addressof(columns), stream)

    def fill_words(self, target: int, word: int, count: int, stream: int) -> None:
        self.driver.call("cuMemsetD32Async", target, word % 2**32, count, stream)

    def calls(self) -> DriverCalls:
        names = ("cuGraphLaunch", "cuEventRecord", "cuEventSynchronize")
        return DriverCalls(*(quick(self.driver, name) for name in names))

    def host_words(self, count: int) -> HostWords:
        with self.current():
            return HostWords(self.driver, count)

    def event(self) -> Event:
        with self.current():
            return Event(self.driver)

    def wait_event(self, stream: int, event: Event) -> None:
        self.driver.call("cuStreamWaitEvent", stream, event.handle, 0)

    def capture(self, queue: Callable[[int], None]) -> Graph:
        with self.current(), Stream(self.driver) as stream:
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
        self.driver.call("cuStreamSynchronize", stream)


@functools.lru_cache(maxsize=64)
def cuda_device(library: CudaLibrary, index: int, chip: str) -> CudaDevice:
    """The device, opened once in a process."""
    return CudaDevice(library, index, chip)
