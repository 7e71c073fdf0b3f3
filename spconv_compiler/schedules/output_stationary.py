"""`output_stationary`: a workgroup owns 48 to 256 output rows, and runs over the taps that they have.

Rows are sorted by their masks of taps, so that a block of rows misses few of the taps that one of its rows has, and
every output row is written once, from registers: no atomics, no fill, one order of summation, and the epilogue in the
same kernel. Weights are read once for all of a workgroup's rows, through local memory; a tile of 16 rows skips the taps
that none of its rows has. How many rows those are follows from the number of all rows when a kernel runs (deal.py).
`split_taps` is the same with the taps of a workgroup cut into parts, each a workgroup, whose sums a second kernel adds
up: for few rows and very many channels, where reading weights for still fewer rows does not pay.

Where a tile has a tap, rows of it without the tap count as zeros: they are multiplied by the weights, and a weight that
is infinite or not a number reaches them.
"""

from __future__ import annotations

from spconv_compiler.schedules.base import Choice, Chosen, GemmSchedule, Problem
from spconv_compiler.schedules.between_sets import GPU_MAP
from spconv_compiler.schedules.cost import ITEM_CYCLES, LINE_BYTES, Work, Workload, matrix_passes
from spconv_compiler.schedules.deal import Deal
from spconv_compiler.targets.base import GpuTarget, MmaShape, Target

