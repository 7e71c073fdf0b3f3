"""Modelled time of a launch on gfx950 as a band: a lower bound, an estimate that knows latencies, a pessimistic time.

Nothing here was measured on gfx950. The lower bound takes the busiest resource at its best rate and everything else
as hidden behind it. The estimate takes likely rates, and lets waves wait: a wave alone takes so long (wave_chain.py),
and as many waves overlap as are resident. The pessimistic time takes slow rates, adds the resources up as if nothing
overlapped, and adds the waiting. All of chip.FACTS goes in, and nothing else.

Left out: that loads wait behind atomics for the same L2 channels, queues before a resource is full, address
translation, instruction fetch, and how fast workgroups can be started.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from spconv_compiler.sim import chip
from spconv_compiler.sim.cache_model import Traffic
from spconv_compiler.sim.counters import LaunchCounters, instruction_class
from spconv_compiler.sim.instruction import Instruction
from spconv_compiler.sim.wave_chain import wave_cycles


@dataclasses.dataclass(frozen=True)
class Band:
    """Modelled microseconds of a launch, and what they consist of.

    terms: for "fast", "likely", "slow": microseconds that each resource is busy, that waves wait ("latency") and that
    the launch costs. limited_by: the largest term of each.
    """

    lower_us: float
    estimate_us: float
    pessimistic_us: float
    terms: dict[str, dict[str, float]]
    limited_by: dict[str, str]
    label: str = "modelled, never measured on gfx950"

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return f"modelled {self.estimate_us:.1f} us ({self.lower_us:.1f} to {self.pessimistic_us:.1f})"


def model_launch(
    instructions: Sequence[Instruction],
    by_address: Mapping[int, int],
    counters: LaunchCounters,
    traffic: Traffic,
    traffic_scale: float = chip.CHIPLETS,
    touched_bytes: int = 0,
) -> Band:
    """The band of one launch.

    Args:
        by_address: how often each instruction ran in the whole launch.
        traffic: of the workgroups that were replayed; traffic_scale: whole launch over those.
        touched_bytes: size of all buffers touched: what comes from HBM if nothing is cached. With less than the MALL
            holds, only the pessimistic time counts it.
    """
    terms = {}
    for which in ("fast", "likely", "slow"):
        model = _Model(which, instructions, by_address, counters, traffic, traffic_scale, touched_bytes)
        terms[which] = {name: 1e6 * seconds for name, seconds in model.terms().items()}
    busy = {which: {k: v for k, v in one.items() if k not in ("latency", "launch")} for which, one in terms.items()}
    lower = max(busy["fast"].values())
    estimate = max(*busy["likely"].values(), terms["likely"]["latency"])
    pessimistic = sum(busy["slow"].values()) + terms["slow"]["latency"]
    return Band(
        lower + terms["fast"]["launch"],
        estimate + terms["likely"]["launch"],
        pessimistic + terms["slow"]["launch"],
        terms,
        {which: max(one, key=lambda name: one[name]) for which, one in terms.items()},
    )


class _Model:
    def __init__(
        self,
        which: str,
        instructions: Sequence[Instruction],
        by_address: Mapping[int, int],
        counters: LaunchCounters,
        traffic: Traffic,
        traffic_scale: float,
        touched_bytes: int,
    ) -> None:
        self.which, self.instructions, self.by_address = which, instructions, by_address
        self.counters, self.traffic, self.traffic_scale = counters, traffic, traffic_scale
        self.touched_bytes = touched_bytes
        self.fact = {name: fact.at(which) for name, fact in chip.FACTS.items()}
        self.hertz = self.fact["clock"] * 1e9

    def terms(self) -> dict[str, float]:
        """Seconds."""
        classes, fact = self.counters.by_class, self.fact
        units, simds = self._units(), self._units() * chip.SIMDS
        vector = fact["valu"] * classes.get("valu", 0) + fact["trans"] * classes.get("trans", 0)
        issued = max([classes.get(name, 0) for name in ("salu", "smem", "branch", "lds", "vmem")])
        cycles = {
            "matrix": fact["mfma_pass"] * self.counters.matrix.passes / simds,
            "vector": vector / simds,
            "issue": fact["issue"] * issued / units,
            "LDS": fact["lds_phase"] * sum(one.cycles for one in self.counters.lds.values()) / units,
            "L1": self._l1_cycles() / units,
            "L2": self._l2_cycles(),
            "latency": self._latency_cycles(units),
        }
        bytes_ = 128 * self.traffic_scale * self.traffic.memory_lines
        return {
            **{name: value / self.hertz for name, value in cycles.items()},
            "atomics": (self.counters.atomic_segments or 0) / (fact["atomics"] * 1e9),
            "MALL": bytes_ / (fact["mall_tb_s"] * 1e12),
            "HBM": self._hbm_bytes(bytes_) / (fact["hbm_tb_s"] * 1e12),
            "launch": fact["launch_us"] * 1e-6,
        }

    def _units(self) -> float:
        """Compute units over which the work spreads: with few workgroups a unit, the last round is not full."""
        groups = self.counters.groups
        if self.which == "fast" or groups <= chip.COMPUTE_UNITS:
            return max(1, min(chip.COMPUTE_UNITS, groups))
        return groups / -(-groups // chip.COMPUTE_UNITS)

    def _l1_cycles(self) -> float:
        """Lines or bytes between L1 and registers, whichever takes longer, over all vector memory instructions."""
        totals = [one for name, one in self.counters.memory.items() if name.startswith("vmem")]
        moved = sum(max(one.lines_128, one.bytes / self.fact["vmem_bytes"]) for one in totals)
        return max(moved, self.fact["vmem_instruction"] * self.counters.by_class.get("vmem", 0))

    def _l2_cycles(self) -> float:
        """Cycles of one XCD; its requests are those of the replay, scaled to an eighth of the launch."""
        requests = self.traffic.l2_requests * self.traffic_scale / chip.CHIPLETS
        return requests / (chip.L2_CHANNELS * self.fact["l2_share"])

    def _hbm_bytes(self, moved: float) -> float:
        if self.touched_bytes > chip.MALL_BYTES:
            return moved
        return min(moved, self.touched_bytes) if self.which == "slow" else 0.0

    def _latency_cycles(self, units: float) -> float:
        """Cycles that all waves take one after another, over the places that they have."""
        alone = wave_cycles(self.instructions, self.by_address, self.counters.waves, self._latencies(), self.which)
        places = units * chip.SIMDS * max(self.counters.occupancy.waves_per_simd, 1 / chip.SIMDS)
        return alone * max(1.0, self.counters.waves / places)

    def _latencies(self) -> dict[int, float]:
        """Cycles of each vector memory instruction: of loads, the mean over the levels that its lines came from."""
        near = (self.fact["l1_latency"], self.fact["l2_latency"], self.fact["mall_latency"])
        found = {}
        for item in self.instructions:
            if instruction_class(item) == "vmem" and item.row.access is not None:
                found[item.address] = self.fact["l2_latency" if item.row.access.kind == "load" else "atomic_latency"]
        for code, levels in self.traffic.levels.items():
            found[code] = sum(count * time for count, time in zip(levels, near, strict=True)) / sum(levels)
        return found
