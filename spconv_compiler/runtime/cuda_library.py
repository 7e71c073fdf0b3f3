"""NVIDIA's driver library: where it is found, which of its functions are called, what its errors say.

Facts (names, argument types, constants): NVIDIA's CUDA driver API reference, CUDA 12 and later. Neither the toolkit nor
a compiler of it is needed, and nothing is loaded before a GPU target is run.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

from spconv_compiler import env
from spconv_compiler.errors import LaunchError
from spconv_compiler.runtime.driver_library import SUCCESS, DriverError, DriverLibrary, Names, decoded

_HOST_PORTABLE_MAPPED = 3
MEMORY_DEVICE = 2
# CUdevice_attribute: compute capability, multiprocessors; CUfunction_attribute: largest dynamic shared memory.
MAJOR, MINOR, MULTIPROCESSORS = 75, 76, 16
# CUdevice_attribute: whether streams write words of 64 bits; CUstreamBatchMemOpType: such a write.
STREAM_WRITES, STREAM_WRITE_64 = 122, 5
MAX_DYNAMIC_SHARED = 8

INSTEAD = "use target='cpu'"

_NOTHING = contextlib.nullcontext()

_pointer, _int, _uint, _size = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_size_t
_address = ctypes.c_uint64
_out = ctypes.c_void_p
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_uint,),
    "cuDeviceGetCount": (_out,),
    "cuDeviceGet": (_out, _int),
    "cuDeviceGetName": (_out, _int, _int),
    "cuDeviceGetAttribute": (_out, _int, _int),
    "cuDevicePrimaryCtxRetain": (_out, _int),
    "cuCtxPushCurrent_v2": (_pointer,),
    "cuCtxPopCurrent_v2": (_out,),
    "cuCtxGetCurrent": (_out,),
    "cuCtxSynchronize": (),
    "cuModuleLoadDataEx": (_out, _pointer, _uint, _pointer, _pointer),
    "cuModuleUnload": (_pointer,),
    "cuModuleGetFunction": (_out, _pointer, ctypes.c_char_p),
    "cuFuncSetAttribute": (_pointer, _int, _int),
    "cuLaunchKernel": (_pointer, *(_uint,) * 7, _pointer, _pointer, _pointer),
    "cuLaunchKernelEx": (_pointer, _pointer, _pointer, _pointer),
    "cuMemAlloc_v2": (_out, _size),
    "cuMemFree_v2": (_address,),
    "cuMemAllocAsync": (_out, _size, _pointer),
    "cuMemFreeAsync": (_address, _pointer),
    "cuDeviceGetDefaultMemPool": (_out, _int),
    "cuMemPoolSetAttribute": (_pointer, _int, _pointer),
    "cuMemPoolTrimTo": (_pointer, _size),
    "cuMemHostAlloc": (_out, _size, _uint),
    "cuMemHostGetDevicePointer_v2": (_out, _pointer, _uint),
    "cuMemFreeHost": (_pointer,),
    "cuMemcpyHtoDAsync_v2": (_address, _pointer, _size, _pointer),
    "cuMemcpyDtoHAsync_v2": (_pointer, _address, _size, _pointer),
    "cuMemcpyDtoDAsync_v2": (_address, _address, _size, _pointer),
    "cuMemcpy2DAsync_v2": (_pointer, _pointer),
    "cuMemsetD8Async": (_address, ctypes.c_ubyte, _size, _pointer),
    "cuMemsetD32Async": (_address, _uint, _size, _pointer),
    "cuStreamCreate": (_out, _uint),
    "cuStreamDestroy_v2": (_pointer,),
    "cuStreamSynchronize": (_pointer,),
    "cuStreamQuery": (_pointer,),
    "cuStreamWaitEvent": (_pointer, _pointer, _uint),
    "cuStreamBatchMemOp_v2": (_pointer, _uint, _pointer, _uint),
    "cuStreamBeginCapture_v2": (_pointer, _int),
    "cuStreamEndCapture": (_pointer, _out),
    "cuEventCreate": (_out, _uint),
    "cuEventDestroy_v2": (_pointer,),
    "cuEventRecord": (_pointer, _pointer),
    "cuEventSynchronize": (_pointer,),
    "cuEventQuery": (_pointer,),
    "cuEventElapsedTime": (_out, _pointer, _pointer),
    "cuGraphInstantiateWithFlags": (_out, _pointer, ctypes.c_ulonglong),
    "cuGraphUpload": (_pointer, _pointer),
    "cuGraphLaunch": (_pointer, _pointer),
    "cuGraphDestroy": (_pointer,),
    "cuGraphExecDestroy": (_pointer,),
}


_NAMES = Names(
    stream_create="cuStreamCreate",
    stream_destroy="cuStreamDestroy_v2",
    stream_synchronize="cuStreamSynchronize",
    stream_query="cuStreamQuery",
    stream_wait="cuStreamWaitEvent",
    event_create="cuEventCreate",
    event_destroy="cuEventDestroy_v2",
    event_record="cuEventRecord",
    event_synchronize="cuEventSynchronize",
    event_query="cuEventQuery",
    event_elapsed="cuEventElapsedTime",
    host_allocate="cuMemHostAlloc",
    host_pointer="cuMemHostGetDevicePointer_v2",
    host_free="cuMemFreeHost",
    host_flags=_HOST_PORTABLE_MAPPED,
    capture_begin="cuStreamBeginCapture_v2",
    capture_end="cuStreamEndCapture",
    graph_make="cuGraphInstantiateWithFlags",
    graph_launch="cuGraphLaunch",
    graph_destroy="cuGraphExecDestroy",
    template_destroy="cuGraphDestroy",
    pool_default="cuDeviceGetDefaultMemPool",
    pool_set="cuMemPoolSetAttribute",
    pool_trim="cuMemPoolTrimTo",
    device_synchronize="cuCtxSynchronize",
    allocate="cuMemAllocAsync",
    allocate_later="cuMemAllocAsync",
    free_later="cuMemFreeAsync",
)


class Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D: rows of bytes from one place to another; types of memory are MEMORY_DEVICE here."""

    _fields_ = [
        ("source_x", _size),
        ("source_y", _size),
        ("source_type", _int),
        ("source_host", _pointer),
        ("source", _address),
        ("source_array", _pointer),
        ("source_pitch", _size),
        ("target_x", _size),
        ("target_y", _size),
        ("target_type", _int),
        ("target_host", _pointer),
        ("target", _address),
        ("target_array", _pointer),
        ("target_pitch", _size),
        ("width", _size),
        ("rows", _size),
    ]


