"""The HIP runtime library: where it is found, which of its functions are called, what its errors say.

Facts (names, argument types, constants, layout of the device properties): AMD's HIP runtime API reference, HIP 6
and later. Nothing here needs ROCm's headers, and nothing is loaded before a GPU target is run.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import pathlib
import re
from collections.abc import Iterable
from typing import Any

from spconv_compiler import env
from spconv_compiler.errors import LaunchError
from spconv_compiler.runtime.driver_library import SUCCESS, DriverError, DriverLibrary, Names, decoded

HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3
_HOST_PORTABLE_MAPPED_COHERENT = 0x40000003
ATTRIBUTE_MEMORY_POOLS = 88
# hipDeviceProp_tR0600: its size, and where the name of the processor lies.
PROPERTIES_BYTES, PROPERTIES_ARCH = 1472, 1160

# The versions whose interface is the one used here, newest first; the bare name is that of development packages.
_SONAMES = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so")

INSTEAD = "use target='gfx950-sim' to run on the simulator, or target='cpu'"

_pointer, _int, _uint, _size = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_size_t
_out = ctypes.c_void_p
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "hipInit": (_uint,),
    "hipGetDeviceCount": (_out,),
    "hipGetDevice": (_out,),
    "hipSetDevice": (_int,),
    "hipGetDevicePropertiesR0600": (_out, _int),
    "hipDeviceGetAttribute": (_out, _int, _int),
    "hipDeviceSynchronize": (),
    "hipGetLastError": (),
    "hipModuleLoadData": (_out, _pointer),
    "hipModuleUnload": (_pointer,),
    "hipModuleGetFunction": (_out, _pointer, ctypes.c_char_p),
    "hipModuleLaunchKernel": (_pointer, *(_uint,) * 7, _pointer, _pointer, _pointer),
    "hipMalloc": (_out, _size),
    "hipFree": (_pointer,),
    "hipMallocAsync": (_out, _size, _pointer),
    "hipFreeAsync": (_pointer, _pointer),
    "hipDeviceGetDefaultMemPool": (_out, _int),
    "hipMemPoolSetAttribute": (_pointer, _int, _pointer),
    "hipMemPoolTrimTo": (_pointer, _size),
    "hipHostMalloc": (_out, _size, _uint),
    "hipHostGetDevicePointer": (_out, _pointer, _uint),
    "hipHostFree": (_pointer,),
    "hipMemcpyAsync": (_pointer, _pointer, _size, _int, _pointer),
    "hipMemcpy2DAsync": (_pointer, _size, _pointer, _size, _size, _size, _int, _pointer),
    "hipMemsetAsync": (_pointer, _int, _size, _pointer),
    "hipMemsetD32Async": (_pointer, _int, _size, _pointer),
    "hipStreamCreateWithFlags": (_out, _uint),
    "hipStreamDestroy": (_pointer,),
    "hipStreamSynchronize": (_pointer,),
    "hipStreamQuery": (_pointer,),
    "hipStreamWaitEvent": (_pointer, _pointer, _uint),
    "hipStreamBeginCapture": (_pointer, _int),
    "hipStreamEndCapture": (_pointer, _out),
    "hipEventCreateWithFlags": (_out, _uint),
    "hipEventDestroy": (_pointer,),
    "hipEventRecord": (_pointer, _pointer),
    "hipEventSynchronize": (_pointer,),
    "hipEventQuery": (_pointer,),
    "hipEventElapsedTime": (_out, _pointer, _pointer),
    "hipGraphInstantiateWithFlags": (_out, _pointer, ctypes.c_ulonglong),
    "hipGraphLaunch": (_pointer, _pointer),
    "hipGraphDestroy": (_pointer,),
    "hipGraphExecDestroy": (_pointer,),
}


_NAMES = Names(
    stream_create="hipStreamCreateWithFlags",
    stream_destroy="hipStreamDestroy",
    stream_synchronize="hipStreamSynchronize",
    stream_query="hipStreamQuery",
    stream_wait="hipStreamWaitEvent",
    event_create="hipEventCreateWithFlags",
    event_destroy="hipEventDestroy",
    event_record="hipEventRecord",
    event_synchronize="hipEventSynchronize",
    event_query="hipEventQuery",
    event_elapsed="hipEventElapsedTime",
    host_allocate="hipHostMalloc",
    host_pointer="hipHostGetDevicePointer",
    host_free="hipHostFree",
    host_flags=_HOST_PORTABLE_MAPPED_COHERENT,
    capture_begin="hipStreamBeginCapture",
    capture_end="hipStreamEndCapture",
    graph_make="hipGraphInstantiateWithFlags",
    graph_launch="hipGraphLaunch",
    graph_destroy="hipGraphExecDestroy",
    template_destroy="hipGraphDestroy",
    pool_default="hipDeviceGetDefaultMemPool",
    pool_set="hipMemPoolSetAttribute",
    pool_trim="hipMemPoolTrimTo",
    device_synchronize="hipDeviceSynchronize",
    allocate="hipMalloc",
    allocate_later="hipMallocAsync",
    free_later="hipFreeAsync",
)


class HipError(DriverError):
    """A call of the HIP runtime failed."""


class HipLibrary(DriverLibrary):
    """A loaded libamdhip64."""

    signatures, names, accepted = _SIGNATURES, _NAMES, "HIP 6 or newer"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._strings = {name: self._library[name] for name in ("hipGetErrorName", "hipGetErrorString")}
        for function in self._strings.values():
            function.argtypes, function.restype = [_int], ctypes.c_char_p

    def code(self, name: str, *arguments: Any) -> int:
        """Calls a function and returns its result, of which a failure is forgotten by HIP.

        HIP remembers the last error of a thread, and other users of the library (torch) take it for theirs.
        """
        code = super().code(name, *arguments)
        if code != SUCCESS:
            self.function("hipGetLastError")()
        return code

    def failed(self, call: str, code: int) -> HipError:
        """The exception for a call of `function` that has failed, which HIP forgets."""
        self.function("hipGetLastError")()
        return self.error(call, code)

    def error(self, call: str, code: int) -> HipError:
        name, text = (function(code) for function in self._strings.values())
        return HipError(call, code, decoded(name), decoded(text))


def load_hip() -> HipLibrary:
    """The HIP runtime of this process.

    Looked for, in order: SPCONV_HIP; the copy that this process has loaded already (torch brings its own, and two
    copies share neither memory nor streams); the loader's search path; ROCM_PATH.

    Raises:
        LaunchError: there is none, or it does not load; the message says where it was looked for.
    """
    explicit = env.HIP.get()
    if explicit is not None:
        try:
            return _load(str(explicit))
        except OSError as error:
            raise LaunchError(f"no AMD GPU: {env.HIP.name}: {error}; {INSTEAD}") from error
    loaded = _loaded_already()
    if loaded is not None:
        return _load(loaded)
    return _search((*_SONAMES, *(str(env.ROCM_PATH.get() / "lib" / name) for name in _SONAMES)))


def _search(places: Iterable[str]) -> HipLibrary:
    refused = ""
    for place in places:
        try:
            return _load(place)
        except OSError as error:
            # A library that is there and does not load is worth more words than one that is not there.
            if pathlib.Path(place).exists():
                refused = f"; {place} does not load: {error}"
    raise LaunchError(
        "no AMD GPU: libamdhip64 was not found in the loader's search path, "
        f"{env.ROCM_PATH.get() / 'lib'} (ROCM_PATH) or {env.HIP.name}{refused}; {INSTEAD}"
    )


@functools.lru_cache(maxsize=8)
def _load(path: str) -> HipLibrary:
    return HipLibrary(path)


def _loaded_already() -> str | None:
    with contextlib.suppress(OSError):  # no /proc: not Linux, where there is no HIP either
        for line in pathlib.Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            found = re.search(r"(/\S*/libamdhip64\.so[\w.]*)$", line)
            if found is not None:
                return found[1]
    return None