BLOCK_ROWS = 256
TILE_ROWS = 16
WAVES, FEWER_WAVES = 16, 8
# Tiles of 16 rows that share weights even where so few rows leave compute units idle.
LEAST_TILES = 3
# From so many instructions on that cover a slice's columns, two waves share the columns.
WIDE_TILES = 4
# Output channels of a workgroup: more need more registers for sums than leave two waves on a SIMD unit.
MAX_COLUMNS, HALF_WORD_COLUMNS = 128, 32
WORD_BYTES = 4
# What is gathered of a row at once: a cache line. What lanes load together of it, to which K is padded; and one lane.
STAGE_BYTES, LOAD_BYTES, RUN_BYTES = 128, 64, 16
# Items whose weights lie in local memory, at most.
BUFFERS = 4
MAX_TAPS = 343
# Cycles before the first item and after the last: dependent loads, and the end of rows.
START_CYCLES = 2500
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
        return unfit(problem, target)

    def choose(self, problem: Problem, target: Target) -> Chosen:
        assert isinstance(target, GpuTarget)
        mma = target.mma_for(problem.dtype)
        assert mma is not None
        panels = panels_of(problem, mma)
        rows = {"block_rows": BLOCK_ROWS, **cut(problem, mma), "least": LEAST_TILES}
        return Chosen(
            map=GPU_MAP if problem.between_sets else Choice("dense_grid", {"block": LANES_PER_ROW}),
            pairs=Choice("sorted_tiles", {"block_rows": BLOCK_ROWS, "items": SORT_ITEMS}),
            weights=Choice("mma_panels", panels),
            gemm=Choice(self.name, {**rows, **panels, **stage_of(problem), "splits": self.splits}),
        )

    def work(self, problem: Problem, target: Target, workload: Workload) -> Work | None:
        assert isinstance(target, GpuTarget)
        mma = target.mma_for(problem.dtype)
        assert mma is not None
        size, columns = element_bytes(problem.dtype), columns_of(problem, mma)
        slices, tiles = -(-problem.c_out // columns), -(-workload.rows // TILE_ROWS)
        waves, most = cut(problem, mma)["waves"], BLOCK_ROWS // TILE_ROWS
        deal = Deal.over(target.compute_units, target.chiplets, slices * self.splits, most, LEAST_TILES)
        shares = deal.count(tiles)
        steps = workload.taps_together(problem.taps, workload.rows / shares)
        weights = shares * steps * packed_bytes(problem, mma) / problem.taps
        gathered = workload.pairs(problem.taps) * -(-problem.c_in * size // LINE_BYTES) * LINE_BYTES
        written = workload.rows * problem.c_out * 4 * (self.splits if self.splits > 1 else 1)
        rows = workload.rows * workload.taps_together(problem.taps, TILE_ROWS)
        passes = matrix_passes(rows, padded_k(problem), slices * columns, mma)
        groups = shares * slices * self.splits
        items = steps * -(-problem.c_in * size // STAGE_BYTES) / self.splits
        # Every wave issues what an item takes beside products, and its own products.
        busy = 4 * passes / (groups * waves)
        return Work(
            passes=passes,
            groups=groups,
            resident=target.waves_per_unit // 2 // waves,
            l2_bytes=weights + gathered * slices + written * (3 if self.splits > 1 else 1),
            memory_bytes=gathered + 2 * written,
            chain_cycles=START_CYCLES + items * ITEM_CYCLES + busy,
            launches=2 if self.splits > 1 else 1,
        )


class SplitTaps(OutputStationary):
    """See the module."""

    name = "split_taps"
    splits = SPLITS

    def reject(self, problem: Problem, target: Target) -> str | None:
        if problem.taps < SPLITS:
            return f"the kernel has {problem.taps} taps, which are not enough for {SPLITS} parts"
        return super().reject(problem, target)


def unfit(problem: Problem, target: Target) -> str | None:
    """Why no workgroup of BLOCK_ROWS rows can multiply for a problem; None if one can."""
    if not isinstance(target, GpuTarget):
        return f"it is for waves of a GPU, and {target.name} has none"
    mma = target.mma_for(problem.dtype)
    if problem.dtype not in target.dtypes or mma is None:
        known = ", ".join(sorted({shape.element for shape in target.mma})) or "no dtype"
        return f"features are {problem.dtype}; {target.name} has matrix instructions here for {known}"
    if (mma.m, mma.n) != (TILE_ROWS, TILE_ROWS):
        return f"the matrix instruction for {problem.dtype} takes {mma.m}x{mma.n}, not {TILE_ROWS}x{TILE_ROWS}"
    if problem.taps > MAX_TAPS:
        return f"the kernel has {problem.taps} taps; at most {MAX_TAPS} (7×7×7)"
    lanes = cut(problem, mma)["waves"] * target.wave
    local = BUFFERS * columns_of(problem, mma) * STAGE_BYTES + 4 * (2 * problem.taps + 1)
    if lanes > target.max_workgroup or local > target.lds_bytes:
        have = f"{target.max_workgroup} and {target.lds_bytes}"
        return f"a workgroup has {lanes} lanes and {local} bytes of local memory; {target.name} has {have}"
    packed = packed_bytes(problem, mma)
    if packed > target.buffer_limit_bytes:
        return f"the packed weights take {packed} bytes; at most {target.buffer_limit_bytes}"
    return None


def cut(problem: Problem, mma: MmaShape, *, crowded: bool | None = None) -> dict[str, int]:
    """Waves of a workgroup; those of them that share rows and have other columns; tiles of a wave.

    Four waves on a SIMD unit hide most; rows that are gathered in pieces need more registers than those have, but for
    pieces of less than a word, whose columns are few. So do wide rows in a crowded kernel: if nothing is said, one
    between two sets, which holds two numbers of rows.
    """
    crowded = problem.between_sets if crowded is None else crowded
    row_bytes, tiles = problem.c_in * element_bytes(problem.dtype), columns_of(problem, mma) // mma.n
    pieces = row_bytes % RUN_BYTES and (row_bytes % WORD_BYTES == 0 or tiles == 1)
    waves = FEWER_WAVES if pieces or (crowded and tiles > WIDE_TILES) else WAVES
    across = 2 if tiles >= WIDE_TILES and tiles % 2 == 0 else 1
    return {"waves": waves, "across": across, "fragments": BLOCK_ROWS * across // (TILE_ROWS * waves)}


def panels_of(problem: Problem, mma: MmaShape) -> dict[str, int]:
    """The parameters of packed weights (passes/gpu/mma_panels.py)."""
    size = element_bytes(problem.dtype)
    return {
        "tile_n": columns_of(problem, mma),
        "mma_n": mma.n,
        "tile_k": LOAD_BYTES // size,
        "chunk_k": RUN_BYTES // size,
    }


def stage_of(problem: Problem) -> dict[str, int]:
    """Channels of a stage: those of a cache line, or of half of one where rows are no longer than that."""
    line = STAGE_BYTES // element_bytes(problem.dtype)
    return {"stage_k": min(line, padded_k(problem))}


def padded_k(problem: Problem) -> int:
    """Input channels in whole loads: those that are packed and multiplied."""
    load = LOAD_BYTES // element_bytes(problem.dtype)
    return -(-problem.c_in // load) * load


def columns_of(problem: Problem, mma: MmaShape) -> int:
    """Output channels of a workgroup: evenly cut, whole instructions, at most MAX_COLUMNS."""
    tiles = -(-problem.c_out // mma.n)
    # Loads of less than a word take as many registers as whole ones, and leave few for sums.
    most = HALF_WORD_COLUMNS if problem.c_in * element_bytes(problem.dtype) % WORD_BYTES else MAX_COLUMNS
    slices = -(-tiles * mma.n // most)
    return -(-tiles // slices) * mma.n


def packed_bytes(problem: Problem, mma: MmaShape) -> int:
    """Bytes of all packed weights, padded to whole loads and slices."""
    columns = columns_of(problem, mma)
    k_bytes = padded_k(problem) * element_bytes(problem.dtype)
    return problem.taps * k_bytes * -(-problem.c_out // columns) * columns
