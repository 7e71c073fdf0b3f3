// RUN: %opt %s | %opt --generic | %opt | %filecheck %s

// Every op that kernels of level gpu use beside the upstream dialects survives printing and parsing.

// CHECK-LABEL: func.func @access
func.func @access(%buffer: !spconv.buffer<f32>, %counts: !spconv.buffer<i32>, %n: i64, %i: i32) {
  // CHECK: "spconv.tile_bound"(%{{.*}}, %{{.*}}) : (!spconv.buffer<f32>, i64) -> !spconv.buffer<f32>
  %bounded = "spconv.tile_bound"(%buffer, %n) : (!spconv.buffer<f32>, i64) -> !spconv.buffer<f32>
  // One element at a 32-bit index, then a vector at a 64-bit one.
  // CHECK: "spconv.tile_load"(%{{.*}}, %{{.*}}) : (!spconv.buffer<f32>, i32) -> f32
  %one = "spconv.tile_load"(%bounded, %i) : (!spconv.buffer<f32>, i32) -> f32
  // CHECK: "spconv.tile_load"(%{{.*}}, %{{.*}}) : (!spconv.buffer<f32>, i64) -> vector<4xf32>
  %four = "spconv.tile_load"(%bounded, %n) : (!spconv.buffer<f32>, i64) -> vector<4xf32>
  // CHECK: "spconv.tile_store"(%{{.*}}, %{{.*}}, %{{.*}}) : (f32, !spconv.buffer<f32>, i32) -> ()
  "spconv.tile_store"(%one, %buffer, %i) : (f32, !spconv.buffer<f32>, i32) -> ()
  // CHECK: "spconv.tile_store"(%{{.*}}, %{{.*}}, %{{.*}}) : (vector<4xf32>, !spconv.buffer<f32>, i64) -> ()
  "spconv.tile_store"(%four, %buffer, %n) : (vector<4xf32>, !spconv.buffer<f32>, i64) -> ()
  // CHECK: "spconv.tile_atomic"(%{{.*}}, %{{.*}}, %{{.*}}) {kind = "fadd"} : (f32, !spconv.buffer<f32>, i32) -> ()
  "spconv.tile_atomic"(%one, %buffer, %i) {kind = "fadd"} : (f32, !spconv.buffer<f32>, i32) -> ()
  // CHECK: "spconv.tile_atomic"(%{{.*}}, %{{.*}}, %{{.*}}) {kind = "add"} : (i32, !spconv.buffer<i32>, i64) -> ()
  "spconv.tile_atomic"(%i, %counts, %n) {kind = "add"} : (i32, !spconv.buffer<i32>, i64) -> ()
  // CHECK: "spconv.tile_atomic"(%{{.*}}, %{{.*}}, %{{.*}}) {kind = "umin"} : (i32, !spconv.buffer<i32>, i32) -> ()
  "spconv.tile_atomic"(%i, %counts, %i) {kind = "umin"} : (i32, !spconv.buffer<i32>, i32) -> ()
  // CHECK: "spconv.tile_atomic"(%{{.*}}, %{{.*}}, %{{.*}}) {kind = "or"} : (i32, !spconv.buffer<i32>, i32) -> ()
  "spconv.tile_atomic"(%i, %counts, %i) {kind = "or"} : (i32, !spconv.buffer<i32>, i32) -> ()
  // CHECK: "spconv.tile_fetch_add"(%{{.*}}, %{{.*}}, %{{.*}}) : (i32, !spconv.buffer<i32>, i32) -> i32
  %old = "spconv.tile_fetch_add"(%i, %counts, %i) : (i32, !spconv.buffer<i32>, i32) -> i32
  // CHECK: "spconv.tile_load_device"(%{{.*}}, %{{.*}}) : (!spconv.buffer<i32>, i64) -> i32
  %word = "spconv.tile_load_device"(%counts, %n) : (!spconv.buffer<i32>, i64) -> i32
  // CHECK: "spconv.tile_store_device"(%{{.*}}, %{{.*}}, %{{.*}}) : (i32, !spconv.buffer<i32>, i32) -> ()
  "spconv.tile_store_device"(%word, %counts, %old) : (i32, !spconv.buffer<i32>, i32) -> ()
  // CHECK: "spconv.tile_address"(%{{.*}}, %{{.*}}) : (!spconv.buffer<f32>, i64) -> !llvm.ptr<1>
  %address = "spconv.tile_address"(%buffer, %n) : (!spconv.buffer<f32>, i64) -> !llvm.ptr<1>
  return
}

// CHECK-LABEL: func.func @multiply
func.func @multiply(%a: vector<8xbf16>, %b: vector<8xbf16>, %c: vector<4xf32>) -> vector<4xf32> {
  // CHECK: "spconv.tile_mma"(%{{.*}}, %{{.*}}, %{{.*}}) {shape = array<i64: 16, 16, 32>} : (vector<8xbf16>, vector<8xbf16>, vector<4xf32>) -> vector<4xf32>
  %d = "spconv.tile_mma"(%a, %b, %c) {shape = array<i64: 16, 16, 32>} : (vector<8xbf16>, vector<8xbf16>, vector<4xf32>) -> vector<4xf32>
  return %d : vector<4xf32>
}
