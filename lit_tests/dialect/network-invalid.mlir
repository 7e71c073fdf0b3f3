// RUN: %opt %s --split-input-file --verify-diagnostics

func.func @parameter_of_unknown_size() {
  // expected-error @below {{'spconv.parameter' the result is tensor<?x4xf32>; accepted: a static shape of bf16, f16, f32}}
  %0 = "spconv.parameter"() {name = "w"} : () -> tensor<?x4xf32>
  return
}

// -----

func.func @residual_of_other_channels(%x: tensor<?x4xf32>, %r: tensor<?x8xf32>) {
  // expected-error @below {{'spconv.pointwise' the residual is tensor<?x8xf32> but the result is tensor<?x4xf32>}}
  %0 = "spconv.pointwise"(%x, %r) {epilogue = #spconv.epilogue<"none">} : (tensor<?x4xf32>, tensor<?x8xf32>) -> tensor<?x4xf32>
  return
}

// -----

func.func @residual_of_static_rows(%x: tensor<?x4xf32>, %r: tensor<9x4xf32>) {
  // expected-error @below {{'spconv.pointwise' residual is tensor<9x4xf32>; accepted: tensor<?xCxT>}}
  %0 = "spconv.pointwise"(%x, %r) {epilogue = #spconv.epilogue<"none">} : (tensor<?x4xf32>, tensor<9x4xf32>) -> tensor<?x4xf32>
  return
}

// -----

func.func @pointwise_changes_channels(%x: tensor<?x4xf32>) {
  // expected-error @below {{'spconv.pointwise' input is tensor<?x4xf32> but the result is tensor<?x8xf32>}}
  %0 = "spconv.pointwise"(%x) {epilogue = #spconv.epilogue<"none">} : (tensor<?x4xf32>) -> tensor<?x8xf32>
  return
}

// -----

func.func @slope_without_a_name(%x: tensor<?x4xf32>) {
  // expected-error @below {{accepted activations: "none", "relu", {activation = "leaky_relu", negative_slope = 0.01 : f32}, "gelu", "silu"}}
  %0 = "spconv.pointwise"(%x) {epilogue = #spconv.epilogue<{negative_slope = 0.1 : f32}>} : (tensor<?x4xf32>) -> tensor<?x4xf32>
  return
}

// -----

func.func @leaky_relu_without_a_slope(%x: tensor<?x4xf32>) {
  // expected-error @below {{'spconv.pointwise' epilogue is #spconv.epilogue<"leaky_relu">; accepted activations}}
  %0 = "spconv.pointwise"(%x) {epilogue = #spconv.epilogue<"leaky_relu">} : (tensor<?x4xf32>) -> tensor<?x4xf32>
  return
}

// -----

func.func @relu_with_a_slope(%x: tensor<?x4xf32>) {
  // expected-error @below {{accepted activations}}
  %0 = "spconv.pointwise"(%x) {epilogue = #spconv.epilogue<{activation = "relu", negative_slope = 0.1 : f32}>} : (tensor<?x4xf32>) -> tensor<?x4xf32>
  return
}

// -----

func.func @concat_loses_channels(%x: tensor<?x4xf32>) {
  // expected-error @below {{'spconv.concat' the result is tensor<?x4xf32>; accepted: the channels of tensor<?x4xf32> and tensor<?x4xf32>}}
  %0 = "spconv.concat"(%x, %x) : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  return
}

// -----

func.func @concat_of_two_types(%x: tensor<?x4xf32>, %y: tensor<?x4xbf16>) {
  // expected-error @below {{'spconv.concat' tensor<?x4xf32> and tensor<?x4xbf16> become tensor<?x8xf32>; accepted: one element type}}
  %0 = "spconv.concat"(%x, %y) : (tensor<?x4xf32>, tensor<?x4xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @affine_of_other_channels(%x: tensor<?x4xf32>, %s: tensor<8xf32>) {
  // expected-error @below {{'spconv.affine' scale is tensor<8xf32>; accepted: tensor<4xf32>}}
  // expected-error @below {{'spconv.affine' shift is tensor<8xf32>; accepted: tensor<4xf32>}}
  %0 = "spconv.affine"(%x, %s, %s) : (tensor<?x4xf32>, tensor<8xf32>, tensor<8xf32>) -> tensor<?x4xf32>
  return
}

// -----

func.func @norm_of_two_lengths(%v: tensor<4xf32>, %g: tensor<8xf32>) {
  // expected-error @below {{'spconv.norm_scale' vector 1 is tensor<8xf32>; accepted: tensor<4xf32>}}
  %0 = "spconv.norm_scale"(%v, %g) {epsilon = 0.001 : f64} : (tensor<4xf32>, tensor<8xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @shift_of_two_lengths(%s: tensor<4xf32>, %m: tensor<8xf32>) {
  // expected-error @below {{'spconv.norm_shift' vector 1 is tensor<8xf32>; accepted: tensor<4xf32>}}
  %0 = "spconv.norm_shift"(%s, %m) : (tensor<4xf32>, tensor<8xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @bias_of_another_type(%s: tensor<4xf32>, %t: tensor<4xbf16>) {
  // expected-error @below {{'spconv.scale_bias' vector 1 is tensor<4xbf16>; accepted: tensor<4xf32>}}
  %0 = "spconv.scale_bias"(%s, %t) : (tensor<4xf32>, tensor<4xbf16>) -> tensor<4xf32>
  return
}

// -----

func.func @scale_of_other_channels(%w: tensor<8x3x3x3x4xf32>, %s: tensor<4xf32>) {
  // expected-error @below {{'spconv.scale_weight' scale is tensor<4xf32>; accepted: tensor<8xf32>}}
  %0 = "spconv.scale_weight"(%w, %s) : (tensor<8x3x3x3x4xf32>, tensor<4xf32>) -> tensor<8x3x3x3x4xf32>
  return
}

// -----

func.func @scale_changes_the_weight(%w: tensor<8x3x3x3x4xf32>, %s: tensor<8xf32>) {
  // expected-error @below {{'spconv.scale_weight' the weight is tensor<8x3x3x3x4xf32> but the result is tensor<8x3x3x3x4xbf16>}}
  %0 = "spconv.scale_weight"(%w, %s) : (tensor<8x3x3x3x4xf32>, tensor<8xf32>) -> tensor<8x3x3x3x4xbf16>
  return
}

// -----

// Level stages has the residual too.
func.func @gemm(%pairs: !spconv.pairs<27>, %x: tensor<?x16xf32>, %w: !spconv.packed<f32>, %init: tensor<?x32xf32>, %r: tensor<?x16xf32>) {
  // expected-error @below {{'spconv.gemm' the residual is tensor<?x16xf32> but the result is tensor<?x32xf32>}}
  %0 = "spconv.gemm"(%pairs, %x, %w, %init, %r) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<27>, tensor<?x16xf32>, !spconv.packed<f32>, tensor<?x32xf32>, tensor<?x16xf32>) -> tensor<?x32xf32>
  return
}

// -----

func.func @apply(%sum: tensor<?x32xf32>, %r: tensor<?x16xf32>) {
  // expected-error @below {{'spconv.apply_epilogue' the residual is tensor<?x16xf32> but the result is tensor<?x32xf32>}}
  %0 = "spconv.apply_epilogue"(%sum, %r) {epilogue = #spconv.epilogue<"none">} : (tensor<?x32xf32>, tensor<?x16xf32>) -> tensor<?x32xf32>
  return
}
