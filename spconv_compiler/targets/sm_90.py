"""NVIDIA sm_90 (H100, H200): what can be timed here beside today's libraries.

Sources: NVIDIA's CUDA programming guide, table of compute capability 9.0 (warp size, shared memory of a block, warps of
a multiprocessor), the H200 data sheet (132 multiprocessors), and the PTX ISA (mma.sync shapes and fragments).
"""

from __future__ import annotations

from spconv_compiler.targets.base import GpuTarget

SM_90 = GpuTarget(
    name="sm_90",
    path=("spconv", "stages", "gpu", "nvvm"),
    # The matrix unit has no f32, and no schedule of multiply-adds is here.
    dtypes=("bf16", "f16"),
    # With the suffix the PTX runs on compute capability 9.0 only, and may use its warpgroup instructions.
    chip="sm_90a",
    wave=32,
    lds_bytes=232_448,
    max_workgroup=1024,
    compute_units=132,
    waves_per_unit=64,
    # Addresses have 64 bits; 32-bit indices count elements, so this is what the gfx950 kernels are checked against too.
    buffer_limit_bytes=2**32 - 1,
    mma=(),
    atomics=(("fadd", "f32"), ("add", "i32"), ("umin", "i32"), ("or", "i32")),
    warpgroup_dtypes=("bf16", "f16"),
    runtime="cuda",
)
