"""`pairs_m16`: the reference schedule, after FlyDSL pull request 942.

One wave takes 16 pairs of one tap and a slice of output channels, gathers 16 input rows straight into
registers, multiplies by a 16-row matrix instruction and adds every element to the output with an f32 atomic. No
LDS. It re-reads the weights for every 16 rows; it is kept as the baseline that later schedules are compared with.
"""

from __future__ import annotations

from spconv_compiler.schedules.base import Choice, Chosen, GemmSchedule, Problem
from spconv_compiler.schedules.between_sets import GPU_MAP
from spconv_compiler.schedules.cost import ATOMIC_BYTES, Work, Workload, matrix_passes
from spconv_compiler.targets.base import GpuTarget, MmaShape, Target

TILE_M = 16
LANES_PER_ROW = 256
MAX_TAPS = 343
# A lane loads 16 bytes of a row at once.
LOAD_BITS = 128


class PairsM16(GemmSchedule):
    """See the module."""

    name = "pairs_m16"
    owns_rows = False

    def reject(self, problem: Problem, target: Target) -> str | None:
        if not isinstance(target, GpuTarget):
            return f"it is for waves of a GPU, and {target.name} has none"
        mma = target.mma_for(problem.dtype)
        if problem.dtype not in target.dtypes or mma is None:
            known = ", ".join(sorted({shape.element for shape in target.mma})) or "no dtype"
            return f"features are {problem.dtype}; {target.name} has matrix instructions here for {known}"
        if mma.m != TILE_M:
            return f"the matrix instruction for {problem.dtype} takes {mma.m} rows, not {TILE_M}"
        for atomic in (("fadd", "f32"), ("umin", "i32")):
            if atomic not in target.atomics:
                return f"{target.name} has no atomic {atomic[0]} of {atomic[1]}"
        if problem.taps > MAX_TAPS:
            return f"the kernel has {problem.taps} taps; at most {MAX_TAPS} (7×7×7)"
        packed = problem.taps * _padded(problem, target, mma) * int(problem.dtype.lstrip("bf")) // 8
        if packed > target.buffer_limit_bytes:
            return f"the packed weights take {packed} bytes; at most {target.buffer_limit_bytes}"
        return None

    def work(self, problem: Problem, target: Target, workload: Workload) -> Work | None:
        assert isinstance(target, GpuTarget)
        mma = target.mma_for(problem.dtype)
        assert mma is not None
        slices, columns = _slices(problem, mma)
        pairs, size = workload.pairs(problem.taps), int(problem.dtype.lstrip("bf")) // 8
        tiles = pairs / TILE_M * slices
        # Weights are read anew for every tile; every slice gathers the features again.
        weights = tiles * _padded(problem, target, mma) / slices * size
        gathered, added = pairs * problem.c_in * size * slices, pairs * problem.c_out * 4
        steps = -(-problem.c_in // _step(problem, target, mma)[0])
        passes = matrix_passes(pairs, problem.c_in, problem.c_out, mma)
        return Work(
            passes=passes,
            groups=tiles,
            resident=target.waves_per_unit,
            l2_bytes=weights + gathered + 2 * added,
            memory_bytes=gathered + 2 * added,
            chain_cycles=900 + 400 * steps + 4 * mma.passes * passes / pairs * TILE_M / slices,
            atomics=added / ATOMIC_BYTES,
            launches=2,
        )

    def choose(self, problem: Problem, target: Target) -> Chosen:
        assert isinstance(target, GpuTarget)
        mma = target.mma_for(problem.dtype)
        assert mma is not None
        slices, columns = _slices(problem, mma)
        tile_k, chunk_k = _step(problem, target, mma)
        # The reference's choice: two steps of loads in flight from 512 output channels on.
        unroll = 2 if problem.c_out >= 512 and problem.c_in >= 2 * tile_k else 1
        # As many waves as the chip holds take the tiles in turn: their number is known to the device only.
        waves = max(target.compute_units * target.waves_per_unit // slices, 1)
        panels = {"tile_n": columns, "mma_n": mma.n, "tile_k": tile_k, "chunk_k": chunk_k}
        return Chosen(
            map=GPU_MAP if problem.between_sets else Choice("dense_grid", {"block": LANES_PER_ROW}),
            pairs=Choice("tap_tile_row", {"tile_m": TILE_M}),
            weights=Choice("mma_panels", panels),
            gemm=Choice(self.name, {"tile_m": TILE_M, **panels, "k_unroll": unroll, "waves": waves}),
        )


def _slices(problem: Problem, mma: MmaShape) -> tuple[int, int]:
    """(slices of the output channels, channels of a slice): evenly cut, 64 channels at most up to 256 outputs.

    The reference takes 128 beyond, and pads C_out to whole instructions; an even cut pads it to whole slices.
    """
    tiles = -(-problem.c_out // mma.n)
    slices = -(-tiles // (4 if problem.c_out <= 256 else 8))
    return slices, -(-tiles // slices) * mma.n


def _step(problem: Problem, target: GpuTarget, mma: MmaShape) -> tuple[int, int]:
    """(input channels of one step of a wave, of one lane): every lane group of the instruction loads 16 bytes."""
    chunk_k = LOAD_BITS // int(problem.dtype.lstrip("bf"))
    return chunk_k * (target.wave // mma.m), chunk_k


def _padded(problem: Problem, target: GpuTarget, mma: MmaShape) -> int:
    """Padded C_in times padded C_out."""
    slices, columns = _slices(problem, mma)
    tile_k, _ = _step(problem, target, mma)
    return -(-problem.c_in // tile_k) * tile_k * slices * columns
