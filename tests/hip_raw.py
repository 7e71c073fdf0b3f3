"""HIP called as a careless program would call it, past the objects of runtime/hip.py."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from hip_harness import FILL, code

from spconv_compiler.runtime.hip_library import HipLibrary

HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3
GLOBAL, RELAXED = 0, 2


class Raw:
    """HIP by name: `raw.malloc(64)`; what it makes is released at the end, in whatever state it is."""

    def __init__(self, hip: HipLibrary) -> None:
        self.hip = hip
        self.made: list[tuple[str, int]] = []

    def release(self) -> None:
        """Releases all that is left, whatever HIP says to it."""
        self.hip.code("hipDeviceSynchronize")
        for release, handle in reversed(self.made):
            self.hip.code(release, handle)

    def make(self, release: str, call: str, *arguments: Any) -> int:
        made = int(self.hip.value(ctypes.c_void_p, call, *arguments))
        self.made.append((release, made))
        return made

    def malloc(self, nbytes: int) -> int:
        return self.make("hipFree", "hipMalloc", nbytes)

    def stream(self, blocking: bool = False) -> int:
        return self.make("hipStreamDestroy", "hipStreamCreateWithFlags", 0 if blocking else 1)

    def event(self, flags: int = 0) -> int:
        return self.make("hipEventDestroy", "hipEventCreateWithFlags", flags)

    def module(self) -> int:
        image = ctypes.create_string_buffer(code())
        return self.make("hipModuleUnload", "hipModuleLoadData", ctypes.addressof(image))

    def function(self, module: int) -> int:
        return int(self.hip.value(ctypes.c_void_p, "hipModuleGetFunction", module, FILL.encode()))

    def fill(self, target: int, byte: int, stream: int, nbytes: int = 64) -> None:
        self.hip.call("hipMemsetAsync", target, byte, nbytes, stream)

    def copy(self, target: int, source: int, direction: int, stream: int = 0, nbytes: int = 64) -> None:
        self.hip.call("hipMemcpyAsync", target, source, nbytes, direction, stream)

    def launch(
        self,
        function: int,
        stream: int,
        pointer: int,
        *,
        size: int = 12,
        grid: Any = (1, 1, 1),
        block: Any = (256, 1, 1),
        shared: int = 0,
        tags: tuple[int, int, int] = (1, 2, 3),
    ) -> None:
        packed = (ctypes.c_uint64 * 4)(pointer, 16)
        length = ctypes.c_size_t(size)
        extra = (ctypes.c_void_p * 5)(tags[0], ctypes.addressof(packed), tags[1], ctypes.addressof(length), tags[2])
        extras = ctypes.addressof(extra)
        self.hip.call("hipModuleLaunchKernel", function, *grid, *block, shared, stream, None, extras)

    def end_capture(self, stream: int) -> int:
        graph = ctypes.c_void_p()
        self.hip.call("hipStreamEndCapture", stream, ctypes.addressof(graph))
        self.made.append(("hipGraphDestroy", graph.value or 0))
        return graph.value or 0


def host(fill: int = 0) -> tuple[np.ndarray, int]:
    array = np.full(64, fill, np.uint8)
    return array, array.ctypes.data
