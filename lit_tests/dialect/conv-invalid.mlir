// RUN: %opt %s --split-input-file --verify-diagnostics

// Every rule of the convolution op, broken once.

func.func @f(%coords: !spconv.coords<16>, %features: tensor<?x16xf32>, %weight: tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32> {
  // expected-error @below {{'spconv.subm_conv3d' coords have type !spconv.coords<16 : i64>; accepted key widths: (32, 64)}}
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<16>, tensor<?x16xf32>, tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// -----

func.func @f(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32> {
  // expected-error @below {{'spconv.subm_conv3d' dilation is array<i64: 1, 1>; accepted: array<i64: z, y, x>}}
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xf32>, tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// -----

func.func @f(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32> {
  // expected-error @below {{'spconv.subm_conv3d' dilation is [1, 0, 1]; accepted: three numbers of at least 1}}
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 0, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xf32>, tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// -----

func.func @f(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32> {
  // expected-error @below {{epilogue is #spconv.epilogue<"tanh">; accepted activations: "none", "relu", }}
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"tanh">} : (!spconv.coords<32>, tensor<?x16xf32>, tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// -----

// Rows are known only at run time, channels always.
func.func @f(%coords: !spconv.coords<32>, %features: tensor<100x16xf32>, %weight: tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32> {
  // expected-error @below {{features is tensor<100x16xf32>; accepted: tensor<?xCxT>, rows dynamic and channels static}}
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<100x16xf32>, tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// -----

func.func @f(%coords: !spconv.coords<32>, %features: tensor<?x?xf32>, %weight: tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32> {
  // expected-error @below {{features is tensor<?x?xf32>; accepted: tensor<?xCxT>}}
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x?xf32>, tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// -----

func.func @f(%coords: !spconv.coords<32>, %features: tensor<?x16xf64>, %weight: tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32> {
  // expected-error @below {{features is tensor<?x16xf64>; accepted: at least one channel of bf16, f16, f32}}
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xf64>, tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// -----

func.func @f(%coords: !spconv.coords<32>, %features: tensor<?x0xf32>, %weight: tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32> {
  // expected-error @below {{features is tensor<?x0xf32>; accepted: at least one channel of bf16, f16, f32}}
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x0xf32>, tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// -----

func.func @f(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<27x16x32xf32>) -> tensor<?x32xf32> {
  // expected-error @below {{weight is tensor<27x16x32xf32>; accepted: tensor<C_out x kz x ky x kx x C_in x T>, all static}}
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xf32>, tensor<27x16x32xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// -----

func.func @f(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<32x3x3x3x16xi8>) -> tensor<?x32xf32> {
  // expected-error @below {{weight is tensor<32x3x3x3x16xi8>; accepted: no empty axis, elements of bf16, f16, f32}}
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xf32>, tensor<32x3x3x3x16xi8>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// -----

func.func @f(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<32x3x2x3x16xf32>) -> tensor<?x32xf32> {
  // expected-error @below {{kernel is [3, 2, 3]; a submanifold kernel is odd along every axis}}
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xf32>, tensor<32x3x2x3x16xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// -----

func.func @f(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<32x3x3x3x16xf32>) -> tensor<100x32xf32> {
  // expected-error @below {{result is tensor<100x32xf32>; accepted: tensor<?xCxT>}}
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xf32>, tensor<32x3x3x3x16xf32>) -> tensor<100x32xf32>
  return %0 : tensor<100x32xf32>
}

// -----

func.func @f(%coords: !spconv.coords<32>, %features: tensor<?x8xf32>, %weight: tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32> {
  // expected-error @below {{features have 8 channels but the weight takes 16}}
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x8xf32>, tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// -----

func.func @f(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<32x3x3x3x16xf32>) -> tensor<?x64xf32> {
  // expected-error @below {{the result has 64 channels but the weight gives 32}}
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xf32>, tensor<32x3x3x3x16xf32>) -> tensor<?x64xf32>
  return %0 : tensor<?x64xf32>
}

// -----

func.func @f(%coords: !spconv.coords<32>, %features: tensor<?x16xbf16>, %weight: tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32> {
  // expected-error @below {{features are bf16 but the weight is f32}}
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xbf16>, tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// -----

func.func @f(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<32x3x3x3x16xf32>, %bias: tensor<16xf32>) -> tensor<?x32xf32> {
  // expected-error @below {{bias is tensor<16xf32>; accepted: tensor<32xf32>}}
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight, %bias) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xf32>, tensor<32x3x3x3x16xf32>, tensor<16xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// -----

func.func @f(%coords: !spconv.coords<32>, %features: tensor<?x16x1xf32>, %weight: tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32> {
  // expected-error @below {{features is tensor<?x16x1xf32>; accepted: tensor<?xCxT>}}
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16x1xf32>, tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// -----

func.func @f(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<?x3x3x3x16xf32>) -> tensor<?x32xf32> {
  // expected-error @below {{weight is tensor<?x3x3x3x16xf32>; accepted: tensor<C_out x kz x ky x kx x C_in x T>, all static}}
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xf32>, tensor<?x3x3x3x16xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// -----

func.func @f(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<32x3x3x3x0xf32>) -> tensor<?x32xf32> {
  // expected-error @below {{weight is tensor<32x3x3x3x0xf32>; accepted: no empty axis}}
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x16xf32>, tensor<32x3x3x3x0xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// -----

// The rules above build on the shape of the op, which IRDL checks first.
func.func @f(%coords: tensor<?x4xi32>, %features: tensor<?x16xf32>, %weight: tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32> {
  // expected-error @below {{expected base type 'spconv.coords' but got 'builtin.tensor'}}
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (tensor<?x4xi32>, tensor<?x16xf32>, tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}

// -----

func.func @f(%coords: !spconv.coords<32>, %features: tensor<?x16xf32>, %weight: tensor<32x3x3x3x16xf32>) {
  // expected-error @below {{attribute "epilogue" is expected but not provided}}
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>, tensor<?x16xf32>, tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32>
  return
}

// -----

func.func @f(%coords: !spconv.coords<32>, %features: tensor<*xf32>, %weight: tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32> {
  // expected-error @below {{expected base type 'builtin.tensor' but got 'builtin.unranked_tensor'}}
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<*xf32>, tensor<32x3x3x3x16xf32>) -> tensor<?x32xf32>
  return %0 : tensor<?x32xf32>
}
