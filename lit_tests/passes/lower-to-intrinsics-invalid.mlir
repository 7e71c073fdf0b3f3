// RUN: %opt %s -p lower-to-intrinsics --verify-diagnostics

gpu.module @kernels {
  gpu.func @greatest(%n: i32, %at: index) workgroup(%m: memref<64xi32, #gpu.address_space<workgroup>>) kernel {
    // expected-error @below {{an atomic on shared memory that has no lowering}}
    // expected-note @below {{supported: addi on one axis}}
    %old = memref.atomic_rmw maxs %n, %m[%at] : (i32, memref<64xi32, #gpu.address_space<workgroup>>) -> i32
    gpu.return
  }
}
