"""What the timing model believes of gfx950 (MI350X, MI355X), as data: every number with its source.

A fact has three values: the fastest that can be argued for, a likely one, and a slow one. Where the source says
"assumed", no public measurement on gfx950 is known; the range is meant to hold the truth, and shows how little is
known. None of these numbers was fitted to the times that validate.py predicts.
"""

from __future__ import annotations

import dataclasses

COMPUTE_UNITS = 256
CHIPLETS = 8
SIMDS = 4
LANES = 64
L2_CHANNELS = 16
L1_LINES, L2_LINES = 32 * 1024 // 128, 4 * 1024 * 1024 // 128
MALL_BYTES = 256 * 2**20
WAVES_PER_SIMD = 8
VECTOR_REGISTERS, VECTOR_GRANULE = 512, 8
LDS_BYTES, LDS_GRANULE = 160 * 1024, 1280
# Workgroups of several waves need one of these for their barrier.
BARRIERS = 16
SOURCES = {
    "COMPUTE_UNITS": "ROCm GPU specification table: 8 XCDs of 32 active units",
    "L1_LINES": "ROCm specification table and rocprofiler-compute's gfx950 description: 32 KiB a unit, 128-byte lines",
    "L2_LINES": "the same: 4 MiB an XCD, 16 channels of 128 bytes a clock, 128-byte lines",
    "MALL_BYTES": "the same: 256 MiB Infinity Cache on the memory side",
    "WAVES_PER_SIMD": "FlyDSL commit 865fcd1f, occupancy measured on MI355X: min(8, 512 / registers rounded up to 8)",
    "LDS_BYTES": "CDNA4 ISA document: 160 KiB, allocated in steps of 1280 bytes",
    "BARRIERS": "CDNA ISA documents: 16 workgroups a unit where a workgroup has several waves",
}


@dataclasses.dataclass(frozen=True)
class Fact:
    """A number with its uncertainty: fast ≤ likely ≤ slow in the time it leads to."""

    fast: float
    likely: float
    slow: float
    unit: str
    source: str

    def at(self, which: str) -> float:
        """The value called "fast", "likely" or "slow"."""
        return float(getattr(self, which))


_ASSUMED = "assumed: no public measurement on gfx950"
FACTS: dict[str, Fact] = {
    "clock": Fact(2.4, 2.2, 1.9, "GHz", "peaks of MI355X, MI350X; slow: 0.87 of that (power, rocm-systems PR 3837)"),
    # Throughput, cycles of the unit named.
    "mfma_pass": Fact(4, 4, 4, "cycles a pass, per SIMD", "LLVM SISchedule.td; AMD matrix core articles"),
    "valu": Fact(4, 4, 4, "cycles an instruction, per SIMD", "64 lanes over 16 (CDNA ISA documents)"),
    "trans": Fact(16, 16, 16, "cycles an instruction, per SIMD", "quarter rate (CDNA ISA documents)"),
    "issue": Fact(1, 1, 1, "cycles an instruction of each class but VALU, per compute unit", "CDNA ISA documents"),
    "lds_phase": Fact(1, 1, 1, "cycles a bank phase, per compute unit", "HipKittens' phase solver on MI355X"),
    "vmem_bytes": Fact(128, 128, 64, "bytes a cycle from L1, per compute unit", "ROCm table; slow: assumed"),
    "vmem_instruction": Fact(1, 4, 4, "least cycles an instruction, per compute unit", f"16 lanes a cycle, {_ASSUMED}"),
    "l2_share": Fact(1.0, 0.7, 0.5, "of 16 channels x 128 bytes a clock, per XCD", f"channel conflicts, {_ASSUMED}"),
    "mall_tb_s": Fact(17, 13, 10, "TB/s", "MI300X peak 17.2 (AMD); the rest assumed for gfx950"),
    "hbm_tb_s": Fact(8, 6.9, 5.6, "TB/s", "peak; measured reads and copies (rocm-systems PR 8480)"),
    "atomics": Fact(
        307,
        75,
        64,
        "G requests of 64 bytes a second, whole chip",
        "one a clock and L2 channel; FlyDSL MoE on MI355X: 58.7 M requests in 785 us, 234 M in 3679 us, gemm included",
    ),
    # Latencies in cycles.
    "valu_latency": Fact(4, 8, 8, "cycles", "Meta, facebookexperimental/triton PR 2507: 8 on MI350"),
    "salu_latency": Fact(4, 4, 8, "cycles", _ASSUMED),
    "mfma_latency": Fact(2, 2, 4, "cycles beyond the passes", "the same PR: 18 dependent, 16 in passes"),
    "wave_issue": Fact(4, 4, 4, "cycles between instructions of one wave", "one SIMD of four each cycle (CDNA ISA)"),
    "lds_latency": Fact(64, 69, 128, "cycles", "the same PR: 69"),
    "smem_latency": Fact(50, 120, 250, "cycles", _ASSUMED),
    "l1_latency": Fact(110, 130, 160, "cycles", _ASSUMED),
    "l2_latency": Fact(200, 300, 500, "cycles", f"{_ASSUMED}: L2 and MALL latencies are not published"),
    "mall_latency": Fact(450, 600, 790, "cycles", f"{_ASSUMED}; slow: as HBM"),
    "hbm_latency": Fact(790, 790, 1100, "cycles", "the same PR: 790"),
    "atomic_latency": Fact(200, 400, 790, "cycles until vmcnt counts it", f"{_ASSUMED}: between L2 and HBM"),
    "launch_us": Fact(1, 3, 6, "us a kernel", f"{_ASSUMED}: a few"),
}
