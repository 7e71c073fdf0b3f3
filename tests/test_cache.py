"""The kernel cache as the compiler uses it: memory, then disk, then a build; threads and forks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cache_cases import FILES, KEY, PARTS, files_only, key_of, run_script

from spconv_compiler import cache_disk, env
from spconv_compiler.cache import KernelCache, open_disk_cache
from spconv_compiler.errors import CacheWarning, InputError


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
    monkeypatch.setattr(cache_disk, "_warned", set())
    with pytest.warns(CacheWarning, match="no home directory.*SPCONV_CACHE_DIR") as caught:
        assert open_disk_cache() is None
        assert open_disk_cache() is None
    assert len(caught) == 1


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
import os, sys, threading, time, warnings
from spconv_compiler.cache import KernelCache
warnings.simplefilter("ignore")  # from Python 3.12 on, a fork beside threads warns
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
