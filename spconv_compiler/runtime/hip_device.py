"""A GPU behind HIP, as the executor of launch plans uses it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator

from spconv_compiler.errors import LaunchError
from spconv_compiler.runtime.device import Buffer
from spconv_compiler.runtime.driver_device import DriverDevice
from spconv_compiler.runtime.driver_objects import Stream
from spconv_compiler.runtime.hip import DeviceMemory
from spconv_compiler.runtime.hip_library import (
    ATTRIBUTE_MEMORY_POOLS,
    DEVICE_TO_DEVICE,
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    INSTEAD,
    PROPERTIES_ARCH,
    PROPERTIES_BYTES,
    HipError,
    HipLibrary,
)
from spconv_compiler.runtime.hip_module import Module


class HipDevice(DriverDevice):
    """As DriverDevice, behind HIP; a device may have no pools.

    Raises:
        LaunchError: there is no such GPU, or it is not of the kind that code is compiled for.
    """

    def __init__(self, hip: HipLibrary, index: int, chip: str) -> None:
        super().__init__()
        self.hip = self.driver = hip
        self.index = index
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
        with self.current():
            pooled = bool(hip.value(ctypes.c_int, "hipDeviceGetAttribute", ATTRIBUTE_MEMORY_POOLS, index))
            self._frees = Stream(hip) if pooled else None
            self._pool = self._open_pool(index) if pooled else None

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        before = int(self.hip.value(ctypes.c_int, "hipGetDevice"))
        if before == self.index:
            yield
            return
        self.hip.call("hipSetDevice", self.index)
        try:
            yield
        finally:
            self.hip.call("hipSetDevice", before)

    def is_current(self) -> Callable[[], bool]:
        return lambda: int(self.hip.value(ctypes.c_int, "hipGetDevice")) == self.index

    def load(self, code: bytes) -> Module:
        with self.current():
            return Module(self.hip, code)

    def _allocate(self, nbytes: int, stream: int) -> DeviceMemory:
        # HIP gives no address for no bytes.
        return DeviceMemory(self.hip, max(1, nbytes), stream, self._frees)

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


def _arch_of(hip: HipLibrary, index: int) -> str:
    """The processor's name with its settings, as in gfx950:sramecc+:xnack-."""
    properties = ctypes.create_string_buffer(PROPERTIES_BYTES)
    hip.call("hipGetDevicePropertiesR0600", ctypes.addressof(properties), index)
    return properties.raw[PROPERTIES_ARCH:].partition(b"\0")[0].decode(errors="replace")


@functools.lru_cache(maxsize=64)
def hip_device(hip: HipLibrary, index: int, chip: str) -> HipDevice:
    """The device, opened once in a process."""
    return HipDevice(hip, index, chip)
