"""Objects of the HIP runtime: those of any driver, and memory on devices without pools."""

from __future__ import annotations

import ctypes

from spconv_compiler.runtime.driver_library import DriverLibrary
from spconv_compiler.runtime.driver_objects import DeviceMemory as PooledMemory
from spconv_compiler.runtime.driver_objects import Event, Graph, HostWords, Stream, capture
from spconv_compiler.runtime.owned import Owned

__all__ = ["DeviceMemory", "Event", "Graph", "HostWords", "Stream", "capture"]


class DeviceMemory(PooledMemory):
    """`nbytes` bytes on the current device, uninitialised.

    With a pool, they are taken in order with the work of `stream` and given back in order with that of `frees`,
    which they keep; without, HIP itself waits for the whole device before it takes them back.
    """

    def __init__(
        self, driver: DriverLibrary, nbytes: int, stream: int | None = None, frees: Stream | None = None
    ) -> None:
        if stream is not None and frees is not None:
            super().__init__(driver, nbytes, stream, frees)
            return
        self.nbytes, self.releases = nbytes, ("hipFree",)
        Owned.__init__(self, driver, driver.value(ctypes.c_void_p, "hipMalloc", nbytes))
