// RUN: %opt %s --from-level=stages --to-level=gpu --target=gfx950 | %filecheck %s

// A pool has a kernel for its mode, its type and its channels; a lane has four of the 20 channels, as many as 8 bytes
// hold that every row begins at a multiple of.

// CHECK-LABEL: func.func @pool
// CHECK-SAME: {spconv.name = "out"}
func.func @pool(%fine: !spconv.coords<32> {spconv.name = "coords"}, %coarse: !spconv.coords<32> {spconv.name = "out_coords"}, %features: tensor<?x20xbf16> {spconv.name = "features"}) -> tensor<?x20xbf16> {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_grid", {block = 256 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  %pairs = "spconv.cross_compact"(%map) {transposed = false, schedule = #spconv.schedule<"output_table", {}>} : (!spconv.cross_map<27>) -> !spconv.pairs<27>
  // CHECK: group = "output", kernel = @kernels::@pool_max_bf16_t27_20_b256}
  %0 = "spconv.pool"(%pairs, %features) {mode = "max", schedule = #spconv.schedule<"row_pool", {block = 256 : i64}>} : (!spconv.pairs<27>, tensor<?x20xbf16>) -> tensor<?x20xbf16>
  return %0 : tensor<?x20xbf16>
}

// Nine taps at a time: their rows are all looked up before the first is read.
// CHECK: gpu.func @pool_max
// CHECK: scf.for
// CHECK-COUNT-9: "spconv.tile_load"({{.+}}) : (!spconv.buffer<i32>, i32) -> i32
// CHECK: "spconv.tile_load"({{.+}}) : (!spconv.buffer<bf16>, i32) -> vector<4xbf16>
