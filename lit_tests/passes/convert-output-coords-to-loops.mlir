// RUN: %opt %s -p convert-output-coords-to-loops{target=x86-64-v3} --split-input-file | %filecheck %s

// The set of outputs becomes three functions: one sorts the inputs, one makes the keys of outputs, and once their number
// is known another unpacks them. A voxel of a 3x3x3 kernel with stride 2 reaches eight outputs at most, and the keys have
// room for as many, and for the candidate that is written last and not counted.

// CHECK: [[KEYS_ROOM:#.+]] = affine_map<()[s0, s1, s2] -> (s0 * 8 + 1)>
// CHECK: [[OUT_ROOM:#.+]] = affine_map<()[s0, s1, s2, s3] -> (s3 * 4)>
// CHECK-LABEL: func.func @strided
func.func @strided(%coords: !spconv.coords<32>) -> !spconv.coords<32> {
  // CHECK: group = "fine", kernel = @kernels::@sort_keys_k32}
  // CHECK: [[KEYS:%.+]] = "spconv.alloc"() {name = "out_keys", size = [[KEYS_ROOM]]} : () -> !spconv.buffer<i32>
  // CHECK: group = "coords", kernel = @kernels::@output_keys_k32_3x3x3_s2x2x2_p1x1x1_d1x1x1
  // CHECK: [[OUT:%.+]] = "spconv.alloc"() {name = "out_coords", size = [[OUT_ROOM]]} : () -> !spconv.buffer<i32>
  // Those keys pack outputs by a box of theirs; the set that a map reads has keys in the box of the fine voxels.
  // CHECK: {name = "coarse_keys"
  // CHECK: group = "decode", kernel = @kernels::@decode_keys_k32_s2x2x2_p1x1x1}
  // CHECK: builtin.unrealized_conversion_cast [[OUT]] : !spconv.buffer<i32> to !spconv.coords<32 : i64>
  %0 = "spconv.output_coords"(%coords) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, transposed = false, schedule = #spconv.schedule<"sorted_keys", {}>} : (!spconv.coords<32>) -> !spconv.coords<32>
  return %0 : !spconv.coords<32>
}

// -----

// Transposed, inputs are the coarse rows and outputs the fine ones, and every tap reaches an output. 64-bit keys have
// functions of their own.
// CHECK: affine_map<()[s0, s1, s2, s3] -> (s3 * 6 + 1)>
// CHECK: [[FINE_ROOM:#.+]] = affine_map<()[s0, s1, s2] -> (s0 * 4)>
// CHECK-LABEL: func.func @transposed
func.func @transposed(%coords: !spconv.coords<64>) -> !spconv.coords<64> {
  // CHECK: group = "coarse", kernel = @kernels::@sort_keys_k64_s2x2x2_p0x0x0}
  // CHECK: {name = "out_keys", {{.*}}!spconv.buffer<i64>
  // CHECK: kernel = @kernels::@output_keys_k64_1x2x3_s2x2x2_p0x0x0_d1x1x1_transposed
  // CHECK: {name = "out_coords", size = [[FINE_ROOM]]}
  %0 = "spconv.output_coords"(%coords) {kernel_size = array<i64: 1, 2, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>, transposed = true, schedule = #spconv.schedule<"sorted_keys", {}>} : (!spconv.coords<64>) -> !spconv.coords<64>
  return %0 : !spconv.coords<64>
}
