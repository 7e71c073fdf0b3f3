// RUN: %opt %s -p convert-map-to-loops{target=x86-64-v3},convert-compact-to-loops{target=x86-64-v3} | %filecheck %s

// The search writes straight into one growing list of pairs: no table of rows by taps exists. Chunks of 64 rows each
// have 9 + 1 tap starts.

// CHECK-DAG: [[PAIRS:#.+]] = affine_map<()[s0, s1, s2] -> (s0 * 9)>
// CHECK-DAG: [[STARTS:#.+]] = affine_map<()[s0, s1, s2] -> ((s0 ceildiv 64) * 10)>
// CHECK-LABEL: func.func @pairs
func.func @pairs(%coords: !spconv.coords<32>) -> !spconv.pairs<9> {
  %0 = "spconv.map"(%coords) {kernel_size = array<i64: 1, 3, 3>, dilation = array<i64: 1, 2, 1>, schedule = #spconv.schedule<"sorted_keys", {}>} : (!spconv.coords<32>) -> !spconv.map<9>
  // CHECK: [[LIST:%.+]] = "spconv.alloc"() {grows, name = "pairs", size = [[PAIRS]]} : () -> !spconv.buffer<i64>
  // CHECK: "spconv.alloc"() {name = "tap_first", size = [[STARTS]]} : () -> !spconv.buffer<i32>
  // CHECK: "spconv.symbol"() {name = "capacity"}
  // CHECK: "spconv.launch"
  // CHECK-SAME: kernel = @kernels::@chunk_pairs_k32_1x3x3_d1x2x1_r64
  // CHECK: builtin.unrealized_conversion_cast [[LIST]]
  // CHECK-SAME: to !spconv.pairs<9 : i64>
  %1 = "spconv.compact"(%0) {schedule = #spconv.schedule<"chunk_tap_row", {chunk_rows = 64 : i64}>} : (!spconv.map<9>) -> !spconv.pairs<9>
  return %1 : !spconv.pairs<9>
}
// Threads are made and joined inside the kernel, and take chunks from a shared counter.
// CHECK: llvm.func internal @chunk_pairs_k32_1x3x3_d1x2x1_r64_worker
// CHECK: llvm.atomicrmw add
