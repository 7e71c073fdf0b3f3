// RUN: %opt %s -p convert-map-to-gpu,convert-cross-map-to-gpu,convert-compact-to-gpu,convert-cross-compact-to-gpu,convert-weight-to-gpu,convert-gemm-to-gpu,convert-rows-to-gpu,canonicalize,cse --split-input-file | %filecheck %s

// A gemm that owns its rows makes no fill: the bias, the activation and the rounding are in its own kernel. Rows are dealt
// out to workgroups of sixteen waves: at most 256 to each, at least 48, and as many as keep 208 or 256 of them busy; they
// go to eight chiplets in turn.

// CHECK: [[GROUPS:#.+]] = affine_map<()[s0, s1, s2] -> (((s0 ceildiv 48) ceildiv 8) * 8, ((s0 ceildiv 256) ceildiv 208) * 208, ((s0 ceildiv 256) ceildiv 256) * 256)>
// CHECK-LABEL: func.func @owner
// CHECK-SAME: message = "bytes of the sorted kernel map"
// CHECK-SAME: message = "bytes of features of 64 channels"
func.func @owner(%coords: !spconv.coords<32>, %features: tensor<?x64xbf16>, %weight: tensor<64x3x3x3x64xbf16>, %bias: tensor<64xf32>) -> tensor<?x64xbf16> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<27>
  // CHECK: kernel = @kernels::@look_up_rows_k32_3x3x3_d1x1x1_k32_i4_d3}
  // CHECK-NOT: @row_keys
  // CHECK-COUNT-3: kernel = @kernels::@sort_digit_k32_i4_d3}
  // CHECK: kernel = @kernels::@arrange_t27_i4_rows}
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"sorted_tiles", {block_rows = 256, items = 4}>} : (!spconv.map<27>) -> !spconv.pairs<27>
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 64, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<64x3x3x3x64xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords, %bias) : (!spconv.coords<32>, tensor<64xf32>) -> tensor<?x64xf32>
  // CHECK-NOT: fill_rows
  // CHECK: block = 1024 : i64, grid = {{.}}[[GROUPS]]{{.}}, group = "output"
  // CHECK-SAME: kernel = @kernels::@gemm_output_stationary_bf16_t27_64x64_n64x16_k32x8_s64_w8x2x2_l3_relu_bf16_bias
  %out = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"relu">, schedule = #spconv.schedule<"output_stationary", {block_rows = 256, waves = 16, across = 2, fragments = 2, least = 3, tile_n = 64, mma_n = 16, tile_k = 32, chunk_k = 8, stage_k = 64, splits = 1}>} : (!spconv.pairs<27>, tensor<?x64xbf16>, !spconv.packed<bf16>, tensor<?x64xf32>) -> tensor<?x64xbf16>
  return %out : tensor<?x64xbf16>
}

// Three items in the loop, each with one wait, one barrier, one copy ahead, and a branch for each fragment.
// CHECK: gpu.func @gemm_output_stationary
// CHECK: scf.for
// CHECK-COUNT-3: "spconv.tile_copy_wait"() {newest = 1 : i64}
// CHECK-NOT: "spconv.tile_copy_wait"
// CHECK-NOT: "spconv.tile_atomic"
// CHECK: gpu.return

// -----

// Rows of half a line: three items in the loop, of one product each.
// CHECK: [[PACKED:#.+]] = affine_map<()[s0, s1, s2] -> (13824)>
// CHECK-LABEL: func.func @half_a_line
func.func @half_a_line(%coords: !spconv.coords<32>, %features: tensor<?x32xbf16>, %weight: tensor<16x3x3x3x32xbf16>) -> tensor<?x16xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<27>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"sorted_tiles", {block_rows = 256, items = 4}>} : (!spconv.map<27>) -> !spconv.pairs<27>
  // CHECK: "spconv.alloc"() {name = "packed", size = [[PACKED]]}
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 16, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<16x3x3x3x32xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x16xf32>
  %out = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"output_stationary", {block_rows = 256, waves = 16, across = 1, fragments = 1, least = 3, tile_n = 16, mma_n = 16, tile_k = 32, chunk_k = 8, stage_k = 32, splits = 1}>} : (!spconv.pairs<27>, tensor<?x32xbf16>, !spconv.packed<bf16>, tensor<?x16xf32>) -> tensor<?x16xf32>
  return %out : tensor<?x16xf32>
}
// CHECK: gpu.func @gemm_output_stationary
// CHECK: scf.for
// CHECK-COUNT-3: "spconv.tile_mma"
// CHECK-NOT: "spconv.tile_mma"
// CHECK: gpu.return

// -----

