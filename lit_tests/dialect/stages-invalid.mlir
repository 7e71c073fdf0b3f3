// RUN: %opt %s --split-input-file --verify-diagnostics

// Every rule of the ops of level stages, broken once. First the map.

func.func @f(%coords: !spconv.coords<48>) {
  // expected-error @below {{'spconv.map' coords have type !spconv.coords<48 : i64>; accepted key widths: (32, 64)}}
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<48>) -> !spconv.map<27>
  return
}

// -----

func.func @f(%coords: !spconv.coords<32>) {
  // expected-error @below {{'spconv.map' dilation is [0, 1, 1]; accepted: three numbers of at least 1}}
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 0, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<27>
  return
}

// -----

func.func @f(%coords: !spconv.coords<32>) {
  // expected-error @below {{'spconv.map' kernel_size is [3, 3, 3]; accepted: array<i64: z, y, x>}}
  %0 = "spconv.map"(%coords) {kernel_size = [3, 3, 3], dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<27>
  return
}

// -----

func.func @f(%coords: !spconv.coords<32>) {
  // expected-error @below {{'spconv.map' kernel_size is [2, 3, 3]; a submanifold kernel is odd along every axis}}
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 2, 3, 3>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<18>
  return
}

// -----

func.func @f(%coords: !spconv.coords<32>) {
  // expected-error @below {{'spconv.map' kernel [3, 3, 3] has 27 taps but the map has 26}}
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<26>
  return
}

// -----

func.func @f(%coords: !spconv.coords<32>) {
  // expected-error @below {{attribute "kernel_size" is expected but not provided}}
  %0 = "spconv.map"(%coords) {dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<27>
  return
}

// -----

// The schedule, which every op of this level may carry.
func.func @f(%map: !spconv.map<27>) {
  // expected-error @below {{'spconv.compact' schedule is "pairs_m16"; accepted: #spconv.schedule<"name", {parameter = n : i64}>}}
  %0 = "spconv.compact"(%map) {schedule = "pairs_m16"} : (!spconv.map<27>) -> !spconv.pairs<27>
  return
}

// -----

func.func @f(%map: !spconv.map<27>) {
  // expected-error @below {{'spconv.compact' schedule parameter tile_m is "16"; accepted: an integer}}
  %0 = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = "16"}>} : (!spconv.map<27>) -> !spconv.pairs<27>
  return
}

// -----

func.func @f(%coords: !spconv.coords<32>) {
  // expected-error @below {{'spconv.map' schedule is 1 : i64; accepted:}}
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = 1} : (!spconv.coords<32>) -> !spconv.map<27>
  return
}

// -----

func.func @f(%weight: tensor<32x3x3x3x16xf32>) {
  // expected-error @below {{'spconv.pack_weight' schedule is 1 : i64; accepted:}}
  %0 = "spconv.pack_weight"(%weight) {schedule = 1} : (tensor<32x3x3x3x16xf32>) -> !spconv.packed<f32>
  return
}

// -----

func.func @f(%coords: !spconv.coords<32>) {
  // expected-error @below {{'spconv.fill' schedule is 1 : i64; accepted:}}
  %0 = "spconv.fill"(%coords) {schedule = 1} : (!spconv.coords<32>) -> tensor<?x32xf32>
  return
}

// -----

