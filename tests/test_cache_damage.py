"""The kernels on disk where the disk fails: damaged entries, directories that cannot be used, full disks."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from cache_cases import BOUND, FILES, KEY, PARTS, files_only, folder_of, key_of, keys, leftovers, run_script
from hypothesis import given, settings
from hypothesis import strategies as st

from spconv_compiler.cache import DiskCache, KernelCache
from spconv_compiler.errors import CacheWarning


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def rewrite(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


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
    "part of the key altered": lambda folder: rewrite(folder / "manifest.json", '"c_in": 16', '"c_in": 17'),
    "file struck from the manifest": lambda folder: rewrite(
        folder / "manifest.json", '"kernel.s"', '"meta.json"'
    ),
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
    text = str(warning.message)
    assert text.startswith(f"compiled kernels cannot be kept in {disk.root}: ") and "SPCONV_CACHE_DIR" in text
    assert warning.filename == __file__, "the line that is shown is the caller's, not one of the cache"


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
