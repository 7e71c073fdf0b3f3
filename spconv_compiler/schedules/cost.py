"""What a gemm schedule costs on a GPU, from classes of workloads: what `schedule="auto"` compares.

A schedule says what it does to a problem (`Work`); a target says how fast it does it (`Rates`); the estimate is the
time of whatever takes longest, and the launches. It knows classes only, never a number of rows: no kernel is compiled
anew because coordinates change. It is for ranking: see docs/simulator.md for the error of such times.
"""

from __future__ import annotations

import dataclasses
import math

from spconv_compiler.targets.base import GpuTarget, MmaShape, Rates

LINE_BYTES = 128
ATOMIC_BYTES = 64
# Cycles between the arrival of one item of a pipeline and the next that its own instructions take beside the products.
ITEM_CYCLES = 250
# Voxels of a layer: a deep level, a level in the middle, the first level of a network on an outdoor or indoor scan.
SIZES = {"few": 10_000, "some": 30_000, "many": 100_000}
# Neighbours of a voxel over the taps of the kernel: ScanNet at 2 cm and SemanticKITTI at 5 cm have 0.09 to 0.14, ten
# sweeps of nuScenes 0.23, its levels behind strided convolutions 0.47 to 0.57.
DENSITIES = {"sparse": 0.12, "usual": 0.23, "dense": 0.5}
# Taps that 16 and that 256 rows of like masks have together, over what one of them has on average (row_masks.py).
TOGETHER = {"sparse": (1.4, 2.0), "usual": (1.25, 1.5), "dense": (1.06, 1.17)}


@dataclasses.dataclass(frozen=True)
class Workload:
    """What a convolution will run on: classes of its coordinates.

    Attributes:
        size: one of SIZES. density: one of DENSITIES.
    """

    size: str = "many"
    density: str = "usual"

    @property
    def rows(self) -> int:
        return SIZES[self.size]

    def pairs(self, taps: int) -> float:
        return self.rows * max(1.0, taps * DENSITIES[self.density])

    def taps_together(self, taps: int, rows: float) -> float:
        """Taps that so many sorted rows have together: known of 16 and 256, between them a power of their number."""
        near, far = TOGETHER[self.density]
        factor: float = near * (far / near) ** (math.log2(max(1.0, rows / 16)) / 4)
        return min(float(taps), max(1.0, taps * DENSITIES[self.density]) * factor)


@dataclasses.dataclass(frozen=True)
class Work:
    """What a schedule does.

    Attributes:
        passes: of the matrix pipes, over the whole chip. groups: workgroups; resident: that a compute unit holds.
        l2_bytes: that compute units ask of second-level caches or send there; memory_bytes: that those pass on.
        atomics: float atomics, in segments of 64 bytes. chain_cycles: of one wave from first to last instruction.
        launches: kernels from features to the result.
    """

    passes: float
    groups: float
    resident: int
    l2_bytes: float
    memory_bytes: float
    chain_cycles: float
    atomics: float = 0.0
    launches: int = 1


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Modelled microseconds of a schedule, by what takes them."""

    terms: dict[str, float]
    launch_us: float

    @property
    def us(self) -> float:
        return max(self.terms.values()) + self.launch_us

    @property
    def limited_by(self) -> str:
        return max(self.terms, key=lambda name: self.terms[name])

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {us:.1f}" for name, us in self.terms.items() if us >= 0.05)
        return f"{self.us:.1f} us, limited by {self.limited_by} ({parts}, launches {self.launch_us:.1f})"


def estimate(work: Work, target: GpuTarget, rates: Rates) -> Estimate:
    """The time of some work on a target."""
    units = target.compute_units
    # The last turn of workgroups over the compute units is rarely full.
    used = work.groups if work.groups <= units else work.groups / -(-work.groups // units)
    megahertz = rates.clock_ghz * 1e3
    turns = max(1.0, work.groups / (units * work.resident))
    terms = {
        "matrix": 4 * work.passes / (rates.matrix_pipes * max(1.0, used)) / megahertz,
        "L2": work.l2_bytes / (target.chiplets * rates.l2_bytes_per_clock) / megahertz,
        "memory": work.memory_bytes / rates.memory_tb_s / 1e6,
        "atomics": work.atomics / rates.atomics_g_s / 1e3,
        "latency": work.chain_cycles * turns / megahertz,
    }
    return Estimate(terms, work.launches * rates.launch_us)


def matrix_passes(rows: float, c_in: int, c_out: int, mma: MmaShape) -> float:
    """Passes of the products of so many rows, channels padded to whole instructions."""
    return rows / mma.m * -(-c_out // mma.n) * -(-c_in // mma.k) * mma.passes
