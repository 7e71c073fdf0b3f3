"""Memory of kernels that is kept for the next ones: never while somebody still sees it, and only so much."""

from __future__ import annotations

import gc
import mmap
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from spconv_compiler.runtime import memory_pool
from spconv_compiler.runtime.cpu import ALIGNMENT, CpuBuffer


@pytest.fixture(autouse=True)
def empty_pool() -> Iterator[None]:
    gc.collect()
    memory_pool.clear()
    yield
    memory_pool.clear()


@pytest.mark.parametrize("count", [1 << 15, 100_000, 1 << 20])
def test_a_buffer_takes_the_place_of_one_before(count: int) -> None:
    first = CpuBuffer("i32", count)
    where = first.pointer
    del first
    # A little smaller is of the same class; much larger is not.
    again, other = CpuBuffer("i32", count - 5), CpuBuffer("i32", 3 * count)
    assert again.pointer == where and again.nbytes == 4 * (count - 5) and again.pointer % ALIGNMENT == 0
    assert other.pointer != where


def test_memory_that_an_array_shares_is_not_given_away() -> None:
    buffer = CpuBuffer("i32", 100_000)
    seen = buffer.array()
    seen[:] = 7
    del buffer
    others = [CpuBuffer("i32", 100_000) for _ in range(3)]
    for other in others:
        other.array()[:] = 9
    assert (seen == 7).all()


def test_small_blocks_are_left_to_the_allocator() -> None:
    for nbytes in (0, 1, 1000):
        memory_pool.give([memory_pool.take(nbytes)])
    assert memory_pool._bytes == memory_pool._large.nbytes == 0


def _lazily_free() -> int:
    """Bytes of this process that the system may take."""
    lines = pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("LazyFree:"))


