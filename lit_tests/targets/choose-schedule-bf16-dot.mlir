// RUN: %opt %s -p convert-spconv-to-stages,choose-schedule{target=x86-64-v4-bf16} | %filecheck %s --check-prefixes=CHECK,DOT,WIDE
// RUN: %opt %s -p convert-spconv-to-stages,choose-schedule{target=x86-64-v4} | %filecheck %s --check-prefixes=CHECK,NODOT,WIDE
// RUN: %opt %s -p convert-spconv-to-stages,choose-schedule{target=x86-64-v3} | %filecheck %s --check-prefixes=CHECK,NODOT,NARROW

// A dot product of bf16 pairs wants the weights of two input channels side by side; wider vectors want wider
// panels. DOT and NODOT are with and without that instruction, WIDE and NARROW vectors of 16 and of 8 elements.

// CHECK-LABEL: func.func @bf16
func.func @bf16(%coords: !spconv.coords<32>, %features: tensor<?x64xbf16>, %weight: tensor<64x3x3x3x64xbf16>) -> tensor<?x64xf32> {
  // CHECK: "spconv.pack_weight"
  // DOT-SAME: pair_k = 2 : i64
  // NODOT-SAME: pair_k = 1 : i64
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x64xbf16>, tensor<64x3x3x3x64xbf16>) -> tensor<?x64xf32>
  return %0 : tensor<?x64xf32>
}

// CHECK-LABEL: func.func @f32
func.func @f32(%coords: !spconv.coords<32>, %features: tensor<?x64xf32>, %weight: tensor<64x3x3x3x64xf32>) -> tensor<?x64xf32> {
  // CHECK: "spconv.pack_weight"
  // DOT-SAME: pair_k = 1 : i64
  // NODOT-SAME: pair_k = 1 : i64
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x64xf32>, tensor<64x3x3x3x64xf32>) -> tensor<?x64xf32>
  return %0 : tensor<?x64xf32>
}

// Few output channels: one vector is enough.
// CHECK-LABEL: func.func @few_channels
func.func @few_channels(%coords: !spconv.coords<32>, %features: tensor<?x64xf32>, %weight: tensor<6x3x3x3x64xf32>) -> tensor<?x6xf32> {
  // CHECK: "spconv.pack_weight"
  // WIDE-SAME: tile_n = 16 : i64
  // NARROW-SAME: tile_n = 8 : i64
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x64xf32>, tensor<6x3x3x3x64xf32>) -> tensor<?x6xf32>
  return %0 : tensor<?x6xf32>
}
