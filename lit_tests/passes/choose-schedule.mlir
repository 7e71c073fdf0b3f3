// RUN: %opt %s -p 'choose-schedule{target=gfx950 schedule=pairs_m16}' --split-input-file | %filecheck %s --check-prefixes=CHECK,GPU
// RUN: %opt %s -p choose-schedule{target=x86-64-v3} --split-input-file | %filecheck %s --check-prefixes=CHECK,CPU

// Every stage op gets its part of the schedule that serves the gemm.

// CHECK-LABEL: func.func @every_op
func.func @every_op(%coords: !spconv.coords<32>, %features: tensor<?x16xbf16>, %weight: tensor<32x3x3x3x16xbf16>, %bias: tensor<32xf32>) -> tensor<?x32xbf16> {
  // CHECK: "spconv.map"
  // GPU-SAME: schedule = #spconv.schedule<"dense_grid", {
  // CPU-SAME: schedule = #spconv.schedule<"sorted_keys", {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<27>
  // CHECK: "spconv.compact"
  // GPU-SAME: schedule = #spconv.schedule<"tap_tile_row", {
  // GPU-SAME: tile_m = 16 : i64
  // CPU-SAME: schedule = #spconv.schedule<"chunk_tap_row", {
  %pairs = "spconv.compact"(%map) : (!spconv.map<27>) -> !spconv.pairs<27>
  // CHECK: "spconv.pack_weight"
  // GPU-SAME: schedule = #spconv.schedule<"mma_panels", {
  // CPU-SAME: schedule = #spconv.schedule<"row_panels", {
  %packed = "spconv.pack_weight"(%weight) : (tensor<32x3x3x3x16xbf16>) -> !spconv.packed<bf16>
  // The ops that only handle rows follow the gemm.
  // CHECK: "spconv.fill"
  // GPU-SAME: schedule = #spconv.schedule<"pairs_m16", {
  // CPU-SAME: schedule = #spconv.schedule<"chunk_stationary", {
  %init = "spconv.fill"(%coords, %bias) : (!spconv.coords<32>, tensor<32xf32>) -> tensor<?x32xf32>
  // CHECK: "spconv.gemm"
  // GPU-SAME: schedule = #spconv.schedule<"pairs_m16", {
  // CPU-SAME: schedule = #spconv.schedule<"chunk_stationary", {
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<27>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x32xf32>) -> tensor<?x32xf32>
  // CHECK: "spconv.apply_epilogue"
  // GPU-SAME: schedule = #spconv.schedule<"pairs_m16", {
  // CPU-SAME: schedule = #spconv.schedule<"chunk_stationary", {
  %out = "spconv.apply_epilogue"(%sum) {epilogue = #spconv.epilogue<"relu">} : (tensor<?x32xf32>) -> tensor<?x32xbf16>
  return %out : tensor<?x32xbf16>
}

// -----

// Layers of different widths ask the same of a map and of its pairs, so they go on sharing both.
// CHECK-LABEL: func.func @shared_pairs
func.func @shared_pairs(%coords: !spconv.coords<32>, %features: tensor<?x16xbf16>, %narrow: tensor<16x3x3x3x16xbf16>, %wide: tensor<512x3x3x3x16xbf16>) -> (tensor<?x16xf32>, tensor<?x512xf32>) {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<27>
  // CHECK: [[PAIRS:%.+]] = "spconv.compact"
  // CHECK-NOT: "spconv.compact"
  %pairs = "spconv.compact"(%map) : (!spconv.map<27>) -> !spconv.pairs<27>
  %packed16 = "spconv.pack_weight"(%narrow) : (tensor<16x3x3x3x16xbf16>) -> !spconv.packed<bf16>
  %packed512 = "spconv.pack_weight"(%wide) : (tensor<512x3x3x3x16xbf16>) -> !spconv.packed<bf16>
  %init16 = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x16xf32>
  %init512 = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x512xf32>
  // CHECK: "spconv.gemm"([[PAIRS]]
  %sum16 = "spconv.gemm"(%pairs, %features, %packed16, %init16) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<27>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x16xf32>) -> tensor<?x16xf32>
  // CHECK: "spconv.gemm"([[PAIRS]]
  %sum512 = "spconv.gemm"(%pairs, %features, %packed512, %init512) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<27>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x512xf32>) -> tensor<?x512xf32>
  return %sum16, %sum512 : tensor<?x16xf32>, tensor<?x512xf32>
}

// -----

