"""The kernels on disk between processes: one build, killed processes, eviction by several."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from cache_cases import FILES, KEY, PARTS, REPOSITORY, files_only, key_of, keys, leftovers

from spconv_compiler.cache import DiskCache, KernelCache


def start_script(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=REPOSITORY, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def finish(child: subprocess.Popen[str]) -> str:
    output, errors = child.communicate("go\n", timeout=60)
    assert (child.returncode, errors) == (0, "")
    return output


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
