"""`chunk_stationary`: the CPU schedule.

Rows are taken in sorted order, a chunk at a time. A thread keeps the chunk's f32 sums in its cache, runs over
the taps with a register-blocked micro-kernel, and writes every output row once, with the epilogue applied. No
atomics, so the result does not depend on the number of threads.
"""

from __future__ import annotations

from spconv_compiler.schedules.base import Choice, Chosen, GemmSchedule, Problem
from spconv_compiler.targets.base import CpuTarget, Target

CHUNK_ROWS = 256
MAX_TAPS = 343


class ChunkStationary(GemmSchedule):
    """See the module."""

    name = "chunk_stationary"
    owns_rows = True

    def reject(self, problem: Problem, target: Target) -> str | None:
        if not isinstance(target, CpuTarget):
            return f"it is for processor cores, and {target.name} is a GPU"
        if problem.dtype not in target.dtypes:
            return f"features are {problem.dtype}; {target.name} accepts {', '.join(target.dtypes)}"
        if problem.taps > MAX_TAPS:
            return f"the kernel has {problem.taps} taps; at most {MAX_TAPS} (7×7×7)"
        return None

    def choose(self, problem: Problem, target: Target) -> Chosen:
        assert isinstance(target, CpuTarget)
        rows, vectors = target.tile
        pair_k = 2 if target.bf16_dot and problem.dtype == "bf16" else 1
        # Fewer channels than the widest tile: one vector is enough.
        vectors = min(vectors, -(-problem.c_out // target.lanes))
        panel = {"tile_n": vectors * target.lanes, "pair_k": pair_k}
        return Chosen(
            map=Choice("sorted_keys"),
            pairs=Choice("chunk_tap_row", {"chunk_rows": CHUNK_ROWS}),
            weights=Choice("row_panels", panel),
            gemm=Choice(self.name, {"chunk_rows": CHUNK_ROWS, "tile_m": rows, **panel}),
        )
