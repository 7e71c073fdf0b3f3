"""Compiles the kernels of a network's steps: distinct ones once, and several at a time."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from spconv_compiler.compiler import adopt, compile_options, conv_options, is_compiled
from spconv_compiler.geometry import ConvGeometry
from spconv_compiler.map_request import sparse_options
from spconv_compiler.network.plan import NetworkPlan, Step
from spconv_compiler.network.worker import Worker
from spconv_compiler.options import CompileOptions
from spconv_compiler.sparse_options import ON_ROWS, SparseOptions

Options: TypeAlias = "CompileOptions | SparseOptions"
Progress: TypeAlias = "Callable[[int, int, str], None]"
"""Called with (kernels compiled, of how many, the name of the last one)."""
# A worker starts in about a second, in which this process compiles one or two kernels itself.
_WORTH_A_WORKER = 3


def step_options(step: Step, target: str, key_width: int = 32) -> Options:
    """What the kernel of a step is compiled for."""
    given: dict[str, Any] = dict(step.options)
    if step.operation == "subm_conv":
        size, c_in, c_out = given.pop("kernel_size"), given.pop("c_in"), given.pop("c_out")
        return conv_options(size, c_in, c_out, key_width, target=target, **given)
    geometry = given.pop("geometry", ConvGeometry((1, 1, 1)))
    return sparse_options(step.operation, geometry, target, key_width=key_width, **given)


def plan_options(plan: NetworkPlan, target: str) -> list[Options]:
    """Every kernel of a plan, with 32-bit keys, each once: those of steps, and those that make coordinates."""
    steps: list[Options] = [step_options(step, target) for step in plan.steps]
    made = [sparse_options("outputs", map_.geometry, target) for map_ in plan.maps if not map_.submanifold]
    return list(dict.fromkeys([*steps, *made]))


def is_on_rows(options: Options) -> bool:
    """Whether a kernel is one of rows alone."""
    return isinstance(options, SparseOptions) and options.operation in ON_ROWS


def compile_all(options: Iterable[Options], progress: Progress | None = None) -> int:
    """Compiles what is neither in memory nor on disk, side by side on the processors that this process may use.

    Returns:
        How many kernels were compiled.

    Raises:
        CompileError, ToolchainError: see compiler.compile_conv.
    """
    missing = [item for item in options if not is_compiled(item)]
    waiting: queue.SimpleQueue[Options] = queue.SimpleQueue()
    for item in missing:
        waiting.put(item)
    told, lock, failures = [0], threading.Lock(), list[BaseException]()

    def tell(item: Options) -> None:
        with lock:
            told[0] += 1
            if progress is not None:
                progress(told[0], len(missing), item.name)

    def drain(build: Callable[[Options], None]) -> None:
        while not failures:
            try:
                item = waiting.get_nowait()
            except queue.Empty:
                return
            build(item)
            tell(item)

    def help_out() -> None:
        try:
            worker = Worker()
        except OSError as error:
            # This process has work in the meantime, and does all of it.
            logging.getLogger("spconv_compiler").warning("no process beside this one compiles kernels: %s", error)
            return
        try:
            with worker:
                drain(lambda item: adopt(item, worker.compile(item)))
        except BaseException as error:  # raised again below, in the thread that asked
            failures.append(error)

    helpers = [threading.Thread(target=help_out) for _ in range(_helpers(len(missing)))]
    for helper in helpers:
        helper.start()
    try:
        drain(_compile_here)
    except BaseException as error:
        failures.append(error)
    for helper in helpers:
        helper.join()
    if failures:
        raise failures[0]
    return len(missing)


def _compile_here(options: Options) -> None:
    compile_options(options)


def _helpers(count: int) -> int:
    """Worker processes for a number of kernels, beside this process."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min(processors - 1, count // _WORTH_A_WORKER), 0)