func.func @f(%pairs: !spconv.pairs<27>, %features: tensor<?x16xf32>, %weight: !spconv.packed<f32>, %init: tensor<?x32xf32>) {
  // expected-error @below {{'spconv.gemm' schedule is 1 : i64; accepted:}}
  %0 = "spconv.gemm"(%pairs, %features, %weight, %init) {epilogue = #spconv.epilogue<"none">, schedule = 1} : (!spconv.pairs<27>, tensor<?x16xf32>, !spconv.packed<f32>, tensor<?x32xf32>) -> tensor<?x32xf32>
  return
}

// -----

func.func @f(%sum: tensor<?x32xf32>) {
  // expected-error @below {{'spconv.apply_epilogue' schedule is 1 : i64; accepted:}}
  %0 = "spconv.apply_epilogue"(%sum) {epilogue = #spconv.epilogue<"none">, schedule = 1} : (tensor<?x32xf32>) -> tensor<?x32xf32>
  return
}

// -----

// Pairs.
func.func @f(%map: !spconv.map<27>) {
  // expected-error @below {{'spconv.compact' the map is !spconv.map<27 : i64> but the pairs are !spconv.pairs<9 : i64>}}
  %0 = "spconv.compact"(%map) : (!spconv.map<27>) -> !spconv.pairs<9>
  return
}

// -----

func.func @f(%coords: !spconv.coords<32>) {
  // expected-error @below {{expected base type 'spconv.map' but got 'spconv.coords'}}
  %0 = "spconv.compact"(%coords) : (!spconv.coords<32>) -> !spconv.pairs<27>
  return
}

// -----

// Packed weights.
func.func @f(%weight: tensor<32x27x16xf32>) {
  // expected-error @below {{'spconv.pack_weight' weight is tensor<32x27x16xf32>; accepted: tensor<C_out x kz x ky x kx x C_in x T>, all static}}
  %0 = "spconv.pack_weight"(%weight) : (tensor<32x27x16xf32>) -> !spconv.packed<f32>
  return
}

// -----

func.func @f(%weight: tensor<32x3x3x3x16xbf16>) {
  // expected-error @below {{'spconv.pack_weight' the weight is bf16 but is packed as f32}}
  %0 = "spconv.pack_weight"(%weight) : (tensor<32x3x3x3x16xbf16>) -> !spconv.packed<f32>
  return
}

// -----

// Initial values.
func.func @f(%coords: !spconv.coords<16>) {
  // expected-error @below {{'spconv.fill' coords have type !spconv.coords<16 : i64>; accepted key widths: (32, 64)}}
  %0 = "spconv.fill"(%coords) : (!spconv.coords<16>) -> tensor<?x32xf32>
  return
}

// -----

func.func @f(%coords: !spconv.coords<32>) {
  // expected-error @below {{'spconv.fill' result is tensor<100x32xf32>; accepted: tensor<?xCxT>, rows dynamic and channels static}}
  %0 = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<100x32xf32>
  return
}

// -----

func.func @f(%coords: !spconv.coords<32>) {
  // expected-error @below {{'spconv.fill' the result is tensor<?x32xbf16>; accepted: f32, the type of every sum}}
  %0 = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x32xbf16>
  return
}

// -----

func.func @f(%coords: !spconv.coords<32>, %bias: tensor<32xbf16>) {
  // expected-error @below {{'spconv.fill' bias is tensor<32xbf16>; accepted: tensor<32xf32>}}
  %0 = "spconv.fill"(%coords, %bias) : (!spconv.coords<32>, tensor<32xbf16>) -> tensor<?x32xf32>
  return
}

// -----

// The gemm.
func.func @f(%pairs: !spconv.pairs<27>, %features: tensor<?x16xf32>, %weight: !spconv.packed<f32>, %init: tensor<?x32xf32>) {
  // expected-error @below {{'spconv.gemm' epilogue is #spconv.epilogue<"tanh">; accepted activations: "none", "relu", }}
  %0 = "spconv.gemm"(%pairs, %features, %weight, %init) {epilogue = #spconv.epilogue<"tanh">} : (!spconv.pairs<27>, tensor<?x16xf32>, !spconv.packed<f32>, tensor<?x32xf32>) -> tensor<?x32xf32>
  return
}

// -----

func.func @f(%pairs: !spconv.pairs<27>, %features: tensor<4x16xf32>, %weight: !spconv.packed<f32>, %init: tensor<?x32xf32>) {
  // expected-error @below {{'spconv.gemm' features is tensor<4x16xf32>; accepted: tensor<?xCxT>}}
  %0 = "spconv.gemm"(%pairs, %features, %weight, %init) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<27>, tensor<4x16xf32>, !spconv.packed<f32>, tensor<?x32xf32>) -> tensor<?x32xf32>
  return
}

// -----

func.func @f(%pairs: !spconv.pairs<27>, %features: tensor<?x16xf32>, %weight: !spconv.packed<f32>, %init: tensor<?x?xf32>) {
  // expected-error @below {{'spconv.gemm' init is tensor<?x?xf32>; accepted: tensor<?xCxT>}}
  %0 = "spconv.gemm"(%pairs, %features, %weight, %init) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<27>, tensor<?x16xf32>, !spconv.packed<f32>, tensor<?x?xf32>) -> tensor<?x32xf32>
  return
}

// -----

func.func @f(%pairs: !spconv.pairs<27>, %features: tensor<?x16xf32>, %weight: !spconv.packed<f32>, %init: tensor<?x32xf32>) {
  // expected-error @below {{'spconv.gemm' result is tensor<?x32xi32>; accepted: at least one channel of bf16, f16, f32}}
  %0 = "spconv.gemm"(%pairs, %features, %weight, %init) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<27>, tensor<?x16xf32>, !spconv.packed<f32>, tensor<?x32xf32>) -> tensor<?x32xi32>
  return
}

