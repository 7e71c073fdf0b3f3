// RUN: %opt %s -p convert-cross-map-to-gpu{target=gfx950},convert-cross-compact-to-gpu{target=gfx950} --split-input-file | %filecheck %s

// Pairs of a gemm: every fine row looks up and counts, the counts are scanned, the pairs written. A fine voxel has eight
// pairs at most: (rows * 8) ceildiv 16 tiles, and one begun for each of 27 taps.

// CHECK: [[TILES:#.+]] = affine_map<()[s0, s1, s2] -> ((s0 * 8) ceildiv 16 + 27)>
// CHECK-LABEL: func.func @strided
func.func @strided(%fine: !spconv.coords<32> {spconv.name = "coords"}, %coarse: !spconv.coords<32> {spconv.name = "out_coords"}) -> !spconv.pairs<27> {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_grid", {block = 256 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  // CHECK: "spconv.alloc"() {name = "tile_tap", size = [[TILES]]}
  // CHECK: group = "pairs", kernel = @kernels::@cross_lookup_k32_3x3x3_s2x2x2_p1x1x1_d1x1x1_b256}
  // CHECK: group = "pairs", kernel = @kernels::@scan_chunks_b1024}
  // CHECK: group = "pairs", kernel = @kernels::@write_cross_pairs_t27_m16}
  // CHECK: builtin.unrealized_conversion_cast {{.+}} {in_rows = "rows", rows = "coarse_rows", tiles =
  %pairs = "spconv.cross_compact"(%map) {transposed = false, schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16 : i64}>} : (!spconv.cross_map<27>) -> !spconv.pairs<27>
  return %pairs : !spconv.pairs<27>
}

// The number of rows, then the cells that serve 27 taps, eight by stride 2: their loads are in flight together.
// CHECK: gpu.func @cross_lookup
// CHECK-COUNT-9: "spconv.tile_load"({{.+}}) : (!spconv.buffer<i32>, i32) -> i32
// CHECK-NOT: "spconv.tile_load"({{.+}}) : (!spconv.buffer<i32>, i32) -> i32
// CHECK: gpu.barrier

// -----

