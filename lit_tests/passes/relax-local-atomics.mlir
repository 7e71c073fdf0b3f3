// RUN: %opt %s -p relax-local-atomics | %filecheck %s

// Only atomics on a workgroup's memory lose their order.

gpu.module @kernels {
  // CHECK-LABEL: llvm.func @k
  llvm.func @k(%local: !llvm.ptr<3>, %global: !llvm.ptr<1>, %x: i32) {
    // CHECK: [[OLD:%.+]] = llvm.atomicrmw add %arg0, %arg2 syncscope("workgroup") monotonic
    %old = llvm.atomicrmw add %local, %x acq_rel : !llvm.ptr<3>, i32
    // CHECK: llvm.atomicrmw umin %arg0, [[OLD]] syncscope("workgroup") monotonic
    %least = llvm.atomicrmw umin %local, %old acq_rel : !llvm.ptr<3>, i32
    // CHECK: llvm.atomicrmw add %arg1, %arg2 acq_rel
    %other = llvm.atomicrmw add %global, %x acq_rel : !llvm.ptr<1>, i32
    llvm.return
  }
}
