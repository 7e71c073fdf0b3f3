"""Values derived from a tensor's contents, kept as long as the tensor lives and does not change.

The key is the tensor's identity; no user key is needed and none is trusted. An entry is used again only if the
memory is the same, torch's version counter has not moved, and a checksum of the contents agrees: the counter
alone misses writes through `.data`, numpy aliases and raw pointers. Entries go when their tensor is collected.
"""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from spconv_compiler.arrays import Array, is_tensor

V = TypeVar("V")


@dataclasses.dataclass
class _Entry(Generic[V]):
    owner: weakref.ref[Any]
    state: tuple[Any, ...]
    checksum: int
    value: V


class TensorCache(Generic[V]):
    """See the module. All methods may be called from several threads."""

    def __init__(self) -> None:
        self._entries: dict[tuple[Any, ...], _Entry[V]] = {}
        # Re-entrant: a collection inside a locked section may run `_drop` in the same thread.
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, source: Any, array: Array, extra: Any, checksum: Callable[[Array], int], build: Callable[[], V]) -> V:
        """The value for a tensor, built when there is none or when the tensor has changed.

        Args:
            source: the tensor or array the user passed.
            array: its contiguous contents.
            extra: what else the value depends on; hashable.
            checksum: of contents.
        """
        owner, place, state = _identity(source)
        key = (id(owner), place, extra)
        found = self._entries.get(key)
        now = checksum(array)
        if found is not None and found.owner() is owner and found.state == state and found.checksum == now:
            return found.value
        value = build()
        with self._lock:
            self._entries[key] = _Entry(weakref.ref(owner, self._dropper(key)), state, now, value)
        return value

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


def _identity(source: Any) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
    """(object whose life the entry shares, place within it, state that must not change).

    A torch view shares its base's life, so that equal views of one tensor find one entry.
    """
    if is_tensor(source):
        owner = source if source._base is None else source._base
        place = (source.storage_offset(), source.shape, source.stride(), source.dtype)
        version = 0 if source.is_inference() else source._version
        return owner, place, (source.data_ptr(), version)
    return source, (source.shape, source.strides, str(source.dtype)), (source.ctypes.data,)
