"""`chunk_tiles`: the CPU schedule with products in tile registers.

As `chunk_stationary`, over the same pairs; a batch's rows are copied side by side, and multiplied 16 or 32 at a time.
"""

from __future__ import annotations

from spconv_compiler.schedules.base import Choice, Chosen, Problem
from spconv_compiler.schedules.chunk_stationary import CHUNK_ROWS, ChunkStationary
from spconv_compiler.targets.base import CpuTarget, Target

# A tile holds pairs of bf16.
PAIR_K = 2


class ChunkTiles(ChunkStationary):
    """See the module."""

    name = "chunk_tiles"

    def reject(self, problem: Problem, target: Target) -> str | None:
        reason = super().reject(problem, target)
        if reason is not None:
            return reason
        assert isinstance(target, CpuTarget)
        if target.tile_unit is None:
            return f"{target.name} has no tile registers"
        if problem.dtype != target.tile_unit.element:
            return f"features are {problem.dtype}; tiles of {target.name} hold {target.tile_unit.element}"
        return None

    def choose(self, problem: Problem, target: Target) -> Chosen:
        assert isinstance(target, CpuTarget) and target.tile_unit is not None
        unit = target.tile_unit
        most_k = unit.row_bytes // 2
        tile_k = min(-(-problem.c_in // PAIR_K) * PAIR_K, most_k)
        wide = 1 if problem.c_out <= unit.rows else 2
        deep = -(-problem.c_in // tile_k)
        # All weights of a panel beside one tile of rows and its sums; or else two of rows, so that each that is loaded
        # is multiplied twice.
        tall = 1 if wide + deep + wide * deep <= unit.tiles else 2
        panel = {"tile_n": wide * unit.rows, "pair_k": PAIR_K, "tile_k": tile_k}
        chunks = {"chunk_rows": CHUNK_ROWS}
        return Chosen(
            map=Choice("sorted_keys"),
            pairs=Choice("chunk_tap_row", chunks),
            weights=Choice("row_panels", panel),
            gemm=Choice(self.name, {**chunks, "tile_m": tall * unit.rows, **panel}),
        )
