// RUN: %opt %s -p fold-affine | %filecheck %s

// A batch norm goes into the weight and the bias of the convolution before it.

// CHECK-LABEL: func.func @folded
func.func @folded(%coords: !spconv.coords<64>, %x: tensor<?x4xbf16>, %w: tensor<8x3x3x3x4xbf16>, %b: tensor<8xf32>, %s: tensor<8xf32>, %t: tensor<8xf32>) -> tensor<?x8xbf16> {
  // CHECK: [[W:%.+]] = "spconv.scale_weight"(%arg2, %arg4)
  // CHECK: [[B:%.+]] = "spconv.scale_bias"(%arg4, %arg5, %arg3)
  // CHECK: [[OUT:%.+]] = "spconv.subm_conv3d"(%arg0, %arg1, [[W]], [[B]])
  // CHECK-NOT: spconv.affine
  // CHECK: return [[OUT]]
  %y = "spconv.subm_conv3d"(%coords, %x, %w, %b) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<64>, tensor<?x4xbf16>, tensor<8x3x3x3x4xbf16>, tensor<8xf32>) -> tensor<?x8xbf16>
  %z = "spconv.affine"(%y, %s, %t) : (tensor<?x8xbf16>, tensor<8xf32>, tensor<8xf32>) -> tensor<?x8xbf16>
  return %z : tensor<?x8xbf16>
}

// A convolution without a bias has one afterwards.
// CHECK-LABEL: func.func @strided
func.func @strided(%fine: !spconv.coords<64>, %coarse: !spconv.coords<64>, %x: tensor<?x4xf32>, %w: tensor<8x2x2x2x4xf32>, %s: tensor<8xf32>, %t: tensor<8xf32>) -> tensor<?x8xf32> {
  // CHECK: [[W:%.+]] = "spconv.scale_weight"(%arg3, %arg4)
  // CHECK: [[B:%.+]] = "spconv.scale_bias"(%arg4, %arg5)
  // CHECK: "spconv.sparse_conv3d"(%arg0, %arg1, %arg2, [[W]], [[B]])
  %y = "spconv.sparse_conv3d"(%fine, %coarse, %x, %w) {stride = array<i64: 2, 2, 2>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>, transposed = false, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<64>, !spconv.coords<64>, tensor<?x4xf32>, tensor<8x2x2x2x4xf32>) -> tensor<?x8xf32>
  %z = "spconv.affine"(%y, %s, %t) : (tensor<?x8xf32>, tensor<8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  return %z : tensor<?x8xf32>
}

// An activation lies between, somebody else needs the sum, or there is no convolution.
// CHECK-LABEL: func.func @stays
func.func @stays(%coords: !spconv.coords<64>, %x: tensor<?x4xf32>, %w: tensor<4x3x3x3x4xf32>, %s: tensor<4xf32>) -> (tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>) {
  // CHECK-COUNT-2: "spconv.subm_conv3d"(%arg0, %arg1, %arg2)
  // CHECK-COUNT-3: "spconv.affine"
  %y = "spconv.subm_conv3d"(%coords, %x, %w) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"relu">} : (!spconv.coords<64>, tensor<?x4xf32>, tensor<4x3x3x3x4xf32>) -> tensor<?x4xf32>
  %u = "spconv.subm_conv3d"(%coords, %x, %w) {dilation = array<i64: 2, 2, 2>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<64>, tensor<?x4xf32>, tensor<4x3x3x3x4xf32>) -> tensor<?x4xf32>
  %a = "spconv.affine"(%y, %s, %s) : (tensor<?x4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  %b = "spconv.affine"(%u, %s, %s) : (tensor<?x4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  %c = "spconv.affine"(%x, %s, %s) : (tensor<?x4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  return %a, %b, %c, %u : tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>
}

// The numbers would overflow in a weight: network/overflow.py says so.
// CHECK-LABEL: func.func @kept
func.func @kept(%coords: !spconv.coords<64>, %x: tensor<?x4xf32>, %w: tensor<4x3x3x3x4xf32>, %s: tensor<4xf32>) -> tensor<?x4xf32> {
  // CHECK: "spconv.subm_conv3d"(%arg0, %arg1, %arg2)
  // CHECK: "spconv.affine"
  %y = "spconv.subm_conv3d"(%coords, %x, %w) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<64>, tensor<?x4xf32>, tensor<4x3x3x3x4xf32>) -> tensor<?x4xf32>
  %z = "spconv.affine"(%y, %s, %s) {spconv.kept} : (tensor<?x4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  return %z : tensor<?x4xf32>
}
