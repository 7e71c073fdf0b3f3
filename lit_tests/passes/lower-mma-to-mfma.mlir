// RUN: %opt %s -p lower-mma-to-mfma{target=gfx950} | %filecheck %s

// A tile_mma becomes the target's instruction; the loads before the first one of a block stay before it.

gpu.module @kernels {
  // CHECK-LABEL: gpu.func @bf16
  gpu.func @bf16(%a: vector<8xbf16>, %b: vector<8xbf16>, %c: vector<4xf32>, %p: !spconv.buffer<f32>, %i: i32) kernel {
    // CHECK: rocdl.sched.barrier none
    // CHECK-NEXT: [[D:%.+]] = rocdl.mfma.f32.16x16x32.bf16 %arg0, %arg1, %arg2, 0, 0, none
    // CHECK-NOT: rocdl.sched.barrier
    // CHECK: rocdl.mfma.f32.16x16x32.bf16 %arg0, %arg1, [[D]], 0, 0, none
    // CHECK-NOT: spconv.tile_mma
    %d = "spconv.tile_mma"(%a, %b, %c) {shape = array<i64: 16, 16, 32>} : (vector<8xbf16>, vector<8xbf16>, vector<4xf32>) -> vector<4xf32>
    %e = "spconv.tile_mma"(%a, %b, %d) {shape = array<i64: 16, 16, 32>} : (vector<8xbf16>, vector<8xbf16>, vector<4xf32>) -> vector<4xf32>
    "spconv.tile_store"(%e, %p, %i) : (vector<4xf32>, !spconv.buffer<f32>, i32) -> ()
    gpu.return
  }

  // CHECK-LABEL: gpu.func @f16
  gpu.func @f16(%a: vector<8xf16>, %b: vector<8xf16>, %c: vector<4xf32>, %p: !spconv.buffer<f32>, %i: i32) kernel {
    // CHECK: rocdl.mfma.f32.16x16x32.f16
    %d = "spconv.tile_mma"(%a, %b, %c) {shape = array<i64: 16, 16, 32>} : (vector<8xf16>, vector<8xf16>, vector<4xf32>) -> vector<4xf32>
    "spconv.tile_store"(%d, %p, %i) : (vector<4xf32>, !spconv.buffer<f32>, i32) -> ()
    gpu.return
  }

  // One element a lane is a scalar to the instruction.
  // CHECK-LABEL: gpu.func @f32
  gpu.func @f32(%a: vector<1xf32>, %b: vector<1xf32>, %c: vector<4xf32>, %p: !spconv.buffer<f32>, %i: i32) kernel {
    // CHECK: [[A:%.+]] = vector.extract %arg0[0] : f32 from vector<1xf32>
    // CHECK: [[B:%.+]] = vector.extract %arg1[0] : f32 from vector<1xf32>
    // CHECK: rocdl.mfma.f32.16x16x4f32 [[A]], [[B]], %arg2
    %d = "spconv.tile_mma"(%a, %b, %c) {shape = array<i64: 16, 16, 4>} : (vector<1xf32>, vector<1xf32>, vector<4xf32>) -> vector<4xf32>
    "spconv.tile_store"(%d, %p, %i) : (vector<4xf32>, !spconv.buffer<f32>, i32) -> ()
    gpu.return
  }
}
