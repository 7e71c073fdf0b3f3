"""AMD gfx950 (Instinct MI350X, MI355X).

Sources: AMD CDNA4 ISA document and ROCm's GPU specification table (wave, LDS, compute units); LLVM's
SISchedule.td (passes of a matrix instruction: 16x16x32 takes 4, 32x32x16 takes 8); AMD's matrix-core
articles (shapes and fragment layouts); a buffer resource's num_records is 32 bits wide.
"""

from __future__ import annotations

import dataclasses

from spconv_compiler.targets.base import GpuTarget, MmaShape, Rates

GFX950 = GpuTarget(
    name="gfx950",
    path=("spconv", "stages", "gpu", "rocdl"),
    dtypes=("bf16", "f16", "f32"),
    chip="gfx950",
    wave=64,
    lds_bytes=163_840,
    max_workgroup=1024,
    compute_units=256,
    waves_per_unit=32,
    buffer_limit_bytes=2**32 - 1,
    mma=(
        MmaShape(16, 16, 32, "bf16", "rocdl.mfma.f32.16x16x32.bf16", passes=4),
        MmaShape(16, 16, 32, "f16", "rocdl.mfma.f32.16x16x32.f16", passes=4),
        MmaShape(16, 16, 4, "f32", "rocdl.mfma.f32.16x16x4f32", passes=8),
    ),
    atomics=(("fadd", "f32"), ("add", "i32"), ("umin", "i32"), ("or", "i32")),
    chiplets=8,
    # The likely values of the simulator's timing model, sim/chip.py, where their sources are.
    rates=Rates(
        clock_ghz=2.2,
        matrix_pipes=4,
        l2_bytes_per_clock=0.7 * 16 * 128,
        memory_tb_s=13.0,
        atomics_g_s=75.0,
        launch_us=3.0,
    ),
)

# The same code object, run by the simulator (sim/).
GFX950_SIM = dataclasses.replace(GFX950, name="gfx950-sim", simulated=True, code_of=GFX950.name)
