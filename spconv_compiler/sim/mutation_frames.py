"""What the mutation run (mutation.py) takes of the kernel that brings a frame's coordinates to their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from spconv_compiler.arrays import as_array
from spconv_compiler.artifact import Artifact
from spconv_compiler.compiler import compile_options
from spconv_compiler.frame_options import FrameOptions
from spconv_compiler.runtime.calls import host_call
from spconv_compiler.runtime.gpu_plan import GpuPlan
from spconv_compiler.runtime.sim import SimDevice
from spconv_compiler.sim.elf import Kernel
from spconv_compiler.sim.errors import Fault
from spconv_compiler.sim.mutation_cross import Run
from spconv_compiler.sim.native.machine import NativeMachine

_ROWS, _ROOM, _EXTENT = 700, 1100, 40
_KEPT = ("placed", "placed_count", "outside")


def frame_ops() -> Iterator[tuple[str, Artifact, Run]]:
    """(name, artifact, how to run it)."""
    for by_words in (False, True):
        artifact = compile_options(FrameOptions("gfx950-sim", by_words))
        where = "that words of memory find" if by_words else "that arguments find"
        yield f"a frame's coordinates, {where}", artifact, _comparison(artifact, by_words)


def _comparison(artifact: Artifact, by_words: bool) -> Run:
    wanted = _taken_in(artifact, by_words, {})

    def compare(replaced: Mapping[str, Kernel]) -> None:
        if not np.array_equal(_taken_in(artifact, by_words, replaced), wanted):
            raise Fault("the result is another one")

    return compare


def _taken_in(artifact: Artifact, by_words: bool, replaced: Mapping[str, Kernel]) -> Any:
    """All that the kernel leaves, as words; some coordinates lie outside."""
    device = SimDevice(lambda kernels: NativeMachine({**kernels, **replaced}))
    plan = GpuPlan(artifact.plan, device, artifact.object, keep=_KEPT)
    coords = np.random.default_rng(0).integers(-1, _EXTENT + 1, (_ROWS, 4)).astype(np.int32)
    symbols = {"rows": _ROWS, "coarse_rows": _ROOM, "cells": 0, "threads": 1, "batches": _EXTENT}
    symbols |= {f"extent_{axis}": _EXTENT for axis in "zyx"}
    with host_call(device) as call:
        given = {"coords": call.place("coords", as_array(coords, "coords")), "outside": call.allocate("outside", 4)}
        device.copy_in(given["outside"], np.zeros(1, np.int32).ctypes.data, call.stream)
        if by_words:
            origin = call.allocate("origin", 16)
            away = np.array([given["coords"].pointer - origin.pointer >> 2, _ROWS], np.int64)
            given |= {"coords": origin, "frame": call.place("frame", as_array(away.view(np.int32), "frame"))}
        found = {**given, **plan.run("coords", symbols, given, call)}
    return np.concatenate([device.memory.copy_out(found[name].pointer, found[name].nbytes) for name in _KEPT])
