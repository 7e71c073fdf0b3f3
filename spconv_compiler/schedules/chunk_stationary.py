"""`chunk_stationary`: the CPU schedule.

Rows are taken in sorted order, a chunk at a time. A thread keeps the chunk's f32 sums in its cache, runs over
the taps with a register-blocked micro-kernel, and writes every output row once, with the epilogue applied. No
atomics, so the result does not depend on the number of threads.
"""

from __future__ import annotations

from spconv_compiler.schedules.base import Choice, Chosen, GemmSchedule, Problem
from spconv_compiler.targets.base import CpuTarget, Target

# A panel of sums of this many rows, 16 or 32 columns wide, fits a second-level cache beside the gathered rows, and
# a chunk has tens of pairs a tap, so that few blocks are padded. Independent of channels: layers share pairs.
CHUNK_ROWS = 512
MAX_TAPS = 343
# Enough work between loop ends; more made nothing faster, and code takes time to generate.
UNROLL_K = 4


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
        rows, vectors = best_tile(problem.c_out, target)
        pair_k = 2 if target.bf16_dot and problem.dtype == "bf16" else 1
        panel = {"tile_n": vectors * target.lanes, "pair_k": pair_k}
        return Chosen(
            map=Choice("sorted_keys"),
            pairs=Choice("chunk_tap_row", {"chunk_rows": CHUNK_ROWS}),
            weights=Choice("row_panels", panel),
            gemm=Choice(
                self.name, {"chunk_rows": CHUNK_ROWS, "tile_m": rows, **panel, "unroll_k": UNROLL_K}
            ),
        )


def best_tile(c_out: int, target: CpuTarget) -> tuple[int, int]:
    """(rows, vectors) of the register tile with the fewest cycles a row and k step, padded columns included.

    A core starts two multiply-adds and two loads in a cycle: a tile takes as long as the more frequent of them.
    """

    def halves_of_a_cycle(tile: tuple[int, int]) -> float:
        rows, vectors = tile
        panels = -(-c_out // (vectors * target.lanes))
        return panels * max(rows * vectors, rows + vectors) / rows

    return min(target.tiles, key=halves_of_a_cycle)
