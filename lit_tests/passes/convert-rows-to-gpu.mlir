// RUN: %opt %s -p convert-rows-to-gpu{target=gfx950} --split-input-file | %filecheck %s

// A fill with a use becomes a launch, four channels a lane; 20 channels of bias are read modulo 20.

// CHECK: [[SIZE:#.+]] = affine_map<()[s0, s1, s2] -> (s0 * 20)>
// CHECK-LABEL: func.func @bias
// CHECK-SAME: message = "bytes of f32 rows of 20 channels"
func.func @bias(%coords: !spconv.coords<32>, %bias: tensor<20xf32>) -> tensor<?x20xf32> {
  // CHECK: [[ROWS:%.+]] = "spconv.alloc"() {name = "sums", size = [[SIZE]]}
  // CHECK: "spconv.launch"
  // CHECK-SAME: group = "output", kernel = @kernels::@fill_rows_20_bias
  // CHECK: builtin.unrealized_conversion_cast [[ROWS]] : !spconv.buffer<f32> to tensor<?x20xf32>
  %0 = "spconv.fill"(%coords, %bias) : (!spconv.coords<32>, tensor<20xf32>) -> tensor<?x20xf32>
  return %0 : tensor<?x20xf32>
}
// CHECK: gpu.func @fill_rows_20_bias
// CHECK: arith.remui
// CHECK: "spconv.tile_load"
// CHECK-SAME: vector<4xf32>
// CHECK: "spconv.tile_store"

// -----

// A gemm has filled its rows itself: nothing is left to do for a fill without uses.
// CHECK-LABEL: func.func @unused
// CHECK-NOT: "spconv.
// CHECK: return
func.func @unused(%coords: !spconv.coords<32>) {
  %0 = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x16xf32>
  return
}

// -----

// Rounded once, after the activation; NaN is not below zero and passes.
// CHECK-LABEL: func.func @relu
func.func @relu(%sum: tensor<?x16xf32>) -> tensor<?x16xbf16> {
  // CHECK: "spconv.alloc"() {name = "out"
  // CHECK-SAME: !spconv.buffer<bf16>
  // CHECK: kernel = @kernels::@apply_relu_bf16_16
  %0 = "spconv.apply_epilogue"(%sum) {epilogue = #spconv.epilogue<"relu">} : (tensor<?x16xf32>) -> tensor<?x16xbf16>
  return %0 : tensor<?x16xbf16>
}
// CHECK: gpu.func @apply_relu_bf16_16
// CHECK: arith.cmpf olt
// CHECK: arith.select
// CHECK: arith.truncf {{.*}} : vector<4xf32> to vector<4xbf16>

// -----

// Rows of three channels are moved one channel at a time.
// CHECK-LABEL: func.func @narrow
func.func @narrow(%sum: tensor<?x3xf32>) -> tensor<?x3xf16> {
  %0 = "spconv.apply_epilogue"(%sum) {epilogue = #spconv.epilogue<"none">} : (tensor<?x3xf32>) -> tensor<?x3xf16>
  return %0 : tensor<?x3xf16>
}
// CHECK: gpu.func @apply_none_f16_3
// CHECK-NOT: arith.cmpf
// CHECK: arith.truncf {{.*}} : f32 to f16

// -----

// A residual is read beside the sum; the kernel's name says all of it.
// CHECK-LABEL: func.func @residual
func.func @residual(%sum: tensor<?x16xf32>, %r: tensor<?x16xbf16>) -> tensor<?x16xbf16> {
  // CHECK: "spconv.launch"
  // CHECK-SAME: kernel = @kernels::@apply_leaky_relu_3e800000_bf16_plus_bf16_16
  %0 = "spconv.apply_epilogue"(%sum, %r) {epilogue = #spconv.epilogue<{activation = "leaky_relu", negative_slope = 0.25 : f32}>} : (tensor<?x16xf32>, tensor<?x16xbf16>) -> tensor<?x16xbf16>
  return %0 : tensor<?x16xbf16>
}
