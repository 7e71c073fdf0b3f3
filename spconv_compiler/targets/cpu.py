"""x86-64 processors, by the micro-architecture levels of the x86-64 psABI, plus AVX-512 BF16, plus AMX.

Register tiles follow from the register files: 16 registers hold 6×2 accumulators, two vectors of B and a
broadcast of A; 32 registers hold 6×4 or 12×2 likewise. Eight accumulators at least: a multiply-add takes four
cycles and two start in each.
"""

from __future__ import annotations

from spconv_compiler.targets.base import CpuTarget, TileUnit

_PATH = ("spconv", "stages", "loops", "cpu")
_DTYPES = ("f32", "bf16", "f16")
_V3 = ("avx2", "fma", "f16c", "bmi2")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512dq", "avx512vl")

_TILES_16 = ((6, 2), (4, 3), (3, 4), (8, 1))
_TILES_32 = ((6, 4), (12, 2), (8, 3), (12, 1))

# Best first: `cpu` is the first whose flags the host has, whose registers the system grants, and which it does not run
# slower than the next.
LEVELS = (
    CpuTarget(
        name="x86-64-v4-amx",
        path=_PATH,
        dtypes=_DTYPES,
        llvm_cpu="x86-64-v4",
        llvm_features=("+amx-tile", "+amx-bf16"),
        requires=(*_V4, "avx512bf16", "amx-tile", "amx-bf16"),
        lanes=16,
        fma=True,
        # It has the instruction, which is slower than a multiply-add: see the next level.
        bf16_dot=False,
        tiles=_TILES_32,
        tile_unit=TileUnit(element="bf16", rows=16, row_bytes=64, tiles=8),
    ),
    CpuTarget(
        name="x86-64-v4-bf16",
        path=_PATH,
        dtypes=_DTYPES,
        llvm_cpu="x86-64-v4",
        llvm_features=("+avx512bf16",),
        requires=(*_V4, "avx512bf16"),
        lanes=16,
        fma=True,
        bf16_dot=True,
        tiles=_TILES_32,
        # Cores with AMX start a 512-bit dot product half as often as a multiply-add: 949 GFLOP/s against 1518 with
        # f32 on 16 cores of a Xeon (family 6, model 207), 110,087 voxels, C = 128.
        slower_with=("amx-bf16",),
    ),
    CpuTarget(
        name="x86-64-v4",
        path=_PATH,
        dtypes=_DTYPES,
        llvm_cpu="x86-64-v4",
        llvm_features=("+avx512f",),
        requires=_V4,
        lanes=16,
        fma=True,
        bf16_dot=False,
        tiles=_TILES_32,
    ),
    CpuTarget(
        name="x86-64-v3",
        path=_PATH,
        dtypes=_DTYPES,
        llvm_cpu="x86-64-v3",
        llvm_features=("+avx2",),
        requires=_V3,
        lanes=8,
        fma=True,
        bf16_dot=False,
        tiles=_TILES_16,
    ),
)
