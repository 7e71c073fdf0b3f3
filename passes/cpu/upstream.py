"""The upstream passes from level loops to level cpu."""

from __future__ import annotations

from spconv_compiler.targets import CpuTarget


def loops_to_llvm(target: CpuTarget) -> str:
    """The pipeline inside builtin.module(…); it leaves the host plan around the kernels alone.

    What the target can do stands on the functions already, and vectors are as wide as its registers: nothing here
    depends on it.
    """
    passes = (
        "convert-scf-to-cf",
        "convert-vector-to-llvm",
        "convert-math-to-llvm",
        "convert-arith-to-llvm",
        "convert-cf-to-llvm",
        "reconcile-unrealized-casts",
    )
    return f"builtin.module({','.join(passes)})"
