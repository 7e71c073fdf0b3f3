"""The kernel cache: damage, races, killed processes, full and unusable disks, eviction, threads, forks."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spconv_compiler import cache_disk, env
from spconv_compiler.cache import DiskCache, KernelCache, open_disk_cache
from spconv_compiler.errors import CacheWarning, InputError

REPOSITORY = Path(__file__).resolve().parent.parent
FILES = {"kernel.so": bytes(range(256)) * 8, "kernel.s": b"s_endpgm\n", "meta.json": b"{}", "empty": b""}
PARTS = {"kernel_size": (3, 3, 3), "c_in": 16, "name": "é"}
BOUND = 2**24


def key_of(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


KEY = key_of(0)


@pytest.fixture
def disk(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", BOUND)


def folder_of(disk: DiskCache, key: str = KEY) -> Path:
    return disk.root / "v1" / key[:2] / key


def keys(disk: DiskCache) -> list[str]:
    return [entry.key for entry in disk.entries()]


def leftovers(disk: DiskCache) -> list[str]:
    return [path.name for path in (disk.root / "v1" / "staging").iterdir()]


def files_only(key: str, files: cache_disk.Files) -> dict[str, bytes]:
    return dict(files)


# Entries.


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


# Damage.


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_folder(folder: Path, make: Callable[[Path], object]) -> None:
    shutil.rmtree(folder)
    make(folder)


DAMAGE = {
    "file cut short": lambda folder: os.truncate(folder / "kernel.so", 100),
    "file emptied": lambda folder: (folder / "kernel.so").write_bytes(b""),
    "file too long": lambda folder: (folder / "kernel.so").write_bytes(FILES["kernel.so"] + b"\0"),
    "file altered": lambda folder: (folder / "kernel.so").write_bytes(FILES["kernel.so"][::-1]),
    "file missing": lambda folder: (folder / "kernel.s").unlink(),
    "folder in place of a file": lambda folder: replace_by_folder(folder / "kernel.s"),
    "manifest missing": lambda folder: (folder / "manifest.json").unlink(),
    "manifest cut short": lambda folder: os.truncate(folder / "manifest.json", 50),
    "manifest emptied": lambda folder: (folder / "manifest.json").write_text(""),
    "manifest not UTF-8": lambda folder: (folder / "manifest.json").write_bytes(b"\xff\xfe{}"),
    "manifest a list": lambda folder: (folder / "manifest.json").write_text("[]"),
    "manifest without checksum": lambda folder: (folder / "manifest.json").write_text("{}"),
    "folder in place of the manifest": lambda folder: replace_by_folder(folder / "manifest.json"),
    "empty folder": lambda folder: replace_folder(folder, Path.mkdir),
    "file in place of the folder": lambda folder: replace_folder(folder, lambda path: path.write_text("")),
    "dangling link": lambda folder: replace_folder(folder, lambda path: path.symlink_to("nowhere")),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("by", ["get", "put"])
def test_a_damaged_entry_is_dropped_and_can_be_built_again(damage, by, disk, caplog):
    disk.put(KEY, FILES, PARTS)
    damage(folder_of(disk))
    if by == "get":
        assert disk.get(KEY) is None
        assert f"dropped damaged cache entry {folder_of(disk)}: " in caplog.text
        assert not os.path.lexists(folder_of(disk))
    assert disk.put(KEY, FILES, PARTS)
    assert disk.get(KEY) == FILES
    assert leftovers(disk) == []


def test_an_entry_of_another_key_is_dropped(disk, caplog):
    disk.put(KEY, FILES, PARTS)
    other = folder_of(disk, key_of(1))
    other.parent.mkdir(exist_ok=True)
    shutil.copytree(folder_of(disk), other)
    assert disk.get(key_of(1)) is None
    assert "entry of another key" in caplog.text
    assert disk.get(KEY) == FILES


def test_an_entry_of_another_format_is_dropped(disk, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setattr("spconv_compiler.cache_entry.FORMAT_VERSION", 2)
        disk.put(KEY, FILES, PARTS)
    assert disk.get(KEY) is None
    assert "format 2, accepted: 1" in caplog.text


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_flipped_bit_or_lost_tail_is_noticed(data):
    with tempfile.TemporaryDirectory() as root:
        disk = DiskCache(Path(root), BOUND)
        disk.put(KEY, FILES, PARTS)
        path = folder_of(disk) / data.draw(st.sampled_from(["kernel.so", "kernel.s", "manifest.json"]))
        content = bytearray(path.read_bytes())
        position = data.draw(st.integers(0, 10**6)) % len(content)
        if data.draw(st.booleans(), "flip, not cut"):
            content[position] ^= 1 << data.draw(st.integers(0, 7))
        else:
            del content[position:]
        path.write_bytes(content)
        # A flip may only turn \u00e9 into \u00E9 in the manifest, which is the same text.
        assert disk.get(KEY) in (None, FILES)
        if path.name != "manifest.json":
            assert disk.get(KEY) is None
        assert disk.put(KEY, FILES, PARTS) and disk.get(KEY) == FILES


def test_entries_skips_damaged_ones_and_clear_removes_them(disk):
    for number in range(3):
        disk.put(key_of(number), FILES, PARTS)
    (folder_of(disk, key_of(1)) / "manifest.json").write_text("{")
    assert sorted(keys(disk)) == sorted([key_of(0), key_of(2)])
    assert disk.clear() == 3
    assert not folder_of(disk, key_of(1)).exists()


# Size bound and order of eviction.


def entry_size(files: dict[str, bytes]) -> int:
    with tempfile.TemporaryDirectory() as root:
        disk = DiskCache(Path(root), BOUND)
        disk.put(KEY, files, PARTS)
        return disk.entries()[0].size


def test_the_least_recently_used_entries_go_first(tmp_path):
    files = {"kernel.so": bytes(10_000)}
    disk = DiskCache(tmp_path, 3 * entry_size(files) + 100)
    for number in range(3):
        disk.put(key_of(number), files, PARTS)
    disk.get(key_of(0))
    disk.put(key_of(3), files, PARTS)
    assert keys(disk) == [key_of(3), key_of(0), key_of(2)]
    disk.put(key_of(4), {"kernel.so": bytes(20_000)}, PARTS)
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
    small = DiskCache(tmp_path, 2 * entry_size(files) + 100)
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


def test_order_of_use_survives_a_clock_that_goes_backwards(tmp_path, monkeypatch):
    files = {"kernel.so": bytes(10_000)}
    disk = DiskCache(tmp_path, 2 * entry_size(files) + 100)
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
    """The model: a list of (number, size), the least recently used first."""
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
                while sum(size for _, size in model) > bound:
                    model.pop(0)
            assert keys(disk) == [key_of(number) for number, _ in reversed(model)]
            assert sum(entry.size for entry in disk.entries()) <= bound


def test_leftovers_of_killed_processes_are_swept_after_an_hour(disk):
    for name in ("staging/1.old", "staging/2.new", "locks"):
        (disk.root / "v1" / name).mkdir(parents=True)
    (disk.root / "v1/staging/1.old/kernel.so").write_bytes(b"half")
    for name in ("old", "new"):
        (disk.root / "v1/locks" / f"{name}.lock").touch()
    long_ago = time.time() - 2 * cache_disk.STALE_S
    for name in ("staging/1.old", "locks/old.lock"):
        os.utime(disk.root / "v1" / name, (long_ago, long_ago))
    disk.put(KEY, FILES, PARTS)
    assert leftovers(disk) == ["2.new"]
    assert [path.name for path in (disk.root / "v1/locks").iterdir()] == ["new.lock"]


# Directories that cannot be used.


def use_all(disk: DiskCache) -> list[warnings.WarningMessage]:
    """Uses every function of a cache that must not work, and returns the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            assert disk.get(KEY) is None
            with disk.lock(KEY) as held:
                assert not held
            assert not disk.put(KEY, FILES, PARTS)
            assert disk.path(KEY, "kernel.so") is None
            assert not disk.remove(KEY)
            assert disk.entries() == [] and disk.clear() == 0
        again = DiskCache(disk.root, BOUND)
        assert not again.put(KEY, FILES, PARTS)
        value = KernelCache(files_only, disk=again).get_or_build(KEY, PARTS, lambda: FILES)
        assert value == FILES
    return caught


