// RUN: %opt %s -p "gpu.module(convert-gpu-to-nvvm{has-redux=1})" | %filecheck %s --check-prefix=WARP
// RUN: %opt %s -p "gpu.module(convert-gpu-to-rocdl{chipset=gfx950 runtime=HIP})" | %filecheck %s --check-prefix=LOCKSTEP

// A wave's barrier puts the accesses of its lanes in order: an instruction where lanes may run apart, and nothing but an
// order for the code generator where they run together. Neither waits for the workgroup.

gpu.module @kernels {
  // WARP-LABEL: llvm.func @hand_over(
  // LOCKSTEP-LABEL: llvm.func @hand_over(
  gpu.func @hand_over() kernel {
    // WARP: [[ALL:%.+]] = llvm.mlir.constant(-1 : i32)
    // WARP: nvvm.bar.warp.sync [[ALL]]
    // WARP-NOT: nvvm.barrier
    // LOCKSTEP: llvm.fence syncscope("wavefront") release
    // LOCKSTEP-NEXT: rocdl.wave.barrier
    // LOCKSTEP-NOT: rocdl.s.barrier
    gpu.barrier scope<subgroup>
    gpu.return
  }
}