@pytest.mark.skipif(not pathlib.Path("/proc/self/smaps_rollup").exists(), reason="no /proc")
def test_a_large_block_is_kept_for_the_system_to_take() -> None:
    nbytes, before = 3 << 25, _lazily_free()
    buffer = CpuBuffer("i32", nbytes // 4)
    buffer.array()[:] = 1
    where = buffer.pointer
    del buffer
    assert memory_pool._large.nbytes >= nbytes
    assert _lazily_free() - before >= nbytes - (2 << 22)
    # Much less than a block leaves it alone, half of it takes it; what is written is the system's no more.
    assert CpuBuffer("i32", nbytes // 20).pointer != where
    half = CpuBuffer("i32", nbytes // 8)
    half.array()[:] = 3
    assert half.pointer == where and nbytes // 2 - (2 << 22) < _lazily_free() - before < nbytes // 2 + (1 << 24)
    del half
    again = CpuBuffer("i32", nbytes // 4 - 100_000)
    again.array()[:] = 2
    assert again.pointer == where and _lazily_free() - before < 1 << 24 and (again.array() == 2).all()


def test_blocks_are_kept_where_torch_evaluates_frames() -> None:
    """As in a layer that is compiled: torch.compile leaves its evaluator on while an op runs, and after some errors."""
    torch = pytest.importorskip("torch")
    found: list[int] = []

    def run(x: Any) -> Any:
        first, shared = CpuBuffer("i32", 100_000), CpuBuffer("i32", 200_000)
        seen = shared.array()
        del first, shared
        found.append(memory_pool._bytes)
        return x + int(seen.size > 0)

    library = torch.library.Library("test_memory_pool", "FRAGMENT")
    library.define("run(Tensor x) -> Tensor")
    library.impl("run", run, "CompositeExplicitAutograd")
    torch.library.register_fake("test_memory_pool::run", torch.empty_like, lib=library)
    op = torch.ops.test_memory_pool.run.default
    op(torch.ones(2))
    memory_pool.clear()
    torch.compile(lambda x: op(x), backend="eager", fullgraph=True)(torch.ones(2))
    library._destroy()
    assert found[0] == found[1] and 400_000 <= found[0] < 800_000


def test_the_oldest_of_large_blocks_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_pool._large, "_most", 5 << 25)
    sizes = [(2 << 25) + 1, (2 << 25) + 2, (2 << 25) + 3]
    blocks = [memory_pool.take(size) for size in sizes]
    while blocks:
        memory_pool.give([blocks.pop(0)])
    assert memory_pool._large.nbytes == sum(sizes[1:])
    memory_pool.give([memory_pool.take(6 << 25)])
    assert memory_pool._large.nbytes == sum(sizes[1:])
    assert memory_pool.take(sizes[0]).nbytes == sizes[1]
    memory_pool.clear()
    assert memory_pool._large.nbytes == 0


def test_a_large_block_that_the_system_cannot_mark_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_FREE", raising=False)
    memory_pool.give([memory_pool.take(2 << 25)])
    assert memory_pool._large.nbytes == 0


def test_no_more_is_kept_than_the_limit() -> None:
    """In a process of its own: threads that other tests have left may give memory back in between."""
    program = """
from spconv_compiler.runtime import memory_pool
from spconv_compiler.runtime.cpu import CpuBuffer
memory_pool._MOST_KEPT = 1 << 20
buffers = [CpuBuffer("i32", 70_000) for _ in range(10)]
addresses = {buffer.pointer for buffer in buffers}
del buffers
assert 0 < memory_pool._bytes <= 1 << 20, memory_pool._bytes
kept = memory_pool._bytes
taken = CpuBuffer("i32", 70_000)
assert taken.pointer in addresses and memory_pool._bytes < kept
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


class _Collects(dict[int, list[memory_pool.Block]]):
    """A pool in which a collection happens at the worst moment, and gives another block back."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = [memory_pool.take(1 << 17)]

    def setdefault(self, size: int, default: list[memory_pool.Block]) -> list[memory_pool.Block]:
        while self.waiting:
            memory_pool.give([self.waiting.pop()])
        return super().setdefault(size, default)


def test_a_block_that_a_collection_gives_back_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for one: of two that are given back at once, the second within the first, one is kept."""
    pool = _Collects()
    monkeypatch.setattr(memory_pool, "_kept", pool)
    monkeypatch.setattr(memory_pool, "_MOST_KEPT", 1 << 17)
    memory_pool.give([memory_pool.take(1 << 17)])
    assert memory_pool._bytes == sum(block.nbytes for blocks in pool.values() for block in blocks) == 1 << 17


def test_classes_are_no_more_than_an_eighth_apart_and_half_where_large() -> None:
    for nbytes in [*range(1 << 16, 1 << 17, 777), 10**6, (1 << 22) - 1, 1 << 22, (1 << 22) + 1, 10**7, 1 << 25]:
        size = memory_pool._rounded(nbytes)
        most = nbytes * (9 / 8 if nbytes < 1 << 22 else 3 / 2)
        assert nbytes <= size <= most and memory_pool._rounded(size) == size


def test_maps_of_a_network_find_room_in_each_others_memory() -> None:
    """One after another, of sizes as levels have them: the memory of the largest does for all."""
    memory_pool.give([memory_pool.take(3 << 23)])  # so that nothing more finds room in the classes
    memory_pool.give([memory_pool.take(1 << 23)])
    for megabytes in (15, 6.5, 16, 7, 7.5):
        block = memory_pool.take(int(megabytes * 2**20))
        assert block.nbytes >= megabytes * 2**20
        holder = [block]
        del block
        memory_pool.give(holder)
        assert memory_pool._large.nbytes in (0, 1 << 24)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_of_a_process_whose_pool_is_locked_can_use_it() -> None:
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with memory_pool._lock:
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        # That thread does not exist here: without a new lock, this would wait until the alarm kills it.
        signal.alarm(20)
        CpuBuffer("i32", 100_000).array()[:] = np.int32(1)
        os._exit(0)
    release.set()
    thread.join()
    _, status = os.waitpid(child, 0)
    assert status == 0