def block_root(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("in the way")
    return tmp_path / "file"


def block_parent(tmp_path: Path) -> Path:
    return block_root(tmp_path) / "below"


def block_layout(tmp_path: Path) -> Path:
    (tmp_path / "v1").write_text("in the way")
    return tmp_path


def dangling(tmp_path: Path) -> Path:
    (tmp_path / "link").symlink_to(tmp_path / "gone" / "further")
    return tmp_path / "link"


UNUSABLE = {
    "file in its place": block_root,
    "file above it": block_parent,
    "file inside it": block_layout,
    "dangling link": dangling,
    "under /proc": lambda tmp_path: Path(f"/proc/spconv/{tmp_path.name}"),
    "name too long": lambda tmp_path: tmp_path / ("x" * 300),
}


@pytest.mark.parametrize("make", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_an_unusable_directory_warns_once_and_nothing_fails(make, tmp_path):
    disk = DiskCache(make(tmp_path), BOUND)
    (warning,) = use_all(disk)
    assert warning.category is CacheWarning
    assert str(disk.root) in str(warning.message) and "SPCONV_CACHE_DIR" in str(warning.message)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO])
def test_a_write_that_fails_leaves_nothing_and_warns_once(error, disk, monkeypatch):
    disk.put(key_of(1), FILES, PARTS)

    def fail(path: Path, content: bytes) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.warns(CacheWarning, match=os.strerror(error)) as caught:
        assert not disk.put(KEY, FILES, PARTS)
        assert not disk.put(KEY, FILES, PARTS)
    assert len(caught) == 1
    assert leftovers(disk) == [] and not folder_of(disk).exists()
    assert disk.get(key_of(1)) == FILES


