"""How many waves of a kernel a compute unit of gfx950 holds, and which resource says so."""

from __future__ import annotations

import dataclasses

from spconv_compiler.sim import chip
from spconv_compiler.sim.elf import Kernel


@dataclasses.dataclass(frozen=True)
class Occupancy:
    """Residency of one kernel.

    Attributes:
        waves_per_simd: resident waves, of 8; a fraction where the waves of a compute unit do not divide by four.
        groups_per_unit: workgroups a compute unit holds.
        limits: workgroups a compute unit could hold by each resource.
        limited_by: the resources that allow the fewest.
        vector_registers, lds_bytes: what is taken, rounded up to what is allocated.
    """

    waves_per_simd: float
    groups_per_unit: int
    limits: dict[str, int]
    limited_by: tuple[str, ...]
    vector_registers: int
    lds_bytes: int


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


def occupancy(kernel: Kernel, block: int) -> Occupancy:
    """The occupancy of a kernel in workgroups of `block` lanes.

    A kernel that fits nowhere (more waves than slots, more LDS than there is) holds 0 workgroups.
    """
    waves = -(-block // chip.LANES)
    registers = max(_up(kernel.descriptor.vgprs, chip.VECTOR_GRANULE), chip.VECTOR_GRANULE)
    lds = _up(kernel.descriptor.lds_bytes, chip.LDS_GRANULE)
    slots = chip.SIMDS * chip.WAVES_PER_SIMD
    by_register = chip.SIMDS * min(chip.WAVES_PER_SIMD, chip.VECTOR_REGISTERS // registers)
    limits = {
        "wave slots": slots // waves,
        "vector registers": by_register // waves,
        "scalar registers": chip.SIMDS * _by_scalar_registers(kernel.sgprs) // waves,
    }
    if lds:
        limits["LDS"] = chip.LDS_BYTES // lds
    if waves > 1:
        limits["barriers"] = chip.BARRIERS
    groups = min(limits.values())
    least = tuple(name for name, count in limits.items() if count == groups)
    return Occupancy(groups * waves / chip.SIMDS, groups, limits, least, registers, lds)


def _by_scalar_registers(count: int) -> int:
    """Waves a SIMD: 800 scalar registers in steps of 16 (LLVM's getOccupancyWithNumSGPRs for gfx9)."""
    return chip.WAVES_PER_SIMD if count <= 100 else 7
