// RUN: %opt %s -p convert-map-to-loops{target=x86-64-v3} --split-input-file | %filecheck %s

// A map becomes sorted keys; the cast that stands for it keeps the geometry for the search. Behind the last key is
// room for what a vector comparison reads beyond it.

// CHECK: [[ROOM:#.+]] = affine_map<()[s0, s1, s2] -> (s0 + 16)>
// CHECK-LABEL: func.func @narrow
func.func @narrow(%coords: !spconv.coords<32>) -> !spconv.map<27> {
  // CHECK: [[KEYS:%.+]] = "spconv.alloc"() {name = "keys", size = [[ROOM]]} : () -> !spconv.buffer<i32>
  // CHECK: "spconv.launch"
  // CHECK-SAME: group = "pairs", kernel = @kernels::@sort_keys_k32
  // CHECK: builtin.unrealized_conversion_cast [[KEYS]]
  // CHECK-SAME: to !spconv.map<27 : i64>
  // CHECK-SAME: dilation = array<i64: 1, 1, 1>, kernel_size = array<i64: 3, 3, 3>, key_width = 32 : i64
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"sorted_keys", {}>} : (!spconv.coords<32>) -> !spconv.map<27>
  return %0 : !spconv.map<27>
}
// What the driver asks of arrays is defined beside the kernels.
// CHECK: llvm.func @coords_bounds
// CHECK: llvm.func @fingerprint
// CHECK: llvm.func @sort_keys_k32

// -----

// 64-bit keys are sorted as 64-bit keys, by a function of their own.
// CHECK-LABEL: func.func @wide
func.func @wide(%coords: !spconv.coords<64>) -> !spconv.map<1> {
  // CHECK: {name = "keys", {{.*}}!spconv.buffer<i64>
  // CHECK: kernel = @kernels::@sort_keys_k64
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"sorted_keys", {}>} : (!spconv.coords<64>) -> !spconv.map<1>
  return %0 : !spconv.map<1>
}