def test_a_disk_that_is_really_full(tmp_path):
    """The kernel refuses the write in the middle of a file, through a limit on the size of files."""
    script = """
import resource, sys, warnings
from pathlib import Path
from spconv_compiler.cache import DiskCache
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
disk = DiskCache(Path(sys.argv[1]), 2**20)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    stored = disk.put(sys.argv[2], {"kernel.so": bytes(100000)}, {})
print(stored, len(caught), disk.get(sys.argv[2]))
"""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    assert run_script(script, tmp_path, KEY) == "False 1 None\n"
    assert [path.name for path in (tmp_path / "v1" / "staging").iterdir()] == []


def test_a_read_only_cache_still_serves(disk, monkeypatch):
    disk.put(KEY, FILES, PARTS)

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for function in ("mkdir", "rename", "utime", "unlink", "rmdir"):
        monkeypatch.setattr(os, function, refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert disk.get(KEY) == FILES
        assert KernelCache(files_only, disk=disk).get_or_build(KEY, PARTS, dict) == FILES


def test_too_many_open_files_do_not_cost_an_entry(disk, monkeypatch):
    disk.put(KEY, FILES, PARTS)

    def refuse(path: Path) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch, pytest.warns(CacheWarning, match="Too many open files"):
        patch.setattr(Path, "read_bytes", refuse)
        assert disk.get(KEY) is None
    assert disk.get(KEY) == FILES


def test_open_disk_cache_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SPCONV_CACHE", "on")
    monkeypatch.setenv("SPCONV_CACHE_DIR", str(tmp_path / "x"))
    monkeypatch.setenv("SPCONV_CACHE_MAX_MB", "3")
    disk = open_disk_cache()
    assert disk is not None and (disk.root, disk.max_bytes) == (tmp_path / "x", 3 * 2**20)
    monkeypatch.setenv("SPCONV_CACHE_MAX_MB", "-3")
    with pytest.raises(InputError, match="SPCONV_CACHE_MAX_MB"):
        open_disk_cache()
    monkeypatch.setenv("SPCONV_CACHE", "off")
    assert open_disk_cache() is None


def test_no_home_directory_warns_once(monkeypatch):
    monkeypatch.setenv("SPCONV_CACHE", "on")
    monkeypatch.setattr(env, "CACHE_DIR", env.Variable("UNSET", Path, lambda: None, "", ""))
    with pytest.warns(CacheWarning, match="no home directory.*SPCONV_CACHE_DIR") as caught:
        assert open_disk_cache() is None
        assert open_disk_cache() is None
    assert len(caught) == 1


# Several processes.


def start_script(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=REPOSITORY, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def finish(child: subprocess.Popen[str]) -> str:
    output, errors = child.communicate("go\n", timeout=60)
    assert (child.returncode, errors) == (0, "")
    return output


def run_script(script: str, *arguments: object) -> str:
    return finish(start_script(script, *arguments))


BUILD = """
import sys, time
from pathlib import Path
from spconv_compiler.cache import DiskCache, KernelCache
root, key, log = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
def build():
    with log.open("a") as file:
        file.write("built\\n")
    time.sleep(0.3)
    return {"kernel.so": b"code"}
cache = KernelCache(lambda key, files: files["kernel.so"], disk=DiskCache(root, 2**20))
input()
print(cache.get_or_build(key, {}, build), cache.counts.disk, cache.counts.built)
"""


def test_two_processes_that_want_one_kernel_build_it_once(tmp_path):
    log = tmp_path / "log"
    children = [start_script(BUILD, tmp_path / "cache", KEY, log) for _ in range(2)]
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    outputs = sorted(finish(child) for child in children)
    assert outputs == ["b'code' 0 1\n", "b'code' 1 0\n"]
    assert log.read_text() == "built\n"


HOLD = """
import sys, time
from pathlib import Path
from spconv_compiler.cache import DiskCache
with DiskCache(Path(sys.argv[1]), 2**20).lock(sys.argv[2]) as held:
    print(held, flush=True)
    time.sleep(60)
"""


def test_a_lock_dies_with_the_process_that_is_killed(disk):
    child = start_script(HOLD, disk.root, KEY)
    try:
        assert child.stdout.readline() == "True\n"
        with disk.lock(KEY, timeout=0.2) as held:
            assert not held
        with disk.lock(key_of(1), timeout=0.2) as held:
            assert held
        child.send_signal(signal.SIGKILL)
        child.wait(10)
        with disk.lock(KEY, timeout=5) as held:
            assert held
    finally:
        child.kill()
        child.communicate()


def test_after_a_bounded_wait_the_build_goes_on_without_the_lock(disk, monkeypatch, caplog):
    monkeypatch.setattr(DiskCache.lock.__wrapped__, "__defaults__", (0.2,))
    child = start_script(HOLD, disk.root, KEY)
    try:
        assert child.stdout.readline() == "True\n"
        cache = KernelCache(files_only, disk=disk)
        assert cache.get_or_build(KEY, PARTS, lambda: FILES) == FILES
        assert "going on without it" in caplog.text
        assert disk.get(KEY) == FILES
    finally:
        child.kill()
        child.communicate()


def test_a_process_killed_while_writing_leaves_no_entry(disk):
    script = """
import os, signal, sys
from pathlib import Path
from spconv_compiler.cache import DiskCache
original, count = Path.write_bytes, 0
def write(path, content):
    global count
    count += 1
    if count == 3:
        original(path, content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    return original(path, content)
Path.write_bytes = write
DiskCache(Path(sys.argv[1]), 2**24).put(sys.argv[2], {name: bytes(1000) for name in "abcd"}, {})
"""
    child = start_script(script, disk.root, KEY)
    child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL
    assert len(leftovers(disk)) == 1
    assert disk.get(KEY) is None and keys(disk) == []
    assert disk.put(KEY, FILES, PARTS) and disk.get(KEY) == FILES


def test_a_lock_is_released_when_the_body_raises(disk):
    with pytest.raises(KeyError), disk.lock(KEY) as held:
        assert held
        raise KeyError
    with disk.lock(KEY, timeout=1) as held:
        assert held


CHURN = """
import random, sys, warnings
from pathlib import Path
from spconv_compiler.cache import DiskCache
warnings.simplefilter("error")
disk, keys, seed = DiskCache(Path(sys.argv[1]), 60_000), sys.argv[3:], int(sys.argv[2])
input()
draw = random.Random(seed)
for step in range(150):
    key = draw.choice(keys)
    content = {"kernel.so": key.encode() * 100, "kernel.s": key.encode() * 20}
    if draw.random() < 0.5:
        assert disk.put(key, content, {"key": key})
    else:
        assert disk.get(key) in (None, content)
    if step % 50 == 49:
        disk.entries()
"""


def test_processes_that_evict_each_others_entries_stay_within_the_bound(tmp_path):
    names = [key_of(number) for number in range(20)]
    children = [start_script(CHURN, tmp_path, seed, *names) for seed in range(4)]
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        finish(child)
    disk = DiskCache(tmp_path, 60_000)
    disk.put(key_of(99), {"kernel.so": b""}, PARTS)
    entries = disk.entries()
    assert 2 <= len(entries) <= 8
    assert sum(entry.size for entry in entries) <= 60_000
    assert all(disk.get(entry.key) is not None for entry in entries)
    assert leftovers(disk) == []


# Memory, threads, forks.


def test_memory_keeps_the_most_recently_used_values():
    cache, built = KernelCache(files_only, memory_size=2), []

    def want(number: int) -> None:
        def build() -> dict[str, bytes]:
            built.append(number)
            return {"n": bytes([number])}

        assert cache.get_or_build(key_of(number), {}, build) == {"n": bytes([number])}

    for number in (1, 2, 1, 3, 1, 2):
        want(number)
    assert built == [1, 2, 3, 2]
    assert (cache.counts.memory, cache.counts.disk, cache.counts.built) == (2, 0, 4)
    cache.clear_memory()
    want(2)
    assert built == [1, 2, 3, 2, 2]


def test_memory_hands_out_the_same_value_and_disk_an_equal_one(disk):
    cache = KernelCache(files_only, disk=disk)
    first = cache.get_or_build(KEY, PARTS, lambda: FILES)
    assert cache.get_or_build(KEY, PARTS, dict) is first
    other = KernelCache(files_only, disk=disk)
    second = other.get_or_build(KEY, PARTS, dict)
    assert second == first and second is not first
    assert (other.counts.memory, other.counts.disk, other.counts.built) == (0, 1, 0)


def test_the_loader_finds_the_stored_files(disk):
    cache = KernelCache(lambda key, files: disk.path(key, "kernel.so"), disk=disk)
    path = cache.get_or_build(KEY, PARTS, lambda: FILES)
    assert path is not None and path.read_bytes() == FILES["kernel.so"]


def test_an_entry_that_does_not_load_is_built_again(disk, caplog):
    disk.put(KEY, {"old": b"layout"}, PARTS)
    cache = KernelCache(lambda key, files: files["kernel.so"], disk=disk)
    assert cache.get_or_build(KEY, PARTS, lambda: FILES) == FILES["kernel.so"]
    assert "which does not load: 'kernel.so'" in caplog.text
    assert disk.get(KEY) == FILES


def test_a_failed_build_is_raised_and_stores_nothing(disk):
    cache = KernelCache(files_only, disk=disk)

    def fail() -> dict[str, bytes]:
        raise ArithmeticError("no schedule")

    for _ in range(2):
        with pytest.raises(ArithmeticError, match="no schedule"):
            cache.get_or_build(KEY, PARTS, fail)
    assert disk.get(KEY) is None
    assert cache.get_or_build(KEY, PARTS, lambda: FILES) == FILES


def in_threads(count: int, work: Callable[[int], object]) -> list[object]:
    results: list[object] = [None] * count

    def run(index: int) -> None:
        try:
            results[index] = work(index)
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


@pytest.mark.parametrize("with_disk", [False, True])
def test_threads_that_want_one_kernel_build_it_once(with_disk, disk):
    cache, built = KernelCache(files_only, disk=disk if with_disk else None), []
    barrier = threading.Barrier(8)

    def build() -> dict[str, bytes]:
        built.append(threading.get_ident())
        time.sleep(0.1)
        return FILES

    def work(index: int) -> object:
        barrier.wait()
        return cache.get_or_build(KEY, PARTS, build)

    results = in_threads(8, work)
    assert len(built) == 1
    assert all(result is results[0] for result in results) and results[0] == FILES
    assert cache._gates == {}


def test_threads_that_want_different_kernels_do_not_wait_for_each_other(disk):
    cache, inside = KernelCache(files_only, disk=disk), threading.Barrier(2, timeout=20)

    def build() -> dict[str, bytes]:
        inside.wait()  # passes only when both builds are under way
        return FILES

    assert in_threads(2, lambda index: cache.get_or_build(key_of(index), PARTS, build)) == [FILES, FILES]


def test_when_one_thread_fails_to_build_the_next_one_tries(disk):
    cache, attempts, barrier = KernelCache(files_only, disk=disk), [], threading.Barrier(2)

    def build() -> dict[str, bytes]:
        attempts.append(1)
        time.sleep(0.1)
        if len(attempts) == 1:
            raise ArithmeticError
        return FILES

    def work(index: int) -> object:
        barrier.wait()
        return cache.get_or_build(KEY, PARTS, build)

    results = in_threads(2, work)
    assert sorted(type(result).__name__ for result in results) == ["ArithmeticError", "dict"]
    assert len(attempts) == 2


def test_a_fork_during_a_build_does_not_block_the_child(tmp_path):
    script = """
import os, sys, threading, time
from spconv_compiler.cache import KernelCache
cache = KernelCache(lambda key, files: files)
started = threading.Event()
def build():
    started.set()
    time.sleep(1)
    return {"who": b"parent"}
thread = threading.Thread(target=cache.get_or_build, args=(sys.argv[1], {}, build))
thread.start()
started.wait()
child = os.fork()
if child == 0:
    print(cache.get_or_build(sys.argv[1], {}, lambda: {"who": b"child"}), flush=True)
    os._exit(0)
os.waitpid(child, 0)
thread.join()
print(cache.get_or_build(sys.argv[1], {}, dict))
"""
    assert run_script(script, KEY) == "{'who': b'child'}\n{'who': b'parent'}\n"


# Speed.


def test_reading_an_entry_takes_at_most_5_ms(disk):
    files = {f"file{index}": os.urandom(50_000) for index in range(6)}
    disk.put(KEY, files, PARTS)
    seconds = []
    for _ in range(21):
        start = time.perf_counter()
        assert disk.get(KEY) is not None
        seconds.append(time.perf_counter() - start)
    assert statistics.median(seconds) <= 0.005


def test_a_hit_imports_no_lock_and_no_torch(disk):
    disk.put(KEY, FILES, PARTS)
    script = """
import sys
from pathlib import Path
from spconv_compiler.cache import DiskCache, KernelCache
KernelCache(lambda key, files: files, disk=DiskCache(Path(sys.argv[1]), 2**20)).get_or_build(sys.argv[2], {}, dict)
print([name for name in ("filelock", "torch", "numpy", "flydsl", "platformdirs") if name in sys.modules])
"""
    assert run_script(script, disk.root, KEY) == "[]\n"
