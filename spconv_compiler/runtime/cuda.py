"""Objects of the CUDA driver, and what HIP has no like of: graphs that are uploaded, words that a stream writes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from spconv_compiler.runtime.cuda_library import STREAM_WRITE_64
from spconv_compiler.runtime.driver_library import DriverLibrary, passed
from spconv_compiler.runtime.driver_objects import DeviceMemory, DriverOwned, Event, Graph, HostWords, Stream, capture

__all__ = ["DeviceMemory", "Event", "Graph", "HostWords", "Stream", "StreamWords", "capture", "upload"]

_WRITE = "cuStreamBatchMemOp_v2"
# CUstreamBatchMemOpParams in words of 64 bits: what is done (5: nothing else in that word), address, value, flags, …
_PARAMETERS, _ADDRESS, _VALUE = 6, 1, 2


class LoneMemory(DriverOwned):
    """`nbytes` bytes of the current device in no pool: in pools, streams write no words."""

    releases = ("cuMemFree_v2",)

    def __init__(self, driver: DriverLibrary, nbytes: int) -> None:
        super().__init__(driver, driver.value(ctypes.c_uint64, "cuMemAlloc_v2", nbytes))


class StreamWords:
    """Two words of 64 bits on the device that a stream writes: their values travel in the stream's own commands.

    Work that follows in the stream finds them written, and work in front of them has come to its end before.

    Attributes:
        words: numbers; the words' values are those at `places`, until the next write. pointer: the words' address.
        nbytes: their size.
    """

    nbytes = 16
    places = (_VALUE, _PARAMETERS + _VALUE)

    def __init__(self, driver: DriverLibrary) -> None:
        self._driver, self._memory = driver, LoneMemory(driver, self.nbytes)
        self.pointer: int = self._memory.handle
        self._count = len(self.places)
        self._operations = (ctypes.c_uint64 * (_PARAMETERS * self._count))()
        for number in range(self._count):
            self._operations[number * _PARAMETERS] = STREAM_WRITE_64
            self._operations[number * _PARAMETERS + _ADDRESS] = self.pointer + 8 * number
        self.words: Any = memoryview(self._operations).cast("B").cast("q")

    def write(self, stream: int) -> None:
        """Queues the write; the driver has read the values when this returns."""
        self._driver.call(_WRITE, stream, self._count, ctypes.addressof(self._operations), 0)

    def bare(self) -> tuple[Callable[..., int], tuple[Any, ...]]:
        """(a function of driver_library.passed(a stream) and of these: `write` with nothing around it, these).

        The function gives the driver's code, and the device has to be the current one.
        """
        return self._driver.bare(_WRITE), (self._count, passed(ctypes.addressof(self._operations)), 0)

    def failed(self, code: int) -> Exception:
        """The exception for a code of `bare`."""
        return self._driver.failed(_WRITE, code)


def upload(graph: Graph, stream: Stream) -> None:
    """Brings a graph to the device, so that its first launch need not."""
    graph.driver.call("cuGraphUpload", graph.handle, stream.handle)
