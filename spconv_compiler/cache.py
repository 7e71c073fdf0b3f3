"""Compiled kernels in memory, then on disk, then from the compiler.

The disk store itself is `cache_disk.py`, the format of its entries `cache_entry.py`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from spconv_compiler import env
from spconv_compiler.cache_disk import DiskCache, Entry, Files, warn_unkept

__all__ = ["Counts", "DiskCache", "Entry", "Files", "KernelCache", "open_disk_cache"]

log = logging.getLogger(__name__)

V = TypeVar("V")


def open_disk_cache() -> DiskCache | None:
    """The cache that SPCONV_CACHE, SPCONV_CACHE_DIR and SPCONV_CACHE_MAX_MB ask for, or None for no cache.

    Raises:
        InputError: one of these variables has a value that is not accepted.
    """
    if not env.CACHE.get():
        return None
    root = env.CACHE_DIR.get()
    if root is None:
        warn_unkept("", "there is no home directory")
        return None
    return DiskCache(root, env.CACHE_MAX_MB.get() * 2**20)


@dataclasses.dataclass
class Counts:
    """How many kernels came from where."""

    memory: int = 0
    disk: int = 0
    built: int = 0


class KernelCache(Generic[V]):
    """Loaded kernels in memory, backed by the disk, backed by the compiler.

    Threads that want one key share one build; so do processes, through the lock on disk.

    Args:
        load: makes the value that is kept in memory from a key and the entry's files. When it raises on an
            entry from disk, that entry is dropped and built again.
        memory_size: how many values are kept; the least recently used go first.
        disk: the store behind, or None.
    """

    def __init__(
        self, load: Callable[[str, Files], V], memory_size: int = 256, disk: DiskCache | None = None
    ) -> None:
        if memory_size < 1:
            raise ValueError(f"memory_size is {memory_size}; accepted: at least 1")
        self.disk = disk
        self.counts = Counts()
        self._load = load
        self._memory_size = memory_size
        self._memory: OrderedDict[str, V] = OrderedDict()
        self._reset_locks()
        _caches.add(self)

    def get_or_build(self, key: str, parts: Mapping[str, object], build: Callable[[], Files]) -> V:
        """The value of `key`: from memory, from disk, or built, stored and loaded.

        Raises:
            Exception: what `build` or `load` raises; nothing is stored then, and the next call builds again.
        """
        with self._mutex:
            if key in self._memory:
                return self._recall(key)
            gate = self._gates.setdefault(key, _Gate())
            gate.users += 1
        try:
            with gate.lock:
                with self._mutex:
                    if key in self._memory:
                        return self._recall(key)
                value = self._load_or_build(key, parts, build)
                with self._mutex:
                    self._memory[key] = value
                    if len(self._memory) > self._memory_size:
                        self._memory.popitem(last=False)
                return value
        finally:
            with self._mutex:
                gate.users -= 1
                if gate.users == 0:
                    self._gates.pop(key, None)

    def __contains__(self, key: str) -> bool:
        """Whether a key is in memory or seems to be on disk; the entry there is not verified."""
        with self._mutex:
            if key in self._memory:
                return True
        return self.disk is not None and key in self.disk

    def clear_memory(self) -> None:
        """Forgets the loaded kernels; the disk keeps its entries."""
        with self._mutex:
            self._memory.clear()

    def _recall(self, key: str) -> V:
        self._memory.move_to_end(key)
        self.counts.memory += 1
        return self._memory[key]

    def _load_or_build(self, key: str, parts: Mapping[str, object], build: Callable[[], Files]) -> V:
        if self.disk is None:
            self.counts.built += 1
            return self._load(key, build())
        found = self._from_disk(key, self.disk)
        if found is not None:
            return found[0]
        with self.disk.lock(key):
            # Another process may have built it while this one waited.
            found = self._from_disk(key, self.disk)
            if found is not None:
                return found[0]
            files = build()
            self.disk.put(key, files, parts)
        self.counts.built += 1
        return self._load(key, files)

    def _from_disk(self, key: str, disk: DiskCache) -> tuple[V] | None:
        """The value of an entry on disk, or None when there is no entry that loads."""
        files = disk.get(key)
        if files is None:
            return None
        try:
            value = self._load(key, files)
        except Exception as error:  # the bytes are those that were stored, but not by this `load`'s equal
            log.warning("dropping cache entry %s, which does not load: %s", key, error)
            disk.remove(key)
            return None
        self.counts.disk += 1
        return (value,)

    def _reset_locks(self) -> None:
        self._mutex = threading.Lock()
        self._gates: dict[str, _Gate] = {}


class _Gate:
    """Lets one thread at a time work on a key."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0


_caches: weakref.WeakSet[KernelCache[Any]] = weakref.WeakSet()


def _reset_after_fork() -> None:
    # Threads that held these locks do not exist in the child, and would never release them.
    for cache in _caches:
        cache._reset_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
