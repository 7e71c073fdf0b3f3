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

// Between two coordinate sets, map and pairs are those of the geometry, and the rows that the gemm starts from belong
// to the outputs.
// CHECK-LABEL: func.func @strided
// CHECK-SAME: ([[COORDS:%.+]]: !spconv.coords<32 : i64>, [[FEATURES:%.+]]: tensor<?x16xf32>, [[WEIGHT:%.+]]: tensor<32x2x2x2x16xf32>)
func.func @strided(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<32x2x2x2x16xf32>) -> tensor<?x32xf32> {
  // CHECK: [[OUT:%.+]] = "spconv.output_coords"([[COORDS]])
  %out = "spconv.output_coords"(%coords) {kernel_size = array<i64: 2, 2, 2>, stride = array<i64: 2, 2, 2>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>, transposed = false} : (!spconv.coords<32>) -> !spconv.coords<32>
  // CHECK: [[MAP:%.+]] = "spconv.cross_map"([[COORDS]], [[OUT]]) {dilation = array<i64: 1, 1, 1>, kernel_size = array<i64: 2, 2, 2>, padding = array<i64: 0, 0, 0>, stride = array<i64: 2, 2, 2>}
  // CHECK: [[PAIRS:%.+]] = "spconv.cross_compact"([[MAP]]) {transposed = false}
  // CHECK: [[INIT:%.+]] = "spconv.fill"([[OUT]])
  // CHECK: "spconv.gemm"([[PAIRS]], [[FEATURES]], %{{[a-z0-9]+}}, [[INIT]])
  // CHECK-NOT: spconv.sparse_conv3d
  %0 = "spconv.sparse_conv3d"(%coords, %out, %features, %weight) {stride = array<i64: 2, 2, 2>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>, transposed = false, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, !spconv.coords<32>, tensor<?x16xf32>, tensor<32x2x2x2x16xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// A convolution and its inverse have one map: transposed, the coarse set is that of the inputs.
// CHECK-LABEL: func.func @there_and_back
// CHECK-SAME: ([[FINE:%.+]]: !spconv.coords<32 : i64>, [[COARSE:%.+]]: !spconv.coords<32 : i64>, [[FEATURES:%.+]]: tensor<?x16xf32>, [[WEIGHT:%.+]]: tensor<16x2x2x2x16xf32>)
func.func @there_and_back(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<16x2x2x2x16xf32>) -> tensor<?x16xf32> {
  // CHECK: "spconv.cross_map"([[FINE]], [[COARSE]])
  // CHECK: {transposed = false}
  %0 = "spconv.sparse_conv3d"(%fine, %coarse, %features, %weight) {stride = array<i64: 2, 2, 2>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>, transposed = false, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, !spconv.coords<32>, tensor<?x16xf32>, tensor<16x2x2x2x16xf32>) -> tensor<?x16xf32>
  // CHECK: "spconv.cross_map"([[FINE]], [[COARSE]])
  // CHECK: {transposed = true}
  // CHECK: "spconv.fill"([[FINE]])
  %1 = "spconv.sparse_conv3d"(%coarse, %fine, %0, %weight) {stride = array<i64: 2, 2, 2>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>, transposed = true, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, !spconv.coords<32>, tensor<?x16xf32>, tensor<16x2x2x2x16xf32>) -> tensor<?x16xf32>
  return %1 : tensor<?x16xf32>
}

// CHECK-LABEL: func.func @pool
func.func @pool(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>, %features: tensor<?x16xf32>) -> tensor<?x16xf32> {
  // CHECK: [[PAIRS:%.+]] = "spconv.cross_compact"
  // CHECK: "spconv.pool"([[PAIRS]], %{{[a-z0-9]+}}) {mode = "avg"}
  %0 = "spconv.sparse_pool3d"(%fine, %coarse, %features) {kernel_size = array<i64: 2, 2, 2>, stride = array<i64: 2, 2, 2>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>, mode = "avg"} : (!spconv.coords<32>, !spconv.coords<32>, tensor<?x16xf32>) -> tensor<?x16xf32>
  return %0 : tensor<?x16xf32>
}

// Pointwise work behind an f32 sum is the epilogue of its gemm.
// CHECK-LABEL: func.func @pointwise
func.func @pointwise(%x: tensor<?x16xf32>, %r: tensor<?x16xbf16>) -> tensor<?x16xbf16> {
  // CHECK: "spconv.apply_epilogue"(%arg0, %arg1) {epilogue = #spconv.epilogue<"relu">} : (tensor<?x16xf32>, tensor<?x16xbf16>) -> tensor<?x16xbf16>
  %0 = "spconv.pointwise"(%x, %r) {epilogue = #spconv.epilogue<"relu">} : (tensor<?x16xf32>, tensor<?x16xbf16>) -> tensor<?x16xbf16>
  return %0 : tensor<?x16xbf16>
}
