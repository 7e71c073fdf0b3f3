// RUN: %opt %s -p lower-to-intrinsics | %filecheck %s

gpu.module @kernels {
  // CHECK-LABEL: gpu.func @fused(
  gpu.func @fused(%out: !spconv.buffer<f32>, %a: f32, %v: vector<4xf32>, %i: i32) kernel {
    // CHECK: llvm.intr.fma(%arg1, %arg1, %arg1) : (f32, f32, f32) -> f32
    // CHECK: llvm.intr.fma(%arg2, %arg2, %arg2) : (vector<4xf32>, vector<4xf32>, vector<4xf32>) -> vector<4xf32>
    // CHECK-NOT: math.fma
    %r = math.fma %a, %a, %a : f32
    %w = math.fma %v, %v, %v : vector<4xf32>
    "spconv.tile_store"(%r, %out, %i) : (f32, !spconv.buffer<f32>, i32) -> ()
    "spconv.tile_store"(%w, %out, %i) : (vector<4xf32>, !spconv.buffer<f32>, i32) -> ()
    gpu.return
  }

  // CHECK-LABEL: gpu.func @counts(
  gpu.func @counts(%out: !spconv.buffer<i32>, %n: i32, %at: index) workgroup(%m: memref<64xi32, #gpu.address_space<workgroup>>) kernel {
    // CHECK: [[BASE:%.+]] = memref.extract_aligned_pointer_as_index
    // CHECK: [[P:%.+]] = llvm.inttoptr %{{.+}} : i32 to !llvm.ptr<3>
    // CHECK: [[OLD:%.+]] = llvm.atomicrmw add [[P]], %arg1 syncscope("block") monotonic : !llvm.ptr<3>, i32
    // CHECK: "spconv.tile_store"([[OLD]], %arg0, %arg1)
    %old = memref.atomic_rmw addi %n, %m[%at] : (i32, memref<64xi32, #gpu.address_space<workgroup>>) -> i32
    "spconv.tile_store"(%old, %out, %n) : (i32, !spconv.buffer<i32>, i32) -> ()
    gpu.return
  }
}
