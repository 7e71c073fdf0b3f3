// RUN: %opt %s -p convert-weight-to-gpu{target=gfx950} --split-input-file | %filecheck %s

// Weights are laid out in panels: C_in padded to whole steps, C_out to whole slices of the gemm.

// 9 taps · 64 channels · 64 channels, nothing to pad: every run is one load of 16 bytes.
// CHECK: [[SIZE:#.+]] = affine_map<()[s0, s1, s2] -> (36864)>
// CHECK-LABEL: func.func @exact
func.func @exact(%weight: tensor<64x1x3x3x64xbf16>) -> !spconv.packed<bf16> {
  // CHECK: "spconv.alloc"() {name = "packed", size = [[SIZE]]} : () -> !spconv.buffer<bf16>
  // CHECK: "spconv.launch"
  // CHECK-SAME: group = "weights", kernel = @kernels::@pack_weight_bf16_t9_64x64_n64x16_k32x8
  // CHECK-NOT: "spconv.pack_weight"
  %0 = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 64, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<64x1x3x3x64xbf16>) -> !spconv.packed<bf16>
  return %0 : !spconv.packed<bf16>
}
// CHECK: gpu.func @pack_weight
// CHECK: "spconv.tile_load"
// CHECK-SAME: vector<8xbf16>
// CHECK-NOT: "spconv.tile_load"
// CHECK: "spconv.tile_store"
// CHECK-SAME: vector<8xbf16>

// -----

// 6 channels are 12 bytes: runs are read two at a time, and beyond the last channel not at all.
// CHECK: [[SIZE:#.+]] = affine_map<()[s0, s1, s2] -> (13824)>
// CHECK-LABEL: func.func @padded
func.func @padded(%weight: tensor<40x1x3x3x6xbf16>) -> !spconv.packed<bf16> {
  // CHECK: "spconv.alloc"() {name = "packed", size = [[SIZE]]}
  %0 = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 48, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<40x1x3x3x6xbf16>) -> !spconv.packed<bf16>
  return %0 : !spconv.packed<bf16>
}
// CHECK: gpu.func @pack_weight
// CHECK: [[GUARDED:%.+]] = "spconv.tile_bound"
// CHECK: arith.select
// CHECK: "spconv.tile_load"([[GUARDED]]
// CHECK-SAME: vector<2xbf16>
// CHECK: "spconv.tile_load"([[GUARDED]]
// CHECK: "spconv.tile_load"([[GUARDED]]
// CHECK-NOT: "spconv.tile_load"
// CHECK: vector.from_elements
