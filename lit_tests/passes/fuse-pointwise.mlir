// RUN: %opt %s -p fuse-pointwise | %filecheck %s

// A sum is rounded once, after everything that is done with it element by element.

// CHECK-LABEL: func.func @activation
func.func @activation(%coords: !spconv.coords<64>, %x: tensor<?x4xbf16>, %w: tensor<4x3x3x3x4xbf16>) -> tensor<?x4xbf16> {
  // CHECK: [[OUT:%.+]] = "spconv.subm_conv3d"(%arg0, %arg1, %arg2) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"silu">}
  // CHECK-NEXT: return [[OUT]]
  %y = "spconv.subm_conv3d"(%coords, %x, %w) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<64>, tensor<?x4xbf16>, tensor<4x3x3x3x4xbf16>) -> tensor<?x4xbf16>
  %z = "spconv.pointwise"(%y) {epilogue = #spconv.epilogue<"silu">} : (tensor<?x4xbf16>) -> tensor<?x4xbf16>
  return %z : tensor<?x4xbf16>
}

// The sum stays f32 until the residual is there, on whichever side of the addition it stands.
// CHECK-LABEL: func.func @residual
func.func @residual(%coords: !spconv.coords<64>, %x: tensor<?x4xbf16>, %w: tensor<4x3x3x3x4xbf16>) -> tensor<?x4xbf16> {
  // CHECK: [[SUM:%.+]] = "spconv.subm_conv3d"
  // CHECK-SAME: -> tensor<?x4xf32>
  // CHECK-NEXT: [[OUT:%.+]] = "spconv.pointwise"([[SUM]], %arg1) {epilogue = #spconv.epilogue<"relu">} : (tensor<?x4xf32>, tensor<?x4xbf16>) -> tensor<?x4xbf16>
  // CHECK-NEXT: return [[OUT]]
  %y = "spconv.subm_conv3d"(%coords, %x, %w) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<64>, tensor<?x4xbf16>, tensor<4x3x3x3x4xbf16>) -> tensor<?x4xbf16>
  %s = "spconv.pointwise"(%x, %y) {epilogue = #spconv.epilogue<"none">} : (tensor<?x4xbf16>, tensor<?x4xbf16>) -> tensor<?x4xbf16>
  %z = "spconv.pointwise"(%s) {epilogue = #spconv.epilogue<"relu">} : (tensor<?x4xbf16>) -> tensor<?x4xbf16>
  return %z : tensor<?x4xbf16>
}

// Of two convolutions the later one takes the other as its residual.
// CHECK-LABEL: func.func @two_convolutions
func.func @two_convolutions(%coords: !spconv.coords<64>, %x: tensor<?x4xbf16>, %w: tensor<4x3x3x3x4xbf16>, %p: tensor<4x1x1x1x4xbf16>) -> tensor<?x4xbf16> {
  // CHECK: [[FIRST:%.+]] = "spconv.subm_conv3d"(%arg0, %arg1, %arg2)
  // CHECK-SAME: -> tensor<?x4xbf16>
  // CHECK: [[SECOND:%.+]] = "spconv.subm_conv3d"(%arg0, %arg1, %arg3)
  // CHECK-SAME: -> tensor<?x4xf32>
  // CHECK: "spconv.pointwise"([[SECOND]], [[FIRST]])
  %y = "spconv.subm_conv3d"(%coords, %x, %w) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<64>, tensor<?x4xbf16>, tensor<4x3x3x3x4xbf16>) -> tensor<?x4xbf16>
  %z = "spconv.subm_conv3d"(%coords, %x, %p) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<64>, tensor<?x4xbf16>, tensor<4x1x1x1x4xbf16>) -> tensor<?x4xbf16>
  %s = "spconv.pointwise"(%y, %z) {epilogue = #spconv.epilogue<"none">} : (tensor<?x4xbf16>, tensor<?x4xbf16>) -> tensor<?x4xbf16>
  return %s : tensor<?x4xbf16>
}

// Somebody else needs the rounded sum; an activation is applied already; no convolution is there; the residual is f32.
// CHECK-LABEL: func.func @stays
func.func @stays(%coords: !spconv.coords<64>, %x: tensor<?x4xbf16>, %w: tensor<4x3x3x3x4xbf16>, %r: tensor<?x4xf32>) -> (tensor<?x4xbf16>, tensor<?x4xbf16>, tensor<?x4xbf16>, tensor<?x4xbf16>, tensor<?x4xbf16>) {
  // CHECK-COUNT-4: "spconv.pointwise"
  %y = "spconv.subm_conv3d"(%coords, %x, %w) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<64>, tensor<?x4xbf16>, tensor<4x3x3x3x4xbf16>) -> tensor<?x4xbf16>
  %u = "spconv.subm_conv3d"(%coords, %x, %w) {dilation = array<i64: 2, 2, 2>, epilogue = #spconv.epilogue<"relu">} : (!spconv.coords<64>, tensor<?x4xbf16>, tensor<4x3x3x3x4xbf16>) -> tensor<?x4xbf16>
  %v = "spconv.subm_conv3d"(%coords, %x, %w) {dilation = array<i64: 3, 3, 3>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<64>, tensor<?x4xbf16>, tensor<4x3x3x3x4xbf16>) -> tensor<?x4xbf16>
  %a = "spconv.pointwise"(%y) {epilogue = #spconv.epilogue<"relu">} : (tensor<?x4xbf16>) -> tensor<?x4xbf16>
  %b = "spconv.pointwise"(%u) {epilogue = #spconv.epilogue<"relu">} : (tensor<?x4xbf16>) -> tensor<?x4xbf16>
  %c = "spconv.pointwise"(%x) {epilogue = #spconv.epilogue<"relu">} : (tensor<?x4xbf16>) -> tensor<?x4xbf16>
  %d = "spconv.pointwise"(%v, %r) {epilogue = #spconv.epilogue<"none">} : (tensor<?x4xbf16>, tensor<?x4xf32>) -> tensor<?x4xbf16>
  return %y, %a, %b, %c, %d : tensor<?x4xbf16>, tensor<?x4xbf16>, tensor<?x4xbf16>, tensor<?x4xbf16>, tensor<?x4xbf16>
}
