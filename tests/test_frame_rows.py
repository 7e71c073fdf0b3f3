"""The kernel that takes a frame's coordinates in, on the simulator: against NumPy, exactly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from spconv_compiler.arrays import as_array
from spconv_compiler.errors import LaunchError
from spconv_compiler.frame_driver import load_frames
from spconv_compiler.runtime.calls import host_call, read
from spconv_compiler.sim.elf import CodeObject
from spconv_compiler.sim.mutation import wait_report
from spconv_compiler.sim.mutation_frames import frame_ops

SHAPE, BATCHES = (9, 11, 13), 3


def taken_in(
    coords: npt.NDArray[np.int32], room: int, by_words: bool
) -> tuple[npt.NDArray[np.int32], list[int], int]:
    """(the rows in their place, the two words of their number, how many are out of range)."""
    plan = load_frames("gfx950-sim", by_words=by_words)
    symbols = dict(zip(("batches", "extent_z", "extent_y", "extent_x"), (BATCHES, *SHAPE), strict=True))
    symbols |= {"rows": len(coords), "coarse_rows": room, "cells": 0, "threads": 1}
    with host_call(plan.device) as call:
        given = {
            "coords": call.place("coords", as_array(coords, "coords")),
            "outside": call.allocate("outside", 4),
        }
        plan.device.copy_in(given["outside"], np.zeros(1, np.int32).ctypes.data, call.stream)
        if by_words:
            # Counted from behind the coordinates: how far they are away is negative.
            origin, symbols["rows"] = call.allocate("origin", 16), 2**31 - 1
            away = np.array([given["coords"].pointer - origin.pointer >> 2, len(coords)], np.int64)
            frame = call.place("frame", as_array(away.view(np.int32), "frame"))
            given |= {"coords": origin, "frame": frame}
        kept = plan.run("coords", symbols, given, call)
        placed, count, outside = (
            read(call, buffer, np.int32) for buffer in (kept["placed"], kept["placed_count"], given["outside"])
        )
    return placed.reshape(-1, 4), count.tolist(), int(outside[0])


@pytest.mark.parametrize("by_words", [False, True])
@pytest.mark.parametrize(("rows", "room"), [(1, 1), (1, 300), (255, 256), (256, 256), (257, 512), (1600, 2100)])
def test_rows_are_copied_and_the_rest_is_nowhere(rows: int, room: int, by_words: bool) -> None:
    rng = np.random.default_rng(rows)
    coords = np.stack([rng.integers(0, size, rows) for size in (BATCHES, *SHAPE)], 1).astype(np.int32)
    placed, count, outside = taken_in(coords, room, by_words)
    assert np.array_equal(placed[:rows], coords) and count == [rows, rows] and outside == 0
    assert np.array_equal(placed[rows:], np.tile(np.int32([-1, 0, 0, 0]), (room - rows, 1)))


@pytest.mark.parametrize("by_words", [False, True])
@pytest.mark.parametrize("column", range(4))
def test_coordinates_that_lie_outside_are_counted(column: int, by_words: bool) -> None:
    """Below and above, just so and by far; of the last row too; a row that is wrong twice counts once."""
    coords = np.zeros((300, 4), np.int32)
    size = (BATCHES, *SHAPE)[column]
    coords[[3, 4, 5, 299], column] = [-1, size, -(2**31), 2**31 - 1]
    coords[[6, 298], column] = size - 1
    coords[4, (column + 1) % 4] = -7
    placed, _, outside = taken_in(coords, 512, by_words)
    assert outside == 4 and np.array_equal(placed[:300], coords)


def test_a_buffer_that_is_beyond_the_target_is_refused() -> None:
    plan = load_frames("gfx950-sim").plan
    symbols = {"rows": 1, "coarse_rows": 2**28, "cells": 0, "threads": 1}
    with pytest.raises(LaunchError, match="bytes of coordinates"):
        plan.check(symbols)


def test_a_weakened_kernel_is_noticed() -> None:
    """Every wait is needed."""
    for _, artifact, run in frame_ops():
        (kernel,) = CodeObject(artifact.object).kernels.values()
        found = wait_report(kernel, run)
        assert found.caught == found.total > 0, found.missed
