"""Runs a kernel in assembly on two buffers, for tests of memory opcodes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from sim_kernels import PROLOGUE, make_kernel

from spconv_compiler.sim.interpreter import Machine

M32 = 2**32 - 1


def run(
    text: str, source: np.ndarray, start: np.ndarray, *, groups: int = 1, block: int = 64, **kernel: Any
) -> np.ndarray:
    """Runs PROLOGUE + text; returns the bytes of the second buffer as `start` is typed."""
    machine = Machine({"k": make_kernel(f"{PROLOGUE}{text}\ns_endpgm", **kernel)}, 20_000)
    first = machine.memory.allocate("source", source.nbytes)
    second = machine.memory.allocate("target", start.nbytes)
    machine.memory.write_array(first, source)
    machine.memory.write_array(second, start)
    machine.launch("k", [groups], block, [first, second])
    return machine.memory.read_bytes(second).view(start.dtype)


WORDS = np.array([random.Random(4).getrandbits(32) for _ in range(64)], np.uint32)
ZEROS = np.zeros(64, np.uint32)
STORE = "s_nop 1\nbuffer_store_dword v2, v1, s[8:11], 0 offen"
