// RUN: %opt %s | %opt | %filecheck %s
// RUN: %opt %s --generic | %opt | %filecheck %s

// Every form of the op survives printing and parsing.

// CHECK-LABEL: func.func @plain
func.func @plain(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32> {
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xf32>, tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}
