"""`pairs_m16`: the reference schedule, after FlyDSL pull request 942.

One wave takes 16 pairs of one tap and a slice of output channels, gathers 16 input rows straight into
registers, multiplies by v_mfma_f32_16x16x32 and adds every element to the output with an f32 atomic. No LDS.
It re-reads the weights for every 16 rows; it is kept as the baseline that later schedules are compared with.
"""

from __future__ import annotations

from spconv_compiler.schedules.base import Choice, Chosen, GemmSchedule, Problem
from spconv_compiler.targets.base import GpuTarget, Target

TILE_M = 16
LANES_PER_ROW = 256
MAX_TAPS = 343


class PairsM16(GemmSchedule):
    """See the module."""

    name = "pairs_m16"
    owns_rows = False

    def reject(self, problem: Problem, target: Target) -> str | None:
        if not isinstance(target, GpuTarget):
            return f"it is for waves of a GPU, and {target.name} has none"
        if problem.dtype not in target.dtypes or target.mma_for(problem.dtype) is None:
            shapes = sorted({shape.element for shape in target.mma})
            return f"features are {problem.dtype}; {target.name} has matrix instructions here for {', '.join(shapes)}"
        if ("fadd", "f32") not in target.atomics:
            return f"{target.name} has no f32 atomic add"
        if problem.taps > MAX_TAPS:
            return f"the kernel has {problem.taps} taps; at most {MAX_TAPS} (7×7×7)"
        return None

    def choose(self, problem: Problem, target: Target) -> Chosen:
        assert isinstance(target, GpuTarget)
        mma = target.mma_for(problem.dtype)
        assert mma is not None
        n_tiles = -(-problem.c_out // mma.n)
        # 64 channels a wave up to 256 outputs, 128 beyond: the reference's choice.
        per_wave = min(n_tiles, 4 if problem.c_out <= 256 else 8)
        while n_tiles % per_wave:
            per_wave -= 1
        k_steps = -(-problem.c_in // mma.k)
        unroll = 2 if problem.c_out >= 512 and k_steps % 2 == 0 else 1
        return Chosen(
            map=Choice("dense_grid", {"block": LANES_PER_ROW}),
            pairs=Choice("tap_tile_row", {"tile_m": TILE_M}),
            weights=Choice("mma_panels", {"tile_n": mma.n, "tile_k": mma.k, "chunk_k": 8}),
            gemm=Choice(
                self.name,
                {"tile_m": TILE_M, "tile_n": mma.n * per_wave, "tile_k": mma.k, "k_unroll": unroll},
            ),
        )
