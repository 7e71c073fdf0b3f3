"""Loops over all cores, with threads made and joined inside the kernel.

There is no pool: nothing lives on after a kernel, so a process may fork between two of them. Making and joining
a thread takes some 50 µs, so callers ask for as many workers as the work is worth.

The system may put a new thread behind its maker on the same processor, to wait until a balancer comes by, which can
take longer than a kernel: seen for 2 ms with another processor idle. So a new thread is moved away from its maker, and
may go where it will from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spconv_compiler.passes.cpu.functions import Functions, address_of, call, call_procedure, pointer
from spconv_compiler.passes.cpu.memory import atomic_add, load_pointer, null, stack_array, store_slot
from spconv_compiler.passes.kernel_builder import V, const, for_, gep, i1, i32, i64, if_, if_else, load, store, while_

MAX_WORKERS = 256
_FORK_JOIN = "fork_join"
# What each worker is given: the shared slots, its number, and the thread's id as pthread_create writes it.
_SHARED, _NUMBER, _THREAD, _RECORD = 0, 1, 2, 3
# A cpu_set_t, as the C library has it: a bit for each of 1024 processors.
_SET_WORDS, _WORD_BITS = 16, 64


def worth_workers(threads: V, work: V, grain: int) -> V:
    """How many of `threads` workers to use: one for every `grain` of work, and at least one."""
    return (work // grain).max(1).min(threads).min(MAX_WORKERS)


def parallel_for(
    functions: Functions,
    name: str,
    items: V,
    workers: V,
    shared: Sequence[V],
    body: Callable[..., None],
) -> None:
    """Runs an item at a time on whichever worker is free, until all are done.

    Where threads cannot be made, fewer workers do the work. To be called in a kernel's entry block only.

    Args:
        name: of the worker function; unique in the module.
        items: how many, i64.
        workers: at least 1, at most MAX_WORKERS, i64.
        shared: pointers and i64 that the body needs.
        body: called with (item, number of the worker, *shared) to build one item's work.
    """
    worker = f"{name}_worker"
    types = [value.type for value in shared]

    def work(record: V) -> V:
        slots, number = load_pointer(record, _SHARED), load(record, i64(), _NUMBER)
        counter, count = gep(slots, len(types), i64()), load(slots, i64(), len(types) + 1)
        values = [load(slots, type_, index) for index, type_ in enumerate(types)]
        one = const(1, i64())

        def next_item(item: V) -> list[V]:
            body(item, number, *values)
            return [atomic_add(counter, one)]

        while_([atomic_add(counter, one)], lambda item: (item < count, [item]), next_item)
        return null()

    functions.helper(worker, [pointer()], pointer(), work)
    slots = stack_array(len(types) + 2, i64())
    for index, value in enumerate([*shared, const(0, i64()), items]):
        store_slot(value, slots, index)
    functions.declare("pthread_create", [pointer()] * 4, i32())
    functions.declare("pthread_join", [i64(), pointer()], i32())
    functions.declare("pthread_setaffinity_np", [i64(), i64(), pointer()], i32())
    functions.declare("sched_getaffinity", [i32(), i64(), pointer()], i32())
    functions.declare("sched_getcpu", [], i32())
    functions.helper(_FORK_JOIN, [pointer(), pointer(), i64()], None, _fork_join)
    call_procedure(_FORK_JOIN, [address_of(worker), slots, workers])


def _fork_join(worker: V, slots: V, workers: V) -> None:
    """Body of the function that calls worker(record) in `workers` threads, this one among them, and waits."""
    records = stack_array(MAX_WORKERS * _RECORD, i64())
    allowed, elsewhere = stack_array(_SET_WORDS, i64()), stack_array(_SET_WORDS, i64())

    def record(number: V) -> V:
        return gep(records, number * _RECORD, i64())

    def prepare(number: V) -> V:
        mine = record(number)
        store_slot(slots, mine, _SHARED)
        store(number, mine, _NUMBER)
        return mine

    nothing = null()
    (movable,) = if_else(workers > 1, lambda: [_other_processors(allowed, elsewhere)], lambda: [const(0, i1())])
    with for_(1, workers, 1, [const(1, i64())], unroll=False) as loop:
        (started,) = loop.args
        mine = prepare(started)
        failed = call("pthread_create", [gep(mine, _THREAD, i64()), nothing, worker, mine], i32())
        with if_(movable & failed.eq(0)):
            thread = load(mine, i64(), _THREAD)
            for processors in (elsewhere, allowed):
                call("pthread_setaffinity_np", [thread, _set_bytes(), processors], i32())
        # A record whose thread was not made is used again.
        loop.yields(started + failed.eq(0).to(i64()))
    (started,) = loop.results
    call(worker, [prepare(const(0, i64()))], pointer())
    with for_(1, started, 1, unroll=False) as loop:
        call("pthread_join", [load(record(loop.iv), i64(), _THREAD), nothing], i32())


def _other_processors(allowed: V, elsewhere: V) -> V:
    """Writes the processors that this thread may use, and those without the one it runs on; gives whether any are."""
    failed = call("sched_getaffinity", [const(0, i32()), _set_bytes(), allowed], i32())
    here = call("sched_getcpu", [], i32()).to(i64(), signed=True)
    others = const(0, i64())
    for word in range(_SET_WORDS):
        mine = (here >> 6).eq(word).select(const(1, i64()) << (here & (_WORD_BITS - 1)), const(0, i64()))
        left = load(allowed, i64(), word) & (mine ^ -1)
        store(left, elsewhere, word)
        others = others | left
    return failed.eq(0) & others.ne(0)


def _set_bytes() -> V:
    return const(_SET_WORDS * 8, i64())
