// RUN: %opt %s -p convert-cross-map-to-gpu{target=gfx950} --split-input-file | %filecheck %s

// The coarse set becomes a grid in two launches; the fine one is only carried along. What 32-bit offsets must reach is
// demanded of the caller.

// CHECK-LABEL: func.func @strided
// CHECK-SAME: {spconv.name = "coords_count"}
// CHECK-SAME: {spconv.name = "out_coords_count"}
// CHECK-SAME: message = "bytes of the coarse grid, with 32-bit keys"
func.func @strided(%fine: !spconv.coords<32> {spconv.name = "coords"}, %coarse: !spconv.coords<32> {spconv.name = "out_coords"}) -> !spconv.cross_map<27> {
  // CHECK: [[GRID:%.+]] = "spconv.alloc"() {name = "coarse_grid"
  // CHECK: group = "map", kernel = @kernels::@fill_coarse_k32_b256}
  // CHECK: group = "map", kernel = @kernels::@scatter_coarse_k32_b256}
  // CHECK: builtin.unrealized_conversion_cast {{.+}}, %arg2, {{.+}}, %arg3, [[GRID]] :
  // CHECK-SAME: key_width = 32 : i64, padding = array<i64: 1, 1, 1>, stride = array<i64: 2, 2, 2>
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_grid", {block = 256 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  return %map : !spconv.cross_map<27>
}

// -----

// A grid of any size, which 64-bit keys address.
// CHECK-LABEL: func.func @wide
// CHECK-NOT: coarse grid, with
func.func @wide(%fine: !spconv.coords<64> {spconv.name = "a"}, %coarse: !spconv.coords<64> {spconv.name = "b"}) -> !spconv.cross_map<27> {
  // CHECK: kernel = @kernels::@scatter_coarse_k64_b256}
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_grid", {block = 256 : i64}>} : (!spconv.coords<64>, !spconv.coords<64>) -> !spconv.cross_map<27>
  return %map : !spconv.cross_map<27>
}

// -----

// A box that is too large for a grid: the coarse set's keys are sorted, in as many passes as keys reach.
// CHECK: [[LAST:#.+]] = affine_map<()[s0, s1, s2, s3] -> (s3 ceildiv 1024, (s1 floordiv 16777216) * 268435456)>
// CHECK-LABEL: func.func @keys
// CHECK-SAME: message = "cells of the box, with 32-bit keys"
func.func @keys(%fine: !spconv.coords<32> {spconv.name = "a"}, %coarse: !spconv.coords<32> {spconv.name = "b"}) -> !spconv.cross_map<27> {
  // CHECK: [[RECORDS:%.+]] = "spconv.alloc"() {name = "coarse_records"
  // CHECK: [[STATE:%.+]] = "spconv.alloc"() {name = "coarse_state"
  // CHECK: kernel = @kernels::@clear_keys_k32_i4_b256}
  // CHECK: kernel = @kernels::@coarse_records_k32_i4}
  // CHECK-COUNT-3: kernel = @kernels::@sort_digit_k32_i4}
  // CHECK: grid = {{.}}[[LAST]]{{.}}, group = "map", kernel = @kernels::@sort_digit_k32_i4}
  // CHECK: builtin.unrealized_conversion_cast {{.+}}, [[RECORDS]], [[STATE]] :
  // CHECK-SAME: items = 4 : i64
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_keys", {block = 256 : i64, items = 4 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  return %map : !spconv.cross_map<27>
}

// -----

// A coarse set that ascends is searched itself: nothing is launched.
// CHECK-LABEL: func.func @ascending
// CHECK-SAME: message = "cells of the box, with 32-bit keys"
func.func @ascending(%fine: !spconv.coords<32> {spconv.name = "a"}, %coarse: !spconv.coords<32> {spconv.name = "b"}) -> !spconv.cross_map<27> {
  // CHECK-NOT: spconv.launch
  // CHECK: builtin.unrealized_conversion_cast {{.+}}, %arg2, {{.+}}, %arg3 : !spconv.buffer
  // CHECK-SAME: to !spconv.cross_map<27 : i64>
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_ascending", {}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  return %map : !spconv.cross_map<27>
}
