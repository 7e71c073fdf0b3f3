// RUN: %opt %s -p convert-spconv-to-stages,check-level{level=stages} | %filecheck %s

// A convolution becomes a map, its pairs, packed weights, initial rows and one gemm over them, and an epilogue
// where the sum is not yet the result.

// CHECK-LABEL: func.func @with_epilogue
// CHECK-SAME: ([[COORDS:%.+]]: !spconv.coords<32 : i64>, [[FEATURES:%.+]]: tensor<?x16xbf16>, [[WEIGHT:%.+]]: tensor<32x3x3x3x16xbf16>, [[BIAS:%.+]]: tensor<32xf32>)
func.func @with_epilogue(%coords: !spconv.coords<32>, %features: tensor<?x16xbf16>, %weight: tensor<32x3x3x3x16xbf16>, %bias: tensor<32xf32>) -> tensor<?x32xbf16> {
  // CHECK: [[MAP:%.+]] = "spconv.map"([[COORDS]]) {dilation = array<i64: 1, 1, 1>, kernel_size = array<i64: 3, 3, 3>}
  // CHECK: [[PAIRS:%.+]] = "spconv.compact"([[MAP]])
  // CHECK: [[INIT:%.+]] = "spconv.fill"([[COORDS]], [[BIAS]])
  // CHECK: [[PACKED:%.+]] = "spconv.pack_weight"([[WEIGHT]])
  // CHECK: [[SUM:%.+]] = "spconv.gemm"([[PAIRS]], [[FEATURES]], [[PACKED]], [[INIT]]) {epilogue = #spconv.epilogue<"none">}
  // CHECK-SAME: -> tensor<?x32xf32>
  // CHECK: [[OUT:%.+]] = "spconv.apply_epilogue"([[SUM]]) {epilogue = #spconv.epilogue<"relu">}
  // CHECK-SAME: -> tensor<?x32xbf16>
  // CHECK-NOT: spconv.subm_conv3d
  // CHECK: return [[OUT]]
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight, %bias) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"relu">} : (!spconv.coords<32>, tensor<?x16xbf16>, tensor<32x3x3x3x16xbf16>, tensor<32xf32>) -> tensor<?x32xbf16>
  return %0 : tensor<?x32xbf16>
}

// Kernel and dilation keep their axes; 64-bit keys stay on the coordinates.
// CHECK-LABEL: func.func @axes
func.func @axes(%coords: !spconv.coords<64>, %features: tensor<?x16xf32>, %weight: tensor<32x1x3x5x16xf32>) -> tensor<?x32xf32> {
  // CHECK: "spconv.map"(%{{.+}}) {dilation = array<i64: 1, 2, 3>, kernel_size = array<i64: 1, 3, 5>} : (!spconv.coords<64 : i64>) -> !spconv.map<15 : i64>
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 2, 3>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<64>, tensor<?x16xf32>, tensor<32x1x3x5x16xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// The f32 sum itself is the result: no epilogue, and no bias to start from.
// CHECK-LABEL: func.func @sum_only
func.func @sum_only(%coords: !spconv.coords<32>, %features: tensor<?x16xbf16>, %weight: tensor<32x3x3x3x16xbf16>) -> tensor<?x32xf32> {
  // CHECK: "spconv.fill"(%{{[a-z0-9]+}}) : (!spconv.coords<32 : i64>) -> tensor<?x32xf32>
  // CHECK: [[SUM:%.+]] = "spconv.gemm"
  // CHECK-NOT: spconv.apply_epilogue
  // CHECK: return [[SUM]]
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xbf16>, tensor<32x3x3x3x16xbf16>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// An activation alone, or a narrower result alone, needs the epilogue.
// CHECK-LABEL: func.func @activation_only
func.func @activation_only(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32> {
  // CHECK: "spconv.apply_epilogue"(%{{.+}}) {epilogue = #spconv.epilogue<"relu">} : (tensor<?x32xf32>) -> tensor<?x32xf32>
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"relu">} : (!spconv.coords<32>, tensor<?x16xf32>, tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// CHECK-LABEL: func.func @narrower_only
func.func @narrower_only(%coords: !spconv.coords<32>, %features: tensor<?x16xf16>, %weight: tensor<32x3x3x3x16xf16>) -> tensor<?x32xf16> {
  // CHECK: "spconv.apply_epilogue"(%{{.+}}) {epilogue = #spconv.epilogue<"none">} : (tensor<?x32xf32>) -> tensor<?x32xf16>
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xf16>, tensor<32x3x3x3x16xf16>) -> tensor<?x32xf16>
  return %0 : tensor<?x32xf16>
}

// Two layers over one coordinate set: two maps here, which cse shares afterwards (dialect/purity.mlir).
// CHECK-LABEL: func.func @two_layers
func.func @two_layers(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<16x3x3x3x16xf32>) -> tensor<?x16xf32> {
  // CHECK: [[FIRST:%.+]] = "spconv.gemm"
  // CHECK: "spconv.gemm"(%{{.+}}, [[FIRST]], %{{.+}}, %{{.+}})
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xf32>, tensor<16x3x3x3x16xf32>) -> tensor<?x16xf32>
  %1 = "spconv.subm_conv3d"(%coords, %0, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xf32>, tensor<16x3x3x3x16xf32>) -> tensor<?x16xf32>
  return %1 : tensor<?x16xf32>
}
