// RUN: %opt %s | %filecheck %s
// RUN: %opt %s | %opt | %filecheck %s

// What networks have around convolutions survives printing and parsing.

// CHECK-LABEL: func.func @rows
func.func @rows(%x: tensor<?x16xbf16>, %r: tensor<?x16xf32>) -> (tensor<?x16xf16>, tensor<?x32xbf16>) {
  // CHECK: "spconv.pointwise"(%arg0, %arg1) {epilogue = #spconv.epilogue<{activation = "leaky_relu", negative_slope = 2.500000e-01 : f32}>} : (tensor<?x16xbf16>, tensor<?x16xf32>) -> tensor<?x16xf16>
  %0 = "spconv.pointwise"(%x, %r) {epilogue = #spconv.epilogue<{activation = "leaky_relu", negative_slope = 0.25 : f32}>} : (tensor<?x16xbf16>, tensor<?x16xf32>) -> tensor<?x16xf16>
  // CHECK: "spconv.pointwise"(%arg0) {epilogue = #spconv.epilogue<"gelu">} : (tensor<?x16xbf16>) -> tensor<?x16xbf16>
  %1 = "spconv.pointwise"(%x) {epilogue = #spconv.epilogue<"gelu">} : (tensor<?x16xbf16>) -> tensor<?x16xbf16>
  // CHECK: "spconv.concat"(%arg0, %1) : (tensor<?x16xbf16>, tensor<?x16xbf16>) -> tensor<?x32xbf16>
  %2 = "spconv.concat"(%x, %1) : (tensor<?x16xbf16>, tensor<?x16xbf16>) -> tensor<?x32xbf16>
  return %0, %2 : tensor<?x16xf16>, tensor<?x32xbf16>
}

// CHECK-LABEL: func.func @parameters
func.func @parameters(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
  // CHECK: "spconv.parameter"() {name = "conv.weight"} : () -> tensor<4x1x1x1x4xf32>
  %w = "spconv.parameter"() {name = "conv.weight"} : () -> tensor<4x1x1x1x4xf32>
  %v = "spconv.parameter"() {name = "bn.running_var"} : () -> tensor<4xf32>
  // CHECK: "spconv.norm_scale"([[V:%.+]]) {epsilon = 1.000000e-03 : f64} : (tensor<4xf32>) -> tensor<4xf32>
  %s = "spconv.norm_scale"(%v) {epsilon = 0.001 : f64} : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK: "spconv.norm_shift"
  %t = "spconv.norm_shift"(%s, %v) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  // CHECK: "spconv.scale_weight"
  %u = "spconv.scale_weight"(%w, %s) : (tensor<4x1x1x1x4xf32>, tensor<4xf32>) -> tensor<4x1x1x1x4xf32>
  // CHECK: "spconv.scale_bias"
  %b = "spconv.scale_bias"(%s, %t, %v) : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  // CHECK: "spconv.affine"(%arg0, [[S:%.+]], [[B:%.+]]) : (tensor<?x4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  %y = "spconv.affine"(%x, %s, %b) : (tensor<?x4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  return %y : tensor<?x4xf32>
}