// -----

func.func @f(%pairs: !spconv.pairs<27>, %features: tensor<?x16xf32>, %weight: !spconv.packed<f32>, %init: tensor<?x32xf16>) {
  // expected-error @below {{'spconv.gemm' init is tensor<?x32xf16>; accepted: f32, the type of every sum}}
  %0 = "spconv.gemm"(%pairs, %features, %weight, %init) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<27>, tensor<?x16xf32>, !spconv.packed<f32>, tensor<?x32xf16>) -> tensor<?x32xf32>
  return
}

// -----

func.func @f(%pairs: !spconv.pairs<27>, %features: tensor<?x16xf32>, %weight: !spconv.packed<f32>, %init: tensor<?x32xf32>) {
  // expected-error @below {{'spconv.gemm' init is tensor<?x32xf32> but the result is tensor<?x64xf32>}}
  %0 = "spconv.gemm"(%pairs, %features, %weight, %init) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<27>, tensor<?x16xf32>, !spconv.packed<f32>, tensor<?x32xf32>) -> tensor<?x64xf32>
  return
}

// -----

func.func @f(%pairs: !spconv.pairs<27>, %features: tensor<?x16xbf16>, %weight: !spconv.packed<f32>, %init: tensor<?x32xf32>) {
  // expected-error @below {{'spconv.gemm' features are bf16 but the weight is !spconv.packed<f32>}}
  %0 = "spconv.gemm"(%pairs, %features, %weight, %init) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<27>, tensor<?x16xbf16>, !spconv.packed<f32>, tensor<?x32xf32>) -> tensor<?x32xf32>
  return
}

// -----

// The epilogue as an op.
func.func @f(%sum: tensor<?x32xf32>) {
  // expected-error @below {{'spconv.apply_epilogue' epilogue is #spconv.epilogue<"tanh">; accepted activations: "none", "relu", }}
  %0 = "spconv.apply_epilogue"(%sum) {epilogue = #spconv.epilogue<"tanh">} : (tensor<?x32xf32>) -> tensor<?x32xf32>
  return
}

// -----

func.func @f(%sum: tensor<8x32xf32>) {
  // expected-error @below {{'spconv.apply_epilogue' input is tensor<8x32xf32>; accepted: tensor<?xCxT>}}
  %0 = "spconv.apply_epilogue"(%sum) {epilogue = #spconv.epilogue<"none">} : (tensor<8x32xf32>) -> tensor<?x32xf32>
  return
}

// -----

func.func @f(%sum: tensor<?x32xf32>) {
  // expected-error @below {{'spconv.apply_epilogue' input is tensor<?x32xf32> but the result is tensor<?x16xf32>}}
  %0 = "spconv.apply_epilogue"(%sum) {epilogue = #spconv.epilogue<"none">} : (tensor<?x32xf32>) -> tensor<?x16xf32>
  return
}

// -----

func.func @f(%map: !spconv.map<27>) {
  // expected-error @below {{'spconv.compact' schedule parameter chunk_rows is 0; accepted: 1 to 65536}}
  %0 = "spconv.compact"(%map) {schedule = #spconv.schedule<"chunk_tap_row", {chunk_rows = 0 : i64}>} : (!spconv.map<27>) -> !spconv.pairs<27>
  return
}

// -----

func.func @f(%coords: !spconv.coords<32>) {
  // expected-error @below {{'spconv.map' dilation is [9223372036854775807, 1, 1]; accepted: at most 2147483647 along an axis}}
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 9223372036854775807, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<27>
  return
}
