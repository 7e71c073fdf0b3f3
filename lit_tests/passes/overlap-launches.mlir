// RUN: %opt %s -p overlap-launches | %filecheck %s
// RUN: %opt %s -p overlap-launches,overlap-launches | %filecheck %s

// Every kernel waits for the work before it, and lets the next one come, before it touches memory.

gpu.module @kernels {
  // CHECK-LABEL: gpu.func @reads(
  // CHECK-NEXT: nvvm.griddepcontrol wait
  // CHECK-NEXT: nvvm.griddepcontrol launch_dependents
  // CHECK-NEXT: llvm.load
  // CHECK-NOT: nvvm.griddepcontrol
  gpu.func @reads(%in: !llvm.ptr<1>, %out: !llvm.ptr<1>) kernel {
    %value = llvm.load %in : !llvm.ptr<1> -> i32
    llvm.store %value, %out : i32, !llvm.ptr<1>
    gpu.return
  }
  // CHECK-LABEL: gpu.func @nothing(
  // CHECK-NEXT: nvvm.griddepcontrol wait
  // CHECK-NEXT: nvvm.griddepcontrol launch_dependents
  // CHECK-NEXT: gpu.return
  gpu.func @nothing() kernel {
    gpu.return
  }
}

// What is marked comes before the wait, with all in front of it.
gpu.module @more {
  // CHECK-LABEL: gpu.func @begins_early(
  // CHECK-NEXT: llvm.load
  // CHECK-NEXT: gpu.barrier
  // CHECK-NEXT: nvvm.griddepcontrol wait
  // CHECK-NEXT: nvvm.griddepcontrol launch_dependents
  // CHECK-NEXT: llvm.store
  // CHECK-NOT: nvvm.griddepcontrol
  gpu.func @begins_early(%in: !llvm.ptr<1>, %out: !llvm.ptr<1>) kernel {
    %value = llvm.load %in : !llvm.ptr<1> -> i32
    gpu.barrier {spconv.early}
    llvm.store %value, %out : i32, !llvm.ptr<1>
    gpu.return
  }
}

// What is no kernel has nothing to wait for.
// CHECK-LABEL: func.func @host(
// CHECK-NOT: nvvm.griddepcontrol
func.func @host() {
  return
}