// Rows of three loads: two steps of two stages stand in the loop, of two products and of one.
// CHECK: [[PACKED:#.+]] = affine_map<()[s0, s1, s2] -> (41472)>
// CHECK-LABEL: func.func @a_shorter_last_stage
func.func @a_shorter_last_stage(%coords: !spconv.coords<32>, %features: tensor<?x96xbf16>, %weight: tensor<16x3x3x3x96xbf16>) -> tensor<?x16xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<27>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"sorted_tiles", {block_rows = 256, items = 4}>} : (!spconv.map<27>) -> !spconv.pairs<27>
  // CHECK: "spconv.alloc"() {name = "packed", size = [[PACKED]]}
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 16, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<16x3x3x3x96xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x16xf32>
  %out = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"output_stationary", {block_rows = 256, waves = 16, across = 1, fragments = 1, least = 3, tile_n = 16, mma_n = 16, tile_k = 32, chunk_k = 8, stage_k = 64, splits = 1}>} : (!spconv.pairs<27>, tensor<?x96xbf16>, !spconv.packed<bf16>, tensor<?x16xf32>) -> tensor<?x16xf32>
  return %out : tensor<?x16xf32>
}
// CHECK: gpu.func @gemm_output_stationary
// CHECK: scf.for
// CHECK-COUNT-6: "spconv.tile_mma"
// CHECK-NOT: "spconv.tile_mma"
// CHECK: gpu.return

// -----

// Five stages, three items in the loop: the second product of each is branched around where there is none.
// CHECK: [[PACKED:#.+]] = affine_map<()[s0, s1, s2] -> (124416)>
// CHECK-LABEL: func.func @a_last_stage_that_the_loop_does_not_tell
func.func @a_last_stage_that_the_loop_does_not_tell(%coords: !spconv.coords<32>, %features: tensor<?x288xbf16>, %weight: tensor<16x3x3x3x288xbf16>) -> tensor<?x16xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<27>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"sorted_tiles", {block_rows = 256, items = 4}>} : (!spconv.map<27>) -> !spconv.pairs<27>
  // CHECK: "spconv.alloc"() {name = "packed", size = [[PACKED]]}
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 16, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<16x3x3x3x288xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x16xf32>
  %out = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"output_stationary", {block_rows = 256, waves = 16, across = 1, fragments = 1, least = 3, tile_n = 16, mma_n = 16, tile_k = 32, chunk_k = 8, stage_k = 64, splits = 1}>} : (!spconv.pairs<27>, tensor<?x288xbf16>, !spconv.packed<bf16>, tensor<?x16xf32>) -> tensor<?x16xf32>
  return %out : tensor<?x16xf32>
}
// CHECK: gpu.func @gemm_output_stationary
// CHECK: scf.for
// CHECK: "spconv.tile_mma"
// CHECK: scf.if
// CHECK: "spconv.tile_mma"
// CHECK-COUNT-4: "spconv.tile_mma"
// CHECK-NOT: "spconv.tile_mma"
// CHECK: gpu.return

// -----

// Split over taps: four sums of every row, and a kernel that adds them up in order.
// CHECK-LABEL: func.func @split
func.func @split(%coords: !spconv.coords<32>, %features: tensor<?x16xf16>, %weight: tensor<16x3x3x3x16xf16>) -> tensor<?x16xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<27>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"sorted_tiles", {block_rows = 256, items = 4}>} : (!spconv.map<27>) -> !spconv.pairs<27>
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 16, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<16x3x3x3x16xf16>) -> !spconv.packed<f16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x16xf32>
  // CHECK: "spconv.alloc"() {name = "part_sums"
  // CHECK: kernel = @kernels::@gemm_split_taps_f16_t27_16x16_n16x16_k32x8_s32_w16x1x1_l3_s4
  // CHECK: kernel = @kernels::@add_parts_4x16_none_f32
  %out = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"split_taps", {block_rows = 256, waves = 16, across = 1, fragments = 1, least = 3, tile_n = 16, mma_n = 16, tile_k = 32, chunk_k = 8, stage_k = 32, splits = 4}>} : (!spconv.pairs<27>, tensor<?x16xf16>, !spconv.packed<f16>, tensor<?x16xf32>) -> tensor<?x16xf32>
  return %out : tensor<?x16xf32>
}

// -----

