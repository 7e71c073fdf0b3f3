"""Several threads and processes at once: one compilation, right results, children of a fork and of a spawn."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from conv_cases import Case, make_case, mismatch, voxels

import spconv_compiler as sc
from spconv_compiler import api, compiler
from spconv_compiler.tensor_cache import TensorCache


@pytest.fixture(autouse=True)
def nothing_in_memory() -> Iterator[None]:
    sc.clear_caches()
    yield
    sc.clear_caches()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    compile_ = compiler._compile

    def counted(options: Any, *others: Any) -> dict[str, bytes]:
        names.append(options.name)
        return compile_(options, *others)

    monkeypatch.setattr(compiler, "_compile", counted)
    return names


def at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    """What `work` gives for 0 … count − 1, all started at the same time."""
    gate = threading.Barrier(count)

    def start(number: int) -> Any:
        gate.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))


def large_case(seed: int = 0) -> Case:
    """Large enough for several worker threads inside the kernels."""
    return make_case(voxels(8000, 30, seed=seed), 3, 32, 32, whole=True, seed=seed)


def test_threads_that_ask_for_one_kernel_share_its_compilation(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPCONV_CACHE", "off")
    artifacts = at_once(6, lambda _: sc.compile_conv(3, 3, 9))
    assert all(artifact is artifacts[0] for artifact in artifacts)
    assert compiled == ["k3x3x3_c3x9_f32-f32_i32"]


def test_threads_compile_different_kernels_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPCONV_CACHE", "off")
    artifacts = at_once(4, lambda number: sc.compile_conv(1, 3, 1 + number))
    assert [artifact.meta["options"]["c_out"] for artifact in artifacts] == [1, 2, 3, 4]


def test_threads_with_the_same_tensors() -> None:
    """Kernel, map and packed weight are all missing when the threads start."""
    case = large_case()
    operands = case.tensors()
    outs = at_once(6, lambda _: [sc.subm_conv3d(*operands) for _ in range(3)])
    first = outs[0][0]
    assert mismatch(first, case, whole=True) is None
    assert all(torch.equal(out, first) for group in outs for out in group)
    assert (len(api._coords_cache), len(api._weight_cache)) == (1, 1)


def test_threads_with_different_tensors() -> None:
    cases = [make_case(voxels(500 + seed, 12, seed=seed), 3, 8, 16, whole=True, seed=seed) for seed in range(6)]

    def work(number: int) -> list[str | None]:
        found = []
        for step in range(12):
            case = cases[(number + step) % 6]
            found.append(mismatch(case.run(), case, whole=True))  # tensors that die after each call
        return found

    assert at_once(6, work) == [[None] * 12] * 6
    assert (len(api._coords_cache), len(api._weight_cache)) == (0, 0)


def test_caches_may_be_cleared_while_others_compute() -> None:
    case = large_case()
    operands, stop = case.tensors(), threading.Event()

    def work(number: int) -> Any:
        if number == 0:
            while not stop.wait(0.001):
                sc.clear_caches()
            return None
        outs = [sc.subm_conv3d(*operands) for _ in range(10)]
        if number == 1:
            stop.set()
        return outs

    _, *groups = at_once(3, work)
    assert all(mismatch(out, case, whole=True) is None for group in groups for out in group)


PROGRAM = """
import json, sys
import spconv_compiler as sc
from spconv_compiler import compiler
built, compile_ = [], compiler._compile
def counted(options, *others):
    built.append(options.name)
    return compile_(options, *others)
compiler._compile = counted
sys.stdin.readline()
artifact = sc.compile_conv(3, 3, 9)
print(json.dumps([len(built), artifact.key]))
"""


def test_processes_that_compile_one_thing_share_it(tmp_path: Path) -> None:
    environment = {**os.environ, "SPCONV_CACHE_DIR": str(tmp_path)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [
        subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, text=True, **pipes) for _ in range(3)
    ]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = []
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        answers.append(json.loads(out))
    assert sum(built for built, _ in answers) == 1
    assert len({key for _, key in answers}) == 1


def run_and_tell(case: Case, connection: Any) -> None:
    """In a child process: the case compared with the reference, and what the parent asks for."""
    try:
        connection.send(mismatch(case.run(), case, whole=True))
    except BaseException as error:
        connection.send(repr(error))


def in_a_child(method: str, case: Case) -> Any:
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    child = context.Process(target=run_and_tell, args=(case, there))
    child.start()
    try:
        assert here.poll(60), "the child does not answer"
        answer = here.recv()
        child.join(20)
        assert child.exitcode == 0
        return answer
    finally:
        if child.is_alive():
            child.kill()
        child.join()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_runs_what_the_parent_ran() -> None:
    case = large_case()
    assert mismatch(case.run(), case, whole=True) is None
    assert in_a_child("fork", case) is None
    assert in_a_child("fork", make_case(voxels(100, 9), 1, 3, 5, whole=True)) is None, "a kernel of its own"
    assert mismatch(case.run(), case, whole=True) is None, "and the parent goes on"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_is_forked_while_other_threads_compute() -> None:
    case, stop = large_case(), threading.Event()
    operands = case.tensors()

    def compute() -> None:
        while not stop.is_set():
            sc.subm_conv3d(*operands)

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            assert in_a_child("fork", case) is None
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_lock_that_is_held_at_the_fork_is_free_in_the_child() -> None:
    cache, held, release = TensorCache[int](4), threading.Event(), threading.Event()

    def hold() -> None:
        with cache._lock:
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if cache._lock.acquire(timeout=5) else 1)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        release.set()
        thread.join()


def test_a_spawned_child_runs_from_the_disk() -> None:
    case = large_case()
    assert mismatch(case.run(), case, whole=True) is None
    assert in_a_child("spawn", case) is None
