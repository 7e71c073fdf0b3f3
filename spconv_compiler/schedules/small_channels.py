"""`small_channels`: a matrix instruction takes several taps, for layers with at most 16 input channels.

The first layers of networks have 3 to 16 channels, which fill a fraction of an instruction's K. Here all taps of a row
stand in a row, and K is taps · channels, each tap padded to whole runs of 16 bytes. Rows and pairs are those of
output_stationary, so that the next layers share them.
"""

from __future__ import annotations

from spconv_compiler.schedules.base import Choice, Chosen, Problem
from spconv_compiler.schedules.cost import Work, Workload, matrix_passes
from spconv_compiler.schedules.output_stationary import (
    BLOCK_ROWS,
    RUN_BYTES,
    TILE_ROWS,
    OutputStationary,
    columns_of,
    element_bytes,
)
from spconv_compiler.targets.base import GpuTarget, Target

MAX_CHANNELS = 16
WAVES, FRAGMENTS = 4, 1
_STEPS, _ROUND_CYCLES = 4, 1000


class SmallChannels(OutputStationary):
    """See the module."""

    name = "small_channels"

    def reject(self, problem: Problem, target: Target) -> str | None:
        if problem.c_in > MAX_CHANNELS:
            return f"features have {problem.c_in} channels; at most {MAX_CHANNELS}: an instruction takes several taps"
        return super().reject(problem, target)

    def choose(self, problem: Problem, target: Target) -> Chosen:
        assert isinstance(target, GpuTarget)
        mma = target.mma_for(problem.dtype)
        assert mma is not None
        run = RUN_BYTES // element_bytes(problem.dtype)
        panels = {
            "tile_n": columns_of(problem, mma),
            "mma_n": mma.n,
            "chunk_k": run,
            "groups": target.wave // mma.n,
        }
        return Chosen(
            map=super().choose(problem, target).map,
            pairs=super().choose(problem, target).pairs,
            weights=Choice("tap_panels", panels),
            gemm=Choice(self.name, {"block_rows": BLOCK_ROWS, "waves": WAVES, "fragments": FRAGMENTS, **panels}),
        )

    def work(self, problem: Problem, target: Target, workload: Workload) -> Work | None:
        assert isinstance(target, GpuTarget)
        mma = target.mma_for(problem.dtype)
        assert mma is not None
        size, columns = element_bytes(problem.dtype), columns_of(problem, mma)
        run, slices = RUN_BYTES // size, -(-problem.c_out // columns)
        steps = -(-problem.taps * -(-problem.c_in // run) // (target.wave // mma.n))
        k = steps * (target.wave // mma.n) * run
        waves = workload.rows / (TILE_ROWS * FRAGMENTS) * slices
        # Rows are narrower than the pieces that caches move; neighbours' numbers are read for all taps.
        gathered = workload.pairs(problem.taps) * 128 * slices
        table, written = workload.rows * problem.taps * 4 * slices, workload.rows * problem.c_out * 4
        return Work(
            passes=matrix_passes(workload.rows, k, problem.c_out, mma),
            groups=waves / WAVES,
            resident=target.waves_per_unit // WAVES,
            # Weights stay in first-level caches, as far as those are large enough.
            l2_bytes=gathered + table + written,
            memory_bytes=workload.rows * problem.c_in * size * target.chiplets + table + written,
            chain_cycles=1000 + _ROUND_CYCLES * -(-steps // _STEPS),
        )
