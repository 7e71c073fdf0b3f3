"""The kernels on disk: entries, the size bound and the order of eviction."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import pytest
from cache_cases import BOUND, FILES, KEY, PARTS, folder_of, key_of, keys, leftovers
from hypothesis import given, settings
from hypothesis import strategies as st

from spconv_compiler import cache_disk
from spconv_compiler.cache import DiskCache


def test_what_is_put_is_got(disk):
    assert disk.get(KEY) is None
    assert disk.path(KEY, "kernel.so") is None
    assert disk.put(KEY, FILES, PARTS)
    assert disk.get(KEY) == FILES
    assert DiskCache(disk.root, BOUND).get(KEY) == FILES
    path = disk.path(KEY, "kernel.so")
    assert path is not None and path.read_bytes() == FILES["kernel.so"]
    assert disk.path(KEY, "other") is None
    assert disk.get(key_of(1)) is None
    assert leftovers(disk) == []


def test_entries_tell_what_is_stored(disk):
    before = time.time()
    disk.put(KEY, FILES, PARTS)
    (entry,) = disk.entries()
    assert entry.key == KEY
    assert entry.parts == {"kernel_size": [3, 3, 3], "c_in": 16, "name": "é"}
    assert entry.files == {name: len(content) for name, content in FILES.items()}
    assert entry.size == sum(path.stat().st_size for path in folder_of(disk).iterdir())
    assert before - 1 <= entry.created <= time.time() + 1
    assert before - 1 <= entry.last_use <= time.time() + 1


def test_remove_and_clear(disk):
    for number in range(4):
        disk.put(key_of(number), FILES, PARTS)
    assert disk.remove(key_of(2)) and not disk.remove(key_of(2))
    assert disk.get(key_of(2)) is None
    assert sorted(keys(disk)) == sorted(key_of(number) for number in (0, 1, 3))
    assert disk.clear() == 3
    assert keys(disk) == [] and leftovers(disk) == []
    assert disk.clear() == 0


def test_a_valid_entry_stays_when_another_process_was_faster(disk):
    disk.put(KEY, FILES, PARTS)
    inode = folder_of(disk).stat().st_ino
    assert disk.put(KEY, FILES, PARTS)
    assert folder_of(disk).stat().st_ino == inode and leftovers(disk) == []


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "manifest.json", "a b", "-rf"])
def test_a_file_name_that_is_no_plain_name_is_refused(name, disk):
    with pytest.raises(ValueError, match="accepted: letters, digits"):
        disk.put(KEY, {name: b""}, PARTS)
    with pytest.raises(ValueError, match="accepted: letters, digits"):
        disk.path(KEY, name)


@pytest.mark.parametrize("key", ["", "../../etc", "ab", KEY.upper(), KEY + "0", KEY + "\n"])
def test_a_malformed_key_is_refused(key, disk):
    for action in (disk.get, disk.remove, lambda key: disk.put(key, FILES, PARTS), lambda key: disk.path(key, "a")):
        with pytest.raises(ValueError, match="64 lower-case hexadecimal digits"):
            action(key)
    with pytest.raises(ValueError), disk.lock(key):
        pass
    assert not disk.root.exists()


def room_for(count: int, files: dict[str, bytes]) -> int:
    """A bound that holds `count` such entries, also after an eviction, but not one more."""
    with tempfile.TemporaryDirectory() as root:
        disk = DiskCache(Path(root), BOUND)
        disk.put(KEY, files, PARTS)
        return int((count + 0.05) / cache_disk.LOW_WATER * disk.entries()[0].size)


def test_the_least_recently_used_entries_go_first(tmp_path):
    files = {"kernel.so": bytes(10_000)}
    disk = DiskCache(tmp_path, room_for(3, files))
    for number in range(3):
        disk.put(key_of(number), files, PARTS)
    disk.get(key_of(0))
    disk.put(key_of(3), files, PARTS)
    assert keys(disk) == [key_of(3), key_of(0), key_of(2)]
    disk.put(key_of(4), {"kernel.so": bytes(19_500)}, PARTS)
    assert keys(disk) == [key_of(4), key_of(3)]


def test_an_entry_larger_than_the_bound_is_refused_and_evicts_nothing(tmp_path):
    disk = DiskCache(tmp_path, 20_000)
    disk.put(key_of(1), {"kernel.so": bytes(5_000)}, PARTS)
    assert not disk.put(KEY, {"kernel.so": bytes(20_000)}, PARTS)
    assert disk.get(KEY) is None and keys(disk) == [key_of(1)]
    assert disk.put(KEY, {"kernel.so": bytes(18_000)}, PARTS)
    assert keys(disk) == [KEY]


def test_a_smaller_bound_holds_from_the_next_entry_on(tmp_path):
    files = {"kernel.so": bytes(10_000)}
    for number in range(5):
        DiskCache(tmp_path, BOUND).put(key_of(number), files, PARTS)
    small = DiskCache(tmp_path, room_for(2, files))
    small.put(key_of(5), files, PARTS)
    assert keys(small) == [key_of(5), key_of(4)]


def test_damaged_entries_count_and_are_evicted(tmp_path):
    disk = DiskCache(tmp_path, 25_000)
    disk.put(key_of(1), {"kernel.so": bytes(15_000)}, PARTS)
    (folder_of(disk, key_of(1)) / "manifest.json").unlink()
    os.utime(folder_of(disk, key_of(1)), (1, 1))
    disk.put(key_of(2), {"kernel.so": bytes(15_000)}, PARTS)
    assert not folder_of(disk, key_of(1)).exists()
    assert disk.get(key_of(2)) is not None


def test_the_entry_being_written_is_never_evicted(tmp_path):
    """Stamps from elsewhere may lie in the future, so that the new entry looks like the oldest."""
    disk = DiskCache(tmp_path, 25_000)
    disk.put(key_of(1), {"kernel.so": bytes(15_000)}, PARTS)
    future = time.time() + 10**6
    os.utime(folder_of(disk, key_of(1)) / "manifest.json", (future, future))
    disk.put(key_of(2), {"kernel.so": bytes(15_000)}, PARTS)
    assert keys(disk) == [key_of(2)]


def test_order_of_use_survives_a_clock_that_goes_backwards(tmp_path, monkeypatch):
    files = {"kernel.so": bytes(10_000)}
    disk = DiskCache(tmp_path, room_for(2, files))
    now = [2_000_000_000 * 10**9]
    monkeypatch.setattr(time, "time_ns", lambda: now[0])
    for number in range(6):
        now[0] -= 86400 * 10**9
        disk.put(key_of(number), files, PARTS)
        expected = [key_of(number), key_of(number - 1)] if number else [KEY]
        assert keys(disk) == expected
    disk.get(key_of(4))
    now[0] -= 10**9
    disk.put(key_of(6), files, PARTS)
    assert keys(disk) == [key_of(6), key_of(4)]


@given(
    operations=st.lists(st.tuples(st.sampled_from(["put", "get", "remove"]), st.integers(0, 5)), max_size=25),
    bound=st.integers(2_000, 9_000),
)
@settings(max_examples=40, deadline=None)
def test_bound_and_order_are_those_of_a_simple_model(operations, bound):
    """The model: a list of (number, size), the least recently used first.

    When it exceeds the bound it shrinks to nine tenths of it, or to the entry just written.
    """
    with tempfile.TemporaryDirectory() as root:
        disk, model = DiskCache(Path(root), bound), []
        for action, number in operations:
            key, content = key_of(number), {"kernel.so": bytes(700 * (1 + number))}
            held = [entry for entry in model if entry[0] == number]
            if action == "remove":
                assert disk.remove(key) == bool(held)
                model = [entry for entry in model if entry[0] != number]
            elif action == "get":
                assert disk.get(key) == (content if held else None)
                model = [entry for entry in model if entry[0] != number] + held
            elif disk.put(key, content, PARTS):
                sizes = {entry.key: entry.size for entry in disk.entries()}
                model = [entry for entry in model if entry[0] != number] + [(number, sizes[key])]
                if sum(size for _, size in model) > bound:
                    while len(model) > 1 and sum(size for _, size in model) > 0.9 * bound:
                        model.pop(0)
            assert keys(disk) == [key_of(number) for number, _ in reversed(model)]
            assert sum(entry.size for entry in disk.entries()) <= bound


LEDGERS = {"missing": None, "empty": b"", "not numbers": b"bytes\n12\nx\n", "binary": b"\xff\0", "torn": b"-"}


@pytest.mark.parametrize("ledger", LEDGERS.values(), ids=LEDGERS.keys())
def test_the_bound_holds_without_a_ledger(ledger, tmp_path):
    files = {"kernel.so": bytes(10_000)}
    disk = DiskCache(tmp_path, room_for(2, files))
    for number in range(4):
        if ledger is None:
            (tmp_path / "v1" / "ledger").unlink(missing_ok=True)
        elif number:
            (tmp_path / "v1" / "ledger").write_bytes(ledger)
        disk.put(key_of(number), files, PARTS)
    assert keys(disk) == [key_of(3), key_of(2)]


def test_entries_are_looked_at_only_when_the_bound_may_be_exceeded(tmp_path, monkeypatch):
    files = {"kernel.so": bytes(10_000)}
    disk, scans = DiskCache(tmp_path, room_for(40, files)), []
    scan = disk._scan
    monkeypatch.setattr(disk, "_scan", lambda: scans.append(1) or scan())
    for number in range(60):
        disk.put(key_of(number), files, PARTS)
    assert len(scans) <= 8
    assert 40 <= len(keys(disk)) <= 44


def test_leftovers_of_killed_processes_are_swept_after_an_hour(disk):
    for name in ("staging/1.old", "staging/2.new", "locks"):
        (disk.root / "v1" / name).mkdir(parents=True)
    (disk.root / "v1/staging/1.old/kernel.so").write_bytes(b"half")
    for name in ("old", "new"):
        (disk.root / "v1/locks" / f"{name}.lock").touch()
    long_ago = time.time() - 2 * cache_disk.STALE_S
    for name in ("staging/1.old", "locks/old.lock"):
        os.utime(disk.root / "v1" / name, (long_ago, long_ago))
    disk.put(KEY, FILES, PARTS)  # the first entry: there is no ledger yet, so everything is looked at
    assert leftovers(disk) == ["2.new"]
    assert [path.name for path in (disk.root / "v1/locks").iterdir()] == ["new.lock"]


def test_reading_an_entry_takes_at_most_5_ms(disk):
    files = {f"file{index}": os.urandom(50_000) for index in range(6)}
    disk.put(KEY, files, PARTS)
    seconds = []
    for _ in range(21):
        start = time.perf_counter()
        assert disk.get(KEY) is not None
        seconds.append(time.perf_counter() - start)
    assert statistics.median(seconds) <= 0.005
