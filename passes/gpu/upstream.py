"""The upstream passes from level gpu, tile ops lowered, to level rocdl or nvvm, and from there to code."""

from __future__ import annotations

from spconv_compiler.targets import GpuTarget

# The code object's ABI: 600 is version 6.
_ABI = 600
_OPTIMIZATION = 3
_PTX = "ptx83"


def gpu_to_rocdl(target: GpuTarget) -> str:
    """The pipeline inside builtin.module(…).

    One convert-gpu-to-rocdl lowers gpu, arith, memref, vector, cf and math. Indices are 32 bits wide: addresses are
    buffer offsets, and what may be larger is i64 in the kernels already. Strided slices need
    convert-vector-to-llvm after it.
    """
    passes = (
        "canonicalize",
        "cse",
        "loop-invariant-code-motion",
        "convert-scf-to-cf",
        f"convert-gpu-to-rocdl{{chipset={target.chip} index-bitwidth=32 runtime=HIP "
        "use-bare-ptr-memref-call-conv=true}",
        "convert-vector-to-llvm",
        "reconcile-unrealized-casts",
        "canonicalize",
        "cse",
    )
    return f"gpu.module({','.join(passes)})"


def gpu_to_nvvm() -> str:
    """The pipeline inside builtin.module(…). Addresses have 64 bits; kernels compute 32-bit indices as i32.

    Integer functions of math become calls unless convert-gpu-to-nvvm has seen them first; NVVM ops that are PTX text
    need convert-nvvm-to-llvm.
    """
    passes = (
        "canonicalize",
        "cse",
        "loop-invariant-code-motion",
        "convert-scf-to-cf",
        "convert-gpu-to-nvvm{has-redux=1 index-bitwidth=0}",
        "convert-vector-to-llvm",
        "convert-math-to-llvm",
        "convert-nvvm-to-llvm",
        "convert-ub-to-llvm",
        "reconcile-unrealized-casts",
        "canonicalize",
        "cse",
    )
    return f"gpu.module({','.join(passes)})"


def attach_nvvm_target(target: GpuTarget) -> str:
    """Marks the kernels as code for the chip; PTX 8.3 runs on drivers from CUDA 12.3 on."""
    return f"nvvm-attach-target{{O={_OPTIMIZATION} chip={target.chip} features=+{_PTX}}}"


def attach_target(target: GpuTarget) -> str:
    """Marks the kernels as code for the chip; nothing may attach a target before it."""
    return f"rocdl-attach-target{{O={_OPTIMIZATION} abi={_ABI} chip={target.chip}}}"


def to_binary(format_: str, toolkit: str = "") -> str:
    """Translates the kernels: format "isa" (assembly text) or "bin" (linked by <toolkit>/llvm/bin/ld.lld)."""
    linker = f' toolkit="{toolkit}"' if toolkit else ""
    return f"gpu-module-to-binary{{format={format_}{linker}}}"
