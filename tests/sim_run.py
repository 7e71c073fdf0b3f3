"""Runs a kernel in assembly on two buffers, for tests of memory opcodes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from sim_kernels import PROLOGUE, make_kernel

from spconv_compiler.sim.errors import Fault
from spconv_compiler.sim.interpreter import Machine
from spconv_compiler.sim.native.machine import NativeMachine

M32 = 2**32 - 1


def run(
    text: str,
    source: np.ndarray,
    start: np.ndarray,
    *,
    groups: int = 1,
    block: int = 64,
    native: bool = False,
    **kernel: Any,
) -> np.ndarray:
    """Runs PROLOGUE + text; returns the bytes of the second buffer as `start` is typed.

    native: on both engines, which must leave the same bytes, or find the same fault (of several waves: a fault each).
    """
    kernels = {"k": make_kernel(f"{PROLOGUE}{text}\ns_endpgm", **kernel)}
    found = _run(Machine(kernels, 20_000), source, start, groups, block)
    if native:
        other = _run(NativeMachine(kernels, 20_000), source, start, groups, block)
        assert isinstance(found, Fault) == isinstance(other, Fault), (found, other)
        if not isinstance(found, Fault):
            np.testing.assert_array_equal(found, other)
        elif block <= 64:
            assert str(found) == str(other)
    if isinstance(found, Fault):
        raise found
    return np.asarray(found)


def _run(machine: Any, source: np.ndarray, start: np.ndarray, groups: int, block: int) -> Any:
    first = machine.memory.allocate("source", source.nbytes)
    second = machine.memory.allocate("target", start.nbytes)
    machine.memory.write_array(first, source)
    machine.memory.write_array(second, start)
    try:
        machine.launch("k", [groups], block, [first, second])
    except Fault as fault:
        return fault
    return np.asarray(machine.memory.read_bytes(second).view(start.dtype))


WORDS = np.array([random.Random(4).getrandbits(32) for _ in range(64)], np.uint32)
ZEROS = np.zeros(64, np.uint32)
STORE = "s_nop 1\nbuffer_store_dword v2, v1, s[8:11], 0 offen"