// A schedule that is already there stays: whoever wrote it knows better. Pairs in another order are made again.
// CHECK-LABEL: func.func @kept
func.func @kept(%coords: !spconv.coords<32>, %features: tensor<?x16xbf16>, %weight: tensor<32x3x3x3x16xbf16>) -> (tensor<?x32xf32>, tensor<?x32xf32>) {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>) -> !spconv.map<27>
  // CHECK: [[MINE:%.+]] = "spconv.compact"
  // CHECK-SAME: schedule = #spconv.schedule<"my_order", {}>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"my_order", {}>} : (!spconv.map<27>) -> !spconv.pairs<27>
  %packed = "spconv.pack_weight"(%weight) : (tensor<32x3x3x3x16xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x32xf32>
  // CHECK: "spconv.gemm"([[MINE]]
  // CHECK-SAME: schedule = #spconv.schedule<"mine", {}>
  %mine = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"mine", {}>} : (!spconv.pairs<27>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x32xf32>) -> tensor<?x32xf32>
  // CHECK: [[THEIRS:%.+]] = "spconv.compact"
  // GPU-SAME: schedule = #spconv.schedule<"tap_tile_row", {
  // CPU-SAME: schedule = #spconv.schedule<"chunk_tap_row", {
  // CHECK: "spconv.gemm"([[THEIRS]]
  %theirs = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<27>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x32xf32>) -> tensor<?x32xf32>
  return %mine, %theirs : tensor<?x32xf32>, tensor<?x32xf32>
}

// -----

// Between two coordinate sets: on a GPU the coarse set becomes a grid, and the fine one looks up in it.
// CHECK-LABEL: func.func @between_sets
func.func @between_sets(%fine: !spconv.coords<32>, %features: tensor<?x16xbf16>, %weight: tensor<32x2x2x2x16xbf16>) -> tensor<?x32xf32> {
  // CHECK: "spconv.output_coords"
  // GPU-SAME: schedule = #spconv.schedule<"marked_cells", {
  // CPU-SAME: schedule = #spconv.schedule<"sorted_keys", {
  %coarse = "spconv.output_coords"(%fine) {kernel_size = array<i64: 2, 2, 2>, stride = array<i64: 2, 2, 2>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>, transposed = false} : (!spconv.coords<32>) -> !spconv.coords<32>
  // CHECK: "spconv.cross_map"
  // GPU-SAME: schedule = #spconv.schedule<"coarse_grid", {
  // CPU-SAME: schedule = #spconv.schedule<"sorted_keys", {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 2, 2, 2>, stride = array<i64: 2, 2, 2>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<8>
  // CHECK: "spconv.cross_compact"
  // GPU-SAME: schedule = #spconv.schedule<"tap_tile_row", {
  // CPU-SAME: schedule = #spconv.schedule<"chunk_tap_row", {
  %pairs = "spconv.cross_compact"(%map) {transposed = false} : (!spconv.cross_map<8>) -> !spconv.pairs<8>
  %packed = "spconv.pack_weight"(%weight) : (tensor<32x2x2x2x16xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coarse) : (!spconv.coords<32>) -> tensor<?x32xf32>
  // CHECK: "spconv.gemm"
  // GPU-SAME: schedule = #spconv.schedule<"pairs_m16", {
  // CPU-SAME: schedule = #spconv.schedule<"chunk_stationary", {
  %sum = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">} : (!spconv.pairs<8>, tensor<?x16xbf16>, !spconv.packed<bf16>, tensor<?x32xf32>) -> tensor<?x32xf32>
  return %sum : tensor<?x32xf32>
}

// -----

// A pool takes its own order of pairs.
// CHECK-LABEL: func.func @pool
func.func @pool(%fine: !spconv.coords<32>, %coarse: !spconv.coords<32>, %features: tensor<?x16xf32>) -> tensor<?x16xf32> {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 2, 2, 2>, stride = array<i64: 2, 2, 2>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<8>
  // CHECK: "spconv.cross_compact"
  // GPU-SAME: schedule = #spconv.schedule<"output_table", {
  // CPU-SAME: schedule = #spconv.schedule<"chunk_tap_row", {
  %pairs = "spconv.cross_compact"(%map) {transposed = false} : (!spconv.cross_map<8>) -> !spconv.pairs<8>
  // CHECK: "spconv.pool"
  // GPU-SAME: schedule = #spconv.schedule<"row_pool", {
  // CPU-SAME: schedule = #spconv.schedule<"chunk_pool", {
  %0 = "spconv.pool"(%pairs, %features) {mode = "max"} : (!spconv.pairs<8>, tensor<?x16xf32>) -> tensor<?x16xf32>
  return %0 : tensor<?x16xf32>
}
