// RUN: %compile %s --target x86-64-v3 --emit loops | %filecheck %s

// One function starts every row from the bias, adds the pairs' products and writes the row once, with the activation.
// There is no fill, no epilogue and no atomic addition of a float left.

// CHECK-LABEL: func.func @conv
// CHECK-NOT: spconv.fill
// CHECK-NOT: spconv.apply_epilogue
// CHECK: group = "output", kernel = @kernels::@gemm_chunk_stationary_bf16_bf16_t27_20x24_r512
// CHECK-SAME: _bias_relu
// CHECK: module @kernels
// CHECK-NOT: atomicrmw fadd
// CHECK: llvm.func internal @gemm_chunk_stationary_{{.*}}_worker
// The register tile: four rows of three vectors, multiplied and added in one step.
// CHECK: math.fma {{.*}} : vector<8xf32>
// The activation: what is below zero becomes zero, and NaN, which is not, stays.
// CHECK: [[BELOW:%.+]] = arith.cmpf olt, [[SUM:%.+]], [[ZERO:%.+]] : vector<8xf32>
// CHECK: arith.select [[BELOW]], [[ZERO]], [[SUM]] : vector<8xi1>, vector<8xf32>
func.func @conv(%coords: !spconv.coords<32>, %features: tensor<?x20xbf16>, %weight: tensor<24x3x3x3x20xbf16>, %bias: tensor<24xf32>) -> tensor<?x24xbf16> {
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight, %bias) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"relu">} : (!spconv.coords<32>, tensor<?x20xbf16>, tensor<24x3x3x3x20xbf16>, tensor<24xf32>) -> tensor<?x24xbf16>
  return %0 : tensor<?x24xbf16>
}
