"""Values derived from a tensor's contents, kept as long as the tensor lives and does not change.

The key is the tensor's identity; no user key is needed and none is trusted. An entry is used again only if the
memory is the same, torch's version counter has not moved, and a checksum of the contents agrees: the counter
alone misses writes through `.data`, numpy aliases and raw pointers. Entries go when their tensor is collected,
and the least recently used go when there are too many: slices of one long-lived tensor would pile up otherwise.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np

from spconv_compiler.arrays import Array

V = TypeVar("V")


@dataclasses.dataclass
class _Entry(Generic[V]):
    owner: weakref.ref[Any]
    state: tuple[Any, ...]
    checksum: Any
    value: V


class TensorCache(Generic[V]):
    """See the module. All methods may be called from several threads.

    Args:
        size: entries kept at most.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"size is {size}; accepted: at least 1")
        self._size = size
        self._entries: OrderedDict[tuple[Any, ...], _Entry[V]] = OrderedDict()
        self._reset_lock()
        _caches.add(self)

    def __len__(self) -> int:
        return len(self._entries)

    def get(
        self,
        source: Any,
        array: Array,
        extra: Any,
        checksum: Callable[[Array], Any],
        build: Callable[[], V],
        unchanged: Callable[[Array, Any], bool] | None = None,
    ) -> V:
        """The value for a tensor, built when there is none or when the tensor has changed.

        Threads that miss at the same time build once each; the last value stays.

        Args:
            source: the tensor or array the user passed.
            array: its contiguous contents.
            extra: what else the value depends on; hashable.
            checksum: of contents.
            build: makes the value; when it raises, nothing is kept.
            unchanged: whether contents still have a checksum, as far as the caller is concerned; by default, whether
                they have an equal one.
        """
        owner, place, state = _identity(source, array)
        key, entries = (id(owner), place, extra), self._entries
        with self._lock:
            found = entries.get(key)
            if found is not None:
                entries.move_to_end(key)
        if found is not None and found.owner() is owner and found.state == state:
            known = found.checksum
            if checksum(array) == known if unchanged is None else unchanged(array, known):
                return found.value
        # Before the contents are read: a write in the meantime will be noticed.
        now = checksum(array)
        value = build()
        entry = _Entry(weakref.ref(owner, self._dropper(key)), state, now, value)
        with self._lock:
            self._entries[key] = entry
            self._entries.move_to_end(key)
            if len(self._entries) > self._size:
                self._entries.popitem(last=False)
        return value

    def forget(self, owner: Any) -> None:
        """Forgets what belongs to a tensor, and with it the weak references to it that are held here."""
        with self._lock:
            for key in [key for key, entry in self._entries.items() if entry.owner() is owner]:
                del self._entries[key]

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._entries.clear()

    def _dropper(self, key: tuple[Any, ...]) -> Callable[[weakref.ref[Any]], None]:
        cache = weakref.ref(self)

        def drop(reference: weakref.ref[Any]) -> None:
            alive = cache()
            if alive is not None:
                with alive._lock:
                    # Another tensor may have taken the id, and the key, in the meantime.
                    entry = alive._entries.get(key)
                    if entry is not None and entry.owner is reference:
                        del alive._entries[key]

        return drop

    def _reset_lock(self) -> None:
        # Re-entrant: a collection inside a locked section may run `drop` in the same thread.
        self._lock = threading.RLock()


_caches: weakref.WeakSet[TensorCache[Any]] = weakref.WeakSet()


def forget(owner: Any) -> None:
    """Lets every cache forget a tensor: torch.utils.swap_tensors takes none that anything refers to weakly."""
    for cache in list(_caches):
        cache.forget(owner)


def _reset_after_fork() -> None:
    # A thread that held a lock does not exist in the child, and would never release it.
    for cache in _caches:
        cache._reset_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def _identity(source: Any, array: Array) -> tuple[Any, Any, tuple[Any, ...]]:
    """(object whose life the entry shares, place of a view within it, state that must not change).

    A view shares its base's life, so that equal views of one tensor find one entry.
    """
    # The strides of what is contiguous follow from its shape; the address of a copy says nothing.
    held = array.source is source
    if isinstance(source, np.ndarray):
        base, version = source.base if type(source.base) is np.ndarray else None, 0
        where: Any = array.pointer if held else (source.ctypes.data, source.strides)
    else:
        base, version = source._base, 0 if source.is_inference() else source._version
        where = array.pointer if held else (source.data_ptr(), source.stride())
    state = (where, array.shape, array.dtype, version)
    if base is None:
        return source, None, state
    return base, state[:3], state
