"""The kernel that takes a frame's coordinates in (passes/gpu/frame_rows.py), loaded on a GPU."""

from __future__ import annotations

import functools

from spconv_compiler.compiler import compile_options
from spconv_compiler.frame_options import FrameOptions
from spconv_compiler.runtime.gpu_plan import GpuPlan
from spconv_compiler.targets import GpuTarget, get_target


@functools.lru_cache(maxsize=16)
def load_frames(target: str, index: int | None = None, by_words: bool = False) -> GpuPlan:
    """The plan with the kernel, compiled (or found) and loaded on GPU `index`, or for host arrays (None).

    Its group "coords" takes coords (int32 [N, 4]), writes placed (int32 [coarse_rows, 4]) and placed_count (two words),
    and adds to the word `outside` how many of the N lie outside of the box from 0 to batches and extents. With
    `by_words`, N and where coords begin are words of the buffer `frame` (dialect/frame.py), `coords` any address.

    Raises:
        CompileError, LaunchError, ToolchainError: see compile_conv and driver.load_conv.
    """
    from spconv_compiler.driver_gpu import open_device

    found = get_target(target)
    assert isinstance(found, GpuTarget)
    artifact = compile_options(FrameOptions(found.name, by_words))
    keep = ("placed", "placed_count", "outside")
    return GpuPlan(artifact.plan, open_device(found)(index or 0), artifact.object, keep=keep)
