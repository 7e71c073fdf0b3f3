"""How a launch is described to the CUDA driver: a configuration that is made once, and names its stream anew each time.

A launch may overlap the end of the kernel before it on its stream (programmatic stream serialization): its blocks then
begin to take places while that one runs out, and wait in its first instruction (passes/overlap_launches.py). What is no
kernel, and kernels of other libraries, keep their order as ever: our kernels do not let anybody pass before all work in
front of them is done.

Facts: NVIDIA's CUDA driver API reference, CUlaunchConfig, CUlaunchAttribute.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from spconv_compiler.errors import LaunchError
from spconv_compiler.runtime.cuda_library import CudaContext

_PARAM_END, _PARAM_POINTER, _PARAM_SIZE = 0, 1, 2
_OVERLAP = 6
_VALUE_BYTES = 64


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute, of those whose value is a number."""

    _fields_ = [
        ("kind", ctypes.c_int),
        ("_gap", ctypes.c_int),
        ("value", ctypes.c_int),
        ("_rest", ctypes.c_char * (_VALUE_BYTES - 4)),
    ]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    ]


_overlap = LaunchAttribute(_OVERLAP, 0, 1)


class KernelLaunch:
    """A kernel on a grid, with arguments in a block of memory; one thread at a time may change and queue it.

    Args:
        function: the driver's handle. block: lanes of a block. dynamic: bytes of shared memory that it asks for.
        address, nbytes: of the arguments, whose owner lives as long as this.

    Attributes:
        call: the driver's function that `queue` calls, for messages.
    """

    def __init__(
        self, driver: CudaContext, function: int, block: int, dynamic: int, address: int, nbytes: int
    ) -> None:
        self._function = function
        self._size = ctypes.c_size_t(nbytes)
        self._extra = (ctypes.c_void_p * 5)(
            _PARAM_POINTER, address, _PARAM_SIZE, ctypes.addressof(self._size), _PARAM_END
        )
        attributes = ctypes.addressof(_overlap)
        self._config = LaunchConfig((1, 1, 1), (block, 1, 1), dynamic, None, attributes, 0)
        self.call, self.queue = self._queue_of(driver)

    def _queue_of(self, driver: CudaContext) -> tuple[str, Callable[[int], int]]:
        """(function of the driver, queue(stream): queues the launch and gives the driver's code)."""
        config, handle, extra = self._config, self._function, ctypes.addressof(self._extra)
        try:
            function = driver.bare("cuLaunchKernelEx")
        except LaunchError:
            return "cuLaunchKernel", _old_queue(driver, config, handle, extra)
        given = tuple(map(ctypes.c_void_p.from_param, (ctypes.addressof(config), handle, None, extra)))

        def queue(stream: int) -> int:
            config.stream = stream
            return int(function(*given))

        return "cuLaunchKernelEx", queue

    def set_grid(self, grid: Sequence[int], *, overlaps: bool) -> None:
        """From now on: blocks along three axes, and whether the launch may overlap the end of the kernel before it."""
        self._config.grid[:] = list(grid)
        self._config.count = int(overlaps)


def _old_queue(driver: CudaContext, config: LaunchConfig, handle: int, extra: int) -> Callable[[int], int]:
    """For drivers that take no configurations: nothing overlaps."""
    function: Any = driver.function("cuLaunchKernel")

    def queue(stream: int) -> int:
        return int(function(handle, *config.grid, *config.block, config.shared_bytes, stream, None, extra))

    return queue
