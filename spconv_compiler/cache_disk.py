"""Compiled kernels on disk.

An entry is a folder `<root>/v1/<key[:2]>/<key>/` (`cache_entry.py`). It is written aside and put in place by
one rename, so a reader sees all of it or nothing. Nothing is fsync'd: what a power failure loses, the
checksums show, and a damaged entry is dropped and built again. Locks only save work, when two processes want
one kernel; no correctness rests on them. The modification time of an entry's manifest is its last use.

Looking at thousands of entries takes a third of a second, so the file `ledger` has one line with the size of
all entries when they were last looked at, and one with the size of each entry written since. Only when the
sum exceeds the bound are the entries looked at, and evicted down to nine tenths of the bound.

A cache that cannot be used costs time, never a result: the first failure warns and the program goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import re
import shutil
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from spconv_compiler.cache_entry import (
    MANIFEST,
    DamagedEntry,
    check_name,
    manifest_text,
    read_files,
    read_manifest,
)
from spconv_compiler.errors import CacheWarning

if TYPE_CHECKING:
    from filelock import BaseFileLock

log = logging.getLogger(__name__)

Files = Mapping[str, bytes]

LAYOUT = "v1"
LOCK_TIMEOUT_S = 60.0
STALE_S = 3600.0
LOW_WATER = 0.9

_KEY = re.compile(r"[0-9a-f]{64}")
_LEDGER = re.compile(rb"bytes\n(\d+\n)+")
_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)

_warned: set[str] = set()
_warned_lock = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Entry:
    """What the cache knows of one kernel.

    Attributes:
        key: 64 hexadecimal digits.
        parts: the parts of the key, as plain JSON values.
        size: bytes on disk, manifest included.
        created: seconds since 1970.
        last_use: seconds since 1970.
        files: size in bytes of each stored file.
    """

    key: str
    parts: dict[str, object]
    size: int
    created: float
    last_use: float
    files: dict[str, int]


@dataclasses.dataclass(frozen=True)
class _Usage:
    last_use_ns: int
    key: str
    size: int


class DiskCache:
    """The store below one directory, shared by processes.

    Args:
        root: the directory; it is made when the first entry is written.
        max_bytes: bound on the size of all entries; the least recently used go first.

    Attributes:
        writable: False once writing has failed; nothing more is written by this object then.
    """

    def __init__(self, root: Path, max_bytes: int) -> None:
        if max_bytes < 1:
            raise ValueError(f"max_bytes is {max_bytes}; accepted: at least 1")
        self.root = Path(root).absolute()
        self.max_bytes = max_bytes
        self._entries = self.root / LAYOUT
        self._staging = self._entries / "staging"
        self._locks = self._entries / "locks"
        self._clock = self._entries / "clock"
        self._ledger = self._entries / "ledger"
        self.writable = True

    def get(self, key: str) -> dict[str, bytes] | None:
        """The files of an entry, verified, or None. A damaged entry is removed."""
        folder = self._folder(key)
        try:
            if not os.path.lexists(folder):
                return None
            files = read_files(folder, read_manifest(folder, key))
        except DamagedEntry as damage:
            # Another process may have evicted it while it was read: then there is nothing to report.
            if self.remove(key):
                log.warning("dropped damaged cache entry %s: %s", folder, damage)
            return None
        except OSError as error:
            self._give_up("read", error)
            return None
        self._touch(folder / MANIFEST)
        return files

    def put(self, key: str, files: Files, parts: Mapping[str, object]) -> bool:
        """Stores an entry, makes room for it, and says whether it is stored now.

        A valid entry of this key stays as it is: the key decides the content. An entry larger than the whole
        bound is not stored.

        Raises:
            ValueError: the key or a file's name is malformed.
            TypeError: `parts` have no printed form (`cache_key.canonical`).
        """
        folder = self._folder(key)
        members = {**files, MANIFEST: manifest_text(key, files, parts)}
        size = sum(map(len, members.values()))
        if size > self.max_bytes:
            log.info("not caching %s: it has %d bytes, the bound is %d", key, size, self.max_bytes)
            return False
        if not self.writable:
            return False
        staged = self._aside()
        try:
            self._make_folders(staged)
            for name, content in members.items():
                (staged / name).write_bytes(content)
            self._touch(staged / MANIFEST)
            self._publish(staged, folder, key)
        except OSError as error:
            self._give_up("write to", error)
            return False
        finally:
            _delete(staged)
        self._make_room(key, size)
        return True

    def path(self, key: str, name: str) -> Path | None:
        """Where a stored file lies, or None. Not verified, and another process may remove it at any time."""
        path = self._folder(key) / check_name(name)
        return path if os.path.isfile(path) else None

    def __contains__(self, key: str) -> bool:
        """Whether there is an entry. Not verified, as `path`."""
        return os.path.isfile(self._folder(key) / MANIFEST)

    @contextlib.contextmanager
    def lock(self, key: str, timeout: float = LOCK_TIMEOUT_S) -> Iterator[bool]:
        """Holds the lock of `key` among processes; yields whether it is held.

        The operating system frees the lock when its holder dies. After `timeout` seconds, or where locks
        cannot be made, the body runs without it.
        """
        held = self._acquire(self._locks / f"{self._folder(key).name}.lock", timeout)
        try:
            yield held is not None
        finally:
            if held is not None:
                held.release()

    def entries(self) -> list[Entry]:
        """All entries with a valid manifest, the most recently used first."""
        found = []
        for usage in reversed(self._scan()):
            folder = self._folder(usage.key)
            try:
                manifest = read_manifest(folder, usage.key)
            except (DamagedEntry, OSError) as error:
                log.info("skipping cache entry %s: %s", folder, error)
                continue
            sizes = {name: facts.size for name, facts in manifest.files.items()}
            last_use = usage.last_use_ns / 1e9
            found.append(Entry(usage.key, manifest.parts, usage.size, manifest.created, last_use, sizes))
        return found

    def remove(self, key: str) -> bool:
        """Removes an entry; False when there was none, or it cannot be removed."""
        folder = self._folder(key)
        aside = self._aside()
        try:
            if not os.path.lexists(folder):
                return False
            aside.parent.mkdir(exist_ok=True)
            folder.rename(aside)
        except FileNotFoundError:  # another process was faster
            return False
        except OSError as error:
            self._give_up("remove from", error)
            return False
        _delete(aside)
        return True

    def clear(self) -> int:
        """Removes all entries and returns how many there were."""
        count = sum(self.remove(usage.key) for usage in self._scan())
        self._sweep(self._staging)
        self._sweep(self._locks)
        return count

    def _folder(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"cache key {key!r} is not accepted; accepted: 64 lower-case hexadecimal digits")
        return self._entries / key[:2] / key

    def _aside(self) -> Path:
        return self._staging / f"{os.getpid()}.{uuid.uuid4().hex}"

    def _make_folders(self, folder: Path) -> None:
        # Entries are code that will be loaded: other users must not be able to put some here.
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)

    def _publish(self, staged: Path, folder: Path, key: str) -> None:
        """Renames `staged` to `folder`, in place of a damaged entry, but not of a valid one."""
        folder.parent.mkdir(exist_ok=True)
        attempts = 10
        for attempt in range(attempts):
            try:
                staged.rename(folder)
                return
            except OSError as error:
                if error.errno not in _OCCUPIED or attempt == attempts - 1:
                    raise
            if self.get(key) is not None:
                return

    def _acquire(self, path: Path, timeout: float) -> BaseFileLock | None:
        if not self.writable:
            return None
        import filelock  # takes 25 to 60 ms, so it is left to those who compile

        try:
            self._make_folders(path.parent)
            lock: BaseFileLock = filelock.FileLock(path)
            lock.acquire(timeout=timeout, poll_interval=0.01)
        except filelock.Timeout:
            log.warning("waited %.0f s for another process to release %s; going on without it", timeout, path)
            return None
        except OSError as error:
            self._give_up("lock", error)
            return None
        return lock

    def _touch(self, manifest: Path) -> None:
        """Marks an entry as the one used last.

        Stamps grow whatever the system clock does: the file `clock` carries the latest one, and the next is
        at least a microsecond later. A read-only cache keeps the stamps it has.
        """
        with contextlib.suppress(OSError):
            stamp = time.time_ns()
            with contextlib.suppress(FileNotFoundError):
                stamp = max(stamp, self._clock.stat().st_mtime_ns + 1000)
            os.utime(manifest, ns=(stamp, stamp))
            self._clock.touch()
            os.utime(self._clock, ns=(stamp, stamp))

    def _scan(self) -> list[_Usage]:
        """Size and last use of all entries, damaged ones too, the least recently used first."""
        shards = [shard for shard in _children(self._entries) if len(shard.name) == 2]
        entries = [entry for shard in shards for entry in _children(shard.path) if _KEY.fullmatch(entry.name)]
        return sorted(map(_usage, entries), key=lambda usage: usage.last_use_ns)

    def _make_room(self, key: str, size: int) -> None:
        """Keeps the bound now that `key`, of `size` bytes, is stored; `key` itself is not evicted."""
        self._sweep(self._staging)
        total = self._account(size)
        if total is not None and total <= self.max_bytes:
            return
        usages = self._scan()
        total = sum(usage.size for usage in usages)
        goal = self.max_bytes if total <= self.max_bytes else LOW_WATER * self.max_bytes
        for usage in usages:
            if total <= goal:
                break
            if usage.key != key:
                self.remove(usage.key)
                total -= usage.size  # also when another process was faster
                log.info("evicted cache entry %s (%d bytes)", usage.key, usage.size)
        self._open_ledger(total)
        self._sweep(self._locks)

    def _account(self, size: int) -> int | None:
        """Adds a line to the ledger and returns the sum, or None without a ledger that can be read."""
        try:
            with open(os.open(self._ledger, os.O_RDWR | os.O_APPEND), "r+b", buffering=0) as ledger:
                ledger.write(b"%d\n" % size)
                ledger.seek(0)
                lines = ledger.read()
        except OSError:
            return None
        return sum(map(int, lines.split()[1:])) if _LEDGER.fullmatch(lines) else None

    def _open_ledger(self, total: int) -> None:
        # Lines that other processes add in this moment are lost; the next look at the entries sees them.
        partial = self._aside()
        with contextlib.suppress(OSError):  # without a ledger, entries are looked at each time
            partial.write_bytes(b"bytes\n%d\n" % total)
            partial.replace(self._ledger)

    def _sweep(self, folder: Path) -> None:
        """Deletes what killed processes left in `folder` more than an hour ago: half-written entries, locks.

        Deleting a lock that is held after all lets two processes compile one kernel, no more.
        """
        limit = time.time() - STALE_S
        for leftover in _children(folder):
            with contextlib.suppress(FileNotFoundError):
                if leftover.stat(follow_symlinks=False).st_mtime < limit:
                    _delete(Path(leftover.path))

    def _give_up(self, action: str, error: OSError) -> None:
        """Stops writing in this process."""
        self.writable = False
        where = "" if error.filename is None else f" ({error.filename})"
        log.info("cannot %s %s: %s", action, self.root, error)
        warn_unkept(f"in {self.root}", f"{error.strerror or error}{where}")


def warn_unkept(place: str, reason: str) -> None:
    """Says that there is no cache on disk, once in this process for each place; `place` may be empty."""
    with _warned_lock:
        first = place not in _warned
        _warned.add(place)
    if first:
        warnings.warn(
            f"compiled kernels cannot be kept{place and ' '}{place}: {reason}. Every process compiles them again; set "
            "SPCONV_CACHE_DIR to a directory that can be written to, or SPCONV_CACHE=off to do without one",
            CacheWarning,
            stacklevel=_frames_inside(),
        )


def _frames_inside() -> int:
    """The stacklevel with which the caller's warning names the line that called this package."""
    frame, level, found, package = sys._getframe(1), 1, 1, __name__.partition(".")[0]
    while frame.f_back is not None:
        frame, level = frame.f_back, level + 1
        module = frame.f_globals.get("__name__", "").partition(".")[0]
        # What entered a context of this package was not contextlib, but who called that.
        if module == package or (module == "contextlib" and found == level - 1):
            found = level
    return found + 1


def _children(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as children:
            return list(children)
    except OSError:  # not there, no folder, or not readable: nothing that could be counted or removed
        return []


def _usage(entry: os.DirEntry[str]) -> _Usage:
    """Size and last use of an entry; less of both for what another process removes at this moment."""
    size = last_use = 0
    with contextlib.suppress(OSError):
        last_use = entry.stat(follow_symlinks=False).st_mtime_ns
    for child in _children(entry.path):
        with contextlib.suppress(OSError):
            status = child.stat(follow_symlinks=False)
            size += status.st_size
            if child.name == MANIFEST:
                last_use = status.st_mtime_ns
    return _Usage(last_use, entry.name, size)


def _delete(path: Path) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
