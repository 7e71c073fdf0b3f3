// RUN: %opt %s -p convert-spconv-to-stages,choose-schedule{target=gfx950} | %filecheck %s

// Rows and columns of a tile are those of the matrix instruction for the dtype; padded input channels are whole
// steps of it.

// CHECK-LABEL: func.func @bf16
func.func @bf16(%coords: !spconv.coords<32>, %features: tensor<?x64xbf16>, %weight: tensor<64x3x3x3x64xbf16>) -> tensor<?x64xf32> {
  // CHECK: "spconv.pack_weight"
  // CHECK-SAME: mma_n = 16 : i64
  // CHECK-SAME: tile_k = 32 : i64
  // CHECK: "spconv.gemm"
  // CHECK-SAME: tile_m = 16 : i64
  %0 = "spconv.subm_conv3d"(%coords, %features, %weight) {dilation = array<i64: 1, 1, 1>, epilogue = #spconv.epilogue<"none">} : (!spconv.coords<32>, tensor<?x64xbf16>, tensor<64x3x3x3x64xbf16>) -> tensor<?x64xf32>
  return %0 : tensor<?x64xf32>
}
