"""Runs level-gpu IR on numpy: kernels in lockstep over all lanes of a launch, and whole host plans.

Stricter than a GPU. Errors (`Fault`): access beyond a buffer, reading what was never written, unaligned vectors, sums
that wrap although they promise not to, two lanes of a launch that touch one element unless both do so atomically,
races in workgroup memory between barriers, barriers or matrix instructions that not all lanes reach, and any op
that is not listed here. Lanes run in lockstep, so what a missing barrier would break is found by the race check.

bf16 and f16 values are held in float32, which is exact; every rounding is done where the IR rounds.
"""

from __future__ import annotations

from .launch import Launch
from .memory import Buffer, Fault
from .plan import kernels_of, run_plan

__all__ = ["Buffer", "Fault", "Launch", "kernels_of", "run_plan"]
