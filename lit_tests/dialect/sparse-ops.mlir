// RUN: %opt %s | %opt --generic | %opt | %filecheck %s

// Every form of the ops between two coordinate sets survives printing and parsing.

// CHECK-LABEL: func.func @strided
func.func @strided(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<32x3x3x3x16xf32>) -> (!spconv.coords<32>, tensor<?x32xf32>) {
  // CHECK: [[OUT:%.+]] = "spconv.output_coords"(%{{[a-z0-9]+}}) {dilation = array<i64: 1, 1, 1>, kernel_size = array<i64: 3, 3, 3>, padding = array<i64: 1, 1, 1>, stride = array<i64: 2, 2, 2>, transposed = false}
  %out = "spconv.output_coords"(%coords) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false} : (!spconv.coords<32>) -> !spconv.coords<32>
  // CHECK: "spconv.sparse_conv3d"(%{{[a-z0-9]+}}, [[OUT]], %{{[a-z0-9]+}}, %{{[a-z0-9]+}})
  // CHECK-SAME: epilogue = #spconv.epilogue<"none">, padding = array<i64: 1, 1, 1>, stride = array<i64: 2, 2, 2>, transposed = false
  %0 = "spconv.sparse_conv3d"(%coords, %out, %features, %weight) {stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, !spconv.coords<32>, tensor<?x16xf32>, tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32>
  return %out, %0 : !spconv.coords<32>, tensor<?x32xf32>
}

// An even kernel, 64-bit keys, a bias, transposed, onto given coordinates, with a result of another type.
// CHECK-LABEL: func.func @transposed
func.func @transposed(%coords: !spconv.coords<64>, %out: !spconv.coords<64>, %features: tensor<?x6xbf16>, %weight: tensor<10x2x1x4x6xbf16>, %bias: tensor<10xf32>) -> tensor<?x10xf16> {
  // CHECK: "spconv.sparse_conv3d"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}, %{{[a-z0-9]+}}, %{{[a-z0-9]+}}, %{{[a-z0-9]+}})
  // CHECK-SAME: dilation = array<i64: 1, 3, 2>, epilogue = #spconv.epilogue<"relu">, padding = array<i64: 0, 1, 0>, stride = array<i64: 2, 1, 3>, transposed = true
  %0 = "spconv.sparse_conv3d"(%coords, %out, %features, %weight, %bias) {stride = array<i64: 2, 1, 3>, padding = array<i64: 0, 1, 0>, dilation = array<i64: 1, 3, 2>, transposed = true, epilogue = #spconv.epilogue<"relu">} : (!spconv.coords<64>, !spconv.coords<64>, tensor<?x6xbf16>, tensor<10x2x1x4x6xbf16>, tensor<10xf32>) -> tensor<?x10xf16>
  return %0 : tensor<?x10xf16>
}

// CHECK-LABEL: func.func @pools
func.func @pools(%coords: !spconv.coords<32>, %out: !spconv.coords<32>, %features: tensor<?x5xf16>) -> (tensor<?x5xf16>, tensor<?x5xf16>) {
  // CHECK: "spconv.sparse_pool3d"
  // CHECK-SAME: mode = "max"
  %0 = "spconv.sparse_pool3d"(%coords, %out, %features) {kernel_size = array<i64: 2, 2, 2>, stride = array<i64: 2, 2, 2>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>, mode = "max"} : (!spconv.coords<32>, !spconv.coords<32>, tensor<?x5xf16>) -> tensor<?x5xf16>
  // CHECK: "spconv.sparse_pool3d"
  // CHECK-SAME: mode = "avg"
  %1 = "spconv.sparse_pool3d"(%coords, %out, %features) {kernel_size = array<i64: 2, 2, 2>, stride = array<i64: 2, 2, 2>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>, mode = "avg"} : (!spconv.coords<32>, !spconv.coords<32>, tensor<?x5xf16>) -> tensor<?x5xf16>
  return %0, %1 : tensor<?x5xf16>, tensor<?x5xf16>
}

// CHECK-LABEL: func.func @union
func.func @union(%a: !spconv.coords<64>, %b: !spconv.coords<64>) -> !spconv.coords<64> {
  // CHECK: "spconv.union_coords"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}})
  %0 = "spconv.union_coords"(%a, %b) : (!spconv.coords<64>, !spconv.coords<64>) -> !spconv.coords<64>
  return %0 : !spconv.coords<64>
}
