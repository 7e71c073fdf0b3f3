"""PTX on an NVIDIA GPU: the driver compiles it once and keeps the result in a cache of its own."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence

from spconv_compiler.errors import LaunchError
from spconv_compiler.ptx_text import PtxKernel, ptx_kernels
from spconv_compiler.runtime.argument_block import ArgumentBlock
from spconv_compiler.runtime.cuda import CudaOwned
from spconv_compiler.runtime.cuda_library import MAX_DYNAMIC_SHARED, SUCCESS, CudaContext
from spconv_compiler.runtime.prepared import PreparedLaunch

_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6
_LOG_BYTES = 8192
_PARAM_END, _PARAM_POINTER, _PARAM_SIZE = 0, 1, 2
_MAX_GRID = (2**31 - 1, 65535, 65535)
# What a block has without asking.
_SHARED_BYTES = 48 * 1024


class Module(CudaOwned):
    """PTX, loaded on a device.

    Raises:
        LaunchError: it is no PTX of ours, or the driver refuses it; the message quotes the driver's log.
    """

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
        self._handle = driver.value(ctypes.c_void_p, "cuModuleGetFunction", module.handle, name.encode())
        self._dynamic = kernel.dynamic_lds_bytes
        if self._dynamic > _SHARED_BYTES:
            driver.call("cuFuncSetAttribute", self._handle, MAX_DYNAMIC_SHARED, self._dynamic)
        nbytes = max((slot.offset + slot.size for slot in kernel.arguments), default=0)
        self._arguments, self._size = ArgumentBlock(name, kernel.arguments, nbytes), ctypes.c_size_t(nbytes)
        self._extra = (ctypes.c_void_p * 5)(
            _PARAM_POINTER, self._arguments.address, _PARAM_SIZE, ctypes.addressof(self._size), _PARAM_END
        )
        self._extra_address = ctypes.addressof(self._extra)
        self._lock = threading.Lock()
        self._launch = driver.function("cuLaunchKernel")

    def prepare(self, grid: Sequence[int], block: int, arguments: Sequence[int]) -> PreparedLaunch:
        """A launch to queue later, as often as wanted; as `launch`, which says what is raised."""
        x, y, z = self._checked(grid, block)
        own = ArgumentBlock(self._name, self._kernel.arguments, self._size.value)
        own.fill(arguments)
        extra = (ctypes.c_void_p * 5)(
            _PARAM_POINTER, own.address, _PARAM_SIZE, ctypes.addressof(self._size), _PARAM_END
        )
        launch, handle, shared, address = self._launch, self._handle, self._dynamic, ctypes.addressof(extra)

        def queue(stream: int) -> int:
            return int(launch(handle, x, y, z, block, 1, 1, shared, stream, None, address))

        driver = self._module.driver
        return PreparedLaunch(own, queue, lambda code: driver.error("cuLaunchKernel", code), self, extra)

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
        x, y, z = self._checked(grid, block)
        driver = self._module.driver
        with driver.current(), self._lock:
            # The driver copies the arguments before it returns.
            self._arguments.fill(arguments)
            code = self._launch(
                self._handle, x, y, z, block, 1, 1, self._dynamic, stream, None, self._extra_address
            )
        if code != SUCCESS:
            raise driver.error("cuLaunchKernel", code)

    def _checked(self, grid: Sequence[int], block: int) -> tuple[int, int, int]:
        """The grid as three sizes; raises LaunchError where `launch` does."""
        if not 1 <= len(grid) <= 3 or any(not 1 <= size <= most for size, most in zip(grid, _MAX_GRID, strict=False)):
            raise LaunchError(f"kernel {self._name}: grid {list(grid)}; accepted: 1 to {list(_MAX_GRID)}")
        if block != self._kernel.block:
            raise LaunchError(f"kernel {self._name}: {block} lanes a block; accepted: {self._kernel.block}")
        self._module.require_open()
        x, y, z = (*grid, *(1,) * (3 - len(grid)))
        return x, y, z