// The inverse looks up in the same grid and writes the columns the other way round.
// CHECK-LABEL: func.func @transposed
func.func @transposed(%fine: !spconv.coords<32> {spconv.name = "out_coords"}, %coarse: !spconv.coords<32> {spconv.name = "coords"}) -> !spconv.pairs<27> {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_grid", {block = 256 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  // CHECK: kernel = @kernels::@cross_lookup_k32_3x3x3_s2x2x2_p1x1x1_d1x1x1_b256}
  // CHECK: kernel = @kernels::@write_cross_pairs_t27_m16_transposed}
  // CHECK: {in_rows = "coarse_rows", rows = "rows", tiles =
  %pairs = "spconv.cross_compact"(%map) {transposed = true, schedule = #spconv.schedule<"tap_tile_row", {tile_m = 16 : i64}>} : (!spconv.cross_map<27>) -> !spconv.pairs<27>
  return %pairs : !spconv.pairs<27>
}

// -----

// A pool reads a table by output rows, into which fine rows put themselves.
// CHECK-LABEL: func.func @pool
func.func @pool(%fine: !spconv.coords<32> {spconv.name = "coords"}, %coarse: !spconv.coords<32> {spconv.name = "out_coords"}) -> !spconv.pairs<27> {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_grid", {block = 256 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  // CHECK: [[TABLE:%.+]] = "spconv.alloc"() {name = "output_table"
  // CHECK: group = "pairs", kernel = @kernels::@fill_table_t27_b256}
  // CHECK: group = "pairs", kernel = @kernels::@output_lookup_k32_3x3x3_s2x2x2_p1x1x1_d1x1x1_b256}
  // CHECK: group = "pairs", kernel = @kernels::@share_rows_k32_t27_b256}
  // CHECK: builtin.unrealized_conversion_cast [[TABLE]], %arg3 : {{.+}} {rows = "coarse_rows"}
  %pairs = "spconv.cross_compact"(%map) {transposed = false, schedule = #spconv.schedule<"output_table", {}>} : (!spconv.cross_map<27>) -> !spconv.pairs<27>
  return %pairs : !spconv.pairs<27>
}
// CHECK: gpu.func @output_lookup
// CHECK-COUNT-27: "spconv.tile_atomic"({{.+}}) {kind = "umin"}

// -----

// A gemm that owns its output rows takes the table of outputs in the order of their masks: coarse rows that fine ones
// put into a table, and for a transposed op fine rows that look up coarse ones.
// CHECK-LABEL: func.func @sorted
func.func @sorted(%fine: !spconv.coords<32> {spconv.name = "coords"}, %coarse: !spconv.coords<32> {spconv.name = "out_coords"}) -> (!spconv.pairs<27>, !spconv.pairs<27>) {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_grid", {block = 256 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<27>
  // CHECK: kernel = @kernels::@output_lookup_k32_3x3x3_s2x2x2_p1x1x1_d1x1x1_b256}
  // CHECK: kernel = @kernels::@row_keys_3x3x3_i4}
  // CHECK-COUNT-3: kernel = @kernels::@sort_digit_k32_i4_d3}
  // CHECK: kernel = @kernels::@arrange_t27_i4}
  // CHECK: {in_rows = "rows", rows = "coarse_rows"}
  %pairs = "spconv.cross_compact"(%map) {transposed = false, schedule = #spconv.schedule<"sorted_tiles", {block_rows = 256 : i64, items = 4 : i64}>} : (!spconv.cross_map<27>) -> !spconv.pairs<27>
  // CHECK: kernel = @kernels::@input_lookup_k32_3x3x3_s2x2x2_p1x1x1_d1x1x1_b256}
  // CHECK: kernel = @kernels::@arrange_t27_i4}
  // CHECK: {in_rows = "coarse_rows", rows = "rows"}
  %inverse = "spconv.cross_compact"(%map) {transposed = true, schedule = #spconv.schedule<"sorted_tiles", {block_rows = 256 : i64, items = 4 : i64}>} : (!spconv.cross_map<27>) -> !spconv.pairs<27>
  return %pairs, %inverse : !spconv.pairs<27>, !spconv.pairs<27>
}

// -----

// Where the coarse set is sorted keys, every look-up is a search; of two taps along an axis a fine voxel meets a coarse one
// through one, so that eight taps take one.
// CHECK-LABEL: func.func @keys
func.func @keys(%fine: !spconv.coords<32> {spconv.name = "coords"}, %coarse: !spconv.coords<32> {spconv.name = "out_coords"}) -> !spconv.pairs<8> {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 2, 2, 2>, stride = array<i64: 2, 2, 2>, padding = array<i64: 0, 0, 0>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_keys", {block = 256 : i64, items = 4 : i64}>} : (!spconv.coords<32>, !spconv.coords<32>) -> !spconv.cross_map<8>
  // CHECK: kernel = @kernels::@output_lookup_k32_keys_2x2x2_s2x2x2_p0x0x0_d1x1x1_b256}
  // CHECK: kernel = @kernels::@share_rows_k32_keys_t8_b256}
  %pairs = "spconv.cross_compact"(%map) {transposed = false, schedule = #spconv.schedule<"output_table", {}>} : (!spconv.cross_map<8>) -> !spconv.pairs<8>
  return %pairs : !spconv.pairs<8>
}
// CHECK: gpu.func @output_lookup
// CHECK: scf.while
// CHECK-NOT: scf.while
// CHECK: gpu.return

// -----

// Coarse rows that ascend are distinct: none shares its line with another. Eight searches go together.
// CHECK-LABEL: func.func @ascending
func.func @ascending(%fine: !spconv.coords<64> {spconv.name = "coords"}, %coarse: !spconv.coords<64> {spconv.name = "out_coords"}) -> !spconv.pairs<27> {
  %map = "spconv.cross_map"(%fine, %coarse) {kernel_size = array<i64: 3, 3, 3>, stride = array<i64: 2, 2, 2>, padding = array<i64: 1, 1, 1>, dilation = array<i64: 1, 1, 1>, schedule = #spconv.schedule<"coarse_ascending", {}>} : (!spconv.coords<64>, !spconv.coords<64>) -> !spconv.cross_map<27>
  // CHECK: kernel = @kernels::@fill_table_t27_b256}
  // CHECK: kernel = @kernels::@output_lookup_k64_ascending_3x3x3_s2x2x2_p1x1x1_d1x1x1_b256}
  // CHECK-NOT: share_rows
  %pairs = "spconv.cross_compact"(%map) {transposed = false, schedule = #spconv.schedule<"output_table", {}>} : (!spconv.cross_map<27>) -> !spconv.pairs<27>
  return %pairs : !spconv.pairs<27>
}
// CHECK: gpu.func @output_lookup
// CHECK: scf.while
// CHECK-COUNT-8: "spconv.tile_load"
// CHECK: scf.yield
// CHECK-NOT: scf.while
// CHECK: gpu.return
