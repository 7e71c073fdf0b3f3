"""A GPU behind NVIDIA's driver, as the executor of launch plans uses it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable

from spconv_compiler.errors import LaunchError
from spconv_compiler.runtime.cuda import StreamWords, upload
from spconv_compiler.runtime.cuda_library import (
    INSTEAD,
    MAJOR,
    MEMORY_DEVICE,
    MINOR,
    STREAM_WRITES,
    Copy2D,
    CudaContext,
    CudaError,
    CudaLibrary,
)
from spconv_compiler.runtime.cuda_module import Module
from spconv_compiler.runtime.device import Buffer
from spconv_compiler.runtime.driver_device import DriverDevice
from spconv_compiler.runtime.driver_objects import DeviceMemory, Graph, Stream

_NAME_BYTES = 256


class CudaDevice(DriverDevice):
    """As DriverDevice, behind CUDA.

    Raises:
        LaunchError: there is no such GPU, or its compute capability is not the one that code is compiled for.
    """

    driver: CudaContext

    def __init__(self, library: CudaLibrary, index: int, chip: str) -> None:
        super().__init__()
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
        self._returns = self._frees = Stream(driver)
        self._pool = self._open_pool(driver.device)

    def current(self) -> contextlib.AbstractContextManager[None]:
        return self.driver.current()

    def is_current(self) -> Callable[[], bool]:
        return self.driver.asks()

    def load(self, code: bytes) -> Module:
        return Module(self.driver, code)

    def _allocate(self, nbytes: int, stream: int) -> DeviceMemory:
        # The driver gives no address for no bytes.
        return DeviceMemory(self.driver, max(1, nbytes), stream, self._returns)

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

    def stream_words(self) -> StreamWords | None:
        try:
            self.driver.function("cuStreamBatchMemOp_v2")
            if not self.driver.value(ctypes.c_int, "cuDeviceGetAttribute", STREAM_WRITES, self.driver.device):
                return None
            with self.current(), self.stream() as stream:
                words = StreamWords(self.driver)
                words.write(stream)
        except LaunchError:  # an older driver knows neither, and some machines that say they can refuse it
            return None
        return words

    def upload(self, graph: Graph, stream: Stream) -> None:
        upload(graph, stream)


@functools.lru_cache(maxsize=64)
def cuda_device(library: CudaLibrary, index: int, chip: str) -> CudaDevice:
    """The device, opened once in a process."""
    return CudaDevice(library, index, chip)
