"""The HIP runtime library: where it is found, which of its functions are called, what its errors say.

Facts (names, argument types, constants, layout of the device properties): AMD's HIP runtime API reference, HIP 6
and later. Nothing here needs ROCm's headers, and nothing is loaded before a GPU target is run.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import pathlib
import re
from collections.abc import Iterable
from typing import Any

from spconv_compiler import env
from spconv_compiler.errors import LaunchError

SUCCESS, OUT_OF_MEMORY, NOT_READY = 0, 2, 600
HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3
STREAM_NON_BLOCKING, EVENT_DISABLE_TIMING = 1, 2
CAPTURE_THREAD_LOCAL = 1
HOST_PORTABLE_MAPPED_COHERENT = 0x40000003
ATTRIBUTE_MEMORY_POOLS, POOL_RELEASE_THRESHOLD = 88, 4
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


class HipError(LaunchError):
    """A call of the HIP runtime failed.

    Attributes:
        call: the function. code, name, text: its result, as a number and as HIP calls and describes it.
    """

    def __init__(self, call: str, code: int, name: str, text: str) -> None:
        super().__init__(f"{call}: {name} ({code}): {text}")
        self.call, self.code, self.name, self.text = call, code, name, text

    def __reduce__(self) -> tuple[object, ...]:
        return HipError, (self.call, self.code, self.name, self.text)


class HipLibrary:
    """A loaded libamdhip64. Calls may be made from several threads.

    Attributes:
        path: where it was loaded from.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._library = ctypes.CDLL(path)
        self._functions: dict[str, Any] = {}
        self._strings = {name: self._library[name] for name in ("hipGetErrorName", "hipGetErrorString")}
        for function in self._strings.values():
            function.argtypes, function.restype = [_int], ctypes.c_char_p

    def code(self, name: str, *arguments: Any) -> int:
        """Calls a function and returns its result, of which a failure is forgotten by HIP.

        HIP remembers the last error of a thread, and other users of the library (torch) take it for theirs.
        """
        code = int(self.function(name)(*arguments))
        if code != SUCCESS:
            self.function("hipGetLastError")()
        return code

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function.

        Raises:
            HipError: it fails.
        """
        code = self.code(name, *arguments)
        if code != SUCCESS:
            raise self.error(name, code)

    def value(self, kind: Any, name: str, *arguments: Any) -> Any:
        """Calls a function whose first argument is where its result goes; returns that, a ctypes type's value."""
        found = kind()
        self.call(name, ctypes.addressof(found), *arguments)
        return found.value

    def call_at_end(self, name: str, *arguments: Any) -> None:
        """Calls a function that releases something, where nobody can handle an error: it is logged."""
        code = self.code(name, *arguments)
        if code != SUCCESS:
            logging.getLogger("spconv_compiler").warning("%s", self.error(name, code))

    def failed(self, call: str, code: int) -> HipError:
        """The exception for a call of `function` that has failed, which HIP forgets."""
        self.function("hipGetLastError")()
        return self.error(call, code)

    def error(self, call: str, code: int) -> HipError:
        """The exception for a result."""
        name, text = (function(code) for function in self._strings.values())
        return HipError(call, code, _decode(name), _decode(text))

    def function(self, name: str) -> Any:
        """A function of the library, which takes and gives ctypes' plain values; for calls that must be quick.

        Raises:
            LaunchError: the library has none of that name.
        """
        found = self._functions.get(name)
        if found is None:
            try:
                found = self._library[name]
            except AttributeError:
                raise LaunchError(f"{self.path} has no {name}; accepted: HIP 6 or newer") from None
            found.argtypes, found.restype = list(_SIGNATURES[name]), _int
            self._functions[name] = found
        return found


def _decode(text: bytes | None) -> str:
    return "unknown" if text is None else text.decode(errors="replace")


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
