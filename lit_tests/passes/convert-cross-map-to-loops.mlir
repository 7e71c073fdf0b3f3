// RUN: %opt %s -p convert-cross-map-to-loops{target=x86-64-v3} --split-input-file | %filecheck %s

// Both sets are sorted by keys of one box: the fine one by the function that submanifold maps use, the coarse one by
// the fine voxel that its first tap meets. Who reads the map searches both: no table comes with it.

// CHECK-LABEL: func.func @strided
// CHECK-SAME: message = "voxels of one map"
func.func @strided(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>) -> !spconv.cross_map<27> {
  // CHECK: [[KEYS:%.+]] = "spconv.alloc"() {name = "keys"
  // CHECK: group = "fine", kernel = @kernels::@sort_keys_k32}
  // CHECK: [[COARSE:%.+]] = "spconv.alloc"() {name = "coarse_keys"
  // CHECK: group = "coarse", kernel = @kernels::@sort_keys_k32_s2x2x2_p1x1x1}
  // CHECK-NOT: "spconv.launch"
  // CHECK: builtin.unrealized_conversion_cast [[KEYS]], {{%.+}}, {{%.+}}, [[COARSE]], {{%[^ ,]+}}, {{%[^ ,]+}} :
  // CHECK-SAME: key_width = 32 : i64, padding = array<i64: 1, 1, 1>, stride = array<i64: 2, 2, 2>
  %0 = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"sorted_keys", {}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  return %0 : !spconv.cross_map<27>
}

// -----

// Without stride and padding both sets are sorted by one function.
// CHECK-LABEL: func.func @dilated
func.func @dilated(%fine: !spconv.coords<64>, %coarse: !spconv.coords<64>) -> !spconv.cross_map<4> {
  // CHECK-COUNT-2: kernel = @kernels::@sort_keys_k64}
  %0 = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 1, 2, 2>, stride = array<i64: 1, 1, 1>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 2>, schedule = #spconv.schedule<"sorted_keys", {}>} : (!spconv.coords<64>, !spconv.coords<64>) -> !spconv.cross_map<4>
  return %0 : !spconv.cross_map<4>
}
// CHECK: llvm.func @sort_keys_k64
// CHECK-NOT: llvm.func @sort_keys
