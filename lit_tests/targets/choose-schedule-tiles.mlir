// RUN: %opt %s -p convert-spconv-to-stages,choose-schedule{target=x86-64-v4-amx} | %filecheck %s --check-prefixes=CHECK,TILES
// RUN: %opt %s -p convert-spconv-to-stages,choose-schedule{target=x86-64-v4} | %filecheck %s --check-prefixes=CHECK,VECTORS

// Tile registers multiply bf16, over the same pairs as vectors; f32 they do not.

// CHECK-LABEL: func.func @bf16
func.func @bf16(%coords: !spconv.coords<32>, %features: tensor<?x128xbf16>, %weight: tensor<64x3x3x3x128xbf16>) -> tensor<?x64xf32> {
  // CHECK: "spconv.compact"
  // CHECK-SAME: schedule = #spconv.schedule<"chunk_tap_row", {chunk_rows = 512 : i64}>
  // CHECK: "spconv.gemm"
  // TILES-SAME: "chunk_tiles", {chunk_rows = 512 : i64, pair_k = 2 : i64, tile_k = 32 : i64, tile_m = 32 : i64, tile_n = 32 : i64}
  // VECTORS-SAME: "chunk_stationary"
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x128xbf16>, tensor<64x3x3x3x128xbf16>) -> tensor<?x64xf32>
  return %0 : tensor<?x64xf32>
}

// CHECK-LABEL: func.func @f32
func.func @f32(%coords: !spconv.coords<32>, %features: tensor<?x64xf32>, %weight: tensor<64x3x3x3x64xf32>) -> tensor<?x64xf32> {
  // CHECK: "spconv.gemm"
  // CHECK-SAME: "chunk_stationary"
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x64xf32>, tensor<64x3x3x3x64xf32>) -> tensor<?x64xf32>
  return %0 : tensor<?x64xf32>
}
