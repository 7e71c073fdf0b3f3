// RUN: %opt %s | %opt --generic | %opt | %filecheck %s

// Every form of the convolution op survives printing and parsing, in either syntax of the ops around it.

// CHECK-LABEL: func.func @plain
func.func @plain(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32> {
  // CHECK: "spconv.subm_conv3d"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}, %{{[a-z0-9]+}})
  // CHECK-SAME: dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xf32>, tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// A kernel and a dilation of their own for each axis, 64-bit keys, a bias, and a result of another type.
// CHECK-LABEL: func.func @everything
func.func @everything(%coords: !spconv.coords<64>, %features: tensor<?x6xbf16>, %weight: tensor<10x1x3x5x6xbf16>, %bias: tensor<10xf32>) -> tensor<?x10xf16> {
  // CHECK: "spconv.subm_conv3d"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}, %{{[a-z0-9]+}}, %{{[a-z0-9]+}})
  // CHECK-SAME: dilation = array<i64: 1, 2, 3>, epilogue = #spconv.epilogue<"relu">
  // CHECK-SAME: (!spconv.coords<64 : i64>, tensor<?x6xbf16>, tensor<10x1x3x5x6xbf16>, tensor<10xf32>) -> tensor<?x10xf16>
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight, %bias) {dilation = array<i64: 1, 2, 3>, epilogue = #spconv.epilogue<"relu">} : (!spconv.coords<64>, tensor<?x6xbf16>, tensor<10x1x3x5x6xbf16>, tensor<10xf32>) -> tensor<?x10xf16>
  return %0 : tensor<?x10xf16>
}
