// RUN: %opt %s -p convert-cross-map-to-loops{target=x86-64-v3},convert-cross-compact-to-loops{target=x86-64-v3} --split-input-file | %filecheck %s

// One map serves both directions. The pairs of a convolution are ordered by chunks of coarse rows, those of its inverse
// by chunks of fine rows; the casts say which rows a gemm over them has. A fine voxel meets one coarse voxel at most, as
// kernel and stride are both 2, and the list has room for that. What coarse rows read is searched chunk by chunk; what
// fine rows read is looked for in a table of all coarse rows, two taps along x to an entry.

// CHECK: [[ROOM:#.+]] = affine_map<()[s0, s1, s2] -> (s0)>
// CHECK: [[TABLE_ROOM:#.+]] = affine_map<()[s0, s1, s2{{.*}}] -> (s{{[0-9]}} * 4 + 16)>
// CHECK-LABEL: func.func @both
func.func @both(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>) -> (!spconv.pairs<8>, !spconv.pairs<8>) {
  // CHECK: [[ORIGIN:%.+]] = "spconv.alloc"() {name = "origin", size
  // CHECK: [[COARSE_ORIGIN:%.+]] = "spconv.alloc"() {name = "coarse_origin", size
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 2, 2, 2>, stride = array<i64: 2, 2, 2>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"sorted_keys", {}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<8>
  // CHECK: "spconv.alloc"() {grows, name = "pairs", size = [[ROOM]]}
  // CHECK: group = "pairs", kernel = @kernels::@cross_pairs_to_coarse_k32_2x2x2_d1x1x1_r512}
  // CHECK: builtin.unrealized_conversion_cast {{%.+}}, {{%.+}}, {{%.+}}, [[COARSE_ORIGIN]] :
  // CHECK-SAME: {rows = "coarse_rows"}
  %0 = "spconv.cross_compact"(%map) {transposed = false, schedule = #spconv.schedule<"chunk_tap_row", {chunk_rows = 512 : i64}>} : (!spconv.cross_map<8>) -> !spconv.pairs<8>
  // CHECK: "spconv.alloc"() {name = "cross_table", size = [[TABLE_ROOM]]}
  // CHECK: group = "map", kernel = @kernels::@cross_table_k32_2x2x2_d1x1x1}
  // CHECK: group = "pairs", kernel = @kernels::@cross_pairs_to_fine_k32_2x2x2_d1x1x1_r512}
  // CHECK: builtin.unrealized_conversion_cast {{%.+}}, {{%.+}}, {{%.+}}, [[ORIGIN]] :
  // CHECK-SAME: {rows = "rows"}
  %1 = "spconv.cross_compact"(%map) {transposed = true, schedule = #spconv.schedule<"chunk_tap_row", {chunk_rows = 512 : i64}>} : (!spconv.cross_map<8>) -> !spconv.pairs<8>
  return %0, %1 : !spconv.pairs<8>, !spconv.pairs<8>
}

// -----

// Dilated taps along x do not follow each other: each has an entry of its own.
// CHECK: affine_map<()[s0, s1, s2{{.*}}] -> (s{{[0-9]}} * 4 + 16)>
// CHECK-LABEL: func.func @dilated
func.func @dilated(%fine: !spconv.coords<64>, %coarse: !spconv.coords<64>) -> !spconv.pairs<4> {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 1, 2, 2>, stride = array<i64: 1, 1, 1>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 2>, schedule = #spconv.schedule<"sorted_keys", {}>} : (!spconv.coords<64>, !spconv.coords<64>) -> !spconv.cross_map<4>
  // CHECK: kernel = @kernels::@cross_table_k64_1x2x2_d1x1x2}
  %0 = "spconv.cross_compact"(%map) {transposed = true, schedule = #spconv.schedule<"chunk_tap_row", {chunk_rows = 512 : i64}>} : (!spconv.cross_map<4>) -> !spconv.pairs<4>
  return %0 : !spconv.pairs<4>
}
