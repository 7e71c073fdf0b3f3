"""Compiled kernels on this host: loads the shared object, hands out memory, calls functions.

Kernels are plain C functions `i64 f(void *…, i64 …)`. They return 0; a positive number asks for a larger buffer
(runtime/plan.py); a negative one means that memory or threads ran out.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import tempfile
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from spconv_compiler.arrays import ITEM_BYTES, address_of
from spconv_compiler.errors import LaunchError
from spconv_compiler.runtime import memory_pool

ALIGNMENT = 64


class CpuBuffer:
    """`count` elements of `dtype` in host memory, uninitialised, aligned to a cache line."""

    __slots__ = ("_storage", "count", "dtype", "nbytes", "pointer")

    def __init__(self, dtype: str, count: int) -> None:
        self.dtype, self.count, self.nbytes = dtype, count, ITEM_BYTES[dtype] * count
        try:
            self._storage: npt.NDArray[np.uint8] | None = memory_pool.take(self.nbytes + ALIGNMENT)
        except (MemoryError, ValueError):  # ValueError: more than an address can count
            raise LaunchError(f"out of memory: a buffer of {self.nbytes} bytes cannot be allocated") from None
        self.pointer = -(-address_of(self._storage) // ALIGNMENT) * ALIGNMENT

    def __del__(self) -> None:
        # A buffer that could not be allocated has none; at exit, modules may be gone.
        block = getattr(self, "_storage", None)
        if block is not None and memory_pool is not None:
            self._storage = None
            memory_pool.give(block)

    def array(self) -> npt.NDArray[np.generic]:
        """The contents; bf16 as uint16."""
        kinds = {"f32": np.float32, "i32": np.int32, "i64": np.int64, "bf16": np.uint16, "f16": np.float16}
        assert self._storage is not None
        offset = self.pointer - address_of(self._storage)
        return self._storage[offset : offset + self.nbytes].view(kinds[self.dtype])


class CpuModule:
    """A loaded code object. Functions are found by name and keep their argument types."""

    def __init__(self, code: bytes) -> None:
        self._library = _load(code)
        self._functions: dict[str, ctypes._FuncPointer] = {}

    def function(self, name: str, kinds: Sequence[str], *, result: bool = True) -> ctypes._FuncPointer:
        """The function `name`; `kinds` says "buffer" or "symbol" for each argument."""
        found = self._functions.get(name)
        if found is None:
            try:
                found = self._library[name]
            except AttributeError:
                raise LaunchError(f"the code object has no function {name!r}: another compiler built it") from None
            found.argtypes = [ctypes.c_void_p if kind == "buffer" else ctypes.c_int64 for kind in kinds]
            found.restype = ctypes.c_int64 if result else None
            self._functions[name] = found
        return found


def _load(code: bytes) -> ctypes.CDLL:
    """Loads a shared object from memory: what was checked is what runs, wherever the cache lies.

    Raises:
        LaunchError: the loader refuses the object, or there is nowhere to put it.
    """
    try:
        if hasattr(os, "memfd_create"):
            try:
                return _load_from_memory(code)
            except OSError as error:
                # Some systems forbid programs in anonymous memory (vm.memfd_noexec); a file may do there.
                if error.errno not in (errno.EACCES, errno.EPERM, errno.ENOSYS, None):
                    raise
        with tempfile.NamedTemporaryFile(prefix="spconv-", suffix=".so") as file:
            file.write(code)
            file.flush()
            return ctypes.CDLL(file.name)
    except OSError as error:
        raise LaunchError(f"the kernel cannot be loaded: {error}") from error


_loads = itertools.count()


def _load_from_memory(code: bytes) -> ctypes.CDLL:
    descriptor = os.memfd_create("spconv-kernel", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(code)
        # The loader takes an object for loaded already when its path is one it has seen, and descriptors are
        # used again: the number of the load, written in slashes and dots, keeps every path apart.
        apart = "".join("./" if digit == "1" else "/" for digit in f"{next(_loads):b}")
        return ctypes.CDLL(f"/proc/self/fd/{apart}{descriptor}")
    finally:
        os.close(descriptor)
