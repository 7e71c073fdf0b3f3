// RUN: %opt %s -p lower-memory-to-buffer | %filecheck %s

// Half words that are loaded in a row are parted behind four of them, so that a run of loads keeps its addresses.

gpu.module @kernels {
  // CHECK-LABEL: gpu.func @halves
  // CHECK-COUNT-4: rocdl.raw.ptr.buffer.load
  // CHECK: rocdl.s.nop 0
  // CHECK-COUNT-4: rocdl.raw.ptr.buffer.load
  // CHECK: rocdl.s.nop 0
  // CHECK: rocdl.raw.ptr.buffer.load
  // CHECK-NOT: rocdl.s.nop
  gpu.func @halves(%in: !spconv.buffer<bf16>, %out: !spconv.buffer<bf16>) kernel attributes {known_block_size = array<i32: 64, 1, 1>} {
    %id = gpu.thread_id x
    %index = arith.index_cast %id : index to i32
    %0 = "spconv.tile_load"(%in, %index) : (!spconv.buffer<bf16>, i32) -> bf16
    %1 = "spconv.tile_load"(%in, %index) : (!spconv.buffer<bf16>, i32) -> bf16
    %2 = "spconv.tile_load"(%in, %index) : (!spconv.buffer<bf16>, i32) -> bf16
    %3 = "spconv.tile_load"(%in, %index) : (!spconv.buffer<bf16>, i32) -> bf16
    %4 = "spconv.tile_load"(%in, %index) : (!spconv.buffer<bf16>, i32) -> bf16
    %5 = "spconv.tile_load"(%in, %index) : (!spconv.buffer<bf16>, i32) -> bf16
    %6 = "spconv.tile_load"(%in, %index) : (!spconv.buffer<bf16>, i32) -> bf16
    %7 = "spconv.tile_load"(%in, %index) : (!spconv.buffer<bf16>, i32) -> bf16
    %8 = "spconv.tile_load"(%in, %index) : (!spconv.buffer<bf16>, i32) -> bf16
    "spconv.tile_store"(%8, %out, %index) : (bf16, !spconv.buffer<bf16>, i32) -> ()
    gpu.return
  }

  // Whole words are not.
  // CHECK-LABEL: gpu.func @words
  // CHECK-COUNT-9: rocdl.raw.ptr.buffer.load
  gpu.func @words(%in: !spconv.buffer<f32>, %out: !spconv.buffer<f32>) kernel attributes {known_block_size = array<i32: 64, 1, 1>} {
    %id = gpu.thread_id x
    %index = arith.index_cast %id : index to i32
    %0 = "spconv.tile_load"(%in, %index) : (!spconv.buffer<f32>, i32) -> f32
    %1 = "spconv.tile_load"(%in, %index) : (!spconv.buffer<f32>, i32) -> f32
    %2 = "spconv.tile_load"(%in, %index) : (!spconv.buffer<f32>, i32) -> f32
    %3 = "spconv.tile_load"(%in, %index) : (!spconv.buffer<f32>, i32) -> f32
    %4 = "spconv.tile_load"(%in, %index) : (!spconv.buffer<f32>, i32) -> f32
    %5 = "spconv.tile_load"(%in, %index) : (!spconv.buffer<f32>, i32) -> f32
    %6 = "spconv.tile_load"(%in, %index) : (!spconv.buffer<f32>, i32) -> f32
    %7 = "spconv.tile_load"(%in, %index) : (!spconv.buffer<f32>, i32) -> f32
    %8 = "spconv.tile_load"(%in, %index) : (!spconv.buffer<f32>, i32) -> f32
    "spconv.tile_store"(%8, %out, %index) : (f32, !spconv.buffer<f32>, i32) -> ()
    gpu.return
  }
}
