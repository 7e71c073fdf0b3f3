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
import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from spconv_compiler.arrays import ITEM_BYTES, address_of
from spconv_compiler.errors import LaunchError
from spconv_compiler.runtime import memory_pool

ALIGNMENT = 64


# Bytes of scratch that a thread keeps from one call to the next: those of a small call.
_MOST_HELD = 1 << 20


class Block:
    """Host memory that goes back to the pool with its last buffer; `pointer` is where a cache line begins."""

    __slots__ = ("_storage", "nbytes", "pointer")

    def __init__(self, nbytes: int) -> None:
        try:
            self._storage: npt.NDArray[np.uint8] | None = memory_pool.take(nbytes + ALIGNMENT)
        except (MemoryError, ValueError):  # ValueError: more than an address can count
            raise LaunchError(f"out of memory: a buffer of {nbytes} bytes cannot be allocated") from None
        self.nbytes = nbytes
        self.pointer = -(-address_of(self._storage) // ALIGNMENT) * ALIGNMENT

    def __del__(self) -> None:
        # A block that could not be allocated has no storage; at exit, modules may be gone.
        holder = [getattr(self, "_storage", None)]
        self._storage = None
        if holder[0] is not None and memory_pool is not None:
            memory_pool.give(holder)

    def buffer(self, dtype: str, count: int, place: int) -> CpuBuffer:
        """A part as a buffer, `place` bytes behind the start, a multiple of ALIGNMENT; the block lives as long."""
        part = CpuBuffer.__new__(CpuBuffer)
        part.dtype, part.count, part.nbytes = dtype, count, ITEM_BYTES[dtype] * count
        part._block, part.pointer = self, self.pointer + place
        return part

    def bytes_at(self, pointer: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """A part of the block, which shares its memory."""
        assert self._storage is not None
        offset = pointer - address_of(self._storage)
        return self._storage[offset : offset + nbytes]


class _Held(threading.local):
    block: Block | None = None


_held = _Held()


def scratch(nbytes: int) -> Block:
    """Memory whose contents matter for one call only; a thread's calls share it unless it is large.

    Raises:
        LaunchError: out of memory.
    """
    if nbytes > _MOST_HELD:
        return Block(nbytes)
    block = _held.block
    if block is None or block.nbytes < nbytes:
        block = _held.block = Block(nbytes)
    return block


class CpuBuffer:
    """`count` elements of `dtype` in host memory, uninitialised, aligned to a cache line."""

    __slots__ = ("_block", "count", "dtype", "nbytes", "pointer")

    def __init__(self, dtype: str, count: int) -> None:
        self.dtype, self.count, self.nbytes = dtype, count, ITEM_BYTES[dtype] * count
        self._block = Block(self.nbytes)
        self.pointer = self._block.pointer

    def __reduce__(self) -> tuple[object, ...]:
        # A copy has memory of its own: an address is worth nothing in another process, and here only while this lives.
        return _filled, (self.dtype, self.count, self._block.bytes_at(self.pointer, self.nbytes).tobytes())

    def word(self, index: int) -> int:
        """An element of an i64 buffer, faster than by `array`."""
        return ctypes.c_int64.from_address(self.pointer + 8 * index).value

    def array(self) -> npt.NDArray[np.generic]:
        """The contents; bf16 as uint16."""
        kinds = {"f32": np.float32, "i32": np.int32, "i64": np.int64, "bf16": np.uint16, "f16": np.float16}
        return self._block.bytes_at(self.pointer, self.nbytes).view(kinds[self.dtype])


def _filled(dtype: str, count: int, contents: bytes) -> CpuBuffer:
    buffer = CpuBuffer(dtype, count)
    ctypes.memmove(buffer.pointer, contents, buffer.nbytes)
    return buffer


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
