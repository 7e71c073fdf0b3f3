"""Code objects on a GPU behind HIP, and launches of their kernels with packed arguments.

What a kernel takes and needs is read from the code object's own metadata (sim/elf.py), so that HIP, which is given
neither the length of an object nor, in effect, that of an argument block, never sees one that does not fit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spconv_compiler.errors import LaunchError
from spconv_compiler.runtime.argument_block import ArgumentBlock
from spconv_compiler.runtime.hip_library import HipLibrary
from spconv_compiler.runtime.owned import Owned
from spconv_compiler.runtime.prepared import PreparedLaunch

if TYPE_CHECKING:
    from spconv_compiler.sim.elf import Kernel

_KERNARG_ALIGNMENT = 16
_LAUNCH = "hipModuleLaunchKernel"
_PARAM_POINTER, _PARAM_SIZE, _PARAM_END = 1, 2, 3
_MAX_LANES = 2**32 - 1
_MAX_WORKGROUP = 1024
_LDS_BYTES = 160 * 1024


class Module(Owned):
    """A code object, loaded on the current device.

    Raises:
        LaunchError: it is damaged, or no code object for gfx950.
        HipError: HIP refuses it.
    """

    driver: HipLibrary
    releases = ("hipModuleUnload",)

    def __init__(self, hip: HipLibrary, code: bytes) -> None:
        # Imported here: programs that run nothing on a GPU need no reader of code objects.
        from spconv_compiler.sim.elf import CodeObject
        from spconv_compiler.sim.errors import ObjectError

        try:
            self._kernels = CodeObject(code).kernels
        except ObjectError as error:
            raise LaunchError(f"the kernel cannot be loaded: {error}") from error
        # HIP may read the bytes again when a function is asked for.
        self._code = ctypes.create_string_buffer(code, len(code))
        super().__init__(hip, hip.value(ctypes.c_void_p, "hipModuleLoadData", ctypes.addressof(self._code)))
        self._functions: dict[str, Function] = {}

    def function(self, name: str) -> Function:
        """The kernel `name`.

        Raises:
            LaunchError: the code object has none of that name.
        """
        if name not in self._functions:
            if name not in self._kernels:
                raise LaunchError(f"the code object has no kernel {name!r}; it has: {', '.join(self._kernels)}")
            self._functions[name] = Function(self, self._kernels[name])
        return self._functions[name]


class Function:
    """A kernel of a module, which it keeps loaded."""

    def __init__(self, module: Module, kernel: Kernel) -> None:
        self._module, self._kernel = module, kernel
        self._handle = module.driver.value(ctypes.c_void_p, "hipModuleGetFunction", module.handle, kernel.name.encode())
        _check_resources(kernel)

    def prepare(self, grid: Sequence[int], block: int, arguments: Sequence[int]) -> PreparedLaunch:
        """A launch to queue later, as often as wanted; as `launch`, which says what is raised."""
        x, y, z = check_launch(self._kernel, grid, block)
        self._module.require_open()
        size = ctypes.c_size_t(_kernarg_bytes(self._kernel))
        own = ArgumentBlock(self._kernel.name, self._kernel.arguments, size.value)
        own.fill(arguments)
        extra = (ctypes.c_void_p * 5)(
            _PARAM_POINTER, own.address, _PARAM_SIZE, ctypes.addressof(size), _PARAM_END
        )
        hip, address, handle = self._module.driver, ctypes.addressof(extra), self._handle
        launch = hip.function(_LAUNCH)

        def queue(stream: int) -> int:
            return int(launch(handle, x, y, z, block, 1, 1, 0, stream, None, address))

        return PreparedLaunch(own, queue, lambda code: hip.failed(_LAUNCH, code), self, extra, size)

    def launch(self, grid: Sequence[int], block: int, arguments: Sequence[int], stream: int) -> None:
        """Queues a launch.

        Args:
            grid: workgroups per axis, one to three; block: lanes of a workgroup.
            arguments: addresses and numbers, as many as the kernel takes; a number may be negative.
            stream: handle of the stream.

        Raises:
            LaunchError: the launch is beyond what kernel or device allow, or an argument does not fit.
            HipError: HIP refuses.
        """
        sizes = check_launch(self._kernel, grid, block)
        packed = pack_arguments(self._kernel, arguments)
        self._module.require_open()
        size = ctypes.c_size_t(len(packed))
        block_of_arguments = ctypes.create_string_buffer(packed, len(packed))
        extra = (ctypes.c_void_p * 5)(
            _PARAM_POINTER, ctypes.addressof(block_of_arguments), _PARAM_SIZE, ctypes.addressof(size), _PARAM_END
        )
        # HIP copies the arguments before it returns.
        self._module.driver.call(
            _LAUNCH,
            self._handle,
            *sizes,
            block,
            1,
            1,
            0,
            stream,
            None,
            ctypes.addressof(extra),
        )


def _check_resources(kernel: Kernel) -> None:
    descriptor = kernel.descriptor
    if descriptor.lds_bytes > _LDS_BYTES or kernel.max_lanes > _MAX_WORKGROUP:
        raise LaunchError(
            f"kernel {kernel.name} needs {descriptor.lds_bytes} bytes of LDS and up to {kernel.max_lanes} lanes; "
            f"accepted: {_LDS_BYTES} and {_MAX_WORKGROUP}"
        )


def check_launch(kernel: Kernel, grid: Sequence[int], block: int) -> tuple[int, int, int]:
    """The grid as three sizes; raises LaunchError when the device cannot start it."""
    if not 1 <= len(grid) <= 3 or min(grid) < 1:
        raise LaunchError(f"kernel {kernel.name}: grid {list(grid)}; accepted: one to three sizes of at least 1")
    if not 1 <= block <= kernel.max_lanes or kernel.block not in (None, (block, 1, 1)):
        accepted = f"at most {kernel.max_lanes}" if kernel.block is None else str(kernel.block[0])
        raise LaunchError(f"kernel {kernel.name}: {block} lanes a workgroup; accepted: {accepted}")
    x, y, z = (*grid, *(1,) * (3 - len(grid)))
    if max(x * block, y, z) > _MAX_LANES:
        raise LaunchError(
            f"kernel {kernel.name}: grid {list(grid)} of {block} lanes; accepted: at most {_MAX_LANES} lanes an axis"
        )
    return x, y, z


def _kernarg_bytes(kernel: Kernel) -> int:
    """Bytes of a block of arguments, padded to a multiple of 16."""
    return max(1, -(-kernel.descriptor.kernarg_bytes // _KERNARG_ALIGNMENT)) * _KERNARG_ALIGNMENT


def pack_arguments(kernel: Kernel, arguments: Sequence[int]) -> bytes:
    """The argument block, as the kernel's metadata lays it out, padded to a multiple of 16 bytes.

    Raises:
        LaunchError: their number differs from the kernel's, or one does not fit its place.
    """
    if len(arguments) != len(kernel.arguments):
        raise LaunchError(f"kernel {kernel.name} takes {len(kernel.arguments)} arguments; given: {len(arguments)}")
    size = kernel.descriptor.kernarg_bytes
    packed = bytearray(_kernarg_bytes(kernel))
    for number, (slot, value) in enumerate(zip(kernel.arguments, arguments, strict=True)):
        if slot.offset + slot.size > size:
            raise LaunchError(
                f"kernel {kernel.name}: argument {number} takes bytes {slot.offset} to {slot.offset + slot.size} "
                f"of {size} bytes of arguments"
            )
        bits = 8 * slot.size
        if not -(1 << bits - 1) <= value < 1 << bits:
            raise LaunchError(f"kernel {kernel.name}: argument {number} is {value}; accepted: {slot.size} bytes")
        packed[slot.offset : slot.offset + slot.size] = (value & (1 << bits) - 1).to_bytes(slot.size, "little")
    return bytes(packed)