class CudaError(DriverError):
    """A call of the CUDA driver failed."""


class CudaLibrary(DriverLibrary):
    """A loaded libcuda."""

    signatures, names, accepted = _SIGNATURES, _NAMES, "a driver for CUDA 12 or newer"

    def error(self, call: str, code: int) -> CudaError:
        texts = []
        for name in ("cuGetErrorName", "cuGetErrorString"):
            found = ctypes.c_char_p()
            self._library[name](code, ctypes.byref(found))
            texts.append(decoded(found.value))
        return CudaError(call, code, *texts)


class CudaContext(CudaLibrary):
    """The driver with a device's primary context, the one that torch uses too, current in every call.

    Attributes:
        overlaps: whether launches from now on may overlap the end of the kernel before them (cuda_launch.py).
    """

    def __init__(self, library: CudaLibrary, index: int) -> None:
        # Not a library loaded anew: the same one.
        self.path, self._library, self._functions = library.path, library._library, library._functions
        self.device = int(library.value(_int, "cuDeviceGet", index))
        self._context = int(library.value(_pointer, "cuDevicePrimaryCtxRetain", self.device) or 0)
        self.overlaps = env.CUDA_OVERLAP.get()
        self._inside = threading.local()
        self._pushed = _Pushed(self, self._context, self._inside)

    def code(self, name: str, *arguments: Any) -> int:
        with self.current():
            return super().code(name, *arguments)

    def current(self) -> contextlib.AbstractContextManager[None]:
        """Makes the context the thread's current one in the block; what was current before is so again after."""
        return _NOTHING if getattr(self._inside, "depth", 0) else self._pushed

    def asks(self) -> Callable[[], bool]:
        """A function that says whether the context is the thread's current one, whoever has made it so."""
        found, context = ctypes.c_void_p(), self._context
        ask, given = self.bare("cuCtxGetCurrent"), ctypes.c_void_p.from_param(ctypes.addressof(found))

        def is_current() -> bool:
            return ask(given) == SUCCESS and found.value == context

        return is_current


class _Pushed:
    """A context as a thread's current one, from `with` to its end; it does not nest. One object serves all threads."""

    def __init__(self, driver: CudaContext, context: int, inside: threading.local) -> None:
        self._push, self._pop = driver.function("cuCtxPushCurrent_v2"), driver.function("cuCtxPopCurrent_v2")
        self._error, self._context, self._inside = driver.error, context, inside
        # What is popped is known: nobody reads it.
        self._popped = ctypes.c_void_p()
        self._address = ctypes.addressof(self._popped)

    def __enter__(self) -> None:
        code = self._push(self._context)
        if code != SUCCESS:
            raise self._error("cuCtxPushCurrent_v2", code)
        self._inside.depth = 1

    def __exit__(self, *raised: object) -> None:
        self._inside.depth = 0
        self._pop(self._address)


def load_cuda() -> CudaLibrary:
    """NVIDIA's driver library: SPCONV_CUDA, or the loader's search path.

    Raises:
        LaunchError: there is none, or it does not load.
    """
    explicit = env.CUDA.get()
    try:
        return _load(str(explicit or "libcuda.so.1"))
    except OSError as error:
        where = env.CUDA.name if explicit else f"libcuda.so.1 in the loader's search path, or {env.CUDA.name}"
        raise LaunchError(f"no NVIDIA GPU: {where}: {error}; {INSTEAD}") from error


@functools.lru_cache(maxsize=8)
def _load(path: str) -> CudaLibrary:
    return CudaLibrary(path)