// Few channels: K is all taps, and nothing goes through local memory.
// CHECK-LABEL: func.func @small
func.func @small(%coords: !spconv.coords<32>, %features: tensor<?x4xbf16>, %weight: tensor<16x3x3x3x4xbf16>) -> tensor<?x16xf32> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<27>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"sorted_tiles", {block_rows = 256, items = 4}>} : (!spconv.map<27>) -> !spconv.pairs<27>
  // CHECK: kernel = @kernels::@pack_taps_bf16_t27_4x16_n16x16_r4x8
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"tap_panels", {tile_n = 16, mma_n = 16, chunk_k = 8, groups = 4}>} : (tensor<16x3x3x3x4xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x16xf32>
  // CHECK: block = 256 : i64
  // CHECK-SAME: kernel = @kernels::@gemm_small_channels_bf16_t27_4x16_n16x16_r4x8_w4x1_none_f32
  %out = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"small_channels", {block_rows = 256, waves = 4, fragments = 1, tile_n = 16, mma_n = 16, chunk_k = 8, groups = 4}>} : (!spconv.pairs<27>, tensor<?x4xbf16>, !spconv.packed<bf16>, tensor<?x16xf32>) -> tensor<?x16xf32>
  return %out : tensor<?x16xf32>
}
// CHECK: gpu.func @gemm_small_channels
// CHECK-NOT: workgroup
// CHECK-COUNT-7: "spconv.tile_mma"
// CHECK-NOT: "spconv.tile_mma"
// CHECK: gpu.return

// -----

// Between two sets the kernel takes two numbers of rows: features end behind the fine rows, results have the coarse ones.
// CHECK-DAG: [[FEATURES:#.+]] = affine_map<()[s0, s1, s2] -> (s0 * 128)>
// CHECK-DAG: [[GROUPS:#.+]] = affine_map<()[s0, s1, s2, s3] -> (((s3 ceildiv 48) ceildiv 8) * 8, ((s3 ceildiv 256) ceildiv 208) * 208, ((s3 ceildiv 256) ceildiv 256) * 256)>
// CHECK-LABEL: func.func @between_sets
// CHECK-SAME: message = "bytes of features of 64 channels", size = [[FEATURES]]}
func.func @between_sets(%fine: !spconv.coords<32> {spconv.name = "coords"}, %coarse: !spconv.coords<32> {spconv.name = "out_coords"}, %features: tensor<?x64xbf16> {spconv.name = "features"}, %weight: tensor<64x2x2x2x64xbf16> {spconv.name = "weight"}) -> tensor<?x64xbf16> {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 2, 2, 2>, stride = array<i64: 2, 2, 2>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_grid", {block = 256 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<8>
  %pairs = "spconv.cross_compact"(%map) {transposed = false, schedule = #spconv.schedule<"sorted_tiles", {block_rows = 256 : i64, items = 4 : i64}>} : (!spconv.cross_map<8>) -> !spconv.pairs<8>
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 64, mma_n = 16, tile_k = 32, chunk_k = 8}>} : (tensor<64x2x2x2x64xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coarse) : (!spconv.coords<32>) -> tensor<?x64xf32>
  // CHECK-DAG: [[ROWS:%.+]] = "spconv.symbol"() {name = "rows"} : () -> i32
  // CHECK-DAG: [[COARSE:%.+]] = "spconv.symbol"() {name = "coarse_rows"} : () -> i32
  // CHECK-DAG: [[IN:%.+]] = "spconv.argument"([[ROWS]])
  // CHECK-DAG: [[OUT:%.+]] = "spconv.argument"([[COARSE]])
  // CHECK: "spconv.launch"({{.+}}, [[IN]], [[OUT]]) {block = 1024 : i64, grid = {{.}}[[GROUPS]]{{.}}, group = "output", kernel = @kernels::@gemm_output_stationary_bf16_t8_64x64
  %out = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"output_stationary", {block_rows = 256, waves = 16, across = 2, fragments = 2, least = 3, tile_n = 64, mma_n = 16, tile_k = 32, chunk_k = 8, stage_k = 64, splits = 1}>} : (!spconv.pairs<8>, tensor<?x64xbf16>, !spconv.packed<bf16>, tensor<?x64xf32>) -> tensor<?x64xbf16>
  return %out : tensor<?x64xbf16>
}

// -----

// A map that only a sort of rows reads comes by rows, and with records: of 28 words for 27 taps, by search, after which
// nothing is turned over. Two readers take it by tiles.
// CHECK: [[ROWS:#.+]] = affine_map<()[s0, s1, s2] -> (s0 * 28)>
// CHECK-LABEL: func.func @by_rows
func.func @by_rows(%coords: !spconv.coords<32>) -> !spconv.pairs<27> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"z_delta", {block = 256, items = 4}>} : (!spconv.coords<32>) -> !spconv.map<27>
  // CHECK: "spconv.alloc"() {name = "table", size = [[ROWS]]}
  // CHECK: kernel = @kernels::@search_rows_k32_3x3x3_d1x1x1_k32_i4_d3}
  // CHECK-NOT: @turn_over
  // CHECK-NOT: @row_keys
  // CHECK: kernel = @kernels::@arrange_t27_i4_rows}
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"sorted_tiles", {block_rows = 256, items = 4}>} : (!spconv.map<27>) -> !spconv.pairs<27>
  return %pairs : !spconv.pairs<27>
}

