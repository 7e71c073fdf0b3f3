"""PTX on an NVIDIA GPU: the driver compiles it once and keeps the result in a cache of its own."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence

from spconv_compiler.errors import LaunchError
from spconv_compiler.ptx_text import PtxKernel, ptx_kernels
from spconv_compiler.runtime.argument_block import ArgumentBlock
from spconv_compiler.runtime.cuda_launch import KernelLaunch
from spconv_compiler.runtime.cuda_library import MAX_DYNAMIC_SHARED, CudaContext
from spconv_compiler.runtime.driver_library import SUCCESS
from spconv_compiler.runtime.owned import Owned
from spconv_compiler.runtime.prepared import PreparedLaunch

_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6
_LOG_BYTES = 8192
_MAX_GRID = (2**31 - 1, 65535, 65535)
# What a block has without asking.
_SHARED_BYTES = 48 * 1024


class Module(Owned):
    """PTX, loaded on a device.

    Raises:
        LaunchError: it is no PTX of ours, or the driver refuses it; the message quotes the driver's log.
    """

    driver: CudaContext
    releases = ("cuModuleUnload",)

    def __init__(self, driver: CudaContext, code: bytes) -> None:
        self._kernels = ptx_kernels(code.decode(errors="replace"))
        log = ctypes.create_string_buffer(_LOG_BYTES)
        options = (ctypes.c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        text, handle = ctypes.create_string_buffer(code), ctypes.c_void_p()
        result = driver.code(
            "cuModuleLoadDataEx",
            ctypes.addressof(handle),
            ctypes.addressof(text),
            len(options),
            ctypes.addressof(options),
            ctypes.addressof(values),
        )
        if result != SUCCESS:
            said = log.value.decode(errors="replace").strip()
            raise LaunchError(f"the kernel cannot be loaded: {driver.error('cuModuleLoadDataEx', result)}: {said}")
        super().__init__(driver, handle.value or 0)
        self._functions: dict[str, Function] = {}

    def function(self, name: str) -> Function:
        """The kernel `name`.

        Raises:
            LaunchError: the module has none of that name.
        """
        found = self._functions.get(name)
        if found is None:
            if name not in self._kernels:
                raise LaunchError(f"the module has no kernel {name!r}; it has: {', '.join(self._kernels)}")
            found = self._functions[name] = Function(self, name, self._kernels[name])
        return found


class Function:
    """A kernel of a module, which it keeps loaded."""

    def __init__(self, module: Module, name: str, kernel: PtxKernel) -> None:
        self._module, self._kernel, self._name, driver = module, kernel, name, module.driver
        self._handle = int(driver.value(ctypes.c_void_p, "cuModuleGetFunction", module.handle, name.encode()) or 0)
        if kernel.dynamic_lds_bytes > _SHARED_BYTES:
            driver.call("cuFuncSetAttribute", self._handle, MAX_DYNAMIC_SHARED, kernel.dynamic_lds_bytes)
        self._size = max((slot.offset + slot.size for slot in kernel.arguments), default=0)
        self._arguments, self._kept = self._new_launch()
        self._lock = threading.Lock()

    def _new_launch(self) -> tuple[ArgumentBlock, KernelLaunch]:
        block = ArgumentBlock(self._name, self._kernel.arguments, self._size)
        dynamic = self._kernel.dynamic_lds_bytes
        driver = self._module.driver
        return block, KernelLaunch(driver, self._handle, self._kernel.block, dynamic, block.address, self._size)

    def prepare(self, grid: Sequence[int], block: int, arguments: Sequence[int]) -> PreparedLaunch:
        """A launch to queue later, as often as wanted; as `launch`, which says what is raised."""
        sizes, driver = self._checked(grid, block), self._module.driver
        own, made = self._new_launch()
        own.fill(arguments)
        made.set_grid(sizes, overlaps=driver.overlaps)
        return PreparedLaunch(own, made.queue, lambda code: driver.error(made.call, code), self, made)

    def launch(self, grid: Sequence[int], block: int, arguments: Sequence[int], stream: int) -> None:
        """Queues a launch.

        Args:
            grid: blocks per axis, one to three; block: lanes of a block.
            arguments: addresses and numbers, as many as the kernel takes; a number may be negative.
            stream: handle of the stream.

        Raises:
            LaunchError: the launch is beyond what kernel or device allow, or an argument does not fit.
            CudaError: the driver refuses.
        """
        sizes, driver = self._checked(grid, block), self._module.driver
        with driver.current(), self._lock:
            # The driver copies the arguments before it returns.
            self._arguments.fill(arguments)
            self._kept.set_grid(sizes, overlaps=driver.overlaps)
            code = self._kept.queue(stream)
        if code != SUCCESS:
            raise driver.error(self._kept.call, code)

    def _checked(self, grid: Sequence[int], block: int) -> tuple[int, int, int]:
        """The grid as three sizes; raises LaunchError where `launch` does."""
        if not 1 <= len(grid) <= 3 or any(not 1 <= size <= most for size, most in zip(grid, _MAX_GRID, strict=False)):
            raise LaunchError(f"kernel {self._name}: grid {list(grid)}; accepted: 1 to {list(_MAX_GRID)}")
        if block != self._kernel.block:
            raise LaunchError(f"kernel {self._name}: {block} lanes a block; accepted: {self._kernel.block}")
        self._module.require_open()
        x, y, z = (*grid, *(1,) * (3 - len(grid)))
        return x, y, z
