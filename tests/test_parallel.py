"""Loops over all cores: where their threads begin, and that they are the system's to move from there."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from cpu_harness import Kernel, kernel_of, kinds

from spconv_compiler.passes.cpu.functions import Functions, call
from spconv_compiler.passes.cpu.memory import atomic_add
from spconv_compiler.passes.cpu.parallel import parallel_for
from spconv_compiler.passes.kernel_builder import V, const, gep, i32, i64, store, while_

# Words of an item: the worker's number, its processor, what sched_getaffinity said, and the processors.
WORDS = 32
# Turns that an item waits for the other one, some seconds.
PATIENCE = 1 << 30


def define(functions: Functions) -> None:
    """`where(items, arrived, count, workers)`: every item says where it runs, once `workers` items have begun."""

    def body(items: V, arrived: V, count: V, workers: V) -> None:
        parallel_for(functions, "where", count, workers, [items, arrived, workers], work)

    def work(item: V, worker: V, items: V, arrived: V, workers: V) -> None:
        mine = gep(items, item * WORDS, i64())
        store(worker, mine, 0)
        store(call("sched_getcpu", [], i32()).to(i64(), signed=True), mine, 1)
        atomic_add(arrived, const(1, i64()))
        zero = const(0, i64())
        # An exchange of nothing: a load would be taken out of the loop.
        while_(
            [zero],
            lambda turn: ((atomic_add(arrived, zero) < workers) & (turn < PATIENCE), [turn]),
            lambda turn: [turn + 1],
        )
        size = const(8 * (WORDS - 3), i64())
        store(call("sched_getaffinity", [const(0, i32()), size, gep(mine, 3, i64())], i32()).to(i64()), mine, 2)

    functions.kernel("where", kinds("ppnn"), body)


@pytest.fixture(scope="module")
def where() -> Kernel:
    return kernel_of(define, "where")


def run(where: Kernel, workers: int) -> np.ndarray:
    items = np.zeros((workers, WORDS), np.int64)
    where(items, np.zeros(1, np.int64), workers, workers)
    assert sorted(items[:, 0]) == list(range(workers)) and (items[:, 2] == 0).all()
    return items


def processors(words: np.ndarray) -> set[int]:
    return {64 * place + bit for place, word in enumerate(words) for bit in range(64) if int(word) >> bit & 1}


needs_several = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor")


@needs_several
def test_a_thread_begins_elsewhere_and_may_go_anywhere(where: Kernel) -> None:
    """Without being moved it waits behind its maker: after a pause, nearly always."""
    apart = 0
    for _ in range(20):
        time.sleep(0.005)
        items = run(where, 2)
        apart += items[0, 1] != items[1, 1]
        assert all(processors(item[3:]) == os.sched_getaffinity(0) for item in items)
    assert apart >= 12


def test_more_threads_than_processors(where: Kernel) -> None:
    run(where, 2 * (os.cpu_count() or 1) + 1)


@needs_several
def test_a_process_that_may_use_one_processor_keeps_to_it(where: Kernel) -> None:
    allowed = os.sched_getaffinity(0)
    one = min(allowed)
    os.sched_setaffinity(0, {one})
    try:
        items = run(where, 2)
    finally:
        os.sched_setaffinity(0, allowed)
    assert set(items[:, 1]) == {one} and all(processors(item[3:]) == {one} for item in items)
