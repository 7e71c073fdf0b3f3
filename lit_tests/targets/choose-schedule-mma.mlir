// RUN: %opt %s -p 'convert-spconv-to-stages,choose-schedule{target=gfx950 schedule=pairs_m16}' | %filecheck %s
// RUN: %opt %s -p convert-spconv-to-stages,choose-schedule{target=gfx950} | %filecheck %s --check-prefix=OWNER

// By itself the cost model takes the schedule that owns its rows; its stages of K are whole cache lines of 128 bytes.

// OWNER: "spconv.compact"
// OWNER-SAME: #spconv.schedule<"sorted_tiles", {block_rows = 256 : i64, items = 4 : i64}>
// OWNER: "spconv.pack_weight"
// OWNER-SAME: tile_k = 32 : i64
// OWNER: "spconv.gemm"
// OWNER-SAME: #spconv.schedule<"output_stationary", {across = 2 : i64, block_rows = 256 : i64

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
