// RUN: %opt %s --from-level=stages --to-level=loops --target=x86-64-v3 | %filecheck %s

// A pool runs over the pairs of a convolution and has a function for its mode, its type and its channels. Its rows are
// those of the coarse set.

// CHECK-LABEL: func.func @pool
func.func @pool(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>, %features: tensor<?x20xbf16>) -> tensor<?x20xbf16> {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 2, 2, 2>, stride = array<i64: 2, 2, 2>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"sorted_keys", {}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<8>
  %pairs = "spconv.cross_compact"(%map) {transposed = false, schedule = #spconv.schedule<"chunk_tap_row", {chunk_rows = 512 : i64}>} : (!spconv.cross_map<8>) -> !spconv.pairs<8>
  // CHECK: "spconv.alloc"() {name = "pool_scratch"
  // CHECK: group = "output", kernel = @kernels::@pool_max_bf16_t8_20_r512}
  %0 = "spconv.pool"(%pairs, %features) {mode = "max", schedule = #spconv.schedule<"chunk_pool", {chunk_rows = 512 : i64}>} : (!spconv.pairs<8>, tensor<?x20xbf16>) -> tensor<?x20xbf16>
  return %0 : tensor<?x20xbf16>
}
// CHECK: llvm.func internal @pool_max_bf16_t8_20_r512_worker
