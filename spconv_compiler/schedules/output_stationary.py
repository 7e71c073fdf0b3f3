"""`output_stationary`: a workgroup owns 256 output rows, and runs over the taps that they have.

Rows are sorted by their masks of taps, so that a block of rows misses few of the taps that one of its rows has, and
every output row is written once, from registers: no atomics, no fill, one order of summation, and the epilogue in the
same kernel. Weights are read once for 256 rows, through local memory; a tile of 16 rows skips the taps that none of its
rows has. `split_taps` is the same with the taps of a block cut into parts, each a workgroup, whose sums a second kernel
adds up: for few rows and many channels, where there are fewer blocks than compute units.

Where a tile has a tap, rows of it without the tap count as zeros: they are multiplied by the weights, and a weight that
is infinite or not a number reaches them.
"""

from __future__ import annotations

from spconv_compiler.schedules.base import Choice, Chosen, GemmSchedule, Problem
from spconv_compiler.schedules.cost import ITEM_CYCLES, LINE_BYTES, Work, Workload, matrix_passes
from spconv_compiler.targets.base import GpuTarget, MmaShape, Target

BLOCK_ROWS = 256
TILE_ROWS = 16
# A wave keeps the sums of so many tiles.
FRAGMENTS = 2
# Output channels of a workgroup: more need more registers for sums than leave two waves on a SIMD unit.
MAX_COLUMNS = 128
# What is gathered of a row at once: a cache line. And what one lane loads.
STAGE_BYTES, RUN_BYTES = 128, 16
BUFFERS = 3
MAX_TAPS = 343
LANES_PER_ROW, SORT_ITEMS = 256, 4
SPLITS = 4


def element_bytes(dtype: str) -> int:
    """Bytes of "bf16", "f16" or "f32"."""
    return int(dtype.lstrip("bf")) // 8


class OutputStationary(GemmSchedule):
    """See the module."""

    name = "output_stationary"
    owns_rows = True
    splits = 1

    def reject(self, problem: Problem, target: Target) -> str | None:
        if not isinstance(target, GpuTarget):
            return f"it is for waves of a GPU, and {target.name} has none"
        if problem.between_sets:
            return "inputs and outputs are two coordinate sets; it sorts the rows of submanifold maps"
        mma = target.mma_for(problem.dtype)
        if problem.dtype not in target.dtypes or mma is None:
            shapes = sorted({shape.element for shape in target.mma})
            return f"features are {problem.dtype}; {target.name} has matrix instructions here for {', '.join(shapes)}"
        if (mma.m, mma.n) != (TILE_ROWS, TILE_ROWS):
            return f"the matrix instruction for {problem.dtype} takes {mma.m}x{mma.n}, not {TILE_ROWS}x{TILE_ROWS}"
        if problem.taps > MAX_TAPS:
            return f"the kernel has {problem.taps} taps; at most {MAX_TAPS} (7×7×7)"
        lanes, local = self._waves() * target.wave, BUFFERS * columns_of(problem, mma) * STAGE_BYTES
        if lanes > target.max_workgroup or local > target.lds_bytes:
            have = f"{target.max_workgroup} and {target.lds_bytes}"
            return f"a workgroup has {lanes} lanes and {local} bytes of local memory; {target.name} has {have}"
        packed = packed_bytes(problem, mma)
        if packed > target.buffer_limit_bytes:
            return f"the packed weights take {packed} bytes; at most {target.buffer_limit_bytes}"
        return None

    def choose(self, problem: Problem, target: Target) -> Chosen:
        assert isinstance(target, GpuTarget)
        mma = target.mma_for(problem.dtype)
        assert mma is not None
        size = element_bytes(problem.dtype)
        panels = {
            "tile_n": columns_of(problem, mma),
            "mma_n": mma.n,
            "tile_k": STAGE_BYTES // size,
            "chunk_k": RUN_BYTES // size,
        }
        rows = {"block_rows": BLOCK_ROWS, "waves": self._waves(), "fragments": FRAGMENTS}
        return Chosen(
            map=Choice("dense_grid", {"block": LANES_PER_ROW}),
            pairs=Choice("sorted_tiles", {"block_rows": BLOCK_ROWS, "items": SORT_ITEMS}),
            weights=Choice("mma_panels", panels),
            gemm=Choice(self.name, {**rows, **panels, "splits": self.splits}),
        )

    def work(self, problem: Problem, target: Target, workload: Workload) -> Work | None:
        assert isinstance(target, GpuTarget)
        mma = target.mma_for(problem.dtype)
        assert mma is not None
        size, columns = element_bytes(problem.dtype), columns_of(problem, mma)
        slices, blocks = -(-problem.c_out // columns), -(-workload.rows // BLOCK_ROWS)
        rows = workload.rows * workload.taps_together(problem.taps, TILE_ROWS)
        steps = workload.taps_together(problem.taps, BLOCK_ROWS)
        weights = blocks * steps * packed_bytes(problem, mma) / problem.taps
        gathered = workload.pairs(problem.taps) * -(-problem.c_in * size // LINE_BYTES) * LINE_BYTES
        written = workload.rows * problem.c_out * 4 * (self.splits if self.splits > 1 else 1)
        passes = matrix_passes(rows, problem.c_in, problem.c_out, mma)
        groups = blocks * slices * self.splits
        items = steps * -(-problem.c_in * size // STAGE_BYTES) / self.splits
        busy = 4 * passes / (groups * self._waves())
        # Two waves on a SIMD unit with all columns, four with half of them.
        resident = 1 if columns > MAX_COLUMNS // 2 else 2
        return Work(
            passes=passes,
            groups=groups,
            resident=resident,
            l2_bytes=weights + gathered * slices + 2 * written * (2 if self.splits > 1 else 1),
            memory_bytes=gathered + 2 * written,
            chain_cycles=2500 + items * ITEM_CYCLES + busy,
            launches=2 if self.splits > 1 else 1,
        )

    def _waves(self) -> int:
        return BLOCK_ROWS // (TILE_ROWS * FRAGMENTS)


class SplitTaps(OutputStationary):
    """See the module."""

    name = "split_taps"
    splits = SPLITS

    def reject(self, problem: Problem, target: Target) -> str | None:
        if problem.taps < SPLITS:
            return f"the kernel has {problem.taps} taps, which are not enough for {SPLITS} parts"
        return super().reject(problem, target)


def columns_of(problem: Problem, mma: MmaShape) -> int:
    """Output channels of a workgroup: evenly cut, whole instructions, at most MAX_COLUMNS."""
    tiles = -(-problem.c_out // mma.n)
    slices = -(-tiles * mma.n // MAX_COLUMNS)
    return -(-tiles // slices) * mma.n


def packed_bytes(problem: Problem, mma: MmaShape) -> int:
    """Bytes of all packed weights, padded to whole stages and slices."""
    columns = columns_of(problem, mma)
    k_bytes = -(-problem.c_in * element_bytes(problem.dtype) // STAGE_BYTES) * STAGE_BYTES
    return problem.taps * k_bytes * -(-problem.c_out // columns) * columns
