"""How a captured network takes frames in: their coordinates, and what the host has to know of them.

One kernel for each coordinate tensor copies it to its place and checks it (passes/gpu/frame_rows.py). What it finds
wrong, and the numbers of voxels of levels that are made, come as words of host memory behind an event, while the
convolutions still run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from spconv_compiler.arrays import Array
from spconv_compiler.frame_driver import load_frames
from spconv_compiler.network.places import Level, Place
from spconv_compiler.runtime.device import HostWords, StreamWords
from spconv_compiler.runtime.gpu_plan import GpuPlan, PreparedGroup
from spconv_compiler.runtime.prepared import PreparedLaunch

# 16 bytes at a time are read of coordinates and features.
ALIGNMENT = 16


class Intake:
    """See the module. One call at a time.

    Args:
        given: the levels that arguments are, by number. status: COUNT_WORDS a level, on the device.
        counted: whether the network makes levels, so that their numbers are wanted.

    Attributes:
        frames: by level, the kernel that brings its coordinates to their place; `coords` and `rows` are to be set.
        report: in host memory, how many coordinates of each given level lie outside, then a copy of `status`.
        checked: is reached when `report` is complete.
    """

    def __init__(self, device: Any, target: str, given: Mapping[int, Level], status: Place, counted: bool) -> None:
        self._device, self._counts = device, status if counted else None
        self._outside = len(given)
        words = self._outside + (status.nbytes // 4 if counted else 0)
        self.report = device.host_words(words)
        self.checked = device.event()
        self._target, self._given = target, given
        plan = load_frames(target, device.index)
        self.frames = {
            number: self._prepared(plan, level, place, {"coords": Place(None, 0, 0)}, ("coords", "rows"))
            for place, (number, level) in enumerate(given.items())
        }

    def by_words(self, words: HostWords | StreamWords) -> PreparedLaunch:
        """A launch for the only level that is given, which finds the frame in four words (dialect/frame.py).

        It counts from the words themselves where the coordinates begin.
        """
        (level,) = self._given.values()
        place = Place(words, words.pointer, words.nbytes)
        plan = load_frames(self._target, self._device.index, by_words=True)
        return self._prepared(plan, level, 0, {"coords": place, "frame": place}, ()).launches[0]

    def _prepared(
        self, plan: GpuPlan, level: Level, place: int, frame: Mapping[str, Place], changing: Iterable[str]
    ) -> PreparedGroup:
        batches, *shape = (high + 1 for high in level.box.high)
        symbols = dict(zip(("extent_z", "extent_y", "extent_x"), shape, strict=True))
        symbols |= {"batches": batches, "rows": level.room, "coarse_rows": level.room, "cells": 0, "threads": 1}
        plan.plan.check(symbols)
        buffers = {
            **frame,
            "placed": level.place,
            "placed_count": level.count,
            "outside": Place(self.report, self.report.pointer + 4 * place, 4),
        }
        return plan.prepare("coords", symbols, buffers, changing)

    def place(self, points: Mapping[int, Array], stream: int) -> None:
        """Queues the kernels for coordinates int32 [N, 4] by level, N at most the level's room, 16-byte aligned."""
        for number in range(self._outside):
            self.report.words[number] = 0
        for number, array in points.items():
            frame = self.frames[number]
            frame.set("coords", array.pointer)
            frame.set("rows", array.shape[0])
            frame.launch(stream)

    def mark(self, stream: int) -> None:
        """Behind all that the report tells of."""
        if self._counts is not None:
            self._device.copy_out(self.report.handle + 4 * self._outside, self._counts, stream)
        self.checked.record(stream)

    def wait(self) -> tuple[list[int], list[int]]:
        """(by given level, coordinates outside of its box; `status`, empty where nothing is counted).

        Raises:
            LaunchError: the work has failed.
        """
        self.checked.synchronize()
        words = self.report.words[:]
        return words[: self._outside], words[self._outside :]


def aligned(array: Array) -> Array:
    """The array, or a copy that begins at a multiple of ALIGNMENT."""
    if array.pointer % ALIGNMENT == 0:
        return array
    copy = array.source.clone()
    return array._replace(source=copy, pointer=copy.data_ptr())
