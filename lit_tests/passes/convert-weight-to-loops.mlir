// RUN: %opt %s -p convert-weight-to-loops{target=x86-64-v3} --split-input-file | %filecheck %s

// 20 → 24 channels, one panel of 24 columns for each of 27 taps: 27 · 20 · 24 floats. Without a bf16 dot product the
// packed weights are f32, so that the gemm widens no weight.

// CHECK: [[SIZE:#.+]] = affine_map<()[s0, s1, s2] -> (12960)>
// CHECK-LABEL: func.func @widened
func.func @widened(%weight: tensor<24x3x3x3x20xbf16>) -> !spconv.packed<bf16> {
  // CHECK: [[PACKED:%.+]] = "spconv.alloc"() {{{.*}}size = [[SIZE]]} : () -> !spconv.buffer<f32>
  // CHECK: "spconv.launch"
  // CHECK-SAME: group = "weights", kernel = @kernels::@pack_panels_bf16_t27_20x24_n24_p1
  // CHECK: builtin.unrealized_conversion_cast [[PACKED]]
  %0 = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"row_panels", {pair_k = 1 : i64, tile_n = 24 : i64}>} : (tensor<24x3x3x3x20xbf16>) -> !spconv.packed<bf16>
  return %0 : !spconv.packed<bf16>
}

// -----

// Pairs of channels side by side, for an instruction that multiplies bf16 pairs: they stay bf16.
// CHECK-LABEL: func.func @paired
func.func @paired(%weight: tensor<32x1x1x1x3xbf16>) -> !spconv.packed<bf16> {
  // CHECK: "spconv.alloc"()
  // CHECK-SAME: !spconv.buffer<bf16>
  // CHECK: kernel = @kernels::@pack_panels_bf16_t1_3x32_n32_p2
  %0 = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"row_panels", {pair_k = 2 : i64, tile_n = 32 : i64}>} : (tensor<32x1x1x1x3xbf16>) -> !spconv.packed<bf16>
  return %0 : !spconv.packed<bf16>
}

// -----

// For tile registers the 40 channels are padded to two tiles of 32: 8 · 64 · 32 numbers.
// CHECK: [[SIZE:#.+]] = affine_map<()[s0, s1, s2] -> (16384)>
// CHECK-LABEL: func.func @tiled
func.func @tiled(%weight: tensor<20x2x2x2x40xbf16>) -> !spconv.packed<bf16> {
  // CHECK: "spconv.alloc"() {{{.*}}size = [[SIZE]]} : () -> !spconv.buffer<bf16>
  // CHECK: kernel = @kernels::@pack_panels_bf16_t8_40x20_n32_p2_k32
  %0 = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"row_panels", {pair_k = 2 : i64, tile_k = 32 : i64, tile_n = 32 : i64}>} : (tensor<20x2x2x2x40xbf16>) -> !spconv.packed<bf16>
  return %0 : !spconv.packed<bf16>
}