// The neighbours of a row are seven runs of four words, on their way together.
// CHECK: gpu.func @arrange_t27_i4_rows
// CHECK-COUNT-7: "spconv.tile_load"({{.+}}) : (!spconv.buffer<i32>, i32) -> vector<4xi32>
// CHECK: gpu.ballot

// -----

// CHECK-LABEL: func.func @two_readers
func.func @two_readers(%coords: !spconv.coords<32>) -> (!spconv.pairs<27>, !spconv.pairs<27>) {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<27>
  // CHECK: kernel = @kernels::@lookup_k32_3x3x3_d1x1x1_b256}
  // CHECK: kernel = @kernels::@row_keys_3x3x3_i4}
  // CHECK: kernel = @kernels::@arrange_t27_i4}
  // CHECK: kernel = @kernels::@compact_pairs_t27_m16}
  %sorted = "spconv.compact"(%map) {schedule = #spconv.schedule<"sorted_tiles", {block_rows = 256, items = 4}>} : (!spconv.map<27>) -> !spconv.pairs<27>
  %listed = "spconv.compact"(%map) {schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16 : i64}>} : (!spconv.map<27>) -> !spconv.pairs<27>
  return %sorted, %listed : !spconv.pairs<27>, !spconv.pairs<27>
}

// -----

// The tall schedule has two forms: 256 channels are three slices where rows fit into one turn of 80 shares of 384, else two
// slices, of shares of 512. The grid is the least of the counts, of which those of the other form are too large.
// CHECK: [[GROUPS:#.+]] = affine_map<()[s0, s1, s2] -> (((s0 ceildiv 48) ceildiv 8) * 24 + ((s0 + 2147452927) floordiv 2147483648) * 2147483648, ((s0 ceildiv 384) ceildiv 72) * 216 + {{.+}}, ((s0 ceildiv 512) ceildiv 112) * 224 + (-((s0 + 2147452927) floordiv 2147483648) + 1) * 2147483648, {{.+}})>
// CHECK-LABEL: func.func @tall
func.func @tall(%coords: !spconv.coords<32>, %features: tensor<?x64xbf16>, %weight: tensor<256x3x3x3x64xbf16>) -> tensor<?x256xbf16> {
  %map = "spconv.map"(%coords) {kernel_size = array<i64: 3, 3, 3>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"dense_grid", {block = 256}>} : (!spconv.coords<32>) -> !spconv.map<27>
  %pairs = "spconv.compact"(%map) {schedule = #spconv.schedule<"sorted_tiles", {block_rows = 256, items = 4}>} : (!spconv.map<27>) -> !spconv.pairs<27>
  %packed = "spconv.pack_weight"(%weight) {schedule = #spconv.schedule<"mma_panels", {tile_n = 16, mma_n = 16, tile_k = 64, chunk_k = 8}>} : (tensor<256x3x3x3x64xbf16>) -> !spconv.packed<bf16>
  %init = "spconv.fill"(%coords) : (!spconv.coords<32>) -> tensor<?x256xf32>
  // CHECK: "spconv.launch"({{.+}}) {block = 512 : i64, grid = {{.}}[[GROUPS]]{{.}}, group = "output", kernel = @kernels::@gemm_output_stationary_tall_bf16_t27_64x256_n16x16_k64x8_w8x1x3or4_l3_none_bf16
  %out = "spconv.gemm"(%pairs, %features, %packed, %init) {epilogue = #spconv.epilogue<"none">, schedule = #spconv.schedule<"output_stationary_tall", {waves = 8, fragments = 3, widest = 6, most_fragments = 4, most_panels = 8, least = 3, tile_n = 16, mma_n = 16, tile_k = 64, chunk_k = 8}>} : (!spconv.pairs<27>, tensor<?x64xbf16>, !spconv.packed<bf16>, tensor<?x256xf32>) -> tensor<?x256xbf16>
  return %out : tensor<?x256xbf16>
}
// Loops for slices of four panels and of six, three tiles each, then one for eight, of four tiles; four items stand in each.
// CHECK: gpu.func @gemm_output_stationary_tall
// CHECK: scf.for
// CHECK-COUNT-96: "spconv.tile_mma"
// CHECK: scf.for
// CHECK-COUNT-144: "spconv.tile_mma"
// CHECK: scf.for
// CHECK-COUNT-256: "spconv.tile_mma"
// CHECK-NOT: "spconv.tile_mma"
// CHECK: gpu.return
